//! Execution of one batch of a cell: gather, compute, scatter.
//!
//! A device that keeps the state of requests may be given a step while it still runs an earlier one
//! of the same requests: [`launch`] plans the step, and [`settle`] completes it when it has ended.
//! [`execute`] does both, and runs a failed batch again in parts.

use super::walk::CellWalk;
use super::{CellModel, CellOutputs, DeviceStep, Wiring};
use crate::contract::account::{DeviceCounters, LapTimer};
use crate::contract::buffer::AlignedBuffer;
use crate::run::plan::ModelPlan;
use crate::run::rerun::{CompletedTask, RerunTerms, catch_panic, run_in_parts};
use crate::run::rows::{BatchTensor, EngineInput, RowPart};
use crate::run::runner::{BlockCall, CellCall, CellRunner, Runner};
use crate::{ExecError, Loss, MemberProgress, PhaseTimes, Rerun, Task, TaskMember};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Instant;

/// A member of the task with the state of its request.
struct MemberWalk {
    /// Index of the member in the task.
    at: usize,
    walk: Arc<Mutex<CellWalk>>,
    node: u32,
    /// Generation of the member's walk; `None` for padding.
    generation: Option<u64>,
    /// Outputs that the host needs, as bits.
    wanted: u32,
}

impl MemberWalk {
    /// Returns the outputs that the host needs; `None` for padding.
    fn wanted(&self) -> Option<u32> {
        self.generation.map(|_| self.wanted)
    }

    /// Returns the state of the member's request; `None` for padding. A slot holds another walk
    /// only if the caller has given up this one.
    fn state(&self) -> Option<MutexGuard<'_, CellWalk>> {
        let generation = self.generation?;
        Some(self.walk.lock()).filter(|walk| walk.generation == generation)
    }
}

/// Runs a task on a device. No lock on a request's state is held while the cell computes.
///
/// If the engine fails on some members, only their requests end. Their queued steps become padding
/// in tasks that they share with other requests. A panic outside the engine ends the requests of
/// all members.
pub(crate) fn execute(
    plan: &ModelPlan,
    cells: &CellModel,
    runner: &mut Box<dyn Runner>,
    buffers: &mut [AlignedBuffer],
    task: &Task,
    terms: &RerunTerms<'_>,
    account: &DeviceCounters,
) -> Result<CompletedTask, ExecError> {
    let mut guard = AbandonOnDrop { cells, task, failed: true };
    let (progress, rerun) = run(plan, cells, runner, buffers, task, terms, account)?;
    guard.failed = false;
    complete(cells, task, progress, rerun)
}

/// Ends the requests of members that failed alone. Returns the result of the task.
fn complete(
    cells: &CellModel,
    task: &Task,
    mut progress: Vec<MemberProgress>,
    rerun: Option<Rerun>,
) -> Result<CompletedTask, ExecError> {
    for (member, progress) in task.members.iter().zip(&mut progress) {
        if progress.failed.is_some() {
            progress.lost = abandon(cells, member);
        }
    }
    CompletedTask::of(progress, rerun)
}

/// A task whose step a device runs.
pub(crate) struct StepInFlight {
    walks: Vec<MemberWalk>,
    /// Errors of members that the step does not run.
    failures: Vec<Option<ExecError>>,
    step: DeviceStep,
    /// Time that the launch took.
    gather_ns: u64,
    launched: Instant,
    /// Time at which the device began the step.
    started: Instant,
}

/// Launches a task's step and plans it. Fewer steps than the runner's depth must be in flight, all
/// of this model. An error has changed nothing: the task may be executed when none is in flight.
pub(crate) fn launch(
    plan: &ModelPlan,
    cells: &CellModel,
    runner: &mut dyn CellRunner,
    task: &Task,
) -> Result<StepInFlight, ExecError> {
    let (block, wiring) = (task.block.index(), &cells.wiring);
    check_rows(plan, task)?;
    let mut watch = LapTimer::start();
    let mut failures = vec![None; task.members.len()];
    let (walks, parts) = gather_members(wiring, cells, task, &mut failures);
    if walks.is_empty() {
        return Err(ExecError("no member of the batch can run".to_owned()));
    }
    let wanted: Vec<Option<u32>> = walks.iter().map(MemberWalk::wanted).collect();
    let step = runner.launch(&CellCall { block, inputs: &parts, wanted: &wanted })?;
    let planned = catch_panic(|| {
        for (row, member) in walks.iter().enumerate() {
            if let Some(mut walk) = member.state() {
                walk.plan(wiring, block, member.node, &|output| step.row(output, row));
            }
        }
        Ok(())
    });
    if let Err(cause) = planned {
        // The step runs all the same.
        walks.iter().for_each(|member| failures[member.at] = Some(cause.clone()));
    }
    let (gather_ns, launched) = (watch.lap_ns(), Instant::now());
    Ok(StepInFlight { walks, failures, step, gather_ns, launched, started: launched })
}

