//! Measurement of ℓ(b): the time of a batch of b rows on each block of a model. It opens a device
//! for the measurement.
//!
//! The measurement uses the same interface as serving, so the time includes gathering and
//! scattering. Batch sizes double, and the profile is linear between them. If batches are padded,
//! only the sizes that they are padded to are measured, and the profile has steps. `curve.rs` makes
//! the measurement robust against stalls. Sizes beyond the time budget are extrapolated, so a slow
//! model also loads in bounded time. If requests differ in length, the measurement is repeated at
//! several lengths, the longest first.

use crate::contract::buffer::bytes_of;
use crate::probe::curve::{BatchRunner, MeasurementProgress, measure_curve};
use crate::{
    ExecError, Executor, LoadError, LoadedModel, Payload, RequestEntry, Task, TaskMember, TaskResult, Tensor, next_walk,
};
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, ModelId, Nanos, RequestSlot, TaskId};
use ripieno_model::{
    DataType, Extent, Graph, LengthProfiles, Profile, ProfileError, Steps, TensorSpec, doubling_sizes,
};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The largest batch.
    pub max_batch: usize,
    /// Approximate time budget. Every model is run at least once with one row.
    pub budget: Duration,
    /// Inputs of a request with one row. If `None`, floats are 1, integers are 0, and every open
    /// dimension is 1.
    pub example: Option<Arc<[Tensor]>>,
}

/// The measured cost of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockProfile {
    /// Latency ℓ(b); of the longest requests if requests differ in length.
    pub profile: Profile,
    /// Latency ℓ(b) at shorter lengths; `None` if requests do not differ in length.
    pub lengths: Option<LengthProfiles>,
}

impl BlockProfile {
    /// Returns the cost of batches that are padded to the next of these ascending `sizes`.
    pub fn stepped(&self, sizes: &[usize]) -> BlockProfile {
        let lengths = self.lengths.as_ref().map(|lengths| lengths.stepped(sizes));
        BlockProfile { profile: self.profile.stepped(sizes), lengths }
    }
}

/// The measured cost of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredProfile {
    /// Profile of each block.
    pub blocks: Vec<BlockProfile>,
    /// Reason why the numbers are unreliable even after outliers were measured again: the whole
    /// measurement was disturbed, or the model behaves unusually.
    pub unreliable: Option<String>,
}

/// Time after which a device that does not answer is considered broken. Every real batch is faster.
const TASK_TIMEOUT: Duration = Duration::from_secs(600);

/// Largest number of measured lengths below the longest.
const SHORTER_LENGTHS: usize = 5;

/// Measures ℓ(b) of each block for 1 to `max_batch` rows.
pub fn measure(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    measurement: &Measurement,
    progress: &mut dyn FnMut(MeasurementProgress),
) -> Result<MeasuredProfile, LoadError> {
    let Some(lengths) = model.lengths().map(|lengths| lengths_below(lengths.max)) else {
        let inputs = measurement.example.clone().map_or_else(|| example_inputs(&**model), Ok)?;
        let (profiles, doubt) = measure_one(engine, model, inputs, measurement, progress)?;
        let blocks = profiles.into_iter().map(|profile| BlockProfile { profile, lengths: None }).collect();
        return Ok(MeasuredProfile { blocks, unreliable: doubt });
    };
    let mut blocks: Vec<Vec<(u32, Profile)>> = vec![Vec::new(); model.blocks()];
    let total: u32 = lengths.iter().sum();
    let mut doubt = None;
    for (round, &length) in lengths.iter().enumerate() {
        let share = Measurement { budget: measurement.budget * length / total, ..measurement.clone() };
        let mut of_all = |step: MeasurementProgress| {
            let (done, sizes) = (step.done + round * step.sizes, lengths.len() * step.sizes);
            progress(MeasurementProgress { done, sizes, ..step });
        };
        let example = example_of_length(&**model, length)?;
        let (profiles, suspect) = measure_one(engine, model, example, &share, &mut of_all)?;
        doubt = doubt.or_else(|| suspect.map(|suspect| format!("at length {length}: {suspect}")));
        blocks.iter_mut().zip(profiles).for_each(|(block, profile)| block.push((length, profile)));
    }
    let blocks = blocks.into_iter().map(block_profile).collect::<Result<_, _>>()?;
    Ok(MeasuredProfile { blocks, unreliable: doubt })
}

