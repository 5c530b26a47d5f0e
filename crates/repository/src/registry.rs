//! Which models this server answers for, in which versions and states.
//!
//! The repository writes it (load, unload, failure), every request reads it. One lock over one small table: writes are as
//! rare as loads, and a reader holds the lock only to clone an `Arc`. A version that is being replaced stays ready
//! until the repository says otherwise, so that a reload is not an outage.

use crate::edge::{Edge, Reshape};
use crate::ensemble::Ensemble;
use crate::labels::Labels;
use crate::slo::Slo;
use crate::stats::Statistics;
use bytes::Bytes;
use parking_lot::RwLock;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::InputLengths;
use ripieno_model::TensorSpec;
use ripieno_text::TextModel;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// A version of a model that answers requests.
#[derive(Debug)]
pub struct ServedEntry {
    /// The model's name in the protocol.
    pub name: String,
    /// Its version in the protocol: a positive integer in digits.
    pub version: String,
    /// What the runtime calls it; none for an ensemble, of which it knows the models.
    pub id: Option<ModelId>,
    /// The platform string of the metadata, for people: "onnxruntime_onnx", "emulated", …
    pub platform: String,
    /// Inputs; the first dimension is the batch and is given as -1 if any number of rows may come. Clients of a model that is not
    /// batched see the others alone: [`ServedEntry::shape`].
    pub inputs: Vec<TensorSpec>,
    /// Outputs, likewise.
    pub outputs: Vec<TensorSpec>,
    /// Whether requests share batches. If not, each is one row by itself.
    pub batched: bool,
    /// The most rows in one batch; 1 where each request is a sequence or graph of its own.
    pub max_batch: usize,
    /// Whether it has outputs that grow step by step, and so can answer one request with many messages.
    pub streams: bool,
    /// Where the inputs have the length of a request, if requests differ in length and are padded.
    pub lengths: Option<InputLengths>,
    /// What the classes of outputs are called, by output, where that is known.
    pub labels: BTreeMap<String, Labels>,
    /// How it reads texts, if it does.
    pub text: Option<Arc<TextModel>>,
    /// When answers are due.
    pub slo: Slo,
    /// What a request of one row takes on an idle device, where all take the same.
    pub one_row: Option<Nanos>,
    /// Its steps, if it is an ensemble.
    pub ensemble: Option<Arc<Ensemble>>,
    /// What is done for it between clients and the runtime.
    pub edge: Edge,
    /// What it did so far; starts as `Statistics::default()`.
    pub stats: Statistics,
}

impl ServedEntry {
    /// The shape of one of its tensors as clients see it.
    pub fn shape<'a>(&'a self, spec: &'a TensorSpec) -> &'a [i64] {
        let whole = self.edge.reshapes.get(&spec.name).map_or(&spec.shape[..], Reshape::clients);
        if self.batched { whole } else { whole.get(1..).unwrap_or_default() }
    }

    /// The shape to the model of what a client sent in that shape, which fits; the rows first.
    pub fn to_model(&self, spec: &TensorSpec, shape: Vec<i64>) -> Vec<i64> {
        let shape = if self.batched { shape } else { [1].into_iter().chain(shape).collect() };
        let reshaped = self.edge.reshapes.get(&spec.name).and_then(|reshape| reshape.to_model(&shape));
        reshaped.unwrap_or(shape)
    }

    /// The shape to clients of what the model gave in that shape, the rows first.
    pub fn to_clients(&self, name: &str, shape: &[i64]) -> Vec<i64> {
        let reshaped = self.edge.reshapes.get(name).and_then(|reshape| reshape.to_clients(shape));
        let whole = reshaped.unwrap_or_else(|| shape.to_vec());
        // Without a batch, the one row is the whole.
        if self.batched { whole } else { whole.get(1..).unwrap_or_default().to_vec() }
    }
}

/// What a version of a model is doing.
#[derive(Clone, Debug)]
pub enum ModelState {
    /// It is being read, checked or profiled.
    Loading,
    /// It answers.
    Ready(Arc<ServedEntry>),
    /// It failed to load, or was unloaded; the reason says which.
    Unavailable,
}

