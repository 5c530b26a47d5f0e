//! Support for Triton's `config.pbtxt`.
//!
//! Every field of the format has a row in `rules.rs`: honoured, mapped to a key of `model.toml`,
//! not needed, without effect, or refused. A field is refused if ignoring it would change answers;
//! one that affects only speed causes a warning. No field is ignored silently, and `ripieno
//! migrate` prints the decisions of the loader.

mod migrate;
mod rules;
mod sequences;
mod settings;
#[cfg(test)]
mod tests;

use super::edge::Reshape;
use super::ensemble::EnsembleStep;
use super::model_files::{ModelFiles, PYTHON_FILE};
use ripieno_executor::LoadedModel;
use ripieno_model::{DataType, TensorSpec};
use ripieno_wire::pbtxt::{self, ConfigText, MAX_TEXT};
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_ensembling::Step;
use ripieno_wire::proto::inference::model_version_policy::PolicyChoice;
use ripieno_wire::proto::inference::{self, ModelConfig};
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

pub use super::config::Settings;
pub use migrate::{Migration, migrate};

/// Configuration file of a model folder in a Triton repository.
pub const TRITON_FILE: &str = "config.pbtxt";
/// Maximum number of versions of a model served at the same time.
const MAX_VERSIONS: usize = 16;
/// Maximum number of refused fields named in an error.
const MAX_NAMED_FIELDS: usize = 4;
/// Maximum length of quoted file content, in characters.
const MAX_QUOTED_CHARS: usize = 100;

/// Outcome of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FieldOutcome {
    /// Has the same effect as in Triton.
    Honoured,
    /// Becomes a key of `model.toml`.
    Mapped,
    /// Tunes something that the server measures or decides itself.
    NotNeeded,
    /// Has no effect; reported as a warning.
    WithoutEffect,
    /// Prevents the model from being served.
    Refused,
}

impl FieldOutcome {
    /// Returns the outcome as display text.
    pub fn name(self) -> &'static str {
        match self {
            FieldOutcome::Honoured => "honoured",
            FieldOutcome::Mapped => "mapped",
            FieldOutcome::NotNeeded => "not needed",
            FieldOutcome::WithoutEffect => "no effect",
            FieldOutcome::Refused => "refused",
        }
    }
}

/// A field of a file and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldFinding {
    /// Line of the field.
    pub line: usize,
    /// Field name, such as `instance_group[0].count`.
    pub field: String,
    /// Field value.
    pub value: String,
    /// Outcome.
    pub outcome: FieldOutcome,
    /// Explanation: the resulting key, the reason or the fix.
    pub becomes: String,
}

/// A parsed file.
#[derive(Clone, Debug, PartialEq)]
pub struct TritonConfig {
    /// File name for errors.
    pub file: String,
    /// Outcome of each field, in the order of the file.
    pub findings: Vec<FieldFinding>,
    /// Equivalent settings of `model.toml`.
    pub settings: Settings,
    /// Versions to serve, ascending; empty if none of the requested ones exists.
    pub versions: Vec<u64>,
    /// ONNX file in the version folder.
    pub model_file: Option<String>,
    /// Steps of an ensemble.
    pub steps: Vec<EnsembleStep>,
}

/// Context of a rule.
pub(super) struct RuleInput<'a> {
    config: &'a ModelConfig,
    /// Name of the model's folder.
    name: &'a str,
    /// Existing versions, ascending.
    versions: &'a [u64],
}

impl TritonConfig {
    /// Reads the file of a model that has these versions. The error names file, line, field and
    /// fix.
    pub fn read(path: &Path, name: &str, versions: &[u64]) -> Result<TritonConfig, String> {
        let file = path.display().to_string();
        let unreadable = |error| format!("{file}: cannot be read: {error}");
        // The size is checked first, so that an oversized file is not read into memory.
        if fs::metadata(path).map_err(unreadable)?.len() > MAX_TEXT as u64 {
            return Err(format!("{file}: is longer than {MAX_TEXT} bytes; remove what is no configuration"));
        }
        let text = String::from_utf8(fs::read(path).map_err(unreadable)?)
            .map_err(|_| format!("{file}: the file is not UTF-8 text; save it in that encoding"))?;
        TritonConfig::parse(&file, &text, name, versions)
    }

