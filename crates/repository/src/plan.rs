//! From what lies in a folder, and what the server runs on, to what is to be loaded. Still no model is read.
//!
//! Everything that depends on both sides is settled here, once: which file or profile each block has, how large a batch
//! may be, and the SLO. A device that runs models needs their files; an emulated one needs their latencies instead, from
//! `model.toml` or from the published tables.

use super::borders;
use super::config::{
    Batching, BlockConditions, BlockConfig, CellsConfig, DEFAULT_MAX_BATCH, LengthsConfig, ModelConfig, ProcessConfig,
    nearest,
};
use super::found::Found;
use super::scan::{CONFIG_FILE, MODEL_FILE};
use super::slo::{Origin, Wanted};
use super::triton::TritonConfig;
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, BlockSource, Engine, Isolation, Loaded, ModelSource};
use ripieno_model::{Latency, Lengths, Profile, TensorSpec};
use ripieno_workload::zoo::{ZooDevice, ZooModel};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The largest batch of a model of the published tables that names none.
const ZOO_MAX_BATCH: usize = 256;

/// What models are loaded for.
#[derive(Clone)]
pub struct Target {
    /// Loads and runs them.
    pub engine: Arc<dyn Engine>,
    /// Where an emulated device looks up latencies that `model.toml` does not give.
    pub zoo: Option<ZooDevice>,
    /// The policy that the server runs; none if no server runs.
    pub policy: Option<String>,
    /// The names of all policies; empty where any name is believed.
    pub policies: Vec<&'static str>,
    /// How many devices serve.
    pub devices: usize,
    /// About how long the measurement of one model may take.
    pub measure_for: Duration,
    /// The latency target of all models, whatever their owners say; to try another one.
    pub slo: Option<Nanos>,
    /// Whether links in a repository may lead out of it.
    pub allow_symlinks: bool,
    /// How to start a process for an engine; none where no model may have one.
    pub engine_process: Option<EngineProcess>,
}

/// A program that calls `ripieno_executor::serve_engine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineProcess {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Target {
    /// Enough for a median at each batch size of a model that answers a row in a few tens of milliseconds.
    pub const MEASURE_FOR: Duration = Duration::from_secs(3);

    /// One device of this engine, outside a server.
    pub fn new(engine: Arc<dyn Engine>) -> Target {
        let (measure_for, allow_symlinks) = (Target::MEASURE_FOR, false);
        let engine_process = None;
        let (policy, policies) = (None, Vec::new());
        Target {
            engine,
            zoo: None,
            policy,
            policies,
            devices: 1,
            measure_for,
            slo: None,
            allow_symlinks,
            engine_process,
        }
    }

    /// Refuses a file of a model that lies outside of its repository, unless that is allowed.
    pub(super) fn check_border(&self, found: &Found, file: &Path) -> Result<(), String> {
        if self.allow_symlinks { Ok(()) } else { borders::check(found, file) }
    }

    /// How the engine of a model is run, if not in this process. An emulated model has nothing that could fail.
    fn isolation(&self, name: &str, config: &ModelConfig) -> Result<Option<Isolation>, String> {
        let Some(process) = config.isolation.filter(|_| !self.emulates()) else { return Ok(None) };
        let Some(EngineProcess { program, mut args }) = self.engine_process.clone() else {
            return Err(format!(
                "{}: isolation = \"process\": this program starts no processes for engines; serve the model with ripieno serve, or \
                 remove the key",
                config.file
            ));
        };
        // For whoever looks at the list of processes.
        args.push(name.to_owned());
        let ProcessConfig { memory_limit, task_limit } = process;
        Ok(Some(Isolation { program, args, memory_limit, task_limit }))
    }

    /// Whether models are emulated from their latencies instead of run.
    pub fn emulates(&self) -> bool {
        self.engine.name() == "emulated"
    }
}

/// A model that is ready to be loaded.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where its profiles are cached.
    pub folder: PathBuf,
    /// What its owner says.
    pub config: ModelConfig,
    /// What its owner says as Triton's users do, and is in `config` where that says nothing else.
    pub triton: Option<TritonConfig>,
    /// What the engine loads.
    pub source: ModelSource,
    /// The latency target, as far as it is known before the profile.
    pub slo: Wanted,
    /// How many steps its decoder is predicted to take, by its length profile.
    pub dec_timesteps: Option<u32>,
}

