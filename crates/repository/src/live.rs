//! The repository of a running server: loads models at the start, and loads, reloads and unloads
//! them on request.
//!
//! Each model has its own lock, held while the model changes; there is no global one, so that
//! loading a model neither waits for another nor stalls a serving one. A reload loads the new
//! version beside the old one, updates the registry, and only then retires the old one. If the new
//! version fails, the old one stays.

mod control;
mod ensembles;
mod poll;

use super::assembly;
use super::containment::error_for_clients;
use super::load::{Loader, Profiling};
use super::model_files::ModelFiles;
use super::plan::LoadTarget;
use super::prepared::PreparedModel;
use super::report::{MeasureProgress, ModelReport};
use super::scan::{ModelCandidate, scan};
use super::slo::Slo;
use super::uploads::{UploadStore, UploadedModel};
use crate::registry::{IndexRow, ModelRegistry, ModelState, Repository, SERVES_BEFORE, ServedEntry, UNLOADED, Upload};
use parking_lot::Mutex;
use ripieno_base::ModelId;
use ripieno_executor::AnswerSteps;
use ripieno_model::{Model, TensorSpec};
use ripieno_runtime::{Engine, ServedModel};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub use control::ModelControl;
pub use poll::RepositoryPoll;
use poll::RepositorySnapshot;

/// Number of models read concurrently at the start: enough to hide disk latency without exhausting
/// memory.
const LOADER_THREADS: usize = 4;
/// Minimum time for which a replaced version stays, for requests that looked it up before the
/// switch.
const RETIRE_GRACE: Duration = Duration::from_millis(50);
/// Interval at which a replaced version is checked for idleness.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of models when load calls upload new ones, including the repository's own.
const MAX_MODELS: usize = 4096;
/// Maximum time for which a replaced version stays for its last requests.
const MAX_RETIRE_WAIT: Duration = Duration::from_secs(30);

/// Executor of loaded models: the runtime, or a test double.
pub trait Host: Send + Sync {
    /// Takes a model into service.
    fn load(&self, model: ServedModel) -> Result<ModelId, String>;

    /// Returns the number of the model's queued and running requests.
    fn live(&self, model: ModelId) -> usize;

    /// Takes a model out of service; queued requests are refused.
    fn unload(&self, model: ModelId);
}

impl Host for Engine {
    fn load(&self, model: ServedModel) -> Result<ModelId, String> {
        Engine::load(self, model).map_err(|refused| refused.to_string())
    }

    fn live(&self, model: ModelId) -> usize {
        self.model_metrics(model).map_or(0, |metrics| metrics.live)
    }

    fn unload(&self, model: ModelId) {
        if let Err(refused) = Engine::unload(self, model) {
            tracing::warn!("a model could not be unloaded: {refused}");
        }
    }
}

/// The repository of a running server.
pub struct LiveRepository {
    path: PathBuf,
    loader: Loader,
    registry: Arc<ModelRegistry>,
    host: Arc<dyn Host>,
    slots: Mutex<BTreeMap<String, Arc<Mutex<ModelSlot>>>>,
    uploads: UploadStore,
    control: ModelControl,
    /// Files of each model when [`load_all`](LiveRepository::load_all) tried it.
    first_tried: Mutex<RepositorySnapshot>,
}

/// State of a model; locked while the model changes.
#[derive(Default)]
struct ModelSlot {
    /// Serving versions.
    serving: BTreeMap<String, Serving>,
    /// Versions whose registry rows describe a failure or an unload.
    failed: BTreeSet<String>,
}

/// A version that serves.
struct Serving {
    entry: Arc<ServedEntry>,
    /// Files that the version was loaded from, as they were just before loading.
    files: Files,
    /// Upload that the version was loaded from.
    upload: Option<Arc<UploadedModel>>,
}

impl ModelSlot {
    fn is_uploaded(&self) -> bool {
        self.serving.values().any(|serving| serving.upload.is_some())
    }

    /// Returns true if all found versions serve from the current files.
    fn serves(&self, found: &ModelFiles) -> bool {
        self.serving.len() == found.served.len() && found.each_version().all(|found| self.serves_version(&found))
    }

    fn serves_version(&self, found: &ModelFiles) -> bool {
        self.serving.get(&found.version).is_some_and(|serving| serving.files == files(found))
    }
}

/// Selects the versions to load.
#[derive(Clone, Copy, PartialEq)]
enum VersionSelection {
    All,
    Changed,
}

