//! The repository of a running server: loads at the start, and loads, reloads and unloads when asked.
//!
//! Each model has one lock, held while that model changes; there is no other, so loading one model never waits for
//! another and never stalls one that serves. A reload loads the new version beside the old one, switches the
//! registry, and only then takes the old one out of service; if the new one fails, the old one stays.

mod control;
mod outer;
mod poll;

use super::assembly;
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
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub use control::Control;
pub use poll::Looks;

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
    control: Control,
}

/// What a model is doing; locked while it changes.
#[derive(Default)]
struct Slot {
    /// By version.
    serving: BTreeMap<String, Serving>,
    /// The versions whose rows in the registry tell of a failure or an unload.
    failed: BTreeSet<String>,
}

/// A version that answers.
struct Serving {
    entry: Arc<ServedEntry>,
    /// The files that it was loaded from, as they were just before.
    files: Files,
    /// What the load call brought that it was loaded by.
    kept: Option<Arc<Kept>>,
}

impl Slot {
    fn is_brought(&self) -> bool {
        self.serving.values().any(|serving| serving.kept.is_some())
    }

    /// Whether it answers in the versions that were found, each from the files that lie there now.
    fn serves(&self, found: &Found) -> bool {
        self.serving.len() == found.served.len() && found.each_version().all(|found| self.serves_version(&found))
    }

    fn serves_version(&self, found: &Found) -> bool {
        self.serving.get(&found.version).is_some_and(|serving| serving.files == files(found))
    }
}

