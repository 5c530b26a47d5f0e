//! Description of a model to load: its files, the order in which requests run its blocks, and the
//! source of each cell's inputs.
//!
//! It is created from `model.toml`, and the engine checks it against the files. In a model of walk
//! `whole` or `chain`, blocks are linked by the names of their tensors. In a model that unfolds
//! into cells, a name refers to another value at each step. So such a model states the source of
//! each tensor by an [`InputLink`].

use crate::contract::condition::{Condition, TensorRule};
use crate::contract::length_rule::LengthRule;
use crate::{GpuOptions, Unfold};
use ripieno_base::BlockId;
use ripieno_model::{Extent, LengthProfiles, Profile, Steps, TensorSpec, Walk};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A model to load.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The model's name, for messages.
    pub name: String,
    /// Order in which a request runs the blocks.
    pub walk: Walk,
    /// The blocks, in the order of the walk. In a chain, tensors flow between blocks by name.
    pub blocks: Vec<BlockSource>,
    /// Largest number of rows in one batch. Buffers are sized for it.
    pub max_batch: usize,
    /// Sizes that batches are padded to, in a model of walk `whole` or `chain`: ascending, the last
    /// is `max_batch`. If empty, batches are not padded.
    pub batch_sizes: Vec<usize>,
    /// Whether each request runs alone, even if the files allow batches. A file whose tensors have
    /// no dynamic first dimension always runs this way.
    pub unbatched: bool,
    /// Inputs as declared by the user. Required by engines that read no file.
    pub inputs: Vec<TensorSpec>,
    /// Outputs as declared by the user. Required by engines that read no file.
    pub outputs: Vec<TensorSpec>,
    /// Outputs for the client, for models that unfold into cells. Other models answer with every
    /// output that no block takes.
    pub answers: Vec<AnswerSource>,
    /// Length of the longest request: elements of a sequence, or nodes of a tree or graph.
    pub max_length: u32,
    /// Dimensions that are the request's length. Used by models of walk `whole` or `chain` whose
    /// requests differ in length.
    pub lengths: LengthDims,
    /// Allowed ranges of the numbers in requests.
    pub ranges: Vec<InputRange>,
    /// Largest number of steps of a block that runs until the request ends.
    pub limit: StepLimit,
    /// Runs the engine in separate processes, if set.
    pub isolation: Option<Isolation>,
    /// Settings for models on a GPU.
    pub gpu: GpuOptions,
    /// Decides which requests leave a chain early, in addition to the rules of the blocks.
    pub condition: Option<Arc<dyn Condition>>,
    /// Creates the graph of each request by code, in a model of walk `graph`. Requests then contain
    /// no tables of nodes.
    pub unfold: Option<Arc<dyn Unfold>>,
}

impl ModelSource {
    /// Creates a model of these blocks. Its walk is `whole` for one block and `chain` for several.
    /// All other settings have their defaults.
    pub fn new(name: impl Into<String>, blocks: Vec<BlockSource>, max_batch: usize) -> ModelSource {
        ModelSource {
            name: name.into(),
            walk: if blocks.len() > 1 { Walk::Chain } else { Walk::Whole },
            blocks,
            max_batch,
            batch_sizes: Vec::new(),
            unbatched: false,
            inputs: Vec::new(),
            outputs: Vec::new(),
            answers: Vec::new(),
            max_length: ModelSource::MAX_LENGTH,
            lengths: LengthDims::default(),
            ranges: Vec::new(),
            limit: StepLimit::default(),
            isolation: None,
            gpu: GpuOptions::default(),
            condition: None,
            unfold: None,
        }
    }

    /// Default of [`ModelSource::max_length`].
    pub const MAX_LENGTH: u32 = 1024;
}

/// Dimensions that are the length of a request. Empty if requests do not differ in length.
///
/// Requests of several lengths share a batch: their inputs are padded to the longest request, and
/// their outputs are cut back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LengthDims {
    /// The padded inputs. They must agree on the length.
    pub inputs: Vec<InputLength>,
    /// The outputs to cut back.
    pub outputs: Vec<OutputLength>,
}

/// Allowed range of the numbers in an input. A request with a number outside it is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRange {
    /// Name of the input.
    pub tensor: String,
    /// Smallest allowed number.
    pub least: f64,
    /// Largest allowed number.
    pub most: f64,
}

/// An input with a dimension that is the length of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLength {
    /// Name of the input.
    pub tensor: String,
    /// Index of the dimension; never 0, which is the batch.
    pub dim: usize,
    /// Value of the elements that pad the input at its end.
    pub pad: f64,
}

/// An output with a dimension that follows from the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLength {
    /// Name of the output.
    pub tensor: String,
    /// Index of the dimension; never 0, which is the batch.
    pub dim: usize,
    /// Size of the dimension for a request of a given length.
    pub rule: LengthRule,
}

impl OutputLength {
    /// Creates an output that is as long as the request.
    pub fn new(tensor: impl Into<String>, dim: usize) -> OutputLength {
        OutputLength { tensor: tensor.into(), dim, rule: LengthRule::SAME }
    }
}