impl LiveRepository {
    /// Creates the repository at `path` without loading anything.
    pub fn new(
        path: PathBuf,
        target: LoadTarget,
        registry: Arc<ModelRegistry>,
        host: Arc<dyn Host>,
        progress: MeasureProgress,
    ) -> LiveRepository {
        let (loader, slots, store) = (Loader::new(target, progress), Mutex::default(), UploadStore::new(0));
        let (control, first_tried) = (ModelControl::Open, Mutex::default());
        LiveRepository { path, loader, registry, host, slots, uploads: store, control, first_tried }
    }

    /// Allows load calls to upload up to `bytes` bytes of files in total.
    pub fn with_overrides(mut self, bytes: u64) -> LiveRepository {
        self.uploads = UploadStore::new(bytes);
        self
    }

    /// Loads all models, or those that the control mode names; returns when each is served or has
    /// failed. Fails only if the path cannot be read.
    pub fn load_all(&self) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        *self.first_tried.lock() = poll::snapshots(&candidates);
        let (candidates, missing) = self.initial_models(candidates);
        for candidate in &candidates {
            for version in versions_of(candidate) {
                self.registry.set(&candidate.name, &version, ModelState::Loading, "");
            }
        }
        let reports = Mutex::new(BTreeMap::new());
        let load_candidate = |candidate: &ModelCandidate| {
            let of_model = self.load_candidate(candidate, None, VersionSelection::All);
            reports.lock().insert(candidate.name.clone(), of_model);
        };
        // Ensembles are loaded last, because they need the models of their steps.
        let (ensembles, models): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| is_ensemble(candidate));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..LOADER_THREADS.min(models.len()) {
                scope.spawn(|| {
                    while let Some(candidate) = models.get(next.fetch_add(1, Ordering::Relaxed)) {
                        load_candidate(candidate);
                    }
                });
            }
        });
        ensembles::inner_first(ensembles, self.loader.target()).into_iter().for_each(load_candidate);
        Ok(reports.into_inner().into_values().flatten().chain(missing).collect())
    }

    /// Loads new and changed models and unloads removed ones. Unchanged and uploaded models keep
    /// serving. Fails only if the path cannot be read, and then changes nothing.
    pub fn reload(&self) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        let gone = |name: &String| !candidates.iter().any(|candidate| candidate.name == *name);
        let gone: Vec<String> = self.slots.lock().keys().filter(|name| gone(name)).cloned().collect();
        for name in gone.into_iter().filter(|name| !self.is_uploaded(name)) {
            self.remove_gone(&name)?;
        }
        self.forget_mended(&candidates);
        let is_due = |candidate: &&ModelCandidate| self.is_followed(candidate) && !self.is_served_as_found(candidate);
        let changed = candidates.iter().filter(is_due);
        Ok(self.load_in_order(changed, VersionSelection::Changed))
    }

    /// Loads models first, then the ensembles that need them.
    fn load_in_order<'a>(
        &self,
        all: impl Iterator<Item = &'a ModelCandidate>,
        which: VersionSelection,
    ) -> Vec<ModelReport> {
        let (ensembles, models): (Vec<_>, Vec<_>) = all.partition(|candidate| is_ensemble(candidate));
        let names: Vec<&str> = ensembles.iter().map(|candidate| candidate.name.as_str()).collect();
        let ordered = models.into_iter().chain(ensembles::inner_first(ensembles, self.loader.target()));
        let reports = ordered.flat_map(|candidate| self.load_candidate(candidate, None, which)).collect();
        self.reload_outer_ensembles(&names);
        reports
    }

    fn is_uploaded(&self, name: &str) -> bool {
        let slot = self.slots.lock().get(name).cloned();
        slot.is_some_and(|slot| slot.lock().is_uploaded())
    }

    fn is_served_as_found(&self, candidate: &ModelCandidate) -> bool {
        let slot = self.slots.lock().get(&candidate.name).cloned();
        slot.is_some_and(|slot| {
            let slot = slot.lock();
            slot.is_uploaded() || candidate.found.as_ref().is_ok_and(|found| slot.serves(found))
        })
    }

    /// Loads a candidate or upload and replaces what serves. A version that fails does not affect
    /// the others, and the version that served before it stays.
    fn load_candidate(
        &self,
        candidate: &ModelCandidate,
        uploaded: Option<UploadedModel>,
        which: VersionSelection,
    ) -> Vec<ModelReport> {
        let slot = self.slots.lock().entry(candidate.name.clone()).or_default().clone();
        let (mut slot, uploaded, name) = (slot.lock(), uploaded.map(Arc::new), candidate.name.as_str());
        let fail = |slot: &mut ModelSlot, version: &str, error: String| {
            log_failure(name, version, slot, &error);
            self.registry.count_failure();
            let error = uploaded.as_ref().map_or(error.clone(), |uploaded| uploaded.for_clients(&error));
            self.record_failure(slot, name, version, &error);
            ModelReport::failed(name, version, error)
        };
        let wanted = versions_of(candidate);
        let mut reports = Vec::with_capacity(wanted.len());
        match &candidate.found {
            Err(error) => reports.push(fail(&mut slot, "", error.clone())),
            Ok(found) => {
                let is_due = |found: &ModelFiles| which == VersionSelection::All || !slot.serves_version(found);
                let due: Vec<ModelFiles> = found.each_version().filter(is_due).collect();
                for found in due.iter().filter(|found| !slot.serving.contains_key(&found.version)) {
                    self.registry.set(name, &found.version, ModelState::Loading, "");
                }
                for found in &due {
                    let (files, begun) = (files(found), Instant::now());
                    match self.prepare_and_host(found) {
                        Ok((entry, report)) => {
                            let (version, took) = (&entry.version, begun.elapsed().as_secs_f64());
                            log_load(name, version, took);
                            self.switch_to(&mut slot, Serving { entry, files, upload: uploaded.clone() });
                            reports.push(report);
                        }
                        Err(error) => reports.push(fail(&mut slot, &found.version, error)),
                    }
                }
            }
        }
        self.remove_others(&mut slot, name, &wanted, reports.iter().all(|report| report.error.is_none()));
        reports
    }

    fn prepare_and_host(&self, found: &ModelFiles) -> Result<(Arc<ServedEntry>, ModelReport), String> {
        if found.is_ensemble {
            let (entry, report) = assembly::prepare(found, self.loader.target(), &self.registry)?;
            for warning in &report.warnings {
                tracing::warn!("model {}: {warning}", found.name);
            }
            return Ok((Arc::new(entry), report));
        }
        let prepared = self.loader.prepare(found, Profiling::IfMissing)?;
        for warning in &prepared.warnings {
            tracing::warn!("model {}: {warning}", found.name);
        }
        let unprofiled = || format!("{}: it has no profile", found.model.display());
        let served = prepared.served().ok_or_else(unprofiled)?;
        let (model, slo) = (served.model.clone(), prepared.slo().ok_or_else(unprofiled)?);
        let id = self.host.load(served).map_err(|error| format!("{}: {error}", found.model.display()))?;
        for note in prepared.plan.triton_note().into_iter().chain(prepared.shape_note()).chain(prepared.slo_note()) {
            tracing::info!("model {}: {note}", found.name);
        }
        let target = self.loader.target();
        Ok((Arc::new(entry(&prepared, &model, slo, id)), prepared.report(target.devices)))
    }

    /// Makes the new version answer, then retires the old one.
    fn switch_to(&self, slot: &mut ModelSlot, serving: Serving) {
        let (name, version) = (serving.entry.name.clone(), serving.entry.version.clone());
        self.registry.set(&name, &version, ModelState::Ready(serving.entry.clone()), "");
        slot.failed.remove(&version);
        // The old version's upload stays until here, because it may be read until then.
        if let Some(old) = slot.serving.insert(version, serving) {
            self.retire(&old.entry);
        }
    }

    /// Removes failures of versions that are no longer wanted; if all wanted versions serve,
    /// retires the others.
    fn remove_others(&self, slot: &mut ModelSlot, name: &str, wanted: &[String], all_serve: bool) {
        let ModelSlot { serving, failed } = slot;
        for version in failed.extract_if(.., |version| !wanted.contains(version)) {
            self.registry.remove(name, &version);
        }
        if all_serve {
            let others = serving.extract_if(.., |version, _| !wanted.contains(version));
            let others: Vec<(String, Serving)> = others.collect();
            for (version, _) in &others {
                self.registry.remove(name, version);
            }
            for (_, old) in &others {
                self.retire(&old.entry);
            }
        }
    }

    /// Unloads a replaced version once it has no live requests, at the latest when their time is
    /// up.
    ///
    /// The initial grace period is for requests that looked the version up just before the switch
    /// and are still being decoded.
    fn retire(&self, old: &ServedEntry) {
        let Some(id) = old.id else { return };
        let time = Duration::from_nanos(old.slo.span.0.unsigned_abs()).min(MAX_RETIRE_WAIT);
        // Requests that may be late have no time limit of their own.
        let patience = if old.slo.answer_late { MAX_RETIRE_WAIT } else { time };
        let begun = Instant::now();
        std::thread::sleep(RETIRE_GRACE);
        while self.host.live(id) > 0 && begun.elapsed() < patience + RETIRE_GRACE {
            std::thread::sleep(IDLE_POLL_INTERVAL);
        }
        self.host.unload(id);
    }

    /// Records a failure in the registry, whose reasons clients can read.
    fn record_failure(&self, slot: &mut ModelSlot, name: &str, version: &str, error: &str) {
        let error = &error_for_clients(&self.path, error);
        if let Some(serving) = slot.serving.get(version) {
            let reason = format!("{SERVES_BEFORE}{error}");
            self.registry.set(name, version, ModelState::Ready(serving.entry.clone()), &reason);
            return;
        }
        self.registry.set(name, version, ModelState::Unavailable, error);
        slot.failed.insert(version.to_owned());
    }

    fn load_one(&self, name: &str, upload: Option<&Upload>) -> Result<(), String> {
        let mut candidates = scan(&self.path)?;
        let own = candidates.iter().position(|candidate| candidate.name == name);
        if let Some(upload) = upload {
            self.load_uploaded(name, upload, own.map(|own| candidates.swap_remove(own)))?;
            self.reload_outer_ensembles(&[name]);
            return Ok(());
        }
        match own {
            Some(own) => {
                self.load_members(&candidates[own], &candidates, &mut BTreeSet::new())?;
                first_error(self.load_candidate(&candidates[own], None, VersionSelection::All))?;
                self.reload_outer_ensembles(&[name]);
                Ok(())
            }
            None => Err(format!("Request for unknown model: '{name}' is not found; {}", self.names(&candidates))),
        }
    }

    fn load_uploaded(&self, name: &str, upload: &Upload, own: Option<ModelCandidate>) -> Result<(), String> {
        let slots = self.slots.lock();
        if slots.len() >= MAX_MODELS && !slots.contains_key(name) {
            return Err(format!(
                "load calls may bring {MAX_MODELS} models; restart the server to forget those that were unloaded"
            ));
        }
        drop(slots);
        let uploaded = self.uploads.save(name, upload)?;
        let candidate = uploaded.candidate(name, upload, own).map_err(|error| uploaded.for_clients(&error))?;
        first_error(self.load_candidate(&candidate, Some(uploaded), VersionSelection::All))
    }

    fn names(&self, candidates: &[ModelCandidate]) -> String {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        let held = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        format!("{} holds {held}", self.path.display())
    }

    fn unload_versions(&self, name: &str) -> Result<(), String> {
        let slot = self.slots.lock().get(name).cloned();
        let Some(slot) = slot else { return Err(format!("Request for unknown model: '{name}' is not loaded")) };
        let mut slot = slot.lock();
        let serving = std::mem::take(&mut slot.serving);
        for (version, Serving { entry, .. }) in &serving {
            self.registry.set(name, version, ModelState::Unavailable, UNLOADED);
            if let Some(id) = entry.id {
                self.host.unload(id);
            }
            tracing::info!(model = name, version, "model {name}: version {version} is unloaded");
        }
        // A model that could not be loaded is taken out of service likewise.
        for version in &slot.failed {
            self.registry.set(name, version, ModelState::Unavailable, UNLOADED);
        }
        slot.failed.extend(serving.into_keys());
        Ok(())
    }
}

