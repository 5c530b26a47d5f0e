//! Both halves of the scheduler in one thread: the default in the simulator and on one node.

use super::{DeviceChoice, Matchmaker, ModelShard, Rules};
use ripieno_base::{DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_sched::{Control, Outbox, Request, Scheduler, Setup, TaskDone};

/// A shard with all models and a matchmaker, which exchange messages immediately.
pub(crate) struct Fused {
    shard: ModelShard,
    matchmaker: Matchmaker,
}

impl Fused {
    /// Builds the pair.
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: Rules) -> Fused {
        let limits = &setup.limits;
        let (shard, matchmaker) = (ModelShard::new(limits, 0, rules), Matchmaker::new(limits, choice, 1));
        let mut fused = Fused { shard, matchmaker };
        for (id, model) in setup.models.iter().enumerate() {
            fused.on_control(Time::ORIGIN, Control::ModelLoaded(ModelId(id as u16), Box::new(model.clone())));
        }
        for device in 0..setup.devices {
            fused.on_control(Time::ORIGIN, Control::DeviceJoined(DeviceId(device as u16)));
        }
        fused
    }
}

impl Scheduler for Fused {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.shard.on_request(now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.shard.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        self.shard.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        loop {
            let Fused { shard, matchmaker } = self;
            shard.decide(now, out, &mut |message| matchmaker.on_mail(now, message));
            let Some(grant) = self.matchmaker.next_grant(now) else { return };
            self.shard.on_grant(grant);
        }
    }

    fn next_wakeup(&self) -> Time {
        self.shard.next_wakeup().min(self.matchmaker.next_wakeup())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.shard.members(task)
    }
}
