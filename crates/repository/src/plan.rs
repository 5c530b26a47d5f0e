//! Decides what to load, from a model's files and the server's target, without reading the model.
//!
//! Decisions that depend on both are made here once: the file or profile of each block, the maximum
//! batch size, and the SLO. A real device needs the files. An emulated one needs latencies instead,
//! from `model.toml` or from published tables.

use super::config::{
    Batching, BlockConditions, BlockConfig, CellsConfig, DEFAULT_MAX_BATCH, LengthsConfig, MAX_BATCH, ModelConfig,
    nearest,
};
use super::containment;
use super::foreign::found_instead;
use super::isolation::{EngineProcess, ProcessTarget, isolation};
use super::model_files::{ModelFiles, PYTHON_FILE};
use super::scan::{CONFIG_FILE, MODEL_FILE};
use super::slo::{SloOrigin, SloSetting};
use super::triton::TritonConfig;
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, BlockSource, Executor, LoadedModel, ModelSource};
use ripieno_model::zoo::{ZooDevice, ZooModel};
use ripieno_model::{Latency, LengthProfiles, Profile, TensorSpec, finer_sizes};
use ripieno_onnx::{Declared, OnnxFile};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Default maximum batch size of a model from the published tables.
const ZOO_MAX_BATCH: usize = 256;

/// Target that models are loaded for.
#[derive(Clone)]
pub struct LoadTarget {
    /// Engine that loads and runs them.
    pub engine: Arc<dyn Executor>,
    /// Published latencies for an emulated device, if `model.toml` gives none.
    pub zoo: Option<ZooDevice>,
    /// Scheduling policy of the server; `None` outside a server.
    pub policy: Option<String>,
    /// Names of all policies; empty accepts any name.
    pub policies: Vec<&'static str>,
    /// Number of devices that serve.
    pub devices: usize,
    /// Approximate duration of measuring one model.
    pub measure_for: Duration,
    /// Latency target that overrides the target of each model.
    pub slo: Option<Nanos>,
    /// Whether symbolic links may lead out of the repository.
    pub allow_symlinks: bool,
    /// Whether the server's policy forms batches by length, so that padding them pays.
    pub groups_lengths: bool,
    /// Program that runs engines in processes; `None` forbids isolation.
    pub engine_process: Option<EngineProcess>,
}

impl LoadTarget {
    /// Default duration, enough for a median at each batch size if a row takes a few tens of
    /// milliseconds.
    pub const MEASURE_FOR: Duration = Duration::from_secs(3);

    /// Creates a target of one device, outside a server.
    pub fn new(engine: Arc<dyn Executor>) -> LoadTarget {
        let (measure_for, allow_symlinks) = (LoadTarget::MEASURE_FOR, false);
        let engine_process = None;
        let (policy, policies) = (None, Vec::new());
        LoadTarget {
            engine,
            zoo: None,
            policy,
            policies,
            devices: 1,
            measure_for,
            slo: None,
            allow_symlinks,
            groups_lengths: true,
            engine_process,
        }
    }

    /// Refuses a model file outside of the repository, unless links are allowed.
    pub(super) fn check_contained(&self, found: &ModelFiles, file: &Path) -> Result<(), String> {
        if self.allow_symlinks { Ok(()) } else { containment::check_contained(found, file) }
    }

    fn process(&self) -> ProcessTarget<'_> {
        ProcessTarget { engine: &*self.engine, program: self.engine_process.as_ref() }
    }

    /// Returns true if models are emulated from their latencies.
    pub fn emulates(&self) -> bool {
        self.engine.name() == "emulated"
    }
}

/// A model that is ready to be loaded.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Model name.
    pub name: String,
    /// Model version.
    pub version: String,
    /// Folder for cached profiles.
    pub folder: PathBuf,
    /// File in which settings of the model are read, whether it exists or not.
    pub settings: PathBuf,
    /// Configuration of the model.
    pub config: ModelConfig,
    /// Content of `config.pbtxt`, already merged into `config`.
    pub triton: Option<TritonConfig>,
    /// Model source for the engine.
    pub source: ModelSource,
    /// Latency target, as far as it is known without a profile.
    pub slo: SloSetting,
    /// Predicted decoder steps, from the length profile.
    pub dec_timesteps: Option<u32>,
    /// Whether the blocks are functions of a Python file.
    pub is_python: bool,
}