    /// Parses the text of a file that errors name `file`.
    pub fn parse(file: &str, text: &str, name: &str, versions: &[u64]) -> Result<TritonConfig, String> {
        let ConfigText { config, fields } = pbtxt::parse(text)
            .map_err(|error| format!("{file}:{}: {}; correct it", error.line, one_line(&error.message)))?;
        let case = RuleInput { config: &config, name, versions };
        let finding = |field: &pbtxt::Field| {
            let (outcome, becomes) = rules::judge(field, &case);
            let (value, field_name) = (one_line(&field.value), one_line(&field.name));
            FieldFinding { line: field.line, field: field_name, value, outcome, becomes }
        };
        let findings = fields.iter().map(finding).collect();
        let python = (config.backend == "python").then(|| PYTHON_FILE.to_owned());
        let model_file = Some(config.default_model_filename.clone()).filter(|name| !name.is_empty()).or(python);
        let explicit = fields.iter().any(|field| field.path == "max_batch_size");
        let settings = settings::from_config(&config, explicit);
        let versions = served(&config, versions);
        Ok(TritonConfig { file: file.to_owned(), findings, settings, versions, model_file, steps: steps(&config) })
    }

    /// Returns an error if any field is refused.
    pub fn check(&self) -> Result<(), String> {
        // The fields of one message are all refused for the same reason.
        let mut refused: Vec<&FieldFinding> = self.with_outcome(FieldOutcome::Refused).collect();
        refused.dedup_by_key(|finding| &finding.becomes);
        let Some(first) = refused.first() else { return Ok(()) };
        let said = |finding: &&FieldFinding| format!("{} = {}: {}", finding.field, finding.value, finding.becomes);
        let named: Vec<String> = refused.iter().take(MAX_NAMED_FIELDS).map(said).collect();
        let more = refused.len().saturating_sub(MAX_NAMED_FIELDS);
        let more = if more > 0 { format!("; and {more} more: ripieno migrate lists them") } else { String::new() };
        Err(format!("{}:{}: {}{more}", self.file, first.line, named.join("; ")))
    }

    /// Returns one warning for each field without effect.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |finding: &FieldFinding| {
            let FieldFinding { line, field, value, becomes, .. } = finding;
            format!("{}:{line}: {field} = {value} has no effect: {becomes}", self.file)
        };
        self.with_outcome(FieldOutcome::WithoutEffect).map(warning).collect()
    }

    /// Returns the resulting keys of `model.toml` with their values.
    pub fn mapped(&self) -> Vec<&str> {
        let mut keys: Vec<&str> =
            self.with_outcome(FieldOutcome::Mapped).map(|finding| finding.becomes.as_str()).collect();
        keys.dedup();
        keys
    }

    /// Checks the declared tensors against the loaded model.
    pub fn check_declared(&self, model: &dyn LoadedModel) -> Result<(), String> {
        // A model whose requests run alone has the file's own shapes behind a first dimension.
        let own = |spec: &TensorSpec| match model.batched() {
            true => spec.clone(),
            false => TensorSpec { shape: spec.shape[1..].to_vec(), ..spec.clone() },
        };
        let [mut inputs, outputs] =
            [model.inputs(), model.outputs()].map(|specs| specs.iter().map(own).collect::<Vec<_>>());
        let whole = |spec: &TensorSpec| TensorSpec { shape: spec.shape[1..].to_vec(), ..spec.clone() };
        inputs.extend(model.optional_inputs().iter().map(whole));
        self.check_tensors(&inputs, &outputs)?;
        let all = model.inputs().iter().chain(model.outputs());
        all.filter_map(|spec| Some((spec, self.settings.edge.reshapes.get(&spec.name)?)))
            .try_for_each(|(spec, reshape)| check_reshape(spec, reshape, model.batched()))
            .map_err(|cause| format!("{}: {cause}", self.file))?;
        let check = self.settings.edge.sequences.as_ref().map_or(Ok(()), |sequences| sequences.check(model));
        check.map_err(|cause| format!("{}: sequence_batching: {cause}", self.file))
    }

    /// Checks the declared tensors against the tensors of the model's file.
    pub(super) fn check_tensors(&self, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Result<(), String> {
        let sides = [("input", &self.settings.inputs, inputs), ("output", &self.settings.outputs, outputs)];
        for (kind, declared, actual) in sides {
            let check = |spec| check_tensor(kind, spec, actual).map_err(|cause| format!("{}: {cause}", self.file));
            declared.iter().try_for_each(check)?;
        }
        Ok(())
    }

    fn with_outcome(&self, outcome: FieldOutcome) -> impl Iterator<Item = &FieldFinding> {
        self.findings.iter().filter(move |finding| finding.outcome == outcome)
    }
}

