//! Both halves in one thread: the default in the simulator and on one node.

use super::{DeviceChoice, Matchmaker, ModelShard, Rule};
use crate::parts::tasks::Tasks;
use crate::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone};
use ripieno_base::{DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Model;

/// A shard with all models and a matchmaker, exchanging offers and grants at once.
///
/// A batch keeps its device through all blocks of its walk, losing the members whose walk ends early: none of the
/// policies built on this changes a batch once it has started.
pub(crate) struct Fused {
    shard: ModelShard,
    matchmaker: Matchmaker,
    tasks: Tasks,
    rule: Box<dyn Fn(&Model) -> Rule + Send>,
    /// Withdrawals since the last settle: they end requests, which only a settle may do.
    withdrawals: Vec<Withdrawal>,
}

enum Withdrawal {
    Model(ModelId),
    Request(RequestSlot),
}

impl Fused {
    /// Builds the pair; `rule` says which rule holds for a model.
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rule: Box<dyn Fn(&Model) -> Rule + Send>) -> Fused {
        let limits = &setup.limits;
        let mut fused = Fused {
            shard: ModelShard::new(limits),
            matchmaker: Matchmaker::new(limits.models, limits.devices, choice),
            tasks: Tasks::new(limits),
            rule,
            withdrawals: Vec::with_capacity(limits.requests + limits.models),
        };
        for (id, model) in setup.models.iter().enumerate() {
            fused.load_model(ModelId(id as u16), model.clone());
        }
        for device in 0..setup.devices {
            fused.matchmaker.join(Time::ORIGIN, DeviceId(device as u16));
        }
        fused
    }

    fn load_model(&mut self, id: ModelId, model: Model) {
        let rule = (self.rule)(&model);
        self.matchmaker.load_model(id, model.instances.max(1));
        self.shard.load_model(id, model, rule);
    }

    fn withdraw(&mut self, out: &mut Outbox) {
        for withdrawal in self.withdrawals.drain(..) {
            match withdrawal {
                Withdrawal::Model(id) => self.shard.retire_model(id, out),
                Withdrawal::Request(slot) => self.shard.cancel(slot, out),
            }
        }
    }

    /// Acts on a finished task: the next block for those who go on, an end for the others.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox) {
        let task = self.tasks.get(id);
        let last = task.block.index() + 1 == self.shard.model(task.model).blocks.len();
        let (tasks, shard) = (&mut self.tasks, &mut self.shard);
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, last, |member| shard.finish(member, out)),
            Outcome::Failed => tasks.advance(id, true, |member| shard.fail(member, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.advance(id, true, |member| shard.requeue(member, out)),
        };
        if going_on > 0 {
            return self.start(now, id, out);
        }
        self.tasks.close(id);
        self.matchmaker.release(now, task.model, task.device);
    }

    fn start(&self, now: Time, id: TaskId, out: &mut Outbox) {
        let task = self.tasks.get(id);
        out.push(Action::Start {
            task: id,
            model: task.model,
            block: task.block,
            device: task.device,
            not_before: now,
        });
    }

    fn post_offers(&mut self, now: Time, out: &mut Outbox) {
        while let Some(id) = self.shard.next_changed() {
            let offer = self.shard.offer(now, id, self.matchmaker.present(), out);
            self.matchmaker.post(now, id, offer);
        }
    }
}

impl Scheduler for Fused {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.shard.enqueue(now, request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        self.tasks.report(done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.matchmaker.join(now, device),
            Control::DeviceLeft(device) => self.matchmaker.leave(device),
            Control::DeviceSlowed { device, percent } => self.matchmaker.slow(device, percent),
            Control::ModelLoaded(id, model) => self.load_model(id, *model),
            Control::ProfileReplaced { model, block, profile } => {
                self.shard.replace_profile(now, model, block.index(), profile);
            }
            Control::ModelUnloaded(id) => self.withdrawals.push(Withdrawal::Model(id)),
            Control::Cancelled(request) => self.withdrawals.push(Withdrawal::Request(request)),
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.withdraw(out);
        let mut reported = 0;
        while let Some((task, outcome)) = self.tasks.take_done(reported) {
            self.complete(now, task, outcome, out);
            reported += 1;
        }
        self.shard.wake(now);
        self.post_offers(now, out);
        while let Some(grant) = self.matchmaker.next_grant(now) {
            match self.shard.form(now, &grant, &mut self.tasks, out) {
                Some(task) => {
                    self.matchmaker.take(&grant);
                    self.start(now, task, out);
                    self.post_offers(now, out);
                }
                None => self.matchmaker.set_aside(&grant),
            }
        }
        self.matchmaker.end_round(now);
    }

    fn next_wakeup(&self) -> Time {
        self.shard.next_wakeup().min(self.matchmaker.next_wakeup())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }
}