impl Repository for LiveRepository {
    fn load(&self, name: &str, upload: Option<&Upload>) -> Result<(), String> {
        self.check_calls_allowed().and_then(|()| self.load_one(name, upload)).map_err(|error| {
            tracing::warn!("model {name} was not loaded: {error}");
            error_for_clients(&self.path, &error)
        })
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        self.check_calls_allowed()?;
        self.unload_versions(name)
    }

    fn index(&self) -> Vec<IndexRow> {
        let mut rows = self.registry.index();
        let held = scan(&self.path).unwrap_or_default();
        let unknown = held.into_iter().filter(|candidate| !rows.iter().any(|row| row.name == candidate.name));
        let unloaded: Vec<IndexRow> = unknown
            .map(|candidate| IndexRow {
                reason: error_for_clients(&self.path, &candidate.found.err().unwrap_or_default()),
                name: candidate.name,
                version: String::new(),
                state: String::new(),
            })
            .collect();
        rows.extend(unloaded);
        rows
    }
}

fn log_load(name: &str, version: &str, seconds: f64) {
    tracing::info!(model = name, version, seconds, "model {name}: version {version} is loaded, in {seconds:.1} s");
}

/// Logs a failed load, and what serves all the same.
fn log_failure(name: &str, version: &str, slot: &ModelSlot, error: &str) {
    let others: Vec<&str> = slot.serving.keys().map(String::as_str).collect();
    let says = match (slot.serving.contains_key(version), others.is_empty()) {
        (true, _) => format!("version {version} serves as it was loaded before; loading it again failed"),
        (false, true) => "it is not served".to_owned(),
        (false, false) if version.is_empty() => format!("version {} serves on", others.join(", ")),
        (false, false) => format!("version {version} is not served, and version {} serves on", others.join(", ")),
    };
    tracing::error!(model = name, version, "model {name}: {says}: {error}");
}

