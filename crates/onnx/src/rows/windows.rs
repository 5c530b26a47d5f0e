//! Operators on images and signals `[batch, channels, ...]`, each element of the first dimension on
//! its own.
//!
//! The first dimension may hold more than the rows, such as the frames of videos: all elements of
//! it are separate. Sizes of windows follow from the slicer's shape inference.

use super::call::{BY_POSITION, Made, RowCall, meet, unknown};
use super::value::{RowAxis, RowRelation, RowValue};
use crate::dim::Dim;
use crate::graph::GraphValue;
use crate::shapes::{self, OpCall};

/// Returns the rows of the first input, which must stand along the first dimension, or along
/// another below `axes`.
fn rows_below<'a>(call: &'a RowCall<'_>, axes: usize) -> Result<(&'a [Dim], &'a RowAxis), super::call::RowCause> {
    let (dims, rows) = call.plain(0)?;
    match rows.axis < axes {
        true => Ok((dims, rows)),
        false => meet("it slides along the rows of the batch"),
    }
}

/// Convolutions: channels are summed, so only the first dimension is kept apart.
pub(super) fn convolution(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 1)?;
    call.constant_from(1)?;
    let shape = inferred(call, dims);
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Convolutions whose weights are an input other than the second: the sizes are not computed.
pub(super) fn other_convolution(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 1)?;
    call.constant_from(1)?;
    call.like(&first_kept(call, dims), &RowRelation::Along(rows.clone()))
}

/// Convolutions to which a tensor of the output's shape may be added, the fourth input.
pub(super) fn summed_convolution(call: &RowCall<'_>) -> Made {
    let Some(added) = call.optional(3) else { return other_convolution(call) };
    let (dims, rows) = rows_below(call, 1)?;
    let (shape, own) = call.plain(3)?;
    if own != rows || shape[0] != dims[0] || added.rank() != Some(dims.len()) {
        return meet(super::call::CROSSED);
    }
    for at in (1..call.inputs.len()).filter(|&at| at != 3) {
        if call.optional(at).is_some_and(|input| !input.is_constant()) {
            return meet("its weights are computed from rows");
        }
    }
    call.like(&first_kept(call, dims), &RowRelation::Along(rows.clone()))
}

/// Pooling, which keeps channels apart, too.
pub(super) fn pool(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 2)?;
    call.constant_from(1)?;
    let mut shape = inferred(call, dims);
    shape[rows.axis] = dims[rows.axis].clone();
    let mut made = call.like(&shape, &RowRelation::Along(rows.clone()))?;
    // Indices count through the whole batch.
    if call.node.output.len() > 1 {
        let cause = super::call::RowCause { kind: super::RowFindingKind::Meet, why: BY_POSITION.to_owned() };
        made[1].rows = call.finding(cause);
    }
    Ok(made)
}

/// Returns the output's shape by shape inference. Sizes that it does not know are new.
fn inferred(call: &RowCall<'_>, dims: &[Dim]) -> Vec<Dim> {
    let value = |input: &RowValue| GraphValue {
        name: String::new(),
        elem: 1,
        shape: input.shape.clone().unwrap_or_default(),
        data: input.data.clone(),
        weight: None,
        node: None,
    };
    let values: Vec<Option<GraphValue>> = call.inputs.iter().map(|input| input.as_ref().map(value)).collect();
    let inputs = values.iter().map(Option::as_ref).collect();
    let asked = OpCall { node: call.node, inputs, weights: &[], opset: call.opset };
    let made = shapes::windows_of(&asked).filter(|shape| shape.len() == dims.len());
    let Some(shape) = made else { return first_kept(call, dims) };
    // A symbolic size does not say whether it is rounded up.
    let exact = |dim: &Dim| dim.value().is_some() || call.node.int("ceil_mode", 0) == 0;
    let size = |(at, dim): (usize, Dim)| match at {
        0 => dims[0].clone(),
        _ if exact(&dim) => dim,
        _ => call.fresh(),
    };
    shape.into_iter().enumerate().map(size).collect()
}

/// Returns the first dimension, and new sizes for the others.
fn first_kept(call: &RowCall<'_>, dims: &[Dim]) -> Vec<Dim> {
    (0..dims.len()).map(|at| if at == 0 { dims[0].clone() } else { call.fresh() }).collect()
}

/// Samples of images at places that each row gives.
pub(super) fn grid_sample(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 1)?;
    let (places, own) = call.plain(1)?;
    if rows != own || dims[0] != places[0] || dims.len() < 2 || places.len() < 3 {
        return meet(super::call::CROSSED);
    }
    let shape = [&dims[..2], &places[1..places.len() - 1]].concat();
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Places for samples, of an affine map of each row.
pub(super) fn affine_grid(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 1)?;
    let sizes = call.input(1)?.data.clone().unwrap_or_default();
    if sizes.first() != Some(&dims[0]) || sizes.iter().skip(1).any(super::value::has_batch) {
        return unknown("its sizes are computed");
    }
    let mut shape = vec![dims[0].clone()];
    shape.extend_from_slice(&sizes[2.min(sizes.len())..]);
    shape.push(call.fresh());
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Windows of signals `[batch, samples, 1]` and their spectra.
pub(super) fn spectra(call: &RowCall<'_>) -> Made {
    let (dims, rows) = rows_below(call, 1)?;
    call.constant_from(1)?;
    let shape = vec![dims[0].clone(), call.fresh(), call.fresh(), Dim::known(2)];
    call.like(&shape, &RowRelation::Along(rows.clone()))
}
