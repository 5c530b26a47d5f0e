//! The half that owns models, a scheduler that knows no free device: told of requests, ends of tasks and grants, it
//! starts batches and tells the matchmaker what its models ask for, in the mail of its outbox.
//!
//! A batch keeps its device through all blocks of its walk, losing the members whose walk ends early: none of the
//! policies built on this changes a batch once it has started. Under our objectives it is preempted between two blocks by
//! a batch of another model that could not wait, and goes on after that (`preemption.rs`).

use super::messages::{DeviceToken, GrantNumber};
use super::preemption::{Border, Preempting};
use super::{Epoch, Grant, Holding, Loaded, Offer, Queues, Release, Rules, Sent, Standing, ToMatchmaker};
use crate::parts::tasks::{Preempted, Task, Tasks};
use crate::{Action, Control, Limits, Outbox, Outcome, Request, Scheduler, TaskDone, Why};
use ripieno_base::{DeviceId, LaneId, Nanos, RequestSlot, TaskId, Time};

/// Takes messages to the matchmaker: a mailbox, or the matchmaker itself.
pub(super) trait Tell: FnMut(ToMatchmaker) {}

impl<T: FnMut(ToMatchmaker)> Tell for T {}

/// A group of models.
pub struct ModelShard {
    number: u16,
    queues: Queues,
    tasks: Tasks,
    preempted: Preempted,
    /// The number of the first task of this shard: shards must not share task ids.
    first_task: u32,
    /// Whether devices hold more than one task and batches take time to reach them, so that they are sent ahead.
    sends_ahead: bool,
    /// Devices in the cluster, and how each stands.
    devices: usize,
    stands: Vec<Option<u32>>,
    /// Of each task, what its device was granted by; none if it is not open.
    granted: Vec<Option<GrantNumber>>,
    /// The last grant that it was told of.
    last: GrantNumber,
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
            preempted: Preempted::new(limits),
            first_task: (number * limits.tasks()) as u32,
            sends_ahead,
            devices: 0,
            stands: vec![None; limits.devices],
            granted: vec![None; limits.tasks()],
            last: GrantNumber::before(0),
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

    /// Another matchmaker has come, which knows nothing: says anew, in the next settle, all that it is to know. What
    /// the shard holds comes before what is there, so that a device is not granted before all have said what they hold
    /// of it.
    pub fn resume(&mut self, epoch: Epoch) {
        self.last = GrantNumber::before(epoch).max(self.last);
        self.news.clear();
        let tasks = self.granted.iter().enumerate().filter_map(|(at, number)| Some((TaskId(at as u32), (*number)?)));
        let running = tasks.map(|(id, number)| {
            let task = self.preempted.get(id).unwrap_or_else(|| self.tasks.get(id));
            (task.model, task.device, number)
        });
        let granted = self.grants.iter().map(|grant| (grant.model, grant.device(), grant.token.number));
        let held = running.chain(granted);
        self.news.extend(held.map(|(model, device, number)| ToMatchmaker::Holding(Holding { model, device, number })));
        self.news.extend(
            self.queues.instances().map(|(model, instances)| ToMatchmaker::Loaded(Loaded { model, instances })),
        );
        for device in (0..self.stands.len() as u16).map(DeviceId) {
            self.stand(device, self.stands[device.index()]);
        }
        self.seen.fill(0);
        self.queues.mark_all();
    }

    /// A device is there at so many percent of the profiled latency, or is not.
    fn stand(&mut self, device: DeviceId, percent: Option<u32>) {
        let stood = std::mem::replace(&mut self.stands[device.index()], percent);
        self.devices = self.devices + usize::from(percent.is_some()) - usize::from(stood.is_some());
        self.news.push(ToMatchmaker::Standing(Standing { shard: self.number, device, percent }));
    }

    /// Settles; `tell` takes what the matchmaker is to know.
    pub(super) fn decide(&mut self, now: Time, out: &mut Outbox, tell: &mut impl Tell) {
        if !self.pending.actions().is_empty() {
            self.pending.move_to(out);
        }
        if !self.news.is_empty() {
            self.news.drain(..).for_each(&mut *tell);
        }
        let mut reported = 0;
        while let Some((task, outcome)) = self.tasks.take_done(reported) {
            self.complete(now, task, outcome, out, tell);
            reported += 1;
        }
        self.queues.wake(now);
        while let Some(grant) = self.grants.pop() {
            self.use_grant(now, grant, out, tell);
        }
        while let Some(model) = self.queues.next_changed() {
            let candidates = self.queues.candidates(now, model, self.devices, out);
            tell(ToMatchmaker::Offer(Offer { model, seen: self.seen[model.index()], candidates }));
        }
    }

