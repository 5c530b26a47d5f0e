//! Compares a chain of blocks with the whole model, in outputs and cost, for `ripieno slice
//! --check`.
//!
//! Both are loaded together and run in turn, so that other load on the machine affects both alike.
//! Times are processor times if the system provides them (Linux): a chain hands over between
//! threads at every block, and on a busy machine the wait for the processor would count as work.
//! Elsewhere they are wall-clock times from submission to the last answer.

use super::trial::{scratch, source, varied};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{
    Device, Executor, LoadedModel, ModelSource, RequestEntry, Task, TaskMember, TaskResult, Tensor,
};
use ripieno_model::TensorSpec;
use ripieno_onnx::{Cuts, OnnxModel, Slices};
use serde::Serialize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Timeout of a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(600);
const LENGTH: i64 = 24;
/// Number of alternating runs of the layers and the whole.
const BOUNDARY_RUNS: usize = 3;

/// Comparison at one batch size.
#[derive(Clone, Debug, Serialize)]
pub struct SliceComparison {
    /// Rows in the batch.
    pub rows: usize,
    /// Largest difference of any output value, relative to the output's largest value if that
    /// exceeds 1, since rounding errors scale with the values.
    pub difference: f64,
    /// Median time of the whole model in milliseconds.
    pub whole_ms: f64,
    /// Median time of all blocks together, including the hand-overs.
    pub blocks_ms: f64,
    /// Median ratio of blocks to whole, run by run.
    pub ratio: f64,
    /// Whether the times are processor times.
    pub processor: bool,
}

/// Compares a model with its blocks at each of these batch sizes, over `runs` runs each.
pub fn compare(
    engine: &dyn Executor,
    whole: &ModelSource,
    blocks: &ModelSource,
    batches: &[usize],
    runs: usize,
) -> Result<Vec<SliceComparison>, String> {
    let (sender, results) = channel();
    let device =
        engine.open(1, Arc::new(move |result| drop(sender.send(result)))).map_err(|error| error.to_string())?;
    let mut sides = Vec::with_capacity(2);
    for (number, source) in [whole, blocks].into_iter().enumerate() {
        let loaded = engine.load(source).map_err(|error| error.to_string())?;
        let id = ModelId(number as u16);
        device.attach(id, Arc::clone(&loaded));
        sides.push(ComparedModel { device: &*device, results: &results, id, loaded });
    }
    batches.iter().map(|&rows| compare_at(&sides, rows, runs.max(1))).collect()
}

/// Compares two slicings that are not written yet.
pub(super) fn compare_slices(
    engine: &dyn Executor,
    whole: &Slices<'_>,
    blocks: &Slices<'_>,
    batches: &[usize],
    runs: usize,
) -> Result<Vec<SliceComparison>, String> {
    let largest = batches.iter().copied().max().unwrap_or(1);
    let folders = [scratch()?, scratch()?];
    let mut sources = Vec::with_capacity(2);
    for (slices, folder) in [whole, blocks].into_iter().zip(&folders) {
        slices.write(folder.path()).map_err(|error| error.to_string())?;
        let names = slices.blocks.iter().map(|block| block.name.clone());
        sources.push(source("model", folder.path(), names, largest));
    }
    compare(engine, &sources[0], &sources[1], batches, runs)
}

/// Returns the part of the layers' total time `nanos` that the boundaries between them cause.
pub(super) fn boundary_cost(
    model: &OnnxModel,
    layers: &Slices<'_>,
    nanos: u64,
    rows: usize,
    engine: &dyn Executor,
) -> Result<u64, String> {
    let whole = model.slice(&Cuts::none(), "whole").map_err(|error| error.to_string())?;
    let lines = compare_slices(engine, &whole, layers, &[rows], BOUNDARY_RUNS)?;
    let ratio = lines.first().map_or(1.0, |line| line.ratio.max(1.0));
    Ok((nanos as f64 * (1.0 - 1.0 / ratio)) as u64)
}

/// Returns the cost of each cut alone: its two blocks compared with the whole model.
pub fn price_of_cuts(
    engine: &dyn Executor,
    model: &OnnxModel,
    cuts: &Cuts,
    rows: usize,
    runs: usize,
) -> Result<Vec<SliceComparison>, String> {
    let sliced = |cuts: &Cuts| model.slice(cuts, "part").map_err(|error| error.to_string());
    let whole = sliced(&Cuts::none())?;
    let one = |end: usize| {
        let lines = compare_slices(engine, &whole, &sliced(&cuts.grouped(&[end]))?, &[rows], runs)?;
        lines.into_iter().next().ok_or_else(|| "nothing was compared".to_owned())
    };
    (1..cuts.blocks()).map(one).collect()
}

