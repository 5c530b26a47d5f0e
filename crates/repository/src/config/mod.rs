//! `model.toml`: the owner's settings of a model, parsed once into [`ModelConfig`].
//!
//! Every key is optional, and a missing file equals an empty one. Checks that need only the file
//! are made here. Checks that need the model or the device (does the shape match the ONNX file, is
//! there a profile to emulate) are made at load.

mod batch_sizes;
mod cells;
mod check;
mod conditions;
mod keys;
mod latency;
mod length_profile;
mod lengths;
mod settings;
mod tensors;
#[cfg(test)]
mod tests;
mod text;

use keys::{ConfigSource, Keys};
use ripieno_base::Nanos;
use ripieno_executor::{GpuOptions, InputRange, Isolation, Precision};
use ripieno_model::{DropRule, Latency, TensorSpec, Walk};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use toml::de::DeTable;

pub use cells::{CellConfig, CellsConfig};
pub use conditions::BlockConditions;
pub use keys::nearest;
use latency::read_latency;
pub use length_profile::LengthProfile;
pub use lengths::LengthsConfig;
pub use settings::Settings;
pub use tensors::IncompleteTensor;
use tensors::{DeclaredTensors, read_batch_dims, read_range, read_tensors};
pub use text::TextKeys;

/// Default maximum batch size.
pub const DEFAULT_MAX_BATCH: usize = 32;
pub(crate) const MAX_BATCH: usize = ripieno_runtime::MAX_BATCH;
/// Default number of warm-up batches before a model is ready.
pub const DEFAULT_WARM_UP: usize = 2;

pub(crate) const MAX_MS: f64 = 86_400_000.0;
pub(crate) const MAX_WARM_UP: usize = 1000;
pub(crate) const MAX_QUEUED: usize = 1_000_000;
const MAX_WEIGHT: usize = 1000;
pub(crate) const MAX_INSTANCES: usize = 65_536;
const MIN_MEMORY_MB: usize = 64;
const MAX_MEMORY_MB: usize = 1 << 24;
const MAX_TASK_S: usize = 24 * 3600;
const MAX_BLOCKS: usize = 1024;

const KEYS: [&str; 36] = [
    "slo_ms",
    "queue_timeout_ms",
    "max_batch",
    "batch_sizes",
    "batching",
    "isolation",
    "memory_limit_mb",
    "task_limit_s",
    "python",
    "gpu_memory_limit_mb",
    "allow_cpu_nodes",
    "precision",
    "gpu_tolerance",
    "instances",
    "policy",
    "warm_up",
    "late",
    "drop",
    "max_queue",
    "weight",
    "walk",
    "max_length",
    "extra_steps",
    "max_steps",
    "length_profile",
    "coverage",
    "granularity",
    "stages",
    "latency_ms",
    "alpha_ms",
    "beta_ms",
    "by_length",
    "block",
    "input",
    "output",
    "text",
];
const BLOCK_KEYS: [&str; 17] = [
    "name",
    "file",
    "latency_ms",
    "alpha_ms",
    "beta_ms",
    "by_length",
    "priority",
    "max_batch",
    "batch_sizes",
    "inputs",
    "initial",
    "end",
    "once",
    "exit_when",
    "exit_outputs",
    "skip_when",
    "skip_to",
];
const INPUT_KEYS: [&str; 8] = ["name", "datatype", "shape", "batch_dim", "length_dim", "pad", "min", "max"];
const OUTPUT_KEYS: [&str; 9] =
    ["name", "datatype", "shape", "batch_dim", "labels", "length_dim", "length", "from", "take"];

/// Process in which a model's engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationConfig {
    /// Not stated: the device decides. A model that is cut into blocks runs in the server's.
    Unset {
        /// Whether the model is cut into blocks.
        splits: bool,
    },
    /// The server's process.
    None,
    /// A process of its own.
    Process,
}

/// Limits of a model's engine process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Maximum address space in bytes.
    pub memory_limit: Option<u64>,
    /// Maximum duration of a batch.
    pub task_limit: Duration,
}

