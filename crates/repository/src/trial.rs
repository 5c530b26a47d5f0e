//! Runs slices on an engine: writes them to a temporary folder and loads them as a chain.

use ripieno_executor::{BlockSource, Executor, Measurement, ModelSource, Tensor, measure};
use ripieno_model::{Profile, TensorSpec};
use ripieno_onnx::Slices;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Size of open dimensions in measurements.
pub(super) const MEASURED_LENGTH: i64 = 64;

/// Measures the latency of each block by batch size, as a chain on an engine.
pub(super) fn measured(
    slices: &Slices<'_>,
    engine: &dyn Executor,
    max_batch: usize,
    budget: Duration,
    length: i64,
) -> Result<Vec<Profile>, String> {
    let folder = scratch()?;
    slices.write(folder.path()).map_err(|error| error.to_string())?;
    let source = source("model", folder.path(), slices.blocks.iter().map(|block| block.name.clone()), max_batch);
    let loaded = engine.load(&source).map_err(|error| error.to_string())?;
    let example = loaded.inputs().iter().map(|spec| example(spec, length)).collect::<Result<Vec<_>, _>>()?;
    let measurement = Measurement { max_batch, budget, example: Some(example.into()) };
    let measured = measure(engine, &loaded, &measurement, &mut |_| {}).map_err(|error| error.to_string())?;
    Ok(measured.blocks.into_iter().map(|block| block.profile).collect())
}

/// Returns the blocks of a folder as a chain.
pub fn source(name: &str, folder: &Path, blocks: impl Iterator<Item = String>, max_batch: usize) -> ModelSource {
    let block = |name: String| {
        let path = Some(folder.join(format!("{name}.onnx")));
        BlockSource { path, ..BlockSource::new(name) }
    };
    ModelSource::new(name, blocks.map(block).collect(), max_batch)
}

/// Returns one row of ones, or of zeros for integers, which are valid ids.
fn example(spec: &TensorSpec, length: i64) -> Result<Tensor, String> {
    let row = spec.shape.iter().skip(1).map(|&dim| if dim == -1 { length } else { dim });
    let shape: Vec<i64> = [1].into_iter().chain(row).collect();
    let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    let elements = elements.filter(|&elements| elements <= 1 << 28);
    let elements = elements.ok_or_else(|| format!("input '{}' of shape {shape:?} is too large", spec.name))?;
    let one: &[u8] = match spec.datatype.name() {
        "FP32" => &1f32.to_le_bytes(),
        _ => &[0; 8][..spec.datatype.size().unwrap_or(4)],
    };
    Ok(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: one.repeat(elements).into() })
}

/// Creates a temporary folder for slices, removed on drop.
pub(super) fn scratch() -> Result<TempDir, String> {
    let folder = tempfile::Builder::new().prefix("ripieno-slices-").tempdir();
    folder.map_err(|error| format!("no temporary folder can be made: {error}"))
}

/// Returns inputs for a comparison: values that differ between rows, and small ids for integers,
/// within `range` if the model takes no others.
pub(super) fn varied(spec: &TensorSpec, range: Option<(i64, i64)>, row: usize, length: i64) -> Tensor {
    let sizes = spec.shape.iter().skip(1).map(|&dim| if dim == -1 { length } else { dim });
    let shape: Vec<i64> = [1].into_iter().chain(sizes).collect();
    let count = shape.iter().product::<i64>().max(0) as usize;
    let number = |at: usize| (at * 7919 + row * 104_729 + 13) % 211;
    let (least, most) = range.map_or((0, 31), |(least, most)| (least.max(0).min(most), most));
    let count_ids = most.saturating_sub(least).clamp(0, 31) + 1;
    let id = |at: usize| least + number(at) as i64 % count_ids;
    let data: Vec<u8> = match spec.datatype.name() {
        "FP32" => (0..count).flat_map(|at| (number(at) as f32 / 105.0 - 1.0).to_le_bytes()).collect(),
        "INT64" => (0..count).flat_map(|at| id(at).to_le_bytes()).collect(),
        "INT32" => (0..count).flat_map(|at| (id(at) as i32).to_le_bytes()).collect(),
        _ => vec![0; count * spec.datatype.size().unwrap_or(4)],
    };
    Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: data.into() }
}