    fn own(&self, task: TaskId) -> TaskId {
        TaskId(task.0 - self.first_task)
    }

    /// Acts on a finished task: the next block for those who go on, an end for the others.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox, tell: &mut impl Tell) {
        let task = self.tasks.get(id);
        let (tasks, queues) = (&mut self.tasks, &mut self.queues);
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, |member| queues.requests.finish(member, out)),
            Outcome::Failed => tasks.fail(id, |member| queues.requests.reject(member.0, Why::Failed, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(id, |member| queues.requeue(member, out)),
        };
        if going_on > 0 {
            return self.go_on(now, id, out, tell);
        }
        self.queues.note_end(now, task.model, task.device);
        if self.tasks.resume(id, &mut self.preempted) {
            return match outcome {
                Outcome::Ok | Outcome::Failed => self.go_on(now, id, out, tell),
                // Its device has gone for this one, too.
                Outcome::DeviceLost | Outcome::Cancelled => self.complete(now, id, outcome, out, tell),
            };
        }
        self.tasks.close(id);
        let number = self.granted[id.index()].take().expect("a task runs on what was granted");
        let token = DeviceToken { device: task.device, number };
        tell(ToMatchmaker::Release(Release { model: task.model, token, unused: None }));
    }

    /// Goes on with the next block of a batch, or lets another batch run before that.
    fn go_on(&mut self, now: Time, id: TaskId, out: &mut Outbox, tell: &mut impl Tell) {
        if let Some(preempting) = self.preempting(now, id) {
            self.tasks.preempt(id, preempting.model, &mut self.preempted);
            self.queues.form_preempting(now, &preempting, id, &mut self.tasks, out);
        }
        self.start(now, id, out, tell);
    }

    /// Who preempts a batch before its next block. Nobody preempts who preempts others, takes time to reach the device, or would
    /// begin on a device that is to begin nothing more.
    fn preempting(&mut self, now: Time, id: TaskId) -> Option<Preempting> {
        let batch = self.tasks.get(id);
        let percent = self.stands[batch.device.index()].filter(|_| !self.sends_ahead)?;
        if self.preempted.get(id).is_some() {
            return None;
        }
        let (members, devices) = (self.tasks.all_members(id), self.devices);
        self.queues.at_border(now, &Border { batch: &batch, members, percent, devices })
    }

    /// Forms a batch for a device. One that has gone while the grant was on its way goes back.
    fn use_grant(&mut self, now: Time, grant: Grant, out: &mut Outbox, tell: &mut impl Tell) {
        self.seen[grant.model.index()] += 1;
        let formed = match self.stands[grant.device().index()].is_some() {
            true => self.queues.form(now, &grant, self.devices, &mut self.tasks, out),
            false => {
                self.queues.mark(grant.model);
                None
            }
        };
        match formed {
            Some(task) => {
                self.granted[task.index()] = Some(grant.token.number);
                self.start(now, task, out, tell);
            }
            None => {
                let Grant { model, token, class, .. } = grant;
                tell(ToMatchmaker::Release(Release { model, token, unused: Some(class) }));
            }
        }
    }

    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox, tell: &mut impl Tell) {
        let task = self.tasks.get(id);
        if self.queues.model(task.model).blocks.len() > 1 {
            self.queues.note_start(task.model, task.block, self.tasks.members(id));
        }
        if self.sends_ahead && self.is_last(&task) {
            let rows = self.queues.requests.rows(self.tasks.members(id));
            let (lead, cost) = self.queues.way_and_cost(&task, rows);
            let number = self.granted[id.index()].expect("a task runs on what was granted");
            tell(ToMatchmaker::Sent(Sent { device: task.device, number, at: now, lead, cost }));
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
        // What is said twice, or by an earlier matchmaker, is no grant.
        if grant.token.number > self.last {
            self.last = grant.token.number;
            self.grants.push(grant);
        }
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.stand(device, Some(100)),
            Control::DeviceLeft(device) => self.stand(device, None),
            Control::DeviceSlowed { device, percent } => {
                if self.stands[device.index()].is_some() {
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
        let mut mail = std::mem::take(&mut out.mail);
        self.decide(now, out, &mut |message| mail.push(message));
        out.mail = mail;
    }

    fn next_wakeup(&self) -> Time {
        self.queues.next_wakeup()
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(self.own(task))
    }
}
