//! The repository of a running server: loads at the start, and loads, reloads and unloads when asked.
//!
//! Each model has one lock, held while that model changes; there is no other, so loading one model never waits for
//! another and never stalls one that serves. A reload loads the new version beside the old one, switches the
//! registry, and only then takes the old one out of service; if the new one fails, the old one stays.

use super::borders::for_clients;
use super::brought::{Kept, Store};
use super::found::Found;
use super::load::{Loader, Prepared, Profiling};
use super::plan::Target;
use super::report::{ModelReport, Progress};
use super::scan::{Candidate, scan};
use super::slo::Slo;
use crate::registry::{Brought, IndexRow, ModelState, Registry, Repository, ServedEntry, UNLOADED};
use parking_lot::Mutex;
use ripieno_base::ModelId;
use ripieno_executor::Take;
use ripieno_model::{Model, TensorSpec};
use ripieno_runtime::{Engine, ServedModel};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Models that are read at the same time at the start; enough to hide the disk, few enough to leave memory alone.
const LOADERS: usize = 4;
/// How long a replaced version stays for requests that are on their way to it.
const GRACE: Duration = Duration::from_millis(50);
/// How often a replaced version is asked whether it is idle.
const POLL: Duration = Duration::from_millis(2);
/// The most names of models that load calls may bring, those of the repository among them.
const MOST_NAMES: usize = 4096;
/// The longest that a replaced version is kept for its last requests.
const MAX_UNLOAD_WAIT: Duration = Duration::from_secs(30);

/// Where models run once they are loaded: the runtime, or a stand-in in tests.
pub trait Host: Send + Sync {
    /// Takes a model into service.
    fn load(&self, model: ServedModel) -> Result<ModelId, String>;

    /// How many of its requests wait or run.
    fn live(&self, model: ModelId) -> usize;

    /// Takes it out of service; requests that still wait are refused.
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

/// A repository that serves.
pub struct LiveRepository {
    path: PathBuf,
    loader: Loader,
    registry: Arc<Registry>,
    host: Arc<dyn Host>,
    slots: Mutex<BTreeMap<String, Arc<Mutex<Slot>>>>,
    store: Store,
}

/// What a model is doing; locked while it changes.
#[derive(Default)]
struct Slot {
    serving: Option<Arc<ServedEntry>>,
    /// The files that it was loaded from, as they were just before.
    files: Files,
    /// The version of a row in the registry that tells of a failure or an unload.
    failed: Option<String>,
    /// What the load call brought that it was loaded by.
    kept: Option<Kept>,
}

impl LiveRepository {
    /// The repository at `path`; nothing is loaded yet.
    pub fn new(
        path: PathBuf,
        target: Target,
        registry: Arc<Registry>,
        host: Arc<dyn Host>,
        progress: Progress,
    ) -> LiveRepository {
        let (loader, slots, store) = (Loader::new(target, progress), Mutex::default(), Store::new(0));
        LiveRepository { path, loader, registry, host, slots, store }
    }

    /// The same, where load calls may bring models along, of which files of so many bytes in all are kept.
    pub fn with_overrides(mut self, bytes: u64) -> LiveRepository {
        self.store = Store::new(bytes);
        self
    }

