//! The source of each input of each cell, resolved at load (`linking.rs`). So running tasks look up
//! no names.

use crate::{AnswerSteps, Unfold, WalkShape};
use ripieno_model::{DataType, Steps, TensorSpec};
use std::sync::Arc;

/// Name of an emulated model's input that holds the number of output steps.
pub(crate) const OUTPUT_LENGTH: &str = "output_length";

/// A model's linked cells.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub(crate) shape: WalkShape,
    /// Tensors of a request in the order of [`ModelPlan::inputs`], without the tables of a graph.
    pub(crate) request_tensors: Vec<RequestTensor>,
    pub(crate) cells: Vec<CellWiring>,
    pub(crate) answers: Vec<AnswerOutput>,
    /// User code that creates the graphs of requests, if requests contain no tables.
    pub(crate) unfold: Option<Arc<dyn Unfold>>,
    /// Whether the number of output steps is emulated, because no cell computes the end.
    pub(crate) emulated: bool,
}

/// A tensor that requests must contain.
#[derive(Clone, Debug)]
pub(crate) struct RequestTensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// Shape of one element, without the dimensions for the request and its elements.
    pub(crate) row_shape: Vec<i64>,
    /// Whether the tensor has one element per step or node.
    pub(crate) each: bool,
}

/// Inputs and outputs of one cell.
#[derive(Debug)]
pub(crate) struct CellWiring {
    pub(crate) name: String,
    pub(crate) steps: Steps,
    pub(crate) backward: bool,
    /// Inputs in the block's order.
    pub(crate) feeds: Vec<Feed>,
    /// Retention of each output, in the block's order.
    pub(crate) keeps: Vec<Retention>,
    /// Index of the output that signals the last step.
    pub(crate) end: Option<usize>,
}

/// One input of a cell.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    pub(crate) row_shape: Vec<i64>,
    pub(crate) from: FeedSource,
    /// Value of the input at the first step, which has no previous one.
    pub(crate) seed: Seed,
    /// Number of ids in the embedding, if this input looks up an embedding.
    pub(crate) vocabulary: Option<i64>,
}

/// Source of an input, like [`InputSource`](crate::InputSource) but with indices instead of names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FeedSource {
    Element(usize),
    Request(usize),
    Previous(usize),
    Step(usize, usize),
    Last(usize, usize),
    /// The output of the cell that the child runs. Holds the number of the child.
    Child(usize, Outputs),
    Root(Outputs),
}

impl FeedSource {
    /// Whether the value is a tensor of the request.
    pub(crate) fn is_from_request(&self) -> bool {
        matches!(self, FeedSource::Element(_) | FeedSource::Request(_))
    }
}

/// Index of the output of one name, for each block; `None` if a block has no such output.
pub(crate) type Outputs = Vec<Option<usize>>;

/// Substitute for a value that does not exist.
#[derive(Debug)]
pub(crate) enum Seed {
    /// One row of constant bytes.
    Fill(Vec<u8>),
    Last(usize, usize),
}

/// Duration for which an output is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retention {
    /// Whether the output is kept until the next step, or until every node that needs it has run.
    pub(crate) held: bool,
    /// Blocks that take this output step by step. Each step is kept until all of them have used it.
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
    /// Returns the specification for clients. The first dimension is the request, and the second is
    /// its elements.
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