impl LoadPlan {
    /// Plans the loading of a model found in a repository.
    pub fn new(found: &ModelFiles, target: &LoadTarget) -> Result<LoadPlan, String> {
        let (config, triton) = configuration(found, target)?;
        if let Some(incomplete) = config.incomplete_tensors.first().filter(|_| target.emulates()) {
            return Err(incomplete.error(None, true));
        }
        check_policy(&config, target)?;
        let zoo = zoo_model(found, &config, target)?;
        let slo = slo_setting(&config, zoo, target);
        let max_batch = largest_batch(&config, zoo, slo);
        let blocks = blocks(found, &config, zoo)
            .iter()
            .map(|block| block_source(found, &config, block, max_batch, target))
            .collect::<Result<_, _>>()?;
        let mut source = ModelSource {
            ranges: config.ranges.clone(),
            isolation: if target.emulates() { None } else { isolation(found, &config, target.process())? },
            gpu: config.gpu,
            inputs: config.inputs.clone(),
            outputs: config.outputs.clone(),
            ..ModelSource::new(&found.name, blocks, max_batch)
        };
        if let Some(cells) = &config.cells {
            walk_in_cells(&mut source, cells);
        }
        if let Some(LengthsConfig { max_length, dims }) = &config.lengths {
            (source.max_length, source.lengths) = (*max_length, dims.clone());
        }
        let (name, version, folder) = (found.name.clone(), found.version.clone(), found.folder.clone());
        let dec_timesteps = config
            .cells
            .as_ref()
            .and_then(|cells| cells.lengths.as_ref())
            .map(|lengths| {
                target.check_contained(found, &folder.join(&lengths.file))?;
                lengths.steps(&folder, &config.file)
            })
            .transpose()?;
        let settings = found.settings();
        let is_python = found.is_python() && !target.emulates();
        let mut plan =
            LoadPlan { name, version, folder, settings, config, triton, source, slo, dec_timesteps, is_python };
        plan.set_max_batch(max_batch, target);
        if plan.config.batching == Batching::Off {
            plan.without_batches();
        }
        Ok(plan)
    }

    /// Sets the maximum batch size, and the sizes that batches are padded to.
    pub(super) fn set_max_batch(&mut self, max_batch: usize, target: &LoadTarget) {
        self.source.max_batch = max_batch;
        self.source.batch_sizes = self.batch_sizes(max_batch, target);
    }

    /// Returns the sizes that batches of up to `max_batch` rows are padded to: as configured, or
    /// [`finer_sizes`] where the engine needs it, of which a profile may take some out.
    pub(super) fn batch_sizes(&self, max_batch: usize, target: &LoadTarget) -> Vec<usize> {
        match &self.config.batch_sizes {
            _ if self.config.cells.is_some() => Vec::new(),
            Some(sizes) => sizes.clone(),
            None if target.engine.pads_batches() => finer_sizes(max_batch),
            None => Vec::new(),
        }
    }

    /// Returns the files of the blocks.
    pub fn files(&self) -> Vec<PathBuf> {
        self.source.blocks.iter().filter_map(|block| block.path.clone()).collect()
    }

    /// Returns the files by which profiles are kept: the files of the blocks, and all Python files
    /// beside a model in Python.
    pub(super) fn profiled_files(&self) -> Vec<PathBuf> {
        let files = self.files();
        let [first, ..] = &files[..] else { return files };
        if !self.is_python {
            return files;
        }
        let folder = first.parent().and_then(|folder| folder.read_dir().ok());
        let beside = folder.into_iter().flatten().flatten().map(|entry| entry.path());
        let mut beside: Vec<PathBuf> = beside.filter(|path| path.extension().is_some_and(|end| end == "py")).collect();
        beside.sort();
        beside
    }

    /// Returns the file for errors about the whole model: its first file, or its
    /// configuration.
    pub fn shown_file(&self) -> String {
        self.files().first().map_or(self.config.file.clone(), |file| file.display().to_string())
    }