/// Versions and file that a `config.pbtxt` selects for the scan.
#[derive(Default)]
pub(super) struct FileChoice {
    /// Versions to serve, ascending.
    pub(super) versions: Vec<u64>,
    /// ONNX file in the version folders.
    pub(super) model: Option<String>,
    pub(super) is_ensemble: bool,
}

/// Returns the selection of a file; empty if it cannot be read, which loading reports.
pub(super) fn choose_files(path: &Path, found: &ModelFiles) -> FileChoice {
    let Ok(read) = TritonConfig::read(path, &found.name, &found.versions) else { return FileChoice::default() };
    let TritonConfig { versions, model_file, steps, .. } = read;
    FileChoice { versions, model: model_file.filter(|name| rules::is_file_name(name)), is_ensemble: !steps.is_empty() }
}

/// Returns the steps of an ensemble; empty for other models.
fn steps(config: &ModelConfig) -> Vec<EnsembleStep> {
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else { return Vec::new() };
    let names =
        |map: &HashMap<String, String>| map.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let step = |step: &Step| EnsembleStep {
        model: step.model_name.clone(),
        version: if step.model_version > 0 { step.model_version.to_string() } else { String::new() },
        inputs: names(&step.input_map),
        outputs: names(&step.output_map),
    };
    ensemble.step.iter().map(step).collect()
}

/// Returns the existing versions that the version policy selects, ascending; the newest
/// [`MAX_VERSIONS`] if there are more.
fn served(config: &ModelConfig, versions: &[u64]) -> Vec<u64> {
    let policy = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    let newest = |count: usize| versions[versions.len().saturating_sub(count)..].to_vec();
    let mut asked = match policy {
        None => newest(1),
        Some(PolicyChoice::Latest(latest)) => newest(latest.num_versions.max(1) as usize),
        Some(PolicyChoice::All(_)) => versions.to_vec(),
        Some(PolicyChoice::Specific(specific)) => {
            let is_asked =
                |version: &&u64| specific.versions.iter().any(|&asked| u64::try_from(asked) == Ok(**version));
            versions.iter().filter(is_asked).copied().collect()
        }
    };
    asked.drain(..asked.len().saturating_sub(MAX_VERSIONS));
    asked
}

fn check_tensor(kind: &str, declared: &TensorSpec, actual: &[TensorSpec]) -> Result<(), String> {
    let TensorSpec { name, datatype, shape } = declared;
    let Some(spec) = actual.iter().find(|spec| spec.name == *name) else {
        let names: Vec<&str> = actual.iter().map(|spec| spec.name.as_str()).collect();
        return Err(format!("{kind} {name:?}: the model has no such {kind}; it has {}", names.join(", ")));
    };
    if spec.datatype != *datatype {
        return Err(format!("{kind} {name:?}: data_type says {datatype}, the model has {}; correct it", spec.datatype));
    }
    let known = &spec.shape;
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    if known.len() != shape.len() || !shape.iter().zip(known).all(agree) {
        return Err(format!(
            "{kind} {name:?}: dims and max_batch_size say {shape:?}, the model has {known:?}; correct them, or remove the \
             declaration"
        ));
    }
    Ok(())
}

/// Checks that a reshaped shape is one that the model accepts.
fn check_reshape(spec: &TensorSpec, reshape: &Reshape, batched: bool) -> Result<(), String> {
    let TensorSpec { name, shape, .. } = spec;
    if batched && reshape.model()[0] == 1 {
        return Err(format!("{name:?}: reshape needs to know whether requests share batches; say max_batch_size"));
    }
    // The other dimensions agree already wherever both are fixed.
    let is_open = |(&own, &said): (&i64, &i64)| own != -1 && said == -1;
    match shape.iter().zip(reshape.model()).skip(1).find(|&pair| is_open(pair)) {
        Some((size, _)) => Err(format!("{name:?}: reshape says -1 where the model has {size}; write that")),
        None => Ok(()),
    }
}

/// Returns the datatype; `None` if it is unset or unsupported.
fn model_type(datatype: inference::DataType) -> Option<DataType> {
    DataType::ALL.into_iter().find(|known| known.config_name() == datatype.as_str_name())
}

/// Shortens file content for a log line and escapes control characters.
fn one_line(text: &str) -> String {
    let mut shown = String::new();
    for next in text.chars().take(MAX_QUOTED_CHARS) {
        if next.is_control() { shown.extend(next.escape_default()) } else { shown.push(next) }
    }
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
