//! The operators in a sequence, and the tensors that each cut of the sequence would carry.
//!
//! A device keeps rows between blocks: tensors whose first dimension is the batch. If the batch is
//! another dimension, the block transposes the tensor at its end, and each block that takes the
//! tensor transposes it back.
//!
//! An operator has one place in the sequence if it outputs rows or is too costly to run twice.
//! Other operators have no place: views, shapes, and masks made of constants. Each block that needs
//! their results computes them again, from rows and weights. A cut is possible if everything needed
//! after it is rows or can be computed from rows by operators without a place. A residual that is
//! used ten blocks later is carried past all of them.

use crate::graph::{OnnxModel, OpNode};
use crate::proto::NodeProto;
use crate::weights::{MAX_COST, element_bytes};
use std::collections::BTreeSet;

/// Length at which sizes are compared, if the model leaves the length open.
const NOMINAL_LENGTH: i64 = 64;

/// Operators that must not run twice.
const COSTLY: [&str; 22] = [
    "Attention",
    "AveragePool",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DeformConv",
    "Einsum",
    "GRU",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "LSTM",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "MaxPool",
    "QLinearConv",
    "QLinearMatMul",
    "RNN",
    "Resize",
    "TopK",
    "Upsample",
];

/// A model's operators in the sequence that cuts divide.
#[derive(Clone, Debug)]
pub(crate) struct OperatorLine<'m> {
    pub(crate) model: &'m OnnxModel,
    /// Nodes that have a place, in order.
    pub(crate) places: Vec<usize>,
    /// Rows that the operator at each place needs, directly or through operators without a place.
    pub(crate) needs: Vec<BTreeSet<usize>>,
    /// Whether each value is computed from weights only.
    pub(crate) constant: Vec<bool>,
    /// Live range of each value: the first cut after it is computed, and the last place that needs
    /// it.
    lives: Vec<Option<(usize, usize)>>,
    /// Value that prevents each cut, if any: it is needed after the cut but cannot be carried.
    stuck: Vec<Option<usize>>,
}

