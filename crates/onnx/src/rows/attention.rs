//! Attention and embeddings as ONNX Runtime's optimizer and ONNX 23 write them.
//!
//! All have `[batch, ...]` tensors: queries, keys, values, past keys, masks. So all inputs that
//! have rows must have them along the first dimension, one element a row.

use super::call::{CROSSED, FIXED, Made, RowCall, RowCause, dims_of, meet, unknown};
use super::value::{RowAxis, RowRelation, RowValue};
use crate::dim::Dim;

/// Requires that an input has rows along `axis`, or is a constant that `constant` accepts.
fn require(call: &RowCall<'_>, at: usize, axis: usize, constant: fn(&[Dim]) -> bool) -> Result<(), RowCause> {
    let Some(input) = call.optional(at) else { return Ok(()) };
    let dims = dims_of(input)?;
    match &input.rows {
        RowRelation::Along(rows) if *rows == RowAxis::new(axis, Dim::known(1)) && dims[axis].is_batch() => Ok(()),
        RowRelation::Constant if constant(dims) => Ok(()),
        RowRelation::Constant => meet(FIXED),
        RowRelation::Count => meet(super::call::BY_COUNT),
        _ => meet(CROSSED),
    }
}

/// Requires that inputs are the same for all rows.
fn constants(call: &RowCall<'_>, at: &[usize]) -> Result<(), RowCause> {
    match at.iter().filter_map(|&at| call.optional(at)).all(RowValue::is_constant) {
        true => Ok(()),
        false => meet("its parameters are computed from rows"),
    }
}

/// Requires that a mask or bias that broadcasts to `[batch, heads, time, time]` has rows along its
/// first of four dimensions, or is shared by all rows.
fn require_bias(call: &RowCall<'_>, at: usize) -> Result<(), RowCause> {
    match call.optional(at) {
        Some(bias) if bias.axis().is_some() && bias.rank() != Some(4) => meet(CROSSED),
        _ => require(call, at, 0, |dims| dims.len() <= 2 || dims.len() == 4 && dims[0].is(1)),
    }
}

fn never(_: &[Dim]) -> bool {
    false
}

/// Rows along the first dimension, or another; sizes behind it are new.
fn output(call: &RowCall<'_>, rank: usize, axis: usize) -> RowValue {
    let shape = (0..rank).map(|at| if at == axis { Dim::batch() } else { call.fresh() }).collect();
    RowValue::new(shape, RowRelation::Along(RowAxis::new(axis, Dim::known(1))))
}

/// The first output has the shape of an input, but for its last dimension.
fn like_first(call: &RowCall<'_>, at: usize) -> Result<RowValue, RowCause> {
    let mut shape = call.dims(at)?.to_vec();
    if let Some(last) = shape.last_mut().filter(|last| !last.is_batch()) {
        *last = call.fresh();
    }
    Ok(RowValue::new(shape, RowRelation::Along(RowAxis::new(0, Dim::known(1)))))
}

/// `Attention` of ONNX Runtime: `[batch, time, width]` with its own weights.
pub(super) fn packed_weights(call: &RowCall<'_>) -> Made {
    require(call, 0, 0, never)?;
    constants(call, &[1, 2, 6])?;
    require(call, 3, 0, never)?;
    require(call, 4, 1, never)?;
    require_bias(call, 5)?;
    if call.optional(6).is_some() {
        return unknown("its past has a length of its own");
    }
    Ok(vec![like_first(call, 0)?, output(call, 5, 1)])
}

/// `QAttention`, the same with quantised numbers.
pub(super) fn quantised(call: &RowCall<'_>) -> Made {
    require(call, 0, 0, never)?;
    constants(call, &[1, 2, 3, 4, 6, 7])?;
    require(call, 5, 0, never)?;
    require(call, 8, 1, never)?;
    Ok(vec![like_first(call, 0)?, output(call, 5, 1)])
}

/// `MultiHeadAttention` of ONNX Runtime.
pub(super) fn multi_head(call: &RowCall<'_>) -> Made {
    for at in [0, 1, 2, 4, 6, 7] {
        require(call, at, 0, never)?;
    }
    constants(call, &[3])?;
    require_bias(call, 5)?;
    if call.optional(8).is_some() || call.optional(9).is_some() {
        return unknown("its past has a length of its own");
    }
    Ok(vec![like_first(call, 0)?, output(call, 4, 0), output(call, 4, 0)])
}

/// `GroupQueryAttention` of ONNX Runtime.
pub(super) fn grouped(call: &RowCall<'_>) -> Made {
    for at in [0, 1, 2, 3, 4, 5] {
        require(call, at, 0, never)?;
    }
    constants(call, &[6, 7, 8])?;
    if call.optional(9).is_some() || call.optional(10).is_some() {
        return unknown("it has inputs that the analysis does not know");
    }
    Ok(vec![like_first(call, 0)?, output(call, 4, 0), output(call, 4, 0)])
}

/// `Attention` of ONNX 23.
pub(super) fn standard(call: &RowCall<'_>) -> Made {
    for at in [0, 1, 2, 4, 5, 6] {
        require(call, at, 0, never)?;
    }
    require_bias(call, 3)?;
    Ok(vec![like_first(call, 0)?, output(call, 4, 0), output(call, 4, 0), output(call, 4, 0)])
}

/// Rotary embeddings: values, and tables of cosines and sines. `positions` is the input with each
/// row's positions, which index the tables. Without them, each row has tables of its own.
pub(super) fn rotary(call: &RowCall<'_>, positions: usize, tables: [usize; 2]) -> Made {
    require(call, 0, 0, never)?;
    require(call, positions, 0, |dims| dims.len() <= 1 || dims[0].is(1))?;
    match call.optional(positions) {
        Some(_) => constants(call, &tables)?,
        None => tables.into_iter().try_for_each(|at| require(call, at, 0, never))?,
    }
    call.like(call.dims(0)?, &call.input(0)?.rows)
}
