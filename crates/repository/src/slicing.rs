//! Cutting a model in one file into blocks: for `ripieno slice`, and at load where `granularity` says so.
//!
//! Stages shall be even in time, so the layers are measured first: written to a folder that is removed again, loaded as a
//! chain, and run on the engine that will serve, alone and in turn with the whole, which tells what borders cost there. An engine
//! that cannot run them leaves the estimate from their shapes.
//! What is cut at load is kept beside the model's profiles, under the file's hash, the cut and the slicer's version, so that
//! only the first start pays for it. A new slicing takes the place of what was cut before for the same model and device.

use super::cache::{cache_folders, hash_of, keep_folder};
use super::config::{Granularity, ModelConfig};
use super::plan::{Plan, Target, walk_in_cells};
use super::scan::CONFIG_FILE;
use super::slicing_check::borders;
use super::staging;
use super::trial::{MEASURED_LENGTH, measured, source};
use ripieno_base::Nanos;
use ripieno_executor::{BlockSource, Engine};
use ripieno_model::Profile;
use ripieno_onnx::{Cells, Cuts, Model, Price, SLICER_VERSION, Slices};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The batch that layers are compared at.
const MEASURED_BATCH: usize = 8;
/// About how long all layers are measured together.
const MEASURE_FOR: Duration = Duration::from_secs(5);

/// Where a model is to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Into so many blocks that are even in time.
    Stages(usize),
    /// Between any two layers.
    Layers,
    /// Behind the operators that compute these tensors.
    At(Vec<String>),
    /// Between groups of neighbouring layers: how many layers there are up to each cut.
    Groups(Vec<usize>),
}

/// What was cut.
pub struct Sliced<'m> {
    /// The blocks.
    pub slices: Slices<'m>,
    /// What made them.
    pub cuts: Cuts,
    /// What each cut costs.
    pub prices: Vec<Price>,
    /// What is odd about it.
    pub warnings: Vec<String>,
}

/// What blocks take for a batch of 8.
pub struct Times {
    /// In milliseconds, block by block.
    pub millis: Vec<f64>,
    /// Why they are estimates from shapes, if they are.
    pub not_measured: Option<String>,
}

/// Cuts a model; `engine` measures its layers, where times matter.
pub fn cut<'m>(model: &'m Model, cut: &Cut, engine: Option<&dyn Engine>) -> Result<Sliced<'m>, String> {
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
            let all = (nanos.iter().sum(), MEASURED_BATCH);
            let measured = engine.filter(|_| not_measured.is_none() && *stages > 1);
            let borders = measured.map(|engine| borders(model, &by_layer, all, engine)).transpose()?;
            warnings.extend(not_measured.filter(|_| engine.is_some()).map(|cause| {
                format!("the stages are even by estimates from shapes, since the layers cannot be measured: {cause}")
            }));
            (model.stages(&layers, &nanos, borders, *stages).map_err(text)?, "stage")
        }
    };
    let slices = model.slice(&cuts, kind).map_err(text)?;
    warnings.extend(shared_warning(&slices));
    Ok(Sliced { slices, prices: model.prices(&cuts), cuts, warnings })
}

/// What the blocks take.
pub fn times(sliced: &Sliced<'_>, engine: Option<&dyn Engine>) -> Times {
    let (nanos, not_measured) = costs(&sliced.slices, engine);
    Times { millis: nanos.into_iter().map(|nanos| nanos as f64 / 1e6).collect(), not_measured }
}

fn shared_warning(slices: &Slices<'_>) -> Option<String> {
    let total: u64 = slices.blocks.iter().map(|block| block.weight_bytes).sum();
    let shared = slices.shared();
    (shared > total / 8).then(|| {
        let (shared, total) = (shared >> 20, total >> 20);
        format!("{shared} of {total} MB of weights are used by several blocks and so are in each of them; cut elsewhere or less often")
    })
}

/// What each block takes, in nanoseconds, and why that is estimated, if it is.
fn costs(slices: &Slices<'_>, engine: Option<&dyn Engine>) -> (Vec<u64>, Option<String>) {
    let profiles = match engine {
        Some(engine) => measured(slices, engine, MEASURED_BATCH, MEASURE_FOR, MEASURED_LENGTH),
        None => Err("nobody asked for it".to_owned()),
    };
    let nanos = |profile: &Profile| profile.latency(MEASURED_BATCH).max(Nanos(1)).0.unsigned_abs();
    match profiles {
        Ok(profiles) => (profiles.iter().map(nanos).collect(), None),
        Err(cause) => (slices.estimate(MEASURED_BATCH as i64), Some(cause)),
    }
}

