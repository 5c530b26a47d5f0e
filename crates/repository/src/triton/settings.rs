//! What a `config.pbtxt` says, in keys of `model.toml`.

use super::model_type;
use super::sequences::sequences;
use crate::config::{DEFAULT_WARM_UP, LONGEST_MS, MOST_INSTANCES, MOST_QUEUED, MOST_WARM_UP, Settings};
use crate::edge::{Edge, Levels, Reshape};
use ripieno_base::Nanos;
use ripieno_model::{Profile, TensorSpec};
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_instance_group::Kind;
use ripieno_wire::proto::inference::model_queue_policy::TimeoutAction;
use ripieno_wire::proto::inference::{self, ModelConfig, ModelDynamicBatching, ModelQueuePolicy, ModelTensorReshape};

/// What a file says; `explicit` if it sets the largest batch, which is 0 where it does not.
pub(super) fn of(config: &ModelConfig, explicit: bool) -> Settings {
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
        max_batch: batched.then(|| (config.max_batch_size as usize).min(Profile::MAX_BATCH)),
        unbatched,
        instances: instances(config),
        max_queue: queue.map(|queue| queue.max_queue_size as usize).filter(|&most| most > 0).map(most_queued),
        warm_up: warm_up(config),
        inputs: config
            .input
            .iter()
            .filter_map(|input| spec(&input.name, input.data_type(), (&input.dims, &input.reshape), batched))
            .collect(),
        outputs: config
            .output
            .iter()
            .filter_map(|output| spec(&output.name, output.data_type(), (&output.dims, &output.reshape), batched))
            .collect(),
        labels: config.output.iter().filter_map(labels).collect(),
        answers: config.output.iter().map(|output| output.name.clone()).collect(),
        edge: edge(config),
    }
}

fn edge(config: &ModelConfig) -> Edge {
    let reshapes = input_reshapes(config).chain(output_reshapes(config));
    let reshapes = reshapes.filter_map(|(name, reshape)| Some((name.to_owned(), reshape?.ok()?)));
    Edge {
        reshapes: reshapes.collect(),
        levels: levels(config).and_then(Result::ok).unwrap_or_default(),
        sequences: sequences(config).and_then(Result::ok),
    }
}

/// The levels of priority, if there are any; an error if the default is none of them.
pub(super) fn levels(config: &ModelConfig) -> Option<Result<Levels, ()>> {
    let (count, default) =
        dynamic(config).map(|batching| (batching.priority_levels, batching.default_priority_level))?;
    (count > 0).then(|| Levels::new(count, default).ok_or(()))
}

/// A tensor's name, and its reshape if it has one: an error if that holds not as much as the dims.
type Named<'a> = (&'a str, Option<Result<Reshape, String>>);

/// Of all inputs, in their order.
pub(super) fn input_reshapes(config: &ModelConfig) -> impl Iterator<Item = Named<'_>> {
    let batched = config.max_batch_size > 0;
    config.input.iter().map(move |input| (&*input.name, reshape(&input.dims, input.reshape.as_ref(), batched)))
}

/// Of all outputs, in their order.
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

/// At most as long as model.toml allows, which is a day.
pub(super) fn micros(micros: u64) -> Nanos {
    let longest = Nanos::from_millis_f64(LONGEST_MS);
    i64::try_from(micros.saturating_mul(1000)).map_or(longest, |ns| Nanos(ns).min(longest))
}

pub(super) fn most_queued(most: usize) -> usize {
    most.min(MOST_QUEUED)
}

/// Tensors that are described without a largest batch are described whole; where nothing is said, the model's file is asked.
fn is_described(config: &ModelConfig) -> bool {
    !(config.input.is_empty() || config.output.is_empty())
}

/// The queue policy of requests without a level.
pub(super) fn queue_policy(config: &ModelConfig) -> Option<&ModelQueuePolicy> {
    dynamic(config)?.default_queue_policy.as_ref()
}

fn dynamic(config: &ModelConfig) -> Option<&ModelDynamicBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    }
}

/// The parameter `slo_ms`, if it is there; an error if it is no number above 0.
pub(super) fn slo_ms(config: &ModelConfig) -> Option<Result<f64, ()>> {
    let text = &config.parameters.get("slo_ms")?.string_value;
    let number = text.trim().parse().ok();
    Some(number.filter(|&millis: &f64| millis > 0.0 && millis <= LONGEST_MS).ok_or(()))
}

/// Batches at once, of groups that are not bound to GPUs: how many devices of that kind there are is the server's affair.
pub(super) fn instances(config: &ModelConfig) -> Option<usize> {
    let groups = &config.instance_group;
    if groups.is_empty() || groups.iter().any(|group| group.kind() == Kind::Gpu) {
        return None;
    }
    let count = |sum: usize, count: i32| sum.saturating_add(usize::try_from(count).unwrap_or(1).max(1));
    Some(groups.iter().map(|group| group.count).fold(0, count).min(MOST_INSTANCES))
}

pub(super) fn warm_up(config: &ModelConfig) -> Option<usize> {
    let runs = config.model_warmup.iter().fold(0_usize, |sum, sample| sum.saturating_add(sample.count.max(1) as usize));
    (runs > 0).then(|| runs.clamp(DEFAULT_WARM_UP, MOST_WARM_UP))
}

/// A declared tensor as the model has it, if its type and shape are said.
fn spec(
    name: &str,
    datatype: inference::DataType,
    (dims, reshape): (&[i64], &Option<ModelTensorReshape>),
    batched: bool,
) -> Option<TensorSpec> {
    let datatype = model_type(datatype)?;
    if name.is_empty() || dims.is_empty() || dims.iter().any(|&size| size < -1 || size == 0) {
        return None;
    }
    let (batch, dims) = (batched.then_some(-1), reshape.as_ref().map_or(dims, |reshape| &reshape.shape));
    Some(TensorSpec { name: name.to_owned(), datatype, shape: batch.into_iter().chain(dims.iter().copied()).collect() })
}
