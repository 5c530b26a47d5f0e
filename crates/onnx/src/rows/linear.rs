//! Products of matrices and sums of products.

use super::call::{CROSSED, FIXED, Made, RowCall, RowCause, broadcast, dims_of, meet, unknown};
use super::value::{RowAxis, RowRelation, RowValue, has_batch};
use crate::dim::Dim;
use std::collections::BTreeMap;

/// The reason why a product that sums over the rows ends the proof.
const CONTRACTED: &str = "it sums over the rows of the batch";

pub(super) fn matmul(call: &RowCall<'_>) -> Made {
    Ok(vec![product(call, call.input(0)?, call.input(1)?)?])
}

/// A product of which both factors may be turned.
pub(super) fn fused_matmul(call: &RowCall<'_>) -> Made {
    if call.node.int("transBatchA", 0) != 0 || call.node.int("transBatchB", 0) != 0 {
        return unknown("it moves its first dimension");
    }
    let side = |at: usize, name: &str| turned(call.input(at)?, call.node.int(name, 0) != 0);
    Ok(vec![product(call, &side(0, "transA")?, &side(1, "transB")?)?])
}

/// Returns a value with its last two dimensions exchanged.
fn turned(value: &RowValue, turn: bool) -> Result<RowValue, RowCause> {
    let mut value = RowValue { data: None, ..value.clone() };
    let rank = dims_of(&value)?.len();
    if !turn || rank < 2 {
        return Ok(value);
    }
    value.shape.iter_mut().for_each(|shape| shape.swap(rank - 2, rank - 1));
    if let RowRelation::Along(rows) = &mut value.rows {
        rows.axis = match rows.axis {
            axis if axis == rank - 1 => rank - 2,
            axis if axis == rank - 2 => rank - 1,
            axis => axis,
        };
    }
    Ok(value)
}

/// Returns the product of two tensors of matrices.
pub(super) fn product(call: &RowCall<'_>, a: &RowValue, b: &RowValue) -> Result<RowValue, RowCause> {
    let (left, right) = (as_matrix(a, 0)?, as_matrix(b, 1)?);
    let (rank_a, rank_b) = (dims_of(&left)?.len(), dims_of(&right)?.len());
    let from_back = |value: &RowValue, rank: usize| value.axis().map(|axis| rank - axis.axis);
    let (at_a, at_b) = (from_back(&left, rank_a), from_back(&right, rank_b));
    if at_a == Some(1) || at_b == Some(2) {
        return meet(CONTRACTED);
    }
    if (at_a == Some(2) || at_b == Some(1)) && at_a.is_some() && at_b.is_some() {
        return meet(CROSSED);
    }
    // The rule for broadcasting holds with the matrices' own dimensions apart.
    let (rows, columns) = (dims_of(&left)?[rank_a - 2].clone(), dims_of(&right)?[rank_b - 1].clone());
    let (one_a, one_b) = (pattern(&left, Some(rows), None), pattern(&right, None, Some(columns)));
    let (mut shape, mut found) = broadcast(call, &[&one_a, &one_b])?;
    let rank = shape.len();
    // A vector is a matrix of one row or column, which the result does not have.
    for (vector, at) in [(dims_of(b)?.len() == 1, rank - 1), (dims_of(a)?.len() == 1, rank - 2)] {
        if vector {
            shape.remove(at);
            if let RowRelation::Along(rows) = &mut found
                && rows.axis > at
            {
                rows.axis -= 1;
            }
        }
    }
    Ok(RowValue::new(shape, found))
}

/// Returns a vector as a matrix; `side` is 0 for the first factor.
fn as_matrix(value: &RowValue, side: usize) -> Result<RowValue, RowCause> {
    let dims = dims_of(value)?;
    match (dims, side) {
        ([], _) => unknown("a factor is a scalar"),
        ([one], 0) => {
            let rows = value.axis().map_or(value.rows.clone(), |axis| RowRelation::Along(axis.at(1)));
            Ok(RowValue::new(vec![Dim::known(1), one.clone()], rows))
        }
        ([one], _) => Ok(RowValue::new(vec![one.clone(), Dim::known(1)], value.rows.clone())),
        _ => Ok(RowValue::new(dims.to_vec(), value.rows.clone())),
    }
}