/// Cuts the model of a plan as its owner says, and makes the blocks what is to be loaded; true if there is anything to cut.
pub(super) fn apply(plan: &mut Plan, target: &Target, may_measure: bool) -> Result<bool, String> {
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
    let model = Model::read(file).map_err(|error| error.to_string())?;
    let files = std::iter::once(file.clone()).chain(model.external_files());
    let hashes = files.map(|file| hash_of(&file)).collect::<Result<Vec<_>, _>>()?;
    let measured = may_measure && !device.is_empty();
    let key = format!("{SLICER_VERSION}\n{word}\n{device}\n{measured}\n{}", hashes.join(","));
    let engine = measured.then_some(&*target.engine);
    let place = Place { folder: plan.folder.clone(), key, owner: owner(plan, &device, measured) };
    let folder = match (place.cached(), &cut_to) {
        (Some(folder), _) => folder,
        (None, Some(cut_to)) => keep_slices(plan, &place, &cut(&model, cut_to, engine)?)?,
        (None, None) => keep_cells(&place, &model.cells().map_err(|error| error.to_string())?)?,
    };
    let blocks = source(&plan.name, &folder, names(&folder)?.into_iter(), plan.source.max_batch).blocks;
    plan.source.blocks = blocks;
    if cut_to.is_none() {
        let walk = ModelConfig::read(&folder.join(CONFIG_FILE))?;
        plan.config.cells = walk.cells;
        plan.config.cells.iter().for_each(|cells| walk_in_cells(&mut plan.source, cells));
    }
    Ok(true)
}

fn keep_slices(plan: &Plan, place: &Place, sliced: &Sliced<'_>) -> Result<PathBuf, String> {
    sliced.warnings.iter().for_each(|warning| tracing::warn!("model {}: {warning}", plan.name));
    let names: Vec<&str> = sliced.slices.blocks.iter().map(|block| block.name.as_str()).collect();
    place.keep(&names, &|folder| sliced.slices.write(folder).map_err(|error| error.to_string()))
}

fn keep_cells(place: &Place, cells: &Cells) -> Result<PathBuf, String> {
    let names: Vec<&str> = cells.blocks.iter().map(|cell| cell.name.as_str()).collect();
    place.keep(&names, &|folder| {
        cells.write(folder).map_err(|error| error.to_string())?;
        fs::write(folder.join(CONFIG_FILE), cells.to_toml()).map_err(|error| error.to_string())
    })
}

/// The list of a folder's blocks, in order; a folder without one is not whole.
const LIST: &str = "blocks.json";

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let path = folder.join(LIST);
    let text = fs::read(&path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    serde_json::from_slice(&text)
        .map_err(|error| format!("{}: it is corrupt: {error}; remove the folder", path.display()))
}

/// Whose blocks a folder holds.
const OWNER: &str = "owner.txt";

/// The model and, where it matters, the device that a slicing is for: of each there is one.
fn owner(plan: &Plan, device: &str, measured: bool) -> String {
    let folder = fs::canonicalize(&plan.folder).unwrap_or_else(|_| plan.folder.clone());
    format!("{}\n{}\n{device}\n{measured}\n", folder.display(), plan.name)
}

/// Where the blocks of a model are kept.
struct Place {
    /// That of the model.
    folder: PathBuf,
    /// What they were made of, and how.
    key: String,
    owner: String,
}

impl Place {
    fn name(&self) -> String {
        format!("slices-{}", super::cache::short_hash(&self.key))
    }

    fn cached(&self) -> Option<PathBuf> {
        let folders = cache_folders(&self.folder).into_iter().map(|folder| folder.join(self.name()));
        folders.into_iter().find(|folder| {
            let blocks = names(folder).unwrap_or_default();
            !blocks.is_empty() && blocks.iter().all(|name| folder.join(format!("{name}.onnx")).is_file())
        })
    }

    /// Keeps the files that `write` makes in the first folder that can be written, and removes those that they replace.
    fn keep(&self, names: &[&str], write: &dyn Fn(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        let list = serde_json::to_vec(names).map_err(|error| error.to_string())?;
        let write = |draft: &Path| {
            write(draft)?;
            let files = [(LIST, list.as_slice()), (OWNER, self.owner.as_bytes())];
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

    /// Removes what was cut before for the same owner. Whoever has loaded it has no need of the files any more.
    fn remove_replaced(&self, cache: &Path, kept: &Path) {
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_ours = || fs::read_to_string(path.join(OWNER)).is_ok_and(|owner| owner == self.owner);
            if name.to_string_lossy().starts_with("slices-") && path != kept && is_ours() {
                // If it cannot be removed it only takes room, as before.
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Folder;
    use crate::load::{Loader, Prepared, Profiling};
    use crate::scan::scan;
    use ripieno_executor::{CpuEngine, CpuOptions};
    use std::sync::Arc;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/repository/shapes/1/model.onnx");

    fn prepare(folder: &Folder, profiling: Profiling) -> Prepared {
        let target =
            Target { measure_for: Duration::ZERO, ..Target::new(Arc::new(CpuEngine::new(CpuOptions::default()))) };
        let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
        Loader::new(target, Arc::new(|_, _, _| {})).prepare(&found, profiling).unwrap()
    }

    fn model(toml: &str) -> Folder {
        let folder = Folder::new();
        folder.write("shapes/1/model.onnx", fs::read(DEMO).unwrap());
        folder.write("shapes/model.toml", format!("max_batch = 2\n{toml}\n"));
        folder
    }

    fn kept(folder: &Folder) -> Vec<PathBuf> {
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
        // An empty field that nobody knows: the same model under another hash.
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
