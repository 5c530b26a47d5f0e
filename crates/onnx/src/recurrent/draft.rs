//! A cell's graph under construction.

use crate::graph::OnnxModel;
use crate::proto::{
    DimensionProto, GraphProto, NodeProto, ShapeProto, TensorProto, TensorTypeProto, TypeProto, ValueInfoProto, elem,
};
use crate::weights::{float_tensor, int_tensor};
use std::collections::BTreeSet;

/// First operator version in which lists of axes are inputs.
const AXES_AS_INPUTS: i64 = 13;

#[derive(Default)]
pub(super) struct CellDraft {
    pub(super) graph: GraphProto,
    opset: i64,
    weights: BTreeSet<usize>,
}

impl CellDraft {
    pub(super) fn new(model: &OnnxModel, name: &str) -> CellDraft {
        CellDraft::named(name, model.opset())
    }

    pub(super) fn named(name: &str, opset: i64) -> CellDraft {
        let graph = GraphProto { name: name.to_owned(), ..GraphProto::default() };
        CellDraft { graph, opset, weights: BTreeSet::new() }
    }

    pub(super) fn op(&mut self, op_type: &str, inputs: &[&str], to: &str) {
        self.graph.node.push(NodeProto::new(op_type, inputs, &[to]));
    }

    pub(super) fn join(&mut self, parts: &[&str], to: &str) {
        self.graph.node.push(NodeProto::new("Concat", parts, &[to]).with_int("axis", 1));
    }

    /// Adds an operator that returns the index of the largest number along the second axis.
    pub(super) fn arg_max(&mut self, from: &str, to: &str) {
        let node = NodeProto::new("ArgMax", &[from], &[to]);
        self.graph.node.push(node.with_int("axis", 1).with_int("keepdims", 0));
    }

    /// Adds an operator that splits the second axis into parts of `size` each.
    pub(super) fn split(&mut self, from: &str, to: &[&str], size: usize) {
        let sizes = vec![size as i64; to.len()];
        let node = self.with_list(NodeProto::new("Split", &[from], to), "split", &sizes);
        self.graph.node.push(node.with_int("axis", 1));
    }

    /// Adds a `Squeeze` or `Unsqueeze`.
    pub(super) fn axes(&mut self, op_type: &str, from: &str, to: &str, axes: &[i64]) {
        let node = self.with_list(NodeProto::new(op_type, &[from], &[to]), "axes", axes);
        self.graph.node.push(node);
    }

    fn with_list(&mut self, mut node: NodeProto, name: &str, list: &[i64]) -> NodeProto {
        if self.opset < AXES_AS_INPUTS {
            return node.with_ints(name, list);
        }
        let weight = format!("{}/{name}", node.name);
        self.graph.initializer.push(int_tensor(&weight, list));
        node.input.push(weight);
        node
    }

    pub(super) fn matrix(&mut self, name: &str, rows: usize, elements: &[f32]) {
        let columns = elements.len() / rows.max(1);
        self.graph.initializer.push(float_tensor(name, &[rows as i64, columns as i64], elements));
    }

    pub(super) fn vector(&mut self, name: &str, elements: &[f32]) {
        self.graph.initializer.push(float_tensor(name, &[elements.len() as i64], elements));
    }

    /// Adds a weight of the model, unless it was added before.
    pub(super) fn weight(&mut self, number: usize, tensor: TensorProto) {
        if self.weights.insert(number) {
            self.graph.initializer.push(tensor);
        }
    }

    pub(super) fn input(&mut self, name: &str, elem_type: i32, row: &[i64]) {
        self.graph.input.push(info(name, elem_type, row));
    }

    pub(super) fn output(&mut self, name: &str, elem_type: i32, row: &[i64]) {
        if !self.graph.output.iter().any(|output| output.name == name) {
            self.graph.output.push(info(name, elem_type, row));
        }
    }

    pub(super) fn state(&mut self, name: &str, hidden: usize) {
        self.input(name, elem::FLOAT, &[hidden as i64]);
        self.output(&format!("{name}_next"), elem::FLOAT, &[hidden as i64]);
    }
}

/// Declares a tensor with one row per row of the batch. Sizes below 1 are open.
fn info(name: &str, elem_type: i32, row: &[i64]) -> ValueInfoProto {
    let batch = DimensionProto { dim_value: None, dim_param: Some(crate::dim::BATCH.to_owned()) };
    let dim = |(at, &size): (usize, &i64)| match size {
        1.. => DimensionProto { dim_value: Some(size), dim_param: None },
        _ => DimensionProto { dim_value: None, dim_param: Some(format!("{name}_{at}")) },
    };
    let dim = std::iter::once(batch).chain(row.iter().enumerate().map(dim)).collect();
    let tensor_type = Some(TensorTypeProto { elem_type, shape: Some(ShapeProto { dim }) });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}