/// Content of a `model.toml`; `None` where the file is silent and the default depends on the
/// device.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// File name for errors.
    pub file: String,
    /// Latency target.
    pub slo: Option<Nanos>,
    /// Maximum queueing time, given instead of a latency target.
    pub queue_timeout: Option<Nanos>,
    /// Maximum rows in a batch.
    pub max_batch: Option<usize>,
    /// Sizes that batches of a whole model or a chain are padded to, if the file says so. Empty for
    /// no padding.
    pub batch_sizes: Option<Vec<usize>>,
    /// Whether requests share batches.
    pub batching: Batching,
    /// Whether the engine has a process of its own, if the configuration says so.
    pub isolation: IsolationConfig,
    /// Limits of the engine's process.
    pub process: ProcessConfig,
    /// Error about limits for models whose engine has no process of its own; `None` if there are no
    /// limits.
    pub needs_process: Option<String>,
    /// Interpreter of a model in Python: a path from the model's folder, or a program's name.
    pub python: Option<String>,
    /// Settings of the model on a GPU.
    pub gpu: GpuOptions,
    /// Largest accepted difference between answers on a GPU and on the CPU, relative to the largest
    /// number of an output.
    pub gpu_tolerance: Option<f64>,
    /// Maximum number of concurrent batches of this model.
    pub instances: usize,
    /// Scheduling policy that the model requires of the server.
    pub policy: Option<String>,
    /// Number of batches to run before the model is ready.
    pub warm_up: usize,
    /// `late = "answer"`: whether a request past its SLO is still answered.
    pub answer_late: Option<bool>,
    /// Rule that drops hopeless requests; `None` uses the policy's own.
    pub drop: Option<DropRule>,
    /// Maximum number of queued and running requests; `None` uses as many as the devices need.
    pub max_queue: Option<usize>,
    /// Weight of the model's share of the devices under overload.
    pub weight: u32,
    /// Given ℓ(b) of the whole model.
    pub latency: Option<Latency>,
    /// Given ℓ(b) by padded length, instead of `latency`; ascending.
    pub by_length: Vec<(u32, Latency)>,
    /// Granularity at which a model in one file is sliced at load.
    pub granularity: Granularity,
    /// Blocks of a chain; empty for a model of one block.
    pub blocks: Vec<BlockConfig>,
    /// Walk in cells, if the model is made of cells.
    pub cells: Option<CellsConfig>,
    /// Lengths of requests, if they vary in length and are padded.
    pub lengths: Option<LengthsConfig>,
    /// Tensors whose batch is not their first dimension, with its index.
    pub batch_dims: Vec<(String, usize)>,
    /// Bounds on input values.
    pub ranges: Vec<InputRange>,
    /// Declared inputs.
    pub inputs: Vec<TensorSpec>,
    /// Declared outputs.
    pub outputs: Vec<TensorSpec>,
    /// Inputs and outputs declared without datatype or shape.
    pub incomplete_tensors: Vec<IncompleteTensor>,
    /// Pairs of an output and its file of class labels.
    pub labels: Vec<(String, String)>,
    /// The section `[text]`, if present.
    pub text: Option<TextKeys>,
    /// Top-level keys that the file contains.
    pub keys: Vec<String>,
}

/// Whether requests share batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Yes, if a trial at load finds the model's rows independent.
    Auto,
    /// Yes; a model whose rows are not independent is refused.
    Require,
    /// Yes, without a trial.
    Trust,
    /// No.
    Off,
}

/// Granularity at which a model in one file is sliced at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Not sliced.
    Whole,
    /// Sliced into this number of blocks of equal duration.
    Stages(usize),
    /// Sliced where trials measured the lowest expected latency.
    AutoStages,
    /// Sliced between any two layers.
    Layers,
    /// Recurrent operators become cells.
    Cells,
}

/// A `[[block]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    /// Name, unique in the model.
    pub name: String,
    /// ONNX file in the version folder.
    pub file: Option<String>,
    /// Given ℓ(b).
    pub latency: Option<Latency>,
    /// Given ℓ(b) by padded length, instead of `latency`; ascending.
    pub by_length: Vec<(u32, Latency)>,
    /// Conditions under which requests leave the batch after the block.
    pub conditions: BlockConditions,
}

/// Maximum file size. Parsing takes several hundred times the size of the file in memory.
const MAX_FILE_BYTES: u64 = 256 << 10;

impl ModelConfig {
    /// Reads a file. The error names the file, the line, the key and the fix.
    pub fn read(path: &Path) -> Result<ModelConfig, String> {
        ModelConfig::read_with_defaults(path, &Settings::default())
    }