impl ModelState {
    /// The protocol's word for this state.
    pub fn name(&self) -> &'static str {
        match self {
            ModelState::Loading => "LOADING",
            ModelState::Ready(_) => "READY",
            ModelState::Unavailable => "UNAVAILABLE",
        }
    }
}

/// The reason of a version that was taken out of service because somebody asked for it.
pub const UNLOADED: &str = "unloaded";

/// One row of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The model.
    pub name: String,
    /// Its version; empty if the repository holds the model but never loaded it.
    pub version: String,
    /// LOADING, READY or UNAVAILABLE; empty if never loaded.
    pub state: String,
    /// Why it is in that state; empty if there is nothing to say.
    pub reason: String,
}

/// What a load call brings along instead of what the repository holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Brought {
    /// The configuration, in JSON, as a `config.pbtxt` would say it. None: without files the repository's own, with files none.
    pub config: Option<String>,
    /// All files of the model, `VERSION/NAME`. Without any it is the repository's model.
    pub files: BTreeMap<String, Bytes>,
}

/// Loads and unloads by name, as `POST /v2/repository/…` asks. Called away from the async threads: it may block.
pub trait Repository: Send + Sync {
    /// Loads the model, or loads it again, with what the caller brought along, if anything. The error names file, key and fix.
    fn load(&self, name: &str, brought: Option<&Brought>) -> Result<(), String>;

    /// Unloads all versions of the model.
    fn unload(&self, name: &str) -> Result<(), String>;

    /// Every model that the repository holds, loaded or not.
    fn index(&self) -> Vec<IndexRow>;
}

/// Why a model cannot be asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LookupError {
    /// No such model. The wording is what stock client tests look for.
    #[error("Request for unknown model: '{0}' is not found")]
    UnknownModel(String),
    /// The model is known, this version is not.
    #[error("Request for unknown model: '{name}' version {version} is not found; known versions: {known}")]
    UnknownVersion {
        /// The model.
        name: String,
        /// The version that was asked for.
        version: String,
        /// Those that exist.
        known: String,
    },
    /// It is on its way.
    #[error("model '{0}' is loading; ask /v2/models/{0}/ready and retry")]
    Loading(String),
    /// It failed to load or was unloaded.
    #[error("Request for unknown model: '{name}' has no available versions: {reason}")]
    Unavailable {
        /// The model.
        name: String,
        /// What the repository said.
        reason: String,
    },
}

#[derive(Debug)]
struct Version {
    state: ModelState,
    reason: String,
}

/// Versions order as numbers first, so that "10" is newer than "9".
type VersionKey = (u64, String);

/// The table of models.
#[derive(Debug, Default)]
pub struct Registry {
    models: RwLock<BTreeMap<String, BTreeMap<VersionKey, Version>>>,
}

impl Registry {
    /// No models.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Sets the state of one version; `reason` explains an unavailable one and is empty otherwise.
    pub fn set(&self, name: &str, version: &str, state: ModelState, reason: &str) {
        let version_state = Version { state, reason: reason.to_owned() };
        self.models.write().entry(name.to_owned()).or_default().insert(key(version), version_state);
    }

    /// Forgets one version, and the model with its last version.
    pub fn remove(&self, name: &str, version: &str) {
        let mut models = self.models.write();
        if let Some(versions) = models.get_mut(name) {
            versions.remove(&key(version));
            if versions.is_empty() {
                models.remove(name);
            }
        }
    }

    /// The entry that answers for `name`; an empty version means the newest that is ready.
    pub fn get(&self, name: &str, version: &str) -> Result<Arc<ServedEntry>, LookupError> {
        let models = self.models.read();
        let versions = models.get(name).ok_or_else(|| LookupError::UnknownModel(name.to_owned()))?;
        let found = if version.is_empty() { newest(versions) } else { versions.get(&key(version)) };
        let Some(found) = found else {
            let known: Vec<&str> = versions.keys().map(|(_, version)| version.as_str()).collect();
            return Err(LookupError::UnknownVersion {
                name: name.to_owned(),
                version: version.to_owned(),
                known: known.join(", "),
            });
        };
        match &found.state {
            ModelState::Ready(entry) => Ok(entry.clone()),
            ModelState::Loading => Err(LookupError::Loading(name.to_owned())),
            ModelState::Unavailable => {
                Err(LookupError::Unavailable { name: name.to_owned(), reason: found.reason.clone() })
            }
        }
    }