/// Modification time and size of each file.
type Files = BTreeMap<PathBuf, (SystemTime, u64)>;

/// Returns the files of a model: everything in its version folder (such as weights) and its model
/// folder (such as configurations and labels).
fn files(found: &ModelFiles) -> Files {
    let folders = found.version_folder.iter().chain([&found.folder]);
    let beside = folders.flat_map(|folder| folder.read_dir().into_iter().flatten().flatten());
    let paths = beside
        .map(|entry| entry.path())
        .chain([found.model.clone()])
        .chain(found.config.clone())
        .chain(found.triton.clone());
    let known = paths.filter_map(|path| {
        let about = path.metadata().ok().filter(|about| about.is_file())?;
        Some((path, (about.modified().ok()?, about.len())))
    });
    known.collect()
}

/// Returns the versions to serve; one empty version if they are unknown.
fn versions_of(candidate: &ModelCandidate) -> Vec<String> {
    let versions = |found: &ModelFiles| found.served.iter().map(u64::to_string).collect();
    candidate.found.as_ref().map_or_else(|_| vec![String::new()], versions)
}

fn is_ensemble(candidate: &ModelCandidate) -> bool {
    candidate.found.as_ref().is_ok_and(|found| found.is_ensemble)
}

fn first_error(reports: Vec<ModelReport>) -> Result<(), String> {
    reports.into_iter().find_map(|report| report.error).map_or(Ok(()), Err)
}