    /// Reads a file; `under` supplies the settings that it leaves out.
    pub fn read_with_defaults(path: &Path, under: &Settings) -> Result<ModelConfig, String> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("{file}: cannot be read: {error}"))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(format!(
                "{file}: is longer than {} KiB; leave out what is measured at load (latency_ms, by_length)",
                MAX_FILE_BYTES >> 10
            ));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
            format!("{file}:{line}: the file is not UTF-8 text; save it in that encoding")
        })?;
        ModelConfig::parse_with_defaults(&file, &text, under)
    }

    /// Returns all given latencies, of the whole model and of blocks.
    pub(super) fn latencies(&self) -> impl Iterator<Item = &Latency> {
        let whole = self.latency.iter().chain(self.by_length.iter().map(|(_, latency)| latency));
        whole.chain(
            self.blocks
                .iter()
                .flat_map(|block| block.latency.iter().chain(block.by_length.iter().map(|(_, latency)| latency))),
        )
    }

    /// Parses a text; errors name `file`.
    pub fn parse(file: &str, text: &str) -> Result<ModelConfig, String> {
        ModelConfig::parse_with_defaults(file, text, &Settings::default())
    }

    /// Parses a text; `under` supplies the settings that it leaves out.
    pub fn parse_with_defaults(file: &str, text: &str, under: &Settings) -> Result<ModelConfig, String> {
        let source = ConfigSource { file, text };
        let document = DeTable::parse(text).map_err(|error| {
            let line = source.line(error.span().map_or(0, |span| span.start));
            source.error(line, &format!("this is not valid TOML: {}", error.message().replace('\n', ", ")))
        })?;
        let keys = Keys::new(source, String::new(), 0, document.get_ref(), &KEYS)?;
        let mut config = read_model(&keys, file)?;
        batch_sizes::apply(&keys, &mut config)?;
        config.apply_defaults(under);
        check::check(&keys, &config)?;
        Ok(config)
    }
}

impl ModelConfig {
    /// Applies the settings that the file leaves out and does not contradict.
    fn apply_defaults(&mut self, under: &Settings) {
        let says = |key: &str| self.keys.iter().any(|said| said == key);
        let batches = says("batching") || says("max_batch") || says("batch_sizes");
        let (timed, ends) = (says("slo_ms") || says("queue_timeout_ms"), says("drop"));
        let (warms, limited) = (says("warm_up"), says("instances"));
        if under.unbatched && !batches {
            self.batching = Batching::Off;
        }
        if self.batching != Batching::Off {
            self.max_batch = self.max_batch.or(under.max_batch);
        }
        if !timed {
            (self.slo, self.queue_timeout) = (under.slo, under.queue_timeout);
        }
        if !ends {
            self.answer_late = self.answer_late.or(under.answer_late);
        }
        self.max_queue = self.max_queue.or(under.max_queue);
        self.instances = under.instances.filter(|_| !limited).unwrap_or(self.instances);
        self.warm_up = under.warm_up.filter(|_| !warms).unwrap_or(self.warm_up);
        // For a real model the declarations only check the file; an emulated model needs them.
        if self.inputs.is_empty() && self.outputs.is_empty() {
            (self.inputs, self.outputs) = (under.inputs.clone(), under.outputs.clone());
        }
        if self.labels.is_empty() {
            self.labels.clone_from(&under.labels);
        }
    }
}

