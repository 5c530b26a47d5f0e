//! Dispatch of tasks to devices, and completion of their results.
//!
//! # Queued steps
//!
//! A lane of a device runs its tasks in the order of their starts. A policy may queue several tasks
//! on a lane, so that the lane never waits for a decision.
//!
//! A request may therefore end while further steps of it are queued. The request is answered
//! immediately. Its queued steps still run, report nothing, and count as waste.
//!
//! # Lost devices
//!
//! A lost device is removed immediately, with all its tasks. Later results of the device are
//! ignored.

use crate::Clock;
use crate::devices::SharedDevice;
use crate::devices::hang_detector::{HangBound, HangDetector, TimedCost};
use crate::devices::lane_times::{EndTimes, LaneEnd, LaneTimes};
use crate::devices::slots::DeviceSlots;
use crate::event_loop::member_results::{MemberResults, TaskTimes};
use crate::event_loop::tasks_in_flight::{InFlight, LostTask, TasksInFlight};
use crate::learn::capacity::ModelEntry;
use crate::metrics::DeviceMetrics;
use crate::requests::jobs::{JobTable, PartStage};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_calibration::Ran;
use ripieno_executor::{Loss, Rerun, Task, TaskMember, TaskResult};
use ripieno_model::{Block, LaneTask, padded_size};
use ripieno_sched::{CostScale, Limits, NetworkDelay, Outcome};
use std::sync::Arc;
use std::time::Duration;

/// A scheduler's decision to start a task.
pub(crate) struct TaskStart<'a> {
    pub(crate) task: TaskId,
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    /// The block's description, with the profile in use.
    pub(crate) spec: &'a Block,
    /// The delay by the time of the host for a batch of the model.
    pub(crate) host: NetworkDelay,
    pub(crate) device: DeviceId,
    /// The device's latency in percent of the profile.
    pub(crate) percent: u32,
    /// Cost of the members relative to the profile.
    pub(crate) cost: CostScale,
    pub(crate) lane: LaneId,
    /// Length to which the members are padded.
    pub(crate) length: u32,
    pub(crate) not_before: Time,
    pub(crate) members: &'a [RequestSlot],
    /// The node that each member runs, one entry per member; empty if every member runs its first
    /// step.
    pub(crate) nodes: &'a [u32],
}

/// Dispatches tasks and processes their results.
pub(crate) struct Dispatcher {
    clock: Clock,
    slots: DeviceSlots,
    lanes: LaneTimes,
    hang_detector: HangDetector,
    tasks: TasksInFlight,
    /// Tasks started on a device that no longer existed.
    orphans: Vec<TaskId>,
    /// Time that batches are expected to need to reach their devices.
    pub(crate) network: NetworkDelay,
    metrics: Arc<[DeviceMetrics]>,
    /// Number of tasks completed.
    completions: u64,
    /// Emptied lists of results, for reuse.
    spare_results: MemberResults,
}

/// A task that has ended, to be reported to the core.
pub(crate) struct EndedTask {
    pub(crate) task: TaskId,
    pub(crate) outcome: Outcome,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) results: MemberResults,
    pub(crate) model: ModelId,
    /// End of the task that the profile predicted.
    pub(crate) expected: Time,
    /// Whether the batch failed and was run again in parts.
    pub(crate) rerun: bool,
    /// Set if the task failed because an engine process was missing or ended.
    pub(crate) lost: Option<Loss>,
    /// Start of the execution.
    pub(crate) started: Time,
    /// See [`TaskResult::host_time`].
    pub(crate) host_time: Duration,
    /// Size and duration of the execution.
    pub(crate) ran: Ran,
}

impl EndedTask {
    /// Whether the whole task ran once and without an error.
    pub(crate) fn is_sound(&self) -> bool {
        self.outcome == Outcome::Ok && !self.rerun
    }
}

impl Dispatcher {
    pub(crate) fn new(
        clock: Clock,
        slots: DeviceSlots,
        metrics: Arc<[DeviceMetrics]>,
        limits: &Limits,
        bound: HangBound,
    ) -> Dispatcher {
        Dispatcher {
            clock,
            slots,
            lanes: LaneTimes::new(limits.devices, limits.lanes),
            hang_detector: HangDetector::new(bound, limits.devices * limits.lanes, limits.depth),
            tasks: TasksInFlight::new(limits.tasks()),
            orphans: Vec::new(),
            network: NetworkDelay::default(),
            metrics,
            completions: 0,
            spare_results: MemberResults::new(limits.batch),
        }
    }

    /// Returns the devices.
    pub(crate) fn slots(&self) -> &DeviceSlots {
        &self.slots
    }

