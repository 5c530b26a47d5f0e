//! Operators that join tensors, and that cut, pad or repeat them along an axis.

use super::call::{CROSSED, FIXED, Made, RowCall, RowCause, clipped, dims_of, meet, normal, unknown};
use super::sizes::{COMPUTED, moved};
use super::value::{RowAxis, RowContent, RowRelation, RowValue, has_batch};
use crate::dim::Dim;

/// The reason why parts of the batch axis cannot be followed.
const PARTS: &str = "it takes some rows of the batch";

pub(super) fn concat(call: &RowCall<'_>) -> Made {
    let inputs: Vec<&RowValue> = call.given().collect();
    let first = dims_of(call.input(0)?)?;
    let at = match call.node.attr("axis") {
        Some(_) => call.axis(0, first.len())?,
        None => return unknown("its axis is missing"),
    };
    let shapes = inputs.iter().map(|input| dims_of(input)).collect::<Result<Vec<_>, _>>()?;
    if shapes.iter().any(|shape| shape.len() != first.len()) {
        return unknown("its inputs have different numbers of dimensions");
    }
    let sum = shapes.iter().try_fold(Dim::known(0), |sum, shape| sum.plus(&shape[at]));
    let mut shape = first.to_vec();
    for (dim, number) in shape.iter_mut().zip(0..).filter(|(_, number)| *number != at) {
        let known = shapes.iter().map(|shape| &shape[number]).find(|dim| dim.value().is_some());
        known.into_iter().for_each(|known| dim.clone_from(known));
    }
    shape[at] = sum.unwrap_or_else(|| call.fresh());
    let Some(rows) = joined_rows(&inputs, &shapes, at)? else {
        let lists = inputs.iter().map(|input| input.data.as_deref()).collect::<Option<Vec<_>>>();
        let data = lists.filter(|_| first.len() == 1).map(|lists| lists.concat());
        let count = inputs.iter().any(|input| input.rows == RowRelation::Count);
        let rows = if count { RowRelation::Count } else { RowRelation::Constant };
        return Ok(vec![match data {
            Some(data) => RowValue::of_data(shape, data),
            None => RowValue::new(shape, rows),
        }]);
    };
    shape[rows.axis] = shapes
        .iter()
        .zip(&inputs)
        .find(|(_, input)| input.axis().is_some())
        .map_or_else(|| shape[rows.axis].clone(), |(dims, _)| dims[rows.axis].clone());
    Ok(vec![RowValue::new(shape, RowRelation::Along(rows))])
}

/// Returns the row axis of joined tensors; `None` if none of them has rows.
fn joined_rows(inputs: &[&RowValue], shapes: &[&[Dim]], at: usize) -> Result<Option<RowAxis>, RowCause> {
    let Some((first, size)) = inputs.iter().zip(shapes).find_map(|(input, shape)| {
        let axis = input.axis()?;
        Some((axis, &shape[axis.axis]))
    }) else {
        return Ok(None);
    };
    if first.axis == at {
        return meet("it appends to the batch");
    }
    for (input, shape) in inputs.iter().zip(shapes) {
        match input.axis() {
            Some(axis) if axis.axis != first.axis => return meet(CROSSED),
            Some(axis) if axis.inner != first.inner || shape[axis.axis] != *size => {
                return unknown("its inputs hold rows in different order");
            }
            Some(_) => {}
            None => return meet(FIXED),
        }
    }
    let contents: Vec<RowContent> =
        inputs.iter().filter_map(|input| input.axis()).map(|axis| axis.content.clone()).collect();
    let content = match &contents[..] {
        contents if contents.iter().all(|content| *content == RowContent::Plain) => RowContent::Plain,
        // A tuple along the last axis whose first element is the row's position.
        [first, rest @ ..]
            if *first == RowContent::position()
                && at + 1 == shapes[0].len()
                && shapes[0][at].is(1)
                && rest.iter().all(|one| *one == RowContent::Plain) =>
        {
            RowContent::Tuples
        }
        _ => return meet(super::call::BY_POSITION),
    };
    Ok(Some(RowAxis { content, ..first.clone() }))
}

