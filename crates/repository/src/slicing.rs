//! Slices a model in one file into blocks, for `ripieno slice` and at load according to
//! `granularity`.
//!
//! Stages should have equal durations, so the layers are measured first: they are written to a
//! temporary folder, loaded as a chain, and run on the serving engine. They run alone and
//! alternating with the whole model, which gives the cost of block boundaries there. If the engine
//! cannot run them, durations are estimated from shapes. Slices made at load are cached beside the
//! model's profiles, keyed by the file's hash, the cut and the slicer's version. A new slicing
//! replaces the previous one for the same model and device.

use super::cache::{cache_folders, hash_of, keep_folder};
use super::config::{Granularity, ModelConfig};
use super::plan::{LoadPlan, LoadTarget, walk_in_cells};
use super::scan::CONFIG_FILE;
use super::slicing_check::boundary_cost;
use super::staging;
use super::trial::{MEASURED_LENGTH, measured, source};
use ripieno_base::Nanos;
use ripieno_executor::{BlockSource, Executor};
use ripieno_model::Profile;
use ripieno_onnx::{CutPrice, Cuts, OnnxModel, RecurrentCells, SLICER_VERSION, Slices};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Batch size at which layers are compared.
const MEASURED_BATCH: usize = 8;
/// Approximate duration of measuring all layers together.
const MEASURE_FOR: Duration = Duration::from_secs(5);

/// Positions at which a model is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Into this number of blocks of equal duration.
    Stages(usize),
    /// Between any two layers.
    Layers,
    /// After the operators that compute these tensors.
    At(Vec<String>),
    /// Between groups of consecutive layers; the values are the numbers of layers before each cut.
    Groups(Vec<usize>),
}

/// A sliced model.
pub struct Sliced<'m> {
    /// The blocks.
    pub slices: Slices<'m>,
    /// The cuts.
    pub cuts: Cuts,
    /// Cost of each cut.
    pub prices: Vec<CutPrice>,
    /// Warnings about the slicing.
    pub warnings: Vec<String>,
}

/// Durations of blocks for a batch of 8.
pub struct BlockTimes {
    /// Duration of each block in milliseconds.
    pub millis: Vec<f64>,
    /// Reason for which the durations are estimated from shapes.
    pub not_measured: Option<String>,
}

/// Slices a model; `engine` measures its layers if durations are needed.
pub fn cut<'m>(model: &'m OnnxModel, cut: &Cut, engine: Option<&dyn Executor>) -> Result<Sliced<'m>, String> {
    let text = |error: ripieno_onnx::OnnxError| error.to_string();
    let mut warnings = Vec::new();
    let (cuts, kind) = match cut {
        Cut::Layers => (model.layers(), "layer"),
        Cut::Groups(ends) => (model.layers().grouped(ends), "stage"),
        Cut::At(tensors) => (model.cuts_at(tensors).map_err(text)?, "stage"),
        Cut::Stages(stages) => {
            let layers = model.layers();
            let by_layer = model.slice(&layers, "layer").map_err(text)?;
            let (nanos, not_measured) = costs(&by_layer, engine);
            let total = nanos.iter().sum();
            let measured = engine.filter(|_| not_measured.is_none() && *stages > 1);
            let boundary_cost =
                measured.map(|engine| boundary_cost(model, &by_layer, total, MEASURED_BATCH, engine)).transpose()?;
            warnings.extend(not_measured.filter(|_| engine.is_some()).map(|cause| {
                format!("the stages are even by estimates from shapes, since the layers cannot be measured: {cause}")
            }));
            (model.stages(&layers, &nanos, boundary_cost, *stages).map_err(text)?, "stage")
        }
    };
    let slices = model.slice(&cuts, kind).map_err(text)?;
    warnings.extend(shared_warning(&slices));
    Ok(Sliced { slices, prices: model.prices(&cuts), cuts, warnings })
}