fn compare_at(sides: &[ComparedModel<'_>], rows: usize, runs: usize) -> Result<SliceComparison, String> {
    let specs = sides[0].loaded.inputs();
    let range = |spec: &TensorSpec| sides[0].loaded.range(&spec.name);
    let row = |row: usize| specs.iter().map(|spec| varied(spec, range(spec), row, LENGTH)).collect();
    let entry = |at: usize| {
        let inputs: Arc<[Tensor]> = row(at);
        let (extent, _) = sides[0].loaded.describe(&inputs).map_err(|error| error.to_string())?;
        Ok(Arc::new(RequestEntry { extent, ..RequestEntry::of(inputs) }))
    };
    let inputs = (0..rows).map(entry).collect::<Result<Vec<_>, String>>()?;
    let answers = sides.iter().map(|side| side.run(&inputs)).collect::<Result<Vec<_>, _>>()?;
    let difference = difference(&answers[0].0, &answers[1].0)?;
    let (mut whole, mut blocks, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let [(_, first), (_, second)] = [sides[0].run(&inputs)?, sides[1].run(&inputs)?];
        whole.push(first);
        blocks.push(second);
        ratios.push(second / first.max(1e-9));
    }
    let [whole_ms, blocks_ms, ratio] = [whole, blocks, ratios].map(median);
    Ok(SliceComparison { rows, difference, whole_ms, blocks_ms, ratio, processor: processor_time().is_some() })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// A model attached to the device.
struct ComparedModel<'a> {
    device: &'a dyn Device,
    results: &'a Receiver<TaskResult>,
    id: ModelId,
    loaded: Arc<dyn LoadedModel>,
}

impl ComparedModel<'_> {
    /// Runs one batch through all blocks; returns each request's outputs and the time in
    /// milliseconds.
    fn run(&self, entries: &[Arc<RequestEntry>]) -> Result<(Vec<Vec<Tensor>>, f64), String> {
        let mut answers = Vec::new();
        let length = entries.iter().map(|entry| entry.extent.length).max().unwrap_or(1);
        let (begun, worked) = (Instant::now(), processor_time());
        for block in 0..self.loaded.blocks() {
            let member = |(slot, entry): (usize, &Arc<RequestEntry>)| {
                TaskMember::new(RequestSlot(slot as u32), 1, (block == 0).then(|| Arc::clone(entry)))
            };
            let members = entries.iter().enumerate().map(member).collect();
            let (id, block) = (TaskId(0), BlockId(block as u16));
            let task = Task { id, model: self.id, block, lane: LaneId(0), length, members, not_before: None };
            self.device.submit(task).map_err(|_| "the device takes no task".to_owned())?;
            let result =
                self.results.recv_timeout(BATCH_TIMEOUT).map_err(|_| "the device does not answer".to_owned())?;
            let progress = result.outcome.map_err(|error| error.to_string())?;
            answers = progress.into_iter().map(|member| member.outputs).collect();
        }
        let worked = worked.zip(processor_time()).map(|(begun, ended)| ended.saturating_sub(begun));
        Ok((answers, worked.unwrap_or_else(|| begun.elapsed()).as_secs_f64() * 1e3))
    }
}

/// Returns the processor time of all threads of this process; `None` if the system does not provide
/// it.
fn processor_time() -> Option<Duration> {
    let mut nanos = 0u64;
    for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread that ends while the list is read did none of the work.
        let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        nanos += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

fn difference(whole: &[Vec<Tensor>], blocks: &[Vec<Tensor>]) -> Result<f64, String> {
    let mut largest = 0f64;
    for (whole, blocks) in whole.iter().zip(blocks) {
        for tensor in whole {
            let twin = blocks.iter().find(|twin| twin.name == tensor.name && twin.shape == tensor.shape);
            let twin =
                twin.ok_or_else(|| format!("the blocks do not give output '{}' as the whole does", tensor.name))?;
            largest = largest.max(tensor_difference(tensor, twin));
        }
    }
    Ok(largest)
}

/// Returns the largest difference of FP32 values, relative to the largest value of `a` or 1. Other
/// datatypes must be identical.
fn tensor_difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.datatype.name() != "FP32" {
        return if a.data == b.data { 0.0 } else { f64::INFINITY };
    }
    let number = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
    let pairs = || a.data.as_chunks().0.iter().zip(b.data.as_chunks().0);
    let scale = pairs().map(|(a, _)| number(a).abs()).fold(1.0, f64::max);
    pairs()
        .map(|(a, b)| (number(a) - number(b)).abs() / scale)
        .map(|gap| if gap.is_nan() { f64::INFINITY } else { gap })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::DataType;

    #[test]
    fn a_difference_is_one_of_the_last_bits_or_of_the_answer() {
        let tensor = |numbers: [f32; 2]| Tensor {
            name: "y".into(),
            datatype: DataType::Fp32,
            shape: vec![1, 2],
            data: numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into(),
        };
        let between = |a, b| tensor_difference(&tensor(a), &tensor(b));
        assert!((between([0.5, 0.0], [0.5, 0.25]) - 0.25).abs() < 1e-9, "below 1 as it is");
        assert!(between([2000.0, 1.0], [2000.0, 1.0004]) < 1e-6, "beside large numbers a share of them");
        assert_eq!(between([1.0, 1.0], [1.0, f32::NAN]), f64::INFINITY);
    }
}