    /// Returns the given profiles, if every block has one.
    pub fn given_profiles(&self) -> Option<Vec<BlockProfile>> {
        let given = |block: &BlockSource| {
            let lengths = block.lengths.clone();
            block.profile.clone().map(|profile| BlockProfile { profile, lengths })
        };
        self.source.blocks.iter().map(given).collect()
    }

    /// Returns the shapes that the user gives for requests, the most binding first: declared
    /// inputs, then samples.
    pub fn request_shapes(&self) -> Vec<TensorSpec> {
        let samples = self.triton.iter().flat_map(|triton| &triton.settings.samples);
        self.config.inputs.iter().chain(samples).cloned().collect()
    }

    /// Checks the declarations against the loaded model.
    pub fn check_declared(&self, model: &dyn LoadedModel) -> Result<(), String> {
        self.check_defaults(model)?;
        if let Some(triton) = &self.triton {
            triton.check_declared(model)?;
        }
        if !self.config.keys.iter().any(|key| key == "input" || key == "output") {
            return Ok(());
        }
        if let Some(incomplete) = self.config.incomplete_tensors.first() {
            let specs = if incomplete.kind == "input" { model.inputs() } else { model.outputs() };
            return Err(incomplete.error(specs.iter().find(|spec| spec.name == incomplete.name), model.batched()));
        }
        let sides = [("input", &self.config.inputs, model.inputs()), ("output", &self.config.outputs, model.outputs())];
        for (kind, declared, actual) in sides {
            for spec in declared {
                // An optional input is one for all rows, so its shape has no batch dimension.
                let optional = model.optional_inputs().iter().any(|known| known.name == spec.name && kind == "input");
                let (actual, batched) =
                    if optional { (model.optional_inputs(), false) } else { (actual, model.batched()) };
                check_tensor(kind, spec, actual, batched).map_err(|cause| format!("{}: {cause}", self.config.file))?;
            }
        }
        Ok(())
    }

    /// Checks that requests can replace the default of each declared input that has one.
    fn check_defaults(&self, model: &dyn LoadedModel) -> Result<(), String> {
        let triton = self.triton.as_ref();
        let of_triton =
            triton.into_iter().flat_map(|triton| triton.settings.inputs.iter().map(|spec| (&triton.file, spec)));
        let own = self.config.inputs.iter().map(|spec| (&self.config.file, spec));
        let declared: Vec<_> = of_triton.chain(own).collect();
        let (false, Some(file)) = (declared.is_empty(), self.files().into_iter().next()) else { return Ok(()) };
        // The engine reports a file that cannot be read.
        let Ok(known) = OnnxFile::read(&file).and_then(|file| Declared::of(&file)) else { return Ok(()) };
        let is_fixed = |spec: &TensorSpec| {
            let is_named = |optional: &TensorSpec| optional.name == spec.name;
            known.defaults.contains(&spec.name) && !model.optional_inputs().iter().any(is_named)
        };
        match declared.into_iter().find(|(_, spec)| is_fixed(spec)) {
            None => Ok(()),
            Some((config, TensorSpec { name, .. })) => Err(format!(
                "{config}: input {name:?} has a default in the file, an initializer of that name, which requests cannot \
                 replace here: the format is older than version 4, it has more than 16 such inputs, the model runs in cells, \
                 or engine 'cpu' cannot carry the datatype; remove the input from this file to serve the model with its default"
            )),
        }
    }

    /// Returns a log note about the `config.pbtxt`, including the keys that `model.toml` overrides.
    pub fn triton_note(&self) -> Option<String> {
        let triton = self.triton.as_ref()?;
        let mapped = triton.mapped();
        let both: Vec<&str> = mapped.iter().filter_map(|said| said.split(" = ").next()).collect();
        let wins: Vec<&str> = both.into_iter().filter(|key| self.config.keys.iter().any(|said| said == key)).collect();
        let becomes = if mapped.is_empty() { "no keys of model.toml".to_owned() } else { mapped.join(", ") };
        let over = match (wins.is_empty(), self.config.file == triton.file) {
            (_, true) => String::new(),
            (true, false) => format!("; {} stands beside it and goes before it", self.config.file),
            (false, false) => {
                format!("; {} goes before it, and says otherwise of {}", self.config.file, wins.join(", "))
            }
        };
        Some(format!("{} becomes {becomes}{over}; ripieno migrate explains each field", triton.file))
    }

