//! Metadata, configuration and statistics of models.
//!
//! Responses are built as gRPC messages; HTTP prints the same message as JSON, so that the two
//! cannot disagree.

use crate::access::SharedMemory;
use crate::state::ServerState;
use ripieno_model::TensorSpec;
use ripieno_repository::ensemble::EnsembleStep;
use ripieno_repository::registry::ServedEntry;
use ripieno_repository::slo::SloOrigin;
use ripieno_runtime::{Ending, ModelSnapshot, TallySnapshot};
use ripieno_wire::json::{ModelMetadataBody, ServerMetadataBody, TensorMetadataBody};
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_ensembling::Step;
use ripieno_wire::proto::inference::model_metadata_response::TensorMetadata;
use ripieno_wire::proto::inference::{
    DataType, InferBatchStatistics, InferStatistics, ModelConfig, ModelDynamicBatching, ModelEnsembling, ModelInput,
    ModelMetadataResponse, ModelOutput, ModelParameter, ModelSequenceBatching, ModelStatistics, ModelTensorReshape,
    ModelTransactionPolicy, StatisticDuration,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Supported protocol extensions; clients rely on this list.
const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "sequence",
    "statistics",
];

pub(crate) fn server_metadata(state: &ServerState) -> ServerMetadataBody {
    let shares_memory = state.config.access.shared_memory != SharedMemory::Off;
    let shared_memory = shares_memory.then_some(&"system_shared_memory");
    ServerMetadataBody {
        name: state.config.server_name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.iter().chain(shared_memory).map(|&name| name.to_owned()).collect(),
    }
}

pub(crate) fn metadata(state: &ServerState, entry: &ServedEntry) -> ModelMetadataResponse {
    let tensor = |spec: &TensorSpec, shape: Vec<i64>| TensorMetadata {
        name: spec.name.clone(),
        datatype: spec.datatype.name().to_owned(),
        shape,
    };
    let tensors = |specs: &[TensorSpec]| -> Vec<TensorMetadata> {
        let own = |spec: &TensorSpec| match entry.batched {
            true => std::iter::once(-1).chain(entry.shape(spec).iter().skip(1).copied()).collect(),
            false => entry.shape(spec).to_vec(),
        };
        specs.iter().map(|spec| tensor(spec, own(spec))).collect()
    };
    let mut inputs = tensors(&entry.inputs);
    inputs.extend(entry.optional.iter().map(|spec| tensor(spec, spec.shape.clone())));
    ModelMetadataResponse {
        name: entry.name.clone(),
        versions: state.registry.versions(&entry.name),
        platform: entry.platform.clone(),
        inputs,
        outputs: tensors(&entry.outputs),
    }
}

pub(crate) fn metadata_body(metadata: ModelMetadataResponse) -> ModelMetadataBody {
    let tensors = |tensors: Vec<TensorMetadata>| {
        let tensor = |t: TensorMetadata| TensorMetadataBody { name: t.name, datatype: t.datatype, shape: t.shape };
        tensors.into_iter().map(tensor).collect()
    };
    ModelMetadataBody {
        name: metadata.name,
        versions: metadata.versions,
        platform: metadata.platform,
        inputs: tensors(metadata.inputs),
        outputs: tensors(metadata.outputs),
    }
}

/// Returns the model's configuration. An unbatched model has a max_batch_size of 0, which tells
/// clients that shapes have no batch dimension; the parameter `unbatched` is the reason. The dims
/// of an optional input are its whole shape, because one tensor is for all rows.
pub(crate) fn config(entry: &ServedEntry) -> ModelConfig {
    let dims = |spec: &TensorSpec| entry.shape(spec).iter().skip(usize::from(entry.batched)).copied().collect();
    let reshape = |spec: &TensorSpec| {
        let shape = entry.edge.reshapes.get(&spec.name)?.model()[1..].to_vec();
        Some(ModelTensorReshape { shape })
    };
    let data_type = |spec: &TensorSpec| config_datatype(spec) as i32;
    let input = |spec: &TensorSpec| ModelInput {
        name: spec.name.clone(),
        data_type: data_type(spec),
        dims: dims(spec),
        reshape: reshape(spec),
        ..ModelInput::default()
    };
    let optional = |spec: &TensorSpec| ModelInput {
        name: spec.name.clone(),
        data_type: data_type(spec),
        dims: spec.shape.clone(),
        optional: true,
        ..ModelInput::default()
    };
    let output = |spec: &TensorSpec| ModelOutput {
        name: spec.name.clone(),
        data_type: data_type(spec),
        dims: dims(spec),
        reshape: reshape(spec),
        label_filename: entry.labels.get(&spec.name).map_or_else(String::new, |labels| labels.file.clone()),
        ..ModelOutput::default()
    };
    ModelConfig {
        name: entry.name.clone(),
        platform: entry.platform.clone(),
        backend: if entry.ensemble.is_some() { String::new() } else { "ripieno".to_owned() },
        max_batch_size: if entry.batched { i32::try_from(entry.max_batch).unwrap_or(i32::MAX) } else { 0 },
        input: entry.inputs.iter().map(input).chain(entry.optional.iter().map(optional)).collect(),
        output: entry.outputs.iter().map(output).collect(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: entry.streams }),
        parameters: parameters(entry),
        scheduling_choice: scheduling(entry),
        ..ModelConfig::default()
    }
}