/// Returns a factor as it broadcasts: its dimensions of the result, and 1 where it has none.
fn pattern(value: &RowValue, rows: Option<Dim>, columns: Option<Dim>) -> RowValue {
    let mut pattern = value.clone();
    if let Some([.., last_but_one, last]) = pattern.shape.as_deref_mut() {
        *last_but_one = rows.unwrap_or(Dim::known(1));
        *last = columns.unwrap_or(Dim::known(1));
    }
    pattern
}

pub(super) fn gemm(call: &RowCall<'_>) -> Made {
    let side = |at: usize, name: &str| turned(call.input(at)?, call.node.int(name, 0) != 0);
    let (a, b) = (side(0, "transA")?, side(1, "transB")?);
    let made = product(call, &a, &b)?;
    let Some(added) = call.optional(2) else { return Ok(vec![made]) };
    let (shape, rows) = broadcast(call, &[&made, added])?;
    Ok(vec![RowValue::new(shape, rows)])
}

/// Products whose operands after the first are weights, with `width` elements for each element of
/// the other dimensions.
pub(super) fn weighted(call: &RowCall<'_>, width: Dim) -> Made {
    let (dims, rows) = call.plain(0)?;
    call.constant_from(1)?;
    if rows.axis + 1 == dims.len() {
        return meet(CONTRACTED);
    }
    let mut shape = dims.to_vec();
    shape.pop();
    shape.push(width);
    call.like(&shape, &RowRelation::Along(rows.clone()))
}

/// A sum of products with an explicit output and without an ellipsis.
pub(super) fn einsum(call: &RowCall<'_>) -> Made {
    let equation = call.node.text("equation").replace(' ', "");
    let Some((inputs, output)) = equation.split_once("->").filter(|_| !equation.contains('.')) else {
        return unknown("its equation has an ellipsis or no output");
    };
    let mut sizes: BTreeMap<char, Dim> = BTreeMap::new();
    let mut along: Option<(char, RowAxis, Dim)> = None;
    let terms: Vec<Vec<char>> = inputs.split(',').map(|term| term.chars().collect()).collect();
    for (at, letters) in terms.iter().enumerate() {
        let (input, dims) = (call.input(at)?, call.dims(at)?);
        if letters.len() != dims.len() {
            return unknown("its equation does not fit its inputs");
        }
        if let Some(axis) = input.axis() {
            let own = (letters[axis.axis], axis.clone(), dims[axis.axis].clone());
            match &along {
                Some((letter, ..)) if *letter != own.0 => return meet(CROSSED),
                Some((_, known, size)) if known.inner != axis.inner || *size != own.2 => {
                    return unknown("its inputs hold rows in different order");
                }
                _ => along = Some(own),
            }
        }
        for (&letter, dim) in letters.iter().zip(dims) {
            let known = sizes.entry(letter).or_insert_with(|| dim.clone());
            if known.is(1) {
                known.clone_from(dim);
            }
        }
    }
    let shape = output.chars().map(|letter| sizes.get(&letter).cloned()).collect::<Option<Vec<_>>>();
    let Some(shape) = shape else { return unknown("its equation does not fit its inputs") };
    let Some((letter, axis, _)) = along else { return Ok(vec![RowValue::new(shape, RowRelation::Constant)]) };
    let place = output.chars().position(|one| one == letter);
    let Some(place) = place else { return meet(CONTRACTED) };
    for (at, letters) in terms.iter().enumerate() {
        let count = letters.iter().filter(|&&one| one == letter).count();
        match call.input(at)?.axis() {
            Some(_) if count > 1 => return meet(CROSSED),
            None if count > 0 => return meet(FIXED),
            _ => {}
        }
    }
    if shape.iter().enumerate().any(|(at, dim)| at != place && has_batch(dim)) {
        return meet(CROSSED);
    }
    Ok(vec![RowValue::new(shape, RowRelation::Along(axis.at(place)))])
}