impl Plan {
    /// Decides what to load for a model found in a repository.
    pub fn new(found: &Found, target: &Target) -> Result<Plan, String> {
        let (config, triton) = configuration(found, target)?;
        if let Some(half) = config.half_declared.first().filter(|_| target.emulates()) {
            return Err(half.error(None, true));
        }
        check_policy(&config, target)?;
        let zoo = zoo_model(found, &config, target)?;
        let slo = wanted_slo(&config, zoo, target);
        let max_batch = largest_batch(&config, zoo, slo);
        let blocks = blocks(found, &config, zoo)
            .iter()
            .map(|block| block_source(found, &config, block, max_batch, target))
            .collect::<Result<_, _>>()?;
        let mut source = ModelSource {
            ranges: config.ranges.clone(),
            isolation: target.isolation(&found.name, &config)?,
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
                target.check_border(found, &folder.join(&lengths.file))?;
                lengths.steps(&folder, &config.file)
            })
            .transpose()?;
        let mut plan = Plan { name, version, folder, config, triton, source, slo, dec_timesteps };
        if plan.config.batching == Batching::Off {
            plan.without_batches();
        }
        Ok(plan)
    }

    /// The ONNX files of the blocks.
    pub fn files(&self) -> Vec<PathBuf> {
        self.source.blocks.iter().filter_map(|block| block.path.clone()).collect()
    }

    /// The file that messages about the model as a whole name: its (first) ONNX file, or its configuration.
    pub fn shown_file(&self) -> String {
        self.files().first().map_or(self.config.file.clone(), |file| file.display().to_string())
    }

    /// The profiles given beforehand, if every block has one.
    pub fn given_profiles(&self) -> Option<Vec<BlockProfile>> {
        let given = |block: &BlockSource| {
            let lengths = block.lengths.clone();
            block.profile.clone().map(|profile| BlockProfile { profile, lengths })
        };
        self.source.blocks.iter().map(given).collect()
    }

    /// Compares what the owner declares with what the loaded model has.
    pub fn check_declared(&self, model: &dyn Loaded) -> Result<(), String> {
        if let Some(triton) = &self.triton {
            triton.check_declared(model)?;
        }
        if !self.config.keys.iter().any(|key| key == "input" || key == "output") {
            return Ok(());
        }
        if let Some(half) = self.config.half_declared.first() {
            let specs = if half.kind == "input" { model.inputs() } else { model.outputs() };
            return Err(half.error(specs.iter().find(|spec| spec.name == half.name), model.batched()));
        }
        let sides = [("input", &self.config.inputs, model.inputs()), ("output", &self.config.outputs, model.outputs())];
        for (kind, declared, actual) in sides {
            for spec in declared {
                check_tensor(kind, spec, actual, model.batched())
                    .map_err(|cause| format!("{}: {cause}", self.config.file))?;
            }
        }
        Ok(())
    }

    /// What becomes of a `config.pbtxt`, and who wins where there are two files, for the log.
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

    /// Has each request run by itself.
    pub fn without_batches(&mut self) {
        (self.source.unbatched, self.source.max_batch) = (true, 1);
        for block in &mut self.source.blocks {
            block.profile = block.profile.as_ref().map(|profile| profile.truncated(1));
        }
    }
}

/// What the owner says in either file. Refused fields end it here, before the model is read.
fn configuration(found: &Found, target: &Target) -> Result<(ModelConfig, Option<TritonConfig>), String> {
    let triton = found.triton.as_ref().map(|file| {
        target.check_border(found, file)?;
        let read = TritonConfig::read(file, &found.name, &found.versions)?;
        read.check()?;
        // What lies outside of the repository is not read by the scan, which decides the versions.
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
            target.check_border(found, file)?;
            ModelConfig::read_over(file, &under)?
        }
        (None, Some(file)) => ModelConfig::parse_over(&file.display().to_string(), "", &under)?,
        (None, None) => ModelConfig::parse(&found.folder.join(CONFIG_FILE).display().to_string(), "")?,
    };
    Ok((config, triton))
}