/// Returns the durations of the blocks.
pub fn times(sliced: &Sliced<'_>, engine: Option<&dyn Executor>) -> BlockTimes {
    let (nanos, not_measured) = costs(&sliced.slices, engine);
    BlockTimes { millis: nanos.into_iter().map(|nanos| nanos as f64 / 1e6).collect(), not_measured }
}

fn shared_warning(slices: &Slices<'_>) -> Option<String> {
    let total: u64 = slices.blocks.iter().map(|block| block.weight_bytes).sum();
    let shared = slices.shared();
    (shared > total / 8).then(|| {
        let (shared, total) = (shared >> 20, total >> 20);
        format!("{shared} of {total} MB of weights are used by several blocks and so are in each of them; cut elsewhere or less often")
    })
}

/// Returns the duration of each block in nanoseconds, and the reason if they are estimates.
fn costs(slices: &Slices<'_>, engine: Option<&dyn Executor>) -> (Vec<u64>, Option<String>) {
    let profiles = match engine {
        Some(engine) => measured(slices, engine, MEASURED_BATCH, MEASURE_FOR, MEASURED_LENGTH),
        None => Err("no setting asked for it".to_owned()),
    };
    let nanos = |profile: &Profile| profile.latency(MEASURED_BATCH).max(Nanos(1)).0.unsigned_abs();
    match profiles {
        Ok(profiles) => (profiles.iter().map(nanos).collect(), None),
        Err(cause) => (slices.estimate(MEASURED_BATCH as i64), Some(cause)),
    }
}

/// Slices the model of a plan as configured and replaces the plan's blocks; returns true if it was
/// sliced.
pub(super) fn apply(plan: &mut LoadPlan, target: &LoadTarget, may_measure: bool) -> Result<bool, String> {
    let (cut_to, word) = match plan.config.granularity {
        Granularity::Whole => return Ok(false),
        Granularity::Stages(stages) => (Some(Cut::Stages(stages)), format!("stages-{stages}")),
        Granularity::AutoStages => match staging::ends(plan, target, may_measure)? {
            ends if ends.is_empty() => return Ok(false),
            ends => (Some(Cut::Groups(ends.clone())), format!("groups-{ends:?}")),
        },
        Granularity::Layers => (Some(Cut::Layers), "layers".to_owned()),
        Granularity::Cells => (None, "cells".to_owned()),
    };
    let [BlockSource { path: Some(file), .. }] = &plan.source.blocks[..] else { return Ok(false) };
    let device = if matches!(cut_to, Some(Cut::Stages(_))) { target.engine.device_key() } else { String::new() };
    let model = OnnxModel::read(file).map_err(|error| error.to_string())?;
    let files = std::iter::once(file.clone()).chain(model.external_files());
    let hashes = files.map(|file| hash_of(&file)).collect::<Result<Vec<_>, _>>()?;
    let measured = may_measure && !device.is_empty();
    let key = format!("{SLICER_VERSION}\n{word}\n{device}\n{measured}\n{}", hashes.join(","));
    let engine = measured.then_some(&*target.engine);
    let cache = SliceCache { folder: plan.folder.clone(), key, owner: owner(plan, &device, measured) };
    let folder = match (cache.cached(), &cut_to) {
        (Some(folder), _) => folder,
        (None, Some(cut_to)) => save_slices(plan, &cache, &cut(&model, cut_to, engine)?)?,
        (None, None) => save_cells(&cache, &model.cells().map_err(|error| error.to_string())?)?,
    };
    let blocks = source(&plan.name, &folder, names(&folder)?.into_iter(), plan.source.max_batch).blocks;
    plan.source.blocks = blocks;
    if cut_to.is_none() {
        let walk = ModelConfig::read(&folder.join(CONFIG_FILE))?;
        plan.config.cells = walk.cells;
        if let Some(cells) = &plan.config.cells {
            walk_in_cells(&mut plan.source, cells);
        }
    }
    Ok(true)
}