impl StepInFlight {
    /// Returns the time at which the step was launched.
    pub(crate) fn launched(&self) -> Instant {
        self.launched
    }

    /// Sets the time at which the device began the step.
    pub(crate) fn begun(self, started: Instant) -> StepInFlight {
        StepInFlight { started, ..self }
    }
}

/// Waits for the end of a task's step, which is the oldest in flight, and settles it. An error of
/// the device ends the requests of all members.
pub(crate) fn settle(
    cells: &CellModel,
    runner: &mut dyn CellRunner,
    task: &Task,
    in_flight: StepInFlight,
    account: &DeviceCounters,
) -> Result<CompletedTask, ExecError> {
    let mut guard = AbandonOnDrop { cells, task, failed: true };
    let StepInFlight { walks, failures, step, gather_ns, started, .. } = in_flight;
    let (block, wiring) = (task.block.index(), &cells.wiring);
    let wanted: Vec<Option<u32>> = walks.iter().map(MemberWalk::wanted).collect();
    let moved = step.rows_moved;
    let outputs = CellOutputs::Device(catch_panic(|| runner.settle(step, &wanted))?);
    // The lane has waited for the end already, and may have launched others meanwhile.
    let compute_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut watch = LapTimer::start();
    let mut progress = vec![MemberProgress::default(); task.members.len()];
    for (row, member) in walks.iter().enumerate() {
        progress[member.at] = settle_member(wiring, block, member, &outputs, row);
    }
    let failed = progress.iter_mut().zip(failures).filter_map(|(progress, cause)| Some((progress, cause?)));
    failed.for_each(|(progress, cause)| *progress = MemberProgress::failed(cause));
    account.count(moved, moved == 0 && reads_state(wiring, block));
    account.add_times(PhaseTimes { gather_ns, compute_ns, scatter_ns: watch.lap_ns() });
    guard.failed = false;
    complete(cells, task, progress, None)
}

/// Ends the requests of all members on drop, unless the task has completed.
struct AbandonOnDrop<'a> {
    cells: &'a CellModel,
    task: &'a Task,
    failed: bool,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        for member in self.task.members.iter().filter(|_| self.failed) {
            abandon(self.cells, member);
        }
    }
}

/// Ends the walk of a member that failed. Returns its loss, if its state was in a process that has
/// ended.
fn abandon(cells: &CellModel, member: &TaskMember) -> Option<Loss> {
    let slot = cells.arena.slot(member.slot.index());
    let mut walk = slot.lock();
    let lost = walk.loss(member);
    walk.abandon(member);
    lost
}

