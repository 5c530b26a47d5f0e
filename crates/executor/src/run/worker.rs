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
use crate::run::attached::{Attached, BatchRun, ChainState, Values};
use crate::run::cells::{self, StepInFlight};
use crate::run::plan::ModelPlan;
use crate::run::rerun::{CompletedTask, RerunTerms, catch_panic, run_in_parts};
use crate::run::rows::{BatchTensor, Rows};
use crate::run::runner::{CellRunner, ReadyModel};
use crate::{BlockDecision, ExecError, Loss, MemberProgress, PhaseTimes, RequestEntry, Task, TaskMember, Tensor};
use parking_lot::Mutex;
use ripieno_base::{BlockId, ModelId, RequestSlot};
use ripieno_model::{Extent, Onward, Position, StepReport, Steps, TensorSpec, padded_size};
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
    /// Whether a sampled row of a model may wait for its comparison.
    has_samples: bool,
}

/// States of the requests on one device that are between two blocks, by slot.
#[derive(Clone, Default)]
pub(crate) struct WalkSlots(Arc<Mutex<HashMap<RequestSlot, ChainWalk>>>);

/// State of a request between two blocks, with its model.
struct ChainWalk {
    /// Attachment of the request's model.
    attachment: u64,
    state: ChainState,
}

impl Worker {
    pub(crate) fn new(account: Arc<DeviceCounters>, slots: WalkSlots) -> Worker {
        Worker { models: HashMap::new(), slots, account, release_at: None, has_samples: false }
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

    /// Compares one sampled row of a model with its answer alone. Returns false if there is none.
    pub(crate) fn compare_row(&mut self) -> bool {
        let has_rows = |attached: &&mut Attached| attached.checks.has_rows();
        self.has_samples = self.models.values_mut().flatten().find(has_rows).is_some_and(Attached::compare_row);
        self.has_samples
    }

    /// Whether a sampled row waits for its comparison.
    pub(crate) fn has_samples(&self) -> bool {
        self.has_samples
    }

    /// Runs a task, and notes when the memory that it used is to be given back.
    pub(crate) fn execute(
        &mut self,
        task: &Task,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<CompletedTask, ExecError> {
        let done = self.run_task(task, ready, stopped);
        self.note_end(task.model);
        done
    }

    /// Notes when the memory that a task has used is to be given back.
    fn note_end(&mut self, model: ModelId) {
        if let Some(Ok(attached)) = self.models.get_mut(&model) {
            let release_at = attached.note_batch(Instant::now());
            self.has_samples |= attached.checks.has_rows();
            self.release_at = Some(self.release_at.map_or(release_at, |at| at.min(release_at)));
        }
    }

    /// Returns the number of steps of a model that may be in flight; 0 if no device keeps its
    /// state.
    pub(crate) fn depth(&mut self, model: ModelId) -> usize {
        self.on_device(model).map_or(0, |(_, device)| device.depth())
    }

    /// Returns the plan and the runner of a model whose state is kept by a device.
    fn on_device(&mut self, model: ModelId) -> Option<(Arc<ModelPlan>, &mut dyn CellRunner)> {
        let attached = self.models.get_mut(&model)?.as_mut().ok()?;
        Some((Arc::clone(&attached.ready.plan), attached.ready.runner.on_device()?))
    }

    /// Launches the step of a task and does not wait for its end; see [`cells::launch`].
    pub(crate) fn launch(&mut self, task: &Task) -> Option<StepInFlight> {
        let (plan, device) = self.on_device(task.model)?;
        check_task(&plan, task).ok()?;
        cells::launch(&plan, plan.cells.as_deref()?, device, task).ok()
    }

    /// Waits until the oldest step in flight, of this model, has ended or `stop` returns true.
    /// Returns whether it has.
    pub(crate) fn wait(&mut self, model: ModelId, stop: &dyn Fn() -> bool) -> bool {
        self.on_device(model).is_none_or(|(_, device)| device.wait(stop))
    }

    /// Settles the oldest step in flight, which is the task's. The device began it at `started`.
    pub(crate) fn settle(
        &mut self,
        task: &Task,
        step: StepInFlight,
        started: Instant,
    ) -> Result<CompletedTask, ExecError> {
        let account = Arc::clone(&self.account);
        let device = self.on_device(task.model).and_then(|(plan, device)| Some((plan.cells.clone()?, device)));
        let (cells, device) = device.ok_or_else(|| ExecError("the model was detached".to_owned()))?;
        let done = cells::settle(&cells, device, task, step.begun(started), &account);
        self.note_end(task.model);
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
        let alone = || plan.sharing.is_stopped();
        let terms = RerunTerms { ready, until: &|at| task.members[at].until, stopped: &stopped, alone: &alone };
        if let Some(cells) = &plan.cells {
            let (runner, buffers) = (&mut attached.ready.runner, &mut attached.buffers[block][..]);
            return cells::execute(&plan, cells, runner, buffers, task, &terms, &self.account);
        }
        let mut watch = LapTimer::start();
        let attachment = attached.attachment;
        let mut failures = vec![None; task.members.len()];
        let mut walks = states(&plan, task, &self.slots, attachment, &mut failures);
        pad(&plan, task, &mut walks, &mut failures);
        let mut spent = PhaseTimes::default();
        let batches = batches(&plan, block, &walks);
        let rerun = run_in_parts(batches, &mut failures, &terms, &mut |part, ready| {
            let was_alone = alone() || replaces_defaults(part, &walks);
            let mut attempt = |alone: bool| {
                let run = BatchRun { alone, ready, watch: &mut watch, spent: &mut spent };
                run_part(attached, &self.account, task, part, &mut walks, run)
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

/// Whether a member replaces a default.
fn replaces_defaults(part: &[usize], walks: &[Option<ChainState>]) -> bool {
    part.iter().any(|&at| walks[at].as_ref().is_some_and(ChainState::replaces_defaults))
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
    let mut slots = slots.0.lock();
    let state = |(member, failure): (&TaskMember, &mut Option<ExecError>)| {
        let state = match task.block.index() {
            0 => begin(plan, &mut slots, member),
            _ => resume(plan, &mut slots, member, attachment),
        };
        state.map_err(|cause| *failure = Some(cause)).ok()
    };
    task.members.iter().zip(failures).map(state).collect()
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

/// Runs one batch of a task and stores its outputs in the members' states.
fn run_part(
    attached: &mut Attached,
    account: &DeviceCounters,
    task: &Task,
    part: &[usize],
    walks: &mut [Option<ChainState>],
    run: BatchRun<'_>,
) -> Result<(), ExecError> {
    let (plan, block, alone) = (Arc::clone(&attached.ready.plan), task.block.index(), run.alone);
    if part.len() > 1 && alone {
        return Err(ExecError("each request of the model runs alone".to_owned()));
    }
    let members: Vec<&ChainState> = part.iter().filter_map(|&at| walks[at].as_ref()).collect();
    let (outputs, copied) = attached.run(block, &members, run)?;
    account.count(copied, block > 0 && copied == 0);
    match (part, alone) {
        ([at], true) => keep_all_rows(&plan, block, &mut walks[*at], outputs),
        _ => scatter(&plan, block, task, part, walks, outputs)?,
    }
    attached.sample_rows(block, part, walks);
    Ok(())
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
