//! Resizes of images: along the rows, the scale must be 1.

use super::call::{Made, RowCall, RowCause, meet, normal, unknown};
use super::sizes::COMPUTED;
use super::value::{RowRelation, RowValue, has_batch};
use crate::dim::Dim;
use crate::weights;

pub(super) fn resize(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    if call.inputs.iter().skip(1).flatten().any(|input| input.axis().is_some()) {
        return meet("the rows decide its sizes");
    }
    if call.node.text("coordinate_transformation_mode") == "tf_crop_and_resize" {
        return unknown("it crops by a region");
    }
    let axes: Vec<usize> = match call.node.ints("axes") {
        Some(axes) => axes.iter().map(|&at| normal(at, dims.len())).collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect(),
    };
    if let Some(at) = axes.iter().position(|&at| at == rows.axis)
        && !keeps(call, at, &dims[rows.axis])
    {
        return unknown("whether it resizes along the batch is computed");
    }
    let mut shape = dims.to_vec();
    for (number, &at) in axes.iter().enumerate().filter(|(_, at)| **at != rows.axis) {
        shape[at] = resized(call, number, &dims[at])?;
    }
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Returns the input with the new sizes, if there is one.
fn new_sizes<'a>(call: &'a RowCall<'_>) -> Option<&'a RowValue> {
    call.optional(3).filter(|_| !is_old(call))
}

fn is_old(call: &RowCall<'_>) -> bool {
    call.op() == "Upsample" || call.opset < 11
}

/// Whether the dimension of this number keeps its size.
fn keeps(call: &RowCall<'_>, number: usize, size: &Dim) -> bool {
    match new_sizes(call) {
        Some(sizes) => {
            let same = sizes.data.as_ref().and_then(|sizes| sizes.get(number)) == Some(size);
            same && matches!(&*call.node.text("keep_aspect_ratio_policy"), "" | "stretch")
        }
        None => scales(call).and_then(|scales| scales.get(number).copied()) == Some(1.0),
    }
}

/// Returns the new size of the dimension of this number.
fn resized(call: &RowCall<'_>, number: usize, size: &Dim) -> Result<Dim, RowCause> {
    let Some(sizes) = new_sizes(call) else {
        let scale = scales(call).and_then(|scales| scales.get(number).copied());
        let whole = scale.filter(|scale| scale.fract() == 0.0 && (1.0..=1024.0).contains(scale));
        return Ok(whole.and_then(|scale| size.times(&Dim::known(scale as i64))).unwrap_or_else(|| call.fresh()));
    };
    match sizes.data.as_ref().and_then(|sizes| sizes.get(number)) {
        Some(new) if has_batch(new) => meet(COMPUTED),
        Some(new) if call.node.text("keep_aspect_ratio_policy").is_empty() => Ok(new.clone()),
        None if !sizes.is_constant() => meet(COMPUTED),
        _ => Ok(call.fresh()),
    }
}

/// Returns the scales, if the file gives them.
fn scales(call: &RowCall<'_>) -> Option<Vec<f32>> {
    let at = if is_old(call) { 1 } else { 2 };
    match call.node.attr("scales") {
        Some(attribute) => Some(attribute.floats.clone()),
        None => weights::float_elements(call.optional(at)?.weight.as_deref()?).filter(|scales| !scales.is_empty()),
    }
}
