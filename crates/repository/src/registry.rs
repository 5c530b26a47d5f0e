//! Registry of the models, versions and states that this server answers for.
//!
//! The repository writes it on load, unload and failure; every request reads it. One lock guards a
//! small table: writes are rare, and readers hold the lock only to clone an `Arc`. A version that
//! is being replaced stays ready, so that a reload causes no outage.

use crate::edge::{EdgeConfig, Reshape};
use crate::ensemble::Ensemble;
use crate::labels::Labels;
use crate::slo::Slo;
use crate::stats::ServedStatistics;
use bytes::Bytes;
use parking_lot::RwLock;
use ripieno_base::{ModelId, Nanos};
use ripieno_model::{InputLengths, TensorSpec};
use ripieno_text::TextModel;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use thiserror::Error;

/// A version of a model that answers requests.
#[derive(Debug)]
pub struct ServedEntry {
    /// Model name.
    pub name: String,
    /// Version: a positive integer in digits.
    pub version: String,
    /// The runtime's model id; `None` for an ensemble, whose members the runtime knows instead.
    pub id: Option<ModelId>,
    /// Platform string of the metadata: "onnxruntime_onnx", "emulated", …
    pub platform: String,
    /// Inputs. The first dimension is the batch, -1 if any number of rows is allowed. Clients of an
    /// unbatched model see the other dimensions only: [`ServedEntry::shape`].
    pub inputs: Vec<TensorSpec>,
    /// Inputs that a request may leave out, in the shapes that clients see.
    pub optional: Vec<TensorSpec>,
    /// Outputs, likewise.
    pub outputs: Vec<TensorSpec>,
    /// Whether requests share batches; otherwise each request is one row.
    pub batched: bool,
    /// Reason for which requests do not share batches, if known.
    pub unbatched: Option<String>,
    /// Maximum rows in a batch; 1 where each request is a sequence or graph of its own.
    pub max_batch: usize,
    /// Whether outputs grow step by step, so that one request can have many response messages.
    pub streams: bool,
    /// Input dimensions that hold the request length, if requests vary in length and are padded.
    pub lengths: Option<InputLengths>,
    /// Class labels by output.
    pub labels: BTreeMap<String, Labels>,
    /// Text support, if the model accepts text.
    pub text: Option<Arc<TextModel>>,
    /// Reason for which a tokenizer beside the model is not used, if there is one.
    pub no_text: Option<String>,
    /// Latency target.
    pub slo: Slo,
    /// Latency of a one-row request on an idle device, if it is constant.
    pub one_row: Option<Nanos>,
    /// Steps, if the model is an ensemble.
    pub ensemble: Option<Arc<Ensemble>>,
    /// Processing between clients and the runtime.
    pub edge: EdgeConfig,
    /// Counters of the server; `ServedStatistics::default()` at the start.
    pub stats: ServedStatistics,
}

impl ServedEntry {
    /// Returns the shape of a tensor as clients see it.
    pub fn shape<'a>(&'a self, spec: &'a TensorSpec) -> &'a [i64] {
        let whole = self.edge.reshapes.get(&spec.name).map_or(&spec.shape[..], Reshape::clients);
        if self.batched { whole } else { whole.get(1..).unwrap_or_default() }
    }

    /// Converts a valid client shape into the model's, with the batch dimension first.
    pub fn to_model(&self, spec: &TensorSpec, shape: Vec<i64>) -> Vec<i64> {
        let shape = if self.batched { shape } else { [1].into_iter().chain(shape).collect() };
        let reshaped = self.edge.reshapes.get(&spec.name).and_then(|reshape| reshape.to_model(&shape));
        reshaped.unwrap_or(shape)
    }

    /// Converts an output shape of the model, with the batch dimension first, into the clients'.
    pub fn to_clients(&self, name: &str, shape: &[i64]) -> Vec<i64> {
        let reshaped = self.edge.reshapes.get(name).and_then(|reshape| reshape.to_clients(shape));
        let whole = reshaped.unwrap_or_else(|| shape.to_vec());
        // Without a batch, the one row is the whole tensor.
        if self.batched { whole } else { whole.get(1..).unwrap_or_default().to_vec() }
    }
}

/// State of a model version.
#[derive(Clone, Debug)]
pub enum ModelState {
    /// The version is being read, checked or profiled.
    Loading,
    /// Backends of a cluster are loading the model. Its version is empty, since it is not known.
    Awaited,
    /// The version answers requests.
    Ready(Arc<ServedEntry>),
    /// The version failed to load, or was unloaded; the reason says which.
    Unavailable,
}