/// Which versions are loaded of those that were found.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    All,
    Changed,
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
        LiveRepository { path, loader, registry, host, slots, store, control: Control::Open }
    }

    /// The same, where load calls may bring models along, of which files of so many bytes in all are kept.
    pub fn with_overrides(mut self, bytes: u64) -> LiveRepository {
        self.store = Store::new(bytes);
        self
    }

    /// Loads every model, or those that its control names; returns when all are served or have failed. An error only
    /// if the path cannot be read.
    pub fn load_all(&self) -> Result<Vec<ModelReport>, String> {
        let (candidates, missing) = self.at_the_start(scan(&self.path)?);
        for candidate in &candidates {
            let set = |version: &str| self.registry.set(&candidate.name, version, ModelState::Loading, "");
            versions_of(candidate).iter().for_each(|version| set(version));
        }
        let reports = Mutex::new(BTreeMap::new());
        let bring_up = |candidate: &Candidate| {
            let of_model = self.bring_up(candidate, None, Which::All);
            reports.lock().insert(candidate.name.clone(), of_model);
        };
        // Models first: an ensemble needs those of its steps.
        let (ensembles, models): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| is_ensemble(candidate));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..LOADERS.min(models.len()) {
                scope.spawn(|| {
                    while let Some(candidate) = models.get(next.fetch_add(1, Ordering::Relaxed)) {
                        bring_up(candidate);
                    }
                });
            }
        });
        outer::inner_first(ensembles, self.loader.target()).into_iter().for_each(bring_up);
        Ok(reports.into_inner().into_values().flatten().chain(missing).collect())
    }

    /// Loads what has changed on the disk since it was loaded, and what is new; unloads what is gone. What is as it was goes on,
    /// and so does what a load call has brought. An error only if the path cannot be read, and then nothing is done.
    pub fn reload(&self) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        let gone = |name: &String| !candidates.iter().any(|candidate| candidate.name == *name);
        let gone: Vec<String> = self.slots.lock().keys().filter(|name| gone(name)).cloned().collect();
        for name in gone.into_iter().filter(|name| !self.is_brought(name)) {
            self.take_out(&name)?;
        }
        let is_due = |candidate: &&Candidate| self.follows(candidate) && !self.is_served_as_found(candidate);
        let changed = candidates.iter().filter(is_due);
        Ok(self.bring_up_in_order(changed, Which::Changed))
    }

    /// Models first, then the ensembles that need them.
    fn bring_up_in_order<'a>(&self, all: impl Iterator<Item = &'a Candidate>, which: Which) -> Vec<ModelReport> {
        let (ensembles, models): (Vec<_>, Vec<_>) = all.partition(|candidate| is_ensemble(candidate));
        let names: Vec<&str> = ensembles.iter().map(|candidate| candidate.name.as_str()).collect();
        let ordered = models.into_iter().chain(outer::inner_first(ensembles, self.loader.target()));
        let reports = ordered.flat_map(|candidate| self.bring_up(candidate, None, which)).collect();
        self.renew_outer(&names);
        reports
    }

    fn is_brought(&self, name: &str) -> bool {
        let slot = self.slots.lock().get(name).cloned();
        slot.is_some_and(|slot| slot.lock().is_brought())
    }

    fn is_served_as_found(&self, candidate: &Candidate) -> bool {
        let slot = self.slots.lock().get(&candidate.name).cloned();
        slot.is_some_and(|slot| {
            let slot = slot.lock();
            slot.is_brought() || candidate.found.as_ref().is_ok_and(|found| slot.serves(found))
        })
    }

    /// Loads what was found for a model, or is kept for it, and puts it in the place of what serves now. A version that fails
    /// leaves the others alone, and what served before in service.
    fn bring_up(&self, candidate: &Candidate, kept: Option<Kept>, which: Which) -> Vec<ModelReport> {
        let slot = self.slots.lock().entry(candidate.name.clone()).or_default().clone();
        let (mut slot, kept, name) = (slot.lock(), kept.map(Arc::new), candidate.name.as_str());
        let fail = |slot: &mut Slot, version: &str, error: String| {
            tracing::error!("model {name} is not served: {error}");
            let error = kept.as_ref().map_or(error.clone(), |kept| kept.for_clients(&error));
            self.record_failure(slot, name, version, &error);
            ModelReport::failed(name, version, error)
        };
        let wanted = versions_of(candidate);
        let mut reports = Vec::with_capacity(wanted.len());
        match &candidate.found {
            Err(error) => reports.push(fail(&mut slot, "", error.clone())),
            Ok(found) => {
                let is_due = |found: &Found| which == Which::All || !slot.serves_version(found);
                let due: Vec<Found> = found.each_version().filter(is_due).collect();
                for found in due.iter().filter(|found| !slot.serving.contains_key(&found.version)) {
                    self.registry.set(name, &found.version, ModelState::Loading, "");
                }
                for found in &due {
                    let files = files(found);
                    match self.prepare_and_host(found) {
                        Ok((entry, report)) => {
                            self.switch(&mut slot, Serving { entry, files, kept: kept.clone() });
                            reports.push(report);
                        }
                        Err(error) => reports.push(fail(&mut slot, &found.version, error)),
                    }
                }
            }
        }
        self.forget_others(&mut slot, name, &wanted, reports.iter().all(|report| report.error.is_none()));
        reports
    }

    fn prepare_and_host(&self, found: &Found) -> Result<(Arc<ServedEntry>, ModelReport), String> {
        if found.is_ensemble {
            let (entry, report) = assembly::prepare(found, self.loader.target(), &self.registry)?;
            report.warnings.iter().for_each(|warning| tracing::warn!("model {}: {warning}", found.name));
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
        for note in prepared.plan.triton_note().into_iter().chain(prepared.slo_note()) {
            tracing::info!("model {}: {note}", found.name);
        }
        let target = self.loader.target();
        Ok((Arc::new(entry(&prepared, (&model, slo), id, target)), prepared.report(target.devices)))
    }

    /// First the new one answers, then the old one goes.
    fn switch(&self, slot: &mut Slot, serving: Serving) {
        let (name, version) = (serving.entry.name.clone(), serving.entry.version.clone());
        self.registry.set(&name, &version, ModelState::Ready(serving.entry.clone()), "");
        slot.failed.remove(&version);
        // What was brought along with the old one goes with it: it may be read until then.
        if let Some(old) = slot.serving.insert(version, serving) {
            self.retire(&old.entry);
        }
    }

    /// Forgets failures of versions that are not wanted any more; and where all that are wanted serve, the others go.
    fn forget_others(&self, slot: &mut Slot, name: &str, wanted: &[String], all_serve: bool) {
        let Slot { serving, failed } = slot;
        for version in failed.extract_if(.., |version| !wanted.contains(version)) {
            self.registry.remove(name, &version);
        }
        if all_serve {
            let others = serving.extract_if(.., |version, _| !wanted.contains(version));
            let others: Vec<(String, Serving)> = others.collect();
            others.iter().for_each(|(version, _)| self.registry.remove(name, version));
            others.iter().for_each(|(_, old)| self.retire(&old.entry));
        }
    }

    /// Unloads a replaced version once nobody waits for it any more, and at the latest when its requests' time is over.
    ///
    /// The grace at the start is for requests that looked it up just before the switch and are still being decoded.
    fn retire(&self, old: &ServedEntry) {
        let Some(id) = old.id else { return };
        let time = Duration::from_nanos(old.slo.span.0.unsigned_abs()).min(MAX_UNLOAD_WAIT);
        // Whoever may be late may be so for any time.
        let patience = if old.slo.answer_late { MAX_UNLOAD_WAIT } else { time };
        let begun = Instant::now();
        std::thread::sleep(GRACE);
        while self.host.live(id) > 0 && begun.elapsed() < patience + GRACE {
            std::thread::sleep(POLL);
        }
        self.host.unload(id);
    }

    /// Clients read the reasons in the registry.
    fn record_failure(&self, slot: &mut Slot, name: &str, version: &str, error: &str) {
        let error = &for_clients(&self.path, error);
        if let Some(serving) = slot.serving.get(version) {
            let reason = format!("serves what was loaded before; loading it again failed: {error}");
            self.registry.set(name, version, ModelState::Ready(serving.entry.clone()), &reason);
            return;
        }
        self.registry.set(name, version, ModelState::Unavailable, error);
        slot.failed.insert(version.to_owned());
    }

    fn load_one(&self, name: &str, brought: Option<&Brought>) -> Result<(), String> {
        let mut candidates = scan(&self.path)?;
        let own = candidates.iter().position(|candidate| candidate.name == name);
        if let Some(brought) = brought {
            self.load_brought(name, brought, own.map(|own| candidates.swap_remove(own)))?;
            self.renew_outer(&[name]);
            return Ok(());
        }
        match own {
            Some(own) => {
                self.load_members(&candidates[own], &candidates, &mut BTreeSet::new())?;
                first_error(self.bring_up(&candidates[own], None, Which::All))?;
                self.renew_outer(&[name]);
                Ok(())
            }
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
        first_error(self.bring_up(&candidate, Some(kept), Which::All))
    }

    fn names(&self, candidates: &[Candidate]) -> String {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        let held = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        format!("{} holds {held}", self.path.display())
    }

    fn take_out(&self, name: &str) -> Result<(), String> {
        let slot = self.slots.lock().get(name).cloned();
        let Some(slot) = slot else { return Err(format!("Request for unknown model: '{name}' is not loaded")) };
        let mut slot = slot.lock();
        let serving = std::mem::take(&mut slot.serving);
        for (version, Serving { entry, .. }) in &serving {
            self.registry.set(name, version, ModelState::Unavailable, UNLOADED);
            entry.id.into_iter().for_each(|id| self.host.unload(id));
        }
        slot.failed.extend(serving.into_keys());
        Ok(())
    }
}

impl Repository for LiveRepository {
    fn load(&self, name: &str, brought: Option<&Brought>) -> Result<(), String> {
        self.check_calls().and_then(|()| self.load_one(name, brought)).map_err(|error| {
            tracing::warn!("model {name} was not loaded: {error}");
            for_clients(&self.path, &error)
        })
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        self.check_calls()?;
        self.take_out(name)
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

/// The versions that are to be served; an empty one where it is not even known which.
fn versions_of(candidate: &Candidate) -> Vec<String> {
    let versions = |found: &Found| found.served.iter().map(u64::to_string).collect();
    candidate.found.as_ref().map_or_else(|_| vec![String::new()], versions)
}

fn is_ensemble(candidate: &Candidate) -> bool {
    candidate.found.as_ref().is_ok_and(|found| found.is_ensemble)
}

fn first_error(reports: Vec<ModelReport>) -> Result<(), String> {
    reports.into_iter().find_map(|report| report.error).map_or(Ok(()), Err)
}

fn entry(prepared: &Prepared, (served, slo): (&Model, Slo), id: ModelId, target: &Target) -> ServedEntry {
    let source = &prepared.plan.source;
    let mut edge = prepared.plan.triton.as_ref().map(|triton| triton.settings.edge.clone()).unwrap_or_default();
    let mut inputs = prepared.loaded.inputs().to_vec();
    if let Some(sequences) = &mut edge.sequences {
        sequences.inputs = inputs.clone();
        inputs.retain(|spec| !sequences.fills(&spec.name));
    }
    ServedEntry {
        name: prepared.plan.name.clone(),
        version: prepared.plan.version.clone(),
        id: Some(id),
        platform: platform(target.engine.name()).to_owned(),
        inputs,
        outputs: answers(prepared),
        batched: prepared.loaded.batched(),
        max_batch: if source.walk.is_unfolded() { 1 } else { source.max_batch },
        streams: !source.walk.brings_graph() && source.answers.iter().any(|answer| answer.take == Take::Every),
        lengths: prepared.loaded.lengths().cloned(),
        labels: prepared.labels.clone(),
        text: prepared.text.clone(),
        slo,
        one_row: (!source.walk.is_unfolded()).then(|| served.profile().latency(1)),
        ensemble: None,
        edge,
        stats: Default::default(),
    }
}

/// The outputs that clients are told of: all but the states of sequences, or those that a `config.pbtxt` lists.
fn answers(prepared: &Prepared) -> Vec<TensorSpec> {
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

/// What the protocol's metadata calls an engine.
fn platform(engine: &str) -> &str {
    match engine {
        "onnxruntime" => "onnxruntime_onnx",
        "cpu" => "onnx_onnxv1",
        other => other,
    }
}