    /// Makes each batch of each cell one row.
    pub(super) fn with_single_rows(&mut self) {
        self.source.max_batch = 1;
        self.source.batch_sizes.clear();
        for block in &mut self.source.blocks {
            block.sizes.clear();
            block.profile = block.profile.as_ref().map(|profile| profile.truncated(1));
        }
        for cell in self.config.cells.iter_mut().flat_map(|cells| &mut cells.cells) {
            (cell.max_batch, cell.sizes) = (Some(1), Vec::new());
        }
    }

    /// Disables batching.
    pub fn without_batches(&mut self) {
        (self.source.unbatched, self.source.max_batch) = (true, 1);
        self.source.batch_sizes.clear();
        for block in &mut self.source.blocks {
            block.profile = block.profile.as_ref().map(|profile| profile.truncated(1));
        }
    }
}

/// Reads the configuration from both files. Refused fields are errors.
fn configuration(found: &ModelFiles, target: &LoadTarget) -> Result<(ModelConfig, Option<TritonConfig>), String> {
    let triton = found.triton.as_ref().map(|file| {
        target.check_contained(found, file)?;
        let read = TritonConfig::read(file, &found.name, &found.versions)?;
        read.check()?;
        // The scan, which selects the versions, does not read files outside of the repository.
        match read.versions.last().filter(|_| read.versions != found.served) {
            Some(version) => Err(format!(
                "{}: its version_policy asks for version {version}, but {} was found; put the file itself into the repository",
                read.file, found.version
            )),
            None => Ok(read),
        }
    });
    let triton = triton.transpose()?;
    let under = triton.as_ref().map(|triton| triton.settings.clone()).unwrap_or_default();
    let config = match (&found.config, &found.triton) {
        (Some(file), _) => {
            target.check_contained(found, file)?;
            ModelConfig::read_with_defaults(file, &under)?
        }
        (None, Some(file)) => ModelConfig::parse_with_defaults(&file.display().to_string(), "", &under)?,
        (None, None) => ModelConfig::parse(&found.folder.join(CONFIG_FILE).display().to_string(), "")?,
    };
    Ok((config, triton))
}

/// Turns the blocks into cells.
pub(super) fn walk_in_cells(source: &mut ModelSource, cells: &CellsConfig) {
    let CellsConfig { walk, max_length, limit, answers, .. } = cells;
    (source.walk, source.max_length, source.limit, source.answers) = (*walk, *max_length, *limit, answers.clone());
    for (block, cell) in source.blocks.iter_mut().zip(&cells.cells) {
        (block.steps, block.backward, block.beside) = (cell.steps, cell.backward, cell.backward);
        (block.priority, block.sizes) = (cell.priority, cell.sizes.clone());
        (block.links, block.end) = (cell.links.clone(), cell.end.clone());
    }
}

/// Checks the requested policy. One scheduler runs all models, so that a model can only require a
/// policy.
fn check_policy(config: &ModelConfig, target: &LoadTarget) -> Result<(), String> {
    let unknown = |wanted: &&String| !target.policies.is_empty() && !target.policies.contains(&wanted.as_str());
    if let Some(wanted) = config.policy.as_ref().filter(unknown) {
        let advice =
            nearest(wanted, &target.policies).map_or("remove the key".to_owned(), |near| format!("is it {near}?"));
        return Err(format!("{}: policy = \"{wanted}\": there is no such policy; {advice}", config.file));
    }
    match (&config.policy, &target.policy) {
        (Some(wanted), Some(running)) if wanted != running => Err(format!(
            "{}: policy = \"{wanted}\": the server runs all models under the policy \"{running}\"; \
             start it with --policy {wanted} or remove the key",
            config.file
        )),
        _ => Ok(()),
    }
}

