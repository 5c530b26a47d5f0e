//! A task of a whole model or a chain in three steps: prepare, run, finish.
//!
//! [`prepare`] takes the members' states, pads them and gathers the first batch. It needs no
//! engine. [`PreparedTask::run`] computes, and runs a failed batch again in parts.
//! [`RanTask::finish`] gives each member its progress, and stores the states of those that
//! continue.

use crate::contract::account::{DeviceCounters, LapTimer};
use crate::run::attached::Attached;
use crate::run::chain_state::{ChainState, ChainWalk, Values, WalkSlots};
use crate::run::gather::{GatheredBatch, LaneModel};
use crate::run::plan::ModelPlan;
use crate::run::rerun::{CompletedTask, RerunTerms, catch_panic, run_in_parts};
use crate::run::rows::{BatchTensor, Rows};
use crate::run::runner::{BlockOutputs, ComingOutputs};
use crate::{
    BlockDecision, ExecError, Loss, MemberProgress, PhaseTimes, RequestEntry, Rerun, Task, TaskMember, Tensor,
};
use ripieno_base::{BlockId, RequestSlot};
use ripieno_model::{Extent, Onward, Position, StepReport, Steps, TensorSpec, padded_size};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The members of a task and their states while the task is executed.
struct Members {
    /// The reason for which a member has no state, or failed.
    failures: Vec<Option<ExecError>>,
    states: Vec<Option<ChainState>>,
}

/// A task that can run.
pub(crate) struct PreparedTask {
    model: LaneModel,
    members: Members,
    /// Members of each batch. Usually there is one batch.
    batches: Vec<Vec<usize>>,
    /// The first batch; `None` if it is gathered when it runs.
    gathered: Option<GatheredBatch>,
    watch: LapTimer,
    spent: PhaseTimes,
}

/// A task that has run.
pub(crate) struct RanTask {
    model: LaneModel,
    members: Members,
    /// Members of the batch whose outputs are yet to come, and these outputs.
    coming: Option<(Vec<usize>, Box<dyn ComingOutputs>)>,
    rerun: Option<Rerun>,
    watch: LapTimer,
    spent: PhaseTimes,
}

/// Prepares a task. A later block takes the states that earlier tasks of its lane have stored; a
/// first block reads no slot.
pub(crate) fn prepare(model: &LaneModel, task: &Task, slots: &WalkSlots) -> Result<PreparedTask, ExecError> {
    let plan = &*model.plan;
    let block = check_task(plan, task)?;
    let watch = LapTimer::start();
    let mut failures = vec![None; task.members.len()];
    let mut states = states(plan, task, slots, model.attachment, &mut failures);
    pad(plan, task, &mut states, &mut failures);
    let batches = batches(plan, block, &states);
    let first = batches.first().map(|part| {
        let alone = runs_alone(plan, part, &states);
        GatheredBatch::gather(plan, &model.buffers, block, &of_part(part, &states), alone)
    });
    // A batch that cannot be gathered fails when it runs.
    let gathered = first.and_then(Result::ok);
    let (members, spent) = (Members { failures, states }, PhaseTimes::default());
    Ok(PreparedTask { model: model.clone(), members, batches, gathered, watch, spent })
}

/// The engine's part of a task: the model on it, and the terms of the run.
pub(crate) struct TaskRun<'a> {
    pub(crate) attached: &'a mut Attached,
    pub(crate) slots: &'a WalkSlots,
    pub(crate) account: &'a DeviceCounters,
    /// Earliest possible start.
    pub(crate) ready: Instant,
    /// Whether the task was stopped.
    pub(crate) stopped: &'a dyn Fn() -> bool,
}

impl PreparedTask {
    /// Sends the gathered batch to the engine while another one runs.
    pub(crate) fn send_ahead(&mut self) {
        if let Some(batch) = &mut self.gathered {
            batch.send_ahead(&self.model);
        }
    }

