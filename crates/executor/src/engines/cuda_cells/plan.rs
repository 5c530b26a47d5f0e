//! Programs of a model's cells, and where their inputs and outputs are.

use super::lower::{FeedKind, LoweredValue, Lowering, RowDim, numbers};
use super::schedule::{OutputPlace, Schedule};
use super::tensors::{Constants, is_int, is_known};
use crate::run::cells::{CellWiring, FeedSource, Seed, Wiring};
use crate::run::plan::ModelPlan;
use crate::{GpuOptions, LoadError};
use ripieno_cuda::{CellModelSpec, MAX_FEEDS, Matrix, StepProgram, UNIT};
use ripieno_model::{DataType, TensorSpec};
use ripieno_onnx::OnnxFile;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Largest number of outputs of a cell: each has a bit.
const MAX_OUTPUTS: usize = 32;
/// Largest number of rows of state of a model, unless memory sets a smaller one.
const MAX_ROWS: u64 = 1 << 16;
/// Memory for rows of state of a model that sets no limit, in bytes.
const DEFAULT_MEMORY: u64 = 512 << 20;
/// Largest of the batch sizes that double; larger ones are multiples of it.
const LARGEST_DOUBLED: usize = 64;

/// A model whose cells all have programs.
#[derive(Debug)]
pub(super) struct CompiledModel {
    pub(super) spec: Arc<CellModelSpec>,
    pub(super) cells: Vec<CompiledCell>,
}

/// A cell with a program.
#[derive(Debug)]
pub(super) struct CompiledCell {
    pub(super) feeds: Vec<CompiledFeed>,
    pub(super) outputs: Vec<CompiledOutput>,
    /// First word of each output in a row of state; `None` if no later cell reads it.
    pub(super) offsets: Arc<[Option<u32>]>,
}

#[derive(Debug)]
pub(super) struct CompiledFeed {
    pub(super) datatype: DataType,
    /// Place of its elements among the staged feeds.
    pub(super) staged: Matrix,
    /// Number of elements.
    pub(super) width: usize,
    /// True if the input is one element of the request, which stands in the entry itself.
    pub(super) is_immediate: bool,
}

#[derive(Debug)]
pub(super) struct CompiledOutput {
    pub(super) datatype: DataType,
    pub(super) row_shape: Vec<i64>,
    /// First column of the results for the host.
    pub(super) column: usize,
    /// Number of elements.
    pub(super) width: usize,
}

/// Compiles all cells of a model. The error names the cell and what the device does not know.
pub(super) fn compile(
    plan: &ModelPlan,
    wiring: &Wiring,
    files: &[&Path],
    options: GpuOptions,
) -> Result<CompiledModel, LoadError> {
    let sizes = sizes(plan.max_batch);
    let max_rows = sizes.last().copied().unwrap_or(1);
    let mut constants = Constants::new(options.precision);
    let (mut programs, mut cells, mut row_words) = (Vec::new(), Vec::new(), UNIT);
    for (block, (cell, file)) in wiring.cells.iter().zip(files).enumerate() {
        let refuse = |cause: String| LoadError(format!("{}: cell '{}': {cause}", file.display(), cell.name));
        let outputs = plan.blocks[block].outputs.iter().map(|&value| &plan.values[value].spec);
        let given = compiled_outputs(wiring, block, outputs).map_err(refuse)?;
        let mut compiler = CellCompiler { cell, constants: &mut constants, max_rows, options };
        let (program, feeds) = compiler.compile(file, &given).map_err(refuse)?;
        row_words = feeds.iter().map(|feed| feed.width).chain([given.row_words]).fold(row_words, usize::max);
        programs.push(program);
        cells.push(CompiledCell { feeds, outputs: given.outputs, offsets: given.offsets });
    }
    let row_units = row_words.div_ceil(UNIT);
    let rows =
        rows(row_units, max_rows, options).map_err(|cause| LoadError(format!("model '{}': {cause}", plan.name)))?;
    let (constants, precision) = (constants.words, options.precision);
    let spec = CellModelSpec { programs, constants, row_units, rows, precision, sizes };
    Ok(CompiledModel { spec: Arc::new(spec), cells })
}

