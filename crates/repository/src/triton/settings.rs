//! Conversion of a `config.pbtxt` into settings of `model.toml`.

use super::model_type;
use super::sequences::sequences;
use crate::config::{DEFAULT_WARM_UP, MAX_BATCH, MAX_INSTANCES, MAX_MS, MAX_QUEUED, MAX_WARM_UP, Settings};
use crate::edge::{EdgeConfig, Levels, Reshape};
use ripieno_base::Nanos;
use ripieno_model::TensorSpec;
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_instance_group::Kind;
use ripieno_wire::proto::inference::model_queue_policy::TimeoutAction;
use ripieno_wire::proto::inference::{self, ModelConfig, ModelDynamicBatching, ModelQueuePolicy, ModelTensorReshape};
use std::collections::BTreeMap;

/// Converts a configuration; `explicit` tells an explicit max_batch_size of 0 from an absent one.
pub(super) fn from_config(config: &ModelConfig, explicit: bool) -> Settings {
    let queue = queue_policy(config);
    let timeout = queue.map_or(0, |queue| queue.default_timeout_microseconds);
    let queue_timeout = (timeout > 0).then(|| micros(timeout));
    let delays = queue.is_some_and(|queue| queue.timeout_action() == TimeoutAction::Delay);
    let slo = slo_ms(config).and_then(Result::ok).map(Nanos::from_millis_f64);
    let batched = config.max_batch_size > 0;
    let unbatched = !batched && (explicit || is_described(config));
    Settings {
        slo,
        queue_timeout: queue_timeout.filter(|_| slo.is_none()),
        answer_late: queue_timeout.filter(|_| delays).map(|_| true),
        max_batch: batched.then(|| (config.max_batch_size as usize).min(MAX_BATCH)),
        unbatched,
        instances: instances(config),
        max_queue: queue.map(|queue| queue.max_queue_size as usize).filter(|&most| most > 0).map(clamp_queue),
        warm_up: warm_up(config),
        inputs: config
            .input
            .iter()
            .filter_map(|input| spec(&input.name, input.data_type(), &input.dims, input.reshape.as_ref(), batched))
            .collect(),
        outputs: config
            .output
            .iter()
            .filter_map(|output| spec(&output.name, output.data_type(), &output.dims, output.reshape.as_ref(), batched))
            .collect(),
        samples: samples(config, batched),
        labels: config.output.iter().filter_map(labels).collect(),
        answers: config.output.iter().map(|output| output.name.clone()).collect(),
        edge: edge(config),
    }
}

/// Returns the tensors of the warm-up requests, in the model's shape.
fn samples(config: &ModelConfig, batched: bool) -> Vec<TensorSpec> {
    let inputs = config.model_warmup.iter().flat_map(|sample| &sample.inputs);
    // A map has no order.
    let inputs: BTreeMap<_, _> = inputs.map(|(name, input)| ((name, &input.dims), input)).collect();
    inputs.into_iter().filter_map(|((name, dims), input)| spec(name, input.data_type(), dims, None, batched)).collect()
}

fn edge(config: &ModelConfig) -> EdgeConfig {
    let reshapes = input_reshapes(config).chain(output_reshapes(config));
    let reshapes = reshapes.filter_map(|(name, reshape)| Some((name.to_owned(), reshape?.ok()?)));
    EdgeConfig {
        reshapes: reshapes.collect(),
        levels: levels(config).and_then(Result::ok).unwrap_or_default(),
        sequences: sequences(config).and_then(Result::ok),
    }
}

/// Returns the priority levels, if any; an error if the default is not among them.
pub(super) fn levels(config: &ModelConfig) -> Option<Result<Levels, ()>> {
    let (count, default) =
        dynamic(config).map(|batching| (batching.priority_levels, batching.default_priority_level))?;
    (count > 0).then(|| Levels::new(count, default).ok_or(()))
}

/// Name and reshape of a tensor; the reshape is an error if it has another number of elements than
/// the dims.
type Named<'a> = (&'a str, Option<Result<Reshape, String>>);

