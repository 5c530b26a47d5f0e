//! Conversion of models between the repository of a backend and the registries of schedulers and
//! frontends.

use ripieno_base::ModelId;
use ripieno_cluster::{ModelDescription, TensorDescription};
use ripieno_model::{InputLengths, TensorSpec};
use ripieno_repository::labels::Labels;
use ripieno_repository::registry::{ModelRegistry, ModelState, ServedEntry};
use ripieno_repository::slo::{Slo, SloOrigin};
use ripieno_runtime::ServedModel;
use std::sync::Arc;

/// Returns the description of a model, whose files and settings have this digest.
pub(super) fn describe(entry: &ServedEntry, served: &ServedModel, digest: String) -> ModelDescription {
    let specs = |specs: &[TensorSpec]| specs.iter().map(TensorDescription::of).collect();
    let labels = entry.labels.iter().map(|(output, of)| (output.clone(), (of.file.clone(), of.names.clone())));
    ModelDescription {
        name: entry.name.clone(),
        version: entry.version.clone(),
        digest,
        platform: entry.platform.clone(),
        inputs: specs(&entry.inputs),
        outputs: specs(served.loaded.outputs()),
        answers: entry.outputs.iter().map(|spec| spec.name.clone()).collect(),
        batched: entry.batched,
        lengths: entry.lengths.as_ref().map(|lengths| (lengths.max, lengths.dims.clone())),
        model: served.model.clone(),
        max_queue: served.max_queue,
        max_queued_work: served.max_queued_work,
        answer_late: served.answer_late,
        slo_origin: entry.slo.origin.key().to_owned(),
        labels: labels.collect(),
        streams: entry.streams,
        walks: served.loaded.walk_shape().cloned(),
    }
}

/// Sets the models of a registry. Unchanged ones stay, and a new version serves before an earlier
/// one goes: clients find a model at any time.
pub(super) fn register(registry: &ModelRegistry, models: &[(ModelId, ModelDescription)]) {
    for (id, model) in models {
        match entry(*id, model) {
            Ok(entry) => registry.set(&model.name, &model.version, ModelState::Ready(Arc::new(entry)), ""),
            Err(cause) => registry.set(&model.name, &model.version, ModelState::Unavailable, &cause),
        }
    }
    for old in registry.ready_entries() {
        if !models.iter().any(|(_, model)| (&model.name, &model.version) == (&old.name, &old.version)) {
            registry.remove(&old.name, &old.version);
        }
    }
}

fn entry(id: ModelId, model: &ModelDescription) -> Result<ServedEntry, String> {
    let (inputs, outputs) = model.specs()?;
    let labels = |(file, names): (String, Vec<String>)| {
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        Labels { file, names, longest }
    };
    let origins = [SloOrigin::Given, SloOrigin::Owner, SloOrigin::QueueTimeout, SloOrigin::Profile];
    let origin = origins.into_iter().find(|origin| origin.key() == model.slo_origin).unwrap_or(SloOrigin::Owner);
    Ok(ServedEntry {
        name: model.name.clone(),
        version: model.version.clone(),
        id: Some(id),
        platform: model.platform.clone(),
        inputs,
        optional: Vec::new(),
        outputs: outputs.into_iter().filter(|spec| model.answers.contains(&spec.name)).collect(),
        batched: model.batched,
        unbatched: None,
        // A request of a walk is one sequence or graph.
        max_batch: if model.walks.is_some() { 1 } else { model.model.max_batch },
        streams: model.streams,
        lengths: model.lengths.clone().map(|(max, dims)| InputLengths { max, dims }),
        labels: model.labels.clone().into_iter().map(|(output, of)| (output, labels(of))).collect(),
        text: None,
        no_text: None,
        slo: Slo { span: model.model.slo, origin, answer_late: model.answer_late },
        one_row: model.single_row_latency(),
        ensemble: None,
        edge: Default::default(),
        stats: Default::default(),
    })
}
