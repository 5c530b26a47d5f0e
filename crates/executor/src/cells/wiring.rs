//! The source of each tensor of a cell, as resolved at load (`linking.rs`): a running task looks up
//! no name.

use crate::{AnswerSteps, StepLimit, Unfold};
use ripieno_model::{DataType, Steps, TensorSpec, Walk};
use std::sync::Arc;

/// Name of the request's tensor that holds the inputs of each node.
pub(crate) const CHILDREN: &str = "children";
/// Name of the request's tensor that holds the cell of each node of a graph.
pub(crate) const CELL: &str = "cell";

/// Name of an emulated model's input that holds the number of output steps.
pub(crate) const OUTPUT_LENGTH: &str = "output_length";

/// A model's linked cells.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub(crate) walk: Walk,
    pub(crate) max_length: u32,
    /// `None` if no cell runs until its end.
    pub(crate) limit: Option<StepLimit>,
    /// Tensors of a request, in the order of [`ModelPlan::inputs`], without the tables of a graph.
    pub(crate) request_tensors: Vec<RequestTensor>,
    /// Largest number of inputs of a node.
    pub(crate) arity: usize,
    pub(crate) cells: Vec<CellWiring>,
    pub(crate) answers: Vec<AnswerOutput>,
    /// Creates the graphs of requests, if requests do not contain them.
    pub(crate) unfold: Option<Arc<dyn Unfold>>,
    /// Whether the output length is emulated, because no cell computes one.
    pub(crate) emulated: bool,
}

/// A tensor that requests contain.
#[derive(Clone, Debug)]
pub(crate) struct RequestTensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// Shape without the dimensions of the request and the elements.
    pub(crate) row_shape: Vec<i64>,
    /// Whether it has one element per step or node.
    pub(crate) each: bool,
}

/// A block of a walk that unfolds.
#[derive(Debug)]
pub(crate) struct CellWiring {
    pub(crate) name: String,
    pub(crate) steps: Steps,
    pub(crate) backward: bool,
    /// Inputs, in the block's order.
    pub(crate) feeds: Vec<Feed>,
    /// Retention of the outputs, in the block's order.
    pub(crate) keeps: Vec<Retention>,
    /// The output that signals the last step.
    pub(crate) end: Option<usize>,
}

/// One input of a cell.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    pub(crate) row_shape: Vec<i64>,
    pub(crate) from: FeedSource,
    /// Value before there is a step to take it from.
    pub(crate) seed: Seed,
    /// Number of ids that the cell knows, if this input looks up an embedding.
    pub(crate) vocabulary: Option<i64>,
}

/// Source of an input: [`InputSource`](crate::InputSource) with indices instead of names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FeedSource {
    Element(usize),
    Request(usize),
    Previous(usize),
    Step(usize, usize),
    Last(usize, usize),
    /// The output of this name of the cell that the child runs.
    Child(usize, Outputs),
    Root(Outputs),
}

impl FeedSource {
    /// Whether the request itself contains it.
    pub(crate) fn is_from_request(&self) -> bool {
        matches!(self, FeedSource::Element(_) | FeedSource::Request(_))
    }
}

/// Index of the output of one name, for each block.
pub(crate) type Outputs = Vec<Option<usize>>;

/// Substitute for a value that does not exist.
#[derive(Debug)]
pub(crate) enum Seed {
    /// One row of constant bytes.
    Fill(Vec<u8>),
    Last(usize, usize),
}

/// Time for which an output is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retention {
    /// Kept until the next step, or until every node that takes it has run.
    pub(crate) held: bool,
    /// Each step is kept until these blocks have consumed it.
    pub(crate) stepped_by: Vec<usize>,
}

/// A tensor of the client's answer.
#[derive(Debug)]
pub(crate) struct AnswerOutput {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    pub(crate) from: AnswerFrom,
    pub(crate) take: AnswerSteps,
}

#[derive(Debug)]
pub(crate) enum AnswerFrom {
    Block(usize, usize),
    Root(Outputs),
}

impl RequestTensor {
    /// The specification for clients: the first dimension is the request, the second its elements.
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