    /// Loads every model; returns when all are served or have failed. An error only if the path cannot be read.
    pub fn load_all(&self) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        for candidate in &candidates {
            self.registry.set(&candidate.name, version_of(candidate), ModelState::Loading, "");
        }
        let next = AtomicUsize::new(0);
        let reports = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..LOADERS.min(candidates.len()) {
                scope.spawn(|| {
                    while let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let report = self.bring_up_reported(candidate);
                        reports.lock().insert(candidate.name.clone(), report);
                    }
                });
            }
        });
        Ok(reports.into_inner().into_values().collect())
    }

    /// Loads what has changed on the disk since it was loaded, and what is new; unloads what is gone. What is as it was goes on,
    /// and so does what a load call has brought. An error only if the path cannot be read, and then nothing is done.
    pub fn reload(&self) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        let gone = |name: &String| !candidates.iter().any(|candidate| candidate.name == *name);
        let gone: Vec<String> = self.slots.lock().keys().filter(|name| gone(name)).cloned().collect();
        for name in gone.into_iter().filter(|name| !self.is_brought(name)) {
            self.unload(&name)?;
        }
        let changed = candidates.iter().filter(|candidate| !self.is_served_as_found(candidate));
        Ok(changed.map(|candidate| self.bring_up_reported(candidate)).collect())
    }

    fn is_brought(&self, name: &str) -> bool {
        let slot = self.slots.lock().get(name).cloned();
        slot.is_some_and(|slot| slot.lock().kept.is_some())
    }

    fn is_served_as_found(&self, candidate: &Candidate) -> bool {
        let slot = self.slots.lock().get(&candidate.name).cloned();
        slot.is_some_and(|slot| {
            let slot = slot.lock();
            slot.kept.is_some()
                || slot.serving.is_some() && candidate.found.as_ref().is_ok_and(|found| slot.files == files(found))
        })
    }

    fn bring_up_reported(&self, candidate: &Candidate) -> ModelReport {
        self.bring_up(candidate, None).unwrap_or_else(|error| {
            tracing::error!("model {} is not served: {error}", candidate.name);
            ModelReport::failed(&candidate.name, version_of(candidate), error)
        })
    }

    /// Loads what was found for a model, or is kept for it, and puts it in the place of what serves now.
    fn bring_up(&self, candidate: &Candidate, kept: Option<Kept>) -> Result<ModelReport, String> {
        let slot = self.slots.lock().entry(candidate.name.clone()).or_default().clone();
        let mut slot = slot.lock();
        let (name, version) = (candidate.name.as_str(), version_of(candidate));
        let serves_already = slot.serving.as_ref().is_some_and(|entry| entry.version == version);
        if !serves_already {
            self.registry.set(name, version, ModelState::Loading, "");
        }
        let files = candidate.found.as_ref().map(files).unwrap_or_default();
        match self.prepare_and_host(candidate) {
            Ok((entry, report)) => {
                slot.files = files;
                self.switch(&mut slot, entry);
                // Only now: the one before may have been read until it went.
                slot.kept = kept;
                Ok(report)
            }
            Err(error) => {
                let error = kept.as_ref().map_or(error.clone(), |kept| kept.for_clients(&error));
                self.record_failure(&mut slot, name, version, &error);
                Err(error)
            }
        }
    }

    fn prepare_and_host(&self, candidate: &Candidate) -> Result<(Arc<ServedEntry>, ModelReport), String> {
        let found = candidate.found.as_ref().map_err(String::clone)?;
        let prepared = self.loader.prepare(found, Profiling::IfMissing)?;
        for warning in &prepared.warnings {
            tracing::warn!("model {}: {warning}", candidate.name);
        }
        let unprofiled = || format!("{}: it has no profile", found.model.display());
        let served = prepared.served().ok_or_else(unprofiled)?;
        let (model, slo) = (served.model.clone(), prepared.slo().ok_or_else(unprofiled)?);
        let id = self.host.load(served).map_err(|error| format!("{}: {error}", found.model.display()))?;
        for note in prepared.plan.triton_note().into_iter().chain(prepared.slo_note()) {
            tracing::info!("model {}: {note}", candidate.name);
        }
        let target = self.loader.target();
        Ok((Arc::new(entry(&prepared, (&model, slo), id, target)), prepared.report(target.devices)))
    }

    /// First the new one answers, then the old one goes.
    fn switch(&self, slot: &mut Slot, entry: Arc<ServedEntry>) {
        let (name, version) = (entry.name.clone(), entry.version.clone());
        self.registry.set(&name, &version, ModelState::Ready(entry.clone()), "");
        if let Some(old) = slot.serving.replace(entry) {
            if old.version != version {
                self.registry.remove(&name, &old.version);
            }
            self.retire(&old);
        }
        if let Some(failed) = slot.failed.take().filter(|failed| *failed != version) {
            self.registry.remove(&name, &failed);
        }
    }

    /// Unloads a replaced version once nobody waits for it any more, and at the latest when its requests' time is over.
    ///
    /// The grace at the start is for requests that looked it up just before the switch and are still being decoded.
    fn retire(&self, old: &ServedEntry) {
        let time = Duration::from_nanos(old.slo.span.0.unsigned_abs()).min(MAX_UNLOAD_WAIT);
        // Whoever may be late may be so for any time.
        let patience = if old.slo.answer_late { MAX_UNLOAD_WAIT } else { time };
        let begun = Instant::now();
        std::thread::sleep(GRACE);
        while self.host.live(old.id) > 0 && begun.elapsed() < patience + GRACE {
            std::thread::sleep(POLL);
        }
        self.host.unload(old.id);
    }

    /// Clients read the reasons in the registry.
    fn record_failure(&self, slot: &mut Slot, name: &str, version: &str, error: &str) {
        let error = &for_clients(&self.path, error);
        if let Some(entry) = slot.serving.as_ref().filter(|entry| entry.version == version) {
            let reason = format!("serves what was loaded before; loading it again failed: {error}");
            self.registry.set(name, version, ModelState::Ready(entry.clone()), &reason);
            return;
        }
        self.registry.set(name, version, ModelState::Unavailable, error);
        if let Some(before) = slot.failed.replace(version.to_owned()).filter(|before| before != version) {
            self.registry.remove(name, &before);
        }
    }

    fn load_one(&self, name: &str, brought: Option<&Brought>) -> Result<(), String> {
        let mut candidates = scan(&self.path)?;
        let own = candidates.iter().position(|candidate| candidate.name == name);
        if let Some(brought) = brought {
            return self.load_brought(name, brought, own.map(|own| candidates.swap_remove(own)));
        }
        match own {
            Some(own) => self.bring_up(&candidates[own], None).map(drop),
            None => Err(format!("Request for unknown model: '{name}' is not found; {}", self.names(&candidates))),
        }
    }

    fn load_brought(&self, name: &str, brought: &Brought, own: Option<Candidate>) -> Result<(), String> {
        let slots = self.slots.lock();
        if slots.len() >= MOST_NAMES && !slots.contains_key(name) {
            return Err(format!(
                "load calls may bring {MOST_NAMES} models; restart the server to forget those that were unloaded"
            ));
        }
        drop(slots);
        let kept = self.store.keep(name, brought)?;
        let candidate = kept.candidate(name, brought, own).map_err(|error| kept.for_clients(&error))?;
        self.bring_up(&candidate, Some(kept)).map(drop)
    }

    fn names(&self, candidates: &[Candidate]) -> String {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        let held = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        format!("{} holds {held}", self.path.display())
    }
}

