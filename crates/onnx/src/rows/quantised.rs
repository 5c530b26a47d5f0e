//! Operators on quantised numbers. Scales and zero points are constants of the model, except in
//! dynamic quantisation, which takes one scale from all rows of the batch.

use super::call::{Made, RowCall, RowCause, broadcast, dims_of, meet, normal, unknown};
use super::linear;
use super::value::{RowRelation, RowValue};

pub(super) fn dynamic(call: &RowCall<'_>) -> Made {
    if call.given().all(RowValue::is_constant) {
        return unknown("its inputs are constants");
    }
    meet("it takes one scale from all rows of the batch")
}

/// `QuantizeLinear` and `DequantizeLinear`.
pub(super) fn linear_scale(call: &RowCall<'_>) -> Made {
    if call.given().all(RowValue::is_constant) {
        return call.like(call.dims(0)?, &RowRelation::Constant);
    }
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    let scale = call.input(1)?;
    let size = dims_of(scale)?;
    if !scale.is_single() && !size.is_empty() {
        if size.len() > 1 {
            return unknown("it has a scale for each block");
        }
        if normal(call.node.int("axis", 1), dims.len())? == rows.axis {
            return meet(super::call::FIXED);
        }
    }
    call.like(dims, &RowRelation::Along(rows.clone()))
}

/// Requires that all inputs but `values` are constants of one element or of one dimension.
fn scales(call: &RowCall<'_>, values: &[usize]) -> Result<(), RowCause> {
    for at in (0..call.inputs.len()).filter(|at| !values.contains(at)) {
        let Some(input) = call.optional(at) else { continue };
        if !input.is_constant() {
            return meet("its scales are computed from rows");
        }
        if dims_of(input)?.len() > 1 {
            return unknown("it has a scale for each block");
        }
    }
    Ok(())
}

fn single(call: &RowCall<'_>, at: usize) -> Result<(), RowCause> {
    match call.optional(at) {
        Some(scale) if !scale.is_single() => unknown("it has several scales for the rows' values"),
        _ => Ok(()),
    }
}

/// Elementwise operators whose quantised operands are the inputs `values`.
pub(super) fn elementwise(call: &RowCall<'_>, values: &[usize]) -> Made {
    scales(call, values)?;
    for at in (0..call.inputs.len()).filter(|at| !values.contains(at)) {
        single(call, at)?;
    }
    let operands = values.iter().map(|&at| call.input(at)).collect::<Result<Vec<_>, _>>()?;
    let (shape, rows) = broadcast(call, &operands)?;
    Ok(vec![RowValue::new(shape, rows)])
}

/// `QLinearSoftmax`: the axis counts as in the version that an attribute names.
pub(super) fn softmax(call: &RowCall<'_>) -> Made {
    call.constant_from(1)?;
    super::reduce::softmax_of(call, call.node.int("opset", 12))
}

/// `QLinearConcat`: a scale and a zero point, then three inputs for each tensor that is joined.
pub(super) fn concat(call: &RowCall<'_>) -> Made {
    let is_value = |at: &usize| *at >= 2 && (at - 2).is_multiple_of(3);
    if (0..call.inputs.len())
        .filter(|at| !is_value(at))
        .filter_map(|at| call.optional(at))
        .any(|scale| !scale.is_constant())
    {
        return meet("its scales are computed from rows");
    }
    let inputs = (0..call.inputs.len()).filter(is_value).map(|at| call.inputs[at].clone()).collect();
    super::pieces::concat(&RowCall { inputs, ..*call })
}

/// Products of two matrices at these inputs. The scales of the first are at `single_at`: it has
/// one. The scales of the second belong to its columns.
pub(super) fn product(call: &RowCall<'_>, [a, b]: [usize; 2], single_at: &[usize]) -> Made {
    scales(call, &[a, b])?;
    let has_rows = call.input(b)?.axis().is_some();
    for at in (0..call.inputs.len()).filter(|&at| at != a && at != b) {
        if has_rows || single_at.contains(&at) {
            single(call, at)?;
        }
    }
    Ok(vec![linear::product(call, call.input(a)?, call.input(b)?)?])
}
