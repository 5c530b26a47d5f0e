//! Normalisations.

use super::call::{Made, RowCall, broadcast, dims_of, meet, normal, unknown};
use super::value::{RowRelation, RowValue};
use crate::dim::Dim;

/// The reason why statistics of several rows end the proof.
const STATISTICS: &str = "its statistics are those of the whole batch";

pub(super) fn batch(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    let training = call.node.int("training_mode", 0) != 0 || call.node.int("spatial", 1) == 0;
    // Before version 14 more than one output means training.
    if training || (call.opset < 14 && call.node.output.iter().skip(1).any(|name| !name.is_empty())) {
        return meet(STATISTICS);
    }
    match rows.axis {
        1 => unknown("its rows stand along the channels"),
        _ => call.like(dims, &RowRelation::Along(rows.clone())),
    }
}

/// Normalisations of each element of the first dimension.
pub(super) fn instance(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    match rows.axis {
        0 => call.like(dims, &RowRelation::Along(rows.clone())),
        _ => meet(STATISTICS),
    }
}

/// Normalisations over the dimensions from an axis on.
pub(super) fn layer(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    let at = call.axis(-1, dims.len())?;
    let scales = call.inputs.iter().skip(1).flatten();
    if scales.map(dims_of).collect::<Result<Vec<_>, _>>()?.iter().any(|scale| scale.len() > dims.len() - at) {
        return unknown("its scale has more dimensions than it normalises");
    }
    if rows.axis >= at {
        return meet(STATISTICS);
    }
    let mut made = call.like(dims, &RowRelation::Along(rows.clone()))?;
    // Mean and deviation have one element for all that is normalised.
    let statistics: Vec<Dim> =
        (0..dims.len()).map(|axis| if axis < at { dims[axis].clone() } else { Dim::known(1) }).collect();
    for value in made.iter_mut().skip(1) {
        value.shape = Some(statistics.clone());
    }
    Ok(made)
}

/// A sum of two tensors and its normalisation over the last dimension.
pub(super) fn skip_layer(call: &RowCall<'_>) -> Made {
    call.constant_from(2)?;
    let (shape, rows) = broadcast(call, &[call.input(0)?, call.input(1)?])?;
    let RowRelation::Along(axis) = &rows else { return call.like(&shape, &rows) };
    if axis.axis + 1 >= shape.len() {
        return meet(STATISTICS);
    }
    // The second and third output are statistics.
    let mut made = call.like(&shape, &rows)?;
    for value in made.iter_mut().skip(1).take(2) {
        let mut statistics = shape.clone();
        statistics.pop();
        statistics.push(Dim::known(1));
        value.shape = Some(statistics);
    }
    Ok(made)
}

pub(super) fn mean_variance(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    let axes = call.node.ints("axes").unwrap_or(&[0, 2, 3]);
    let axes = axes.iter().map(|&at| normal(at, dims.len())).collect::<Result<Vec<_>, _>>()?;
    match axes.contains(&rows.axis) {
        true => meet(STATISTICS),
        false => call.like(dims, &RowRelation::Along(rows.clone())),
    }
}

/// Sums of embeddings and their normalisation: token, segment and position of `[batch, time]` ids.
pub(super) fn embedding(call: &RowCall<'_>) -> Made {
    let (ids, rows) = call.plain(0)?;
    if rows.axis != 0 || ids.len() != 2 {
        return meet(super::call::CROSSED);
    }
    let tables = [2, 3, 4, 5, 6].into_iter().filter_map(|at| call.optional(at));
    if tables.into_iter().any(|table| !table.is_constant()) {
        return unknown("its tables are computed");
    }
    for other in [1, 7, 8].into_iter().filter_map(|at| call.optional(at)) {
        let dims = dims_of(other)?;
        let single = other.is_constant() && dims.first().is_some_and(|dim| dim.is(1));
        if !single && other.axis() != Some(rows) || other.axis().is_some() && dims[0] != ids[0] {
            return meet(super::call::CROSSED);
        }
    }
    let width = call.dims(2)?.get(1).cloned().unwrap_or_else(|| call.fresh());
    let hidden = RowValue::new(vec![ids[0].clone(), ids[1].clone(), width], RowRelation::Along(rows.clone()));
    let lengths = RowValue::new(vec![ids[0].clone()], RowRelation::Along(rows.clone()));
    Ok(vec![hidden.clone(), lengths, hidden])
}