/// Returns the longest length, then powers of two below it.
fn lengths_below(longest: u32) -> Vec<u32> {
    let powers = (0..u32::BITS - 1).rev().map(|bit| 1 << bit).filter(|&length| length < longest);
    [longest].into_iter().chain(powers.take(SHORTER_LENGTHS)).collect()
}

/// Combines the profiles of several lengths, the longest first. The result never decreases with the
/// length.
fn block_profile(mut lengths: Vec<(u32, Profile)>) -> Result<BlockProfile, LoadError> {
    lengths.reverse();
    for at in 1..lengths.len() {
        let higher = |(a, b): (&Nanos, &Nanos)| *a.max(b);
        let table: Vec<Nanos> = lengths[at - 1].1.table().iter().zip(lengths[at].1.table()).map(higher).collect();
        lengths[at].1 = Profile::from_table(&table).map_err(unusable)?;
    }
    let longest = lengths.last().map(|(_, profile)| profile.clone()).expect("there is a longest length");
    let lengths = LengthProfiles::new(lengths)
        .map_err(|cause| LoadError(format!("the measured lengths are unusable: {cause}")))?;
    Ok(BlockProfile { profile: longest, lengths: Some(lengths) })
}

fn unusable(cause: ProfileError) -> LoadError {
    LoadError(format!("the measured latencies are unusable: {cause}"))
}

fn measure_one(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    inputs: Arc<[Tensor]>,
    measurement: &Measurement,
    progress: &mut dyn FnMut(MeasurementProgress),
) -> Result<(Vec<Profile>, Option<String>), LoadError> {
    let runner = ExampleRunner::new(engine, model, inputs)?;
    let mut bench = TimedRunner { runner: &runner, begun: Instant::now() };
    let sizes = match model.batch_sizes() {
        [] => doubling_sizes(measurement.max_batch),
        sizes => sizes.to_vec(),
    };
    let curve = measure_curve(&mut bench, model.blocks(), &sizes, measurement.budget, progress)?;
    let profile = |points: Vec<(usize, Nanos)>| {
        let points = extrapolated(points, measurement.max_batch);
        Profile::interpolate(&points).map(|profile| profile.stepped(model.batch_sizes())).map_err(unusable)
    };
    let profiles = curve.blocks.into_iter().map(profile).collect::<Result<_, _>>()?;
    Ok((profiles, curve.unreliable))
}

/// Runs examples and measures their time.
struct TimedRunner<'a> {
    runner: &'a ExampleRunner,
    begun: Instant,
}

impl BatchRunner for TimedRunner<'_> {
    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), ExecError> {
        self.runner.walk(batch, samples)
    }
}

/// Runs a batch of example requests once through all blocks, because a model that loads may still
/// fail to run. Without an `example`, one is made up as in [`Measurement`].
pub fn run_example(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    example: Option<Arc<[Tensor]>>,
    batch: usize,
) -> Result<(), LoadError> {
    let mut samples = vec![Vec::new(); model.blocks()];
    let runner = ExampleRunner::new(engine, model, example.map_or_else(|| example_inputs(&**model), Ok)?)?;
    let outcome = runner.walk(batch, &mut samples);
    outcome.map_err(|cause| LoadError(format!("an example request cannot run: a batch of {batch}: {cause}")))
}

/// Returns the shortest of a few times that a batch of example requests takes in all blocks. The
/// first run does not count.
pub fn time_batch(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    example: Option<Arc<[Tensor]>>,
    batch: usize,
) -> Result<Nanos, LoadError> {
    let runner = ExampleRunner::new(engine, model, example.map_or_else(|| example_inputs(&**model), Ok)?)?;
    let mut shortest = Nanos::MAX;
    for run in 0..=TIMED_RUNS {
        let mut samples = vec![Vec::new(); model.blocks()];
        let outcome = runner.walk(batch, &mut samples);
        outcome.map_err(|cause| LoadError(format!("a batch of {batch} failed: {cause}")))?;
        let total = Nanos(samples.iter().flatten().map(|sample| sample.0).sum());
        shortest = if run == 0 { Nanos::MAX } else { shortest.min(total) };
    }
    Ok(shortest)
}

