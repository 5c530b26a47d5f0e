//! The half that owns models: a scheduler without knowledge of free devices. It receives requests,
//! ends of tasks and grants, starts batches, and sends the candidates of its models to the
//! matchmaker.
//!
//! A batch keeps its device through all blocks of its walk and loses the members whose walk ends
//! early. No policy built on this changes a batch once it has started.

use super::grants::{DeviceToken, GrantNumber};
use super::grants::{Grant, Loaded, Offer, Release, Sent, Standing, ToMatchmaker};
use super::{Rules, ShardQueues};
use crate::chain_tasks::ChainTasks;
use ripieno_base::{DeviceId, LaneId, RequestSlot, TaskId, Time};
use ripieno_sched::tables::tasks::Task;
use ripieno_sched::{Action, Control, Limits, Outbox, Outcome, Request, Scheduler, TaskDone, Why};
use std::any::Any;

/// A receiver of messages to the matchmaker: a mailbox, or the matchmaker itself.
pub(super) trait Sender: FnMut(ToMatchmaker) {}

impl<T: FnMut(ToMatchmaker)> Sender for T {}

/// A group of models.
pub struct ModelShard {
    number: u16,
    queues: ShardQueues,
    tasks: ChainTasks,
    /// The number of the first task of this shard: shards must not share task ids.
    first_task: u32,
    /// Whether devices hold more than one task, so that batches that take time to reach them can be
    /// sent ahead.
    holds_ahead: bool,
    /// The latency percentage of each present device in the cluster.
    stands: Vec<Option<u32>>,
    /// Per task, the number of its device's grant; `None` if the task is not open.
    granted: Vec<Option<GrantNumber>>,
    /// Number of grants received, by model.
    seen: Vec<u64>,
    /// Grants since the last settle.
    grants: Vec<Grant>,
    /// Answers since the last settle.
    pending: Outbox,
    /// Changes of devices and models for the matchmaker, since the last settle.
    changes: Vec<ToMatchmaker>,
    /// Messages of the last settle to the matchmaker.
    mail: Vec<ToMatchmaker>,
}

/// Returns the shard inside a scheduler, if it has one.
pub fn shard_in(scheduler: &mut dyn Scheduler) -> Option<&mut ModelShard> {
    scheduler.as_shard()?.downcast_mut()
}

impl ModelShard {
    /// Creates the shard with this number, without models. `limits` are the whole scheduler's.
    pub(crate) fn new(limits: &Limits, number: usize, rules: Rules) -> ModelShard {
        ModelShard {
            number: number as u16,
            queues: ShardQueues::new(limits, rules),
            tasks: ChainTasks::new(limits),
            first_task: (number * limits.tasks()) as u32,
            holds_ahead: limits.depth > 1,
            stands: vec![None; limits.devices],
            granted: vec![None; limits.tasks()],
            seen: vec![0; limits.models],
            grants: Vec::with_capacity(limits.tasks()),
            pending: Outbox::new(limits),
            changes: Vec::new(),
            // A shard offers each model once, and reports per device slot one batch sent and one
            // release.
            mail: Vec::with_capacity(limits.models + 2 * limits.tasks()),
        }
    }

    /// Takes the initial changes of devices and models, before the first settle.
    pub(super) fn take_changes(&mut self) -> impl Iterator<Item = ToMatchmaker> {
        self.changes.drain(..)
    }

    /// Receives a device for one of its models.
    pub fn on_grant(&mut self, grant: Grant) {
        self.grants.push(grant);
    }

    /// Takes the messages of the last settle to the matchmaker, in order.
    pub fn take_mail(&mut self) -> impl Iterator<Item = ToMatchmaker> {
        self.mail.drain(..)
    }

    /// Sets the latency percentage of a device; `None` if it is not present.
    fn set_standing(&mut self, device: DeviceId, percent: Option<u32>) {
        self.stands[device.index()] = percent;
        self.changes.push(ToMatchmaker::Standing(Standing { shard: self.number, device, percent }));
    }

    /// Settles; `send` receives the messages to the matchmaker.
    pub(super) fn decide(&mut self, now: Time, out: &mut Outbox, send: &mut impl Sender) {
        if !self.pending.actions().is_empty() {
            self.pending.move_to(out);
        }
        if !self.changes.is_empty() {
            self.changes.drain(..).for_each(&mut *send);
        }
        let mut reported = 0;
        while let Some((task, outcome)) = self.tasks.take_done(reported) {
            self.complete(now, task, outcome, out, send);
            reported += 1;
        }
        self.queues.wake(now);
        while let Some(grant) = self.grants.pop() {
            self.apply_grant(now, grant, out, send);
        }
        while let Some(model) = self.queues.next_changed() {
            let candidates = self.queues.candidates(now, model, out);
            send(ToMatchmaker::Offer(Offer { model, seen: self.seen[model.index()], candidates }));
        }
    }