fn run(
    plan: &ModelPlan,
    cells: &CellModel,
    runner: &mut Box<dyn Runner>,
    buffers: &mut [AlignedBuffer],
    task: &Task,
    terms: &RerunTerms<'_>,
    account: &DeviceCounters,
) -> Result<(Vec<MemberProgress>, Option<Rerun>), ExecError> {
    let (block, wiring) = (task.block.index(), &cells.wiring);
    check_rows(plan, task)?;
    let mut watch = LapTimer::start();
    let mut failures = vec![None; task.members.len()];
    let (walks, mut parts) = gather_members(wiring, cells, task, &mut failures);
    let mut progress = vec![MemberProgress::default(); task.members.len()];
    let mut spent = PhaseTimes::default();
    let all: Vec<usize> = (0..walks.len()).collect();
    let until = |index: usize| (terms.until)(walks[index].at);
    let terms = RerunTerms { until: &until, ..*terms };
    let mut walk_failures = vec![None; walks.len()];
    let batches = if all.is_empty() { Vec::new() } else { vec![all] };
    let rerun = run_in_parts(batches, &mut walk_failures, &terms, &mut |part, ready| {
        // Padding members run in the whole batch only, not in its re-runs.
        let whole = part.len() == walks.len();
        let part: Vec<usize> =
            part.iter().copied().filter(|&index| whole || walks[index].generation.is_some()).collect();
        if part.is_empty() {
            return Ok(());
        }
        let rows = part.len().max(runner.min_rows());
        let of_part;
        let parts = match whole {
            true => {
                parts.iter_mut().for_each(|parts| parts.resize_with(rows, || RowPart::Any));
                &parts
            }
            false => {
                of_part = parts.iter().map(|parts| select_parts(parts, &part, rows)).collect::<Vec<_>>();
                &of_part
            }
        };
        let wanted: Vec<Option<u32>> = part.iter().map(|&index| walks[index].wanted()).collect();
        let batch = CellBatch { plan, wiring, block, ready, parts, wanted: &wanted, account };
        let outputs = batch.compute(runner, buffers, &mut watch, &mut spent)?;
        for (row, &index) in part.iter().enumerate() {
            if let Some(mut walk) = walks[index].state() {
                walk.plan(wiring, block, walks[index].node, &|output| outputs.row(output, row));
            }
            progress[walks[index].at] = settle_member(wiring, block, &walks[index], &outputs, row);
        }
        spent.scatter_ns += watch.lap_ns();
        Ok(())
    })?;
    // Padding has no request to which a failure could be reported.
    let by_walk = walks.iter().zip(walk_failures).filter(|(member_walk, _)| member_walk.generation.is_some());
    by_walk.for_each(|(member_walk, cause)| failures[member_walk.at] = cause);
    let failed = progress.iter_mut().zip(failures).filter_map(|(progress, cause)| Some((progress, cause?)));
    failed.for_each(|(progress, cause)| *progress = MemberProgress::failed(cause));
    account.add_times(spent);
    Ok((progress, rerun))
}

/// One batch of a cell.
struct CellBatch<'a> {
    plan: &'a ModelPlan,
    wiring: &'a Wiring,
    block: usize,
    ready: Instant,
    /// Rows of each input.
    parts: &'a [Vec<RowPart<'a>>],
    /// Outputs of each member that the host needs, as bits; `None` for padding.
    wanted: &'a [Option<u32>],
    account: &'a DeviceCounters,
}

impl CellBatch<'_> {
    /// Runs the batch on the engine's device, or in the host's memory.
    fn compute(
        &self,
        runner: &mut Box<dyn Runner>,
        buffers: &mut [AlignedBuffer],
        watch: &mut LapTimer,
        spent: &mut PhaseTimes,
    ) -> Result<CellOutputs, ExecError> {
        let CellBatch { plan, wiring, block, ready, parts, wanted, account } = *self;
        if let Some(device) = runner.on_device() {
            let call = CellCall { block, inputs: parts, wanted };
            let step = device.launch(&call)?;
            let moved = step.rows_moved;
            spent.gather_ns += watch.lap_ns();
            let outputs = catch_panic(|| device.settle(step, wanted));
            spent.compute_ns += watch.lap_ns();
            account.count(moved, moved == 0 && reads_state(wiring, block));
            return outputs.map(CellOutputs::Device);
        }
        let rows = wanted.len().max(runner.min_rows());
        let (inputs, moved) = assemble(wiring, block, parts, buffers, wanted.len())?;
        spent.gather_ns += watch.lap_ns();
        let outputs = catch_panic(|| {
            runner.run(&BlockCall {
                block,
                rows,
                length: 1,
                ready,
                inputs: &inputs,
                sent: None,
                outputs_may_follow: false,
            })
        });
        spent.compute_ns += watch.lap_ns();
        account.count(moved.unwrap_or(0), moved == Some(0));
        Ok(CellOutputs::Host(check_outputs(plan, block, outputs?, rows)?))
    }
}

/// Makes the members' rows of each input contiguous. Also returns the number of copied rows of
/// state; `None` if the cell takes none.
fn assemble<'a>(
    wiring: &'a Wiring,
    block: usize,
    parts: &'a [Vec<RowPart<'a>>],
    buffers: &'a mut [AlignedBuffer],
    members: usize,
) -> Result<(Vec<EngineInput<'a>>, Option<usize>), ExecError> {
    let mut inputs = Vec::with_capacity(parts.len());
    let mut moved = None;
    for ((feed, parts), buffer) in wiring.cells[block].feeds.iter().zip(parts).zip(buffers) {
        let (input, gathered) = EngineInput::assemble(&feed.name, feed.datatype, &feed.row_shape, parts, buffer)?;
        if !feed.from.is_from_request() {
            *moved.get_or_insert(0) += gathered.min(members);
        }
        inputs.push(input);
    }
    Ok((inputs, moved))
}

