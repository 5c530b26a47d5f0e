//! What happens on a lane's thread for one task: fetch the members' values, gather, run, scatter.
//!
//! The state of a walk lives under the slots of its members, from its first block to its last, for all lanes of a device. A task
//! takes the state of its members out and puts it back only if it succeeds and the walk goes on, so nothing is left behind by a
//! walk that ended or failed, and no lock is held while a block runs. One that was given up between blocks leaves its state
//! until its slot runs a first block again or its model is detached: there are never more states than slots. Where walks
//! unfold, `cells` keeps their state instead, with the model, for all of its devices.

use crate::account::{Account, Watch};
use crate::buffer::AlignedBuffer;
use crate::cells;
use crate::parts::{Terms, caught, run_in_parts};
use crate::plan::Plan;
use crate::rows::{Batch, Input, Rows};
use crate::runner::{Call, Ready};
use crate::{Again, Entry, ExecError, Loss, Member, Progress, Spent, Task, Tensor, Verdict};
use parking_lot::Mutex;
use ripieno_base::{BlockId, ModelId, RequestSlot};
use ripieno_model::{Extent, Onward, Position, StepReport, Steps};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The models on one lane, and the walks on its device.
pub(crate) struct Worker {
    models: HashMap<ModelId, Result<Attached, ExecError>>,
    slots: Slots,
    account: Arc<Account>,
}

/// The walks on one device that are between two blocks.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<HashMap<RequestSlot, Walk>>>);

struct Attached {
    ready: Ready,
    /// The number of the attachment, the same on all lanes of the device.
    attachment: u64,
    /// For each block and each of its inputs, where batches are gathered.
    buffers: Vec<Vec<AlignedBuffer>>,
}

/// A walk between two blocks.
struct Walk {
    /// Which attachment of its model it goes through.
    attachment: u64,
    state: RequestState,
}

/// What is kept of a request between its blocks.
struct RequestState {
    values: Values,
    /// The request's own length.
    length: u32,
    /// What it was padded to in its first block.
    padded: u32,
    /// Whether conditions do not matter to it.
    ignore_conditions: bool,
}

/// A request's part of each value of the plan, as far as it is there and still needed.
type Values = Vec<Option<Rows>>;

impl Worker {
    pub(crate) fn new(account: Arc<Account>, slots: Slots) -> Worker {
        Worker { models: HashMap::new(), slots, account }
    }

    pub(crate) fn attach(&mut self, id: ModelId, attachment: u64, model: Result<Ready, ExecError>) {
        self.detach(id);
        self.models.insert(id, model.map(|ready| Attached::new(ready, attachment)));
    }

    /// Forgets the model, and what was left by walks through it. Other lanes may still run some, and forget them in their turn.
    pub(crate) fn detach(&mut self, id: ModelId) {
        if let Some(Ok(attached)) = self.models.remove(&id) {
            self.slots.0.lock().retain(|_, walk| walk.attachment != attached.attachment);
        }
    }

    /// If the model's last task failed for want of a process.
    pub(crate) fn lost(&self, model: ModelId) -> Option<Loss> {
        self.models.get(&model)?.as_ref().ok()?.ready.down.get()
    }

