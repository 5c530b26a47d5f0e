//! Operators that process each element of a sequence independently.
//!
//! A cell is the graph with a length of 1. So every operator around the recurrence must compute for
//! a single element what it computes for each element of a sequence. It must not act along a
//! dimension that contains the length, nor compute with the length.

use crate::error::{OnnxError, refuse};
use crate::graph::{OnnxModel, OpNode};
use crate::proto::elem;
use crate::shapes::axis;

/// Operators that work elementwise or only move elements.
const ELEMENTWISE_OPS: [&str; 45] = [
    "Abs",
    "Add",
    "And",
    "Cast",
    "Ceil",
    "Clip",
    "Cos",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Flatten",
    "Floor",
    "Gelu",
    "Greater",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Less",
    "Log",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "Reciprocal",
    "Relu",
    "Reshape",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "Transpose",
    "Unsqueeze",
    "Where",
];
/// Operators that may take sizes from `Shape`. Other operators could compute with the length.
const TAKES_SIZES: [&str; 15] = [
    "Add",
    "Cast",
    "Concat",
    "ConstantOfShape",
    "Div",
    "Expand",
    "Gather",
    "Identity",
    "Mul",
    "Reshape",
    "Slice",
    "Squeeze",
    "Sub",
    "Tile",
    "Unsqueeze",
];

/// The dimension whose size is the length of the sequence.
pub(super) struct TimeAxis<'m> {
    model: &'m OnnxModel,
    pub(super) length: &'m str,
    /// Whether each value is computed from sizes only.
    sizes: Vec<bool>,
}

impl<'m> TimeAxis<'m> {
    pub(super) fn new(model: &'m OnnxModel) -> Result<TimeAxis<'m>, OnnxError> {
        let Some(length) = &model.length else {
            return refuse("it has no dynamic length: export it with a dynamic second dimension");
        };
        let mut sizes = vec![false; model.values.len()];
        for node in &model.nodes {
            let mut inputs = node.inputs.iter().flatten();
            let weight = |&input: &usize| model.values[input].weight.is_some();
            let from_sizes =
                inputs.clone().all(|input| sizes[*input] || weight(input)) && inputs.any(|input| sizes[*input]);
            let shape = matches!(&*node.proto.op_type, "Shape" | "Size");
            node.outputs.iter().flatten().for_each(|&output| sizes[output] = shape || from_sizes);
        }
        Ok(TimeAxis { model, length, sizes })
    }

    /// Whether a value has one part per element.
    pub(super) fn has_time(&self, value: usize) -> bool {
        self.model.values[value].shape.iter().any(|dim| dim.mentions(self.length))
    }

    /// Returns the axis whose size is exactly the length.
    pub(super) fn axis(&self, value: usize) -> Option<usize> {
        self.model.values[value].shape.iter().position(|dim| dim.to_string() == self.length)
    }

    fn is_time_axis(&self, value: usize, at: i64) -> bool {
        let shape = &self.model.values[value].shape;
        axis(at, shape.len()).is_none_or(|at| shape[at].mentions(self.length))
    }

    /// Whether the node takes exactly the last element of a sequence.
    pub(super) fn picks_last(&self, node: &OpNode) -> bool {
        let input = |at: usize| node.inputs.get(at).copied().flatten();
        let (Some(data), Some(output)) = (input(0), node.outputs.first().copied().flatten()) else { return false };
        let Some(time) = self.axis(data).filter(|_| !self.has_time(output)) else { return false };
        let ints = |at: usize| self.model.known_ints(input(at)?);
        match &*node.proto.op_type {
            "Gather" => {
                let at = axis(node.proto.int("axis", 0), self.model.values[data].shape.len());
                at == Some(time) && ints(1).as_deref() == Some(&[-1])
            }
            "Slice" => {
                let at = ints(3).and_then(|axes| axis(*axes.first()?, self.model.values[data].shape.len()));
                at == Some(time) && ints(1).as_deref() == Some(&[-1])
            }
            _ => false,
        }
    }

    /// Refuses an operator that mixes the elements of a sequence.
    pub(super) fn check_elementwise(&self, node: &OpNode) -> Result<(), OnnxError> {
        let (name, label) = (&*node.proto.op_type, node.proto.label());
        let input = |at: usize| node.inputs.get(at).copied().flatten();
        let takes_sizes = node.inputs.iter().flatten().any(|&input| self.sizes[input]);
        let casts_to_float = name == "Cast" && !matches!(node.proto.int("to", 0) as i32, elem::INT32 | elem::INT64);
        if takes_sizes && (!TAKES_SIZES.contains(&name) || casts_to_float) {
            return refuse(format!("{label} computes with sizes, perhaps with the length"));
        }
        if !node.inputs.iter().chain(&node.outputs).flatten().any(|&value| self.has_time(value)) {
            return Ok(());
        }
        let rank = |value: usize| self.model.values[value].shape.len() as i64;
        let apart = match name {
            "Shape" | "Size" | "ConstantOfShape" => true,
            "MatMul" => {
                let (Some(a), Some(b)) = (input(0), input(1)) else { return refuse(label) };
                !self.has_time(b) && !self.is_time_axis(a, -1)
            }
            "Gemm" => {
                let (Some(a), Some(b)) = (input(0), input(1)) else { return refuse(label) };
                !self.has_time(b) && node.proto.int("transA", 0) == 0 && !self.is_time_axis(a, 1)
            }
            "Gather" => input(0).is_some_and(|table| !self.has_time(table)),
            "Concat" => node.inputs.iter().flatten().all(|&input| !self.is_time_axis(input, node.proto.int("axis", 0))),
            "Split" => input(0).is_some_and(|data| !self.is_time_axis(data, node.proto.int("axis", 0))),
            "Slice" => {
                let axes = input(3).and_then(|axes| self.model.known_ints(axes));
                input(0).zip(axes).is_some_and(|(data, axes)| axes.into_iter().all(|at| !self.is_time_axis(data, at)))
            }
            "Softmax" | "LogSoftmax" => {
                input(0).is_some_and(|data| !self.is_time_axis(data, node.proto.int("axis", -1)))
            }
            "LayerNormalization" => input(0).is_some_and(|data| {
                let first = node.proto.int("axis", -1);
                let first = if first < 0 { first + rank(data) } else { first };
                (first..rank(data)).all(|at| !self.is_time_axis(data, at))
            }),
            _ => ELEMENTWISE_OPS.contains(&name) || takes_sizes,
        };
        if apart { Ok(()) } else { refuse(format!("{label} mixes the elements of a sequence")) }
    }
}