/// Returns the batch sizes that are recorded: powers of two, then multiples of the largest one.
fn sizes(max_batch: usize) -> Vec<usize> {
    let doubled = (0..).map(|power| 1 << power).take_while(|&size| size < max_batch.min(LARGEST_DOUBLED));
    let rest = (LARGEST_DOUBLED..max_batch).step_by(LARGEST_DOUBLED);
    doubled.chain(rest).chain([max_batch]).collect()
}

/// Returns the number of rows of state: as many as fit into the memory.
fn rows(row_units: usize, max_rows: usize, options: GpuOptions) -> Result<usize, String> {
    let least = 2 * max_rows + 2;
    let memory = options.memory_limit.unwrap_or(DEFAULT_MEMORY);
    let row_bytes = (row_units * UNIT * 4) as u64;
    let rows = (memory / row_bytes).min(MAX_ROWS);
    match (rows >= least as u64, options.memory_limit) {
        (true, _) => Ok(rows as usize),
        (false, None) => Ok(least),
        (false, Some(limit)) => Err(format!(
            "gpu_memory_limit_mb = {}: two batches of {max_rows} rows of {row_bytes} bytes need {} MiB; allow more, or lower \
             max_batch",
            limit >> 20,
            (least as u64 * row_bytes).div_ceil(1 << 20)
        )),
    }
}

/// Outputs of a cell and their places.
struct GivenOutputs {
    outputs: Vec<CompiledOutput>,
    offsets: Arc<[Option<u32>]>,
    /// Words of the cell's row of state.
    row_words: usize,
    /// Words of the results for the host.
    results: usize,
}

fn compiled_outputs<'a>(
    wiring: &Wiring,
    block: usize,
    specs: impl Iterator<Item = &'a TensorSpec>,
) -> Result<GivenOutputs, String> {
    let (mut outputs, mut offsets, mut row_words, mut results) = (Vec::new(), Vec::new(), 0usize, 0usize);
    for (at, spec) in specs.enumerate() {
        let TensorSpec { name, datatype, shape } = spec;
        let width = elements(&shape[1..]).filter(|_| is_known(*datatype));
        let width = width
            .ok_or_else(|| format!("output '{name}' is {datatype} {shape:?}, which the GPU's cells do not know"))?;
        let (datatype, row_shape) = (*datatype, shape[1..].to_vec());
        let is_read = is_read(wiring, block, at);
        offsets.push(is_read.then_some(row_words as u32));
        row_words += if is_read { width.next_multiple_of(UNIT) } else { 0 };
        outputs.push(CompiledOutput { datatype, row_shape, column: results, width });
        results += width.next_multiple_of(UNIT);
    }
    match outputs.len() <= MAX_OUTPUTS {
        true => Ok(GivenOutputs { outputs, offsets: offsets.into(), row_words, results }),
        false => Err(format!("it has {} outputs; the GPU's cells have at most {MAX_OUTPUTS}", outputs.len())),
    }
}

/// Whether a cell of the model reads an output.
fn is_read(wiring: &Wiring, block: usize, output: usize) -> bool {
    let reads = |from: usize, cell: &CellWiring| {
        cell.feeds.iter().any(|feed| {
            let of_seed = matches!(feed.seed, Seed::Last(of, taken) if (of, taken) == (block, output));
            of_seed
                || match &feed.from {
                    FeedSource::Element(_) | FeedSource::Request(_) => false,
                    FeedSource::Previous(taken) => (from, *taken) == (block, output),
                    FeedSource::Step(of, taken) | FeedSource::Last(of, taken) => (*of, *taken) == (block, output),
                    FeedSource::Child(_, outputs) | FeedSource::Root(outputs) => outputs[block] == Some(output),
                }
        })
    };
    wiring.cells.iter().enumerate().any(|(from, cell)| reads(from, cell))
}

fn elements(shape: &[i64]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
        .filter(|&all| all > 0)
}

/// Compiles one cell.
struct CellCompiler<'a> {
    cell: &'a CellWiring,
    constants: &'a mut Constants,
    max_rows: usize,
    options: GpuOptions,
}