    /// The versions of `name` that are ready, oldest first.
    pub fn versions(&self, name: &str) -> Vec<String> {
        let models = self.models.read();
        let versions = models.get(name).into_iter().flatten();
        versions.filter(|(_, v)| matches!(v.state, ModelState::Ready(_))).map(|((_, name), _)| name.clone()).collect()
    }

    /// Every ready entry, by name and version.
    pub fn ready_entries(&self) -> Vec<Arc<ServedEntry>> {
        let models = self.models.read();
        let states = models.values().flat_map(|versions| versions.values()).map(|version| &version.state);
        states
            .filter_map(|state| if let ModelState::Ready(entry) = state { Some(entry.clone()) } else { None })
            .collect()
    }

    /// Whether any version is still loading that no ready version of its model stands in for.
    pub fn is_loading(&self) -> bool {
        let models = self.models.read();
        models.values().any(|versions| newest(versions).is_some_and(|v| matches!(v.state, ModelState::Loading)))
    }

    /// One row for every version, by name and version.
    pub fn index(&self) -> Vec<IndexRow> {
        let models = self.models.read();
        let rows = models.iter().flat_map(|(name, versions)| versions.iter().map(move |(key, v)| (name, key, v)));
        rows.map(|(name, (_, version), v)| IndexRow {
            name: name.clone(),
            version: version.clone(),
            state: v.state.name().to_owned(),
            reason: v.reason.clone(),
        })
        .collect()
    }
}

fn key(version: &str) -> VersionKey {
    (version.parse().unwrap_or(0), version.to_owned())
}

/// The newest ready version; failing that the newest that is loading; failing that the newest.
fn newest(versions: &BTreeMap<VersionKey, Version>) -> Option<&Version> {
    let rank = |version: &Version| match version.state {
        ModelState::Ready(_) => 2,
        ModelState::Loading => 1,
        ModelState::Unavailable => 0,
    };
    versions.values().max_by_key(|version| rank(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slo::Origin;
    use ripieno_base::Nanos;

    fn entry(version: &str) -> ModelState {
        ModelState::Ready(Arc::new(ServedEntry {
            name: "m".into(),
            version: version.into(),
            id: Some(ModelId(0)),
            platform: "emulated".into(),
            inputs: vec![],
            outputs: vec![],
            batched: true,
            max_batch: 1,
            streams: false,
            lengths: None,
            labels: BTreeMap::new(),
            text: None,
            slo: Slo { span: Nanos::from_millis(10), origin: Origin::Owner, answer_late: false },
            one_row: None,
            ensemble: None,
            edge: Default::default(),
            stats: Statistics::default(),
        }))
    }

    #[test]
    fn no_version_means_the_newest_that_is_ready() {
        let registry = Registry::new();
        for version in ["9", "10", "2"] {
            registry.set("m", version, entry(version), "");
        }
        registry.set("m", "11", ModelState::Loading, "");
        assert_eq!(registry.get("m", "").map(|e| e.version.clone()), Ok("10".to_owned()));
        assert_eq!(registry.get("m", "2").map(|e| e.version.clone()), Ok("2".to_owned()));
        assert_eq!(registry.versions("m"), ["2", "9", "10"]);
        assert!(!registry.is_loading());
    }

    #[test]
    fn errors_say_what_is_the_matter() {
        let registry = Registry::new();
        assert_eq!(registry.get("x", "").unwrap_err().to_string(), "Request for unknown model: 'x' is not found");
        registry.set("m", "1", ModelState::Loading, "");
        assert_eq!(registry.get("m", "").unwrap_err(), LookupError::Loading("m".into()));
        assert!(registry.is_loading());
        registry.set("m", "1", ModelState::Unavailable, "model.onnx: no such file");
        assert!(registry.get("m", "1").unwrap_err().to_string().ends_with("model.onnx: no such file"));
        assert!(registry.get("m", "7").unwrap_err().to_string().ends_with("version 7 is not found; known versions: 1"));
        assert_eq!(registry.index()[0].state, "UNAVAILABLE");
        registry.remove("m", "1");
        assert_eq!(registry.get("m", "").unwrap_err(), LookupError::UnknownModel("m".into()));
    }
}