/// Returns the published profile, if an emulated model needs one.
fn zoo_model(found: &ModelFiles, config: &ModelConfig, target: &LoadTarget) -> Result<Option<ZooModel>, String> {
    let given = config.latencies().next().is_some() || !config.blocks.is_empty();
    let Some(zoo) = target.zoo.filter(|_| target.emulates() && !given) else { return Ok(None) };
    let unknown = || {
        let names: Vec<&str> = zoo.models().map(|model| model.name).collect();
        let advice =
            nearest(&found.name, &names).map(|near| format!("rename the model to {near} or ")).unwrap_or_default();
        format!(
            "{}: no latency of \"{}\" is published for {}; {advice}add alpha_ms and beta_ms",
            config.file,
            found.name,
            zoo.name()
        )
    };
    zoo.find(&found.name).map(Some).ok_or_else(unknown)
}

/// Returns the latency target: the command line takes precedence over the configuration, and the
/// configuration over published values.
fn slo_setting(config: &ModelConfig, zoo: Option<ZooModel>, target: &LoadTarget) -> SloSetting {
    let given = target.slo.map(|slo| SloSetting::Target(slo, SloOrigin::Given));
    let owner = config
        .slo
        .map(|slo| SloSetting::Target(slo, SloOrigin::Owner))
        .or(config.queue_timeout.map(SloSetting::QueueTimeout));
    let published = zoo.map(|model| SloSetting::Target(Nanos::from_millis_f64(model.slo_ms), SloOrigin::Published));
    given.or(owner).or(published).unwrap_or(SloSetting::Unset)
}

/// Returns the maximum batch size: the configured one, else the largest with a known latency, else
/// the default.
fn largest_batch(config: &ModelConfig, zoo: Option<ZooModel>, slo: SloSetting) -> usize {
    let shortest = config.latencies().filter_map(Latency::max_batch).min();
    let profile = |model: ZooModel| Profile::linear(model.alpha_ms, model.beta_ms, ZOO_MAX_BATCH).ok();
    let within = |profile: Profile| match slo {
        SloSetting::Target(slo, _) => profile.largest_within(slo).max(1),
        SloSetting::QueueTimeout(_) | SloSetting::Unset => DEFAULT_MAX_BATCH,
    };
    let published = zoo.and_then(profile).map(within);
    config.max_batch.or(shortest).or(published).unwrap_or(DEFAULT_MAX_BATCH).min(MAX_BATCH)
}

/// Returns the declared blocks, or the single block of an undivided model.
fn blocks(found: &ModelFiles, config: &ModelConfig, zoo: Option<ZooModel>) -> Vec<BlockConfig> {
    if config.cells.is_some() && !found.is_python() {
        let named = |block: &BlockConfig| block.file.clone().or_else(|| Some(format!("{}.onnx", block.name)));
        return config.blocks.iter().map(|block| BlockConfig { file: named(block), ..block.clone() }).collect();
    }
    if !config.blocks.is_empty() {
        return config.blocks.clone();
    }
    let published = zoo.map(|model| Latency::Line { alpha_ms: model.alpha_ms, beta_ms: model.beta_ms });
    let file = found.model.file_name().map(|file| file.to_string_lossy().into_owned());
    let latency = config.latency.clone().or(published);
    let (name, by_length) = ("model".to_owned(), config.by_length.clone());
    vec![BlockConfig { name, file, latency, by_length, conditions: BlockConditions::default() }]
}