    fn own(&self, task: TaskId) -> TaskId {
        TaskId(task.0 - self.first_task)
    }

    /// Completes a finished task: members that continue get the next block, the others end.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox, send: &mut impl Sender) {
        let task = self.tasks.get(id);
        let (tasks, queues) = (&mut self.tasks, &mut self.queues);
        let continuing = match outcome {
            Outcome::Ok => tasks.advance(id, |member| queues.requests.finish(member, out)),
            Outcome::Failed => tasks.fail(id, |member| queues.requests.reject(member.0, Why::Failed, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(id, |member| queues.requeue(member, out)),
        };
        if continuing > 0 {
            return self.start(now, id, out, send);
        }
        self.tasks.close(id);
        let number = self.granted[id.index()].take().expect("a task runs on what was granted");
        let token = DeviceToken { device: task.device, number };
        send(ToMatchmaker::Release(Release { model: task.model, token, unused: None }));
    }

    /// Forms a batch for a granted device. A device that has left meanwhile is returned.
    fn apply_grant(&mut self, now: Time, grant: Grant, out: &mut Outbox, send: &mut impl Sender) {
        self.seen[grant.model.index()] += 1;
        let formed = match self.stands[grant.device().index()].is_some() {
            true => self.queues.form(now, &grant, &mut self.tasks, out),
            false => {
                self.queues.mark(grant.model);
                None
            }
        };
        match formed {
            Some(task) => {
                self.granted[task.index()] = Some(grant.token.number);
                self.start(now, task, out, send);
            }
            None => {
                let Grant { model, token, class, .. } = grant;
                let waits = self.queues.has_waiting(model);
                send(ToMatchmaker::Release(Release { model, token, unused: waits.then_some(class) }));
            }
        }
    }

    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox, send: &mut impl Sender) {
        let task = self.tasks.get(id);
        if self.holds_ahead && self.queues.is_delayed(task.model) && self.is_last(&task) {
            let rows = self.queues.requests.rows(self.tasks.members(id));
            let (lead, cost) = self.queues.lead_and_cost(&task, rows);
            let number = self.granted[id.index()].expect("a task runs on what was granted");
            send(ToMatchmaker::Sent(Sent { device: task.device, number, at: now, lead, cost }));
        }
        out.push(Action::Start {
            task: TaskId(id.0 + self.first_task),
            model: task.model,
            block: task.block,
            device: task.device,
            lane: LaneId(0),
            length: task.length,
            not_before: now,
        });
    }

    fn is_last(&self, task: &Task) -> bool {
        task.block.index() + 1 == self.queues.model(task.model).blocks.len()
    }
}

impl Scheduler for ModelShard {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.queues.enqueue(now, request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let own = TaskDone { task: self.own(done.task), ..*done };
        self.tasks.report(&own, self.queues.model(self.tasks.get(own.task).model));
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.set_standing(device, Some(100)),
            Control::DeviceLeft(device) => self.set_standing(device, None),
            Control::DeviceSlowed { device, percent } => {
                if self.stands[device.index()].is_some() {
                    self.set_standing(device, Some(percent));
                }
            }
            Control::ModelLoaded(model, spec) => {
                self.changes.push(ToMatchmaker::Loaded(Loaded { model, instances: spec.instances }));
                self.queues.load_model(model, *spec);
            }
            Control::ProfileReplaced { model, block, profile } => {
                self.queues.replace_profile(now, model, block, profile);
            }
            Control::ModelUnloaded(id) => self.queues.retire_model(id, &mut self.pending),
            Control::Cancelled(request) => self.queues.cancel(request, &mut self.pending),
            Control::NetworkDelayed(measured) => self.queues.set_network(now, measured),
            Control::GatherMeasured(model, measured) => self.queues.set_gather(now, model, measured),
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        let mut mail = std::mem::take(&mut self.mail);
        // A replay has no matchmaker that takes them.
        mail.clear();
        self.decide(now, out, &mut |message| mail.push(message));
        self.mail = mail;
    }

    fn next_wakeup(&self) -> Time {
        self.queues.next_wakeup()
    }

    fn as_shard(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(self.own(task))
    }
}
