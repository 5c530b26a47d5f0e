//! The scheduler, wrapped so that the driver keeps the scheduler's contract: time increases
//! strictly, each instant has one settle, and every input is recorded.

use crate::record::flight::{EventRef, FlightRing};
use crate::record::recorder::Recorder;
use crate::shards::MatchmakerLink;
use crate::{Aside, FlightEntry};
use ripieno_base::{DeviceId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_policies::grants::Grant;
use ripieno_policies::shard_in;
use ripieno_sched::{Action, Control, Limits, Outbox, Prediction, Request, Scheduler, TaskDone};

/// The places into which inputs and decisions are recorded.
#[derive(Default)]
pub(crate) struct Tapes {
    pub(crate) flight: Option<FlightRing>,
    pub(crate) file: Option<Recorder>,
}

impl Tapes {
    fn event(&mut self, now: Time, event: &EventRef<'_>) {
        if let Some(flight) = &self.flight {
            flight.event(now, event);
        }
        if let Some(file) = &mut self.file {
            file.record(now, FlightEntry::Event(event.to_event()));
        }
    }

    fn aside(&mut self, now: Time, aside: Aside) {
        if let Some(flight) = &self.flight {
            flight.aside(now, aside);
        }
        if let Some(file) = &mut self.file {
            file.record(now, FlightEntry::Aside(aside));
        }
    }
}

/// Owns the scheduler with its inputs and outputs.
pub(crate) struct Core {
    scheduler: Box<dyn Scheduler>,
    outbox: Outbox,
    tapes: Tapes,
    /// Connection to the matchmaker, if the scheduler is a shard.
    link: Option<MatchmakerLink>,
    /// The current instant. The next instant must be later.
    now: Time,
    /// Whether inputs arrived since the last settle.
    dirty: bool,
}

impl Core {
    pub(crate) fn new(
        scheduler: Box<dyn Scheduler>,
        limits: &Limits,
        tapes: Tapes,
        link: Option<MatchmakerLink>,
    ) -> Core {
        Core { scheduler, outbox: Outbox::new(limits), tapes, link, now: Time(i64::MIN), dirty: false }
    }

    /// Sends pending messages to the matchmaker. Returns whether all are sent; the scheduler may
    /// not settle before.
    pub(crate) fn flush_link(&mut self) -> bool {
        self.link.as_mut().is_none_or(MatchmakerLink::flush)
    }

    /// Begins an instant. If the clock has not advanced since the last turn, the core's time still
    /// advances, because the scheduler settles once per instant.
    pub(crate) fn advance(&mut self, clock: Time) -> Time {
        self.now = clock.max(self.now.next());
        self.now
    }

    /// Passes a request to the scheduler, with its graph if it has one.
    pub(crate) fn request(&mut self, request: &Request, graph: Option<&Graph>) {
        if let Some(graph) = graph {
            self.input(&EventRef::Graph { request: request.slot, graph });
            self.scheduler.on_graph(request.slot, graph);
        }
        self.input(&EventRef::Request(request));
        self.scheduler.on_request(self.now, request);
    }

    pub(crate) fn task_done(&mut self, done: &TaskDone<'_>) {
        let TaskDone { task, outcome, ended, skips } = *done;
        self.input(&EventRef::TaskDone { task, outcome, ended, skips });
        self.scheduler.on_task_done(self.now, done);
    }

    pub(crate) fn control(&mut self, control: Control) {
        self.input(&EventRef::Control(&control));
        self.scheduler.on_control(self.now, control);
    }

    pub(crate) fn grant(&mut self, grant: Grant) {
        self.input(&EventRef::Grant(grant.to_words()));
        let shard = shard_in(self.scheduler.as_mut()).expect("only shards are connected to a matchmaker");
        shard.on_grant(grant);
    }

    fn input(&mut self, event: &EventRef<'_>) {
        self.dirty = true;
        self.tapes.event(self.now, event);
    }

    /// Records a fact that the scheduler does not see.
    pub(crate) fn aside(&mut self, aside: Aside) {
        self.tapes.aside(self.now, aside);
    }

    /// Lets the scheduler decide if it has new inputs or its wake-up is due. The actions and their
    /// members stay readable until the next input.
    pub(crate) fn settle(&mut self) {
        self.outbox.clear();
        if !self.dirty && self.now < self.scheduler.next_wakeup() {
            return;
        }
        self.dirty = false;
        self.scheduler.settle(self.now, &mut self.outbox);
        assert!(self.scheduler.next_wakeup() > self.now, "a policy must not ask to be woken for what is past");
        for &reason in self.outbox.reasons() {
            self.tapes.aside(self.now, Aside::Decided(reason));
        }
        let (scheduler, actions) = (self.scheduler.as_ref(), self.outbox.actions());
        self.tapes.event(self.now, &EventRef::Settle { scheduler, actions });
        if let Some((link, shard)) = self.link.as_mut().zip(shard_in(self.scheduler.as_mut())) {
            link.send(shard.take_mail());
        }
    }

    /// Number of actions that the last settle decided.
    pub(crate) fn actions(&self) -> usize {
        self.outbox.actions().len()
    }

    /// Returns the action with the index `at` of the last settle.
    pub(crate) fn action(&self, at: usize) -> Action {
        self.outbox.actions()[at]
    }

    pub(crate) fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.scheduler.members(task)
    }

    /// Returns the node that each member of the task runs. Empty if every member runs its first
    /// step.
    pub(crate) fn nodes(&self, task: TaskId) -> &[u32] {
        self.scheduler.nodes(task)
    }

    /// Returns the policy's prediction for a request; `None` if the policy does not predict.
    pub(crate) fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        self.scheduler.prediction(request)
    }

    /// Returns true while requests go on on a device that leaves.
    pub(crate) fn holds(&self, device: DeviceId) -> bool {
        self.scheduler.holds(device)
    }

    pub(crate) fn learns_occupancy(&self) -> bool {
        self.scheduler.learns_occupancy()
    }

    pub(crate) fn takes_real_deadlines(&self) -> bool {
        self.scheduler.takes_real_deadlines()
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.scheduler.next_wakeup()
    }
}
