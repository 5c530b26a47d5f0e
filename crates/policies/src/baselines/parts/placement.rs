//! Devices with their batches, and the frame that turns a placement rule into a scheduler.
//!
//! "clockwork", "nexus" and "shepherd" differ only in the rule by which they place batches. The
//! rest is common: requests arrive and end, batches walk through the blocks of their model on one
//! device, devices and models join and leave. [`DeviceTable`] and [`PlacementScheduler`] hold the
//! common part; a policy is a [`Placement`].
//!
//! A device holds at most one task and one *commitment*: a batch that has been formed and starts
//! there as soon as the task ends. A commitment is kept here rather than queued on the device, so
//! that it needs no depth and can be revoked: when the device leaves, or when it becomes free so
//! late that the batch would be late.

use super::pool::{BatchPool, PoolCandidate, PoolRules};
use crate::chain_tasks::ChainTasks;
use crate::symphony::DeviceChoice;
use ripieno_base::{BlockId, DeviceId, IndexedHeap, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model};
use ripieno_sched::tables::devices::Devices;
use ripieno_sched::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};

/// The rule of a policy. By default each model has one queue.
pub(crate) trait Placement: Send {
    /// Returns the number of queues.
    fn queues(setup: &Setup) -> usize
    where
        Self: Sized,
    {
        setup.limits.models
    }

    /// Returns the queue that a request joins, on arrival and when its batch was lost.
    fn route(&mut self, request: &Request) -> usize {
        request.model.index()
    }

    /// A queue has changed and may offer other batches.
    fn touched(&mut self, queue: usize);

    /// A batch of `model` on `device` has ended.
    fn ended(&mut self, model: ModelId, device: DeviceId);

    /// Devices, models or profiles have changed.
    fn changed(&mut self);

    /// A request has arrived.
    fn arrived(&mut self, _now: Time, _request: &Request) {}

    /// Starts, commits and cancels batches by the rule.
    fn place(&mut self, now: Time, table: &mut DeviceTable, out: &mut Outbox);

    /// Returns the time to place again if no event comes before.
    fn next_wakeup(&self) -> Time {
        Time::NEVER
    }
}

/// The common part of all placements.
#[derive(Debug)]
pub(crate) struct DeviceTable {
    /// Models, requests and queues.
    pub(crate) pool: BatchPool,
    /// Tasks in flight.
    tasks: ChainTasks,
    /// The devices.
    devices: Devices<PlacementDevice>,
    /// Members of the commitment of each device, with a fixed stride.
    committed: Vec<RequestSlot>,
    /// Length of a device's part of `committed`.
    stride: usize,
    /// The rule that prefers one free device to another.
    choice: DeviceChoice,
    /// Free devices, by preference.
    free: IndexedHeap<Time>,
    /// Busy devices without a commitment, by expected end.
    busy: IndexedHeap<Time>,
    /// Busy devices without a commitment, by the rows of their batch.
    sizes: IndexedHeap<usize>,
    /// Requests whose batch was lost.
    returned: Vec<RequestSlot>,
}

/// State of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementDevice {
    running: Option<PlacedBatch>,
    commitment: Option<Commitment>,
}

/// A running batch.
#[derive(Clone, Copy, Debug)]
struct PlacedBatch {
    task: TaskId,
    rows: usize,
    /// Expected end.
    ends: Time,
    /// True if the task was cancelled and has not stopped yet.
    cancelled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Commitment {
    model: ModelId,
    members: usize,
    rows: usize,
    /// Latest start that is in time; [`Time::NEVER`] if it will be late anyway.
    latest: Time,
}

impl DeviceTable {
    fn new(setup: &Setup, queues: usize, choice: DeviceChoice, rules: PoolRules) -> DeviceTable {
        let limits = &setup.limits;
        DeviceTable {
            pool: BatchPool::new(limits, queues, rules),
            tasks: ChainTasks::new(limits),
            devices: Devices::new(limits, 0, || PlacementDevice { running: None, commitment: None }),
            committed: vec![RequestSlot(0); limits.devices * limits.batch],
            stride: limits.batch,
            choice,
            free: IndexedHeap::new(limits.devices),
            busy: IndexedHeap::new(limits.devices),
            sizes: IndexedHeap::new(limits.devices),
            returned: Vec::with_capacity(limits.requests),
        }
    }

    /// Returns a device's latency relative to the profile, in percent.
    pub(crate) fn percent(&self, id: DeviceId) -> u32 {
        self.devices[id].percent
    }

    /// Returns the present devices.
    pub(crate) fn present(&self) -> impl Iterator<Item = DeviceId> {
        self.devices.iter().filter(|(_, device)| device.present).map(|(id, _)| id)
    }

