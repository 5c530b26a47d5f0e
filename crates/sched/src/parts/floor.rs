//! Devices with the batches on them, and the frame that turns a placement rule into a scheduler.
//!
//! "clockwork", "nexus" and "shepherd" share everything but the rule by which they place batches: requests come and go,
//! batches walk through the blocks of their model on one device, devices and models join and leave. That is [`Floor`] and
//! [`Placed`]; a policy is a [`Placement`].
//!
//! A device holds at most one task and one *commitment*: a batch that has been formed and starts there as soon as the
//! device is done with its task. A commitment is kept here rather than queued on the device, so that it needs no depth and
//! can be taken back: when the device leaves, or when it falls free so late that the batch would be late.

use super::pool::{Candidate, Pool, Terms};
use super::tasks::Tasks;
use crate::shard::DeviceChoice;
use crate::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use ripieno_base::{BlockId, DeviceId, IndexedHeap, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model};

/// The rule of a policy.
pub(crate) trait Placement: Send {
    /// How many queues it wants.
    fn queues(setup: &Setup) -> usize
    where
        Self: Sized;

    /// The queue that a request joins, on arrival and when its batch was lost.
    fn route(&mut self, now: Time, request: &Request, floor: &Floor) -> usize;

    /// A queue may offer other batches than before.
    fn touched(&mut self, queue: usize);

    /// A batch of `model` on `device` has ended.
    fn ended(&mut self, model: ModelId, device: DeviceId);

    /// Devices, models or profiles are others than before.
    fn changed(&mut self);

    /// A request of this model has arrived.
    fn arrived(&mut self, _now: Time, _request: &Request) {}

    /// Starts, commits and cancels what the rule says.
    fn place(&mut self, now: Time, floor: &mut Floor, out: &mut Outbox);

    /// When to place again although nothing happens.
    fn next_wakeup(&self) -> Time;
}

/// All that is the same for every placement.
#[derive(Debug)]
pub(crate) struct Floor {
    pub(crate) pool: Pool,
    tasks: Tasks,
    devices: Vec<Device>,
    /// Members of the commitment of each device, with a fixed stride.
    committed: Vec<RequestSlot>,
    stride: usize,
    choice: DeviceChoice,
    /// Free devices, by preference.
    free: IndexedHeap<Time>,
    /// Busy devices without a commitment, by the time at which they should be done.
    busy: IndexedHeap<Time>,
    /// The same devices by the rows of their batch.
    sizes: IndexedHeap<usize>,
    /// Requests whose batch was lost.
    returned: Vec<RequestSlot>,
}

/// A device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    present: bool,
    /// Its latency relative to the profile.
    pub(crate) percent: u32,
    running: Option<Batch>,
    commitment: Option<Commitment>,
}

/// A batch that runs.
#[derive(Clone, Copy, Debug)]
struct Batch {
    task: TaskId,
    rows: usize,
    /// When it should be done.
    ends: Time,
    /// Whether it was cancelled and has not stopped yet.
    cancelled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Commitment {
    model: ModelId,
    members: usize,
    rows: usize,
    /// By when it must start to be in time; [`Time::NEVER`] if it will be late anyway.
    latest: Time,
}

impl Floor {
    fn new(setup: &Setup, queues: usize, choice: DeviceChoice, terms: Terms) -> Floor {
        let limits = &setup.limits;
        Floor {
            pool: Pool::new(limits, queues, terms),
            tasks: Tasks::new(limits),
            devices: vec![Device { present: false, percent: 100, running: None, commitment: None }; limits.devices],
            committed: vec![RequestSlot(0); limits.devices * limits.batch],
            stride: limits.batch,
            choice,
            free: IndexedHeap::new(limits.devices),
            busy: IndexedHeap::new(limits.devices),
            sizes: IndexedHeap::new(limits.devices),
            returned: Vec::with_capacity(limits.requests),
        }
    }

