//! The graph that the slicer uses. Values are numbered, nodes are in an executable order, and every
//! shape is known.

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
    /// Name of the dynamic dimension other than the batch, if any.
    pub(crate) length: Option<String>,
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphValue {
    pub(crate) name: String,
    /// ONNX number of the element type.
    pub(crate) elem: i32,
    pub(crate) shape: Vec<Dim>,
    /// Elements of a small integer tensor of at most one dimension, if they can be inferred from
    /// shapes.
    pub(crate) data: Option<Vec<Dim>>,
    /// Index of the weight, if the value is a weight.
    pub(crate) weight: Option<usize>,
    /// Index of the node that computes the value, if any.
    pub(crate) node: Option<usize>,
}

impl GraphValue {
    /// Whether the value has one row per row of the batch, with the batch as first dimension.
    pub(crate) fn is_rows(&self) -> bool {
        self.batch_axis() == Some(0)
    }

    /// Returns the dimension whose size is exactly the batch. A device can carry such a value
    /// between blocks.
    pub(crate) fn batch_axis(&self) -> Option<usize> {
        let batch = || self.shape.iter().position(Dim::is_batch);
        if self.weight.is_none() { batch() } else { None }
    }
}

/// An operator with the numbers of its tensors; `None` for an omitted optional tensor.
#[derive(Clone, Debug)]
pub(crate) struct OpNode {
    pub(crate) proto: NodeProto,
    pub(crate) inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
}

impl OnnxModel {
    /// Returns the version of ONNX's standard operators.
    pub(crate) fn opset(&self) -> i64 {
        let own = self.opsets.iter().find(|set| matches!(&*set.domain, "" | "ai.onnx"));
        own.map_or(1, |set| set.version)
    }

    pub(crate) fn value_named(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| value.name == name)
    }

    /// Returns the elements of a small integer tensor, if all of them are known numbers.
    pub(crate) fn known_ints(&self, value: usize) -> Option<Vec<i64>> {
        self.values[value].data.as_ref()?.iter().map(Dim::value).collect()
    }
}