fn read_model(keys: &Keys<'_>, file: &str) -> Result<ModelConfig, String> {
    let answer_late = keys.one_of("late", &[("answer", true), ("refuse", false)])?;
    let (blocks, outputs) = (keys.tables("block", &BLOCK_KEYS)?, keys.tables("output", &OUTPUT_KEYS)?);
    let inputs = keys.tables("input", &INPUT_KEYS)?;
    let lengths = lengths::read(keys, &inputs, &outputs)?;
    let cells = match keys.one_of("walk", &Walk::ALL.map(|walk| (walk.name(), walk)))? {
        Some(walk) if walk.is_unfolded() => {
            conditions::refuse(&blocks)?;
            Some(cells::read(keys, walk, &blocks, &outputs)?)
        }
        _ => {
            cells::refuse(keys, &blocks, &outputs, lengths.is_some())?;
            None
        }
    };
    // The cells determine datatypes and shapes of a model in cells; an emulated one needs
    // declarations. Tensors with a length are described by the model's file.
    let typed = |tensor: &&Keys<'_>| tensor.has("datatype") || tensor.has("shape");
    let declared = outputs.iter().filter(|output| {
        typed(output) || !(cells.is_some() || ["length_dim", "batch_dim", "labels"].iter().any(|key| output.has(key)))
    });
    let says_else = |input: &&Keys<'_>| ["length_dim", "batch_dim", "min", "max"].iter().any(|key| input.has(key));
    let declared_inputs = inputs.iter().filter(|input| typed(input) || !says_else(input));
    let DeclaredTensors { complete: inputs_declared, mut incomplete } = read_tensors("input", declared_inputs)?;
    let DeclaredTensors { complete: outputs_declared, incomplete: incomplete_outputs } =
        read_tensors("output", declared)?;
    incomplete.extend(incomplete_outputs);
    Ok(ModelConfig {
        file: file.to_owned(),
        slo: keys.number("slo_ms", 0.0, MAX_MS)?.map(Nanos::from_millis_f64),
        queue_timeout: read_queue_timeout(keys)?,
        max_batch: keys.whole("max_batch", 1, MAX_BATCH)?,
        batch_sizes: batch_sizes::read(keys)?,
        batching: read_batching(keys)?,
        isolation: read_isolation(keys)?,
        process: read_process(keys)?,
        needs_process: needs_process(keys),
        python: keys.text("python", ".venv/bin/python")?,
        gpu: read_gpu(keys)?,
        gpu_tolerance: keys.number("gpu_tolerance", 0.0, 1.0)?,
        instances: keys.whole("instances", 1, MAX_INSTANCES)?.unwrap_or(usize::MAX),
        policy: keys.text("policy", "deferred")?,
        warm_up: read_warm_up(keys)?,
        answer_late,
        drop: read_drop(keys, answer_late == Some(true))?,
        max_queue: keys.whole("max_queue", 1, MAX_QUEUED)?,
        weight: keys.whole("weight", 1, MAX_WEIGHT)?.map_or(1, |weight| weight as u32),
        latency: read_latency(keys)?,
        by_length: lengths::read_costs(keys, lengths.is_some())?,
        granularity: read_granularity(keys)?,
        blocks: read_blocks(&blocks, lengths.is_some())?,
        batch_dims: read_batch_dims(inputs.iter().chain(&outputs))?,
        ranges: inputs.iter().filter_map(|input| read_range(input).transpose()).collect::<Result<_, _>>()?,
        inputs: inputs_declared,
        outputs: outputs_declared,
        incomplete_tensors: incomplete,
        labels: outputs.iter().filter_map(|output| read_labels(output).transpose()).collect::<Result<_, _>>()?,
        cells,
        lengths,
        text: text::read(keys)?,
        keys: keys.names().map(str::to_owned).collect(),
    })
}

fn read_labels(output: &Keys<'_>) -> Result<Option<(String, String)>, String> {
    let Some(file) = output.text("labels", "labels.txt")? else { return Ok(None) };
    let name = output.text("name", "logits")?;
    name.map(|name| Some((name, file))).ok_or_else(|| output.wrong("name", "is missing; name the output"))
}

fn read_warm_up(keys: &Keys<'_>) -> Result<usize, String> {
    match keys.flag("warm_up") {
        Some(true) => Ok(DEFAULT_WARM_UP),
        Some(false) => Ok(0),
        None => Ok(keys.whole("warm_up", 0, MAX_WARM_UP)?.unwrap_or(DEFAULT_WARM_UP)),
    }
}

fn read_batching(keys: &Keys<'_>) -> Result<Batching, String> {
    let words =
        [("auto", Batching::Auto), ("require", Batching::Require), ("trust", Batching::Trust), ("off", Batching::Off)];
    let batching = keys.one_of("batching", &words)?.unwrap_or(Batching::Auto);
    match (batching, keys.whole("max_batch", 1, MAX_BATCH)?) {
        (Batching::Off, Some(2..)) => Err(keys.wrong("batching", "contradicts max_batch; remove one of the two")),
        _ => Ok(batching),
    }
}

fn read_isolation(keys: &Keys<'_>) -> Result<IsolationConfig, String> {
    let stated = keys.one_of("isolation", &[("none", false), ("process", true)])?;
    let splits = read_granularity(keys)? != Granularity::Whole;
    match stated {
        Some(true) if splits => Err(keys.wrong("isolation", "runs files as they are; remove granularity and stages")),
        Some(true) => Ok(IsolationConfig::Process),
        Some(false) => Ok(IsolationConfig::None),
        None => Ok(IsolationConfig::Unset { splits }),
    }
}

fn read_process(keys: &Keys<'_>) -> Result<ProcessConfig, String> {
    let memory = keys.whole("memory_limit_mb", MIN_MEMORY_MB, MAX_MEMORY_MB)?;
    let task = keys.whole("task_limit_s", 1, MAX_TASK_S)?;
    Ok(ProcessConfig {
        memory_limit: memory.map(|limit| (limit as u64) << 20),
        task_limit: task.map_or(Isolation::TASK_LIMIT, |limit| Duration::from_secs(limit as u64)),
    })
}