    pub(crate) fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.index()]
    }

    /// The devices that are there.
    pub(crate) fn present(&self) -> impl Iterator<Item = DeviceId> {
        self.devices.iter().zip(0..).filter(|(device, _)| device.present).map(|(_, id)| DeviceId(id))
    }

    /// The preferred free device.
    pub(crate) fn free_device(&self) -> Option<DeviceId> {
        self.free.peek().map(|(_, id)| DeviceId(id as u16))
    }

    pub(crate) fn is_free(&self, id: DeviceId) -> bool {
        self.free.contains(id.index())
    }

    /// The busy device without a commitment that should be done first, and when.
    pub(crate) fn next_done(&self) -> Option<(Time, DeviceId)> {
        self.busy.peek().map(|(at, id)| (at, DeviceId(id as u16)))
    }

    /// The busy device without a commitment whose batch is smallest, and the rows of that batch.
    pub(crate) fn smallest_batch(&self) -> Option<(usize, DeviceId)> {
        self.sizes.peek().map(|(rows, id)| (rows, DeviceId(id as u16)))
    }

    /// Cancels what runs on a device. What the device is committed to starts when it has stopped.
    pub(crate) fn cancel(&mut self, id: DeviceId, out: &mut Outbox) {
        let batch = self.devices[id.index()].running.as_mut().expect("a busy device runs a batch");
        batch.cancelled = true;
        out.push(Action::Cancel { task: batch.task });
    }

    /// Leaves a device aside, free or busy, until [`Floor::bring_back`].
    pub(crate) fn set_aside(&mut self, id: DeviceId) {
        self.free.remove(id.index());
        self.busy.remove(id.index());
        self.sizes.remove(id.index());
    }

    /// Sorts a device in where it belongs.
    pub(crate) fn bring_back(&mut self, now: Time, id: DeviceId) {
        let device = self.devices[id.index()];
        self.set_aside(id);
        match (device.running, device.commitment) {
            (None, None) if device.present => {
                let key = if self.choice == DeviceChoice::SmallestId { Time::ORIGIN } else { now };
                self.free.set(id.index(), key);
            }
            (Some(batch), None) if device.present && !batch.cancelled => {
                self.busy.set(id.index(), batch.ends);
                self.sizes.set(id.index(), batch.rows);
            }
            _ => {}
        }
    }

    /// Forms a batch for a device that has no commitment; it starts at once if the device is free.
    pub(crate) fn commit(&mut self, now: Time, queue: usize, candidate: Candidate, id: DeviceId, out: &mut Outbox) {
        let model = self.pool.request(candidate.first).model;
        let percent = u64::from(self.devices[id.index()].percent);
        let latency = self.pool.remaining(model, BlockId(0), candidate.rows).scale(percent, 100);
        let latest = self.pool.request(candidate.first).deadline - latency;
        let (committed, start) = (&mut self.committed, id.index() * self.stride);
        let mut members = 0;
        self.pool.take(now, queue, candidate, out, |slot| {
            committed[start + members] = slot;
            members += 1;
        });
        self.settle_commitment(now, id, Commitment { model, members, rows: candidate.rows, latest }, out);
    }

    /// Forms a batch of overdue requests for a free device.
    pub(crate) fn commit_overdue(&mut self, now: Time, queue: usize, id: DeviceId, out: &mut Outbox) {
        let model = self.pool.model_of(queue).expect("the queue has overdue requests");
        let (committed, start) = (&mut self.committed, id.index() * self.stride);
        let mut members = 0;
        let rows = self.pool.take_overdue(now, queue, out, |slot| {
            committed[start + members] = slot;
            members += 1;
        });
        self.settle_commitment(now, id, Commitment { model, members, rows, latest: Time::NEVER }, out);
    }

    fn settle_commitment(&mut self, now: Time, id: DeviceId, commitment: Commitment, out: &mut Outbox) {
        self.pool.served_mut(commitment.model).in_flight += 1;
        let before = self.devices[id.index()].commitment.replace(commitment);
        assert!(before.is_none(), "a policy committed {id:?} twice");
        if self.devices[id.index()].running.is_none() {
            self.launch(now, id, out);
        }
        self.bring_back(now, id);
    }

    /// Starts what a free device is committed to, unless that would be late for no good reason.
    fn launch(&mut self, now: Time, id: DeviceId, out: &mut Outbox) {
        let Some(Commitment { model, members, rows, latest }) = self.devices[id.index()].commitment else { return };
        if now > latest && self.pool.served(model).drop == DropRule::Hopeless {
            return self.dissolve(id);
        }
        self.devices[id.index()].commitment = None;
        let task = self.tasks.open(model, BlockId(0), id, LaneId(0));
        for at in 0..members {
            self.tasks.push(task, self.committed[id.index() * self.stride + at]);
        }
        self.devices[id.index()].running = Some(Batch { task, rows, ends: now, cancelled: false });
        self.start(now, task, out);
    }

    /// Takes a commitment back; its members are to be routed again.
    fn dissolve(&mut self, id: DeviceId) {
        let Some(commitment) = self.devices[id.index()].commitment.take() else { return };
        let start = id.index() * self.stride;
        self.returned.extend_from_slice(&self.committed[start..start + commitment.members]);
        self.pool.served_mut(commitment.model).in_flight -= 1;
    }

    /// Starts the next block of a task.
    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox) {
        let task = self.tasks.get(id);
        let rows = self.pool.requests.rows(self.tasks.members(id));
        let device = &mut self.devices[task.device.index()];
        let latency = self.pool.remaining(task.model, task.block, rows).scale(u64::from(device.percent), 100);
        let cancelled = device.running.is_some_and(|batch| batch.cancelled);
        device.running = Some(Batch { task: id, rows, ends: now + latency, cancelled });
        out.push(self.tasks.start(id, now));
        self.bring_back(now, task.device);
    }

    /// Acts on a task that is done; whether its batch has left the device.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox) -> bool {
        let task = self.tasks.get(id);
        let Floor { tasks, pool, returned, .. } = self;
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, |member| pool.requests.finish(member, out)),
            Outcome::Failed => tasks.fail(id, |member| pool.requests.reject(member.0, Why::Failed, out)),
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(id, |member| returned.push(member)),
        };
        if going_on > 0 {
            self.start(now, id, out);
            return false;
        }
        self.tasks.close(id);
        self.devices[task.device.index()].running = None;
        self.pool.served_mut(task.model).in_flight -= 1;
        if self.devices[task.device.index()].present {
            self.launch(now, task.device, out);
        }
        self.bring_back(now, task.device);
        true
    }
}

