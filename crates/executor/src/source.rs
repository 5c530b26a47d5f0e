//! What to load: the files of a model, how a request walks through them, and where each tensor of a cell comes from.
//!
//! Written by whoever reads `model.toml`, checked by the engine against the files. A model of walk `whole` or `chain` ties
//! its blocks together by the names of their tensors and needs no [`Link`]; a walk that unfolds names the origin of each
//! tensor, because one name means another value at each step.

use crate::Unfold;
use crate::leaving::{Condition, Rule};
use ripieno_base::BlockId;
use ripieno_model::{Extent, Lengths, Profile, Steps, TensorSpec, Walk};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to load.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The model's name, for messages.
    pub name: String,
    /// How a request walks through the blocks.
    pub walk: Walk,
    /// The blocks in the walk's order. In a chain, tensors flow from one to the next by name.
    pub blocks: Vec<BlockSource>,
    /// The most rows in one batch; buffers are sized for it.
    pub max_batch: usize,
    /// Whether each request runs by itself, whatever the files say. A file whose tensors have no dynamic first dimension
    /// is run so anyway.
    pub unbatched: bool,
    /// Inputs as declared by the user; needed by engines that have no file to read them from.
    pub inputs: Vec<TensorSpec>,
    /// Outputs as declared by the user; likewise.
    pub outputs: Vec<TensorSpec>,
    /// What the client gets, where the walk unfolds; else the outputs that no block takes.
    pub answers: Vec<AnswerSource>,
    /// The longest request: elements of a sequence, nodes of a tree or graph.
    pub max_length: u32,
    /// Of a model of walk `whole` or `chain` whose requests differ in length: where the length stands in its tensors.
    pub lengths: LengthDims,
    /// What requests may hold, where that is bounded.
    pub ranges: Vec<InputRange>,
    /// How long a block that runs until its end may go on.
    pub limit: StepLimit,
    /// Has a process of its own run its engine, if any.
    pub isolation: Option<Isolation>,
    /// Decides who leaves a chain on the way, beside the rules of the blocks.
    pub condition: Option<Arc<dyn Condition>>,
    /// Makes the graph of each request by code, in a model of walk `graph`; then requests bring no tables of nodes.
    pub unfold: Option<Arc<dyn Unfold>>,
}

impl ModelSource {
    /// A model of these blocks: whole if it is one, else a chain. Nothing is declared.
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

    /// The longest request of a model that names no bound.
    pub const MAX_LENGTH: u32 = 1024;
}

/// Where the length of a request stands in its tensors. Nothing where requests do not differ in length.
///
/// Requests of several lengths share a batch: their inputs are padded to the longest one's length, and outputs are cut back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LengthDims {
    /// The inputs that are padded; they must agree on the length.
    pub inputs: Vec<InputLength>,
    /// The outputs that are cut back.
    pub outputs: Vec<OutputLength>,
}

/// The numbers that an input may hold; a request with others is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRange {
    /// The input.
    pub tensor: String,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

/// An input of which one dimension is the length of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLength {
    /// The input.
    pub tensor: String,
    /// Which of its dimensions; never the first, which is the batch.
    pub dim: usize,
    /// What it is padded with at its end.
    pub pad: f64,
}

/// An output of which one dimension is the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLength {
    /// The output.
    pub tensor: String,
    /// Which of its dimensions; never the first, which is the batch.
    pub dim: usize,
}

