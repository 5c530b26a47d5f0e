//! Operators that pick or place elements by index.
//!
//! Rows may be picked by index only where the index is each row's own position, as exporters write
//! `hidden[arange(batch), last_token]`.

use super::call::{BY_COUNT, BY_POSITION, CROSSED, FIXED, Made, RowCall, dims_of, meet, unknown};
use super::sizes::moved;
use super::value::{RowAxis, RowContent, RowRelation, RowValue};
use crate::dim::Dim;
use crate::shapes;

/// The reason why rows picked by index cannot be followed.
const PICKED: &str = "it picks rows of the batch by index";

pub(super) fn gather(call: &RowCall<'_>) -> Made {
    let (input, indices) = (call.input(0)?, call.input(1)?);
    let (dims, places) = (dims_of(input)?, dims_of(indices)?);
    let at = call.axis(0, dims.len())?;
    let shape = [&dims[..at], places, &dims[at + 1..]].concat();
    if indices.rows == RowRelation::Count && input.axis().is_some() {
        return meet(BY_COUNT);
    }
    match (input.axis(), indices.axis()) {
        (None, None) => {
            let count = input.rows == RowRelation::Count || indices.rows == RowRelation::Count;
            let data = gathered(input, indices);
            let rows = if count { RowRelation::Count } else { RowRelation::Constant };
            let unknown = RowValue::new(shape.clone(), rows);
            Ok(vec![data.map_or(unknown, |data| RowValue::of_data(shape, data))])
        }
        (Some(rows), None) if rows.axis == at => meet(PICKED),
        (Some(rows), None) => {
            let to = if rows.axis < at { rows.axis } else { rows.axis + places.len() - 1 };
            Ok(vec![RowValue::new(shape, RowRelation::Along(rows.at(to)))])
        }
        (None, Some(_)) if input.rows == RowRelation::Count => meet(BY_COUNT),
        (None, Some(rows)) if rows.content != RowContent::Plain => meet(BY_POSITION),
        (None, Some(rows)) => Ok(vec![RowValue::new(shape, RowRelation::Along(rows.at(at + rows.axis)))]),
        (Some(rows), Some(own)) if rows.axis == at && picks_own(rows, &dims[at], own) => Ok(vec![RowValue::new(
            shape,
            RowRelation::Along(RowAxis { content: RowContent::Plain, ..own.at(at + own.axis) }),
        )]),
        (Some(rows), Some(_)) if rows.axis == at => meet(PICKED),
        (Some(_), Some(_)) => meet(CROSSED),
    }
}

/// Whether indices along the axis of the rows pick elements of their own row only.
fn picks_own(rows: &RowAxis, size: &Dim, own: &RowAxis) -> bool {
    let RowContent::Positions { stride, extent } = &own.content else { return false };
    let fits = extent == stride || extent.value().zip(stride.value()).is_some_and(|(extent, stride)| extent <= stride);
    let outermost = size.over(&Dim::batch()).as_ref() == Some(&rows.inner);
    rows.content == RowContent::Plain && outermost && rows.inner == *stride && fits
}

/// Returns the elements that known indices pick from a list.
fn gathered(input: &RowValue, indices: &RowValue) -> Option<Vec<Dim>> {
    let (data, indices) = (input.data.as_ref().filter(|_| input.rank() == Some(1))?, indices.ints()?);
    indices.into_iter().map(|index| data.get(shapes::axis(index, data.len())?).cloned()).collect()
}

/// Picks along an axis that does not hold the rows: each row its own elements.
pub(super) fn gather_elements(call: &RowCall<'_>) -> Made {
    let (input, indices) = (call.input(0)?, call.input(1)?);
    let (dims, places) = (dims_of(input)?, dims_of(indices)?);
    let at = call.axis(0, dims.len())?;
    let done = |rows: &RowRelation| Ok(vec![RowValue::new(places.to_vec(), rows.clone())]);
    match (input.axis(), indices.axis()) {
        (None, None) => done(&RowRelation::Constant),
        (None, Some(rows)) if rows.axis == at => done(&indices.rows),
        (None, Some(_)) => meet(FIXED),
        (Some(_), None) => meet(FIXED),
        (Some(rows), Some(_)) if rows.axis == at => meet(PICKED),
        (Some(rows), Some(own)) if own.axis != rows.axis => meet(CROSSED),
        (Some(rows), Some(own)) if own.inner == rows.inner && dims[rows.axis] == places[own.axis] => {
            done(&indices.rows)
        }
        _ => unknown("its inputs hold rows in different order"),
    }
}

pub(super) fn gather_nd(call: &RowCall<'_>) -> Made {
    let (input, indices) = (call.input(0)?, call.input(1)?);
    let (dims, places) = (dims_of(input)?, dims_of(indices)?);
    let shared = call.node.int("batch_dims", 0).max(0) as usize;
    let Some((depth, outer)) = tuples(places) else { return unknown("the length of its tuples is computed") };
    if shared + depth > dims.len() || shared > outer.len() {
        return unknown("its tuples are longer than its input has dimensions");
    }
    let shape = [outer, &dims[shared + depth..]].concat();
    let done = |rows: RowAxis| Ok(vec![RowValue::new(shape.clone(), RowRelation::Along(rows))]);
    match (input.axis(), indices.axis()) {
        (None, None) => Ok(vec![RowValue::new(shape, RowRelation::Constant)]),
        (_, Some(own)) if own.axis >= outer.len() => meet(PICKED),
        (Some(rows), Some(_)) if rows.content != RowContent::Plain => meet(BY_POSITION),
        (None, Some(own)) if own.content != RowContent::Plain => meet(BY_POSITION),
        (None, Some(own)) if shared == 0 => done(own.clone()),
        (Some(rows), None) if rows.axis >= shared + depth => done(rows.at(outer.len() + rows.axis - shared - depth)),
        (Some(rows), Some(own)) if rows.axis < shared && own.content == RowContent::Plain => {
            match rows.axis == own.axis && rows.inner == own.inner && dims[rows.axis] == places[own.axis] {
                true => done(own.clone()),
                false => unknown("its inputs hold rows in different order"),
            }
        }
        (Some(rows), Some(own)) if shared == 0 && is_own(rows, dims, own, depth) => {
            done(RowAxis { content: RowContent::Plain, ..own.clone() })
        }
        _ => meet(PICKED),
    }
}