/// Number of runs of [`time_batch`].
const TIMED_RUNS: usize = 3;

/// Checks that padding does not change answers. Runs a short request alone and in a batch with one
/// of the longest, and compares the two answers.
///
/// A model without a complete mask answers a request differently in different batches, and no error
/// reports it.
pub fn check_padding(engine: &dyn Executor, model: &Arc<dyn LoadedModel>) -> Result<(), LoadError> {
    let Some(longest) = model.lengths().map(|lengths| lengths.max) else { return Ok(()) };
    let short = (longest / 3).max(1);
    let runner = ExampleRunner::new(engine, model, example_of_length(&**model, short)?)?;
    let extent = Extent { length: longest, ..Extent::ONE };
    let beside =
        RequestEntry { ignore_conditions: true, extent, ..RequestEntry::of(example_of_length(&**model, longest)?) };
    let failed = |cause: ExecError| {
        let remedy = "if made-up values are the cause, write min and max of its inputs ([[input]] min, max)";
        LoadError(format!("requests of {short} and of {longest} cannot run together: {cause}; {remedy}"))
    };
    let alone = runner.answers(&[&runner.example]).map_err(failed)?;
    let padded = runner.answers(&[&runner.example, &beside]).map_err(failed)?;
    for (alone, padded) in alone[0].iter().zip(&padded[0]) {
        compare_padded(alone, padded, [short, longest]).map_err(LoadError)?;
    }
    Ok(())
}

/// Largest change of a number by padding, relative to the tensor's largest number.
const PADDING_TOLERANCE: f64 = 1e-3;

/// Compares the answers to a request alone and padded, whose lengths are `[short, longest]`.
fn compare_padded(alone: &Tensor, padded: &Tensor, [short, longest]: [u32; 2]) -> Result<(), String> {
    let name = &alone.name;
    if let Some(dim) = alone.shape.iter().zip(&padded.shape).position(|(alone, padded)| alone != padded) {
        let sizes = [alone.shape[dim], padded.shape[dim]];
        if sizes != [i64::from(short), i64::from(longest)] {
            return Err(format!(
                "output '{name}' is {} long for a request of length {short} and {} for one of {longest}, so its part cannot be \
                 told from the padding: write length = \"n / 8\", or as it is, beside length_dim = {dim} of that [[output]], or remove \
                 every length_dim",
                sizes[0], sizes[1]
            ));
        }
        return Err(format!(
            "output '{name}' is as long as the batch is padded: {:?} beside a longer request, {:?} alone; add an [[output]] \
             with name = \"{name}\" and length_dim = {dim}",
            padded.shape, alone.shape
        ));
    }
    let differs = difference(alone, padded);
    if differs <= PADDING_TOLERANCE {
        return Ok(());
    }
    let how = match differs.is_finite() {
        true => format!("changes by {:.1} % of its largest number", differs * 100.0),
        false => "turns into something that is no number".to_owned(),
    };
    Err(format!(
        "output '{name}' {how} when a request is padded: the model does not mask what \
         it is padded with; export it with an attention mask as a further input (length_dim and pad = 0), or remove length_dim"
    ))
}

/// Returns the largest difference, relative to the largest number. For datatypes other than FP32,
/// returns 1 if the bytes differ.
fn difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.datatype != DataType::Fp32 {
        return if a.data == b.data { 0.0 } else { 1.0 };
    }
    let numbers = |tensor: &Tensor| -> Vec<f64> {
        tensor.data.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    let largest = a.iter().chain(&b).filter(|number| number.is_finite());
    let largest = largest.fold(f64::MIN_POSITIVE, |largest, number| number.abs().max(largest));
    let apart = a
        .iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most: f64, gap| if gap.is_nan() { f64::INFINITY } else { most.max(gap) });
    apart / largest
}