fn entry(prepared: &PreparedModel, model: &Model, slo: Slo, id: ModelId) -> ServedEntry {
    let source = &prepared.plan.source;
    let mut edge = prepared.plan.triton.as_ref().map(|triton| triton.settings.edge.clone()).unwrap_or_default();
    let mut inputs = prepared.loaded.inputs().to_vec();
    if let Some(sequences) = &mut edge.sequences {
        sequences.inputs = inputs.clone();
        inputs.retain(|spec| !sequences.fills(&spec.name));
    }
    let own = |spec: &TensorSpec| TensorSpec { shape: spec.shape[1..].to_vec(), ..spec.clone() };
    ServedEntry {
        name: prepared.plan.name.clone(),
        version: prepared.plan.version.clone(),
        id: Some(id),
        platform: platform(prepared.engine).to_owned(),
        inputs,
        optional: prepared.loaded.optional_inputs().iter().map(own).collect(),
        outputs: answers(prepared),
        batched: prepared.loaded.batched(),
        unbatched: prepared.unbatched.clone(),
        max_batch: if source.walk.is_unfolded() { 1 } else { source.max_batch },
        streams: !source.walk.brings_graph() && source.answers.iter().any(|answer| answer.take == AnswerSteps::Every),
        lengths: prepared.loaded.lengths().cloned(),
        labels: prepared.labels.clone(),
        text: prepared.text.clone(),
        no_text: prepared.no_text.clone(),
        slo,
        one_row: (!source.walk.is_unfolded()).then(|| model.profile().latency(1)),
        ensemble: None,
        edge,
        stats: Default::default(),
    }
}

/// Returns the outputs that clients see: those listed in `config.pbtxt`, or all except sequence
/// states.
fn answers(prepared: &PreparedModel) -> Vec<TensorSpec> {
    let all = prepared.loaded.outputs();
    let listed = prepared.plan.triton.iter().flat_map(|triton| &triton.settings.answers);
    let listed: Vec<TensorSpec> =
        listed.filter_map(|name| all.iter().find(|spec| spec.name == *name)).cloned().collect();
    if !listed.is_empty() {
        return listed;
    }
    let sequences = prepared.plan.triton.as_ref().and_then(|triton| triton.settings.edge.sequences.as_ref());
    let keeps = |spec: &&TensorSpec| sequences.is_some_and(|sequences| sequences.keeps(&spec.name));
    all.iter().filter(|spec| !keeps(spec)).cloned().collect()
}

/// Returns the platform string of an engine in the protocol's metadata.
fn platform(engine: &str) -> &str {
    match engine {
        "onnxruntime" => "onnxruntime_onnx",
        "cpu" => "onnx_onnxv1",
        other => other,
    }
}