/// One block of a model; a cell where the walk unfolds.
#[derive(Clone, Debug)]
pub struct BlockSource {
    /// The block's name, unique in its model.
    pub name: String,
    /// The ONNX file; none for an emulated block.
    pub path: Option<PathBuf>,
    /// ℓ(b), where it is known beforehand, of the longest requests; emulated blocks need it.
    pub profile: Option<Profile>,
    /// The same of shorter requests, where it depends on their length.
    pub lengths: Option<Lengths>,
    /// How often a request runs it.
    pub steps: Steps,
    /// Whether it begins with the block before it rather than after it. Only the scheduler needs to know.
    pub beside: bool,
    /// Whether its first step takes the last element of the sequence, as a backward pass does.
    pub backward: bool,
    /// Which cell wins where several could run; higher first. Only the scheduler needs to know.
    pub priority: u32,
    /// The batch sizes that the scheduler pads to; empty: every size. Engines run any.
    pub sizes: Vec<usize>,
    /// Where its inputs come from; one that is not listed is [`Source::Request`] of the same name.
    pub links: Vec<Link>,
    /// Of a block that runs until its end: the output, one BOOL or number a row, that is not zero at the last step.
    pub end: Option<String>,
    /// Of a chain: a walk ends after this block if the rule holds for all of its rows.
    pub exit: Option<Rule>,
    /// Of a chain: a walk goes on with this later block if the rule holds for all of its rows.
    pub skip: Option<(Rule, BlockId)>,
    /// Where walks may end: the model's output and the tensor of this block that stands for it. One that is not listed comes
    /// under its own name.
    pub exit_outputs: Vec<(String, String)>,
    /// Outputs that only a [`Condition`] looks at: clients do not get them. What rules compare is hidden anyway.
    pub hidden: Vec<String>,
}

impl BlockSource {
    /// What is declared of the request's tensors, by the names of the inputs that take them.
    pub fn ranges(&self, inputs: &[TensorSpec], declared: &[InputRange]) -> Vec<InputRange> {
        let taken = |input: &str| match self.links.iter().find(|link| link.input == input).map(|link| &link.from) {
            None => Some(input.to_owned()),
            Some(Source::Request(tensor)) => Some(tensor.clone()),
            Some(_) => None,
        };
        let of_input = |spec: &TensorSpec| {
            let tensor = taken(&spec.name)?;
            let range = declared.iter().find(|range| range.tensor == tensor)?;
            Some(InputRange { tensor: spec.name.clone(), ..range.clone() })
        };
        inputs.iter().filter_map(of_input).collect()
    }

    /// A block that a request runs once, without a file or a profile.
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

/// Where one input of a cell comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The cell's input.
    pub input: String,
    /// What it is given.
    pub from: Source,
    /// What stands in for [`Source::Previous`] at the first step; zeros if none.
    pub initial: Option<Initial>,
}

/// A value that flows into a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request's tensor of this name: the element of the step or node where the block has [`Steps::Length`] or
    /// [`Steps::Nodes`], else the tensor itself.
    Request(String),
    /// An output of this very block, of the step before.
    Previous(String),
    /// An output of another block at the same step; both have [`Steps::Length`].
    Step(BlockId, String),
    /// An output of the last step of another block, at every step of this one.
    Last(BlockId, String),
    /// An output of a node's n-th child; zeros where the node has none.
    Child(u32, String),
    /// An output of the last node of the graph, in the order of the client's table; of a tree, of its root.
    Root(String),
}

/// What an input holds before there is a step to take it from.
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
    /// Which block gives it; none for whatever cell the root (or the last node of the table) runs.
    pub block: Option<BlockId>,
    /// The block's output.
    pub tensor: String,
    /// Which steps.
    pub take: Take,
}

/// Which steps of a block make an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Take {
    /// The last one: [1, …].
    #[default]
    Last,
    /// All, stacked: [1, steps, …], of a backward block in the order of the elements.
    Every,
}

/// How long a block that runs until its end may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLimit {
    /// As long as the input and so many steps more.
    Extra(u32),
    /// So many steps.
    Fixed(u32),
}

impl Default for StepLimit {
    fn default() -> StepLimit {
        StepLimit::Extra(50)
    }
}

impl StepLimit {
    /// The limit of a request of this length; at least 1.
    pub fn of(self, length: u32) -> u32 {
        match self {
            StepLimit::Extra(extra) => length.saturating_add(extra),
            StepLimit::Fixed(steps) => steps,
        }
        .max(1)
    }

    /// How far a request of this length walks.
    pub fn extent(self, length: u32) -> Extent {
        Extent { length, limit: self.of(length) }
    }
}

/// How to run a model's engine in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The program to start; it calls [`serve_engine`](crate::serve_engine).
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The most bytes of address space that it may take.
    pub memory_limit: Option<u64>,
    /// The longest that it may take over a batch before it is taken for hung, and killed.
    pub task_limit: Duration,
}

impl Isolation {
    /// What [`Isolation::task_limit`] is unless somebody knows better: no batch that clients wait for takes so long.
    pub const TASK_LIMIT: Duration = Duration::from_secs(60);
}