fn example_of_length(model: &dyn LoadedModel, length: u32) -> Result<Arc<[Tensor]>, LoadError> {
    let example = model.example(length).map(Arc::from);
    example.ok_or_else(|| LoadError("no example of its inputs can be made up: a shape is too large".to_owned()))
}

fn example_inputs(model: &dyn LoadedModel) -> Result<Arc<[Tensor]>, LoadError> {
    // The longest request needs the most memory and time, so it reveals first that a batch cannot
    // run.
    let length = model.lengths().map_or(EXAMPLE_LENGTH, |lengths| lengths.max);
    match model.example(length) {
        Some(example) => Ok(example.into()),
        None => {
            let example = |spec: &TensorSpec| example_of(spec, model.range(&spec.name));
            model.inputs().iter().map(example).collect()
        }
    }
}

/// Adds a point at `max_batch` if the measurement ended before: on the line through the last two,
/// or in proportion.
fn extrapolated(mut points: Vec<(usize, Nanos)>, max_batch: usize) -> Vec<(usize, Nanos)> {
    let max_batch = max_batch.max(1);
    match points[..] {
        [.., (b0, l0), (b1, l1)] if b1 < max_batch => {
            let rise = (l1 - l0).max(Nanos::ZERO).scale((max_batch - b1) as u64, (b1 - b0) as u64);
            points.push((max_batch, l1 + rise));
        }
        [(b0, l0)] if b0 < max_batch => points.push((max_batch, l0.scale(max_batch as u64, b0 as u64))),
        _ => {}
    }
    points
}

/// Creates one row: zeros for integers, which are valid ids, and ones for floats, which avoid
/// special cases of zero. Integers are as near to zero as the input's range allows.
pub(crate) fn example_of(spec: &TensorSpec, range: Option<(i64, i64)>) -> Result<Tensor, LoadError> {
    let row = spec.shape.iter().skip(1).map(|&dim| if dim == -1 { 1 } else { dim });
    let shape: Vec<i64> = [1].into_iter().chain(row).collect();
    let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    let elements = elements.filter(|&elements| elements <= 1 << 32).ok_or_else(|| {
        LoadError(format!("input '{}' has the shape {:?}: too large to be measured", spec.name, spec.shape))
    })?;
    let number = match (spec.datatype, range) {
        (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, _) => 1.0,
        (_, Some((least, most))) => 0.clamp(least, most.max(least)) as f64,
        (_, None) => 0.0,
    };
    // An empty string is its length.
    let element = bytes_of(spec.datatype, number).unwrap_or_else(|| vec![0; spec.datatype.size().unwrap_or(4)]);
    let data = Bytes::from(element.repeat(elements));
    Ok(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data })
}

/// Runs example requests of a model on a device of its own.
pub(crate) struct ExampleRunner {
    device: Box<dyn crate::Device>,
    results: Receiver<TaskResult>,
    /// Entry of each request of a batch.
    example: RequestEntry,
    /// Length that batches of it are padded to.
    length: u32,
    /// The block and node of each task of a walk, in an order in which they can run.
    pub(super) tasks: Vec<(BlockId, u32)>,
}

/// Number of elements or nodes of an example: enough for steps that continue from state.
const EXAMPLE_LENGTH: u32 = 4;

impl ExampleRunner {
    pub(crate) fn new(
        engine: &dyn Executor,
        model: &Arc<dyn LoadedModel>,
        inputs: Arc<[Tensor]>,
    ) -> Result<ExampleRunner, LoadError> {
        let (sender, results) = sync_channel(1);
        // Only one task is in flight; if the receiver is gone, the result is not needed.
        let device = engine.open(1, Arc::new(move |result| drop(sender.send(result))))?;
        device.attach(ModelId(0), Arc::clone(model));
        let refused = |cause| LoadError(format!("the example request is refused: {cause}"));
        let (extent, graph) = model.describe(&inputs).map_err(refused)?;
        let extent = Extent { limit: extent.limit.min(EXAMPLE_LENGTH), ..extent };
        let tasks = tasks(&**model, extent, graph.as_ref());
        let example = RequestEntry {
            payload: Payload::Here(inputs),
            extent,
            graph: graph.map(Arc::new),
            stream: false,
            ignore_conditions: true,
        };
        let length = model.lengths().map_or(1, |_| extent.length);
        Ok(ExampleRunner { device, results, example, length, tasks })
    }

