//! Description of a model to load: its files, the walk of a request through them, and the source of
//! each tensor of a cell.
//!
//! Created from `model.toml`, and checked by the engine against the files. A model of walk `whole`
//! or `chain` links its blocks by the names of their tensors and needs no [`InputLink`]; a walk
//! that unfolds names the source of each tensor, because one name refers to another value at each
//! step.

use crate::Unfold;
use crate::condition::{Condition, TensorRule};
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
    /// The blocks in the walk's order. In a chain, tensors flow from one to the next by name.
    pub blocks: Vec<BlockSource>,
    /// Largest number of rows in one batch; buffers are sized for it.
    pub max_batch: usize,
    /// Whether each request runs by itself, even if the files allow batches. A file whose tensors
    /// have no dynamic first dimension always runs this way.
    pub unbatched: bool,
    /// Inputs as declared by the user; needed by engines without a file to read them from.
    pub inputs: Vec<TensorSpec>,
    /// Outputs as declared by the user; likewise.
    pub outputs: Vec<TensorSpec>,
    /// Outputs for the client, where the walk unfolds; otherwise the outputs are those that no
    /// block takes.
    pub answers: Vec<AnswerSource>,
    /// The longest request: elements of a sequence, nodes of a tree or graph.
    pub max_length: u32,
    /// Dimensions that are the request's length, in a model of walk `whole` or `chain` whose
    /// requests differ in length.
    pub lengths: LengthDims,
    /// Declared ranges of the values of requests.
    pub ranges: Vec<InputRange>,
    /// Largest number of steps of a block that runs until its end.
    pub limit: StepLimit,
    /// Runs the engine in a process of its own, if set.
    pub isolation: Option<Isolation>,
    /// Decides which members leave a chain early, beside the rules of the blocks.
    pub condition: Option<Arc<dyn Condition>>,
    /// Creates the graph of each request by code, in a model of walk `graph`; then requests contain
    /// no tables of nodes.
    pub unfold: Option<Arc<dyn Unfold>>,
}

impl ModelSource {
    /// Creates a model of these blocks: `whole` for one block, else a chain. Nothing is declared.
    pub fn new(name: impl Into<String>, blocks: Vec<BlockSource>, max_batch: usize) -> ModelSource {
        ModelSource {
            name: name.into(),
            walk: if blocks.len() > 1 { Walk::Chain } else { Walk::Whole },
            blocks,
            max_batch,
            unbatched: false,
            inputs: Vec::new(),
            outputs: Vec::new(),
            answers: Vec::new(),
            max_length: ModelSource::MAX_LENGTH,
            lengths: LengthDims::default(),
            ranges: Vec::new(),
            limit: StepLimit::default(),
            isolation: None,
            condition: None,
            unfold: None,
        }
    }

    /// Default length of the longest request.
    pub const MAX_LENGTH: u32 = 1024;
}

/// Dimensions that are the length of a request. Empty where requests do not differ in length.
///
/// Requests of several lengths share a batch: their inputs are padded to the longest one's length,
/// and outputs are cut back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LengthDims {
    /// The inputs that are padded; they must agree on the length.
    pub inputs: Vec<InputLength>,
    /// The outputs that are cut back.
    pub outputs: Vec<OutputLength>,
}

/// Range of the numbers of an input; a request with others is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRange {
    /// The input.
    pub tensor: String,
    /// The smallest allowed number.
    pub least: f64,
    /// The largest allowed number.
    pub most: f64,
}

/// An input with a dimension that is the length of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLength {
    /// The input.
    pub tensor: String,
    /// The dimension; never the first, which is the batch.
    pub dim: usize,
    /// Value of the padding at its end.
    pub pad: f64,
}

/// An output with a dimension that is the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLength {
    /// The output.
    pub tensor: String,
    /// The dimension; never the first, which is the batch.
    pub dim: usize,
}