fn parameters(entry: &ServedEntry) -> HashMap<String, ModelParameter> {
    // A target that follows from the profile only guides batches; no owner has set it.
    let is_set = entry.slo.origin != SloOrigin::Profile;
    let slo = is_set.then(|| ("slo_ms", entry.slo.span.as_millis_f64().to_string()));
    let unbatched = entry.unbatched.clone().map(|why| ("unbatched", why));
    let parameter = |(name, string_value): (&str, String)| (name.to_owned(), ModelParameter { string_value });
    slo.into_iter().chain(unbatched).map(parameter).collect()
}

fn scheduling(entry: &ServedEntry) -> Option<SchedulingChoice> {
    if let Some(sequences) = &entry.edge.sequences {
        let max_sequence_idle_microseconds = u64::try_from(sequences.idle.as_micros()).unwrap_or(u64::MAX);
        let batching = ModelSequenceBatching { max_sequence_idle_microseconds, ..ModelSequenceBatching::default() };
        return Some(SchedulingChoice::SequenceBatching(batching));
    }
    let Some(ensemble) = &entry.ensemble else {
        return entry.batched.then(|| SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    };
    let map = |tensors: &BTreeMap<String, String>| tensors.clone().into_iter().collect();
    let step = |step: &EnsembleStep| Step {
        model_name: step.model.clone(),
        model_version: step.version.parse().unwrap_or(-1),
        input_map: map(&step.inputs),
        output_map: map(&step.outputs),
        ..Step::default()
    };
    let step = ensemble.steps.iter().map(step).collect();
    Some(SchedulingChoice::EnsembleScheduling(ModelEnsembling { step, ..ModelEnsembling::default() }))
}

fn config_datatype(spec: &TensorSpec) -> DataType {
    DataType::from_str_name(spec.datatype.config_name()).unwrap_or(DataType::TypeInvalid)
}

pub(crate) fn config_json(config: &ModelConfig) -> Value {
    let data_type = |number: i32| DataType::try_from(number).unwrap_or(DataType::TypeInvalid).as_str_name();
    let reshaped = |mut tensor: Value, reshape: &Option<ModelTensorReshape>| {
        if let Some(ModelTensorReshape { shape }) = reshape {
            tensor["reshape"] = json!({"shape": shape});
        }
        tensor
    };
    let input = |input: &ModelInput| {
        let tensor = json!({
            "name": input.name, "data_type": data_type(input.data_type), "format": "FORMAT_NONE", "dims": input.dims,
            "is_shape_tensor": false, "allow_ragged_batch": false, "optional": input.optional,
        });
        reshaped(tensor, &input.reshape)
    };
    let output = |output: &ModelOutput| {
        let tensor = json!({
            "name": output.name, "data_type": data_type(output.data_type), "dims": output.dims, "label_filename": output.label_filename,
            "is_shape_tensor": false,
        });
        reshaped(tensor, &output.reshape)
    };
    let parameter =
        |(name, parameter): (&String, &ModelParameter)| (name.clone(), json!({"string_value": parameter.string_value}));
    let mut json = json!({
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "max_batch_size": config.max_batch_size,
        "input": config.input.iter().map(input).collect::<Vec<_>>(),
        "output": config.output.iter().map(output).collect::<Vec<_>>(),
        "parameters": config.parameters.iter().map(parameter).collect::<serde_json::Map<_, _>>(),
        "model_transaction_policy": {"decoupled": config.model_transaction_policy.is_some_and(|policy| policy.decoupled)},
    });
    let step = |step: &Step| {
        json!({
            "model_name": step.model_name, "model_version": step.model_version, "input_map": step.input_map,
            "output_map": step.output_map, "model_namespace": "",
        })
    };
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            json["ensemble_scheduling"] = json!({"step": ensemble.step.iter().map(step).collect::<Vec<_>>()});
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            json["sequence_batching"] =
                json!({"max_sequence_idle_microseconds": batching.max_sequence_idle_microseconds});
        }
        Some(_) => json["dynamic_batching"] = json!({}),
        None => {}
    }
    json
}

