//! Where each tensor of a cell comes from, as settled at load (`linking.rs`): a running task looks no name up.

use crate::{StepLimit, Take, Unfold};
use ripieno_model::{DataType, Steps, TensorSpec, Walk};
use std::sync::Arc;

/// The request's tensor that holds the inputs of each node.
pub(crate) const CHILDREN: &str = "children";
/// The request's tensor that names the cell of each node of a graph.
pub(crate) const CELL: &str = "cell";

/// The input of an emulated model that says after how many steps its output ends.
pub(crate) const OUTPUT_LENGTH: &str = "output_length";

/// A model's cells, tied together.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub(crate) walk: Walk,
    pub(crate) max_length: u32,
    /// None where no cell runs until its end.
    pub(crate) limit: Option<StepLimit>,
    /// What a request brings, in the order of [`Plan::inputs`], without the tables of a graph.
    pub(crate) wanted: Vec<Wanted>,
    /// The most inputs of a node.
    pub(crate) arity: usize,
    pub(crate) cells: Vec<Cell>,
    pub(crate) answers: Vec<Answer>,
    /// Makes the graphs of requests, where they bring none.
    pub(crate) unfold: Option<Arc<dyn Unfold>>,
    /// Whether the length of an output is made up, because nothing computes one.
    pub(crate) emulated: bool,
}

/// A tensor that a request brings.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// Without the request and the elements.
    pub(crate) row_shape: Vec<i64>,
    /// Whether it has one element for each step or node.
    pub(crate) each: bool,
}

/// A block of a walk that unfolds.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) steps: Steps,
    pub(crate) backward: bool,
    /// In the order of the block's inputs.
    pub(crate) feeds: Vec<Feed>,
    /// In the order of the block's outputs.
    pub(crate) keeps: Vec<Keep>,
    /// The output that tells of the last step.
    pub(crate) end: Option<usize>,
}

/// One input of a cell.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    pub(crate) row_shape: Vec<i64>,
    pub(crate) from: From,
    /// Before there is a step to take it from.
    pub(crate) seed: Seed,
    /// How many ids the cell knows, where this input looks up an embedding.
    pub(crate) vocabulary: Option<i64>,
}

/// Where an input comes from: [`Source`] in numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum From {
    Element(usize),
    Request(usize),
    Previous(usize),
    Step(usize, usize),
    Last(usize, usize),
    /// The output of this name of whatever cell the child runs.
    Child(usize, Outputs),
    Root(Outputs),
}

impl From {
    /// Whether the request itself brings it.
    pub(crate) fn is_brought(&self) -> bool {
        matches!(self, From::Element(_) | From::Request(_))
    }
}

/// For each block the number of its output of one name.
pub(crate) type Outputs = Vec<Option<usize>>;

/// What stands in for a value that does not exist.
#[derive(Debug)]
pub(crate) enum Seed {
    /// One row.
    Fill(Vec<u8>),
    Last(usize, usize),
}

/// What becomes of an output.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keep {
    /// Held until the next step, or until every node that takes it has run.
    pub(crate) held: bool,
    /// Each step is held until these blocks have taken it.
    pub(crate) stepped_by: Vec<usize>,
}

/// A tensor of the client's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    pub(crate) from: AnswerFrom,
    pub(crate) take: Take,
}

#[derive(Debug)]
pub(crate) enum AnswerFrom {
    Block(usize, usize),
    Root(Outputs),
}

impl Wanted {
    /// As clients are told: the first dimension is the request, the second its elements.
    pub(super) fn spec(&self) -> TensorSpec {
        let leading = if self.each { &[-1, -1][..] } else { &[-1] };
        let shape = leading.iter().chain(&self.row_shape).copied().collect();
        TensorSpec { name: self.name.clone(), datatype: self.datatype, shape }
    }

    pub(super) fn shown(&self) -> String {
        let of = if self.each { "element by element" } else { "whole" };
        format!("{} {:?} {of}", self.datatype, self.spec().shape)
    }
}