/// One block of a model. In a model that unfolds, the block is a cell.
#[derive(Clone, Debug)]
pub struct BlockSource {
    /// Name, unique in the model.
    pub name: String,
    /// ONNX file; `None` for an emulated block.
    pub path: Option<PathBuf>,
    /// Latency ℓ(b) of the longest requests, if known in advance. Required for emulated blocks.
    pub profile: Option<Profile>,
    /// Latency ℓ(b) of shorter requests, if the latency depends on the length.
    pub lengths: Option<LengthProfiles>,
    /// Number of times that a request runs the block.
    pub steps: Steps,
    /// Whether the block starts at the same time as the previous block rather than after it. Only
    /// the scheduler uses it.
    pub beside: bool,
    /// Whether the block runs the elements of the sequence in reverse order, like a backward pass.
    pub backward: bool,
    /// Priority among cells that can run; higher first. Only the scheduler uses it.
    pub priority: u32,
    /// Batch sizes that the scheduler pads to. If empty, the scheduler uses every size. Engines run
    /// batches of any size.
    pub sizes: Vec<usize>,
    /// Sources of the block's inputs. The default source of an input is the request's tensor of the
    /// same name.
    pub links: Vec<InputLink>,
    /// Output that signals the last step of a block that runs until the request ends: one BOOL or
    /// number per row, not zero at the last step.
    pub end: Option<String>,
    /// In a chain: a request ends after this block if the rule holds for all its rows.
    pub exit: Option<TensorRule>,
    /// In a chain: a request skips to the given later block if the rule holds for all its rows.
    pub skip: Option<(TensorRule, BlockId)>,
    /// Outputs of a request that ends after this block: pairs of an output of the model and the
    /// block's tensor that replaces it. By default an output has the tensor of its own name.
    pub exit_outputs: Vec<(String, String)>,
    /// Outputs that only a [`Condition`] reads, and clients do not see. Values that rules compare
    /// are always hidden.
    pub hidden: Vec<String>,
}

impl BlockSource {
    /// Returns the declared ranges of the block's `inputs` that are tensors of the request.
    pub fn ranges(&self, inputs: &[TensorSpec], declared: &[InputRange]) -> Vec<InputRange> {
        let taken = |input: &str| match self.links.iter().find(|link| link.input == input).map(|link| &link.from) {
            None => Some(input.to_owned()),
            Some(InputSource::Request(tensor)) => Some(tensor.clone()),
            Some(_) => None,
        };
        let of_input = |spec: &TensorSpec| {
            let tensor = taken(&spec.name)?;
            let range = declared.iter().find(|range| range.tensor == tensor)?;
            Some(InputRange { tensor: spec.name.clone(), ..range.clone() })
        };
        inputs.iter().filter_map(of_input).collect()
    }

    /// Creates a block without a file and a profile, which each request runs once.
    pub fn new(name: impl Into<String>) -> BlockSource {
        BlockSource {
            name: name.into(),
            path: None,
            profile: None,
            lengths: None,
            steps: Steps::Once,
            beside: false,
            backward: false,
            priority: 0,
            sizes: Vec::new(),
            links: Vec::new(),
            end: None,
            exit: None,
            skip: None,
            exit_outputs: Vec::new(),
            hidden: Vec::new(),
        }
    }
}

/// The source of one input of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLink {
    /// Name of the cell's input.
    pub input: String,
    /// Source of the input's value.
    pub from: InputSource,
    /// Value at the first step, if the source is [`InputSource::Previous`]; `None` for zeros.
    pub initial: Option<Initial>,
}

/// Source of an input of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// The request's tensor of this name. A block with [`Steps::Length`] or [`Steps::Nodes`] takes
    /// one element of it per step or node, other blocks take the whole tensor.
    Request(String),
    /// An output of the previous step of the same block.
    Previous(String),
    /// An output of another block at the same step. Both blocks have [`Steps::Length`].
    Step(BlockId, String),
    /// An output of the last step of another block, for every step of this block.
    Last(BlockId, String),
    /// An output of a node's n-th child; zeros if the node has no such child.
    Child(u32, String),
    /// An output of the root of a tree, or of the last node in the client's table of a graph.
    Root(String),
}

/// Value of an input at the first step, which has no previous step.
#[derive(Clone, Debug, PartialEq)]
pub enum Initial {
    /// Every element is this number.
    Number(f64),
    /// An output of the last step of another block.
    Last(BlockId, String),
}

/// A tensor of the client's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSource {
    /// Name of the tensor for the client.
    pub name: String,
    /// Block that computes it; `None` for the cell of the root, or of the last node in the client's
    /// table.
    pub block: Option<BlockId>,
    /// Name of the block's output.
    pub tensor: String,
    /// Steps of the block that the tensor contains.
    pub take: AnswerSteps,
}

/// Steps of a block whose outputs make up an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerSteps {
    /// The last step: [1, …].
    #[default]
    Last,
    /// All steps, stacked: [1, steps, …]. A backward block's steps are in the order of the
    /// elements.
    Every,
}

/// Largest number of steps of a block that runs until the request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLimit {
    /// The length of the input plus this number.
    Extra(u32),
    /// This number.
    Fixed(u32),
}

impl Default for StepLimit {
    fn default() -> StepLimit {
        StepLimit::Extra(50)
    }
}

impl StepLimit {
    /// Returns the limit for a request of this length; at least 1.
    pub fn of(self, length: u32) -> u32 {
        match self {
            StepLimit::Extra(extra) => length.saturating_add(extra),
            StepLimit::Fixed(steps) => steps,
        }
        .max(1)
    }

    /// Returns the extent of a request of this length.
    pub fn extent(self, length: u32) -> Extent {
        Extent { length, limit: self.of(length) }
    }
}

/// Settings of the processes that run a model's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// Program to start. It must call [`serve_engine`](crate::serve_engine).
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Limit of the process's address space in bytes.
    pub memory_limit: Option<u64>,
    /// Time after which a process that has not finished its batch is considered hung and killed.
    pub task_limit: Duration,
}

impl Isolation {
    /// Default of [`Isolation::task_limit`]. It is longer than any batch that clients wait for.
    pub const TASK_LIMIT: Duration = Duration::from_secs(60);
}