fn check_rows(plan: &ModelPlan, task: &Task) -> Result<(), ExecError> {
    let rows = task.members.iter().map(|member| member.rows).find(|&rows| rows != 1);
    rows.map_or(Ok(()), |rows| {
        Err(ExecError(format!("a member of model '{}' has {rows} rows; a walk of cells has one", plan.name)))
    })
}

/// Returns these members' rows of an input, padded to `rows` rows.
fn select_parts<'w>(parts: &[RowPart<'w>], walks: &[usize], rows: usize) -> Vec<RowPart<'w>> {
    let own = walks.iter().map(|&index| parts[index].clone());
    own.chain(std::iter::repeat_with(|| RowPart::Any)).take(rows).collect()
}

/// Collects the members' states, and their row of each input of the cell. A member without a usable
/// state is omitted, and its error is stored in `failures`.
fn gather_members<'w>(
    wiring: &'w Wiring,
    cells: &CellModel,
    task: &Task,
    failures: &mut [Option<ExecError>],
) -> (Vec<MemberWalk>, Vec<Vec<RowPart<'w>>>) {
    let block = task.block.index();
    let count = wiring.cells[block].feeds.len();
    let mut walks = Vec::with_capacity(task.members.len());
    let mut parts: Vec<Vec<RowPart<'w>>> = (0..count).map(|_| Vec::with_capacity(task.members.len())).collect();
    let slots = cells.arena.slots(task.members.iter().map(|member| member.slot.index()));
    for ((at, member), walk) in task.members.iter().enumerate().zip(slots) {
        match enter_walk(wiring, block, &walk, member, &mut parts) {
            Ok((generation, wanted)) => walks.push(MemberWalk { at, walk, node: member.node, generation, wanted }),
            Err(cause) => {
                parts.iter_mut().for_each(|parts| parts.truncate(walks.len()));
                failures[at] = Some(cause);
            }
        }
    }
    (walks, parts)
}

/// Adds a member's row of each input of the cell. Returns the generation of its walk, `None` for
/// padding, and the outputs that the host needs, as bits.
fn enter_walk<'w>(
    wiring: &'w Wiring,
    block: usize,
    walk: &Mutex<CellWalk>,
    member: &TaskMember,
    parts: &mut [Vec<RowPart<'w>>],
) -> Result<(Option<u64>, u32), ExecError> {
    let mut walk = walk.lock();
    walk.enter(wiring, member)?;
    if walk.is_padding(wiring, block, member.node) {
        parts.iter_mut().for_each(|parts| parts.push(RowPart::Any));
        return Ok((None, 0));
    }
    walk.check(wiring, block, member.node)?;
    for (input, parts) in parts.iter_mut().enumerate() {
        let part = walk.part(wiring, block, input, member.node)?;
        if let RowPart::Device(row) = &part
            && row.held.store.loss().is_some()
        {
            return Err(ExecError("the process that had the request's state has ended".to_owned()));
        }
        parts.push(part);
    }
    Ok((Some(walk.generation), walk.wanted(wiring, block, member.node)))
}

fn check_outputs(
    plan: &ModelPlan,
    block: usize,
    outputs: Vec<BatchTensor>,
    rows: usize,
) -> Result<Vec<Arc<BatchTensor>>, ExecError> {
    let values = &plan.blocks[block].outputs;
    let check = |(batch, &value): (BatchTensor, &usize)| match batch.rows() == rows {
        true => Ok(Arc::new(batch)),
        false => Err(ExecError(format!(
            "output '{}' of model '{}' has {} rows for a batch of {rows}: its first dimension must be the batch",
            plan.values[value].name,
            plan.name,
            batch.rows()
        ))),
    };
    outputs.into_iter().zip(values).map(check).collect()
}

/// Whether a cell reads what other steps have left.
fn reads_state(wiring: &Wiring, block: usize) -> bool {
    wiring.cells[block].feeds.iter().any(|feed| !feed.from.is_from_request())
}

fn settle_member(
    wiring: &Wiring,
    block: usize,
    member: &MemberWalk,
    outputs: &CellOutputs,
    row: usize,
) -> MemberProgress {
    let Some(mut walk) = member.state() else { return MemberProgress::default() };
    let settled = match outputs.failure(row) {
        // Beyond the end of the walk, a step computes values that no answer holds.
        Some(_) if walk.is_padding(wiring, block, member.node) => Ok(MemberProgress::default()),
        Some(cause) => Err(cause),
        None => walk.settle(wiring, block, member.node, &|output| outputs.row(output, row)),
    };
    settled.unwrap_or_else(MemberProgress::failed)
}
