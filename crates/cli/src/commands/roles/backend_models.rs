//! The models of `ripieno backend`: what its repository loads and unloads is offered to schedulers.

use super::model::describe;
use ripieno_base::ModelId;
use ripieno_cluster::{BackendModel, BackendModels, ModelCalls, PlannedModels};
use ripieno_repository::registry::{ModelRegistry, Repository, ServedEntry};
use ripieno_repository::{
    Host, LiveRepository, LoadTarget, MeasureProgress, ModelControl, ModelReport, RepositoryPoll,
};
use ripieno_runtime::ServedModel;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Depth of a model's folder up to which its files are hashed.
const MAX_DEPTH: usize = 8;

/// A repository whose models schedulers use.
pub(super) struct BackendRepository {
    shelf: Arc<ModelShelf>,
    repository: LiveRepository,
}

/// Keeps loaded models until their description is known, which is soon after.
struct ModelShelf {
    path: PathBuf,
    registry: Arc<ModelRegistry>,
    offered: Arc<BackendModels>,
    state: Mutex<ShelfState>,
}

#[derive(Default)]
struct ShelfState {
    next: u16,
    loaded: HashMap<ModelId, ServedModel>,
}

impl BackendRepository {
    /// Opens a repository without loading anything.
    pub(super) fn open(
        path: &Path,
        target: LoadTarget,
        control: ModelControl,
        registry: Arc<ModelRegistry>,
        progress: MeasureProgress,
    ) -> BackendRepository {
        let (path, offered, state) = (path.to_owned(), Arc::default(), Mutex::default());
        let shelf = Arc::new(ModelShelf { path: path.clone(), registry: Arc::clone(&registry), offered, state });
        let repository = LiveRepository::new(path, target, registry, Arc::clone(&shelf) as Arc<dyn Host>, progress);
        BackendRepository { shelf, repository: repository.with_control(control) }
    }

    /// Loads all models and offers them.
    pub(super) fn load_all(&self) -> Result<Vec<ModelReport>, String> {
        let reports = self.repository.load_all();
        for entry in self.shelf.registry.ready_entries().iter().filter(|entry| entry.ensemble.is_some()) {
            let name = &entry.name;
            tracing::warn!("model {name}: ensembles are not served across processes yet; clients ask its models");
        }
        self.shelf.offer_loaded();
        reports
    }

    /// Returns the models on offer.
    pub(super) fn offered(&self) -> Arc<BackendModels> {
        Arc::clone(&self.shelf.offered)
    }

    /// Returns true if some model is on offer.
    pub(super) fn offers_any(&self) -> bool {
        let entries = self.shelf.registry.ready_entries();
        entries.iter().filter_map(|entry| entry.id).any(|id| self.shelf.offered.offers(u32::from(id.0)))
    }

    /// Returns the calls of schedulers to load and unload models.
    pub(super) fn calls(self: &Arc<BackendRepository>) -> Arc<ModelCalls> {
        let own = Arc::clone(self);
        Arc::new(ModelCalls::new(Box::new(move |name, unload| own.change(name, unload))))
    }

    /// Returns the models that a scheduler's plan loads and unloads.
    pub(super) fn planned(self: &Arc<BackendRepository>) -> io::Result<Arc<PlannedModels>> {
        let own = Arc::clone(self);
        let names = self.repository.index().into_iter().map(|row| row.name);
        let available = names.map(|name| (name.clone(), size(&self.shelf.path, &name))).collect();
        PlannedModels::start(self.offered(), available, Box::new(move |name, unload| own.change(name, unload)))
    }

    fn change(&self, name: &str, unload: bool) -> Result<(), String> {
        let changed = if unload { self.repository.unload(name) } else { self.repository.load(name, None) };
        self.shelf.offer_loaded();
        changed
    }

    /// Polls the repository at this interval, on a thread of its own, as long as the process lives.
    pub(super) fn poll_every(self: &Arc<BackendRepository>, period: Duration) -> io::Result<()> {
        let own = Arc::clone(self);
        let poll = move || {
            let mut looks = RepositoryPoll::default();
            loop {
                thread::sleep(period);
                if let Err(error) = own.repository.poll(&mut looks) {
                    tracing::error!("the repository cannot be read, so nothing changes: {error}");
                }
                own.shelf.offer_loaded();
            }
        };
        thread::Builder::new().name("backend-poll".to_owned()).spawn(poll).map(drop)
    }
}

