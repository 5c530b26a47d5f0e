//! A model's first batches, run before any client's.
//!
//! Engines allocate, compile and page in on the first execution, which would otherwise be some client's missed deadline.
//! A device of its own is opened for it, so that the scheduler neither sees these batches nor counts them; and a model
//! that loads but cannot execute is found out here, before it is announced as ready.

use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{Device, Engine, Entry, Loaded, Member, Task, TaskResult, Tensor, run_example};
use ripieno_model::TensorSpec;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The longest that one block of one batch may take before the model is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest input tensor of a batch, in bytes; a file that declares a larger one is mistaken or hostile.
const LARGEST_INPUT: usize = 2 << 30;
const MODEL: ModelId = ModelId(0);

/// Runs `batches` batches of zeros through all blocks, the largest first, then single rows in turn with it. Where requests
/// unfold, or an input may not be zero, each batch is of example requests side by side.
pub(super) fn warm_up(
    engine: &dyn Engine,
    model: &Arc<dyn Loaded>,
    max_batch: usize,
    batches: usize,
) -> Result<(), String> {
    if batches == 0 {
        return Ok(());
    }
    let rows = |batch: usize| if batch.is_multiple_of(2) { max_batch } else { 1 };
    let zero = |spec: &TensorSpec| model.range(&spec.name).is_none_or(|(least, most)| (least..=most).contains(&0));
    if model.example(1).is_some() || !model.inputs().iter().all(zero) {
        return (0..batches)
            .try_for_each(|batch| run_example(engine, model, rows(batch)).map_err(|error| error.to_string()));
    }
    let (results, received) = channel();
    // The receiver outlives the device; a result that comes after it was given up has nobody to tell.
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
    model: &dyn Loaded,
    rows: usize,
    results: &Receiver<TaskResult>,
) -> Result<(), String> {
    let inputs = model.inputs().iter().map(|spec| zeros(spec, rows));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let entry = Arc::new(Entry { ignore_conditions: true, ..Entry::of(inputs.into()) });
    for block in 0..model.blocks() {
        let member = Member::new(RequestSlot(0), rows, (block == 0).then(|| entry.clone()));
        let (id, block) = (TaskId(block as u32), BlockId(block as u16));
        let task =
            Task { id, model: MODEL, block, lane: LaneId(0), length: 1, members: vec![member], not_before: None };
        device.submit(task).map_err(|_| "the device takes no task".to_owned())?;
        let result = results.recv_timeout(PATIENCE).map_err(|_| format!("it took longer than {PATIENCE:?}"))?;
        let progress = result.outcome.map_err(|error| error.to_string())?;
        if progress.iter().all(|member| member.ended) {
            break;
        }
    }
    Ok(())
}

/// A tensor of zeros; dimensions that are not fixed are one long. A zero length is an empty string in BYTES, too.
fn zeros(spec: &TensorSpec, rows: usize) -> Result<Tensor, String> {
    let inner = spec.shape.iter().skip(1).map(|&size| size.max(1));
    let shape: Vec<i64> = std::iter::once(rows as i64).chain(inner).collect();
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    let bytes = elements.and_then(|elements| elements.checked_mul(spec.datatype.size().unwrap_or(4)));
    let bytes = bytes.filter(|&bytes| bytes <= LARGEST_INPUT).ok_or_else(|| {
        format!("its input \"{}\" of shape {shape:?} is larger than {LARGEST_INPUT} bytes; lower max_batch", spec.name)
    })?;
    Ok(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: vec![0; bytes].into() })
}
