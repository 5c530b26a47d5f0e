//! The half that owns models, as a machine: told of requests, ends of tasks and grants, it starts batches and tells the
//! matchmaker what its models ask for.
//!
//! A batch keeps its device through all blocks of its walk, losing the members whose walk ends early: none of the
//! policies built on this changes a batch once it has started.

use super::messages::DeviceToken;
use super::{Grant, Offer, Post, Queues, Release, Rules, Sent, ToMatchmaker};
use crate::parts::tasks::{Task, Tasks};
use crate::{Action, Control, Limits, Outbox, Outcome, Request, TaskDone, Why};
use ripieno_base::{LaneId, Nanos, RequestSlot, TaskId, Time};

/// A group of models.
pub struct ModelShard {
    queues: Queues,
    tasks: Tasks,
    /// The number of the first task of this shard: shards must not share task ids.
    first_task: u32,
    /// Whether devices hold more than one task and batches take time to reach them, so that they are sent ahead.
    sends_ahead: bool,
    /// Devices in the cluster.
    devices: usize,
    /// Grants seen, by model.
    seen: Vec<u64>,
    /// Grants since the last settle.
    grants: Vec<Grant>,
    /// Answers since the last settle.
    pending: Outbox,
}

impl ModelShard {
    /// The shard with this number, without models. `limits` are those of the whole scheduler.
    pub(crate) fn new(limits: &Limits, number: usize, rules: Rules) -> ModelShard {
        let sends_ahead = limits.depth > 1 && rules.network.lead(1) > Nanos::ZERO;
        ModelShard {
            queues: Queues::new(limits, rules),
            tasks: Tasks::new(limits),
            first_task: (number * limits.tasks()) as u32,
            sends_ahead,
            devices: 0,
            seen: vec![0; limits.models],
            grants: Vec::with_capacity(limits.tasks()),
            pending: Outbox::new(limits),
        }
    }

    /// A request for one of its models has arrived.
    pub fn on_request(&mut self, now: Time, request: &Request) {
        self.queues.enqueue(now, request);
    }

    /// A task that it started has ended.
    pub fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let own = TaskDone { task: self.own(done.task), ..*done };
        self.tasks.report(&own, self.queues.model(self.tasks.get(own.task).model));
    }

    /// One of its models has a device.
    pub fn on_grant(&mut self, _now: Time, grant: Grant) {
        self.grants.push(grant);
    }

    /// The world has changed: of models it hears its own only, of devices all.
    pub fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(_) => self.devices += 1,
            Control::DeviceLeft(_) => self.devices -= 1,
            Control::DeviceSlowed { .. } => {}
            Control::ModelLoaded(id, model) => self.queues.load_model(id, *model),
            Control::ProfileReplaced { model, block, profile } => {
                self.queues.replace_profile(now, model, block, profile);
            }
            Control::ModelUnloaded(id) => self.queues.retire_model(id, &mut self.pending),
            Control::Cancelled(request) => self.queues.cancel(request, &mut self.pending),
        }
    }

    /// Acts on everything since the last settle; messages to the matchmaker go to `mail`.
    pub fn settle(&mut self, now: Time, out: &mut Outbox, mail: &mut impl Post) {
        self.pending.move_to(out);
        let mut reported = 0;
        while let Some((task, outcome)) = self.tasks.take_done(reported) {
            self.complete(now, task, outcome, out, mail);
            reported += 1;
        }
        self.queues.wake(now);
        while let Some(grant) = self.grants.pop() {
            self.use_grant(now, grant, out, mail);
        }
        while let Some(model) = self.queues.next_changed() {
            let candidates = self.queues.candidates(now, model, self.devices, out);
            mail.post(ToMatchmaker::Offer(Offer { model, seen: self.seen[model.index()], candidates }));
        }
    }

    /// When to settle again if nothing happens.
    pub fn next_wakeup(&self) -> Time {
        self.queues.next_wakeup()
    }

    /// The members of a task that it started.
    pub fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(self.own(task))
    }

    fn own(&self, task: TaskId) -> TaskId {
        TaskId(task.0 - self.first_task)
    }

    /// Acts on a finished task: the next block for those who go on, an end for the others.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox, mail: &mut impl Post) {
        let task = self.tasks.get(id);
        let (tasks, queues) = (&mut self.tasks, &mut self.queues);
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, |member| queues.requests.finish(member, out)),
            Outcome::Failed => tasks.fail(id, |member| queues.requests.reject(member.0, Why::Failed, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(id, |member| queues.requeue(member, out)),
        };
        if going_on > 0 {
            return self.start(now, id, out, mail);
        }
        self.tasks.close(id);
        self.queues.note_end(now, task.model, task.device);
        let token = DeviceToken(task.device);
        mail.post(ToMatchmaker::Release(Release { model: task.model, token, unused: None }));
    }

    fn use_grant(&mut self, now: Time, grant: Grant, out: &mut Outbox, mail: &mut impl Post) {
        self.seen[grant.model.index()] += 1;
        match self.queues.form(now, &grant, self.devices, &mut self.tasks, out) {
            Some(task) => self.start(now, task, out, mail),
            None => {
                let Grant { model, token, class, .. } = grant;
                mail.post(ToMatchmaker::Release(Release { model, token, unused: Some(class) }));
            }
        }
    }

    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox, mail: &mut impl Post) {
        let task = self.tasks.get(id);
        if self.queues.model(task.model).blocks.len() > 1 {
            self.queues.note_start(task.model, task.block, self.tasks.members(id));
        }
        if self.sends_ahead && self.is_last(&task) {
            let rows = self.queues.requests.rows(self.tasks.members(id));
            let (lead, cost) = self.queues.way_and_cost(&task, rows);
            mail.post(ToMatchmaker::Sent(Sent { device: task.device, at: now, lead, cost }));
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