pub(super) fn split(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let at = call.axis(0, dims.len())?;
    if input.axis().is_some_and(|axis| axis.axis == at) {
        return meet(PARTS);
    }
    let count = call.node.output.len();
    let given = match (call.node.ints("split"), call.optional(1)) {
        (Some(sizes), _) => Some(sizes.iter().map(|&size| Dim::known(size)).collect()),
        (None, Some(RowValue { data: Some(data), .. })) => Some(data.clone()),
        (None, Some(sizes)) if !sizes.is_constant() => return meet(COMPUTED),
        _ => None,
    };
    let equal = || {
        let part = dims[at].over(&Dim::known(count as i64));
        let part = part.filter(|_| call.optional(1).is_none());
        (0..count).map(|_| part.clone().unwrap_or_else(|| call.fresh())).collect::<Vec<_>>()
    };
    let sizes: Vec<Dim> = given.unwrap_or_else(equal);
    if sizes.len() != count || sizes.iter().any(has_batch) {
        return meet(COMPUTED);
    }
    let mut start = Some(0);
    let part = |size: Dim| {
        let mut shape = dims.to_vec();
        shape[at] = size.clone();
        let size = size.value().and_then(|size| usize::try_from(size).ok());
        let range = start.zip(size).and_then(|(start, size): (usize, usize)| Some(start..start.checked_add(size)?));
        start = range.as_ref().map(|range| range.end);
        let data = range.and_then(|range| Some(input.data.as_ref()?.get(range)?.to_vec()));
        moved(input, shape, input.rows.clone(), data.filter(|_| dims.len() == 1))
    };
    Ok(sizes.into_iter().map(part).collect())
}

/// A range of a dimension.
struct SliceRange {
    axis: usize,
    start: Option<Dim>,
    end: Option<Dim>,
    step: Option<i64>,
}

pub(super) fn slice(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let (mut shape, mut data) = (dims.to_vec(), input.data.clone());
    for range in ranges(call, dims.len())? {
        let SliceRange { axis, start, end, .. } = &range;
        let size = &dims[*axis];
        let whole = is_whole(&range, size);
        if input.axis().is_some_and(|rows| rows.axis == *axis) {
            if whole {
                continue;
            }
            return meet(PARTS);
        }
        if start.iter().chain(end).any(has_batch) {
            return meet(COMPUTED);
        }
        shape[*axis] = if whole { size.clone() } else { range_size(&range, size).unwrap_or_else(|| call.fresh()) };
        data = if whole { data } else { picked(data, dims, &range) };
    }
    Ok(vec![moved(input, shape, input.rows.clone(), data)])
}

fn ranges(call: &RowCall<'_>, rank: usize) -> Result<Vec<SliceRange>, RowCause> {
    if call.inputs.iter().skip(1).flatten().any(|input| input.axis().is_some()) {
        return meet("what it cuts off depends on the rows");
    }
    let old = call.node.attr("starts").is_some();
    let list = |name: &str, at: usize| -> Option<Vec<Dim>> {
        match old {
            true => Some(call.node.ints(name)?.iter().map(|&int| Dim::known(int)).collect()),
            false => call.optional(at)?.data.clone(),
        }
    };
    if call.inputs.iter().skip(1).flatten().any(|input| input.rows == RowRelation::Count && input.data.is_none()) {
        return meet(COMPUTED);
    }
    let (starts, ends) = (list("starts", 1), list("ends", 2));
    let count = match (&starts, call.optional(1).and_then(|starts| starts.shape.as_deref())) {
        (Some(starts), _) => starts.len(),
        (None, Some([count])) if count.value().is_some() => count.value().unwrap_or(0).clamp(0, rank as i64) as usize,
        _ => return unknown("its ranges are computed"),
    };
    let axes = match (call.node.ints("axes").filter(|_| old), call.optional(3)) {
        (Some(axes), _) => axes.to_vec(),
        (None, Some(axes)) => match axes.ints() {
            Some(axes) => axes,
            None => return unknown("its axes are computed"),
        },
        (None, None) => (0..count as i64).collect(),
    };
    if axes.len() != count {
        return unknown("it has another number of axes than of ranges");
    }
    let steps =
        call.optional(4).map(|steps| steps.data.as_ref().map(|steps| steps.iter().map(Dim::value).collect::<Vec<_>>()));
    let step = |number: usize| match &steps {
        None => Some(1),
        Some(steps) => steps.as_ref()?.get(number).copied()?,
    };
    let of = |list: &Option<Vec<Dim>>, number: usize| list.as_ref()?.get(number).cloned();
    let range = |(number, at): (usize, i64)| {
        Ok(SliceRange {
            axis: normal(at, rank)?,
            start: of(&starts, number),
            end: of(&ends, number),
            step: step(number),
        })
    };
    axes.into_iter().enumerate().map(range).collect()
}

