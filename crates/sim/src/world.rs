//! The event loop: arrivals, emulated devices and the scheduler in virtual time.
//!
//! At one instant, ends of tasks come first, then faults, then arrivals, then the scheduler settles
//! once; a decision at t therefore knows everything that happened at t. Time jumps from event to
//! event; there are no ticks.

mod arriving;
mod ensembles;
mod expiry;
mod faults;
mod gather;
mod learning;
mod queues;
mod shared;
mod unfolded;

use crate::ensembles::Ensembles;
use crate::jitter::{Excess, Jitter};
use crate::link::{Link, Network};
use crate::observer::{End, Observer, Run};
use crate::occupancy::{Occupancy, OccupancyDraws};
use crate::reports::Reports;
use crate::route::{Arrival, ChainRequests};
use expiry::Expiries;
pub(crate) use expiry::expires;
use faults::Scheduled;
pub use faults::{Controller, Fault};
use gather::GatherCosts;
use learning::Learning;
pub use queues::QueueBound;
use queues::QueueBounds;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Lanes, Model};
use ripieno_sched::{Action, CostScale, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use unfolded::Unfolded;

/// A scheduler, its devices, and its inputs.
pub struct World<'a> {
    scheduler: &'a mut dyn Scheduler,
    models: &'a [Model],
    out: Outbox,
    now: Time,
    /// Time of the scheduler's next wakeup.
    wakeup: Time,
    live: Vec<Option<(u64, Request)>>,
    free: Vec<RequestSlot>,
    graphs: &'a [Graph],
    /// State of requests that unfold; `None` if no model has such a walk.
    unfolded: Option<Unfolded>,
    /// State of requests of chains; `None` if their routes do not differ.
    carried: Option<ChainRequests>,
    devices: Vec<EmulatedDevice>,
    /// Lanes per device; empty if each device has only one, whose tasks end at the time known at
    /// their start.
    lanes: Vec<Lanes>,
    tasks: Vec<Option<EmulatedTask>>,
    ends: BinaryHeap<Reverse<(Time, u64, TaskId)>>,
    loaded: Vec<bool>,
    starts: u64,
    arrived: u64,
    events: u64,
    last_arrival: Time,
    link: Option<Link>,
    /// Time that the scheduler's thread takes for a task that it starts.
    decision: Nanos,
    /// Time at which the scheduler's thread has sent all tasks that it started.
    decided: Time,
    jitter: Option<Excess>,
    occupancy: Option<OccupancyDraws<'a>>,
    /// Delays of task reports; `None` if there are no delays.
    reports: Option<Reports<'a>>,
    /// Calibration from task durations; `None` if the scheduler receives the real deadlines and
    /// keeps its profiles.
    learning: Option<Learning>,
    /// Times at which clients stop waiting; `None` if they wait forever.
    expiries: Option<Expiries>,
    gather: Option<GatherCosts<'a>>,
    /// Live requests per model; `None` if models have no bounds of their own.
    queues: Option<QueueBounds<'a>>,
    /// Ensembles and their requests; `None` if there are no ensembles.
    ensembles: Option<Ensembles<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct EmulatedDevice {
    present: bool,
    percent: u32,
    busy_until: Time,
    /// Report time of the latest end: reports arrive in order.
    heard: Time,
    fail_next: bool,
}

/// A task that the scheduler starts.
struct StartedTask {
    task: TaskId,
    model: ModelId,
    block: BlockId,
    device: DeviceId,
    lane: LaneId,
    length: u32,
    not_before: Time,
}

#[derive(Debug)]
struct EmulatedTask {
    model: ModelId,
    block: BlockId,
    device: DeviceId,
    lane: LaneId,
    rows: usize,
    /// Padded length of a batch of requests of different lengths.
    length: u32,
    start: Time,
    end: Time,
    /// Duration beyond the profiled one.
    excess: Nanos,
    /// Cost of its members relative to the profile.
    scale: CostScale,
    /// Number of the start, which distinguishes a lost task's end from the end of a later task with
    /// the same id.
    serial: u64,
    cancelled: bool,
    slots: Vec<RequestSlot>,
    nodes: Vec<u32>,
    ids: Vec<u64>,
}

impl<'a> World<'a> {
    /// Creates a world at time zero. The scheduler must have been built for this setup.
    pub fn new(scheduler: &'a mut dyn Scheduler, setup: &'a Setup) -> World<'a> {
        let limits = &setup.limits;
        let device = |index| EmulatedDevice {
            present: index < setup.devices,
            percent: 100,
            busy_until: Time::ORIGIN,
            heard: Time::ORIGIN,
            fail_next: false,
        };
        World {
            scheduler,
            models: &setup.models,
            out: Outbox::new(limits),
            now: Time::ORIGIN,
            wakeup: Time::NEVER,
            live: vec![None; limits.requests],
            free: (0..limits.requests as u32).rev().map(RequestSlot).collect(),
            graphs: &[],
            unfolded: Unfolded::new(setup),
            carried: None,
            devices: (0..limits.devices).map(device).collect(),
            lanes: if limits.lanes > 1 { vec![Lanes::new(limits.lanes); limits.devices] } else { Vec::new() },
            tasks: (0..limits.tasks()).map(|_| None).collect(),
            ends: BinaryHeap::with_capacity(limits.tasks()),
            loaded: vec![true; setup.models.len()],
            starts: 0,
            arrived: 0,
            events: 0,
            last_arrival: Time::ORIGIN,
            link: None,
            decision: Nanos::ZERO,
            decided: Time::ORIGIN,
            jitter: None,
            occupancy: None,
            reports: None,
            learning: None,
            expiries: None,
            gather: None,
            queues: None,
            ensembles: None,
        }
    }

    /// Makes the first `count` models the only ones that are loaded at time zero; the scheduler
    /// must have been built for these.
    pub fn with_loaded(mut self, count: usize) -> World<'a> {
        self.loaded[count..].fill(false);
        self
    }

    /// Allows requests to leave chains early or skip blocks.
    pub fn with_routes(mut self, setup: &Setup) -> World<'a> {
        self.carried.get_or_insert_with(|| ChainRequests::new(setup));
        self
    }

    /// Adds a network through which batches reach their devices.
    pub fn with_network(mut self, network: Network, seed: u64) -> World<'a> {
        self.link = (!network.is_none()).then(|| Link::new(network, seed));
        self
    }

    /// Lets the scheduler's thread take this long for each task that it starts, one by one.
    pub fn with_decisions(mut self, each: Nanos) -> World<'a> {
        self.decision = each;
        self
    }

    /// Makes tasks take longer than profiled.
    pub fn with_jitter(mut self, jitter: Jitter, seed: u64) -> World<'a> {
        self.jitter = (!jitter.is_none()).then(|| Excess::new(jitter, seed));
        self
    }

    /// Makes the device time of tasks differ from their profile.
    pub fn with_occupancy(mut self, occupancy: &'a Occupancy, seed: u64) -> World<'a> {
        self.occupancy = (!occupancy.is_exact()).then(|| OccupancyDraws::new(occupancy, seed));
        self
    }

    /// Delays the reports of task ends as measured: `heard` holds ends, in order, and their report
    /// times.
    pub fn with_reports(mut self, heard: &'a [(Time, Time)]) -> World<'a> {
        self.reports = Reports::new(heard);
        self
    }

    /// Adds a margin to deadlines and corrections of profiles, as in the runtime. `believed` are
    /// the models that the scheduler was built with: their profiles may be wrong.
    pub fn with_learning(mut self, believed: &[Model]) -> World<'a> {
        self.learning = Some(Learning::new(believed));
        self
    }

    /// Makes clients stop waiting at the deadline, as in the runtime, except for models that never
    /// drop, whose late answers are wanted.
    pub fn with_expiry(mut self) -> World<'a> {
        self.expiries = Some(Expiries::new(self.models, self.live.len()));
        self
    }

    /// Adds the graphs of requests.
    pub fn with_graphs(mut self, graphs: &'a [Graph]) -> World<'a> {
        self.graphs = graphs;
        self
    }

    /// Adds a cost per row, by model and block, for a task whose members differ from the previous
    /// task's on its device.
    pub fn with_gather(mut self, per_row: &'a [Vec<Nanos>]) -> World<'a> {
        self.gather = GatherCosts::new(per_row, self.devices.len());
        self
    }

    /// Bounds the live requests per model; further ones are refused.
    pub fn with_queues(mut self, bounds: &'a [QueueBound]) -> World<'a> {
        self.queues = QueueBounds::new(bounds);
        self
    }

    /// Runs until all requests that arrived have ended. Both inputs must be in order of time.
    pub fn run(
        &mut self,
        arrivals: impl Iterator<Item = Arrival>,
        faults: impl IntoIterator<Item = (Time, Fault)>,
        observers: &mut [&mut dyn Observer],
    ) {
        self.run_controlled(arrivals, &mut Scheduled(faults.into_iter().peekable()), observers);
    }

    /// Runs like [`World::run`], with a controller that decides about changes during the run.
    pub fn run_controlled(
        &mut self,
        arrivals: impl Iterator<Item = Arrival>,
        controller: &mut impl Controller,
        observers: &mut [&mut dyn Observer],
    ) {
        let mut arrivals = arrivals;
        let mut coming = arrivals.next();
        self.wakeup = self.scheduler.next_wakeup();
        loop {
            let arrival = coming.as_ref().map_or(Time::NEVER, |arrival| arrival.at);
            let end = self.ends.peek().map_or(Time::NEVER, |&Reverse((at, ..))| at);
            let (ending, beginning) = if self.lanes.is_empty() { (Time::NEVER, Time::NEVER) } else { self.lanes_due() };
            let expiry = self.expiries.as_ref().map_or(Time::NEVER, Expiries::next);
            let steps = self.ensembles.as_ref().filter(|ensembles| ensembles.has_moved());
            let steps = steps.map_or(Time::NEVER, |_| self.now.next());
            let due = arrival.min(end).min(ending).min(expiry).min(steps).min(self.wakeup);
            let next = due.min(controller.next_at(due));
            if beginning < next {
                self.advance_lanes(beginning);
                continue;
            }
            if next == Time::NEVER {
                break;
            }
            assert!(next >= self.now, "time would go back from {:?} to {next:?}", self.now);
            self.now = next;
            if self.learning.is_some() {
                self.test_profiles();
            }
            if !self.lanes.is_empty() {
                self.end_on_lanes(observers);
            }
            while let Some((task, serial)) = self.pop_end() {
                self.end_task(task, serial, observers);
            }
            while let Some(fault) = controller.act(next) {
                self.inflict(&fault, observers);
            }
            if expiry <= next {
                self.expire();
            }
            while let Some(arrival) = coming.as_ref().filter(|arrival| arrival.at == next) {
                self.arrive(arrival, observers);
                coming = arrivals.next();
            }
            self.move_ensembles(observers);
            self.settle(observers);
        }
    }

    /// Returns the number of inputs given to the scheduler, without settles.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the time of the last arrival.
    pub fn last_arrival(&self) -> Time {
        self.last_arrival
    }

    /// Returns the number of requests that have neither been answered nor rejected; 0 after a
    /// complete run.
    pub fn live(&self) -> usize {
        self.live.len() - self.free.len()
    }

    fn pop_end(&mut self) -> Option<(TaskId, u64)> {
        let &Reverse((at, serial, task)) = self.ends.peek()?;
        (at == self.now).then(|| {
            self.ends.pop();
            (task, serial)
        })
    }

    fn end_task(&mut self, id: TaskId, serial: u64, observers: &mut [&mut dyn Observer]) {
        if self.tasks[id.index()].as_ref().is_none_or(|running| running.serial != serial) {
            return;
        }
        let device = self.tasks[id.index()].as_ref().map_or(0, |running| running.device.index());
        self.take_off_lane(id, device);
        let failed = std::mem::take(&mut self.devices[device].fail_next);
        let cancelled = self.tasks[id.index()].as_ref().is_some_and(|running| running.cancelled);
        let outcome = match (cancelled, failed) {
            (true, _) => Outcome::Cancelled,
            (false, true) => Outcome::Failed,
            (false, false) => Outcome::Ok,
        };
        self.report(id, outcome, observers);
    }

    fn report(&mut self, id: TaskId, outcome: Outcome, observers: &mut [&mut dyn Observer]) {
        let Some(running) = self.tasks[id.index()].take() else { return };
        self.events += 1;
        let model = &self.models[running.model.index()];
        let (ended, skips): (&[bool], &[BlockId]) = match &mut self.carried {
            Some(carried) if outcome == Outcome::Ok && !model.walk.is_unfolded() => {
                carried.complete(running.block, model.blocks.len(), &running.slots)
            }
            _ => (&[], &[]),
        };
        let better = match &mut self.learning {
            Some(learning) if outcome == Outcome::Ok => {
                let percent = self.devices[running.device.index()].percent;
                learning.on_end(self.now, model, &running, percent, self.lanes.is_empty())
            }
            _ => None,
        };
        let run = Run { ended, skips, ..running.as_run(id) };
        each(observers, |observer| observer.done(self.now, &run));
        let completed =
            self.unfolded.as_mut().map(|unfolded| unfolded.complete(model, &running, &self.live, &mut self.free));
        let ended = completed.filter(|_| model.walk.is_unfolded()).unwrap_or(ended);
        self.scheduler.on_task_done(self.now, &TaskDone { task: id, outcome, ended, skips });
        if let Some(control) = better.filter(|_| self.loaded[running.model.index()]) {
            self.scheduler.on_control(self.now, control);
        }
    }

    fn settle(&mut self, observers: &mut [&mut dyn Observer]) {
        self.scheduler.settle(self.now, &mut self.out);
        for at in 0..self.out.actions().len() {
            match self.out.actions()[at] {
                Action::Start { task, model, block, device, lane, length, not_before } => {
                    self.start(&StartedTask { task, model, block, device, lane, length, not_before }, observers);
                }
                Action::Finish { request } => self.end_request(request, End::Finished, observers),
                Action::Reject { request, why } => self.end_request(request, End::Rejected(why), observers),
                Action::Cancel { task } => self.abort(task, observers),
            }
        }
        self.out.clear();
        self.wakeup = self.scheduler.next_wakeup();
        each(observers, |observer| observer.settled(self.now, self.wakeup));
    }

    fn start(&mut self, start: &StartedTask, observers: &mut [&mut dyn Observer]) {
        let StartedTask { task: id, model, block, device, lane, length, not_before } = *start;
        let slots = self.scheduler.members(id).to_vec();
        let nodes = self.scheduler.nodes(id).to_vec();
        if let Some(unfolded) = &mut self.unfolded {
            slots.iter().for_each(|slot| unfolded.in_flight[slot.index()] += 1);
        }
        let request = |slot: &RequestSlot| self.live[slot.index()].as_ref().expect("members are live");
        let ids = slots.iter().map(|slot| request(slot).0).collect();
        let rows = slots.iter().map(|slot| request(slot).1.rows as usize).sum();
        // Inputs are fetched for the first block; inputs of later blocks are on the device.
        let way = self.link.as_mut().filter(|_| block == BlockId(0)).map_or(Nanos::ZERO, |link| link.way(rows));
        self.decided = self.decided.max(self.now) + self.decision;
        let state = &mut self.devices[device.index()];
        let start = (self.decided + way).max(not_before).max(state.busy_until);
        let gather = self.gather.as_mut().map_or(Nanos::ZERO, |gather| gather.cost(model, block, device, &slots, rows));
        let spec = &self.models[model.index()].blocks[block.index()];
        let scale = slots.iter().map(|slot| request(slot).1.class.cost).max().unwrap_or_default();
        let latency = scale.of(spec.cost(rows, length)) + gather;
        let profiled = latency.scale(u64::from(state.percent), 100).max(Nanos(1));
        let jitter = self.jitter.as_mut().map_or(Nanos::ZERO, |excess| excess.of(profiled));
        let largest = scale.of(spec.cost(spec.max_batch(), length));
        let occupied = self.occupancy.as_mut().map(|draws| draws.excess(start, device, profiled, largest));
        let excess = jitter + occupied.unwrap_or(Nanos::ZERO);
        let alone = profiled + excess;
        self.starts += 1;
        let serial = self.starts;
        let mut running = EmulatedTask {
            model,
            block,
            device,
            lane,
            rows,
            length,
            start,
            end: start + alone,
            excess,
            scale,
            serial,
            cancelled: false,
            slots,
            nodes,
            ids,
        };
        if self.lanes.is_empty() {
            state.busy_until = running.end;
            let heard = self.heard(running.end, device.index());
            self.ends.push(Reverse((heard, serial, id)));
        } else {
            running.end = Time::NEVER;
            self.put_on_lane(id, &running, alone);
        }
        let run = running.as_run(id);
        each(observers, |observer| observer.started(self.now, &run));
        if id.index() >= self.tasks.len() {
            // Each shard numbers its tasks separately.
            self.tasks.resize_with(id.index() + 1, || None);
        }
        let replaced = self.tasks[id.index()].replace(running);
        assert!(replaced.is_none(), "a task was started that is in flight already: {id:?}");
    }

    /// Returns the report time of a task of this device that ends at `end`.
    fn heard(&mut self, end: Time, device: usize) -> Time {
        let Some(reports) = self.reports else { return end };
        let state = &mut self.devices[device];
        state.heard = reports.of(end).max(state.heard);
        state.heard
    }

    /// Stops a task. Its end is reported at the next instant, since the scheduler settles once per
    /// instant.
    fn abort(&mut self, id: TaskId, observers: &mut [&mut dyn Observer]) {
        let running = self.tasks[id.index()].as_mut().expect("only a task in flight can be cancelled");
        assert!(!std::mem::replace(&mut running.cancelled, true), "{id:?} was cancelled twice");
        let device = &mut self.devices[running.device.index()];
        if device.busy_until == running.end {
            (device.busy_until, device.heard) = (self.now.next(), self.now);
        }
        self.ends.push(Reverse((self.now.next(), running.serial, id)));
        each(observers, |observer| observer.cancelled(self.now, &running.as_run(id)));
    }

    fn end_request(&mut self, slot: RequestSlot, end: End, observers: &mut [&mut dyn Observer]) {
        let (id, request) = self.live[slot.index()].take().expect("a request ends once");
        if let (Some(learning), End::Rejected(Why::Hopeless | Why::Expired)) = (&mut self.learning, end) {
            let mut running = self.tasks.iter().flatten().map(|running| running.model).peekable();
            let idle = running.peek().is_none();
            if running.all(|model| model != request.model) {
                learning.on_hopeless(self.now, &request, idle);
            }
        }
        if let Some(expiries) = &mut self.expiries {
            expiries.remove(slot);
        }
        if let Some(queues) = &mut self.queues {
            queues.leave(request.model);
        }
        // A slot that occurs in queued tasks is freed when they have ended.
        if self.unfolded.as_ref().is_none_or(|unfolded| unfolded.in_flight[slot.index()] == 0) {
            if let Some(unfolded) = &mut self.unfolded {
                unfolded.release(slot);
            }
            self.free.push(slot);
        }
        each(observers, |observer| observer.ended(self.now, id, &request, end));
        self.end_step(slot, end, observers);
    }
}

impl EmulatedTask {
    fn as_run(&self, task: TaskId) -> Run<'_> {
        let EmulatedTask { model, block, device, lane, rows, length, start, end, .. } = *self;
        let EmulatedTask { slots, nodes, ids, .. } = self;
        let (ended, skips) = (&[][..], &[][..]);
        Run { task, model, block, device, lane, rows, length, start, end, slots, nodes, ids, ended, skips }
    }
}

fn each(observers: &mut [&mut dyn Observer], mut call: impl FnMut(&mut dyn Observer)) {
    for observer in observers {
        call(*observer);
    }
}
