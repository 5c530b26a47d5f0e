//! The devices and the tasks that they hold.
//!
//! A lane of a device runs its tasks in the order of their starts, and a policy may queue several ahead, so that the lane goes
//! from one to the next without waiting for a decision. What that means for a request whose end is found while further
//! steps of it are queued: it is answered at once, its steps still run, report nothing, and count as waste.
//!
//! A device that goes is let go of here at once, with all that it held; what it still reports is not heard any more.

use crate::coverage::Coverage;
use crate::devices::{DeviceTable, Shared};
use crate::hangs::{HangBound, Hangs};
use crate::jobs::{Call, JobTable, Stage};
use crate::metrics::DeviceMetrics;
use crate::seats::Seats;
use crate::{Clock, Step, admission::ModelEntry};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_executor::{Again, Loss, Member, Progress, Task, TaskResult};
use ripieno_model::{Block, Due, Job, Position, StepReport, Steps};
use ripieno_sched::{Limits, Outcome, Ran};
use std::collections::HashMap;
use std::sync::Arc;

/// What a scheduler decided to start.
pub(crate) struct Start<'a> {
    pub(crate) task: TaskId,
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    /// What is known of the block.
    pub(crate) spec: &'a Block,
    pub(crate) device: DeviceId,
    /// The device's latency relative to the profiles.
    pub(crate) percent: u32,
    pub(crate) lane: LaneId,
    /// What the members are padded to.
    pub(crate) length: u32,
    pub(crate) not_before: Time,
    pub(crate) members: &'a [RequestSlot],
    /// Which node each runs, or nothing if each runs its first step.
    pub(crate) nodes: &'a [u32],
}

/// Dispatches tasks and takes in their results.
pub(crate) struct Fleet {
    clock: Clock,
    pub(crate) seats: Seats,
    pub(crate) hangs: Hangs,
    /// Tasks that were started on a device that had gone.
    pub(crate) orphans: Vec<TaskId>,
    /// Tasks started so far.
    starts: u64,
    pub(crate) metrics: Arc<[DeviceMetrics]>,
    flying: HashMap<TaskId, InFlight>,
    /// Lanes of each device.
    lanes: usize,
    /// When the last task of each lane ended, device by device.
    idle_since: Vec<Time>,
    /// By device, when its tasks should end that share it; none where it has one lane.
    shared: Vec<Due>,
    /// Of each device.
    coverage: Vec<Coverage>,
    /// Results taken in so far.
    landings: u64,
    /// Member lists of ended tasks, to be filled again.
    spare: Vec<Vec<RequestSlot>>,
    /// Lists of nodes, likewise.
    spare_nodes: Vec<Vec<u32>>,
    /// Per member of the task that ended last, whether its walk ended.
    ended: Vec<bool>,
    /// Per member of the task that ended last, the block that it goes on with.
    skips: Vec<BlockId>,
    /// Whether one of them goes on with a later block than the next one.
    skipped: bool,
    /// Who the engine failed on alone in the task that ended last.
    culprits: Vec<RequestSlot>,
}

/// A task that was lost with its device, as the core is to be told.
pub(crate) struct LostTask {
    pub(crate) task: TaskId,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
}

struct InFlight {
    /// Which start it was.
    number: u64,
    model: ModelId,
    block: BlockId,
    steps: Steps,
    device: DeviceId,
    lane: LaneId,
    not_before: Time,
    /// How long it takes on its device according to its profile.
    latency: Nanos,
    members: Vec<RequestSlot>,
    nodes: Vec<u32>,
    rows: usize,
    /// What its members are padded to; 1 where requests do not differ in length.
    length: u32,
    cancelled: bool,
}

/// A task that has ended, as the core is to be told.
pub(crate) struct EndedTask {
    pub(crate) task: TaskId,
    pub(crate) outcome: Outcome,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
    /// When it would have ended, had it taken as long as its profile says.
    pub(crate) expected: Time,
    /// Whether the batch failed and was run again in parts.
    pub(crate) again: bool,
    /// If it failed for want of a process.
    pub(crate) lost: Option<Loss>,
    /// What ran.
    pub(crate) ran: Ran,
}

