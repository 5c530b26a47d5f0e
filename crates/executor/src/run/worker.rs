//! Execution of a task on a lane's thread: fetch the members' values, gather, run, scatter.
//!
//! Between two blocks, the state of a request is stored under its slot, for all lanes of the
//! device. A task takes the state out and stores it again only if the task succeeds and the request
//! continues. So a request that ended or failed leaves no state, and no lock is held while a block
//! runs. A request that was dropped between two blocks leaves its state behind. The state is
//! removed when the slot runs a first block again or the model is detached. So there are never more
//! states than slots. For models that unfold, `cells` keeps the state instead, with the model, for
//! all its devices.

use crate::contract::account::{DeviceCounters, LapTimer};
use crate::contract::buffer::AlignedBuffer;
use crate::contract::kept;
use crate::run::cells;
use crate::run::plan::ModelPlan;
use crate::run::rerun::{RerunTerms, catch_panic, run_in_parts};
use crate::run::rows::{BatchTensor, EngineInput, Rows};
use crate::run::runner::{BlockCall, ReadyModel};
use crate::{
    BlockDecision, ExecError, Loss, MemberProgress, PhaseTimes, RequestEntry, Rerun, Task, TaskMember, Tensor,
};
use parking_lot::Mutex;
use ripieno_base::{BlockId, ModelId, RequestSlot};
use ripieno_model::{Extent, Onward, Position, StepReport, Steps, padded_size};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The models attached to one lane, and the request states on its device.
pub(crate) struct Worker {
    models: HashMap<ModelId, Result<Attached, ExecError>>,
    slots: WalkSlots,
    account: Arc<DeviceCounters>,
    /// Time of the next look for memory to give back; `None` if there is none.
    release_at: Option<Instant>,
}

/// States of the requests on one device that are between two blocks, by slot.
#[derive(Clone, Default)]
pub(crate) struct WalkSlots(Arc<Mutex<HashMap<RequestSlot, ChainWalk>>>);

struct Attached {
    ready: ReadyModel,
    /// Number of the attachment, which is the same on all lanes of the device.
    attachment: u64,
    /// Gather buffers, for each input of each block.
    buffers: Vec<Vec<AlignedBuffer>>,
    /// Bytes of the largest batch for which memory is kept.
    largest: usize,
    /// Bytes of the batches of the running task.
    task_bytes: usize,
    /// Time at which memory is given back, unless a large batch runs before; `None` if no batch has
    /// run since.
    release_at: Option<Instant>,
}

/// State of a request between two blocks, with its model.
struct ChainWalk {
    /// Attachment of the request's model.
    attachment: u64,
    state: ChainState,
}

/// State of a request between its blocks.
struct ChainState {
    values: Values,
    /// The request's own length.
    length: u32,
    /// Length to which the first block padded the request.
    padded: u32,
    /// Whether the request ignores the model's conditions.
    ignore_conditions: bool,
}

/// A request's rows of each value of the plan; `None` if they do not exist yet or are no longer
/// needed.
type Values = Vec<Option<Rows>>;

impl Worker {
    pub(crate) fn new(account: Arc<DeviceCounters>, slots: WalkSlots) -> Worker {
        Worker { models: HashMap::new(), slots, account, release_at: None }
    }

    pub(crate) fn attach(&mut self, id: ModelId, attachment: u64, model: Result<ReadyModel, ExecError>) {
        self.detach(id);
        self.models.insert(id, model.map(|ready| Attached::new(ready, attachment)));
    }

    /// Removes a model and the states of its requests. Other lanes may still run some of these
    /// requests, and remove their states later.
    pub(crate) fn detach(&mut self, id: ModelId) {
        if let Some(Ok(attached)) = self.models.remove(&id) {
            self.slots.0.lock().retain(|_, walk| walk.attachment != attached.attachment);
        }
    }

    /// Returns the loss if the model's last task failed because an engine process was missing or
    /// ended.
    pub(crate) fn lost(&self, model: ModelId) -> Option<Loss> {
        self.models.get(&model)?.as_ref().ok()?.ready.down.get()
    }

    /// Returns the time from which
    /// [`release_memory_if_due`](Worker::release_memory_if_due) may find something.
    pub(crate) fn release_at(&self) -> Option<Instant> {
        self.release_at
    }