/// Returns the length of the tuples along the last axis, and the dimensions before it.
fn tuples(places: &[Dim]) -> Option<(usize, &[Dim])> {
    let (last, outer) = places.split_last()?;
    Some((usize::try_from(last.value()?).ok()?, outer))
}

/// Whether tuples begin with the position of their own row in a tensor whose first axis is the
/// batch.
fn is_own(rows: &RowAxis, dims: &[Dim], own: &RowAxis, depth: usize) -> bool {
    let positions = own.content == RowContent::Tuples || (own.content == RowContent::position() && depth == 1);
    rows.axis == 0 && dims[0].is_batch() && positions && rows.content == RowContent::Plain
}

pub(super) fn scatter_nd(call: &RowCall<'_>) -> Made {
    let (input, indices, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (dims, places) = (dims_of(input)?, dims_of(indices)?);
    let Some((depth, outer)) = tuples(places) else { return unknown("the length of its tuples is computed") };
    if updates.axis().is_some_and(|axis| axis.content != RowContent::Plain) {
        return meet(BY_POSITION);
    }
    let Some(rows) = input.axis().filter(|rows| rows.content == RowContent::Plain) else {
        return if call.given().all(RowValue::is_constant) {
            call.like(dims, &RowRelation::Constant)
        } else {
            meet(CROSSED)
        };
    };
    let expected = match indices.axis() {
        None if rows.axis >= depth => rows.at(outer.len() + rows.axis - depth),
        Some(own) if is_own(rows, dims, own, depth) => RowAxis { content: RowContent::Plain, ..own.clone() },
        _ => return meet("it writes to rows of the batch by index"),
    };
    match updates.axis() {
        Some(axis) if *axis == expected => call.like(dims, &input.rows),
        Some(axis) if axis.axis != expected.axis => meet(CROSSED),
        Some(_) => unknown("its inputs hold rows in different order"),
        None => meet(FIXED),
    }
}

pub(super) fn scatter_elements(call: &RowCall<'_>) -> Made {
    let dims = call.dims(0)?;
    let at = call.axis(0, dims.len())?;
    if call.given().all(RowValue::is_constant) {
        return call.like(dims, &RowRelation::Constant);
    }
    let Some(rows) = call.input(0)?.axis() else { return meet(CROSSED) };
    if rows.axis == at {
        return meet("it writes to rows of the batch by index");
    }
    for number in 1..3 {
        let other = call.input(number)?;
        match other.axis() {
            None => return meet(FIXED),
            Some(axis) if axis.axis != rows.axis => return meet(CROSSED),
            Some(axis) if axis == rows && dims_of(other)?[axis.axis] == dims[rows.axis] => {}
            Some(_) => return unknown("its inputs hold rows in different order"),
        }
    }
    call.like(dims, &call.input(0)?.rows)
}

pub(super) fn one_hot(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    call.constant_from(1)?;
    let at = call.axis(-1, dims.len() + 1)?;
    let depth = call.optional(1).and_then(|depth| depth.data.as_ref()?.first().cloned());
    let mut shape = dims.to_vec();
    shape.insert(at, depth.unwrap_or_else(|| call.fresh()));
    let to = |axis: usize| if axis >= at { axis + 1 } else { axis };
    let rows = input.axis().map_or(RowRelation::Constant, |axis| RowRelation::Along(axis.at(to(axis.axis))));
    Ok(vec![RowValue::new(shape, rows)])
}

pub(super) fn compress(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    if !call.input(1)?.is_constant() {
        return meet(BY_DATA);
    }
    let at = match call.node.attr("axis") {
        Some(_) => call.axis(0, dims.len())?,
        None => return meet(BY_DATA),
    };
    if input.axis().is_some_and(|axis| axis.axis == at) {
        return meet(PICKED);
    }
    let mut shape = dims.to_vec();
    shape[at] = call.fresh();
    Ok(vec![moved(input, shape, input.rows.clone(), None)])
}

/// The reason why shapes that values decide are no rows.
pub(super) const BY_DATA: &str = "the values of all rows decide the shape of its output";

pub(super) fn reverse_sequence(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    let batch = super::call::normal(call.node.int("batch_axis", 1), dims.len())?;
    let time = super::call::normal(call.node.int("time_axis", 0), dims.len())?;
    let lengths = call.input(1)?;
    match lengths.axis() {
        Some(own) if rows.axis == batch && own.inner == rows.inner && dims_of(lengths)?[0] == dims[batch] => {
            call.like(dims, &RowRelation::Along(rows.clone()))
        }
        None if rows.axis != batch && rows.axis != time => call.like(dims, &RowRelation::Along(rows.clone())),
        _ => meet(CROSSED),
    }
}