impl Fleet {
    pub(crate) fn new(
        clock: Clock,
        table: Arc<DeviceTable>,
        metrics: Arc<[DeviceMetrics]>,
        limits: &Limits,
        bound: HangBound,
    ) -> Fleet {
        let ids = limits.devices;
        Fleet {
            clock,
            lanes: limits.lanes,
            idle_since: vec![Time::ORIGIN; ids * limits.lanes],
            shared: (0..ids).filter(|_| limits.lanes > 1).map(|_| Due::new(limits.lanes)).collect(),
            coverage: (0..ids).map(|_| Coverage::new(limits.lanes)).collect(),
            hangs: Hangs::new(bound, ids * limits.lanes, limits.depth),
            seats: Seats::new(table, ids),
            orphans: Vec::new(),
            starts: 0,
            metrics,
            flying: HashMap::with_capacity(limits.tasks()),
            landings: 0,
            spare: Vec::with_capacity(limits.tasks()),
            spare_nodes: Vec::with_capacity(limits.tasks()),
            ended: Vec::with_capacity(limits.batch),
            skips: Vec::with_capacity(limits.batch),
            skipped: false,
            culprits: Vec::with_capacity(limits.batch),
        }
    }

    /// A device serves from now on.
    pub(crate) fn join(&mut self, now: Time, id: DeviceId, device: Shared) {
        self.seats.join(id, device);
        self.idle_since[id.index() * self.lanes..][..self.lanes].fill(now);
        if let Some(due) = self.shared.get_mut(id.index()) {
            *due = Due::new(self.lanes);
        }
    }

    /// Gives a device up with all that it holds, in the order of the starts. If it ends after all it comes `again`.
    pub(crate) fn lose(&mut self, id: DeviceId, again: bool) -> Vec<LostTask> {
        let device = self.seats.lose(id, again);
        let tasks = self.take_lost(|_, flying| flying.device == id);
        // What has not begun never will.
        tasks.iter().for_each(|lost| device.cancel(lost.task));
        (0..self.lanes).for_each(|lane| self.hangs.clear(id.index() * self.lanes + lane));
        tasks
    }

    /// The tasks that were started on a device that had gone.
    pub(crate) fn take_orphans(&mut self) -> Vec<LostTask> {
        let orphans = std::mem::take(&mut self.orphans);
        self.take_lost(|task, _| orphans.contains(&task))
    }

    fn take_lost(&mut self, is_lost: impl Fn(TaskId, &InFlight) -> bool) -> Vec<LostTask> {
        let mut lost: Vec<(TaskId, InFlight)> = self.flying.extract_if(|&task, flying| is_lost(task, flying)).collect();
        lost.sort_unstable_by_key(|(_, flying)| flying.number);
        lost.into_iter().map(|(task, InFlight { members, model, .. })| LostTask { task, members, model }).collect()
    }

    /// A device that does not end its task.
    pub(crate) fn hung(&mut self, now: Time) -> Option<DeviceId> {
        self.hangs.hung(now).map(|lane| DeviceId((lane / self.lanes) as u16))
    }