impl ModelShelf {
    fn state(&self) -> MutexGuard<'_, ShelfState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the models that have been loaded and described since the last call.
    fn offer_loaded(&self) {
        for entry in self.registry.ready_entries() {
            let Some(id) = entry.id else { continue };
            let Some(served) = self.state().loaded.remove(&id) else { continue };
            if !is_served(&entry) {
                continue;
            }
            let offered =
                digest(&self.path, &entry.name, &entry.version).map_err(|error| error.to_string()).and_then(|digest| {
                    let description = describe(&entry, &served, digest);
                    let model = BackendModel { description, loaded: served.loaded };
                    self.offered.add(u32::from(id.0), model)
                });
            if let Err(error) = offered {
                tracing::error!("model {}: version {} is not offered: {error}", entry.name, entry.version);
            }
        }
    }
}

/// Returns true if a model can be served across processes; warns of what cannot.
fn is_served(entry: &ServedEntry) -> bool {
    let name = &entry.name;
    if entry.text.is_some() {
        tracing::warn!("model {name}: texts are not read across processes yet; clients send its tensors");
    }
    if !entry.edge.reshapes.is_empty() || entry.edge.sequences.is_some() {
        tracing::warn!(
            "model {name}: not served, as reshape and sequence_batching are not known across processes yet; use ripieno \
             serve"
        );
        return false;
    }
    true
}

impl Host for ModelShelf {
    fn load(&self, model: ServedModel) -> Result<ModelId, String> {
        let mut state = self.state();
        let id = ModelId(state.next);
        state.next = state.next.checked_add(1).ok_or("too many models were loaded; start this backend anew")?;
        state.loaded.insert(id, model);
        Ok(id)
    }

    /// Requests are the scheduler's: it leaves a model when its last one has ended.
    fn live(&self, _: ModelId) -> usize {
        0
    }

    /// The newer one must be on offer before this one is withdrawn, or it would be out of service.
    fn unload(&self, id: ModelId) {
        self.offer_loaded();
        self.state().loaded.remove(&id);
        self.offered.withdraw(u32::from(id.0));
    }
}

/// Returns a hash of the files and settings of a model's version. Other versions of it, hidden
/// files and caches do not count.
fn digest(repository: &Path, name: &str, version: &str) -> io::Result<String> {
    let own = repository.join(name);
    let folder = if own.is_dir() { own } else { repository.to_owned() };
    let mut files = Vec::new();
    if folder.is_dir() {
        collect(&folder, version, 0, &mut files)?;
    } else {
        files.push(folder.clone());
        files.extend(Some(folder.with_file_name("model.toml")).filter(|settings| settings.is_file()));
    }
    files.sort();
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    for path in files {
        let named = path.strip_prefix(&folder).unwrap_or(&path);
        hash.update(named.as_os_str().as_encoded_bytes());
        let mut file = File::open(&path)?;
        hash.update(file.metadata()?.len().to_le_bytes());
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                read => hash.update(&chunk[..read]),
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the size of a model's files, with the largest of its versions, in bytes.
fn size(repository: &Path, name: &str) -> u64 {
    let own = repository.join(name);
    let length = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    if !own.is_dir() {
        return length(&repository.to_owned());
    }
    let versions = fs::read_dir(&own).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let of_version = |version: std::ffi::OsString| {
        let mut files = Vec::new();
        collect(&own, &version.to_string_lossy(), 0, &mut files).ok()?;
        Some(files.iter().map(length).sum())
    };
    versions.filter_map(of_version).max().unwrap_or(0)
}

fn collect(folder: &Path, version: &str, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_version = depth == 0 && name.parse::<u64>().is_ok();
        if name.starts_with('.') || (is_version && name != version) {
            continue;
        }
        if path.is_dir() && depth < MAX_DEPTH {
            collect(&path, version, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_a_version_and_its_settings() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("m/1/model.onnx", "weights");
        write("m/model.toml", "slo_ms = 5");
        let of = |version: &str| digest(folder.path(), "m", version).unwrap();
        let first = of("1");
        write("m/2/model.onnx", "others");
        write("m/.ripieno/profile.json", "{}");
        assert_eq!(of("1"), first, "another version and a cache");
        assert_ne!(of("2"), first);
        write("m/model.toml", "slo_ms = 6");
        let changed = of("1");
        assert_ne!(changed, first);
        write("m/1/model.onnx", "weighty");
        assert_ne!(of("1"), changed);
        let sizes = |name| fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!(size(folder.path(), "m"), sizes("m/model.toml") + sizes("m/1/model.onnx"), "the larger version");
        let file = folder.path().join("m/1/model.onnx");
        assert_eq!(digest(&file, "model", "1").unwrap().len(), 64);
    }
}
