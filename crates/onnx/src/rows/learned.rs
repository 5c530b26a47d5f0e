//! Operators of `ai.onnx.ml`: trees, linear models, encoders. They take `[rows, features]`; a list
//! `[features]` is one row.

use super::call::{BY_COUNT, FIXED, Made, RowCall, meet, unknown};
use super::value::{RowAxis, RowRelation, RowValue, around};
use crate::dim::{Dim, product};

/// Returns the rows of an input `[rows, features]`.
fn matrix<'a>(call: &'a RowCall<'_>) -> Result<(&'a [Dim], &'a RowAxis), super::call::RowCause> {
    let (dims, rows) = call.plain(0)?;
    match dims.len() == 2 && rows.axis == 0 {
        true => Ok((dims, rows)),
        false => meet("its features are rows of the batch"),
    }
}

/// Classifiers: a label and a score for each class.
pub(super) fn classifier(call: &RowCall<'_>) -> Made {
    let (dims, rows) = matrix(call)?;
    let along = RowRelation::Along(rows.clone());
    let labels = RowValue::new(vec![dims[0].clone()], along.clone());
    Ok(vec![labels, RowValue::new(vec![dims[0].clone(), call.fresh()], along)])
}

/// Regressors: numbers for each row.
pub(super) fn regressor(call: &RowCall<'_>) -> Made {
    let (dims, rows) = matrix(call)?;
    let targets = ["n_targets", "targets"].into_iter().find_map(|name| call.node.attr(name)?.i);
    let targets = match (targets, call.op()) {
        (Some(targets), _) => Dim::known(targets),
        (None, "TreeEnsemble") => call.fresh(),
        (None, _) => Dim::known(1),
    };
    call.like(&[dims[0].clone(), targets], &RowRelation::Along(rows.clone()))
}

/// Operators on features that keep the shape: scalers, imputers, normalizers.
pub(super) fn per_feature(call: &RowCall<'_>) -> Made {
    let (dims, rows) = matrix(call)?;
    call.like(dims, &RowRelation::Along(rows.clone()))
}

/// Operators on single elements.
pub(super) fn per_element(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.like(dims, &RowRelation::Along(rows.clone()))
}

pub(super) fn one_hot_encoder(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    let mut shape = dims.to_vec();
    let count = |name: &str| call.node.attr(name).map(|list| list.ints.len().max(list.strings.len()));
    let categories = count("cats_int64s").or_else(|| count("cats_strings"));
    shape.push(categories.map_or_else(|| call.fresh(), |count| Dim::known(count as i64)));
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Picks features, along the last axis. The result has at least two dimensions. Classifiers pick
/// the names of classes by the class of each row.
pub(super) fn feature_extractor(call: &RowCall<'_>) -> Made {
    if call.input(0)?.is_constant() {
        return class_names(call);
    }
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    if rows.axis + 1 >= dims.len() {
        return meet("its features are rows of the batch");
    }
    let mut shape = dims.to_vec();
    shape.pop();
    shape.push(match super::call::dims_of(call.input(1)?)? {
        [] => Dim::known(1),
        [one] => one.clone(),
        _ => call.fresh(),
    });
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// Joins features of several inputs.
pub(super) fn vectorizer(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    for (at, input) in call.inputs.iter().enumerate() {
        match input.as_ref().map(|input| (&input.rows, input.axis())) {
            Some((_, Some(axis))) if axis == rows && axis.axis == 0 && call.dims(at)?[0] == dims[0] => {}
            Some((RowRelation::Count, _)) => return meet(BY_COUNT),
            Some((_, Some(_))) => return unknown("its inputs hold rows in different order"),
            _ => return meet(FIXED),
        }
        if call.dims(at)?.len() != 2 {
            return meet("its features are rows of the batch");
        }
    }
    call.like(&[dims[0].clone(), call.fresh()], &RowRelation::Along(rows.clone()))
}

/// Picks from a constant list: the indices of all rows become one list along the last axis.
fn class_names(call: &RowCall<'_>) -> Made {
    let (indices, rows) = call.plain(1)?;
    let (Some((before, behind)), Some(count)) = (around(indices, rows), product(indices)) else {
        return unknown("its sizes are computed");
    };
    let dims = super::call::dims_of(call.input(0)?)?;
    let mut shape = if dims.len() < 2 { vec![Dim::known(1)] } else { dims[..dims.len() - 1].to_vec() };
    if !before.is(1) {
        return unknown("its indices hold rows side by side");
    }
    let axis = RowAxis::new(shape.len(), behind);
    shape.push(count);
    Ok(vec![RowValue::new(shape, RowRelation::Along(axis))])
}