    /// Sends a batch to its device.
    pub(crate) fn start(&mut self, now: Time, start: &Start<'_>, jobs: &mut JobTable) {
        let node = |at| start.nodes.get(at).copied().unwrap_or(0);
        let members = start
            .members
            .iter()
            .enumerate()
            .map(|(at, &slot)| prepare_member(slot, node(at), start, &self.clock, jobs));
        let members: Vec<Member> = members.collect();
        let rows = members.iter().map(|member| member.rows).sum();
        let length = start.length;
        let latency = start.spec.cost(rows, length).scale(u64::from(start.percent), 100);
        if let Some(due) = self.shared.get_mut(start.device.index()) {
            let (earliest, share) = (now.max(start.not_before), start.spec.share(rows, length));
            due.start(now, start.lane, Job { task: start.task, earliest, alone: latency, share });
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(start.members);
        let mut nodes = self.spare_nodes.pop().unwrap_or_default();
        nodes.extend_from_slice(start.nodes);
        self.starts += 1;
        let flying = InFlight {
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
        let before = self.flying.insert(start.task, flying);
        assert!(before.is_none(), "task {} is in flight already", start.task.0);
        let not_before = self.clock.instant(start.not_before);
        let Start { task: id, model, block, lane, device, .. } = *start;
        if !self.seats.submit(device, Task { id, model, block, lane, length, members, not_before }) {
            // A policy may go on with a batch whose device has left and is gone meanwhile.
            return self.orphans.push(id);
        }
        let (_, call, _) = jobs.owner(start.members[0]);
        let timed = (!call.model.supervised).then_some(latency);
        self.hangs.start(now, device.index() * self.lanes + lane.index(), id, start.not_before, timed);
    }

    /// Asks the device to stop a task, whose result is then discarded, whatever it is. A device that cannot stop reports
    /// the task when it is done.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        let flying = self.flying.get_mut(&id).expect("only a task in flight can be cancelled");
        assert!(!std::mem::replace(&mut flying.cancelled, true), "task {} was cancelled twice", id.0);
        if let Some(device) = self.seats.get(flying.device) {
            device.cancel(id);
        }
    }

    /// Takes in a result: outputs or error go to the members, times to the metrics. None if the device was given up before.
    pub(crate) fn land(
        &mut self,
        now: Time,
        from: DeviceId,
        result: TaskResult,
        jobs: &mut JobTable,
    ) -> Option<EndedTask> {
        let TaskResult { id: task, outcome, again, lost, started, finished, holds_next: _ } = result;
        if !self.seats.end(from) {
            return None;
        }
        let flying = self.flying.remove(&task).expect("a device reports each task once");
        assert_eq!(flying.device, from, "a device reports its own tasks");
        self.hangs.end(now, from.index() * self.lanes + flying.lane.index(), task);
        let (started, finished) = (self.clock.time(started), self.clock.time(finished));
        // A task that waited in the lane's queue could not begin before the one ahead of it ended.
        let device = flying.device.index();
        let lane = device * self.lanes + flying.lane.index();
        let idle_since = std::mem::replace(&mut self.idle_since[lane], finished);
        let expected = match self.shared.get_mut(device) {
            Some(due) => due.end(now, task).1,
            None => flying.not_before.max(idle_since) + flying.latency,
        };
        let alone = self.ran_alone(device, flying.lane, started);
        self.landings += 1;
        let times = Times { started, execution: finished - started, rows: flying.rows, landing: self.landings, lost };
        self.metrics[device].on_batch(self.coverage[device].add(started, finished));
        self.ended.clear();
        self.skips.clear();
        self.skipped = false;
        self.culprits.clear();
        let outcome = if flying.cancelled {
            flying.members.iter().for_each(|&slot| forget(slot, jobs));
            Outcome::Cancelled
        } else {
            let (_, call, _) = jobs.owner(flying.members[0]);
            call.model.metrics.on_batch(flying.rows, times.execution);
            if let Some(Again { runs, cause }) = &again {
                call.model.metrics.on_again();
                tracing::debug!(model = call.model.name, runs, %cause, "a batch failed and was run again in parts");
            }
            count_elements(&flying, jobs);
            self.complete_members(&flying, outcome.map_err(|error| error.to_string()), &times, jobs)
        };
        let InFlight { model, block, rows, length, members, mut nodes, .. } = flying;
        nodes.clear();
        self.spare_nodes.push(nodes);
        let ran = Ran { block, rows, length, took: times.execution, alone };
        Some(EndedTask { task, outcome, members, model, expected, again: again.is_some(), lost, ran })
    }

    /// Whether no other lane of the device has worked since `started`. One that holds a task may be at it already.
    fn ran_alone(&self, device: usize, lane: LaneId, started: Time) -> bool {
        let ended = &self.idle_since[device * self.lanes..(device + 1) * self.lanes];
        let others_ended = (0..).zip(ended).all(|(at, &ended)| at == lane.index() || ended <= started);
        let others = || self.flying.values().filter(|other| other.device.index() == device && other.lane != lane);
        others_ended && (self.lanes == 1 || others().next().is_none())
    }

    /// Gives the members what the task did for each.
    fn complete_members(
        &mut self,
        flying: &InFlight,
        outcome: Result<Vec<Progress>, String>,
        times: &Times,
        jobs: &mut JobTable,
    ) -> Outcome {
        let members = &flying.members;
        count_lost(flying, jobs);
        let outcome = outcome.and_then(|progress| match progress.len() == members.len() {
            true => Ok(progress),
            false => Err(format!("the engine reported {} results for {} requests", progress.len(), members.len())),
        });
        match outcome {
            Ok(progress) => {
                let at = Position::before(flying.block);
                let all_failed = progress.iter().all(|progress| progress.failed.is_some());
                for (&slot, progress) in members.iter().zip(progress) {
                    let (call, part) = complete_member(slot, times, jobs);
                    // Where walks unfold, who failed is withdrawn by the driver.
                    let ended = if progress.failed.is_some() { !call.model.unfolds } else { progress.ended };
                    let report = StepReport::heard(ended, progress.skip, flying.steps, call.model.unfolds);
                    self.ended.push(report.ended);
                    self.skips.push(at.next_block(report));
                    if let Some(cause) = progress.failed {
                        if failed(call, part, cause.0) {
                            call.lost = call.lost.or(progress.lost);
                            self.culprits.extend(progress.lost.is_none().then_some(slot));
                        }
                        continue;
                    }
                    self.skipped |= report.skip.is_some();
                    let extent = call.parts[part].entry.extent;
                    let early = at.exits_early(flying.steps, call.model.blocks, extent, report);
                    call.model.metrics.on_leaving(early, report.skip.is_some());
                    progressed(call, part, report.ended, progress);
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
                    let first = failed(call, part, text.clone());
                    call.lost = call.lost.or(times.lost.filter(|_| first));
                    if first && members.len() == 1 && times.lost.is_none() {
                        self.culprits.push(slot);
                    }
                }
                Outcome::Failed
            }
        }
    }

    /// Per member of the task that landed last, whether its walk ended in a way that the core cannot foresee; empty if
    /// none did.
    pub(crate) fn ended(&self) -> &[bool] {
        if self.ended.contains(&true) { &self.ended } else { &[] }
    }

    /// Per member of the task that landed last, the block that it goes on with; empty if none skips any.
    pub(crate) fn skips(&self) -> &[BlockId] {
        if self.skipped { &self.skips } else { &[] }
    }

    /// Who the engine failed on alone in the task that landed last, each once.
    pub(crate) fn culprits(&self) -> &[RequestSlot] {
        &self.culprits
    }

    /// Gives back a member list.
    pub(crate) fn recycle(&mut self, mut members: Vec<RequestSlot>) {
        members.clear();
        self.spare.push(members);
    }
}

/// When a task ran and how large it was.
struct Times {
    started: Time,
    execution: Nanos,
    rows: usize,
    landing: u64,
    /// If the task failed for want of a process.
    lost: Option<Loss>,
}

/// The member of a task for the part in `slot`.
fn prepare_member(slot: RequestSlot, node: u32, start: &Start<'_>, clock: &Clock, jobs: &mut JobTable) -> Member {
    let (_, call, part) = jobs.owner(slot);
    let (model, until, part) = (&call.model, clock.instant(call.expires), &mut call.parts[part]);
    assert!(part.stage != Stage::Outside, "a policy started a request that has ended");
    assert!(model.unfolds || part.flying == 0, "a policy started a request that runs");
    let fits = model.unfolds || start.length >= part.entry.extent.length;
    assert!(fits, "a policy padded a request to less than its length");
    if part.stage == Stage::Waiting {
        stop_waiting(model);
    }
    part.stage = Stage::Begun;
    part.flying += 1;
    part.device = Some(start.device);
    // A chain that was given up between two blocks begins anew where its request is known.
    let anew = !model.unfolds && start.block == BlockId(0);
    let entry = (part.introduce(start.device) || anew).then(|| Arc::clone(&part.entry));
    Member { slot, rows: part.rows, node, entry, walk: part.walk, until }
}

/// Counts what a task computed of its requests, and what only filled the shorter ones up.
fn count_elements(flying: &InFlight, jobs: &mut JobTable) {
    let useful = |&slot: &RequestSlot| {
        let part = jobs.part(slot);
        part.rows as u64 * u64::from(part.entry.extent.length)
    };
    let useful: u64 = flying.members.iter().map(useful).sum();
    let (_, call, _) = jobs.owner(flying.members[0]);
    if call.model.has_lengths {
        let padding = flying.rows as u64 * u64::from(flying.length) - useful;
        call.model.metrics.on_elements(useful, padding);
    }
}

/// One part waits no longer.
pub(crate) fn stop_waiting(model: &ModelEntry) {
    model.metrics.waiting.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
}

/// Counts the rows that nobody needed: they are known before what the task did is noted.
fn count_lost(flying: &InFlight, jobs: &mut JobTable) {
    let (mut wasted, mut padding) = (0, 0);
    for (at, &slot) in flying.members.iter().enumerate() {
        let (_, call, part) = jobs.owner(slot);
        let part = &call.parts[part];
        let over = part.result.is_some() || (part.over && flying.steps.ends_by_report());
        if call.answerer.is_none() || over {
            wasted += part.rows;
        } else if flying.nodes.get(at).is_some_and(|&node| part.entry.extent.leaves_out(flying.steps, node, false)) {
            padding += part.rows;
        }
    }
    if wasted + padding > 0 {
        let (_, call, _) = jobs.owner(flying.members[0]);
        call.model.metrics.on_lost_rows(wasted, padding);
    }
}

/// Notes that a task with the part in `slot` has ended.
fn complete_member<'a>(slot: RequestSlot, times: &Times, jobs: &'a mut JobTable) -> (&'a mut Call, usize) {
    let (_, call, at) = jobs.owner(slot);
    let part = &mut call.parts[at];
    part.flying -= 1;
    // Once for a task, however many of its nodes were in it.
    if std::mem::replace(&mut part.landed, times.landing) != times.landing && part.result.is_none() {
        part.executed += times.execution;
        part.batch = times.rows;
    }
    if part.started.is_none() {
        part.started = Some(times.started);
        call.model.metrics.on_first_start(times.started - call.arrived, call.deadline - times.started);
    }
    (call, at)
}

/// Notes that a task failed on a part; whether that is news.
fn failed(call: &mut Call, at: usize, text: String) -> bool {
    let news = call.parts[at].result.is_none();
    call.parts[at].result.get_or_insert(Err(text));
    news
}

/// Notes what a task did for a part, and passes its step on.
fn progressed(call: &mut Call, at: usize, over: bool, progress: Progress) {
    let Progress { ended, outputs, step, .. } = progress;
    let part = &mut call.parts[at];
    if let Some(answerer) = call.answerer.as_mut().filter(|_| !step.is_empty()) {
        answerer.step(Step { outputs: step, last: ended });
        part.streamed = true;
    }
    part.over |= over;
    if ended && part.result.is_none() {
        part.result = Some(Ok(outputs));
        call.done += 1;
    }
}

/// Notes that a task with the part in `slot` was stopped: the part runs again from its first block.
fn forget(slot: RequestSlot, jobs: &mut JobTable) {
    let part = jobs.part(slot);
    part.flying -= 1;
    part.known_on.clear();
    part.device = None;
}