/// Returns the error about a key that is for processes.
fn needs_process(keys: &Keys<'_>) -> Option<String> {
    let key = ["memory_limit_mb", "task_limit_s"].into_iter().find(|key| keys.has(key))?;
    Some(keys.wrong(key, "is for a process of its own; add isolation = \"process\""))
}

fn read_gpu(keys: &Keys<'_>) -> Result<GpuOptions, String> {
    let memory = keys.whole("gpu_memory_limit_mb", MIN_MEMORY_MB, MAX_MEMORY_MB)?;
    let allow_cpu_nodes = keys.yes_or_no("allow_cpu_nodes")?.unwrap_or(false);
    let precisions = [("fp32", Precision::Fp32), ("tf32", Precision::Tf32), ("fp16", Precision::Fp16)];
    let precision = keys.one_of("precision", &precisions)?.unwrap_or_default();
    Ok(GpuOptions { memory_limit: memory.map(|limit| (limit as u64) << 20), allow_cpu_nodes, precision })
}

fn read_queue_timeout(keys: &Keys<'_>) -> Result<Option<Nanos>, String> {
    let wait = keys.number("queue_timeout_ms", 0.0, MAX_MS)?.map(Nanos::from_millis_f64);
    match wait {
        Some(_) if keys.has("slo_ms") => {
            Err(keys.wrong("queue_timeout_ms", "slo_ms says when answers are due; remove one of the two"))
        }
        wait => Ok(wait),
    }
}

/// Reads the drop rule. A request that is to be answered late must not be dropped for being late.
fn read_drop(keys: &Keys<'_>, answer_late: bool) -> Result<Option<DropRule>, String> {
    let words = [("hopeless", DropRule::Hopeless), ("expired", DropRule::Expired), ("never", DropRule::Never)];
    match keys.one_of("drop", &words)? {
        Some(rule) if answer_late && rule != DropRule::Never => {
            Err(keys.wrong("drop", "contradicts late = \"answer\"; remove one of the two"))
        }
        rule => Ok(rule),
    }
}

fn read_granularity(keys: &Keys<'_>) -> Result<Granularity, String> {
    let words = [("whole", 0), ("stages", 1), ("layers", 2), ("cells", 3)];
    let stages = keys.whole_or("stages", 1, MAX_BLOCKS, "auto")?;
    let granularity = match (keys.one_of("granularity", &words)?, stages) {
        (Some(1), Some(Some(stages))) => Granularity::Stages(stages),
        (Some(1), Some(None)) => Granularity::AutoStages,
        (Some(1), None) => {
            return Err(
                keys.wrong("granularity", "needs stages = N beside it, the number of blocks, or stages = \"auto\"")
            );
        }
        (_, Some(_)) => {
            return Err(keys.wrong("stages", "belongs to granularity = \"stages\"; write that, or remove it"));
        }
        (Some(2), None) => Granularity::Layers,
        (Some(3), None) => Granularity::Cells,
        _ => Granularity::Whole,
    };
    match ["block", "latency_ms", "alpha_ms", "by_length"].into_iter().find(|key| keys.has(key)) {
        Some(key) if granularity != Granularity::Whole => Err(keys.wrong(
            "granularity",
            &format!(
                "cuts the model in one file and measures the parts, so it does not go with {key}; remove one of the two"
            ),
        )),
        _ => Ok(granularity),
    }
}

fn read_blocks(blocks: &[Keys<'_>], has_lengths: bool) -> Result<Vec<BlockConfig>, String> {
    let read = blocks.iter().map(|block| read_block(block, has_lengths)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = read.iter().map(|block| block.name.clone()).collect();
    let with_conditions = |(at, (block, keys)): (usize, (BlockConfig, &Keys<'_>))| {
        Ok(BlockConfig { conditions: conditions::read(keys, at, &names)?, ..block })
    };
    read.into_iter().zip(blocks).enumerate().map(with_conditions).collect()
}

fn read_block(keys: &Keys<'_>, has_lengths: bool) -> Result<BlockConfig, String> {
    let name = keys.required(keys.text("name", "encoder")?, "name", "\"encoder\"")?;
    let file = keys.text("file", "encoder.onnx")?;
    if file.as_deref().is_some_and(|file| Path::new(file).components().count() != 1 || file == "..") {
        return Err(keys.wrong("file", "must be the name of a file in the version folder, without a path"));
    }
    let (latency, by_length) = (read_latency(keys)?, lengths::read_costs(keys, has_lengths)?);
    Ok(BlockConfig { name, file, latency, by_length, conditions: BlockConditions::default() })
}