fn save_slices(plan: &LoadPlan, cache: &SliceCache, sliced: &Sliced<'_>) -> Result<PathBuf, String> {
    for warning in &sliced.warnings {
        tracing::warn!("model {}: {warning}", plan.name);
    }
    let names: Vec<&str> = sliced.slices.blocks.iter().map(|block| block.name.as_str()).collect();
    cache.save(&names, &|folder| sliced.slices.write(folder).map_err(|error| error.to_string()))
}

fn save_cells(cache: &SliceCache, cells: &RecurrentCells) -> Result<PathBuf, String> {
    let names: Vec<&str> = cells.blocks.iter().map(|cell| cell.name.as_str()).collect();
    cache.save(&names, &|folder| {
        cells.write(folder).map_err(|error| error.to_string())?;
        fs::write(folder.join(CONFIG_FILE), cells.to_toml()).map_err(|error| error.to_string())
    })
}

/// File with the names of a folder's blocks in order; a folder without it is incomplete.
const BLOCK_LIST: &str = "blocks.json";

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let path = folder.join(BLOCK_LIST);
    let text = fs::read(&path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    serde_json::from_slice(&text)
        .map_err(|error| format!("{}: it is corrupt: {error}; remove the folder", path.display()))
}

/// File that identifies the model and device that a folder's blocks belong to.
const OWNER_FILE: &str = "owner.txt";

/// Returns the model and, where it matters, the device of a slicing. One slicing is kept for each.
fn owner(plan: &LoadPlan, device: &str, measured: bool) -> String {
    let folder = fs::canonicalize(&plan.folder).unwrap_or_else(|_| plan.folder.clone());
    format!("{}\n{}\n{device}\n{measured}\n", folder.display(), plan.name)
}

/// Cache of a model's blocks.
pub(super) struct SliceCache {
    /// Folder of the model.
    folder: PathBuf,
    /// Inputs of the slicing, such as hashes and cuts.
    key: String,
    owner: String,
}

impl SliceCache {
    /// Creates the cache of files that do not depend on the device.
    pub(super) fn new(plan: &LoadPlan, key: String) -> SliceCache {
        SliceCache { folder: plan.folder.clone(), key, owner: owner(plan, "", false) }
    }

    fn name(&self) -> String {
        format!("slices-{}", super::cache::short_hash(&self.key))
    }

    /// Returns the folder with the files, if they were stored.
    pub(super) fn cached(&self) -> Option<PathBuf> {
        let folders = cache_folders(&self.folder).into_iter().map(|folder| folder.join(self.name()));
        folders.into_iter().find(|folder| {
            let blocks = names(folder).unwrap_or_default();
            !blocks.is_empty() && blocks.iter().all(|name| folder.join(format!("{name}.onnx")).is_file())
        })
    }