impl ModelState {
    /// Returns the protocol's name of this state.
    pub fn name(&self) -> &'static str {
        match self {
            ModelState::Loading | ModelState::Awaited => "LOADING",
            ModelState::Ready(_) => "READY",
            ModelState::Unavailable => "UNAVAILABLE",
        }
    }
}

/// Reason of a version that was unloaded on request.
pub const UNLOADED: &str = "unloaded";

/// One row of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// Model name.
    pub name: String,
    /// Model version; empty if the model was never loaded.
    pub version: String,
    /// LOADING, READY or UNAVAILABLE; empty if the model was never loaded.
    pub state: String,
    /// Reason for the state; may be empty.
    pub reason: String,
}

/// Files and configuration that a load call supplies instead of the repository's.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upload {
    /// Configuration in JSON, as in `config.pbtxt`. `None` keeps the repository's configuration, or
    /// means no configuration if there are files.
    pub config: Option<String>,
    /// All files of the model by `VERSION/NAME`; empty uses the repository's model.
    pub files: BTreeMap<String, Bytes>,
}

/// Loads and unloads models by name, as `POST /v2/repository/…` requests. The methods may block, so
/// they are not called on async threads.
pub trait Repository: Send + Sync {
    /// Loads or reloads a model, from the upload if there is one. The error names file, key and
    /// fix.
    fn load(&self, name: &str, upload: Option<&Upload>) -> Result<(), String>;

    /// Unloads all versions of a model.
    fn unload(&self, name: &str) -> Result<(), String>;

    /// Lists every model in the repository, loaded or not.
    fn index(&self) -> Vec<IndexRow>;
}

/// Reason for which a model cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LookupError {
    /// There is no such model. Tests of stock clients look for this wording.
    #[error("Request for unknown model: '{name}' is not found; {served}")]
    UnknownModel {
        /// Requested name.
        name: String,
        /// Clause about the models that serve.
        served: String,
    },
    /// The model has no such version.
    #[error("Request for unknown model: '{name}' version {version} is not found; known versions: {known}")]
    UnknownVersion {
        /// Model name.
        name: String,
        /// Requested version.
        version: String,
        /// Existing versions.
        known: String,
    },
    /// The model is loading.
    #[error("model '{0}' is loading; ask /v2/models/{0}/ready and retry")]
    Loading(String),
    /// No list of models has come yet, so the model may be served.
    #[error("model '{0}': no scheduler has listed its models yet; retry")]
    Unlisted(String),
    /// The model failed to load, or was unloaded.
    #[error("Request for unknown model: '{name}' has no available versions: {reason}")]
    Unavailable {
        /// Model name.
        name: String,
        /// Reason recorded by the repository.
        reason: String,
    },
}

/// A model of which a version could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedModel {
    /// Model name.
    pub name: String,
    /// The version that failed; empty if its files name none.
    pub version: String,
    /// Reason, which names file, key and fix.
    pub reason: String,
}

/// Beginning of the reason of a version that serves on.
pub(crate) const SERVES_BEFORE: &str = "serves what was loaded before; loading it again failed: ";

#[derive(Debug)]
struct Version {
    state: ModelState,
    reason: String,
}

impl Version {
    /// Returns true if loading it failed, even if it serves as it was loaded before.
    fn has_failed(&self) -> bool {
        matches!(self.state, ModelState::Ready(_) | ModelState::Unavailable)
            && !self.reason.is_empty()
            && self.reason != UNLOADED
    }
}

/// Sort key of a version: numeric first, so that "10" is newer than "9".
type VersionKey = (u64, String);

/// Table of models.
#[derive(Debug, Default)]
pub struct ModelRegistry {
    models: RwLock<BTreeMap<String, BTreeMap<VersionKey, Version>>>,
    /// Number of loads that failed.
    failures: AtomicU64,
    /// Whether the models are listed by another process that has not done so yet.
    is_unlisted: AtomicBool,
}

impl ModelRegistry {
    /// Creates an empty registry, whose models another process will list.
    pub fn unlisted() -> ModelRegistry {
        ModelRegistry { is_unlisted: AtomicBool::new(true), ..ModelRegistry::default() }
    }

    /// Notes that the models have been listed: one that is not in the registry is unknown.
    pub fn set_listed(&self) {
        self.is_unlisted.store(false, Ordering::Release);
    }