    /// Ends the time of gathering, until the task runs.
    pub(crate) fn paused(mut self) -> PreparedTask {
        self.spent.gather_ns = self.watch.lap_ns();
        self
    }

    /// Returns the task if it was prepared for this attachment. The time since its preparation does
    /// not count.
    pub(crate) fn resumed(mut self, attachment: u64) -> Option<PreparedTask> {
        self.watch = LapTimer::start();
        Some(self).filter(|prepared| prepared.model.attachment == attachment)
    }

    /// Runs the task's batches. A batch that fails is run again in parts, unless the task was
    /// stopped; see [`rerun`](crate::run::rerun).
    pub(crate) fn run(self, task: &Task, run: TaskRun<'_>) -> Result<RanTask, ExecError> {
        let PreparedTask { model, mut members, batches, mut gathered, mut watch, mut spent } = self;
        let TaskRun { attached, slots, account, ready, stopped } = run;
        if task.block == BlockId(0) {
            slots.begin(task.members.iter().map(|member| member.slot));
        }
        let alone = || model.plan.sharing.is_stopped();
        let terms = RerunTerms { ready, until: &|at| task.members[at].until, stopped, alone: &alone };
        let Members { failures, states } = &mut members;
        let plan = Arc::clone(&model.plan);
        let is_last = task.block.index() + 1 == plan.blocks.len();
        // Parts of a batch that has failed bring their outputs one after the other.
        let whole = if batches.len() == 1 { batches[0].len() } else { usize::MAX };
        let may_follow = is_last && attached.uses_second_thread && !plan.sharing.is_watched();
        let mut coming = None;
        let rerun = run_in_parts(batches, failures, &terms, &mut |part, ready| {
            let was_alone = runs_alone(&model.plan, part, states);
            let mut attempt = |alone: bool| {
                let at_hand = gathered.take().filter(|batch| batch.alone == alone);
                let may_follow = may_follow && !alone && part.len() == whole;
                let batch = PartRun { task, model: &model, part, at_hand, alone, may_follow, ready };
                let outputs = batch.run(attached, account, states, (&mut watch, &mut spent))?;
                coming = outputs.map(|outputs| (part.to_vec(), outputs));
                Ok(())
            };
            match attempt(was_alone) {
                // Its own answer has shown that it must run alone, without padding.
                Err(_) if part.len() == 1 && !was_alone && alone() => attempt(true),
                done => done,
            }
        })?;
        // Members that run alone as they must are no failure.
        let rerun = rerun.filter(|_| !alone());
        attached.checks.count_batch(spent.compute_ns);
        Ok(RanTask { model, members, coming, rerun, watch, spent })
    }
}

impl RanTask {
    /// Returns the time that gathering took.
    pub(crate) fn gathered(&self) -> Duration {
        Duration::from_nanos(self.spent.gather_ns)
    }

    /// Whether no block of the model follows, so that no state is stored.
    pub(crate) fn is_last_block(&self, task: &Task) -> bool {
        task.block.index() + 1 == self.model.plan.blocks.len()
    }

    /// Returns the progress of each member. Stores the state of the members that continue. An error
    /// has the loss if the engine's process ended before the outputs had come.
    pub(crate) fn finish(
        self,
        task: &Task,
        slots: &WalkSlots,
        account: &DeviceCounters,
    ) -> Result<CompletedTask, (ExecError, Option<Loss>)> {
        let RanTask { model: LaneModel { plan, attachment, .. }, members, coming, rerun, mut watch, spent } = self;
        let Members { failures, mut states } = members;
        let block = task.block.index();
        if let Some((part, coming)) = coming {
            let outputs = coming.receive()?;
            scatter(&plan, block, task, &part, &mut states, outputs).map_err(|cause| (cause, None))?;
        }
        let each = states.iter().zip(failures).map(|(state, failure)| match (failure, state) {
            (None, Some(state)) => catch_panic(|| progress(&plan, block, state)).unwrap_or_else(MemberProgress::failed),
            (failure, _) => MemberProgress::failed(failure.unwrap_or_else(|| ExecError("it was not run".to_owned()))),
        });
        let each: Vec<MemberProgress> = each.collect();
        let mut slots = slots.lock();
        for ((member, state), progress) in task.members.iter().zip(states).zip(&each) {
            if let Some(mut state) = state.filter(|_| !progress.ended && progress.failed.is_none()) {
                forget(&plan, block, &mut state);
                slots.insert(member.slot, ChainWalk { attachment, state });
            }
        }
        drop(slots);
        account.add_times(PhaseTimes { scatter_ns: watch.lap_ns(), ..spent });
        CompletedTask::of(each, rerun).map_err(|cause| (cause, None))
    }
}