/// A placement as a scheduler.
pub(crate) struct Placed<P> {
    placement: P,
    floor: Floor,
    /// What ends or moves requests, which only a settle may do.
    withdrawals: Vec<Withdrawal>,
}

enum Withdrawal {
    Model(ModelId),
    Request(RequestSlot),
    Device(DeviceId),
}

impl<P: Placement> Placed<P> {
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, terms: Terms, placement: P) -> Placed<P> {
        let limits = &setup.limits;
        let withdrawals = Vec::with_capacity(limits.requests + limits.models + limits.devices);
        let floor = Floor::new(setup, P::queues(setup), choice, terms);
        let mut placed = Placed { placement, floor, withdrawals };
        for (id, model) in setup.models.iter().enumerate() {
            placed.load(ModelId(id as u16), model.clone());
        }
        for device in 0..setup.devices {
            placed.join(Time::ORIGIN, DeviceId(device as u16));
        }
        placed
    }

    fn load(&mut self, id: ModelId, model: Model) {
        self.floor.pool.load(id, model);
        self.placement.changed();
    }

    fn join(&mut self, now: Time, id: DeviceId) {
        let device = &mut self.floor.devices[id.index()];
        assert!(!device.present, "the driver let a device join twice: {id:?}");
        (device.present, device.percent) = (true, 100);
        self.floor.bring_back(now, id);
        self.placement.changed();
    }

    fn leave(&mut self, now: Time, id: DeviceId) {
        let device = &mut self.floor.devices[id.index()];
        assert!(device.present, "the driver let an absent device leave: {id:?}");
        device.present = false;
        self.floor.bring_back(now, id);
        self.withdrawals.push(Withdrawal::Device(id));
        self.placement.changed();
    }

    fn withdraw(&mut self, now: Time, out: &mut Outbox) {
        for withdrawal in self.withdrawals.drain(..) {
            match withdrawal {
                Withdrawal::Model(id) => self.floor.pool.retire(now, id, out),
                Withdrawal::Request(slot) => {
                    if let Some(queue) = self.floor.pool.cancel(now, slot, out) {
                        self.placement.touched(queue);
                    }
                }
                // It may have joined again since.
                Withdrawal::Device(id) => {
                    self.floor.dissolve(id);
                    self.floor.bring_back(now, id);
                }
            }
        }
    }

    /// Routes the members of lost batches anew.
    fn take_back(&mut self, now: Time, out: &mut Outbox) {
        for at in 0..self.floor.returned.len() {
            let slot = self.floor.returned[at];
            if self.floor.pool.may_return(slot, out) {
                let request = *self.floor.pool.request(slot.0);
                let queue = self.placement.route(now, &request, &self.floor);
                self.floor.pool.push(queue, slot.0);
                self.placement.touched(queue);
            }
        }
        self.floor.returned.clear();
    }
}

impl<P: Placement> Scheduler for Placed<P> {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.floor.pool.accept(request);
        self.placement.arrived(now, request);
        let queue = self.placement.route(now, request, &self.floor);
        self.floor.pool.push(queue, request.slot.0);
        self.placement.touched(queue);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let Floor { tasks, pool, .. } = &mut self.floor;
        tasks.report(done, &pool.served(tasks.get(done.task).model).model);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.join(now, device),
            Control::DeviceLeft(device) => self.leave(now, device),
            Control::DeviceSlowed { device, percent } => {
                self.floor.devices[device.index()].percent = percent.max(1);
                self.placement.changed();
            }
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ProfileReplaced { model, block, profile } => {
                self.floor.pool.replace_profile(model, block, profile);
                self.placement.changed();
            }
            Control::ModelUnloaded(id) => {
                self.withdrawals.push(Withdrawal::Model(id));
                self.placement.changed();
            }
            Control::Cancelled(request) => self.withdrawals.push(Withdrawal::Request(request)),
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.withdraw(now, out);
        let mut reported = 0;
        while let Some((task, outcome)) = self.floor.tasks.take_done(reported) {
            let on = self.floor.tasks.get(task);
            if self.floor.complete(now, task, outcome, out) {
                self.placement.ended(on.model, on.device);
            }
            reported += 1;
        }
        // Placing may bring a hopeless request to the head of a queue, and dropping it may allow another batch.
        loop {
            self.take_back(now, out);
            while let Some(queue) = self.floor.pool.wake(now, out) {
                self.placement.touched(queue);
            }
            self.placement.place(now, &mut self.floor, out);
            if self.floor.pool.next_wakeup() > now && self.floor.returned.is_empty() {
                break;
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        self.floor.pool.next_wakeup().min(self.placement.next_wakeup())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.floor.tasks.members(task)
    }
}