/// One block of a model; a cell where the walk unfolds.
#[derive(Clone, Debug)]
pub struct BlockSource {
    /// The block's name, unique in its model.
    pub name: String,
    /// The ONNX file; `None` for an emulated block.
    pub path: Option<PathBuf>,
    /// ℓ(b) of the longest requests, if known in advance; required for emulated blocks.
    pub profile: Option<Profile>,
    /// ℓ(b) of shorter requests, where it depends on their length.
    pub lengths: Option<LengthProfiles>,
    /// Number of times that a request runs it.
    pub steps: Steps,
    /// Whether it starts with the block before it rather than after it. Only used by the scheduler.
    pub beside: bool,
    /// Whether its first step takes the last element of the sequence, as a backward pass does.
    pub backward: bool,
    /// Priority among cells that could run; higher first. Only used by the scheduler.
    pub priority: u32,
    /// The batch sizes that the scheduler pads to; empty: every size. Engines run any.
    pub sizes: Vec<usize>,
    /// Sources of its inputs; one that is not listed is [`InputSource::Request`] of the same name.
    pub links: Vec<InputLink>,
    /// End signal of a block that runs until its end: the output, one BOOL or number per row, not
    /// zero at the last step.
    pub end: Option<String>,
    /// In a chain: a walk ends after this block if the rule holds for all of its rows.
    pub exit: Option<TensorRule>,
    /// In a chain: a walk skips to this later block if the rule holds for all of its rows.
    pub skip: Option<(TensorRule, BlockId)>,
    /// Early answers: each output of the model with the tensor of this block that replaces it. An
    /// output that is not listed has its own name.
    pub exit_outputs: Vec<(String, String)>,
    /// Outputs that only a [`Condition`] reads: hidden from clients. Values that rules compare are
    /// hidden anyway.
    pub hidden: Vec<String>,
}

impl BlockSource {
    /// Returns the declared ranges of the request's tensors, by the names of the inputs that take
    /// them.
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

    /// Creates a block that a request runs once, without a file or a profile.
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
    /// The cell's input.
    pub input: String,
    /// Its source.
    pub from: InputSource,
    /// Substitute for [`InputSource::Previous`] at the first step; zeros if `None`.
    pub initial: Option<Initial>,
}

/// A value that flows into a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// The request's tensor of this name: the element of the step or node where the block has
    /// [`Steps::Length`] or [`Steps::Nodes`], else the tensor itself.
    Request(String),
    /// An output of the previous step of the same block.
    Previous(String),
    /// An output of another block at the same step; both have [`Steps::Length`].
    Step(BlockId, String),
    /// An output of the last step of another block, at every step of this one.
    Last(BlockId, String),
    /// An output of a node's n-th child; zeros where the node has none.
    Child(u32, String),
    /// An output of the last node of the graph, in the order of the client's table; of a tree, of
    /// its root.
    Root(String),
}

/// Value of an input before there is a step to take it from.
#[derive(Clone, Debug, PartialEq)]
pub enum Initial {
    /// This number everywhere.
    Number(f64),
    /// An output of the last step of another block.
    Last(BlockId, String),
}

/// A tensor of the client's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSource {
    /// Its name for the client.
    pub name: String,
    /// The block that gives it; `None` for the cell of the root (or of the last node of the table).
    pub block: Option<BlockId>,
    /// The block's output.
    pub tensor: String,
    /// The steps that it contains.
    pub take: AnswerSteps,
}

/// Steps of a block that make an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerSteps {
    /// The last one: [1, …].
    #[default]
    Last,
    /// All, stacked: [1, steps, …]; for a backward block in the order of the elements.
    Every,
}

/// Largest number of steps of a block that runs until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLimit {
    /// The length of the input plus this number of steps.
    Extra(u32),
    /// This number of steps.
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
    /// The program to start; it calls [`serve_engine`](crate::serve_engine).
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Limit of its address space in bytes.
    pub memory_limit: Option<u64>,
    /// Time per batch after which it is considered hung, and killed.
    pub task_limit: Duration,
}

impl Isolation {
    /// Default of [`Isolation::task_limit`]: above the duration of any batch that clients wait for.
    pub const TASK_LIMIT: Duration = Duration::from_secs(60);
}