/// Returns the reshapes of all inputs, in order.
pub(super) fn input_reshapes(config: &ModelConfig) -> impl Iterator<Item = Named<'_>> {
    let batched = config.max_batch_size > 0;
    config.input.iter().map(move |input| (&*input.name, reshape(&input.dims, input.reshape.as_ref(), batched)))
}

/// Returns the reshapes of all outputs, in order.
pub(super) fn output_reshapes(config: &ModelConfig) -> impl Iterator<Item = Named<'_>> {
    let batched = config.max_batch_size > 0;
    config.output.iter().map(move |output| (&*output.name, reshape(&output.dims, output.reshape.as_ref(), batched)))
}

fn reshape(dims: &[i64], reshape: Option<&ModelTensorReshape>, batched: bool) -> Option<Result<Reshape, String>> {
    reshape.map(|reshape| Reshape::new(dims, &reshape.shape, batched))
}

fn labels(output: &inference::ModelOutput) -> Option<(String, String)> {
    let (name, file) = (&output.name, &output.label_filename);
    (!name.is_empty() && !file.is_empty()).then(|| (name.clone(), file.clone()))
}

/// Converts microseconds, up to the maximum of model.toml, one day.
pub(super) fn micros(micros: u64) -> Nanos {
    let longest = Nanos::from_millis_f64(MAX_MS);
    i64::try_from(micros.saturating_mul(1000)).map_or(longest, |ns| Nanos(ns).min(longest))
}

pub(super) fn clamp_queue(most: usize) -> usize {
    most.min(MAX_QUEUED)
}

/// Returns true if all tensors are described. Without max_batch_size their shapes are then
/// complete; otherwise the model's file decides.
fn is_described(config: &ModelConfig) -> bool {
    !(config.input.is_empty() || config.output.is_empty())
}

/// Returns the queue policy of requests without a priority level.
pub(super) fn queue_policy(config: &ModelConfig) -> Option<&ModelQueuePolicy> {
    dynamic(config)?.default_queue_policy.as_ref()
}

fn dynamic(config: &ModelConfig) -> Option<&ModelDynamicBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    }
}

/// Returns the parameter `slo_ms`, if present; an error unless it is a positive number.
pub(super) fn slo_ms(config: &ModelConfig) -> Option<Result<f64, ()>> {
    let text = &config.parameters.get("slo_ms")?.string_value;
    let number = text.trim().parse().ok();
    Some(number.filter(|&millis: &f64| millis > 0.0 && millis <= MAX_MS).ok_or(()))
}

/// Returns the number of concurrent batches for groups without GPUs; the server determines the
/// number of GPUs.
pub(super) fn instances(config: &ModelConfig) -> Option<usize> {
    let groups = &config.instance_group;
    if groups.is_empty() || groups.iter().any(|group| group.kind() == Kind::Gpu) {
        return None;
    }
    let count = |sum: usize, count: i32| sum.saturating_add(usize::try_from(count).unwrap_or(1).max(1));
    Some(groups.iter().map(|group| group.count).fold(0, count).min(MAX_INSTANCES))
}

pub(super) fn warm_up(config: &ModelConfig) -> Option<usize> {
    let runs = config.model_warmup.iter().fold(0_usize, |sum, sample| sum.saturating_add(sample.count.max(1) as usize));
    (runs > 0).then(|| runs.clamp(DEFAULT_WARM_UP, MAX_WARM_UP))
}

/// Returns a declared tensor in the model's shape, if its datatype and shape are given.
fn spec(
    name: &str,
    datatype: inference::DataType,
    dims: &[i64],
    reshape: Option<&ModelTensorReshape>,
    batched: bool,
) -> Option<TensorSpec> {
    let datatype = model_type(datatype)?;
    if name.is_empty() || dims.is_empty() || dims.iter().any(|&size| size < -1 || size == 0) {
        return None;
    }
    let (batch, dims) = (batched.then_some(-1), reshape.map_or(dims, |reshape| &reshape.shape));
    Some(TensorSpec { name: name.to_owned(), datatype, shape: batch.into_iter().chain(dims.iter().copied()).collect() })
}
