//! The scheduler with the driver's promises built in: time never goes back, one settle an instant, every input on
//! record.

use crate::recorder::Recorder;
use crate::shards::Link;
use ripieno_base::{RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_sched::{Action, Control, Event, Grant, Guess, Limits, Outbox, Prediction, Request, Scheduler, TaskDone};

/// Owns the scheduler and all that is said to it and by it.
pub(crate) struct Core {
    scheduler: Box<dyn Scheduler>,
    outbox: Outbox,
    recorder: Option<Recorder>,
    /// Where it asks for devices, if it is a shard.
    link: Option<Link>,
    /// The last instant; the next one is later.
    now: Time,
    /// Whether there were inputs since the last settle.
    dirty: bool,
}

impl Core {
    pub(crate) fn new(
        scheduler: Box<dyn Scheduler>,
        limits: &Limits,
        recorder: Option<Recorder>,
        link: Option<Link>,
    ) -> Core {
        Core { scheduler, outbox: Outbox::new(limits), recorder, link, now: Time(i64::MIN), dirty: false }
    }

    /// Whether the matchmaker has been told all that was decided; before it has, nothing further can be.
    pub(crate) fn has_told(&mut self) -> bool {
        self.link.as_mut().is_none_or(Link::has_told)
    }

    /// Begins an instant. The clock may stand still between two turns; the core's time may not, for it settles once
    /// an instant.
    pub(crate) fn advance(&mut self, clock: Time) -> Time {
        self.now = clock.max(self.now.next());
        self.now
    }

    /// A request, and the graph that it brings.
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

    /// Lets the scheduler decide, if anything has happened or it asked to be woken. The actions stay readable, and
    /// their members too, until the next input.
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
            link.tell(self.outbox.take_mail());
        }
    }

    /// How many actions the last settle decided.
    pub(crate) fn actions(&self) -> usize {
        self.outbox.actions().len()
    }

    /// The action at this position of the last settle.
    pub(crate) fn action(&self, at: usize) -> Action {
        self.outbox.actions()[at]
    }

    pub(crate) fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.scheduler.members(task)
    }

    /// Which node each of its members runs; empty where each runs its first step.
    pub(crate) fn nodes(&self, task: TaskId) -> &[u32] {
        self.scheduler.nodes(task)
    }

    /// What the policy predicted for a request, if it predicts.
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