    /// Gives back the memory of models that have had no large batch for a while.
    pub(crate) fn release_memory_if_due(&mut self) {
        let now = Instant::now();
        if self.release_at.is_none_or(|at| at > now) {
            return;
        }
        for attached in self.models.values_mut().flatten() {
            if attached.release_at.is_some_and(|at| at <= now) {
                attached.release_memory();
            }
        }
        self.release_at = self.models.values().flatten().filter_map(|attached| attached.release_at).min();
    }

    /// Runs a task, and notes when the memory that it used is to be given back.
    pub(crate) fn execute(
        &mut self,
        task: &Task,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<CompletedTask, ExecError> {
        let done = self.run_task(task, ready, stopped);
        if let Some(Ok(attached)) = self.models.get_mut(&task.model) {
            let release_at = attached.note_batch(Instant::now());
            self.release_at = Some(self.release_at.map_or(release_at, |at| at.min(release_at)));
        }
        done
    }

    /// Runs a task. If the batch fails, it is run again in parts, unless the task was stopped; see
    /// [`rerun`](crate::run::rerun).
    fn run_task(
        &mut self,
        task: &Task,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<CompletedTask, ExecError> {
        let attached = match self.models.get_mut(&task.model) {
            Some(Ok(attached)) => attached,
            Some(Err(cause)) => return Err(cause.clone()),
            None => return Err(ExecError(format!("model {} is not attached to this device", task.model.0))),
        };
        let plan = Arc::clone(&attached.ready.plan);
        let block = check_task(&plan, task)?;
        let down = attached.ready.down.clone();
        down.clear();
        // The batch is not run again after a process ended, because the member that ended it would
        // end the next process as well.
        let stopped = || stopped() || down.get().is_some();
        let terms = RerunTerms { ready, until: &|at| task.members[at].until, stopped: &stopped };
        if let Some(cells) = &plan.cells {
            let (runner, buffers) = (&mut attached.ready.runner, &mut attached.buffers[block][..]);
            return cells::execute(&plan, cells, runner, buffers, task, &terms, &self.account);
        }
        let mut watch = LapTimer::start();
        let attachment = attached.attachment;
        let mut slots = self.slots.0.lock();
        let mut failures = vec![None; task.members.len()];
        let mut walks: Vec<Option<ChainState>> = Vec::with_capacity(task.members.len());
        for (member, failure) in task.members.iter().zip(&mut failures) {
            let state = match block {
                0 => begin(&plan, &mut slots, member),
                _ => resume(&plan, &mut slots, member, attachment),
            };
            walks.push(state.map_err(|cause| *failure = Some(cause)).ok());
        }
        drop(slots);
        pad(&plan, task, &mut walks, &mut failures);
        let mut spent = PhaseTimes::default();
        let batches = batches(&plan, block, &walks);
        let rerun = run_in_parts(batches, &mut failures, &terms, &mut |part, ready| {
            let members: Vec<&ChainState> = part.iter().filter_map(|&at| walks[at].as_ref()).collect();
            let (outputs, copied) = attached.run(block, &members, ready, &mut watch, &mut spent)?;
            self.account.count(copied, block > 0 && copied == 0);
            scatter(&plan, block, task, part, &mut walks, outputs)
        })?;
        let progress = self.finish_members(&plan, task, attachment, walks, failures);
        self.account.add_times(PhaseTimes { scatter_ns: watch.lap_ns(), ..spent });
        CompletedTask::of(progress, rerun)
    }

    /// Returns the progress of each member. Stores the state of the members that continue.
    fn finish_members(
        &self,
        plan: &ModelPlan,
        task: &Task,
        attachment: u64,
        walks: Vec<Option<ChainState>>,
        failures: Vec<Option<ExecError>>,
    ) -> Vec<MemberProgress> {
        let block = task.block.index();
        let each = walks.iter().zip(failures).map(|(state, failure)| match (failure, state) {
            (None, Some(state)) => catch_panic(|| progress(plan, block, state)).unwrap_or_else(MemberProgress::failed),
            (failure, _) => MemberProgress::failed(failure.unwrap_or_else(|| ExecError("it was not run".to_owned()))),
        });
        let each: Vec<MemberProgress> = each.collect();
        let mut slots = self.slots.0.lock();
        for ((member, state), progress) in task.members.iter().zip(walks).zip(&each) {
            if let Some(mut state) = state.filter(|_| !progress.ended && progress.failed.is_none()) {
                forget(plan, block, &mut state);
                slots.insert(member.slot, ChainWalk { attachment, state });
            }
        }
        each
    }
}

/// Result of a task.
pub(crate) struct CompletedTask {
    pub(crate) progress: Vec<MemberProgress>,
    pub(crate) rerun: Option<Rerun>,
}

impl CompletedTask {
    /// Creates the result. If the only member of a batch failed, the whole batch has failed.
    pub(crate) fn of(mut progress: Vec<MemberProgress>, rerun: Option<Rerun>) -> Result<CompletedTask, ExecError> {
        match &mut progress[..] {
            [MemberProgress { failed: Some(cause), .. }] => Err(cause.clone()),
            _ => Ok(CompletedTask { progress, rerun }),
        }
    }
}

fn check_task(plan: &ModelPlan, task: &Task) -> Result<usize, ExecError> {
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
    let taken = &plan.blocks[block].inputs;
    let alike = |a: &ChainState, b: &ChainState| {
        let same = |&value: &usize| {
            let axis = plan.padding.as_ref().and_then(|padding| padding.axis(value)).map(|axis| axis.dim - 1);
            match (&a.values[value], &b.values[value]) {
                (Some(a), Some(b)) => same_shape(a.row_shape(), b.row_shape(), axis),
                (a, b) => a.is_none() == b.is_none(),
            }
        };
        a.padded == b.padded && taken.iter().all(same)
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

/// Whether two rows have the same shape, ignoring the padded dimension.
fn same_shape(a: &[i64], b: &[i64], padded: Option<usize>) -> bool {
    a.len() == b.len() && a.iter().zip(b).enumerate().all(|(dim, (a, b))| a == b || Some(dim) == padded)
}

/// Creates the state of a request from its entry.
fn begin(
    plan: &ModelPlan,
    slots: &mut HashMap<RequestSlot, ChainWalk>,
    member: &TaskMember,
) -> Result<ChainState, ExecError> {
    slots.remove(&member.slot);
    let mut values: Values = vec![None; plan.values.len()];
    let brought: &[Tensor] = member.entry.as_deref().map_or(&[], RequestEntry::inputs);
    for (spec, &value) in plan.inputs.iter().zip(&plan.input_values) {
        let refuse = |cause: String| ExecError(format!("input '{}' of model '{}': {cause}", spec.name, plan.name));
        let tensor = brought.iter().find(|tensor| *tensor.name == *spec.name);
        let tensor = tensor.ok_or_else(|| refuse("the request lacks it".to_owned()))?;
        if tensor.datatype != spec.datatype {
            return Err(refuse(format!("it is {}, not {}", tensor.datatype, spec.datatype)));
        }
        let rows = Rows::of_tensor(tensor).map_err(refuse)?;
        if rows.count() != member.rows {
            return Err(refuse(format!("it has {} rows, the request {}", rows.count(), member.rows)));
        }
        values[value] = Some(rows);
    }
    let entry = member.entry.as_ref().filter(|_| plan.padding.is_some());
    let length = entry.map_or(1, |entry| entry.extent.length);
    let ignore_conditions = member.entry.as_ref().is_some_and(|entry| entry.ignore_conditions);
    Ok(ChainState { values, length, padded: length, ignore_conditions })
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
    match walk.state.values.iter().flatten().find(|rows| rows.count() != member.rows) {
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

impl Attached {
    fn new(ready: ReadyModel, attachment: u64) -> Attached {
        let plan = &ready.plan;
        let buffer = |&value: &usize| {
            let spec = &plan.values[value].spec;
            let row = spec.shape[1..]
                .iter()
                .try_fold(spec.datatype.size()?, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
            row?.checked_mul(plan.max_batch)
        };
        let buffers = plan.blocks.iter().map(|block| {
            let buffers = block.inputs.iter().map(|value| AlignedBuffer::with_capacity(buffer(value).unwrap_or(0)));
            buffers.collect()
        });
        Attached { buffers: buffers.collect(), attachment, ready, largest: 0, task_bytes: 0, release_at: None }
    }

    /// Notes the size of a task that has just run. Returns the time at which memory is given back,
    /// if no batch of at least half of the largest size runs before.
    fn note_batch(&mut self, now: Instant) -> Instant {
        let bytes = std::mem::take(&mut self.task_bytes);
        self.largest = self.largest.max(bytes);
        match self.release_at {
            _ if kept::is_beyond_bound() => *self.release_at.insert(now),
            Some(at) if bytes < self.largest / 2 => at,
            _ => *self.release_at.insert(now + kept::IDLE),
        }
    }

    /// Gives back the memory of the gather buffers and of the engine.
    fn release_memory(&mut self) {
        (self.largest, self.release_at) = (0, None);
        self.buffers.iter_mut().flatten().for_each(AlignedBuffer::release);
        self.ready.runner.release_memory();
    }

    /// Runs a block for requests of equal padding, in their order. The batch is padded to the next
    /// of the model's sizes. Returns the outputs and the number of copied rows.
    fn run(
        &mut self,
        block: usize,
        walks: &[&ChainState],
        ready: Instant,
        watch: &mut LapTimer,
        spent: &mut PhaseTimes,
    ) -> Result<(Vec<BatchTensor>, usize), ExecError> {
        let plan = &self.ready.plan;
        let taken = &plan.blocks[block].inputs;
        let length = walks.first().map_or(1, |state| state.padded);
        let rows = padded_size(&plan.batch_sizes, rows_of(walks));
        let shapes: Vec<Vec<i64>> = taken.iter().map(|&value| padded_shape(plan, value, walks, length)).collect();
        let mut copied = 0;
        let mut inputs = Vec::with_capacity(taken.len());
        for ((&value, shape), buffer) in taken.iter().zip(&shapes).zip(&mut self.buffers[block]) {
            let members = members_of(plan, block, value, walks)?;
            let name = &plan.values[value].name;
            let (input, moved) = match plan.padding.as_ref().and_then(|padding| padding.axis(value)) {
                Some(axis) => EngineInput::pad(name, &members, rows, axis, shape, buffer)?,
                None => EngineInput::gather(name, &members, rows, buffer)?,
            };
            copied += moved;
            self.task_bytes += input.data.len();
            inputs.push(input);
        }
        spent.gather_ns += watch.lap_ns();
        let outputs = catch_panic(|| self.ready.runner.run(&BlockCall { block, rows, length, ready, inputs: &inputs }));
        spent.compute_ns += watch.lap_ns();
        Ok((outputs?, copied))
    }
}

/// Returns the shape to which rows of a value are padded; empty if they are not padded.
fn padded_shape(plan: &ModelPlan, value: usize, walks: &[&ChainState], length: u32) -> Vec<i64> {
    let axis = plan.padding.as_ref().and_then(|padding| padding.axis(value));
    let first = walks.first().and_then(|state| state.values[value].as_ref());
    let Some((axis, first)) = axis.zip(first) else { return Vec::new() };
    let mut shape = first.row_shape().to_vec();
    shape[axis.dim - 1] = i64::from(length);
    shape
}

fn members_of<'a>(
    plan: &ModelPlan,
    block: usize,
    value: usize,
    walks: &[&'a ChainState],
) -> Result<Vec<&'a Rows>, ExecError> {
    let missing = || {
        ExecError(format!(
            "block {block} of model '{}' takes '{}', which no block before it has left: the blocks must run in order",
            plan.name, plan.values[value].name
        ))
    };
    walks.iter().map(|state| state.values[value].as_ref().ok_or_else(missing)).collect()
}

/// Returns the total number of rows in a batch. All values of a request have the same number of
/// rows.
fn rows_of(walks: &[&ChainState]) -> usize {
    walks.iter().map(|state| state.values.iter().flatten().next().map_or(0, Rows::count)).sum()
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
    let rows = padded_size(&plan.batch_sizes, part.iter().map(|&at| task.members[at].rows).sum());
    let given = &plan.blocks[block].outputs;
    if let Some((&value, batch)) = given.iter().zip(&outputs).find(|(_, batch)| batch.rows() != rows) {
        return Err(ExecError(format!(
            "output '{}' of model '{}' has {} rows for a batch of {rows}: its first dimension must be the batch",
            plan.values[value].name,
            plan.name,
            batch.rows()
        )));
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