/// Returns the statistics: queueing and execution from the runtime, decoding and encoding from the
/// server.
pub(crate) fn statistics(state: &ServerState, entry: &ServedEntry) -> ModelStatistics {
    let named =
        ModelStatistics { name: entry.name.clone(), version: entry.version.clone(), ..ModelStatistics::default() };
    let Some(model) = state.model_metrics(entry) else {
        return ModelStatistics { inference_stats: Some(InferStatistics::default()), ..named };
    };
    // All three phases use one count, because perf_analyzer fails if they differ by requests in
    // flight.
    let count = model.compute.count;
    let refused = model.requests.iter().find(|(ending, _)| *ending == Ending::Refused).map_or(0, |(_, count)| *count);
    let none = || Some(StatisticDuration::default());
    ModelStatistics {
        last_inference: model.last_inference_ms,
        inference_count: model.rows,
        execution_count: model.batches,
        inference_stats: Some(InferStatistics {
            success: Some(duration(model.success)),
            fail: Some(StatisticDuration { count: model.fail.count + refused, ns: model.fail.ns }),
            queue: Some(duration(model.queue)),
            compute_input: Some(StatisticDuration { count, ns: entry.stats.decoding.ns() }),
            compute_infer: Some(duration(model.compute)),
            compute_output: Some(StatisticDuration { count, ns: entry.stats.encoding.ns() }),
            cache_hit: none(),
            cache_miss: none(),
        }),
        batch_stats: batches(&model),
        ..named
    }
}

/// Returns execution statistics by batch size. Decoding and encoding happen outside of batches, so
/// they have no time here.
fn batches(model: &ModelSnapshot) -> Vec<InferBatchStatistics> {
    let batch = |(rows, tally): &(usize, TallySnapshot)| {
        let count = tally.count;
        InferBatchStatistics {
            batch_size: *rows as u64,
            compute_input: Some(StatisticDuration { count, ns: 0 }),
            compute_infer: Some(duration(*tally)),
            compute_output: Some(StatisticDuration { count, ns: 0 }),
        }
    };
    model.by_batch.iter().map(batch).collect()
}

fn duration(tally: TallySnapshot) -> StatisticDuration {
    StatisticDuration { count: tally.count, ns: tally.ns }
}

/// Prints all fields including zeros, because clients read them without checking for their
/// presence.
pub(crate) fn statistics_json(statistics: &ModelStatistics) -> Value {
    let tally = |tally: &Option<StatisticDuration>| {
        let tally = tally.unwrap_or_default();
        json!({"count": tally.count, "ns": tally.ns})
    };
    let batch = |batch: &InferBatchStatistics| {
        json!({
            "batch_size": batch.batch_size,
            "compute_input": tally(&batch.compute_input),
            "compute_infer": tally(&batch.compute_infer),
            "compute_output": tally(&batch.compute_output),
        })
    };
    let stats = statistics.inference_stats.unwrap_or_default();
    json!({
        "name": statistics.name,
        "version": statistics.version,
        "last_inference": statistics.last_inference,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            "success": tally(&stats.success),
            "fail": tally(&stats.fail),
            "queue": tally(&stats.queue),
            "compute_input": tally(&stats.compute_input),
            "compute_infer": tally(&stats.compute_infer),
            "compute_output": tally(&stats.compute_output),
            "cache_hit": tally(&stats.cache_hit),
            "cache_miss": tally(&stats.cache_miss),
        },
        "response_stats": {},
        "batch_stats": statistics.batch_stats.iter().map(batch).collect::<Vec<_>>(),
        "memory_usage": [],
    })
}
