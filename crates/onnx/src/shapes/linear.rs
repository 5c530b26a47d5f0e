//! Products of matrices.

use super::elementwise::broadcast;
use super::{InferredTensor, OpCall};
use crate::dim::Dim;
use std::collections::BTreeMap;

pub(super) fn matmul(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (mut left, mut right) = (a.shape.clone(), b.shape.clone());
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let (row, column) = (left.len() == 1, right.len() == 1);
    if row {
        left.insert(0, Dim::known(1));
    }
    if column {
        right.push(Dim::known(1));
    }
    let (rows, columns) = (left[left.len() - 2].clone(), right[right.len() - 1].clone());
    let mut shape = broadcast(&left[..left.len() - 2], &right[..right.len() - 2])?;
    if !row {
        shape.push(rows);
    }
    if !column {
        shape.push(columns);
    }
    InferredTensor::one(a.elem, shape)
}

pub(super) fn gemm(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let side = |name: &str, plain: usize| if call.node.int(name, 0) == 0 { plain } else { 1 - plain };
    let rows = a.shape.get(side("transA", 0))?.clone();
    InferredTensor::one(a.elem, vec![rows, b.shape.get(side("transB", 1))?.clone()])
}

/// Infers an `Einsum` without an ellipsis and with an explicit output.
pub(super) fn einsum(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let equation = call.node.text("equation").replace(' ', "");
    let (inputs, output) = equation.split_once("->").filter(|_| !equation.contains('.'))?;
    let mut sizes: BTreeMap<char, Dim> = BTreeMap::new();
    for (at, letters) in inputs.split(',').enumerate() {
        let shape = &call.input(at)?.shape;
        if letters.chars().count() != shape.len() {
            return None;
        }
        for (letter, dim) in letters.chars().zip(shape) {
            let known = sizes.entry(letter).or_insert_with(|| dim.clone());
            if known.is(1) {
                known.clone_from(dim);
            }
        }
    }
    let shape = output.chars().map(|letter| sizes.get(&letter).cloned()).collect::<Option<_>>()?;
    InferredTensor::one(call.input(0)?.elem, shape)
}