    /// Returns the number of batches that the serving devices run side by side at most.
    pub(crate) fn concurrent_batches(&self) -> usize {
        self.slots.serving() * self.lanes.a_device()
    }

    /// Adds a serving device.
    pub(crate) fn join(&mut self, now: Time, id: DeviceId, device: SharedDevice) {
        self.slots.join(id, device);
        self.lanes.join(now, id);
        self.set_percent(id, 100);
    }

    /// Lets a serving device end its tasks and start no others.
    pub(crate) fn leave(&mut self, id: DeviceId) {
        self.slots.leave(id);
    }

    /// Removes and returns a leaving device that has ended all its tasks and that the policy does
    /// not hold.
    pub(crate) fn pop_drained(&mut self, holds: impl Fn(DeviceId) -> bool) -> Option<DeviceId> {
        let id = self.slots.drained(holds)?;
        self.slots.remove(id);
        Some(id)
    }

    /// Removes a lost device and returns its tasks in the order of their starts. With `rejoins`,
    /// the device is reopened if it ends its tasks after all.
    pub(crate) fn lose(&mut self, id: DeviceId, rejoins: bool) -> Vec<LostTask> {
        let device = self.slots.lose(id, rejoins);
        let tasks = self.tasks.take_lost(|_, task| task.device == id);
        // Prevents the device from beginning tasks that it still queues.
        tasks.iter().for_each(|lost| device.cancel(lost.task));
        self.lanes.of(id).for_each(|lane| self.hang_detector.clear(lane));
        tasks
    }

    /// Whether tasks were started on devices that no longer existed.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// Takes the tasks that were started on devices that no longer existed.
    pub(crate) fn take_orphans(&mut self) -> Vec<LostTask> {
        let orphans = std::mem::take(&mut self.orphans);
        self.tasks.take_lost(|task, _| orphans.contains(&task))
    }

    /// Returns a device that hangs in a task, if any.
    pub(crate) fn hung(&mut self, now: Time) -> Option<DeviceId> {
        self.hang_detector.hung(now).map(|lane| DeviceId((lane / self.lanes.a_device()) as u16))
    }

    /// Returns the time of the next check for hanging devices.
    pub(crate) fn next_hang_check(&self) -> Time {
        self.hang_detector.next()
    }

    /// Exports the latency of a device, in percent of the profile.
    pub(crate) fn set_percent(&self, id: DeviceId, percent: u32) {
        self.metrics[id.index()].set_percent(percent);
    }

    /// Sends a batch to its device.
    pub(crate) fn start(&mut self, now: Time, start: &TaskStart<'_>, jobs: &mut JobTable) {
        let TaskStart { task: id, model, block, spec, lane, device, length, .. } = *start;
        let node = |at| start.nodes.get(at).copied().unwrap_or(0);
        let each = start.members.iter().enumerate();
        let members: Vec<TaskMember> =
            each.map(|(at, &slot)| prepare_member(slot, node(at), start, &self.clock, jobs)).collect();
        let rows = members.iter().map(|member| member.rows).sum();
        let latency = start.cost.of(spec.cost(rows, length)).scale(u64::from(start.percent), 100);
        let (earliest, share) = (now.max(start.not_before), spec.share(rows, length));
        self.lanes.start(now, device, lane, LaneTask { task: id, earliest, alone: latency, share });
        // Later blocks are at the device already.
        let lead = if block == BlockId(0) { self.network.with(start.host).lead(rows) } else { Nanos::ZERO };
        let (kept, nodes) = self.tasks.lists(start.members, start.nodes);
        let in_flight = InFlight {
            model,
            block,
            steps: spec.steps,
            device,
            lane,
            not_before: start.not_before + lead,
            latency,
            members: kept,
            nodes,
            rows,
            length,
            cancelled: false,
        };
        self.tasks.start(id, in_flight);
        let not_before = self.clock.instant(start.not_before);
        if !self.slots.submit(device, Task { id, model, block, lane, length, members, not_before }) {
            // A policy that does not hold a leaving device may continue a batch once it is removed.
            return self.orphans.push(id);
        }
        let (_, call, _) = jobs.owner(start.members[0]);
        let timed = (!call.model.supervised).then(|| TimedCost::of(spec, rows, length, start.percent, start.cost));
        self.hang_detector.start(now, self.lanes.index(device, lane), id, start.not_before, timed);
    }