/// Whether a range is known to be the whole dimension, in order.
fn is_whole(range: &SliceRange, size: &Dim) -> bool {
    let far = |end: &Dim| end.value().is_some_and(|end| end >= i64::from(i32::MAX)) || end == size;
    range.step == Some(1)
        && range.start.as_ref().is_some_and(|start| start.is(0))
        && range.end.as_ref().is_some_and(far)
}

/// Returns the number of elements in a range, if it is known.
fn range_size(range: &SliceRange, size: &Dim) -> Option<Dim> {
    let from_start = range.step == Some(1) && range.start.as_ref().is_some_and(|start| start.is(0));
    if let Some(end) = range.end.as_ref().filter(|end| from_start && end.value().is_none() && end.is_size()) {
        return clipped(end, size);
    }
    bounds(range, size.value()?).map(|(start, end, step)| Dim::known(steps(start, end, step)))
}

/// Returns start, end and step within a dimension of known size.
fn bounds(range: &SliceRange, size: i64) -> Option<(i64, i64, i64)> {
    let (start, end, step) = (range.start.as_ref()?.value()?, range.end.as_ref()?.value()?, range.step?);
    let place = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    match step {
        1.. => Some((place(start).clamp(0, size), place(end).clamp(0, size), step)),
        0 => None,
        _ => Some((place(start).clamp(-1, size - 1), place(end).clamp(-1, size - 1), step)),
    }
}

fn steps(start: i64, end: i64, step: i64) -> i64 {
    let span = if step > 0 { end - start } else { start - end }.max(0) as u64;
    span.div_ceil(step.unsigned_abs()) as i64
}

/// Returns the elements of a range of the first dimension.
fn picked(data: Option<Vec<Dim>>, dims: &[Dim], range: &SliceRange) -> Option<Vec<Dim>> {
    let (data, size) = (data?, dims.first()?.value().filter(|&size| size > 0 && range.axis == 0)?);
    let count = usize::try_from(size).ok().filter(|&count| count <= data.len())?;
    let width = data.len() / count;
    let (start, end, step) = bounds(range, size)?;
    let mut picked = Vec::new();
    for number in 0..steps(start, end, step) {
        let at = usize::try_from(start + number * step).ok()?;
        picked.extend_from_slice(data.get(at * width..(at + 1) * width)?);
    }
    Some(picked)
}

pub(super) fn pad(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    call.constant_from(2)?;
    let given = call.node.ints("pads").or(call.node.ints("paddings"));
    let pads: Vec<Dim> = match (given, call.optional(1)) {
        (Some(pads), _) => pads.iter().map(|&pad| Dim::known(pad)).collect(),
        (None, Some(RowValue { data: Some(data), .. })) => data.clone(),
        (None, Some(pads)) if !pads.is_constant() => return meet("its padding depends on the rows"),
        _ => return unknown("its padding is computed"),
    };
    let axes: Vec<i64> = match call.optional(3) {
        Some(axes) => match axes.ints() {
            Some(axes) => axes,
            None => return unknown("its axes are computed"),
        },
        None => (0..dims.len() as i64).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return unknown("it has another number of axes than of paddings");
    }
    let mut shape = dims.to_vec();
    for (number, &at) in axes.iter().enumerate() {
        let at = normal(at, dims.len())?;
        let (before, after) = (&pads[number], &pads[axes.len() + number]);
        if before.is(0) && after.is(0) {
            continue;
        }
        if input.axis().is_some_and(|rows| rows.axis == at) {
            return meet("it pads the batch");
        }
        if has_batch(before) || has_batch(after) {
            return meet(COMPUTED);
        }
        let more = before.plus(after).and_then(|more| dims[at].plus(&more));
        shape[at] = more.unwrap_or_else(|| call.fresh());
    }
    if input.rows == RowRelation::Count {
        return meet(super::call::BY_COUNT);
    }
    Ok(vec![RowValue::new(shape, input.rows.clone())])
}
