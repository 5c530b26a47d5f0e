//! `config.pbtxt`: a model as Triton's users configure it, served as it stands.
//!
//! Every field that the format knows has a row in `rules.rs`: honoured, mapped to a key of `model.toml`, not needed, without effect,
//! or refused. Refused is what would change answers if it were passed over; what only changes their speed is said as a warning. So
//! nothing in such a file is ignored in silence, and `ripieno migrate` prints what the loader does.

mod migrate;
mod rules;
mod sequences;
mod settings;
#[cfg(test)]
mod tests;

use super::edge::Reshape;
use super::ensemble::EnsembleStep;
use super::found::Found;
use ripieno_executor::Loaded;
use ripieno_model::{DataType, TensorSpec};
use ripieno_wire::Datatype;
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

/// The configuration of a model folder in a Triton repository.
pub const TRITON_FILE: &str = "config.pbtxt";
/// The most versions of one model that are served at once.
const MOST_VERSIONS: usize = 16;
/// Refused fields that an error names.
const MOST_NAMED: usize = 4;
/// The longest text of a file that is quoted, in characters.
const LONGEST_VALUE: usize = 100;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It does what it does in Triton.
    Honoured,
    /// It becomes a key of `model.toml`.
    Mapped,
    /// What it tunes is found out or decided by the server.
    NotNeeded,
    /// It has no effect, and should be known to have none.
    WithoutEffect,
    /// The model is not served with it.
    Refused,
}

impl Outcome {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Honoured => "honoured",
            Outcome::Mapped => "mapped",
            Outcome::NotNeeded => "not needed",
            Outcome::WithoutEffect => "no effect",
            Outcome::Refused => "refused",
        }
    }
}

/// A field of a file, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The line that it stands in.
    pub line: usize,
    /// The field: `instance_group[0].count`.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What becomes of it.
    pub outcome: Outcome,
    /// What that means: the key that it becomes, the reason, the way out.
    pub becomes: String,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TritonConfig {
    /// The file, as errors name it.
    pub file: String,
    /// What becomes of each field, in the order of the file.
    pub findings: Vec<Finding>,
    /// What it says in keys of `model.toml`.
    pub settings: Settings,
    /// The versions to serve, ascending; none if none of those that it asks for is there.
    pub versions: Vec<u64>,
    /// The file in the version folder.
    pub model_file: Option<String>,
    /// Of an ensemble, its steps.
    pub steps: Vec<EnsembleStep>,
}

/// What the rules look at beside the field.
pub(super) struct Case<'a> {
    config: &'a ModelConfig,
    /// The name of the folder.
    name: &'a str,
    /// The versions that are there, ascending.
    versions: &'a [u64],
}

impl TritonConfig {
    /// Reads the file of a model, of which these versions are there. The error names file, line, field and fix.
    pub fn read(path: &Path, name: &str, versions: &[u64]) -> Result<TritonConfig, String> {
        let file = path.display().to_string();
        let unreadable = |error| format!("{file}: cannot be read: {error}");
        // A file that is too long is not taken into memory to find that out.
        if fs::metadata(path).map_err(unreadable)?.len() > MAX_TEXT as u64 {
            return Err(format!("{file}: is longer than {MAX_TEXT} bytes; remove what is no configuration"));
        }
        let text = String::from_utf8(fs::read(path).map_err(unreadable)?)
            .map_err(|_| format!("{file}: the file is not UTF-8 text; save it in that encoding"))?;
        TritonConfig::parse(&file, &text, name, versions)
    }

    /// The same for the text of a file that errors name `file`.
    pub fn parse(file: &str, text: &str, name: &str, versions: &[u64]) -> Result<TritonConfig, String> {
        let ConfigText { config, fields } = pbtxt::parse(text)
            .map_err(|error| format!("{file}:{}: {}; correct it", error.line, one_line(&error.message)))?;
        let case = Case { config: &config, name, versions };
        let finding = |field: &pbtxt::Field| {
            let (outcome, becomes) = rules::judge(field, &case);
            let (value, field_name) = (one_line(&field.value), one_line(&field.name));
            Finding { line: field.line, field: field_name, value, outcome, becomes }
        };
        let findings = fields.iter().map(finding).collect();
        let model_file = Some(config.default_model_filename.clone()).filter(|name| !name.is_empty());
        let explicit = fields.iter().any(|field| field.path == "max_batch_size");
        let settings = settings::of(&config, explicit);
        let versions = served(&config, versions);
        Ok(TritonConfig { file: file.to_owned(), findings, settings, versions, model_file, steps: steps(&config) })
    }

