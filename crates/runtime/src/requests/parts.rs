//! The parts of a job, which the scheduler sees as requests.

use crate::learn::capacity::ModelEntry;
use crate::requests::{jobs::JobPart, split};
use crate::{Failure, Job, RemoteJob};
use ripieno_base::BlockId;
use ripieno_executor::{Payload, RemoteRows, RequestEntry};
use ripieno_model::Steps;
use std::sync::Arc;

/// Splits a job into the parts that the scheduler sees as requests. Rows are split into batches. A
/// sequence or graph is one part, and its inputs are checked here.
pub(crate) fn of_job(job: &Job, model: &ModelEntry) -> Result<Vec<JobPart>, Failure> {
    let stream = job.on_step.is_some();
    let (extent, graph) = model.loaded.describe(&job.inputs).map_err(|error| Failure::Invalid(error.to_string()))?;
    if !model.unfolds {
        let parts = split::split(&job.inputs, job.rows, model.max_batch).into_iter();
        let entry = |inputs| RequestEntry { stream, ..RequestEntry::new(Payload::Here(inputs), extent) };
        let part = |(rows, inputs)| JobPart::new(rows, entry(inputs));
        return Ok(parts.map(part).collect());
    }
    if job.rows != 1 {
        let rows = job.rows;
        return Err(Failure::Invalid(format!("{rows} sequences or graphs in one request; send a request for each")));
    }
    let (payload, graph) = (Payload::Here(Arc::clone(&job.inputs)), graph.map(Arc::new));
    Ok(vec![JobPart::new(1, RequestEntry { graph, stream, ..RequestEntry::new(payload, extent) })])
}

/// Returns the parts of a request whose inputs are on another machine.
pub(crate) fn of_remote_job(job: &RemoteJob, model: &ModelEntry) -> Result<Vec<JobPart>, Failure> {
    if model.unfolds {
        return walk_of_remote_job(job, model).map(|part| vec![part]).map_err(Failure::Invalid);
    }
    let longest = model.loaded.lengths().map_or(1, |lengths| lengths.max);
    let length = job.extent.length;
    if !(1..=longest).contains(&length) {
        return Err(Failure::Invalid(format!(
            "a request of length {length}; model {:?} takes 1 to {longest}",
            model.name
        )));
    }
    let mut first_row = job.origin.first_row;
    let part = |rows: usize| {
        let origin = RemoteRows { first_row, ..job.origin };
        first_row = first_row.saturating_add(rows as u32);
        JobPart::new(rows, RequestEntry::new(Payload::Elsewhere(origin), job.extent))
    };
    // Allocates exactly, because most requests have one part.
    let mut parts = Vec::with_capacity(job.rows.div_ceil(model.max_batch));
    parts.extend(split::sizes(job.rows, model.max_batch).map(part));
    Ok(parts)
}

/// Returns the one part of a request that runs cell by cell and whose inputs are on another
/// machine. The error is the reason for which the model cannot run it.
fn walk_of_remote_job(job: &RemoteJob, model: &ModelEntry) -> Result<JobPart, String> {
    let RemoteJob { rows, graph, stream, .. } = job;
    let shape = model.loaded.walk_shape();
    let shape = shape.ok_or_else(|| format!("model {:?} does not tell the walks of its requests", model.name))?;
    if *rows != 1 {
        return Err(format!("{rows} sequences or graphs in one request; send a request for each"));
    }
    let (length, most) = (job.extent.length, shape.max_length);
    if !(1..=most).contains(&length) {
        return Err(format!("a walk of length {length}; model {:?} takes 1 to {most}", model.name));
    }
    let is_node = |block: BlockId| shape.cells.get(block.index()).is_some_and(|&(_, steps)| steps == Steps::Nodes);
    let fits = match graph {
        Some(graph) => {
            let is_sound = shape.walk.brings_graph() && graph.is_sound(shape.cells.len());
            is_sound && graph.len() == length as usize && (0..length).all(|node| is_node(graph.block(node)))
        }
        None => !shape.walk.brings_graph(),
    };
    if !fits {
        return Err(format!("a graph that is none of model {:?}", model.name));
    }
    let entry = RequestEntry::new(Payload::Elsewhere(job.origin), shape.extent(length));
    Ok(JobPart::new(1, RequestEntry { graph: graph.clone(), stream: *stream, ..entry }))
}