/// Makes cells of the blocks.
pub(super) fn walk_in_cells(source: &mut ModelSource, cells: &CellsConfig) {
    let CellsConfig { walk, max_length, limit, answers, .. } = cells;
    (source.walk, source.max_length, source.limit, source.answers) = (*walk, *max_length, *limit, answers.clone());
    for (block, cell) in source.blocks.iter_mut().zip(&cells.cells) {
        (block.steps, block.backward, block.beside) = (cell.steps, cell.backward, cell.backward);
        (block.priority, block.sizes) = (cell.priority, cell.sizes.clone());
        (block.links, block.end) = (cell.links.clone(), cell.end.clone());
    }
}

/// One scheduler runs all models, so a model can ask for a policy but not bring its own.
fn check_policy(config: &ModelConfig, target: &Target) -> Result<(), String> {
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

/// The published profile, where an emulated model needs one.
fn zoo_model(found: &Found, config: &ModelConfig, target: &Target) -> Result<Option<ZooModel>, String> {
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

/// Who runs the program goes before the model's owner, and the owner before what is published.
fn wanted_slo(config: &ModelConfig, zoo: Option<ZooModel>, target: &Target) -> Wanted {
    let given = target.slo.map(|slo| Wanted::Said(slo, Origin::Given));
    let owner = config.slo.map(|slo| Wanted::Said(slo, Origin::Owner)).or(config.queue_timeout.map(Wanted::Wait));
    let published = zoo.map(|model| Wanted::Said(Nanos::from_millis_f64(model.slo_ms), Origin::Published));
    given.or(owner).or(published).unwrap_or(Wanted::Unsaid)
}

/// As the owner says; failing that as far as the given latencies reach; failing that a default.
fn largest_batch(config: &ModelConfig, zoo: Option<ZooModel>, slo: Wanted) -> usize {
    let shortest = config.latencies().filter_map(Latency::max_batch).min();
    let profile = |model: ZooModel| Profile::linear(model.alpha_ms, model.beta_ms, ZOO_MAX_BATCH).ok();
    let within = |profile: Profile| match slo {
        Wanted::Said(slo, _) => profile.largest_within(slo).max(1),
        Wanted::Wait(_) | Wanted::Unsaid => DEFAULT_MAX_BATCH,
    };
    let published = zoo.and_then(profile).map(within);
    config.max_batch.or(shortest).or(published).unwrap_or(DEFAULT_MAX_BATCH).min(Profile::MAX_BATCH)
}

/// The blocks as declared, or the one block that a model is otherwise.
fn blocks(found: &Found, config: &ModelConfig, zoo: Option<ZooModel>) -> Vec<BlockConfig> {
    if config.cells.is_some() {
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
    found: &Found,
    config: &ModelConfig,
    block: &BlockConfig,
    max_batch: usize,
    target: &Target,
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
        let path = block_file(found, &place(), block)?;
        target.check_border(found, &path)?;
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

/// Latencies by length, and those of the longest requests; none if none are given.
fn by_length(given: &[(u32, Latency)], max_batch: usize, longest: u32) -> Result<Option<(Lengths, Profile)>, String> {
    if given.is_empty() {
        return Ok(None);
    }
    let profile = |(length, latency): &(u32, Latency)| {
        let profile = latency.profile(max_batch).map_err(|error| format!("by_length, length {length}: {error}"))?;
        Ok((*length, profile))
    };
    let table = given.iter().map(profile).collect::<Result<Vec<_>, String>>()?;
    let lengths = Lengths::new(table).map_err(|error| format!("by_length: {error}"))?;
    let rows = 1..=lengths.table()[0].1.max_batch();
    let of_longest: Vec<Nanos> = rows.map(|rows| lengths.latency(rows, longest)).collect();
    let of_longest = Profile::from_table(&of_longest).map_err(|error| format!("by_length: {error}"))?;
    Ok(Some((lengths, of_longest)))
}

fn block_file(found: &Found, place: &str, block: &BlockConfig) -> Result<PathBuf, String> {
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
        false => Err(format!(
            "{}: there is no such file; put the model there, or remove the folder to serve another version",
            path.display()
        )),
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