    /// The error of a model that has refused fields.
    pub fn check(&self) -> Result<(), String> {
        // Of a message with many fields each is refused for the same reason.
        let mut refused: Vec<&Finding> = self.of(Outcome::Refused).collect();
        refused.dedup_by_key(|finding| &finding.becomes);
        let Some(first) = refused.first() else { return Ok(()) };
        let said = |finding: &&Finding| format!("{} = {}: {}", finding.field, finding.value, finding.becomes);
        let named: Vec<String> = refused.iter().take(MOST_NAMED).map(said).collect();
        let more = refused.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!("; and {more} more: ripieno migrate lists them") } else { String::new() };
        Err(format!("{}:{}: {}{more}", self.file, first.line, named.join("; ")))
    }

    /// What has no effect, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |finding: &Finding| {
            let Finding { line, field, value, becomes, .. } = finding;
            format!("{}:{line}: {field} = {value} has no effect: {becomes}", self.file)
        };
        self.of(Outcome::WithoutEffect).map(warning).collect()
    }

    /// The keys of `model.toml` that its fields become, with their values.
    pub fn mapped(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.of(Outcome::Mapped).map(|finding| finding.becomes.as_str()).collect();
        keys.dedup();
        keys
    }

    /// Compares the tensors that it declares with those of the loaded model.
    pub fn check_declared(&self, model: &dyn Loaded) -> Result<(), String> {
        let Settings { inputs, outputs, .. } = &self.settings;
        let sides = [("input", inputs, model.inputs()), ("output", outputs, model.outputs())];
        for (kind, declared, actual) in sides {
            for spec in declared {
                let actual =
                    actual.iter().map(|spec| (spec, if model.batched() { &spec.shape[..] } else { &spec.shape[1..] }));
                check_tensor(kind, spec, &actual.collect::<Vec<_>>())
                    .map_err(|cause| format!("{}: {cause}", self.file))?;
            }
        }
        let all = model.inputs().iter().chain(model.outputs());
        all.filter_map(|spec| Some((spec, self.settings.edge.reshapes.get(&spec.name)?)))
            .try_for_each(|(spec, reshape)| check_reshape(spec, reshape, model.batched()))
            .map_err(|cause| format!("{}: {cause}", self.file))?;
        let check = self.settings.edge.sequences.as_ref().map_or(Ok(()), |sequences| sequences.check(model));
        check.map_err(|cause| format!("{}: sequence_batching: {cause}", self.file))
    }

    fn of(&self, outcome: Outcome) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.outcome == outcome)
    }
}

/// What the file of a model asks the scan for.
#[derive(Default)]
pub(super) struct Asked {
    /// The versions to serve, ascending.
    pub(super) versions: Vec<u64>,
    /// The file in their folders.
    pub(super) model: Option<String>,
    pub(super) is_ensemble: bool,
}

/// What the file of a model asks for. Nothing if it cannot be read, which shows when the model is loaded.
pub(super) fn asked(path: &Path, found: &Found) -> Asked {
    let Ok(read) = TritonConfig::read(path, &found.name, &found.versions) else { return Asked::default() };
    let TritonConfig { versions, model_file, steps, .. } = read;
    Asked { versions, model: model_file.filter(|name| rules::is_file_name(name)), is_ensemble: !steps.is_empty() }
}

/// The steps of an ensemble; none of any other model.
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

/// Of the versions that are there, ascending, those that a policy asks for. Beyond [`MOST_VERSIONS`] the newest are served.
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
    asked.drain(..asked.len().saturating_sub(MOST_VERSIONS));
    asked
}

fn check_tensor(kind: &str, declared: &TensorSpec, actual: &[(&TensorSpec, &[i64])]) -> Result<(), String> {
    let TensorSpec { name, datatype, shape } = declared;
    let Some((spec, known)) = actual.iter().find(|(spec, _)| spec.name == *name) else {
        let names: Vec<&str> = actual.iter().map(|(spec, _)| spec.name.as_str()).collect();
        return Err(format!("{kind} {name:?}: the model has no such {kind}; it has {}", names.join(", ")));
    };
    if spec.datatype != *datatype {
        return Err(format!("{kind} {name:?}: data_type says {datatype}, the model has {}; correct it", spec.datatype));
    }
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    if known.len() != shape.len() || !shape.iter().zip(*known).all(agree) {
        return Err(format!(
            "{kind} {name:?}: dims and max_batch_size say {shape:?}, the model has {known:?}; correct them, or remove the \
             declaration"
        ));
    }
    Ok(())
}

/// A shape that fits must become one that the model takes.
fn check_reshape(spec: &TensorSpec, reshape: &Reshape, batched: bool) -> Result<(), String> {
    let TensorSpec { name, shape, .. } = spec;
    if batched && reshape.model()[0] == 1 {
        return Err(format!("{name:?}: reshape needs to know whether requests share batches; say max_batch_size"));
    }
    // Others than the rows agree already, as far as both say a number.
    let is_open = |(&own, &said): (&i64, &i64)| own != -1 && said == -1;
    match shape.iter().zip(reshape.model()).skip(1).find(|&pair| is_open(pair)) {
        Some((size, _)) => Err(format!("{name:?}: reshape says -1 where the model has {size}; write that")),
        None => Ok(()),
    }
}

/// The type of a tensor; none if it is not said, or no model has it.
fn model_type(datatype: inference::DataType) -> Option<DataType> {
    DataType::ALL.into_iter().find(|known| {
        Datatype::from_name(known.name()).is_some_and(|known| known.config_name() == datatype.as_str_name())
    })
}

/// A text from a file as it may stand in a log: short, and without control characters.
fn one_line(text: &str) -> String {
    let mut shown = String::new();
    for next in text.chars().take(LONGEST_VALUE) {
        if next.is_control() { shown.extend(next.escape_default()) } else { shown.push(next) }
    }
    if text.chars().nth(LONGEST_VALUE).is_some() {
        shown.push('…');
    }
    shown
}
