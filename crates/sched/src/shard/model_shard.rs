//! The half that owns models, a scheduler that knows no free device: told of requests, ends of tasks and grants, it starts batches
//! and tells the matchmaker what its models ask for, in the mail of its outbox.
//!
//! A batch keeps its device through all blocks of its walk, losing the members whose walk ends early: none of the
//! policies built on this changes a batch once it has started.

use super::messages::DeviceToken;
use super::{Grant, Loaded, Offer, Queues, Release, Rules, Sent, Standing, ToMatchmaker};
use crate::parts::tasks::{Task, Tasks};
use crate::{Action, Control, Limits, Outbox, Outcome, Request, Scheduler, TaskDone, Why};
use ripieno_base::{DeviceId, LaneId, Nanos, RequestSlot, TaskId, Time};

/// A group of models.
pub struct ModelShard {
    number: u16,
    queues: Queues,
    tasks: Tasks,
    /// The number of the first task of this shard: shards must not share task ids.
    first_task: u32,
    /// Whether devices hold more than one task and batches take time to reach them, so that they are sent ahead.
    sends_ahead: bool,
    /// Devices in the cluster, and which those are.
    devices: usize,
    is_there: Vec<bool>,
    /// Grants seen, by model.
    seen: Vec<u64>,
    /// Grants since the last settle.
    grants: Vec<Grant>,
    /// Answers since the last settle.
    pending: Outbox,
    /// What the matchmaker is to know of devices and models, since the last settle.
    news: Vec<ToMatchmaker>,
}

impl ModelShard {
    /// The shard with this number, without models. `limits` are those of the whole scheduler.
    pub(crate) fn new(limits: &Limits, number: usize, rules: Rules) -> ModelShard {
        let sends_ahead = limits.depth > 1 && rules.network.lead(1) > Nanos::ZERO;
        ModelShard {
            number: number as u16,
            queues: Queues::new(limits, rules),
            tasks: Tasks::new(limits),
            first_task: (number * limits.tasks()) as u32,
            sends_ahead,
            devices: 0,
            is_there: vec![false; limits.devices],
            seen: vec![0; limits.models],
            grants: Vec::with_capacity(limits.tasks()),
            pending: Outbox::new(limits),
            news: Vec::new(),
        }
    }

    /// What it has to say of devices and models before its first settle.
    pub(super) fn take_news(&mut self) -> impl Iterator<Item = ToMatchmaker> {
        self.news.drain(..)
    }

    /// A device is there at so many percent of the profiled latency, or is not.
    fn stand(&mut self, device: DeviceId, percent: Option<u32>) {
        let is_there = std::mem::replace(&mut self.is_there[device.index()], percent.is_some());
        self.devices = self.devices + usize::from(percent.is_some()) - usize::from(is_there);
        self.news.push(ToMatchmaker::Standing(Standing { shard: self.number, device, percent }));
    }

    fn own(&self, task: TaskId) -> TaskId {
        TaskId(task.0 - self.first_task)
    }

    /// Acts on a finished task: the next block for those who go on, an end for the others.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox) {
        let task = self.tasks.get(id);
        let (tasks, queues) = (&mut self.tasks, &mut self.queues);
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, |member| queues.requests.finish(member, out)),
            Outcome::Failed => tasks.fail(id, |member| queues.requests.reject(member.0, Why::Failed, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(id, |member| queues.requeue(member, out)),
        };
        if going_on > 0 {
            return self.start(now, id, out);
        }
        self.tasks.close(id);
        self.queues.note_end(now, task.model);
        let token = DeviceToken(task.device);
        out.mail.push(ToMatchmaker::Release(Release { model: task.model, token, unused: None }));
    }

    /// Forms a batch for a device. One that has gone while the grant was on its way goes back.
    fn use_grant(&mut self, now: Time, grant: Grant, out: &mut Outbox) {
        self.seen[grant.model.index()] += 1;
        let formed = match self.is_there[grant.device().index()] {
            true => self.queues.form(now, &grant, self.devices, &mut self.tasks, out),
            false => {
                self.queues.mark(grant.model);
                None
            }
        };
        match formed {
            Some(task) => self.start(now, task, out),
            None => {
                let Grant { model, token, class, .. } = grant;
                out.mail.push(ToMatchmaker::Release(Release { model, token, unused: Some(class) }));
            }
        }
    }

    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox) {
        let task = self.tasks.get(id);
        if self.queues.model(task.model).blocks.len() > 1 {
            self.queues.note_start(task.model, task.block, self.tasks.members(id));
        }
        if self.sends_ahead && self.is_last(&task) {
            let rows = self.queues.requests.rows(self.tasks.members(id));
            let (lead, cost) = self.queues.way_and_cost(&task, rows);
            out.mail.push(ToMatchmaker::Sent(Sent { device: task.device, at: now, lead, cost }));
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

    fn on_grant(&mut self, _now: Time, grant: Grant) {
        self.grants.push(grant);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.stand(device, Some(100)),
            Control::DeviceLeft(device) => self.stand(device, None),
            Control::DeviceSlowed { device, percent } => {
                if self.is_there[device.index()] {
                    self.stand(device, Some(percent));
                }
            }
            Control::ModelLoaded(model, spec) => {
                self.news.push(ToMatchmaker::Loaded(Loaded { model, instances: spec.instances }));
                self.queues.load_model(model, *spec);
            }
            Control::ProfileReplaced { model, block, profile } => {
                self.queues.replace_profile(now, model, block, profile);
            }
            Control::ModelUnloaded(id) => self.queues.retire_model(id, &mut self.pending),
            Control::Cancelled(request) => self.queues.cancel(request, &mut self.pending),
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.pending.move_to(out);
        out.mail.append(&mut self.news);
        let mut reported = 0;
        while let Some((task, outcome)) = self.tasks.take_done(reported) {
            self.complete(now, task, outcome, out);
            reported += 1;
        }
        self.queues.wake(now);
        while let Some(grant) = self.grants.pop() {
            self.use_grant(now, grant, out);
        }
        while let Some(model) = self.queues.next_changed() {
            let candidates = self.queues.candidates(now, model, self.devices, out);
            out.mail.push(ToMatchmaker::Offer(Offer { model, seen: self.seen[model.index()], candidates }));
        }
    }

    fn next_wakeup(&self) -> Time {
        self.queues.next_wakeup()
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(self.own(task))
    }
}
