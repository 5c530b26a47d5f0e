//! Warm-up batches, run before a model serves clients.
//!
//! Engines allocate, compile and page in on the first execution, which would otherwise make a
//! client miss its deadline. Warm-up opens a separate device, so that the scheduler neither sees
//! nor counts these batches. It also detects models that load but cannot execute before they are
//! announced as ready.

use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{
    Device, Executor, LoadedModel, RequestEntry, Task, TaskMember, TaskResult, Tensor, run_example,
};
use ripieno_model::TensorSpec;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Timeout of one block of one batch.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of an input tensor of a batch, in bytes; a file that declares a larger one is
/// faulty or malicious.
const MAX_INPUT_BYTES: usize = 2 << 30;
const MODEL: ModelId = ModelId(0);

/// Runs `batches` batches of zeros through all blocks, alternating the maximum batch size and
/// single rows. If the model's batches are padded to certain sizes, runs each of them half that
/// often, rounded up. Where requests unfold, an input must not be zero, or there is an `example`,
/// batches of example requests are used.
pub(super) fn warm_up(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    example: Option<&Arc<[Tensor]>>,
    max_batch: usize,
    batches: usize,
) -> Result<(), String> {
    if batches == 0 {
        return Ok(());
    }
    // The largest runs first, so that memory is allocated once.
    let (both, sizes) = ([1, max_batch], model.batch_sizes());
    let (sizes, batches) = match sizes {
        [] => (&both[..], batches),
        sizes => (sizes, batches.div_ceil(2) * sizes.len()),
    };
    let rows = |batch: usize| sizes[sizes.len() - 1 - batch % sizes.len()];
    let zero = |spec: &TensorSpec| model.range(&spec.name).is_none_or(|(least, most)| (least..=most).contains(&0));
    if example.is_some() || model.example(1).is_some() || !model.inputs().iter().all(zero) {
        return (0..batches).try_for_each(|batch| {
            let outcome = run_example(engine, model, example.cloned(), rows(batch));
            outcome.map_err(|error| format!("a warm-up batch of {} rows failed: {error}", rows(batch)))
        });
    }
    let (results, received) = channel();
    // The receiver may be gone when a result arrives after a timeout.
    let device =
        engine.open(1, Arc::new(move |result| drop(results.send(result)))).map_err(|error| error.to_string())?;
    device.attach(MODEL, model.clone());
    for batch in 0..batches {
        let rows = rows(batch);
        run_batch(device.as_ref(), model.as_ref(), rows, &received)
            .map_err(|cause| format!("a warm-up batch of {rows} rows of zeros failed: {cause}"))?;
    }
    device.detach(MODEL);
    Ok(())
}

fn run_batch(
    device: &dyn Device,
    model: &dyn LoadedModel,
    rows: usize,
    results: &Receiver<TaskResult>,
) -> Result<(), String> {
    let inputs = model.inputs().iter().map(|spec| zeros(spec, rows));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let entry = Arc::new(RequestEntry { ignore_conditions: true, ..RequestEntry::of(inputs.into()) });
    for block in 0..model.blocks() {
        let member = TaskMember::new(RequestSlot(0), rows, (block == 0).then(|| entry.clone()));
        let (id, block) = (TaskId(block as u32), BlockId(block as u16));
        let task =
            Task { id, model: MODEL, block, lane: LaneId(0), length: 1, members: vec![member], not_before: None };
        device.submit(task).map_err(|_| "the device takes no task".to_owned())?;
        let result =
            results.recv_timeout(BLOCK_TIMEOUT).map_err(|_| format!("it took longer than {BLOCK_TIMEOUT:?}"))?;
        let progress = result.outcome.map_err(|error| error.to_string())?;
        if progress.iter().all(|member| member.ended) {
            break;
        }
    }
    Ok(())
}

/// Returns a tensor of zeros; open dimensions have size one. In BYTES, four zero bytes are an empty
/// string.
fn zeros(spec: &TensorSpec, rows: usize) -> Result<Tensor, String> {
    let inner = spec.shape.iter().skip(1).map(|&size| size.max(1));
    let shape: Vec<i64> = std::iter::once(rows as i64).chain(inner).collect();
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    let bytes = elements.and_then(|elements| elements.checked_mul(spec.datatype.size().unwrap_or(4)));
    let bytes = bytes.filter(|&bytes| bytes <= MAX_INPUT_BYTES).ok_or_else(|| {
        format!(
            "its input \"{}\" of shape {shape:?} is larger than {MAX_INPUT_BYTES} bytes; lower max_batch",
            spec.name
        )
    })?;
    Ok(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: vec![0; bytes].into() })
}