    /// Creates an empty registry.
    pub fn new() -> ModelRegistry {
        ModelRegistry::default()
    }

    /// Counts a load that failed.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of loads that failed since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns the models that serve as they were loaded before, since loading them again failed.
    pub fn stale(&self) -> Vec<FailedModel> {
        let models = self.models.read();
        let serves = |versions: &BTreeMap<VersionKey, Version>| {
            versions.values().any(|version| matches!(version.state, ModelState::Ready(_)))
        };
        models
            .iter()
            .filter(|(_, versions)| serves(versions))
            .filter_map(|(name, versions)| failure(name, versions))
            .collect()
    }

    /// Forgets failures whose files are gone: of versions of `name` that are not `wanted`, and of
    /// the serving versions, which are what the files hold. Returns the versions that it removed.
    pub fn forget_failures(&self, name: &str, wanted: &[String]) -> Vec<String> {
        let mut models = self.models.write();
        let Some(versions) = models.get_mut(name) else { return Vec::new() };
        let is_over = |(_, version): &VersionKey, state: &mut Version| {
            state.has_failed() && !matches!(state.state, ModelState::Ready(_)) && !wanted.contains(version)
        };
        let removed = versions.extract_if(.., is_over).map(|((_, version), _)| version).collect();
        let serving = versions.values_mut().filter(|version| matches!(version.state, ModelState::Ready(_)));
        serving.for_each(|version| version.reason.clear());
        if versions.is_empty() {
            models.remove(name);
        }
        removed
    }

    /// Sets the state of a version; `reason` explains an unavailable one and is empty otherwise.
    pub fn set(&self, name: &str, version: &str, state: ModelState, reason: &str) {
        let version_state = Version { state, reason: reason.to_owned() };
        self.models.write().entry(name.to_owned()).or_default().insert(key(version), version_state);
    }

    /// Sets the models that backends of a cluster are loading, in place of earlier ones.
    pub fn set_awaited(&self, names: &[String]) {
        let mut models = self.models.write();
        models.retain(|_, versions| {
            versions.retain(|_, version| !matches!(version.state, ModelState::Awaited));
            !versions.is_empty()
        });
        for name in names {
            let awaited = Version { state: ModelState::Awaited, reason: String::new() };
            models.entry(name.clone()).or_default().insert(key(""), awaited);
        }
    }

    /// Removes a version, and the model with its last version.
    pub fn remove(&self, name: &str, version: &str) {
        let mut models = self.models.write();
        if let Some(versions) = models.get_mut(name) {
            versions.remove(&key(version));
            if versions.is_empty() {
                models.remove(name);
            }
        }
    }

    /// Returns the entry for `name`; an empty version selects the newest ready one.
    pub fn get(&self, name: &str, version: &str) -> Result<Arc<ServedEntry>, LookupError> {
        let models = self.models.read();
        let unknown = || match self.is_unlisted.load(Ordering::Acquire) {
            true => LookupError::Unlisted(name.to_owned()),
            false => LookupError::UnknownModel { name: name.to_owned(), served: served(&models) },
        };
        let versions = models.get(name).ok_or_else(unknown)?;
        let newest = newest(versions);
        let awaited = newest.filter(|newest| matches!(newest.state, ModelState::Awaited));
        let found = if version.is_empty() { newest } else { versions.get(&key(version)).or(awaited) };
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
            ModelState::Loading | ModelState::Awaited => Err(LookupError::Loading(name.to_owned())),
            ModelState::Unavailable => {
                Err(LookupError::Unavailable { name: name.to_owned(), reason: found.reason.clone() })
            }
        }
    }

    /// Returns the ready versions of `name`, oldest first.
    pub fn versions(&self, name: &str) -> Vec<String> {
        let models = self.models.read();
        let versions = models.get(name).into_iter().flatten();
        versions.filter(|(_, v)| matches!(v.state, ModelState::Ready(_))).map(|((_, name), _)| name.clone()).collect()
    }

    /// Returns every ready entry, by name and version.
    pub fn ready_entries(&self) -> Vec<Arc<ServedEntry>> {
        let models = self.models.read();
        let states = models.values().flat_map(|versions| versions.values()).map(|version| &version.state);
        states
            .filter_map(|state| if let ModelState::Ready(entry) = state { Some(entry.clone()) } else { None })
            .collect()
    }

    /// Returns true if a version of a model answers requests.
    pub fn has_ready(&self) -> bool {
        let models = self.models.read();
        models.values().flat_map(BTreeMap::values).any(|version| matches!(version.state, ModelState::Ready(_)))
    }

    /// Returns true if a model without a ready version is loading in this process.
    pub fn is_loading(&self) -> bool {
        let models = self.models.read();
        models.values().any(|versions| newest(versions).is_some_and(|v| matches!(v.state, ModelState::Loading)))
    }

    /// Returns the models without a version that serves or loads, except those that were unloaded
    /// on request.
    pub fn failed(&self) -> Vec<FailedModel> {
        let models = self.models.read();
        let counts = |version: &Version| match version.state {
            ModelState::Ready(_) | ModelState::Loading | ModelState::Awaited => true,
            ModelState::Unavailable => version.reason == UNLOADED,
        };
        let failed = models.iter().filter(|(_, versions)| !versions.values().any(counts));
        let named = |name: &str, versions| {
            let unnamed = FailedModel { name: name.to_owned(), version: String::new(), reason: String::new() };
            failure(name, versions).unwrap_or(unnamed)
        };
        failed.map(|(name, versions)| named(name, versions)).collect()
    }

    /// Returns one row per version, by name and version.
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