impl CellCompiler<'_> {
    fn compile(&mut self, file: &Path, given: &GivenOutputs) -> Result<(StepProgram, Vec<CompiledFeed>), String> {
        let (feeds, staged) = self.feeds()?;
        let onnx = OnnxFile::read(file).map_err(|cause| cause.to_string())?;
        if !onnx.functions().is_empty() {
            return Err("it defines functions of its own".to_owned());
        }
        let folder = file.parent().unwrap_or(Path::new(""));
        let graph = onnx.graph();
        let columns = feeds.iter().map(|feed| feed.staged).collect();
        let schedule = Schedule::new(columns, self.max_rows, self.options.precision);
        let mut lowering = Lowering { schedule, constants: self.constants, values: HashMap::new(), folder };
        for weight in &graph.initializer {
            lowering.values.insert(weight.name.clone(), LoweredValue::Constant(numbers(weight, folder)?));
        }
        for (at, (feed, wired)) in feeds.iter().zip(&self.cell.feeds).enumerate() {
            let dims = wired.row_shape.iter().map(|&dim| RowDim::Fixed(dim as usize));
            let CompiledFeed { datatype, width, is_immediate, .. } = *feed;
            let value = lowering.feed(at, FeedKind { width, is_int: is_int(datatype), is_immediate }, dims.collect());
            lowering.values.insert(wired.name.to_string(), value);
        }
        graph.node.iter().try_for_each(|node| lowering.node(node))?;
        let mut outputs = Vec::with_capacity(given.outputs.len());
        for (at, (output, value)) in given.outputs.iter().zip(&graph.output).enumerate() {
            let expr = lowering.output(&value.name, output.width, is_int(output.datatype))?;
            let row = given.offsets[at].map(|offset| offset as usize);
            outputs.push(OutputPlace { expr, row, result: output.column });
        }
        let program = lowering.schedule.finish(&outputs)?;
        let immediate = feeds.iter().enumerate().filter(|(_, feed)| feed.is_immediate);
        let immediate = immediate.fold(0, |bits, (at, _)| bits | 1 << at);
        Ok((StepProgram { feeds: feeds.len(), immediate, staged, results: given.results, ..program }, feeds))
    }

    /// Returns the inputs of the cell, and the words of those that are staged.
    fn feeds(&self) -> Result<(Vec<CompiledFeed>, usize), String> {
        let (mut feeds, mut staged) = (Vec::new(), 0usize);
        for feed in &self.cell.feeds {
            let width = elements(&feed.row_shape).filter(|_| is_known(feed.datatype));
            let width = width.ok_or_else(|| {
                format!(
                    "input '{}' is {} {:?}, which the GPU's cells do not know",
                    feed.name, feed.datatype, feed.row_shape
                )
            })?;
            let stride = width.next_multiple_of(UNIT);
            feeds.push(CompiledFeed {
                datatype: feed.datatype,
                staged: Matrix { base: staged, stride },
                width,
                is_immediate: width == 1 && feed.from.is_from_request(),
            });
            staged += stride * self.max_rows;
        }
        match feeds.len() <= MAX_FEEDS {
            true => Ok((feeds, staged)),
            false => Err(format!("it has {} inputs; the GPU's cells have at most {MAX_FEEDS}", feeds.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_and_then_grow_by_the_largest_of_them() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(12), [1, 2, 4, 8, 12]);
        assert_eq!(sizes(64), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(sizes(200), [1, 2, 4, 8, 16, 32, 64, 128, 192, 200]);
    }

    #[test]
    fn rows_fill_the_memory_and_two_batches_must_fit() {
        let limited = |mib: u64| GpuOptions { memory_limit: Some(mib << 20), ..GpuOptions::default() };
        assert_eq!(rows(512, 64, GpuOptions::default()), Ok(65_536));
        assert_eq!(rows(1 << 20, 64, GpuOptions::default()), Ok(130), "a wide row has two batches at least");
        assert_eq!(rows(512, 64, limited(8)), Ok(1024));
        let text = rows(512, 64, limited(1)).unwrap_err();
        assert!(text.starts_with("gpu_memory_limit_mb = 1: two batches of 64 rows of 8192 bytes need 2 MiB"), "{text}");
    }
}
