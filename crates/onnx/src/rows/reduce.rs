//! Operators that combine the elements along axes: reductions, softmax, running sums, sorts.

use super::call::{Made, RowCall, RowCause, meet, normal, unknown};
use super::sizes;
use super::value::{RowRelation, RowValue};
use crate::dim::Dim;

/// The reason why a reduction along the rows ends the proof.
const ACROSS: &str = "it combines the rows of the batch";

/// Returns the axes that a reduction removes.
fn reduced_axes(call: &RowCall<'_>, rank: usize) -> Result<Vec<usize>, RowCause> {
    if call.optional(1).is_some_and(|axes| !axes.is_constant()) {
        return meet("its axes depend on the rows");
    }
    let axes = call.axes(1)?.unwrap_or_default();
    if axes.is_empty() && call.node.int("noop_with_empty_axes", 0) == 0 {
        return Ok((0..rank).collect());
    }
    axes.into_iter().map(|at| normal(at, rank)).collect()
}

pub(super) fn reduce(call: &RowCall<'_>) -> Made {
    if call.input(0)?.rows == RowRelation::Count {
        return sizes::reduced(call);
    }
    let axes = reduced_axes(call, call.dims(0)?.len())?;
    without(call, &axes)
}

pub(super) fn arg_extreme(call: &RowCall<'_>) -> Made {
    let axis = call.axis(0, call.dims(0)?.len())?;
    without(call, &[axis])
}

fn without(call: &RowCall<'_>, axes: &[usize]) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    if input.axis().is_some_and(|rows| axes.contains(&rows.axis)) {
        return meet(ACROSS);
    }
    let keep = call.node.int("keepdims", 1) != 0;
    let mut shape = Vec::with_capacity(dims.len());
    let mut to = 0;
    for (at, dim) in dims.iter().enumerate() {
        if input.axis().is_some_and(|rows| rows.axis == at) {
            to = shape.len();
        }
        match axes.contains(&at) {
            true if keep => shape.push(Dim::known(1)),
            true => {}
            false => shape.push(dim.clone()),
        }
    }
    let rows = input.axis().map_or(RowRelation::Constant, |rows| RowRelation::Along(rows.at(to)));
    Ok(vec![RowValue::new(shape, rows)])
}

/// Softmax and its relatives. Before version 13 they combine all axes from theirs on.
pub(super) fn softmax(call: &RowCall<'_>) -> Made {
    softmax_of(call, call.opset)
}

/// Softmax as in a version of the standard operators.
pub(super) fn softmax_of(call: &RowCall<'_>, opset: i64) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let at = call.axis(if opset < 13 { 1 } else { -1 }, dims.len())?;
    let across = |axis: usize| if opset < 13 { axis >= at } else { axis == at };
    if input.axis().is_some_and(|rows| across(rows.axis)) {
        return meet(ACROSS);
    }
    call.like(dims, &input.rows)
}

/// Operators that combine one axis, given by an attribute, and keep the shape.
pub(super) fn along_axis(call: &RowCall<'_>, default: i64) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    call.constant_from(1)?;
    let at = call.axis(default, dims.len())?;
    if input.axis().is_some_and(|rows| rows.axis == at) {
        return meet(ACROSS);
    }
    call.like(dims, &input.rows)
}

/// Running sums and products, whose axis is an input.
pub(super) fn cumulative(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    call.constant_from(1)?;
    let at = match call.input(1)?.ints().as_deref() {
        Some([at]) => normal(*at, dims.len())?,
        _ => return unknown("its axis is computed"),
    };
    if input.axis().is_some_and(|rows| rows.axis == at) {
        return meet(ACROSS);
    }
    call.like(dims, &input.rows)
}

pub(super) fn top_k(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    if call.optional(1).is_some_and(|count| !count.is_constant()) {
        return meet("the rows decide how many elements it returns");
    }
    let at = call.axis(-1, dims.len())?;
    if input.axis().is_some_and(|rows| rows.axis == at) {
        return meet(ACROSS);
    }
    let attribute = call.node.attr("k").map(|_| Dim::known(call.node.int("k", 1)));
    let given = attribute.or_else(|| call.optional(1)?.data.as_ref()?.first().cloned());
    let mut shape = dims.to_vec();
    shape[at] = given.unwrap_or_else(|| call.fresh());
    call.like(&shape, &input.rows)
}

/// Operators on the last axes, of which `count` are combined.
pub(super) fn last_axes(call: &RowCall<'_>, count: usize) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    call.constant_from(1)?;
    if input.axis().is_some_and(|rows| rows.axis + count >= dims.len()) {
        return meet(ACROSS);
    }
    let shape = if call.op() == "Det" { &dims[..dims.len().saturating_sub(2)] } else { dims };
    call.like(shape, &input.rows)
}

/// The discrete Fourier transform along an axis. Its last axis holds real and imaginary part.
pub(super) fn fourier(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    let at = match call.optional(2).map(RowValue::ints) {
        Some(Some(ints)) if ints.len() == 1 => normal(ints[0], dims.len())?,
        Some(_) => return unknown("its axis is computed"),
        None => call.axis(if call.opset < 20 { 1 } else { -2 }, dims.len())?,
    };
    if rows.axis == at || rows.axis + 1 == dims.len() {
        return meet(ACROSS);
    }
    let mut shape = dims.to_vec();
    (shape[at], shape[dims.len() - 1]) = (call.fresh(), call.fresh());
    call.like(&shape, &RowRelation::Along(rows.clone()))
}