    /// Runs a task. A batch that fails is run again in parts, unless the task is to stop; see [`parts`](crate::parts).
    pub(crate) fn execute(
        &mut self,
        task: &Task,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Done, ExecError> {
        let attached = match self.models.get_mut(&task.model) {
            Some(Ok(attached)) => attached,
            Some(Err(cause)) => return Err(cause.clone()),
            None => return Err(ExecError(format!("model {} is not attached to this device", task.model.0))),
        };
        let plan = Arc::clone(&attached.ready.plan);
        let block = check_task(&plan, task)?;
        let down = attached.ready.down.clone();
        down.clear();
        // Whoever takes a process down would take down the next one when it is run again.
        let stopped = || stopped() || down.get().is_some();
        let terms = Terms { ready, until: &|at| task.members[at].until, stopped: &stopped };
        if let Some(cells) = &plan.cells {
            let engine = (&mut attached.ready.runner, &mut attached.buffers[block][..]);
            return cells::execute(&plan, cells, engine, task, &terms, &self.account);
        }
        let mut watch = Watch::start();
        let attachment = attached.attachment;
        let mut slots = self.slots.0.lock();
        let mut failures = vec![None; task.members.len()];
        let mut walks: Vec<Option<RequestState>> = Vec::with_capacity(task.members.len());
        for (member, failure) in task.members.iter().zip(&mut failures) {
            let state = match block {
                0 => begin(&plan, &mut slots, member),
                _ => resume(&plan, &mut slots, member, attachment),
            };
            walks.push(state.map_err(|cause| *failure = Some(cause)).ok());
        }
        drop(slots);
        pad(&plan, task, &mut walks, &mut failures);
        let mut spent = Spent::default();
        let batches = batches(&plan, block, &walks);
        let again = run_in_parts(batches, &mut failures, &terms, &mut |part, ready| {
            let members: Vec<&RequestState> = part.iter().filter_map(|&at| walks[at].as_ref()).collect();
            let (outputs, copied) = attached.run(block, &members, ready, (&mut watch, &mut spent))?;
            self.account.count(copied, block > 0 && copied == 0);
            scatter(&plan, block, (task, part), &mut walks, outputs)
        })?;
        let progress = self.part_ways(&plan, (task, attachment), walks, failures);
        self.account.spend(Spent { scatter_ns: watch.lap_ns(), ..spent });
        Done::of(progress, again)
    }

    /// Says what the block did for each member, and keeps what those have left who go on.
    fn part_ways(
        &self,
        plan: &Plan,
        (task, attachment): (&Task, u64),
        walks: Vec<Option<RequestState>>,
        failures: Vec<Option<ExecError>>,
    ) -> Vec<Progress> {
        let block = task.block.index();
        let each = walks.iter().zip(failures).map(|(state, failure)| match (failure, state) {
            (None, Some(state)) => caught(|| progress(plan, block, state)).unwrap_or_else(Progress::failed),
            (failure, _) => Progress::failed(failure.unwrap_or_else(|| ExecError("it was not run".to_owned()))),
        });
        let each: Vec<Progress> = each.collect();
        let mut slots = self.slots.0.lock();
        for ((member, state), progress) in task.members.iter().zip(walks).zip(&each) {
            if let Some(mut state) = state.filter(|_| !progress.ended && progress.failed.is_none()) {
                forget(plan, block, &mut state);
                slots.insert(member.slot, Walk { attachment, state });
            }
        }
        each
    }
}

/// What a task did.
pub(crate) struct Done {
    pub(crate) progress: Vec<Progress>,
    pub(crate) again: Option<Again>,
}

impl Done {
    /// A batch of one that failed has failed as a whole.
    pub(crate) fn of(mut progress: Vec<Progress>, again: Option<Again>) -> Result<Done, ExecError> {
        match &mut progress[..] {
            [Progress { failed: Some(cause), .. }] => Err(cause.clone()),
            _ => Ok(Done { progress, again }),
        }
    }
}

fn check_task(plan: &Plan, task: &Task) -> Result<usize, ExecError> {
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

/// Pads a batch as the task says, in its first block. What a block leaves cannot be padded, so later its members stay as they
/// are. Who is longer than that fails.
fn pad(plan: &Plan, task: &Task, walks: &mut [Option<RequestState>], failures: &mut [Option<ExecError>]) {
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

/// The batches that a task is run as, by the members' places: one, unless its members differ in their shapes. Whoever forms
/// batches should not let them meet; if they do, it costs time and nothing else.
fn batches(plan: &Plan, block: usize, walks: &[Option<RequestState>]) -> Vec<Vec<usize>> {
    let taken = &plan.blocks[block].inputs;
    let alike = |a: &RequestState, b: &RequestState| {
        let same = |&value: &usize| {
            let axis = plan.padding.as_ref().and_then(|padding| padding.axis(value)).map(|axis| axis.dim - 1);
            match (&a.values[value], &b.values[value]) {
                (Some(a), Some(b)) => same_shape(a.row_shape(), b.row_shape(), axis),
                (a, b) => a.is_none() == b.is_none(),
            }
        };
        a.padded == b.padded && taken.iter().all(same)
    };
    let mut batches: Vec<(&RequestState, Vec<usize>)> = Vec::with_capacity(1);
    for (at, state) in walks.iter().enumerate() {
        let Some(state) = state else { continue };
        match batches.iter_mut().find(|(first, _)| alike(first, state)) {
            Some((_, members)) => members.push(at),
            None => batches.push((state, vec![at])),
        }
    }
    batches.into_iter().map(|(_, members)| members).collect()
}

/// Whether rows are of one shape, but for the dimension that is padded.
fn same_shape(a: &[i64], b: &[i64], padded: Option<usize>) -> bool {
    a.len() == b.len() && a.iter().zip(b).enumerate().all(|(dim, (a, b))| a == b || Some(dim) == padded)
}

/// What a request brings.
fn begin(plan: &Plan, slots: &mut HashMap<RequestSlot, Walk>, member: &Member) -> Result<RequestState, ExecError> {
    slots.remove(&member.slot);
    let mut values: Values = vec![None; plan.values.len()];
    let brought: &[Tensor] = member.entry.as_deref().map_or(&[], Entry::inputs);
    for (spec, &value) in plan.inputs.iter().zip(&plan.input_values) {
        let refuse = |cause: String| ExecError(format!("input '{}' of model '{}': {cause}", spec.name, plan.name));
        let tensor = brought.iter().find(|tensor| *tensor.name == *spec.name);
        let tensor = tensor.ok_or_else(|| refuse("the request does not bring it".to_owned()))?;
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
    Ok(RequestState { values, length, padded: length, ignore_conditions })
}

/// What the blocks before have left.
fn resume(
    plan: &Plan,
    slots: &mut HashMap<RequestSlot, Walk>,
    member: &Member,
    attachment: u64,
) -> Result<RequestState, ExecError> {
    let walk = slots.remove(&member.slot).filter(|walk| walk.attachment == attachment).ok_or_else(|| {
        ExecError(format!(
            "slot {} has no walk through model '{}' on this device: its first block must run here first",
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
    fn new(ready: Ready, attachment: u64) -> Attached {
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
        Attached { buffers: buffers.collect(), attachment, ready }
    }

    /// Runs a block over walks that were padded alike, in their order. Returns its outputs and how many rows were copied.
    fn run(
        &mut self,
        block: usize,
        walks: &[&RequestState],
        ready: Instant,
        (watch, spent): (&mut Watch, &mut Spent),
    ) -> Result<(Vec<Batch>, usize), ExecError> {
        let plan = &self.ready.plan;
        let taken = &plan.blocks[block].inputs;
        let length = walks.first().map_or(1, |state| state.padded);
        let shapes: Vec<Vec<i64>> = taken.iter().map(|&value| padded_shape(plan, value, walks, length)).collect();
        let mut copied = 0;
        let mut inputs = Vec::with_capacity(taken.len());
        for ((&value, shape), buffer) in taken.iter().zip(&shapes).zip(&mut self.buffers[block]) {
            let members = members_of(plan, block, value, walks)?;
            let name = &plan.values[value].name;
            let (input, rows) = match plan.padding.as_ref().and_then(|padding| padding.axis(value)) {
                Some(axis) => Input::pad(name, &members, (axis, shape), buffer)?,
                None => Input::gather(name, &members, buffer)?,
            };
            copied += rows;
            inputs.push(input);
        }
        let rows = rows_of(walks);
        spent.gather_ns += watch.lap_ns();
        let outputs = caught(|| self.ready.runner.run(&Call { block, rows, length, ready, inputs: &inputs }));
        spent.compute_ns += watch.lap_ns();
        Ok((outputs?, copied))
    }
}

/// The shape that rows of a value are padded to; nothing where they are not padded.
fn padded_shape(plan: &Plan, value: usize, walks: &[&RequestState], length: u32) -> Vec<i64> {
    let axis = plan.padding.as_ref().and_then(|padding| padding.axis(value));
    let first = walks.first().and_then(|state| state.values[value].as_ref());
    let Some((axis, first)) = axis.zip(first) else { return Vec::new() };
    let mut shape = first.row_shape().to_vec();
    shape[axis.dim - 1] = i64::from(length);
    shape
}

fn members_of<'a>(
    plan: &Plan,
    block: usize,
    value: usize,
    walks: &[&'a RequestState],
) -> Result<Vec<&'a Rows>, ExecError> {
    let missing = || {
        ExecError(format!(
            "block {block} of model '{}' takes '{}', which no block before it has left: the blocks must run in order",
            plan.name, plan.values[value].name
        ))
    };
    walks.iter().map(|state| state.values[value].as_ref().ok_or_else(missing)).collect()
}

/// The rows of a batch; all values of a walk have the same number of rows.
fn rows_of(walks: &[&RequestState]) -> usize {
    walks.iter().map(|state| state.values.iter().flatten().next().map_or(0, Rows::count)).sum()
}

/// Gives each walk of a part of the task its rows of the outputs.
fn scatter(
    plan: &Plan,
    block: usize,
    (task, part): (&Task, &[usize]),
    walks: &mut [Option<RequestState>],
    outputs: Vec<Batch>,
) -> Result<(), ExecError> {
    let rows: usize = part.iter().map(|&at| task.members[at].rows).sum();
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

/// Forgets what no later block takes.
fn forget(plan: &Plan, block: usize, state: &mut RequestState) {
    for (held, value) in state.values.iter_mut().zip(&plan.values) {
        if value.last_use <= block {
            *held = None;
        }
    }
}

/// What a block did for a member: its walk is over, be it early, or it goes on with the next block or a later one.
fn progress(plan: &Plan, block: usize, state: &RequestState) -> Result<Progress, ExecError> {
    let conditions = plan.conditions.as_ref().filter(|all| all.stand_at(block) && !state.ignore_conditions);
    let (mut report, mut answer) = (StepReport::default(), &plan.output_values[..]);
    if let Some(conditions) = conditions {
        let outputs = plan.blocks[block].outputs.iter().filter_map(|&value| {
            let rows = state.values[value].clone()?;
            Some((&*plan.values[value].name, rows))
        });
        let verdict = conditions.judge(block, &outputs.collect::<Vec<_>>(), |value| state.values[value].clone());
        match verdict.map_err(|cause| ExecError(format!("block {block} of model '{}': {cause}", plan.name)))? {
            Verdict::Go => {}
            Verdict::Exit => (report.ended, answer) = (true, conditions.answer(block)),
            Verdict::Skip(to) => report.skip = Some(to),
        }
    }
    let at = Position::before(BlockId(block as u16));
    match at.advance(Steps::Once, plan.blocks.len(), Extent::ONE, report) {
        Onward::End => finish(plan, state, answer),
        Onward::Step | Onward::Block(_) => Ok(Progress { skip: report.skip, ..Progress::default() }),
    }
}

/// The answer to a request whose walk is over, made of these values.
fn finish(plan: &Plan, state: &RequestState, values: &[usize]) -> Result<Progress, ExecError> {
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
    Ok(Progress::ended(outputs))
}