/// Checks the block, the sizes and the length of a task. Returns the block's index.
pub(crate) fn check_task(plan: &ModelPlan, task: &Task) -> Result<usize, ExecError> {
    let block = task.block.index();
    let rows: usize = task.members.iter().map(|member| member.rows).sum();
    if block >= plan.blocks.len() {
        return Err(ExecError(format!(
            "model '{}' has {} blocks, but not block {block}",
            plan.name,
            plan.blocks.len()
        )));
    }
    if task.members.iter().any(|member| member.rows == 0) {
        return Err(ExecError(format!("model '{}': a batch has a member without rows", plan.name)));
    }
    if rows == 0 || rows > plan.max_batch {
        return Err(ExecError(format!(
            "a batch of model '{}' has {rows} rows, but it must have 1 to {}",
            plan.name, plan.max_batch
        )));
    }
    let longest = plan.padding.as_ref().map_or(u32::MAX, |padding| padding.lengths.max);
    if task.length > longest {
        return Err(ExecError(format!(
            "a batch of model '{}' is padded to {}, but it takes at most {longest}",
            plan.name, task.length
        )));
    }
    Ok(block)
}

/// Pads a batch to its task's length before its first block. Later blocks get the padded values,
/// because outputs of blocks cannot be padded. A member longer than the task's length fails.
fn pad(plan: &ModelPlan, task: &Task, walks: &mut [Option<ChainState>], failures: &mut [Option<ExecError>]) {
    if plan.padding.is_none() {
        return;
    }
    for ((place, failure), member) in walks.iter_mut().zip(failures).zip(&task.members) {
        match place {
            Some(state) if state.padded > task.length => {
                *failure = Some(ExecError(format!(
                    "the request in slot {} of model '{}' is {} long, but its batch is padded to {}",
                    member.slot.0, plan.name, state.padded, task.length
                )));
                *place = None;
            }
            Some(state) if task.block == BlockId(0) => state.padded = task.length,
            _ => {}
        }
    }
}

/// Splits a task into batches of equal shapes, as lists of member indices. Usually there is one
/// batch. A scheduler that mixes shapes only loses time.
fn batches(plan: &ModelPlan, block: usize, walks: &[Option<ChainState>]) -> Vec<Vec<usize>> {
    if plan.sharing.is_stopped() {
        return (0..walks.len()).filter(|&at| walks[at].is_some()).map(|at| vec![at]).collect();
    }
    let taken = &plan.blocks[block].inputs;
    let alike = |a: &ChainState, b: &ChainState| {
        let same = |&value: &usize| {
            let axis = plan.padding.as_ref().and_then(|padding| padding.axis(value)).map(|axis| axis.dim - 1);
            match (&a.values[value], &b.values[value]) {
                (Some(a), Some(b)) => same_shape(a.row_shape(), b.row_shape(), axis),
                (a, b) => a.is_none() == b.is_none(),
            }
        };
        let shares = !a.replaces_defaults() && !b.replaces_defaults();
        shares && a.padded == b.padded && taken.iter().all(same)
    };
    let mut batches: Vec<(&ChainState, Vec<usize>)> = Vec::with_capacity(1);
    for (at, state) in walks.iter().enumerate() {
        let Some(state) = state else { continue };
        match batches.iter_mut().find(|(first, _)| alike(first, state)) {
            Some((_, members)) => members.push(at),
            None => batches.push((state, vec![at])),
        }
    }
    batches.into_iter().map(|(_, members)| members).collect()
}

