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

use crate::devices::coverage::Coverage;
use crate::devices::hang_detector::{HangBound, HangDetector, TimedCost};
use crate::devices::slots::DeviceSlots;
use crate::devices::{DeviceDirectory, SharedDevice};
use crate::metrics::DeviceMetrics;
use crate::requests::jobs::{FailedMember, JobTable, LiveJob, PartStage};
use crate::{Clock, StreamedStep, learn::capacity::ModelEntry};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_calibration::Ran;
use ripieno_executor::{Loss, MemberProgress, Rerun, Task, TaskMember, TaskResult};
use ripieno_model::{Block, ExpectedEnds, LaneTask, Position, StepReport, Steps};
use ripieno_sched::{CostScale, Limits, Outcome};
use std::collections::HashMap;
use std::sync::Arc;

/// A scheduler's decision to start a task.
pub(crate) struct TaskStart<'a> {
    pub(crate) task: TaskId,
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    /// The block's description, with the profile in use.
    pub(crate) spec: &'a Block,
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
    pub(crate) slots: DeviceSlots,
    pub(crate) hang_detector: HangDetector,
    /// Tasks started on a device that no longer existed.
    pub(crate) orphans: Vec<TaskId>,
    /// Number of tasks started.
    starts: u64,
    pub(crate) metrics: Arc<[DeviceMetrics]>,
    in_flight: HashMap<TaskId, InFlight>,
    /// Number of lanes of each device.
    lanes: usize,
    /// End of the last task of each lane, device by device.
    idle_since: Vec<Time>,
    /// Expected ends of the tasks on each device; empty if devices have one lane.
    shared: Vec<ExpectedEnds>,
    /// Busy time, by device.
    coverage: Vec<Coverage>,
    /// Number of results processed.
    completions: u64,
    /// Emptied member lists, for reuse.
    spare: Vec<Vec<RequestSlot>>,
    /// Emptied node lists, for reuse.
    spare_nodes: Vec<Vec<u32>>,
    /// Whether the request ended, for each member of the last completed task.
    ended: Vec<bool>,
    /// Next block of each member of the last completed task.
    skips: Vec<BlockId>,
    /// Whether a member of the last completed task skips a block.
    skipped: bool,
    /// Members of the last completed task that failed alone.
    failed_alone: Vec<FailedMember>,
}

/// A task lost with its device, to be reported to the core.
pub(crate) struct LostTask {
    pub(crate) task: TaskId,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
}

struct InFlight {
    /// Sequence number of the start.
    number: u64,
    model: ModelId,
    block: BlockId,
    steps: Steps,
    device: DeviceId,
    lane: LaneId,
    not_before: Time,
    /// Execution time on this device that the profile predicts.
    latency: Nanos,
    members: Vec<RequestSlot>,
    nodes: Vec<u32>,
    rows: usize,
    /// Length to which its members are padded; 1 if requests do not differ in length.
    length: u32,
    cancelled: bool,
}

/// A task that has ended, to be reported to the core.
pub(crate) struct EndedTask {
    pub(crate) task: TaskId,
    pub(crate) outcome: Outcome,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
    /// End of the task that the profile predicted.
    pub(crate) expected: Time,
    /// Whether the batch failed and was run again in parts.
    pub(crate) rerun: bool,
    /// Set if the task failed because an engine process was missing or ended.
    pub(crate) lost: Option<Loss>,
    /// Start of the execution.
    pub(crate) started: Time,
    /// Size and duration of the execution.
    pub(crate) ran: Ran,
}