/// Returns the newest version of a model that could not be loaded.
fn failure(name: &str, versions: &BTreeMap<VersionKey, Version>) -> Option<FailedModel> {
    let ((_, version), failed) = versions.iter().rev().find(|(_, version)| version.has_failed())?;
    let reason = failed.reason.strip_prefix(SERVES_BEFORE).unwrap_or(&failed.reason).to_owned();
    Some(FailedModel { name: name.to_owned(), version: version.clone(), reason })
}

/// Number of models that a message names.
const NAMED: usize = 5;

/// Returns a clause that names the first models that serve.
fn served(models: &BTreeMap<String, BTreeMap<VersionKey, Version>>) -> String {
    let serves = |version: &Version| matches!(version.state, ModelState::Ready(_));
    let mut names = models.iter().filter(|(_, versions)| versions.values().any(serves)).map(|(name, _)| name.as_str());
    let shown: Vec<&str> = names.by_ref().take(NAMED).collect();
    match (shown.is_empty(), names.next()) {
        (true, _) => "no model serves".to_owned(),
        (false, None) => format!("models that serve: {}", shown.join(", ")),
        (false, Some(_)) => format!("models that serve: {}, …", shown.join(", ")),
    }
}

/// Returns the newest ready version, else the newest loading one, else the newest.
fn newest(versions: &BTreeMap<VersionKey, Version>) -> Option<&Version> {
    let rank = |version: &Version| match version.state {
        ModelState::Ready(_) => 2,
        ModelState::Loading | ModelState::Awaited => 1,
        ModelState::Unavailable => 0,
    };
    versions.values().max_by_key(|version| rank(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slo::SloOrigin;
    use ripieno_base::Nanos;

    fn entry(version: &str) -> ModelState {
        ModelState::Ready(Arc::new(ServedEntry {
            name: "m".into(),
            version: version.into(),
            id: Some(ModelId(0)),
            platform: "emulated".into(),
            inputs: vec![],
            optional: vec![],
            outputs: vec![],
            batched: true,
            unbatched: None,
            max_batch: 1,
            streams: false,
            lengths: None,
            labels: BTreeMap::new(),
            text: None,
            no_text: None,
            slo: Slo { span: Nanos::from_millis(10), origin: SloOrigin::Owner, answer_late: false },
            one_row: None,
            ensemble: None,
            edge: Default::default(),
            stats: ServedStatistics::default(),
        }))
    }

    #[test]
    fn no_version_means_the_newest_that_is_ready() {
        let registry = ModelRegistry::new();
        for version in ["9", "10", "2"] {
            registry.set("m", version, entry(version), "");
        }
        registry.set("m", "11", ModelState::Loading, "");
        assert!(registry.has_ready());
        assert_eq!(registry.get("m", "").map(|e| e.version.clone()), Ok("10".to_owned()));
        assert_eq!(registry.get("m", "2").map(|e| e.version.clone()), Ok("2".to_owned()));
        assert_eq!(registry.versions("m"), ["2", "9", "10"]);
        assert!(!registry.is_loading());
    }

    #[test]
    fn a_model_has_failed_if_no_version_serves_or_loads() {
        let registry = ModelRegistry::new();
        registry.set("m", "1", entry("1"), "");
        registry.set("m", "2", ModelState::Unavailable, "damaged");
        registry.set("gone", "1", ModelState::Unavailable, UNLOADED);
        registry.set("late", "1", ModelState::Loading, "");
        assert!(registry.failed().is_empty());
        registry.set("bad", "1", ModelState::Unavailable, "damaged");
        let stale: Vec<_> = registry.stale().into_iter().map(|failed| (failed.version, failed.reason)).collect();
        assert_eq!(stale, [("2".to_owned(), "damaged".to_owned())]);
        registry.remove("m", "1");
        let failed = || -> Vec<_> { registry.failed().into_iter().map(|failed| failed.name).collect() };
        assert_eq!(failed(), ["bad", "m"]);
        // A folder that is gone is no failure any more. What was unloaded stays listed.
        assert_eq!(registry.forget_failures("bad", &[]), ["1"]);
        assert_eq!((registry.forget_failures("gone", &[]), failed()), (vec![], vec!["m".to_owned()]));
        assert_eq!(registry.forget_failures("m", &["2".to_owned()]), Vec::<String>::new(), "its files are there");
        assert_eq!(registry.index().iter().filter(|row| row.name == "gone").count(), 1);
    }

    #[test]
    fn an_awaited_model_is_loading_whatever_its_version_and_the_server_does_not_wait_for_it() {
        let registry = ModelRegistry::new();
        registry.set("served", "1", entry("1"), "");
        registry.set_awaited(&["m".to_owned(), "other".to_owned(), "served".to_owned()]);
        let loading = |version: &str| registry.get("m", version).err() == Some(LookupError::Loading("m".into()));
        assert!(loading("") && loading("3") && !registry.is_loading() && registry.failed().is_empty());
        assert!(registry.get("served", "").is_ok() && registry.get("served", "1").is_ok());
        assert!(matches!(registry.get("served", "3"), Err(LookupError::UnknownVersion { .. })));
        registry.set("m", "3", entry("3"), "");
        registry.set_awaited(&["other".to_owned()]);
        let rows: Vec<_> = registry.index().into_iter().map(|row| (row.name, row.version, row.state)).collect();
        let row = |name: &str, version: &str, state: &str| (name.to_owned(), version.to_owned(), state.to_owned());
        assert_eq!(rows, [row("m", "3", "READY"), row("other", "", "LOADING"), row("served", "1", "READY")]);
    }

    #[test]
    fn a_model_is_unknown_only_once_the_models_have_been_listed() {
        let registry = ModelRegistry::unlisted();
        assert_eq!(registry.get("m", "1").err(), Some(LookupError::Unlisted("m".into())));
        registry.set_listed();
        assert!(matches!(registry.get("m", "1"), Err(LookupError::UnknownModel { .. })));
    }

    #[test]
    fn an_unknown_model_names_a_few_that_serve() {
        let registry = ModelRegistry::new();
        let said = || registry.get("x", "").unwrap_err().to_string();
        registry.set("broken", "1", ModelState::Unavailable, "");
        assert!(said().ends_with("; no model serves"));
        for name in ["a", "b", "c", "d", "e"] {
            registry.set(name, "1", entry("1"), "");
        }
        assert!(said().ends_with("'x' is not found; models that serve: a, b, c, d, e"));
        registry.set("f", "1", entry("1"), "");
        assert!(said().ends_with("; models that serve: a, b, c, d, e, …"));
    }

    #[test]
    fn lookup_errors_name_their_cause() {
        let registry = ModelRegistry::new();
        assert_eq!(
            registry.get("x", "").unwrap_err().to_string(),
            "Request for unknown model: 'x' is not found; no model serves"
        );
        registry.set("m", "1", ModelState::Loading, "");
        assert_eq!(registry.get("m", "").unwrap_err(), LookupError::Loading("m".into()));
        assert!(registry.is_loading());
        registry.set("m", "1", ModelState::Unavailable, "model.onnx: no such file");
        assert!(!registry.has_ready());
        assert!(registry.get("m", "1").unwrap_err().to_string().ends_with("model.onnx: no such file"));
        assert!(registry.get("m", "7").unwrap_err().to_string().ends_with("version 7 is not found; known versions: 1"));
        assert_eq!(registry.index()[0].state, "UNAVAILABLE");
        registry.remove("m", "1");
        assert!(matches!(registry.get("m", ""), Err(LookupError::UnknownModel { name, .. }) if name == "m"));
    }
}