impl<'m> OperatorLine<'m> {
    pub(crate) fn new(model: &'m OnnxModel) -> OperatorLine<'m> {
        let constant = constants(model);
        let has_place = |node: &OpNode| {
            let mut outputs = node.outputs.iter().flatten();
            let live = !outputs.clone().all(|&output| constant[output]);
            live && (is_costly(&node.proto) || outputs.any(|&output| model.values[output].batch_axis().is_some()))
        };
        let places: Vec<usize> = (0..model.nodes.len()).filter(|&node| has_place(&model.nodes[node])).collect();
        let mut place_of = vec![None; model.nodes.len()];
        for (place, &node) in places.iter().enumerate() {
            place_of[node] = Some(place);
        }
        let (needs, lives) = (Vec::with_capacity(places.len()), vec![None; model.values.len()]);
        let stuck = vec![None; places.len() + 1];
        let mut line = OperatorLine { model, places, needs, constant, lives, stuck };
        line.follow(&place_of);
        line
    }

    /// Computes which rows each place needs, and the live ranges of values.
    fn follow(&mut self, place_of: &[Option<usize>]) {
        let made_at = |value: usize| match self.model.values[value].node {
            Some(node) => place_of[node].map(|place| place + 1),
            None => Some(0),
        };
        for place in 0..self.places.len() {
            let node = &self.model.nodes[self.places[place]];
            let mut rows = BTreeSet::new();
            for value in self.sources(node.inputs.iter().flatten().copied(), place_of) {
                let Some(made) = made_at(value) else { continue };
                if self.model.values[value].batch_axis().is_some() {
                    rows.insert(value);
                    self.lives[value] = Some((made, place));
                } else {
                    self.stuck[made..=place].iter_mut().for_each(|cut| *cut = cut.or(Some(value)));
                }
            }
            self.needs.push(rows);
        }
    }

    /// Returns the values from which `values` are computed by operators without a place. These are
    /// rows and outputs of operators with a place; weights are omitted.
    fn sources(&self, values: impl Iterator<Item = usize>, place_of: &[Option<usize>]) -> BTreeSet<usize> {
        let mut open: Vec<usize> = values.collect();
        let (mut seen, mut sources) = (BTreeSet::new(), BTreeSet::new());
        while let Some(value) = open.pop() {
            if self.constant[value] || !seen.insert(value) {
                continue;
            }
            match self.model.values[value].node.filter(|&node| place_of[node].is_none()) {
                Some(node) => open.extend(self.model.nodes[node].inputs.iter().flatten()),
                None => drop(sources.insert(value)),
            }
        }
        sources
    }

    /// Returns the number of operators with a place. A cut's number is the number of places before
    /// it, so cut 1 is after the first operator.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the name of the value that makes a cut impossible, if any.
    pub(crate) fn blocking_value(&self, cut: usize) -> Option<&str> {
        self.stuck[cut].map(|value| &*self.model.values[value].name)
    }

    /// Returns the values that are carried over a cut.
    pub(crate) fn carried(&self, cut: usize) -> Vec<usize> {
        let over = |&value: &usize| self.lives[value].is_some_and(|(from, to)| from <= cut && cut <= to);
        (0..self.lives.len()).filter(over).collect()
    }

    /// Returns the last place that needs a value.
    pub(crate) fn last_use(&self, value: usize) -> Option<usize> {
        self.lives[value].map(|(_, to)| to)
    }

    /// Returns the cost of each cut in bytes per row; fewer and smaller tensors cost less. `None`
    /// if the cut is impossible.
    pub(crate) fn prices(&self) -> Vec<Option<u64>> {
        /// Cost of gathering and scattering one more tensor, in bytes.
        const TENSOR: u64 = 4096;
        let mut change = vec![0i128; self.len() + 2];
        for (value, lives) in self.lives.iter().enumerate() {
            let Some((from, to)) = *lives else { continue };
            let bytes = row_bytes(self.model, value);
            let turned = if self.model.values[value].is_rows() { 0 } else { bytes };
            let price = i128::from(bytes + turned + TENSOR);
            change[from] += price;
            change[to + 1] -= price;
        }
        let mut price = 0i128;
        let at = |cut: usize| {
            price += change[cut];
            let possible = cut > 0 && cut < self.len() && self.stuck[cut].is_none();
            possible.then_some(u64::try_from(price).unwrap_or(u64::MAX))
        };
        (0..=self.len()).map(at).collect()
    }
}

/// Returns the size of one row of a value in bytes.
pub(crate) fn row_bytes(model: &OnnxModel, value: usize) -> u64 {
    let value = &model.values[value];
    let batch = value.batch_axis();
    let row = value.shape.iter().enumerate().filter(|(axis, _)| Some(*axis) != batch);
    let row = row.map(|(_, dim)| dim.estimate(&|_| NOMINAL_LENGTH));
    let elements = row.fold(1, i64::saturating_mul);
    elements.unsigned_abs().saturating_mul(element_bytes(value.elem).unwrap_or(8) as u64).min(MAX_COST)
}

/// Returns a size for estimates, with an assumed length.
pub(crate) fn nominal(dim: &crate::dim::Dim, rows: i64) -> i64 {
    dim.estimate(&|symbol| if symbol == crate::dim::BATCH { rows } else { NOMINAL_LENGTH })
}

pub(crate) fn is_costly(node: &NodeProto) -> bool {
    !node.is_standard() || COSTLY.contains(&&*node.op_type)
}

fn constants(model: &OnnxModel) -> Vec<bool> {
    let mut constant: Vec<bool> = model.values.iter().map(|value| value.weight.is_some()).collect();
    for node in &model.nodes {
        let all = node.inputs.iter().flatten().all(|&input| constant[input]);
        let random = node.proto.op_type.starts_with("Random") || node.proto.op_type == "Bernoulli";
        for &output in node.outputs.iter().flatten() {
            constant[output] = all && !random;
        }
    }
    constant
}