impl Dispatcher {
    pub(crate) fn new(
        clock: Clock,
        table: Arc<DeviceDirectory>,
        metrics: Arc<[DeviceMetrics]>,
        limits: &Limits,
        bound: HangBound,
    ) -> Dispatcher {
        let ids = limits.devices;
        Dispatcher {
            clock,
            lanes: limits.lanes,
            idle_since: vec![Time::ORIGIN; ids * limits.lanes],
            shared: (0..ids).filter(|_| limits.lanes > 1).map(|_| ExpectedEnds::new(limits.lanes)).collect(),
            coverage: (0..ids).map(|_| Coverage::new(limits.lanes)).collect(),
            hang_detector: HangDetector::new(bound, ids * limits.lanes, limits.depth),
            slots: DeviceSlots::new(table, ids),
            orphans: Vec::new(),
            starts: 0,
            metrics,
            in_flight: HashMap::with_capacity(limits.tasks()),
            completions: 0,
            spare: Vec::with_capacity(limits.tasks()),
            spare_nodes: Vec::with_capacity(limits.tasks()),
            ended: Vec::with_capacity(limits.batch),
            skips: Vec::with_capacity(limits.batch),
            skipped: false,
            failed_alone: Vec::with_capacity(limits.batch),
        }
    }

    /// Returns the number of batches that the serving devices run side by side at most.
    pub(crate) fn concurrent_batches(&self) -> usize {
        self.slots.serving() * self.lanes
    }

    /// Adds a serving device.
    pub(crate) fn join(&mut self, now: Time, id: DeviceId, device: SharedDevice) {
        self.slots.join(id, device);
        self.idle_since[id.index() * self.lanes..][..self.lanes].fill(now);
        if let Some(due) = self.shared.get_mut(id.index()) {
            *due = ExpectedEnds::new(self.lanes);
        }
    }

    /// Removes a lost device and returns its tasks in the order of their starts. With `rejoins`,
    /// the device is reopened if it ends its tasks after all.
    pub(crate) fn lose(&mut self, id: DeviceId, rejoins: bool) -> Vec<LostTask> {
        let device = self.slots.lose(id, rejoins);
        let tasks = self.take_lost(|_, in_flight| in_flight.device == id);
        // Prevents the device from beginning tasks that it still queues.
        tasks.iter().for_each(|lost| device.cancel(lost.task));
        (0..self.lanes).for_each(|lane| self.hang_detector.clear(id.index() * self.lanes + lane));
        tasks
    }

    /// Takes the tasks that were started on devices that no longer existed.
    pub(crate) fn take_orphans(&mut self) -> Vec<LostTask> {
        let orphans = std::mem::take(&mut self.orphans);
        self.take_lost(|task, _| orphans.contains(&task))
    }

    fn take_lost(&mut self, is_lost: impl Fn(TaskId, &InFlight) -> bool) -> Vec<LostTask> {
        let mut lost: Vec<(TaskId, InFlight)> =
            self.in_flight.extract_if(|&task, in_flight| is_lost(task, in_flight)).collect();
        lost.sort_unstable_by_key(|(_, in_flight)| in_flight.number);
        lost.into_iter().map(|(task, InFlight { members, model, .. })| LostTask { task, members, model }).collect()
    }

    /// Returns a device that hangs in a task, if any.
    pub(crate) fn hung(&mut self, now: Time) -> Option<DeviceId> {
        self.hang_detector.hung(now).map(|lane| DeviceId((lane / self.lanes) as u16))
    }