    /// Returns the preferred free device.
    pub(crate) fn free_device(&self) -> Option<DeviceId> {
        self.free.peek().map(|(_, id)| DeviceId(id as u16))
    }

    pub(crate) fn is_free(&self, id: DeviceId) -> bool {
        self.free.contains(id.index())
    }

    /// Returns the busy device without a commitment that is expected to end first, and the time.
    pub(crate) fn next_done(&self) -> Option<(Time, DeviceId)> {
        self.busy.peek().map(|(at, id)| (at, DeviceId(id as u16)))
    }

    /// Returns the busy device without a commitment whose batch is smallest, and its rows.
    pub(crate) fn smallest_batch(&self) -> Option<(usize, DeviceId)> {
        self.sizes.peek().map(|(rows, id)| (rows, DeviceId(id as u16)))
    }

    /// Cancels the running batch of a device. The device's commitment starts when it has stopped.
    pub(crate) fn cancel(&mut self, id: DeviceId, out: &mut Outbox) {
        let batch = self.devices[id].running.as_mut().expect("a busy device runs a batch");
        batch.cancelled = true;
        out.push(Action::Cancel { task: batch.task });
    }

    /// Sets a device aside, free or busy, until [`DeviceTable::bring_back`].
    pub(crate) fn set_aside(&mut self, id: DeviceId) {
        self.free.remove(id.index());
        self.busy.remove(id.index());
        self.sizes.remove(id.index());
    }

    /// Puts a device into the heap that matches its state.
    pub(crate) fn bring_back(&mut self, now: Time, id: DeviceId) {
        self.set_aside(id);
        let device = &self.devices[id];
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

    /// Forms a batch for a device without a commitment; it starts immediately if the device is
    /// free.
    pub(crate) fn commit(&mut self, now: Time, queue: usize, candidate: PoolCandidate, id: DeviceId, out: &mut Outbox) {
        let model = self.pool.request(candidate.first).model;
        let latency = self.devices[id].takes(self.pool.remaining(model, BlockId(0), candidate.rows));
        let latest = self.pool.request(candidate.first).deadline - latency;
        let (committed, start) = (&mut self.committed, id.index() * self.stride);
        let mut members = 0;
        self.pool.take(now, queue, candidate, out, |request| {
            committed[start + members] = request.slot;
            members += 1;
        });
        self.settle_commitment(now, id, Commitment { model, members, rows: candidate.rows, latest }, out);
    }

    /// Forms a batch of overdue requests for a free device.
    pub(crate) fn commit_overdue(&mut self, now: Time, queue: usize, id: DeviceId, out: &mut Outbox) {
        let model = self.pool.model_of(queue).expect("the queue has overdue requests");
        let (committed, start) = (&mut self.committed, id.index() * self.stride);
        let mut members = 0;
        let rows = self.pool.take_overdue(now, queue, out, |request| {
            committed[start + members] = request.slot;
            members += 1;
        });
        self.settle_commitment(now, id, Commitment { model, members, rows, latest: Time::NEVER }, out);
    }

    fn settle_commitment(&mut self, now: Time, id: DeviceId, commitment: Commitment, out: &mut Outbox) {
        self.pool.served_mut(commitment.model).in_flight += 1;
        let before = self.devices[id].commitment.replace(commitment);
        assert!(before.is_none(), "a policy committed {id:?} twice");
        if self.devices[id].running.is_none() {
            self.launch(now, id, out);
        }
        self.bring_back(now, id);
    }

    /// Starts the commitment of a free device, unless it would be late although it was meant to be
    /// in time.
    fn launch(&mut self, now: Time, id: DeviceId, out: &mut Outbox) {
        let Some(Commitment { model, members, rows, latest }) = self.devices[id].commitment else {
            return;
        };
        if now > latest && self.pool.served(model).drop == DropRule::Hopeless {
            return self.dissolve(id);
        }
        self.devices[id].commitment = None;
        let task = self.tasks.open(model, BlockId(0), id, LaneId(0));
        for at in 0..members {
            let slot = self.committed[id.index() * self.stride + at];
            self.tasks.push(task, slot, self.pool.request(slot.0).extent.length);
        }
        self.devices[id].running = Some(PlacedBatch { task, rows, ends: now, cancelled: false });
        self.start(now, task, out);
    }

    /// Revokes a commitment; its members are routed again.
    fn dissolve(&mut self, id: DeviceId) {
        let Some(commitment) = self.devices[id].commitment.take() else {
            return;
        };
        let start = id.index() * self.stride;
        self.returned.extend_from_slice(&self.committed[start..start + commitment.members]);
        self.pool.served_mut(commitment.model).in_flight -= 1;
    }

    /// Starts the next block of a task.
    fn start(&mut self, now: Time, id: TaskId, out: &mut Outbox) {
        let task = self.tasks.get(id);
        let rows = self.pool.requests.rows(self.tasks.members(id));
        let device = &mut self.devices[task.device];
        let latency = device.takes(self.pool.remaining(task.model, task.block, rows));
        let cancelled = device.running.is_some_and(|batch| batch.cancelled);
        device.running = Some(PlacedBatch { task: id, rows, ends: now + latency, cancelled });
        out.push(self.tasks.start(id, now));
        self.bring_back(now, task.device);
    }

    /// Completes a finished task; returns whether its batch has left the device.
    fn complete(&mut self, now: Time, id: TaskId, outcome: Outcome, out: &mut Outbox) -> bool {
        let task = self.tasks.get(id);
        let DeviceTable { tasks, pool, returned, .. } = self;
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
        self.devices[task.device].running = None;
        self.pool.served_mut(task.model).in_flight -= 1;
        if self.devices[task.device].present {
            self.launch(now, task.device, out);
        }
        self.bring_back(now, task.device);
        true
    }
}

/// A placement as a scheduler.
pub(crate) struct PlacementScheduler<P> {
    placement: P,
    table: DeviceTable,
    /// Answers since the last settle.
    pending: Outbox,
}

impl<P: Placement> PlacementScheduler<P> {
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: PoolRules, placement: P) -> PlacementScheduler<P> {
        let table = DeviceTable::new(setup, P::queues(setup), choice, rules);
        let mut placed = PlacementScheduler { placement, table, pending: Outbox::new(&setup.limits) };
        for (id, model) in setup.models.iter().enumerate() {
            placed.load(ModelId(id as u16), model.clone());
        }
        for device in 0..setup.devices {
            placed.join(Time::ORIGIN, DeviceId(device as u16));
        }
        placed
    }