fn block_source(
    found: &ModelFiles,
    config: &ModelConfig,
    block: &BlockConfig,
    max_batch: usize,
    target: &LoadTarget,
) -> Result<BlockSource, String> {
    let config_file = &config.file;
    let place = || format!("{config_file}: block \"{}\"", block.name);
    let profile = block.latency.as_ref().map(|latency| latency.profile(max_batch)).transpose();
    let profile = profile.map_err(|error| format!("{}: {error}", place()))?;
    let longest = config.lengths.as_ref().map_or(1, |lengths| lengths.max_length);
    let by_length = by_length(&block.by_length, max_batch, longest).map_err(|error| format!("{}: {error}", place()))?;
    let (lengths, of_longest) = by_length.unzip();
    let profile = profile.or(of_longest);
    let name = block.name.clone();
    let BlockConditions { exit, skip, exit_outputs } = block.conditions.clone();
    if !target.emulates() {
        let path = match &block.file {
            None if found.is_python() => found.model.clone(),
            Some(file) if found.is_python() && !found.model.ends_with(file) => {
                return Err(format!(
                    "{}: file = \"{file}\": the functions of a chain in Python are in one file, {PYTHON_FILE}; remove the key",
                    place()
                ));
            }
            _ => block_file(found, &place(), block)?,
        };
        target.check_contained(found, &path)?;
        let path = Some(path);
        return Ok(BlockSource { path, profile, lengths, exit, skip, exit_outputs, ..BlockSource::new(name) });
    }
    if profile.is_none() {
        let single = block.file.as_deref() == Some(MODEL_FILE);
        let place = if single { config_file.to_owned() } else { place() };
        return Err(format!("{place}: an emulated model needs its latencies; add alpha_ms and beta_ms, or latency_ms"));
    }
    Ok(BlockSource { profile, lengths, ..BlockSource::new(name) })
}

/// Returns the given latencies by length, and the latencies of the longest requests; `None` if none
/// are given.
fn by_length(
    given: &[(u32, Latency)],
    max_batch: usize,
    longest: u32,
) -> Result<Option<(LengthProfiles, Profile)>, String> {
    if given.is_empty() {
        return Ok(None);
    }
    let profile = |(length, latency): &(u32, Latency)| {
        let profile = latency.profile(max_batch).map_err(|error| format!("by_length, length {length}: {error}"))?;
        Ok((*length, profile))
    };
    let table = given.iter().map(profile).collect::<Result<Vec<_>, String>>()?;
    let lengths = LengthProfiles::new(table).map_err(|error| format!("by_length: {error}"))?;
    let rows = 1..=lengths.table()[0].1.max_batch();
    let of_longest: Vec<Nanos> = rows.map(|rows| lengths.latency(rows, longest)).collect();
    let of_longest = Profile::from_table(&of_longest).map_err(|error| format!("by_length: {error}"))?;
    Ok(Some((lengths, of_longest)))
}

fn block_file(found: &ModelFiles, place: &str, block: &BlockConfig) -> Result<PathBuf, String> {
    let shown = found.folder.display();
    let Some(folder) = &found.version_folder else {
        return Err(format!(
            "{shown}/{}/{MODEL_FILE}: there is no such file; put the model there, or serve it with --device emulated",
            found.version
        ));
    };
    let Some(file) = &block.file else {
        return Err(format!("{place}: the key file is missing; add for example file = \"{}.onnx\"", block.name));
    };
    let path = folder.join(file);
    match path.is_file() {
        true => Ok(path),
        false => {
            let instead = found_instead(folder).map_or_else(String::new, |found| format!(" ({found})"));
            Err(format!(
                "{}: there is no such file{instead}; put the model there, or remove the folder to serve another version",
                path.display()
            ))
        }
    }
}

fn check_tensor(kind: &str, declared: &TensorSpec, actual: &[TensorSpec], batched: bool) -> Result<(), String> {
    let TensorSpec { name, datatype, shape } = declared;
    let names: Vec<&str> = actual.iter().map(|spec| spec.name.as_str()).collect();
    let Some(spec) = actual.iter().find(|spec| spec.name == *name) else {
        return Err(format!("[[{kind}]] name = \"{name}\": the model has no such {kind}; it has {}", names.join(", ")));
    };
    let fix = "write that, or remove the section";
    if spec.datatype != *datatype {
        return Err(format!("[[{kind}]] \"{name}\" datatype = \"{datatype}\": the model has {}; {fix}", spec.datatype));
    }
    if batched && shape.first() != Some(&-1) {
        return Err(format!(
            "[[{kind}]] \"{name}\" shape = {shape:?} has no batch dimension; its first number must be -1, as in [-1, 64]"
        ));
    }
    let actual = if batched { &spec.shape[..] } else { &spec.shape[1..] };
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    if actual.len() != shape.len() || !shape.iter().zip(actual).all(agree) {
        return Err(format!("[[{kind}]] \"{name}\" shape = {shape:?}: the model has {actual:?}; {fix}"));
    }
    Ok(())
}