/// Whether members run as one request that shares its batch with no other.
fn runs_alone(plan: &ModelPlan, part: &[usize], states: &[Option<ChainState>]) -> bool {
    plan.sharing.is_stopped() || part.iter().any(|&at| states[at].as_ref().is_some_and(ChainState::replaces_defaults))
}

/// Returns the states of these members.
fn of_part<'a>(part: &[usize], states: &'a [Option<ChainState>]) -> Vec<&'a ChainState> {
    part.iter().filter_map(|&at| states[at].as_ref()).collect()
}

/// Whether two rows have the same shape, ignoring the padded dimension.
fn same_shape(a: &[i64], b: &[i64], padded: Option<usize>) -> bool {
    a.len() == b.len() && a.iter().zip(b).enumerate().all(|(dim, (a, b))| a == b || Some(dim) == padded)
}

/// Returns the state of each member before the task's block. Stores in `failures` why a member has
/// none.
fn states(
    plan: &ModelPlan,
    task: &Task,
    slots: &WalkSlots,
    attachment: u64,
    failures: &mut [Option<ExecError>],
) -> Vec<Option<ChainState>> {
    let mut slots = (task.block.index() > 0).then(|| slots.lock());
    let state = |(member, failure): (&TaskMember, &mut Option<ExecError>)| {
        let state = match &mut slots {
            None => begin(plan, member),
            Some(slots) => resume(plan, slots, member, attachment),
        };
        state.map_err(|cause| *failure = Some(cause)).ok()
    };
    task.members.iter().zip(failures).map(state).collect()
}

/// Creates the state of a request from its entry.
fn begin(plan: &ModelPlan, member: &TaskMember) -> Result<ChainState, ExecError> {
    let mut values: Values = vec![None; plan.values.len()];
    let brought: &[Tensor] = member.entry.as_deref().map_or(&[], RequestEntry::inputs);
    for (spec, &value) in plan.inputs.iter().zip(&plan.input_values) {
        let refuse = |cause: String| ExecError(format!("input '{}' of model '{}': {cause}", spec.name, plan.name));
        let tensor = brought.iter().find(|tensor| *tensor.name == *spec.name);
        let tensor = tensor.ok_or_else(|| refuse("the request lacks it".to_owned()))?;
        let rows = rows_of_input(spec, tensor).map_err(refuse)?;
        if rows.count() != member.rows && !plan.sharing.is_stopped() {
            return Err(refuse(format!("it has {} rows, the request {}", rows.count(), member.rows)));
        }
        values[value] = Some(rows);
    }
    let entry = member.entry.as_ref().filter(|_| plan.padding.is_some());
    let length = entry.map_or(1, |entry| entry.extent.length);
    let ignore_conditions = member.entry.as_ref().is_some_and(|entry| entry.ignore_conditions);
    let optional = plan.optional.iter().map(|spec| {
        let tensor = brought.iter().find(|tensor| *tensor.name == *spec.name);
        let rows = tensor.map(|tensor| rows_of_input(spec, tensor)).transpose();
        rows.map_err(|cause| ExecError(format!("input '{}' of model '{}': {cause}", spec.name, plan.name)))
    });
    let optional = optional.collect::<Result<_, _>>()?;
    Ok(ChainState { values, optional, length, padded: length, ignore_conditions })
}

/// Returns the rows of a request's tensor, if it has the input's datatype.
fn rows_of_input(spec: &TensorSpec, tensor: &Tensor) -> Result<Rows, String> {
    if tensor.datatype != spec.datatype {
        return Err(format!("it is {}, not {}", tensor.datatype, spec.datatype));
    }
    Rows::of_tensor(tensor)
}

