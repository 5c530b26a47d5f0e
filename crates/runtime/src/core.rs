//! The scheduler, wrapped so that the driver keeps the scheduler's contract: time increases
//! strictly, each instant has one settle, and every input is recorded.

use crate::recorder::Recorder;
use crate::shards::MatchmakerLink;
use ripieno_base::{RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_sched::{Action, Control, Event, Grant, Guess, Limits, Outbox, Prediction, Request, Scheduler, TaskDone};

/// Owns the scheduler with its inputs and outputs.
pub(crate) struct Core {
    scheduler: Box<dyn Scheduler>,
    outbox: Outbox,
    recorder: Option<Recorder>,
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
        recorder: Option<Recorder>,
        link: Option<MatchmakerLink>,
    ) -> Core {
        Core { scheduler, outbox: Outbox::new(limits), recorder, link, now: Time(i64::MIN), dirty: false }
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
            self.input(|| Event::Graph { request: request.slot, graph: graph.clone() });
            self.scheduler.on_graph(request.slot, graph);
        }
        self.input(|| Event::Request(*request));
        self.scheduler.on_request(self.now, request);
    }

    pub(crate) fn task_done(&mut self, done: &TaskDone<'_>) {
        self.input(|| Event::TaskDone {
            task: done.task,
            outcome: done.outcome,
            ended: done.ended.to_vec(),
            skips: done.skips.to_vec(),
        });
        self.scheduler.on_task_done(self.now, done);
    }

    pub(crate) fn control(&mut self, control: Control) {
        self.input(|| Event::Control(control.clone()));
        self.scheduler.on_control(self.now, control);
    }

    pub(crate) fn grant(&mut self, grant: Grant) {
        self.input(|| Event::Grant(grant.to_frame()));
        self.scheduler.on_grant(self.now, grant);
    }

    fn input(&mut self, event: impl FnOnce() -> Event) {
        self.dirty = true;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(self.now, event());
        }
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
        if let Some(recorder) = &mut self.recorder {
            recorder.record(self.now, Event::of_settle(self.scheduler.as_ref(), &self.outbox));
        }
        if let Some(link) = &mut self.link {
            link.send(self.outbox.take_mail());
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

    pub(crate) fn guess(&self) -> Guess {
        self.scheduler.guess()
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.scheduler.next_wakeup()
    }
}