    /// Sends a batch to its device.
    pub(crate) fn start(&mut self, now: Time, start: &TaskStart<'_>, jobs: &mut JobTable) {
        let node = |at| start.nodes.get(at).copied().unwrap_or(0);
        let members = start
            .members
            .iter()
            .enumerate()
            .map(|(at, &slot)| prepare_member(slot, node(at), start, &self.clock, jobs));
        let members: Vec<TaskMember> = members.collect();
        let rows = members.iter().map(|member| member.rows).sum();
        let length = start.length;
        let latency = start.cost.of(start.spec.cost(rows, length)).scale(u64::from(start.percent), 100);
        if let Some(due) = self.shared.get_mut(start.device.index()) {
            let (earliest, share) = (now.max(start.not_before), start.spec.share(rows, length));
            due.start(now, start.lane, LaneTask { task: start.task, earliest, alone: latency, share });
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(start.members);
        let mut nodes = self.spare_nodes.pop().unwrap_or_default();
        nodes.extend_from_slice(start.nodes);
        self.starts += 1;
        let in_flight = InFlight {
            number: self.starts,
            model: start.model,
            block: start.block,
            steps: start.spec.steps,
            device: start.device,
            lane: start.lane,
            not_before: start.not_before,
            latency,
            members: kept,
            nodes,
            rows,
            length,
            cancelled: false,
        };
        let before = self.in_flight.insert(start.task, in_flight);
        assert!(before.is_none(), "task {} is in flight already", start.task.0);
        let not_before = self.clock.instant(start.not_before);
        let TaskStart { task: id, model, block, lane, device, .. } = *start;
        if !self.slots.submit(device, Task { id, model, block, lane, length, members, not_before }) {
            // A policy may continue a batch on a leaving device that has since been removed.
            return self.orphans.push(id);
        }
        let (_, call, _) = jobs.owner(start.members[0]);
        let timed =
            (!call.model.supervised).then(|| TimedCost::of(start.spec, rows, length, start.percent, start.cost));
        self.hang_detector.start(now, device.index() * self.lanes + lane.index(), id, start.not_before, timed);
    }

    /// Asks the device to stop a task. The result of the task is discarded. A device that cannot
    /// stop reports the task when it ends.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        let in_flight = self.in_flight.get_mut(&id).expect("only a task in flight can be cancelled");
        assert!(!std::mem::replace(&mut in_flight.cancelled, true), "task {} was cancelled twice", id.0);
        if let Some(device) = self.slots.get(in_flight.device) {
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
        let TaskResult { id: task, outcome, rerun, lost, started, finished, holds_next: _ } = result;
        if !self.slots.end(from) {
            return None;
        }
        let in_flight = self.in_flight.remove(&task).expect("a device reports each task once");
        assert_eq!(in_flight.device, from, "a device reports its own tasks");
        self.hang_detector.end(now, from.index() * self.lanes + in_flight.lane.index(), task);
        let (started, finished) = (self.clock.time(started), self.clock.time(finished));
        // A queued task cannot begin before the previous task of its lane has ended.
        let device = in_flight.device.index();
        let lane = device * self.lanes + in_flight.lane.index();
        let idle_since = std::mem::replace(&mut self.idle_since[lane], finished);
        let expected = match self.shared.get_mut(device) {
            Some(due) => due.end(now, task).1,
            None => in_flight.not_before.max(idle_since) + in_flight.latency,
        };
        let alone = self.ran_alone(device, in_flight.lane, started);
        self.completions += 1;
        let times = TaskTimes {
            started,
            execution: finished - started,
            rows: in_flight.rows,
            completion: self.completions,
            lost,
        };
        self.metrics[device].on_batch(self.coverage[device].add(started, finished));
        self.ended.clear();
        self.skips.clear();
        self.skipped = false;
        self.failed_alone.clear();
        let outcome = if in_flight.cancelled {
            in_flight.members.iter().for_each(|&slot| reset_part(slot, jobs));
            Outcome::Cancelled
        } else {
            let (_, call, _) = jobs.owner(in_flight.members[0]);
            call.model.metrics.on_batch(in_flight.rows, times.execution);
            if let Some(Rerun { runs, cause }) = &rerun {
                call.model.metrics.on_again();
                tracing::debug!(model = call.model.name, runs, %cause, "a batch failed and was run again in parts");
            }
            count_elements(&in_flight, jobs);
            self.complete_members(&in_flight, outcome.map_err(|error| error.to_string()), &times, jobs)
        };
        let InFlight { model, block, rows, length, members, mut nodes, .. } = in_flight;
        nodes.clear();
        self.spare_nodes.push(nodes);
        let ran = Ran { block, rows, length, took: times.execution, alone };
        Some(EndedTask { task, outcome, members, model, expected, rerun: rerun.is_some(), lost, started, ran })
    }

    /// Whether no other lane of the device has worked since `started`. A lane that still holds a
    /// task counts as working, because it may have begun the task.
    fn ran_alone(&self, device: usize, lane: LaneId, started: Time) -> bool {
        let ended = &self.idle_since[device * self.lanes..(device + 1) * self.lanes];
        let others_ended = (0..).zip(ended).all(|(at, &ended)| at == lane.index() || ended <= started);
        let others = || self.in_flight.values().filter(|other| other.device.index() == device && other.lane != lane);
        others_ended && (self.lanes == 1 || others().next().is_none())
    }

    /// Records the task's result for each member.
    fn complete_members(
        &mut self,
        in_flight: &InFlight,
        outcome: Result<Vec<MemberProgress>, String>,
        times: &TaskTimes,
        jobs: &mut JobTable,
    ) -> Outcome {
        let members = &in_flight.members;
        count_lost(in_flight, jobs);
        let outcome = outcome.and_then(|progress| match progress.len() == members.len() {
            true => Ok(progress),
            false => Err(format!("the engine reported {} results for {} requests", progress.len(), members.len())),
        });
        match outcome {
            Ok(progress) => {
                let at = Position::before(in_flight.block);
                let all_failed = progress.iter().all(|progress| progress.failed.is_some());
                for (&slot, progress) in members.iter().zip(progress) {
                    let (call, part) = complete_member(slot, times, jobs);
                    // In models that run cell by cell, the scheduler loop withdraws requests that
                    // failed alone.
                    let ended = if progress.failed.is_some() { !call.model.unfolds } else { progress.ended };
                    let report = StepReport::for_core(ended, progress.skip, in_flight.steps, call.model.unfolds);
                    self.ended.push(report.ended);
                    self.skips.push(at.next_block(report));
                    if let Some(cause) = progress.failed {
                        if record_failure(call, part, cause.0) {
                            call.lost = call.lost.or(progress.lost);
                            let did_not_run = progress.refused || progress.lost.is_some();
                            self.failed_alone.push(FailedMember { slot, did_not_run });
                        }
                        continue;
                    }
                    self.skipped |= report.skip.is_some();
                    let extent = call.parts[part].entry.extent;
                    let early = at.exits_early(in_flight.steps, call.model.blocks, extent, report);
                    call.model.metrics.on_leaving(early, report.skip.is_some());
                    let ended = progress.ended && !call.model.continues(in_flight.block, in_flight.steps);
                    record_progress(call, part, report.ended, MemberProgress { ended, ..progress });
                }
                if all_failed {
                    self.ended.clear();
                    return Outcome::Failed;
                }
                Outcome::Ok
            }
            Err(text) => {
                for &slot in members {
                    let (call, part) = complete_member(slot, times, jobs);
                    let first = record_failure(call, part, text.clone());
                    call.lost = call.lost.or(times.lost.filter(|_| first));
                    if first && members.len() == 1 && times.lost.is_none() {
                        self.failed_alone.push(FailedMember { slot, did_not_run: false });
                    }
                }
                Outcome::Failed
            }
        }
    }

    /// Returns for each member of the last completed task whether the request ended in a way that
    /// the core cannot foresee. Empty if none did.
    pub(crate) fn ended(&self) -> &[bool] {
        if self.ended.contains(&true) { &self.ended } else { &[] }
    }

    /// Returns the next block of each member of the last completed task. Empty if no member skips a
    /// block.
    pub(crate) fn skips(&self) -> &[BlockId] {
        if self.skipped { &self.skips } else { &[] }
    }

    /// Members of the last completed task that failed alone, each once.
    pub(crate) fn failed_alone(&self) -> &[FailedMember] {
        &self.failed_alone
    }

    /// Stores an unused member list for reuse.
    pub(crate) fn recycle(&mut self, mut members: Vec<RequestSlot>) {
        members.clear();
        self.spare.push(members);
    }
}

/// Execution time and size of a task.
struct TaskTimes {
    started: Time,
    execution: Nanos,
    rows: usize,
    completion: u64,
    /// Set if the task failed because an engine process was missing or ended.
    lost: Option<Loss>,
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

/// Counts the task's elements: elements of the requests' own lengths, and padding.
fn count_elements(in_flight: &InFlight, jobs: &mut JobTable) {
    let useful = |&slot: &RequestSlot| {
        let part = jobs.part(slot);
        part.rows as u64 * u64::from(part.entry.extent.length)
    };
    let useful: u64 = in_flight.members.iter().map(useful).sum();
    let (_, call, _) = jobs.owner(in_flight.members[0]);
    if call.model.has_lengths {
        let padding = in_flight.rows as u64 * u64::from(in_flight.length) - useful;
        call.model.metrics.on_elements(useful, padding);
    }
}

/// Counts one request part fewer as waiting.
pub(crate) fn stop_waiting(model: &ModelEntry) {
    model.metrics.waiting.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
}

/// Counts wasted and padding rows. Must run before the task's results are recorded, because a
/// result marks its request as ended.
fn count_lost(in_flight: &InFlight, jobs: &mut JobTable) {
    let (mut wasted, mut padding) = (0, 0);
    for (at, &slot) in in_flight.members.iter().enumerate() {
        let (_, call, part) = jobs.owner(slot);
        let part = &call.parts[part];
        let over = part.result.is_some() || (part.end_reported && in_flight.steps.ends_by_report());
        if call.answerer.is_none() || over {
            wasted += part.rows;
        } else if in_flight
            .nodes
            .get(at)
            .is_some_and(|&node| part.entry.extent.skips_step(in_flight.steps, node, false))
        {
            padding += part.rows;
        }
    }
    if wasted + padding > 0 {
        let (_, call, _) = jobs.owner(in_flight.members[0]);
        call.model.metrics.on_lost_rows(wasted, padding);
    }
}

/// Records that a task with the part in `slot` has ended.
fn complete_member<'a>(slot: RequestSlot, times: &TaskTimes, jobs: &'a mut JobTable) -> (&'a mut LiveJob, usize) {
    let (_, call, at) = jobs.owner(slot);
    let part = &mut call.parts[at];
    part.in_flight -= 1;
    // Counts a task once, even if the task held several nodes of the part.
    if std::mem::replace(&mut part.last_completion, times.completion) != times.completion && part.result.is_none() {
        part.executed += times.execution;
        part.batch = times.rows;
    }
    if part.started.is_none() {
        part.started = Some(times.started);
        call.model.metrics.on_first_start(times.started - call.arrived, call.deadline - times.started);
    }
    (call, at)
}

/// Records that a task failed on a part. Returns whether the part had no result before.
fn record_failure(call: &mut LiveJob, at: usize, text: String) -> bool {
    let news = call.parts[at].result.is_none();
    call.parts[at].result.get_or_insert(Err(text));
    news
}

/// Records a task's progress on a part and delivers the step to the client.
fn record_progress(call: &mut LiveJob, at: usize, over: bool, progress: MemberProgress) {
    let MemberProgress { ended, outputs, step, .. } = progress;
    let part = &mut call.parts[at];
    if let Some(answerer) = call.answerer.as_mut().filter(|_| !step.is_empty()) {
        answerer.step(StreamedStep { outputs: step, last: ended || over });
        part.streamed = true;
    }
    part.end_reported |= over;
    if ended && part.result.is_none() {
        part.result = Some(Ok(outputs));
        call.done += 1;
    }
}

/// Records that a task with the part in `slot` was stopped. The part runs again from its first
/// block.
fn reset_part(slot: RequestSlot, jobs: &mut JobTable) {
    let part = jobs.part(slot);
    part.in_flight -= 1;
    part.known_on.clear();
    part.device = None;
}
