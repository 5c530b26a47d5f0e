//! The graph for the slicer: values by number, nodes in an executable order, every shape known.

use crate::dim::Dim;
use crate::proto::{NodeProto, OperatorSetProto, TensorProto};
use std::path::PathBuf;

/// A model that was read and checked.
#[derive(Clone, Debug)]
pub struct OnnxModel {
    pub(crate) path: PathBuf,
    pub(crate) ir_version: i64,
    pub(crate) opsets: Vec<OperatorSetProto>,
    pub(crate) values: Vec<GraphValue>,
    pub(crate) nodes: Vec<OpNode>,
    pub(crate) weights: Vec<TensorProto>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    /// The name of the one dynamic dimension beside the batch, if there is one.
    pub(crate) length: Option<String>,
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphValue {
    pub(crate) name: String,
    /// ONNX's number of the element type.
    pub(crate) elem: i32,
    pub(crate) shape: Vec<Dim>,
    /// The elements of small integer tensors of at most one dimension, if they follow from shapes.
    pub(crate) data: Option<Vec<Dim>>,
    /// The number of its weight.
    pub(crate) weight: Option<usize>,
    /// The node that computes it.
    pub(crate) node: Option<usize>,
}

impl GraphValue {
    /// Whether it holds one row for each row of the batch, with the batch as first dimension.
    pub(crate) fn is_rows(&self) -> bool {
        self.batch_axis() == Some(0)
    }

    /// Returns the dimension that is exactly the batch, so that a device can carry the value
    /// between blocks.
    pub(crate) fn batch_axis(&self) -> Option<usize> {
        let batch = || self.shape.iter().position(Dim::is_batch);
        if self.weight.is_none() { batch() } else { None }
    }
}

/// An operator with its tensors by number; `None` for an omitted optional one.
#[derive(Clone, Debug)]
pub(crate) struct OpNode {
    pub(crate) proto: NodeProto,
    pub(crate) inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
}

impl OnnxModel {
    /// Returns the version of ONNX's own operators.
    pub(crate) fn opset(&self) -> i64 {
        let own = self.opsets.iter().find(|set| matches!(&*set.domain, "" | "ai.onnx"));
        own.map_or(1, |set| set.version)
    }

    pub(crate) fn value_named(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| value.name == name)
    }

    /// Returns the integer elements of a small tensor, if all of them are numbers.
    pub(crate) fn known_ints(&self, value: usize) -> Option<Vec<i64>> {
        self.values[value].data.as_ref()?.iter().map(Dim::value).collect()
    }
}
