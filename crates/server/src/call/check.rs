//! Validation of a request against its model. Each refusal names the tensor, the expected and the
//! received value, and the fix.

use crate::call::delivery::has_classes;
use crate::problem::Problem;
use bytes::Bytes;
use ripieno_executor::Tensor;
use ripieno_model::{DataType, TensorSpec};
use ripieno_repository::edge::{LEVELS, Levels};
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::json::text_size;
use ripieno_wire::{InferRequest, OutputEncoding, Parameter, Parameters, RequestedOutput, WireTensor};
use std::sync::Arc;
use std::time::Duration;

/// A validated request.
#[derive(Debug)]
pub(crate) struct CheckedRequest {
    pub(crate) inputs: Arc<[Tensor]>,
    pub(crate) rows: usize,
    pub(crate) timeout: Option<Duration>,
    /// Priority for the scheduler; higher is more urgent.
    pub(crate) priority: u8,
    pub(crate) outputs: Vec<OutputSelection>,
}

/// An output to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputSelection {
    /// Index among the model's outputs.
    pub(crate) index: usize,
    pub(crate) encoding: OutputEncoding,
    /// Number of best classes to send instead of the scores.
    pub(crate) classes: Option<usize>,
}

pub(crate) fn check(entry: &ServedEntry, request: InferRequest) -> Result<CheckedRequest, Problem> {
    let timeout = timeout(&request.parameters)?;
    let priority = priority(&entry.edge.levels, &request.parameters)?;
    refuse_reserved(entry, &request.parameters)?;
    let outputs = outputs(entry, &request)?;
    let given = match request.raw_input {
        Some(raw) => vec![raw_input(entry, raw)?],
        None => request.inputs,
    };
    let inputs = inputs(entry, given)?;
    let rows = rows(entry, &inputs)?;
    check_alone(entry, &inputs, rows)?;
    if entry.edge.sequences.is_some() && rows != 1 {
        return Err(Problem::invalid(format!(
            "inference request to model '{}' must specify batch-size 1 due to requirements of sequence batcher, got {rows}; its \
             batches are of requests of several sequences",
            entry.name
        )));
    }
    Ok(CheckedRequest { inputs, rows, timeout, priority, outputs })
}

/// Returns the client's time limit for this request, in microseconds; 0, the default of clients,
/// means none.
fn timeout(parameters: &Parameters) -> Result<Option<Duration>, Problem> {
    let Some(value) = parameters.get("timeout") else { return Ok(None) };
    match value.as_u64() {
        Some(0) => Ok(None),
        Some(micros) => Ok(Some(Duration::from_micros(micros))),
        None => {
            Err(Problem::invalid(format!("parameter timeout is {value}; it must be a whole number of microseconds")))
        }
    }
}

/// Returns the scheduler's priority. The protocol counts levels from 1, the most urgent; 0 and
/// unknown levels mean the default.
fn priority(levels: &Levels, parameters: &Parameters) -> Result<u8, Problem> {
    let named = match parameters.get("priority") {
        None => 0,
        Some(value) => value.as_u64().ok_or_else(|| {
            Problem::invalid(format!(
                "parameter priority is {value}; it must be a whole number from 1, the most urgent"
            ))
        })?,
    };
    Ok((LEVELS + 1 - levels.to_server_level(named)) as u8)
}