    /// Runs a batch of requests through all their tasks; appends the duration of each.
    fn walk(&self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), ExecError> {
        let entries: Vec<Arc<RequestEntry>> = (0..batch).map(|_| Arc::new(self.example.clone())).collect();
        let walk = next_walk();
        for &(block, node) in &self.tasks {
            let member = |(slot, entry): (u32, &Arc<RequestEntry>)| TaskMember {
                node,
                walk,
                ..TaskMember::new(RequestSlot(slot), 1, Some(Arc::clone(entry)))
            };
            let members = (0..).zip(&entries).map(member).collect();
            let taken = self.run(task(block, self.length, members))?;
            samples[block.index()].push(taken);
        }
        Ok(())
    }

    /// Runs the example once.
    pub(crate) fn once(&self) -> Result<(), ExecError> {
        let blocks = self.tasks.iter().map(|&(block, _)| block.index() + 1).max().unwrap_or(0);
        self.walk(1, &mut vec![Vec::new(); blocks])
    }

    /// Creates the entry of another request, for [`answers`](ExampleRunner::answers).
    pub(crate) fn entry(&self, inputs: Vec<Tensor>) -> RequestEntry {
        RequestEntry { payload: Payload::Here(inputs.into()), ..self.example.clone() }
    }

    /// Runs one batch of these requests, which must run each block once. Returns their outputs.
    pub(crate) fn answers(&self, requests: &[&RequestEntry]) -> Result<Vec<Vec<Tensor>>, ExecError> {
        let entries: Vec<Arc<RequestEntry>> = requests.iter().map(|&entry| Arc::new(entry.clone())).collect();
        let length = requests.iter().map(|entry| entry.extent.length).max().unwrap_or(1);
        let mut outputs = Vec::new();
        for &(block, _) in &self.tasks {
            let member = |(slot, entry): (u32, &Arc<RequestEntry>)| {
                let rows = entry.inputs().first().and_then(|tensor| tensor.shape.first());
                TaskMember::new(RequestSlot(slot), rows.map_or(1, |&rows| rows as usize), Some(Arc::clone(entry)))
            };
            let members = (0..).zip(&entries).map(member).collect();
            let result = self.result(task(block, length, members))?;
            outputs = result.whole()?.into_iter().map(|progress| progress.outputs).collect();
        }
        Ok(outputs)
    }

    fn run(&self, task: Task) -> Result<Nanos, ExecError> {
        let result = self.result(task)?;
        let taken = result.finished.saturating_duration_since(result.started);
        result.whole()?;
        Ok(Nanos(i64::try_from(taken.as_nanos()).unwrap_or(i64::MAX).max(1)))
    }

    pub(super) fn result(&self, task: Task) -> Result<TaskResult, ExecError> {
        self.device.submit(task).map_err(|_| ExecError("the device is idle, yet refuses a task".to_owned()))?;
        self.results.recv_timeout(TASK_TIMEOUT).map_err(|cause| match cause {
            RecvTimeoutError::Timeout => ExecError(format!("the device has not answered for {TASK_TIMEOUT:?}")),
            RecvTimeoutError::Disconnected => ExecError("the device is gone".to_owned()),
        })
    }
}

/// Creates a task of a block.
pub(super) fn task(block: BlockId, length: u32, members: Vec<TaskMember>) -> Task {
    Task { id: TaskId(0), model: ModelId(0), block, lane: LaneId(0), length, members, not_before: None }
}