/// Takes out the state that earlier blocks have stored.
fn resume(
    plan: &ModelPlan,
    slots: &mut HashMap<RequestSlot, ChainWalk>,
    member: &TaskMember,
    attachment: u64,
) -> Result<ChainState, ExecError> {
    let walk = slots.remove(&member.slot).filter(|walk| walk.attachment == attachment).ok_or_else(|| {
        ExecError(format!(
            "request slot {}: this device holds no state of it for model '{}'; its first block must run here first",
            member.slot.0, plan.name
        ))
    })?;
    let differs = |rows: &&Rows| rows.count() != member.rows && !plan.sharing.is_stopped();
    match walk.state.values.iter().flatten().find(differs) {
        Some(rows) => Err(ExecError(format!(
            "slot {} walks through model '{}' with {} rows, not {}",
            member.slot.0,
            plan.name,
            rows.count(),
            member.rows
        ))),
        None => Ok(walk.state),
    }
}

/// A run of one batch of a task.
struct PartRun<'a> {
    task: &'a Task,
    model: &'a LaneModel,
    /// Members of the batch.
    part: &'a [usize],
    /// The batch, if it is gathered already.
    at_hand: Option<GatheredBatch>,
    /// Whether the batch is one request that runs as the file runs it, without padding.
    alone: bool,
    /// Whether the outputs may come while the next batch runs.
    may_follow: bool,
    /// Earliest possible start.
    ready: Instant,
}

impl PartRun<'_> {
    /// Runs the batch and stores its outputs in the members' states, or returns those that are yet
    /// to come.
    fn run(
        self,
        attached: &mut Attached,
        account: &DeviceCounters,
        states: &mut [Option<ChainState>],
        (watch, spent): (&mut LapTimer, &mut PhaseTimes),
    ) -> Result<Option<Box<dyn ComingOutputs>>, ExecError> {
        let PartRun { task, model: LaneModel { plan, buffers, .. }, part, at_hand, alone, may_follow, ready } = self;
        let block = task.block.index();
        if part.len() > 1 && alone {
            return Err(ExecError("each request of the model runs alone".to_owned()));
        }
        let gather = || GatheredBatch::gather(plan, buffers, block, &of_part(part, states), alone);
        let batch = at_hand.map_or_else(gather, Ok)?;
        spent.gather_ns += watch.lap_ns();
        let outputs = attached.compute(&batch, ready, may_follow);
        spent.compute_ns += watch.lap_ns();
        let (outputs, copied) = (outputs?, batch.rows_copied());
        account.count(copied, block > 0 && copied == 0);
        let outputs = match outputs {
            BlockOutputs::Here(outputs) => outputs,
            BlockOutputs::Coming(outputs) if outputs.have_rows(batch.rows) => return Ok(Some(outputs)),
            // Their rows show that requests cannot share batches, so the batch runs again.
            BlockOutputs::Coming(outputs) => outputs.receive().map_err(|(cause, loss)| {
                loss.into_iter().for_each(|loss| attached.ready.down.set(loss));
                cause
            })?,
        };
        match (part, alone) {
            ([at], true) => keep_all_rows(plan, block, &mut states[*at], outputs),
            _ => scatter(plan, block, task, part, states, outputs)?,
        }
        attached.sample_rows(block, part, states);
        Ok(None)
    }
}