    fn load(&mut self, id: ModelId, model: Model) {
        self.table.pool.load(id, model);
        self.placement.changed();
    }

    fn join(&mut self, now: Time, id: DeviceId) {
        self.table.devices.join(id);
        self.table.bring_back(now, id);
        self.placement.changed();
    }

    fn leave(&mut self, now: Time, id: DeviceId) {
        self.table.devices.leave(id);
        self.table.dissolve(id);
        self.table.bring_back(now, id);
        self.placement.changed();
    }

    /// Routes the members of lost batches again.
    fn take_back(&mut self, out: &mut Outbox) {
        for at in 0..self.table.returned.len() {
            let slot = self.table.returned[at];
            if self.table.pool.may_return(slot, out) {
                let request = *self.table.pool.request(slot.0);
                let queue = self.placement.route(&request);
                self.table.pool.push(queue, slot.0);
                self.placement.touched(queue);
            }
        }
        self.table.returned.clear();
    }
}

impl<P: Placement> Scheduler for PlacementScheduler<P> {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.table.pool.accept(request);
        self.placement.arrived(now, request);
        let queue = self.placement.route(request);
        self.table.pool.push(queue, request.slot.0);
        self.placement.touched(queue);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let DeviceTable { tasks, pool, .. } = &mut self.table;
        tasks.report(done, &pool.served(tasks.get(done.task).model).model);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.join(now, device),
            Control::DeviceLeft(device) => self.leave(now, device),
            Control::DeviceSlowed { device, percent } => {
                self.table.devices.slow(device, percent);
                self.placement.changed();
            }
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ProfileReplaced { model, block, profile } => {
                self.table.pool.replace_profile(model, block, profile);
                self.placement.changed();
            }
            Control::ModelUnloaded(id) => {
                self.table.pool.retire(now, id, &mut self.pending);
                self.placement.changed();
            }
            Control::NetworkDelayed(_) | Control::GatherMeasured(..) => {}
            Control::Cancelled(request) => {
                if let Some(queue) = self.table.pool.cancel(now, request, &mut self.pending) {
                    self.placement.touched(queue);
                }
            }
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.pending.move_to(out);
        let mut reported = 0;
        while let Some((task, outcome)) = self.table.tasks.take_done(reported) {
            let on = self.table.tasks.get(task);
            if self.table.complete(now, task, outcome, out) {
                self.placement.ended(on.model, on.device);
            }
            reported += 1;
        }
        // Placing may bring a hopeless request to the head of a queue, and dropping it may allow
        // another batch.
        loop {
            self.take_back(out);
            while let Some(queue) = self.table.pool.wake(now, out) {
                self.placement.touched(queue);
            }
            self.placement.place(now, &mut self.table, out);
            if self.table.pool.next_wakeup() > now && self.table.returned.is_empty() {
                break;
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        self.table.pool.next_wakeup().min(self.placement.next_wakeup())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.table.tasks.members(task)
    }
}