/// Refuses parameters that have a meaning in Triton and must not be ignored silently.
fn refuse_reserved(entry: &ServedEntry, parameters: &Parameters) -> Result<(), Problem> {
    for (name, value) in &parameters.0 {
        let says_nothing = match value {
            Parameter::Int(0) | Parameter::Uint(0) | Parameter::Bool(false) => true,
            Parameter::Text(text) => text.is_empty(),
            _ => false,
        };
        match name.as_str() {
            "sequence_id" | "sequence_start" | "sequence_end" if !says_nothing && entry.edge.sequences.is_none() => {
                return Err(Problem::invalid(format!(
                    "{name} is {value}, but model '{}' keeps no state between requests; leave the sequence parameters out",
                    entry.name
                )));
            }
            "triton_enable_empty_final_response" => {}
            reserved if reserved == "headers" || reserved.starts_with("triton_") => {
                return Err(Problem::invalid(format!(
                    "parameter {reserved} is reserved and has no meaning in a request; leave it out, or name it otherwise"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

fn outputs(entry: &ServedEntry, request: &InferRequest) -> Result<Vec<OutputSelection>, Problem> {
    let form = |binary| if binary { OutputEncoding::Binary } else { OutputEncoding::Json };
    if request.outputs.is_empty() {
        let form = form(request.binary_outputs);
        return Ok((0..entry.outputs.len())
            .map(|index| OutputSelection { index, encoding: form, classes: None })
            .collect());
    }
    let find = |output: &RequestedOutput| {
        let index = entry.outputs.iter().position(|spec| spec.name == output.name).ok_or_else(|| {
            Problem::invalid(format!(
                "unexpected inference output '{}' for model '{}'; its outputs are {}",
                output.name,
                entry.name,
                names(&entry.outputs)
            ))
        })?;
        let classes = classes(output, entry.outputs[index].datatype)?;
        if output.shared_memory.is_none() {
            return Ok(OutputSelection {
                index,
                encoding: form(output.binary.unwrap_or(request.binary_outputs)),
                classes,
            });
        }
        if classes.is_some() {
            return Err(Problem::invalid(format!(
                "output '{}': classes are not written to shared memory; leave the region or the classification out",
                output.name
            )));
        }
        if entry.streams {
            return Err(Problem::invalid(format!(
                "output '{}': model '{}' answers step by step, which shared memory cannot hold; leave the region out",
                output.name, entry.name
            )));
        }
        Ok(OutputSelection { index, encoding: OutputEncoding::SharedMemory, classes })
    };
    request.outputs.iter().map(find).collect()
}

/// Returns the number of classes requested for an output; 0, the default of clients, means none.
fn classes(output: &RequestedOutput, datatype: DataType) -> Result<Option<usize>, Problem> {
    let Some(value) = output.parameters.get("classification") else { return Ok(None) };
    match value.as_u64() {
        Some(0) => Ok(None),
        Some(_) if !has_classes(datatype) => Err(Problem::invalid(format!(
            "output '{}': class result not available for output due to unsupported type '{datatype}'",
            output.name
        ))),
        Some(most) => Ok(Some(usize::try_from(most).unwrap_or(usize::MAX))),
        None => Err(Problem::invalid(format!(
            "output '{}': parameter classification is {value}; it must be a number of classes",
            output.name
        ))),
    }
}

/// Converts a raw binary request into one row of the model's only input; its size determines at
/// most one open dimension.
fn raw_input(entry: &ServedEntry, raw: Bytes) -> Result<WireTensor, Problem> {
    let [spec] = entry.inputs.as_slice() else {
        return Err(Problem::invalid(format!(
            "a raw binary request (Inference-Header-Content-Length: 0) needs a model of one input; '{}' has {}",
            entry.name,
            entry.inputs.len()
        )));
    };
    let datatype = spec.datatype;
    let tensor = |shape, data| WireTensor {
        name: spec.name.clone(),
        datatype,
        shape,
        data,
        parameters: Parameters::default(),
        is_slice: datatype.size().is_some(),
        shared_memory: None,
    };
    let mut shape = entry.shape(spec).to_vec();
    if entry.batched {
        shape[0] = 1;
    }
    let Some(size) = datatype.size() else {
        // One string, without the length prefix of BYTES elements.
        let length = u32::try_from(raw.len()).map_err(|_| Problem::invalid("a string longer than 2^32 bytes"))?;
        shape.fill(1);
        return Ok(tensor(shape, Bytes::from([&length.to_le_bytes()[..], &raw].concat())));
    };
    let fixed: usize = shape.iter().filter(|&&d| d >= 0).map(|&d| d as usize).product::<usize>() * size;
    let free = shape.iter().filter(|&&d| d < 0).count();
    let whole = !raw.is_empty() && fixed > 0 && raw.len().is_multiple_of(fixed);
    let fits = if free == 0 { raw.len() == fixed } else { whole };
    if free > 1 || !fits {
        return Err(Problem::invalid(format!(
            "a raw binary request of {} bytes does not fit one row of input '{}' of {datatype}, shape {:?}",
            raw.len(),
            spec.name,
            entry.shape(spec)
        )));
    }
    let size = raw.len() / fixed.max(1);
    shape.iter_mut().filter(|d| **d < 0).for_each(|d| *d = size as i64);
    Ok(tensor(shape, raw))
}

/// Returns the inputs in the model's order, and then those that replace defaults.
pub(crate) fn inputs(entry: &ServedEntry, mut given: Vec<WireTensor>) -> Result<Arc<[Tensor]>, Problem> {
    let known = |name: &str| entry.inputs.iter().chain(&entry.optional).any(|spec| spec.name == name);
    if let Some(extra) = given.iter().find(|input| !known(&input.name)) {
        let optional = match &entry.optional[..] {
            [] => String::new(),
            optional => format!(", and with defaults {}", names(optional)),
        };
        return Err(Problem::invalid(format!(
            "unexpected inference input '{}' for model '{}'; its inputs are {}{optional}",
            extra.name,
            entry.name,
            names(&entry.inputs)
        )));
    }
    let take = |spec: &TensorSpec| {
        let Some(at) = given.iter().position(|input| input.name == spec.name) else {
            return Err(Problem::invalid(format!(
                "input '{}' of model '{}' is missing; it needs {}",
                spec.name,
                entry.name,
                names(&entry.inputs)
            )));
        };
        tensor(entry, spec, given.swap_remove(at))
    };
    let mut inputs = entry.inputs.iter().map(take).collect::<Result<Vec<_>, Problem>>()?;
    for spec in &entry.optional {
        if let Some(at) = given.iter().position(|input| input.name == spec.name) {
            inputs.push(replacement(entry, spec, given.swap_remove(at))?);
        }
    }
    Ok(inputs.into())
}

/// Converts an input that replaces a default. It has the shape of the model's file, because one
/// tensor is for all rows.
fn replacement(entry: &ServedEntry, spec: &TensorSpec, input: WireTensor) -> Result<Tensor, Problem> {
    check_datatype(entry, spec, &input)?;
    let fits = |(expected, got): (&i64, &i64)| got == expected || (*expected < 0 && *got >= 0);
    let bounded = is_bounded(&input.shape);
    if input.shape.len() != spec.shape.len() || !spec.shape.iter().zip(&input.shape).all(fits) || !bounded {
        return Err(Problem::invalid(format!(
            "input '{}' of model '{}' must have shape {:?}, got {:?}; it is one for all rows of the request, and has a \
             default",
            spec.name, entry.name, spec.shape, input.shape
        )));
    }
    let WireTensor { shape, data, .. } = input;
    let shape = [1].into_iter().chain(shape).collect();
    Ok(Tensor { name: Arc::from(&*spec.name), datatype: spec.datatype, shape, data })
}

/// Checks that a request that replaces defaults fits into one batch: its rows are not known to be
/// independent with other values.
fn check_alone(entry: &ServedEntry, inputs: &[Tensor], rows: usize) -> Result<(), Problem> {
    match inputs.get(entry.inputs.len()) {
        Some(input) if rows > entry.max_batch => Err(Problem::invalid(format!(
            "a request that replaces the default of input '{}' of model '{}' runs as one batch, of at most {} rows; it has {rows}: \
             send several requests",
            input.name, entry.name, entry.max_batch
        ))),
        _ => Ok(()),
    }
}

fn check_datatype(entry: &ServedEntry, spec: &TensorSpec, input: &WireTensor) -> Result<(), Problem> {
    if input.datatype == spec.datatype {
        return Ok(());
    }
    Err(Problem::invalid(format!(
        "input '{}' of model '{}' must be {}, got {}; convert it first",
        spec.name, entry.name, spec.datatype, input.datatype
    )))
}

fn tensor(entry: &ServedEntry, spec: &TensorSpec, input: WireTensor) -> Result<Tensor, Problem> {
    check_datatype(entry, spec, &input)?;
    if !entry.batched {
        return whole_tensor(entry, spec, input);
    }
    let declared = entry.shape(spec);
    let free = |expected: &i64, got: &i64| *got == *expected || (*expected < 0 && *got >= 0);
    let fits = input.shape.len() == declared.len()
        && input.shape.first().is_some_and(|rows| *rows > 0)
        && declared.iter().zip(&input.shape).skip(1).all(|(expected, got)| free(expected, got))
        && is_bounded(&input.shape);
    if !fits {
        let is_open = declared.iter().skip(1).any(|size| *size < 0);
        let lacks_batch = input.shape.len() + 1 == declared.len()
            && declared.iter().skip(1).zip(&input.shape).all(|(expected, got)| free(expected, got));
        let advice = if lacks_batch {
            format!("; send one row as {:?}", [&[1], &input.shape[..]].concat())
        } else if is_open {
            "; others that are -1 may be 0, as an empty past is".to_owned()
        } else {
            String::new()
        };
        return Err(Problem::invalid(format!(
            "input '{}' of model '{}' must have shape {}, got {:?}; the first dimension is the batch and at least 1{advice}",
            spec.name,
            entry.name,
            shape_text(declared),
            input.shape
        )));
    }
    Ok(to_model_tensor(entry, spec, input))
}

/// Largest product of the other sizes of a tensor without elements.
const MOST_BESIDE_ZERO: i64 = 1 << 24;

/// Returns whether the sizes of a tensor are bounded by its data, or else by a constant: an empty
/// tensor has no data, and an engine may make others from its sizes.
fn is_bounded(shape: &[i64]) -> bool {
    let sizes = || shape.iter().filter(|&&size| size > 0);
    let product = sizes().try_fold(1_i64, |product, &size| product.checked_mul(size));
    !shape.contains(&0) || product.is_some_and(|product| product <= MOST_BESIDE_ZERO)
}

fn to_model_tensor(entry: &ServedEntry, spec: &TensorSpec, input: WireTensor) -> Tensor {
    let WireTensor { shape, data, .. } = input;
    let (name, datatype) = (Arc::from(spec.name.as_str()), spec.datatype);
    Tensor { name, datatype, shape: entry.to_model(spec, shape), data }
}

/// Converts an input of an unbatched model: the request is one row, so a batch dimension of one is
/// prepended.
fn whole_tensor(entry: &ServedEntry, spec: &TensorSpec, input: WireTensor) -> Result<Tensor, Problem> {
    let expected = entry.shape(spec);
    let fits = |(expected, got): (&i64, &i64)| got == expected || (*expected < 0 && *got >= 0);
    let bounded = is_bounded(&input.shape);
    if input.shape.len() != expected.len() || !expected.iter().zip(&input.shape).all(fits) || !bounded {
        return Err(Problem::invalid(format!(
            "input '{}' of model '{}' must have shape {expected:?}, got {:?}; the model takes no batches: send each row as a \
             request of its own, and at least 0 where the shape is -1",
            spec.name, entry.name, input.shape
        )));
    }
    Ok(to_model_tensor(entry, spec, input))
}

pub(crate) fn rows(entry: &ServedEntry, inputs: &[Tensor]) -> Result<usize, Problem> {
    let Some(first) = inputs.first() else { return Ok(1) };
    let own = inputs.iter().take(entry.inputs.len());
    if let Some(other) = own.into_iter().find(|input| input.shape[0] != first.shape[0]) {
        return Err(Problem::invalid(format!(
            "inputs of model '{}' differ in their rows: '{}' has {}, '{}' has {}; the first dimension is the batch and the \
             same for all",
            entry.name, first.name, first.shape[0], other.name, other.shape[0]
        )));
    }
    Ok(first.shape[0] as usize)
}

/// Returns a lower bound on the size of the outputs and their encoding; unknown dimensions count as
/// one.
pub(crate) fn answer_bytes(entry: &ServedEntry, rows: usize, outputs: impl Iterator<Item = OutputSelection>) -> usize {
    let size = |output: OutputSelection| {
        let spec = &entry.outputs[output.index];
        let known = spec.shape.iter().skip(1).map(|&dimension| usize::try_from(dimension).unwrap_or(1));
        let datatype = spec.datatype;
        let data = known.fold(rows.saturating_mul(datatype.size().unwrap_or(1)), usize::saturating_mul);
        data.saturating_add(match output.encoding {
            OutputEncoding::Binary => data,
            OutputEncoding::Json => text_size(datatype, data),
            OutputEncoding::SharedMemory => 0,
        })
    };
    outputs.map(size).fold(0, usize::saturating_add)
}

fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<String> = specs.iter().map(|spec| format!("'{}'", spec.name)).collect();
    names.join(", ")
}

/// Formats a declared shape with an open batch dimension.
fn shape_text(shape: &[i64]) -> String {
    let dimensions: Vec<String> = shape.iter().skip(1).map(i64::to_string).collect();
    if dimensions.is_empty() { "[-1]".to_owned() } else { format!("[-1, {}]", dimensions.join(", ")) }
}

#[cfg(test)]
mod tests;