    /// Stores the files written by `write` in the first writable folder, and removes those that
    /// they replace.
    pub(super) fn save(&self, names: &[&str], write: &dyn Fn(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        let list = serde_json::to_vec(names).map_err(|error| error.to_string())?;
        let write = |draft: &Path| {
            write(draft)?;
            let files = [(BLOCK_LIST, list.as_slice()), (OWNER_FILE, self.owner.as_bytes())];
            files
                .into_iter()
                .try_for_each(|(file, text)| fs::write(draft.join(file), text))
                .map_err(|error| error.to_string())
        };
        let mut causes = Vec::new();
        for folder in cache_folders(&self.folder) {
            match keep_folder(&folder.join(self.name()), write) {
                Ok(kept) => {
                    self.remove_replaced(&folder, &kept);
                    return Ok(kept);
                }
                Err(cause) => causes.push(format!("{}: {cause}", folder.display())),
            }
        }
        Err(format!("the blocks cannot be kept: {}", causes.join("; ")))
    }

    /// Removes previous slicings of the same owner. Loaded models no longer need the files.
    fn remove_replaced(&self, cache: &Path, kept: &Path) {
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_ours = || fs::read_to_string(path.join(OWNER_FILE)).is_ok_and(|owner| owner == self.owner);
            if name.to_string_lossy().starts_with("slices-") && path != kept && is_ours() {
                // A folder that cannot be removed only takes disk space.
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempRepository;
    use crate::load::{Loader, Profiling};
    use crate::prepared::PreparedModel;
    use crate::scan::scan;
    use ripieno_executor::{CpuEngine, CpuOptions};
    use std::sync::Arc;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/repository/shapes/1/model.onnx");

    fn prepare(folder: &TempRepository, profiling: Profiling) -> PreparedModel {
        let target = LoadTarget {
            measure_for: Duration::ZERO,
            ..LoadTarget::new(Arc::new(CpuEngine::new(CpuOptions::default())))
        };
        let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
        Loader::new(target, Arc::new(|_, _, _| {})).prepare(&found, profiling).unwrap()
    }

    fn model(toml: &str) -> TempRepository {
        let folder = TempRepository::new();
        folder.write("shapes/1/model.onnx", fs::read(DEMO).unwrap());
        folder.write("shapes/model.toml", format!("max_batch = 2\n{toml}\n"));
        folder
    }

    fn kept(folder: &TempRepository) -> Vec<PathBuf> {
        let cache = fs::read_dir(folder.path().join("shapes/.ripieno")).unwrap();
        cache.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    #[test]
    fn a_model_is_cut_at_load_and_the_blocks_are_kept() {
        let folder = model("granularity = \"layers\"");
        let first = prepare(&folder, Profiling::Never);
        assert!(first.plan.source.blocks.len() > 3 && first.warnings.is_empty(), "{:?}", first.warnings);
        let [cache] = &kept(&folder)[..] else { panic!("one folder is kept") };
        let block = cache.join("layer1.onnx");
        let block = if block.is_file() { block } else { cache.join("layer01.onnx") };
        fs::write(&block, "damaged").unwrap();
        let second = prepare(&folder, Profiling::Never);
        assert!(second.warnings[0].contains("is served whole"), "the kept one is used: {:?}", second.warnings);
        fs::remove_file(&block).unwrap();
        assert!(prepare(&folder, Profiling::Never).warnings.is_empty(), "what is not whole is made anew");
        let served = prepare(&folder, Profiling::IfMissing);
        assert_eq!(served.served().unwrap().model.blocks.len(), first.plan.source.blocks.len());
    }

    #[test]
    fn a_new_slicing_takes_the_place_of_the_old_one() {
        let folder = model("granularity = \"layers\"");
        prepare(&folder, Profiling::Never);
        let layers = kept(&folder);
        folder.write("shapes/.ripieno/slices-of-another/owner.txt", "another\n\nfalse\n");
        // An unknown empty field changes the file's hash but not the model.
        folder.write("shapes/2/model.onnx", [fs::read(DEMO).unwrap(), vec![0x5a, 0]].concat());
        assert_eq!(prepare(&folder, Profiling::Never).plan.version, "2");
        let now = kept(&folder);
        assert_eq!(now.len(), 2, "the new one and that of another: {now:?}");
        assert!(now.iter().any(|path| path.ends_with("slices-of-another")));
        assert!(layers.iter().all(|old| !now.contains(old)), "the old one has gone");
        prepare(&folder, Profiling::Never);
        assert_eq!(kept(&folder).len(), 2, "what is in use stays");
    }

    #[test]
    fn stages_are_measured_and_what_cannot_be_cut_is_served_whole() {
        let folder = model("granularity = \"stages\"\nstages = 2");
        let names: Vec<String> =
            prepare(&folder, Profiling::IfMissing).plan.source.blocks.iter().map(|block| block.name.clone()).collect();
        assert_eq!(names, ["stage1", "stage2"]);
        let folder = model("granularity = \"stages\"\nstages = 500");
        let whole = prepare(&folder, Profiling::Never);
        assert_eq!(whole.plan.source.blocks.len(), 1);
        assert!(whole.warnings[0].contains("500 stages are asked for"), "{:?}", whole.warnings);
    }
}