/// Returns the block and node of each task of a request, in topological order.
fn tasks(model: &dyn LoadedModel, extent: Extent, graph: Option<&Graph>) -> Vec<(BlockId, u32)> {
    let nodes = graph.map_or(0, |graph| graph.len() as u32);
    let of_graph = (0..nodes).filter_map(|node| Some((graph?.block(node), node)));
    let blocks = (0..model.blocks()).map(|block| BlockId(block as u16));
    let others = blocks.filter(|&block| model.steps(block) != Steps::Nodes);
    let of_blocks = others.flat_map(|block| (0..extent.steps(model.steps(block))).map(move |step| (block, step)));
    of_graph.chain(of_blocks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_halve_down_from_the_longest() {
        assert_eq!(lengths_below(1), [1]);
        assert_eq!(lengths_below(6), [6, 4, 2, 1]);
        assert_eq!(lengths_below(128), [128, 64, 32, 16, 8, 4]);
    }

    #[test]
    fn a_longer_batch_never_costs_less() {
        let table = |ns: [i64; 2]| Profile::from_table(&ns.map(Nanos)).unwrap();
        let block = block_profile(vec![(8, table([9, 30])), (4, table([12, 20])), (2, table([1, 2]))]).unwrap();
        let raised = LengthProfiles::new(vec![(2, table([1, 2])), (4, table([12, 20])), (8, table([12, 30]))]).unwrap();
        assert_eq!(block.lengths, Some(raised));
        assert_eq!(block.profile, table([12, 30]));
    }

    #[test]
    fn what_was_not_measured_is_extrapolated() {
        assert_eq!(extrapolated(vec![(1, Nanos(10))], 4), [(1, Nanos(10)), (4, Nanos(40))]);
        let two = vec![(1, Nanos(10)), (2, Nanos(12))];
        assert_eq!(extrapolated(two.clone(), 8), [(1, Nanos(10)), (2, Nanos(12)), (8, Nanos(24))]);
        assert_eq!(extrapolated(two.clone(), 2), two);
        assert_eq!(extrapolated(vec![(1, Nanos(10)), (2, Nanos(8))], 4)[2], (4, Nanos(8)));
    }

    #[test]
    fn an_output_that_is_not_as_long_as_the_request_has_no_length_dim() {
        let tensor = |shape: &[i64], number: f32| {
            let count = shape.iter().product::<i64>() as usize;
            let data = number.to_le_bytes().repeat(count).into();
            Tensor { name: "y".into(), datatype: DataType::Fp32, shape: shape.to_vec(), data }
        };
        let compared = |alone, padded| compare_padded(&tensor(alone, 1.0), &tensor(padded, 1.0), [106, 320]);
        assert!(compared(&[1, 106, 7], &[1, 320, 7]).unwrap_err().contains("name = \"y\" and length_dim = 1"));
        let shorter = compared(&[1, 13, 7], &[1, 40, 7]).unwrap_err();
        assert!(shorter.contains("is 13 long for a request of length 106 and 40 for one of 320"), "{shorter}");
        assert!(shorter.contains("remove every length_dim"), "{shorter}");
        let zeros = compare_padded(&tensor(&[1, 2], 0.0), &tensor(&[1, 2], 1.0), [1, 2]).unwrap_err();
        assert!(zeros.contains("changes by 100.0 % of its largest number"), "{zeros}");
        let lost = compare_padded(&tensor(&[1, 2], 1.0), &tensor(&[1, 2], f32::NAN), [1, 2]).unwrap_err();
        assert!(lost.contains("turns into something that is no number"), "{lost}");
    }

    #[test]
    fn examples_fit_their_specification() {
        for datatype in DataType::ALL {
            let spec = TensorSpec { name: "x".to_owned(), datatype, shape: vec![-1, 3, -1] };
            let tensor = example_of(&spec, Some((7, 9))).unwrap();
            assert_eq!(tensor.shape, [1, 3, 1]);
            assert!(datatype != DataType::Int64 || tensor.data[..8] == 7i64.to_le_bytes());
            assert_eq!(crate::run::rows::Rows::of_tensor(&tensor).map(|rows| rows.count()), Ok(1));
        }
    }
}