    /// Asks the device to stop a task. The result of the task is discarded. A device that cannot
    /// stop reports the task when it ends.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        let device = self.tasks.cancel(id);
        if let Some(device) = self.slots.get(device) {
            device.cancel(id);
        }
    }

    /// Processes a result: members receive outputs or an error, and metrics receive the times.
    /// Returns `None` if the device had been given up.
    pub(crate) fn complete(
        &mut self,
        now: Time,
        from: DeviceId,
        result: TaskResult,
        jobs: &mut JobTable,
    ) -> Option<EndedTask> {
        let TaskResult { id: task, outcome, rerun, lost, started, finished, host_time, holds_next: _ } = result;
        if !self.slots.end(from) {
            return None;
        }
        let in_flight = self.tasks.end(task, from);
        let (started, finished) = (self.clock.time(started), self.clock.time(finished));
        let times = self.end_lane(now, task, &in_flight, started, finished);
        self.completions += 1;
        let mut results = std::mem::take(&mut self.spare_results);
        results.begin(self.completions);
        let outcome = if in_flight.cancelled {
            MemberResults::cancel(&in_flight, jobs)
        } else {
            let (_, call, _) = jobs.owner(in_flight.members[0]);
            let filled = padded_size(call.model.loaded.batch_sizes(), in_flight.rows) - in_flight.rows;
            call.model.metrics.on_batch(in_flight.rows, filled, finished - started);
            if let Some(Rerun { runs, cause }) = &rerun {
                call.model.metrics.on_again();
                tracing::debug!(model = call.model.name, runs, %cause, "a batch failed and was run again in parts");
            }
            let times = TaskTimes { started, execution: finished - started, lost };
            results.record(&in_flight, outcome.map_err(|error| error.to_string()), &times, jobs)
        };
        let InFlight { model, block, rows, length, members, nodes, .. } = in_flight;
        self.tasks.recycle_nodes(nodes);
        let ran = Ran { block, rows, length, took: finished - started, alone: times.alone };
        let (expected, rerun) = (times.expected, rerun.is_some());
        Some(EndedTask { task, outcome, members, results, model, expected, rerun, lost, started, host_time, ran })
    }

    /// Ends a task on its lane, for the detector of hangs, the expected ends and the device's busy
    /// time.
    fn end_lane(&mut self, now: Time, task: TaskId, ended: &InFlight, started: Time, finished: Time) -> EndTimes {
        let InFlight { device, lane, not_before, latency, .. } = *ended;
        self.hang_detector.end(now, self.lanes.index(device, lane), task);
        let times = self.lanes.end(now, &LaneEnd { task, device, lane, not_before, latency, started, finished });
        self.metrics[device.index()].on_batch(times.covered);
        // A lane that still holds a task may have begun it, so it counts as working.
        let alone = times.alone && (self.lanes.a_device() == 1 || !self.tasks.any_beside(device, lane));
        EndTimes { alone, ..times }
    }

    /// Stores an unused list of members for reuse.
    pub(crate) fn recycle(&mut self, members: Vec<RequestSlot>) {
        self.tasks.recycle_members(members);
    }

    /// Stores unused lists of results for reuse.
    pub(crate) fn recycle_results(&mut self, results: MemberResults) {
        self.spare_results = results;
    }
}

/// Counts one request part fewer as waiting.
pub(crate) fn stop_waiting(model: &ModelEntry) {
    model.metrics.waiting.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
}

/// Builds the task member for the part in `slot`.
fn prepare_member(
    slot: RequestSlot,
    node: u32,
    start: &TaskStart<'_>,
    clock: &Clock,
    jobs: &mut JobTable,
) -> TaskMember {
    let (_, call, part) = jobs.owner(slot);
    let (model, until, part) = (&call.model, clock.instant(call.expires), &mut call.parts[part]);
    assert!(part.stage != PartStage::Outside, "a policy started a request that has ended");
    assert!(model.unfolds || part.in_flight == 0, "a policy started a request that runs");
    let fits = model.unfolds || start.length >= part.entry.extent.length;
    assert!(fits, "a policy padded a request to less than its length");
    if part.stage == PartStage::Waiting {
        stop_waiting(model);
    }
    part.stage = PartStage::Begun;
    part.in_flight += 1;
    let left = part.device.replace(start.device).is_some();
    // A device may know the request already, if the request was dropped between two blocks and
    // restarts here. The device then needs the entry again.
    let anew = !model.unfolds && start.block == BlockId(0);
    let introduced = part.introduce(start.device);
    if model.keeps_device && model.unfolds && left && introduced {
        // The device that has its state has left, so the policy starts it over.
        part.begin_anew();
    }
    let entry = (introduced || anew).then(|| Arc::clone(&part.entry));
    TaskMember { slot, rows: part.rows, node, entry, walk: part.walk, until }
}