impl Repository for LiveRepository {
    fn load(&self, name: &str, brought: Option<&Brought>) -> Result<(), String> {
        self.load_one(name, brought).map_err(|error| {
            tracing::warn!("model {name} was not loaded: {error}");
            for_clients(&self.path, &error)
        })
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        let slot = self.slots.lock().get(name).cloned();
        let Some(slot) = slot else { return Err(format!("Request for unknown model: '{name}' is not loaded")) };
        let mut slot = slot.lock();
        if let Some(entry) = slot.serving.take() {
            self.registry.set(name, &entry.version, ModelState::Unavailable, UNLOADED);
            slot.failed = Some(entry.version.clone());
            self.host.unload(entry.id);
        }
        slot.kept = None;
        Ok(())
    }

    fn index(&self) -> Vec<IndexRow> {
        let mut rows = self.registry.index();
        let held = scan(&self.path).unwrap_or_default();
        let unknown = held.into_iter().filter(|candidate| !rows.iter().any(|row| row.name == candidate.name));
        let unloaded: Vec<IndexRow> = unknown
            .map(|candidate| IndexRow {
                reason: for_clients(&self.path, &candidate.found.err().unwrap_or_default()),
                name: candidate.name,
                version: String::new(),
                state: String::new(),
            })
            .collect();
        rows.extend(unloaded);
        rows
    }
}

/// Files, when each was written, and how long it is.
type Files = BTreeMap<PathBuf, (SystemTime, u64)>;

/// The files of a model: its configuration and what lies beside it, labels among it, and all that lies beside the ONNX file, weights
/// among it.
fn files(found: &Found) -> Files {
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

fn version_of(candidate: &Candidate) -> &str {
    candidate.found.as_ref().map_or("", |found| found.version.as_str())
}

fn entry(prepared: &Prepared, (served, slo): (&Model, Slo), id: ModelId, target: &Target) -> ServedEntry {
    let source = &prepared.plan.source;
    ServedEntry {
        name: prepared.plan.name.clone(),
        version: prepared.plan.version.clone(),
        id,
        platform: platform(target.engine.name()).to_owned(),
        inputs: prepared.loaded.inputs().to_vec(),
        outputs: answers(prepared),
        batched: prepared.loaded.batched(),
        max_batch: if source.walk.is_unfolded() { 1 } else { source.max_batch },
        streams: !source.walk.brings_graph() && source.answers.iter().any(|answer| answer.take == Take::Every),
        lengths: prepared.loaded.lengths().cloned(),
        labels: prepared.labels.clone(),
        text: prepared.text.clone(),
        slo,
        one_row: (!source.walk.is_unfolded()).then(|| served.profile().latency(1)),
        stats: Default::default(),
    }
}

/// The outputs that clients are told of: all, or those that a `config.pbtxt` lists.
fn answers(prepared: &Prepared) -> Vec<TensorSpec> {
    let all = prepared.loaded.outputs();
    let listed = prepared.plan.triton.iter().flat_map(|triton| &triton.settings.answers);
    let listed: Vec<TensorSpec> =
        listed.filter_map(|name| all.iter().find(|spec| spec.name == *name)).cloned().collect();
    if listed.is_empty() { all.to_vec() } else { listed }
}

/// What the protocol's metadata calls an engine.
fn platform(engine: &str) -> &str {
    match engine {
        "onnxruntime" => "onnxruntime_onnx",
        "cpu" => "onnx_onnxv1",
        other => other,
    }
}
