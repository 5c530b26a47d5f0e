//! Rules for each field of a `config.pbtxt`: one row per field, or one for all fields below it.

use super::sequences::sequences;
use super::settings::{
    clamp_queue, input_reshapes, instances, levels, micros, output_reshapes, queue_policy, slo_ms, warm_up,
};
use super::{FieldOutcome, MAX_VERSIONS, RuleInput, served, steps};
use crate::config::MAX_BATCH;
use crate::edge::{LEVELS, Reshape};
use ripieno_wire::pbtxt::Field;
use ripieno_wire::proto::inference::model_version_policy::PolicyChoice;
use std::path::{Component, Path};

/// Rule that decides a field's outcome.
enum FieldRule {
    /// Independent of the value.
    Always(FieldOutcome, &'static str),
    /// Applies if the value is true; otherwise the field states the default behaviour.
    IfTrue(FieldOutcome, &'static str),
    /// Depends on the value and on other fields.
    Ask(fn(&Field, &RuleInput<'_>) -> FieldVerdict),
}

type FieldVerdict = (FieldOutcome, String);

use FieldOutcome::{Honoured, Mapped, NotNeeded, Refused, WithoutEffect};
use FieldRule::{Always, Ask, IfTrue};

const TENSORRT: &str = "it is about TensorRT and the memory of GPUs";
const NO_ENGINE_LIKE_IT: &str = "it is for TensorRT models; export the model to ONNX and remove it";
const BY_PROFILE: &str = "batches are formed by the measured profile and the SLO";
const ENGINE: &str = "the server's --device and --engine say what runs the model";

/// Rules by field path; a field without a row uses the rule of the nearest enclosing message.
const RULES: &[(&str, FieldRule)] = &[
    ("name", Ask(name)),
    ("platform", Ask(platform)),
    ("backend", Ask(backend)),
    ("runtime", Always(NotNeeded, "the server's --engine runs the model")),
    ("version_policy", Ask(versions)),
    ("max_batch_size", Ask(max_batch)),
    ("input", Always(Honoured, "checked against the model")),
    ("input.name", Ask(input_name)),
    ("input.format", Always(NotNeeded, "the shape says it all")),
    ("input.reshape", Ask(input_reshape)),
    ("input.is_shape_tensor", IfTrue(Refused, NO_ENGINE_LIKE_IT)),
    ("input.allow_ragged_batch", IfTrue(Refused, RAGGED)),
    (
        "input.optional",
        IfTrue(
            Honoured,
            "where the file has a default for it, an initializer of that name; without one every request needs it",
        ),
    ),
    ("input.is_non_linear_format_io", IfTrue(Refused, NO_ENGINE_LIKE_IT)),
    ("output", Always(Honoured, "checked against the model; outputs that are not listed are not returned")),
    ("output.name", Ask(output_name)),
    ("output.label_filename", Ask(labels)),
    ("output.reshape", Ask(output_reshape)),
    ("output.is_shape_tensor", IfTrue(Refused, NO_ENGINE_LIKE_IT)),
    ("output.is_non_linear_format_io", IfTrue(Refused, NO_ENGINE_LIKE_IT)),
    ("batch_input", Always(Refused, RAGGED)),
    ("batch_output", Always(Refused, RAGGED)),
    ("optimization", Always(NotNeeded, TENSORRT)),
    ("optimization.graph", Ask(graph_level)),
    ("optimization.priority", Ask(model_priority)),
    ("optimization.execution_accelerators", Always(WithoutEffect, ENGINE)),
    ("dynamic_batching", Always(NotNeeded, BY_PROFILE)),
    ("dynamic_batching.preferred_batch_size", Always(NotNeeded, "the measured profile tells which sizes pay")),
    (
        "dynamic_batching.max_queue_delay_microseconds",
        Always(NotNeeded, "a batch waits only where that pays, and never beyond its deadlines"),
    ),
    (
        "dynamic_batching.preserve_ordering",
        IfTrue(
            Refused,
            "answers on one stream come as they are done; have clients tell them apart by their id, and remove the field",
        ),
    ),
    ("dynamic_batching.priority_levels", Ask(priority_levels)),
    ("dynamic_batching.default_priority_level", Ask(default_level)),
    (
        "dynamic_batching.default_queue_policy",
        Always(NotNeeded, "queues are bounded, and waiting ends at the deadline"),
    ),
    ("dynamic_batching.default_queue_policy.timeout_action", Ask(timeout_action)),
    ("dynamic_batching.default_queue_policy.default_timeout_microseconds", Ask(queue_timeout)),
    ("dynamic_batching.default_queue_policy.allow_timeout_override", Ask(timeout_override)),
    ("dynamic_batching.default_queue_policy.max_queue_size", Ask(max_queue)),
    (
        "dynamic_batching.priority_queue_policy",
        Always(
            Refused,
            "one queue policy holds for all levels; write it as default_queue_policy, and remove the field",
        ),
    ),
    ("sequence_batching", Ask(sequence_batching)),
    ("sequence_batching.direct", Always(NotNeeded, SHARED)),
    ("sequence_batching.oldest", Always(NotNeeded, SHARED)),
    ("sequence_batching.state.initial_state.data_file", Always(Refused, STATE_FILE)),
    ("sequence_batching.state.use_same_buffer_for_input_output", Always(NotNeeded, TENSORRT)),
    ("sequence_batching.state.use_growable_memory", Always(NotNeeded, TENSORRT)),
    ("sequence_batching.iterative_sequence", IfTrue(Refused, ITERATIVE)),
    ("ensemble_scheduling", Ask(ensemble)),
    ("ensemble_scheduling.step.model_name", Always(Honoured, "the model of a step; it must be served")),
    ("ensemble_scheduling.step.model_version", Always(Honoured, "-1, or none, is the newest")),
    ("ensemble_scheduling.step.model_namespace", Ask(namespace)),
    ("ensemble_scheduling.step.input_map", Always(Honoured, "checked against the model")),
    ("ensemble_scheduling.step.output_map", Always(Honoured, "checked against the model")),
    ("ensemble_scheduling.max_inflight_responses", Always(NotNeeded, "each step gives one answer")),
    ("instance_group", Always(NotNeeded, "the server's --devices say what runs models")),
    ("instance_group.count", Ask(instance_count)),
    ("instance_group.kind", Ask(instance_kind)),
    ("instance_group.gpus", Always(WithoutEffect, ENGINE)),
    ("instance_group.profile", Always(WithoutEffect, TENSORRT)),
    ("instance_group.secondary_devices", Always(WithoutEffect, ENGINE)),
    (
        "instance_group.rate_limiter",
        Always(WithoutEffect, "models share the devices by weight; write weight in model.toml"),
    ),
    (
        "instance_group.passive",
        IfTrue(Refused, "a passive model takes no requests; remove the field, or the folder from the repository"),
    ),
    ("default_model_filename", Ask(model_file)),
    (
        "cc_model_filenames",
        Always(WithoutEffect, "the one file is served on every device: default_model_filename or model.onnx"),
    ),
    ("metric_tags", Always(WithoutEffect, "metrics carry the model's name and version only")),
    ("parameters", Ask(parameter)),
    (
        "model_warmup",
        Always(
            NotNeeded,
            "the largest batch and single rows run, of numbers that are made up, in the shapes given here",
        ),
    ),
    ("model_warmup.count", Ask(warm_up_count)),
    ("model_warmup.inputs.input_data_file", Always(WithoutEffect, "the file is not read; numbers are made up")),
    (
        "model_operations",
        Always(
            Refused,
            "libraries of operators are not loaded; export the model with standard operators and remove it",
        ),
    ),
    (
        "model_transaction_policy.decoupled",
        IfTrue(Refused, "an ONNX model gives one answer for each request; remove the field"),
    ),
    (
        "model_repository_agents",
        Always(
            Refused,
            "agents are not run, so what they check or decrypt would be passed over; remove the field to do without",
        ),
    ),
    ("response_cache.enable", IfTrue(WithoutEffect, "every request is computed")),
    ("model_metrics", Always(WithoutEffect, "the buckets of histograms are fixed")),
    ("model_transaction_policy", Always(Honoured, "one answer for each request")),
    ("response_cache", Always(NotNeeded, "every request is computed")),
];

const RAGGED: &str = "ragged batches are not formed; declare length_dim in model.toml to pad, and remove the field";
const SHARED: &str = "sequences share batches as other requests do, by the measured profile and the SLO";
const STATE_FILE: &str =
    "states begin as zeros; write zero_data: true, or have the model choose its first state by a control of the start";
const ITERATIVE: &str = "a request is run once; serve the model in cells (walk in model.toml), and remove the field";
const ENSEMBLE: &str = "platform \"ensemble\" and ensemble_scheduling with a step go together; write both, or neither";

/// Returns the outcome of a field and its explanation.
pub(super) fn judge(field: &Field, case: &RuleInput<'_>) -> (FieldOutcome, String) {
    match rule(&field.path) {
        Some(Always(outcome, text)) => (*outcome, (*text).to_owned()),
        Some(IfTrue(outcome, text)) if field.value == "true" => (*outcome, (*text).to_owned()),
        Some(IfTrue(..)) => (Honoured, "as it is in any case".to_owned()),
        Some(Ask(ask)) => ask(field, case),
        // Unreachable: a test checks that every field has a rule.
        None => (Refused, "it is not known here; remove it".to_owned()),
    }
}

fn rule(path: &str) -> Option<&'static FieldRule> {
    let mut around = Some(path);
    std::iter::from_fn(|| {
        let now = around?;
        around = now.rsplit_once('.').map(|(outer, _)| outer);
        Some(now)
    })
    .find_map(|path| RULES.iter().find(|(known, _)| *known == path).map(|(_, rule)| rule))
}

/// Returns true if this is a plain file name without a path.
pub(super) fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

fn verdict(outcome: FieldOutcome, text: impl Into<String>) -> FieldVerdict {
    (outcome, text.into())
}

fn name(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.name == case.name || case.config.name.is_empty() {
        true => verdict(Honoured, "the folder's name"),
        false => verdict(
            Refused,
            format!("the model's folder is called {:?}; rename one of the two, or remove the field", case.name),
        ),
    }
}

fn platform(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.platform.as_str() {
        "" | "onnxruntime_onnx" | "onnx_onnxv1" => verdict(Honoured, "ONNX is what is served"),
        "ensemble" if steps(case.config).is_empty() => verdict(Refused, ENSEMBLE),
        "ensemble" => verdict(Honoured, "its steps are run under one deadline"),
        _ => verdict(Refused, "only ONNX models are served (onnxruntime_onnx); export the model to ONNX"),
    }
}

fn ensemble(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.platform == "ensemble" && !steps(case.config).is_empty() {
        true => verdict(Honoured, "steps run as soon as what they need is there, under the one deadline of the whole"),
        false => verdict(Refused, ENSEMBLE),
    }
}

fn sequence_batching(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match sequences(case.config) {
        Some(Err(cause)) => verdict(Refused, cause),
        _ => verdict(
            Honoured,
            "requests of a sequence run one after another; the server keeps its states and fills its controls",
        ),
    }
}

fn namespace(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.trim_matches(['"', '\'']).is_empty() {
        true => verdict(NotNeeded, "no namespace"),
        false => verdict(Refused, "models have no namespaces; remove it"),
    }
}

fn backend(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.backend.as_str() {
        "" | "onnxruntime" => verdict(Honoured, "ONNX is what is served"),
        "python" => verdict(Honoured, "model.py is run by the package ripieno; no BLS, decoupled or GPU tensors"),
        _ => verdict(Refused, "onnxruntime and python are served; export the model to ONNX, or call it in model.py"),
    }
}

fn versions(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    let served = served(case.config, case.versions);
    let policy = case.config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    let missing = match policy {
        Some(PolicyChoice::Specific(specific)) => {
            let is_there = |asked: i64| u64::try_from(asked).is_ok_and(|asked| case.versions.contains(&asked));
            specific.versions.iter().filter(|&&asked| !is_there(asked)).map(i64::to_string).collect()
        }
        _ => Vec::new(),
    };
    let named: Vec<String> = served.iter().map(u64::to_string).collect();
    match (&named[..], policy) {
        ([], _) => verdict(Refused, "none of these versions has a folder; add it, or name one that is there"),
        _ if !missing.is_empty() => verdict(
            WithoutEffect,
            format!(
                "versions {} are served; {} has no folder: add it, or name it no more",
                named.join(", "),
                missing.join(", ")
            ),
        ),
        (_, Some(PolicyChoice::All(_))) if served.len() < case.versions.len() => verdict(
            WithoutEffect,
            format!(
                "{MAX_VERSIONS} versions of a model are served at most: {}; remove folders of old ones",
                named.join(", ")
            ),
        ),
        ([version], _) => verdict(Honoured, format!("version {version} is served")),
        _ => verdict(Honoured, format!("versions {} are served; who names none gets the newest", named.join(", "))),
    }
}

fn max_batch(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.max_batch_size {
        0 => verdict(Mapped, "batching = \"off\""),
        size @ 1.. if size as usize > MAX_BATCH => {
            verdict(Mapped, format!("max_batch = {}, the most there is", MAX_BATCH))
        }
        size @ 1.. => verdict(Mapped, format!("max_batch = {size}")),
        _ => verdict(Refused, "it must be 0, for requests one by one, or the most rows in a batch"),
    }
}

fn input_name(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    tensor_name(field, case.config.input.iter().map(|input| input.name.as_str()))
}

fn output_name(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    tensor_name(field, case.config.output.iter().map(|output| output.name.as_str()))
}

/// Returns the index of the tensor that the field's name contains.
fn index(field: &Field) -> Option<usize> {
    field.name.split_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.parse().ok())
}

fn input_reshape(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    reshape(case, index(field).and_then(|index| input_reshapes(case.config).nth(index)?.1))
}

fn output_reshape(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    reshape(case, index(field).and_then(|index| output_reshapes(case.config).nth(index)?.1))
}

fn reshape(case: &RuleInput<'_>, reshape: Option<Result<Reshape, String>>) -> FieldVerdict {
    match reshape {
        Some(Err(cause)) => verdict(Refused, cause),
        Some(Ok(_)) if case.config.platform == "ensemble" => {
            verdict(Refused, "an ensemble has the shapes of its models; write the reshape there")
        }
        Some(Ok(_)) => verdict(Honoured, "clients see dims, the model has this shape"),
        None => verdict(NotNeeded, "no reshape"),
    }
}

fn tensor_name<'a>(field: &Field, names: impl Iterator<Item = &'a str> + Clone) -> FieldVerdict {
    match index(field).and_then(|index| names.clone().nth(index)) {
        Some(own) if !own.is_empty() && names.filter(|name| *name == own).count() == 1 => {
            verdict(Honoured, "the model must have it")
        }
        _ => verdict(Refused, "each tensor is described once, by its name; correct it"),
    }
}

fn labels(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.trim_matches(['"', '\'']).is_empty() {
        true => verdict(NotNeeded, "no labels"),
        false => verdict(Mapped, format!("labels = {}", field.value)),
    }
}

fn graph_level(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.as_str() {
        "0" | "{}" => verdict(Honoured, "the engine's own level"),
        _ => verdict(WithoutEffect, "the engine optimises graphs at its own level"),
    }
}

fn model_priority(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.as_str() {
        "PRIORITY_DEFAULT" => verdict(Honoured, "models are equal"),
        _ => verdict(WithoutEffect, "models share the devices by weight; write weight in model.toml"),
    }
}

fn priority_levels(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match levels(case.config) {
        None => verdict(NotNeeded, "no levels"),
        Some(Err(())) => verdict(
            Refused,
            format!("default_priority_level must be one of the levels, 1 to {}; write it, or remove both", field.value),
        ),
        Some(Ok(_)) if field.value.parse().is_ok_and(|count: u64| count > LEVELS) => {
            verdict(WithoutEffect, format!("there are {LEVELS} levels; neighbours share one"))
        }
        Some(Ok(_)) => verdict(Honoured, "the parameter priority of a request counts from 1, the most urgent"),
    }
}

fn default_level(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match levels(case.config) {
        Some(_) => verdict(Honoured, "where requests stand that name none of the levels"),
        None => verdict(NotNeeded, "there are no priority_levels"),
    }
}

fn timeout_action(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    let timeout = queue_policy(case.config).map_or(0, |queue| queue.default_timeout_microseconds);
    match field.value.as_str() {
        _ if timeout == 0 => verdict(NotNeeded, "there is no default timeout"),
        "DELAY" => verdict(Mapped, "late = \"answer\""),
        _ => verdict(Mapped, "late = \"refuse\""),
    }
}

fn queue_timeout(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match queue_policy(case.config).map_or(0, |queue| queue.default_timeout_microseconds) {
        0 => verdict(NotNeeded, "no timeout"),
        _ if slo_ms(case.config).is_some() => verdict(NotNeeded, "slo_ms says when answers are due"),
        timeout => verdict(Mapped, format!("queue_timeout_ms = {}", micros(timeout).as_millis_f64())),
    }
}

fn timeout_override(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.as_str() {
        "true" => verdict(Honoured, "a request's own timeout counts if it is the nearer one"),
        _ => verdict(WithoutEffect, "a request's own timeout counts if it is the nearer one"),
    }
}

fn max_queue(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match queue_policy(case.config).map_or(0, |queue| queue.max_queue_size) {
        0 => verdict(NotNeeded, "max_queue in model.toml bounds the queue"),
        most => verdict(Mapped, format!("max_queue = {}, those that run among them", clamp_queue(most as usize))),
    }
}

fn instance_count(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match instances(case.config) {
        Some(count) => verdict(Mapped, format!("instances = {count}")),
        None => verdict(NotNeeded, "as many batches run concurrently as the server has --devices"),
    }
}

fn instance_kind(field: &Field, _: &RuleInput<'_>) -> FieldVerdict {
    match field.value.as_str() {
        "KIND_GPU" => verdict(WithoutEffect, ENGINE),
        _ => verdict(Honoured, ENGINE),
    }
}

fn model_file(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    match case.config.default_model_filename.as_str() {
        "" => verdict(NotNeeded, "model.onnx"),
        name if is_file_name(name) => verdict(Honoured, "the file in the version folder"),
        _ => verdict(Refused, "it must be the name of a file in the version folder"),
    }
}

fn parameter(field: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    let key = field.name.strip_prefix("parameters[").and_then(|rest| rest.split_once(']')).map_or("", |(key, _)| key);
    match (key.trim_matches(['"', '\'']), slo_ms(case.config)) {
        ("slo_ms", Some(Ok(millis))) => verdict(Mapped, format!("slo_ms = {millis}")),
        ("slo_ms", _) => verdict(Refused, "it must be a number of milliseconds above 0, as in string_value: \"50\""),
        _ => verdict(WithoutEffect, "the parameter is not known; the server's flags and model.toml have the settings"),
    }
}

fn warm_up_count(_: &Field, case: &RuleInput<'_>) -> FieldVerdict {
    verdict(Mapped, format!("warm_up = {}", warm_up(case.config).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_wire::pbtxt::known_fields;

    #[test]
    fn every_field_has_a_rule_and_every_rule_a_field() {
        let known = known_fields();
        assert!(known.len() > 100);
        for path in &known {
            assert!(rule(path).is_some(), "{path}");
        }
        for (path, _) in RULES {
            let of_it =
                |field: &String| field == path || field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
            assert!(known.iter().any(of_it), "{path}");
        }
    }
}