/// Stores each request's rows of the block's outputs in its state. Rows of padding follow them.
fn scatter(
    plan: &ModelPlan,
    block: usize,
    task: &Task,
    part: &[usize],
    walks: &mut [Option<ChainState>],
    outputs: Vec<BatchTensor>,
) -> Result<(), ExecError> {
    let given = &plan.blocks[block].outputs;
    let rows = padded_size(&plan.batch_sizes, part.iter().map(|&at| task.members[at].rows).sum());
    if let Some((&value, batch)) = given.iter().zip(&outputs).find(|(_, batch)| batch.rows() != rows) {
        let shown = format!(
            "output '{}' of model '{}' has {} rows for a batch of {rows}: its first dimension must be the batch",
            plan.values[value].name,
            plan.name,
            batch.rows()
        );
        // A condition decides about the rows that a request has.
        if plan.conditions.is_none() {
            plan.sharing.stop(&plan.name, shown.clone());
        }
        return Err(ExecError(shown));
    }
    for (&value, batch) in given.iter().zip(outputs) {
        let batch = Arc::new(batch);
        let mut first = 0;
        for &at in part {
            let after = first + task.members[at].rows;
            if let Some(state) = &mut walks[at] {
                state.values[value] = Some(Rows::of_batch(&batch, first..after));
            }
            first = after;
        }
    }
    Ok(())
}

/// Stores all rows of the block's outputs in the state of a request that ran alone.
fn keep_all_rows(plan: &ModelPlan, block: usize, state: &mut Option<ChainState>, outputs: Vec<BatchTensor>) {
    let Some(state) = state else { return };
    for (&value, batch) in plan.blocks[block].outputs.iter().zip(outputs) {
        let rows = batch.rows();
        state.values[value] = Some(Rows::of_batch(&Arc::new(batch), 0..rows));
    }
}

/// Drops values that no later block needs.
fn forget(plan: &ModelPlan, block: usize, state: &mut ChainState) {
    for (held, value) in state.values.iter_mut().zip(&plan.values) {
        if value.last_use <= block {
            *held = None;
        }
    }
}

/// Returns a member's progress after a block. The request has ended, perhaps early, or continues
/// with the next or a later block.
fn progress(plan: &ModelPlan, block: usize, state: &ChainState) -> Result<MemberProgress, ExecError> {
    let conditions = plan.conditions.as_ref().filter(|all| all.stand_at(block) && !state.ignore_conditions);
    let (mut report, mut answer) = (StepReport::default(), &plan.output_values[..]);
    if let Some(conditions) = conditions {
        let outputs = plan.blocks[block].outputs.iter().filter_map(|&value| {
            let rows = state.values[value].clone()?;
            Some((&*plan.values[value].name, rows))
        });
        let verdict = conditions.judge(block, &outputs.collect::<Vec<_>>(), |value| state.values[value].clone());
        match verdict.map_err(|cause| ExecError(format!("block {block} of model '{}': {cause}", plan.name)))? {
            BlockDecision::Go => {}
            BlockDecision::Exit => (report.ended, answer) = (true, conditions.answer(block)),
            BlockDecision::Skip(to) => report.skip = Some(to),
        }
    }
    let at = Position::before(BlockId(block as u16));
    match at.advance(Steps::Once, plan.blocks.len(), Extent::ONE, report) {
        Onward::End => finish(plan, state, answer),
        Onward::Step | Onward::Block(_) => Ok(MemberProgress { skip: report.skip, ..MemberProgress::default() }),
    }
}

/// Creates the answer of a completed request from these values.
fn finish(plan: &ModelPlan, state: &ChainState, values: &[usize]) -> Result<MemberProgress, ExecError> {
    let output = |(&output, &value): (&usize, &usize)| {
        let name = &plan.values[output].name;
        let missing = || ExecError(format!("no block of model '{}' gave output '{name}'", plan.name));
        let rows = state.values[value].as_ref().ok_or_else(missing)?;
        let Some(padding) = &plan.padding else { return Ok(rows.to_tensor(name)) };
        let own = padding.cut(output, rows, state.length, state.padded);
        let own = own.map_err(|cause| ExecError(format!("output '{name}' of model '{}': {cause}", plan.name)))?;
        Ok(own.to_tensor(name))
    };
    let outputs = plan.output_values.iter().zip(values).map(output).collect::<Result<_, _>>()?;
    Ok(MemberProgress::ended(outputs))
}
