//! Operators that give the same elements another shape or order.

use super::call::{CROSSED, FIXED, Made, RowCall, dims_of, meet, normal, unknown};
use super::sizes::{COMPUTED, filled, moved};
use super::value::{MAX_DATA, MAX_RANK, RowAxis, RowRelation, RowValue, around, has_batch};
use crate::dim::{Dim, product};

pub(super) fn transpose(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let rank = dims.len();
    let order: Vec<usize> = match call.node.ints("perm") {
        Some(order) => order.iter().map(|&at| normal(at, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank || (0..rank).any(|at| !order.contains(&at)) {
        return unknown("its permutation is not one of its dimensions");
    }
    let shape: Vec<Dim> = order.iter().map(|&at| dims[at].clone()).collect();
    let data = match (&input.data, dims.iter().map(Dim::value).collect::<Option<Vec<_>>>().as_deref(), &order[..]) {
        (Some(data), Some(&[rows, columns]), [1, 0]) => {
            let sizes = usize::try_from(rows).ok().zip(usize::try_from(columns).ok());
            let fits = |&(rows, columns): &(usize, usize)| rows.checked_mul(columns) == Some(data.len());
            sizes.filter(fits).map(|(rows, columns)| {
                let at = |number: usize| data[number % rows * columns + number / rows].clone();
                (0..data.len()).map(at).collect()
            })
        }
        (Some(data), _, _) if order.is_sorted() => Some(data.clone()),
        _ => None,
    };
    let to = |from: usize| order.iter().position(|&at| at == from).unwrap_or(from);
    let rows = with_axis(input, to);
    Ok(vec![moved(input, shape, rows, data)])
}

/// Returns the rows of a value with their axis moved.
fn with_axis(input: &RowValue, to: impl Fn(usize) -> usize) -> RowRelation {
    match input.axis() {
        Some(axis) => RowRelation::Along(axis.at(to(axis.axis))),
        None => input.rows.clone(),
    }
}

pub(super) fn unsqueeze(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let Some(axes) = call.axes(1)? else { return unknown("its axes are missing") };
    let rank = dims.len() + axes.len();
    if rank > MAX_RANK {
        return unknown("it has too many dimensions");
    }
    let new = axes.into_iter().map(|at| normal(at, rank)).collect::<Result<Vec<_>, _>>()?;
    let old: Vec<usize> = (0..rank).filter(|at| !new.contains(at)).collect();
    if old.len() != dims.len() {
        return unknown("its axes are not different");
    }
    let mut shape = vec![Dim::known(1); rank];
    for (&at, dim) in old.iter().zip(dims) {
        shape[at] = dim.clone();
    }
    Ok(vec![moved(input, shape, with_axis(input, |axis| old[axis]), input.data.clone())])
}

pub(super) fn squeeze(call: &RowCall<'_>) -> Made {
    let (input, dims) = (call.input(0)?, call.dims(0)?);
    let gone: Vec<usize> = match call.axes(1)? {
        Some(axes) => axes.into_iter().map(|at| normal(at, dims.len())).collect::<Result<_, _>>()?,
        None if input.axis().is_some() => return meet("it removes the batch dimension where it is 1"),
        None if dims.iter().any(|dim| dim.value().is_none()) => return unknown("it removes the dimensions that are 1"),
        None => (0..dims.len()).filter(|&at| dims[at].is(1)).collect(),
    };
    if input.axis().is_some_and(|axis| gone.contains(&axis.axis)) {
        return meet("it removes the batch dimension");
    }
    let left: Vec<usize> = (0..dims.len()).filter(|at| !gone.contains(at)).collect();
    let shape = left.iter().map(|&at| dims[at].clone()).collect();
    let rows = with_axis(input, |axis| left.iter().position(|&at| at == axis).unwrap_or(axis));
    Ok(vec![moved(input, shape, rows, input.data.clone())])
}

pub(super) fn flatten(call: &RowCall<'_>) -> Made {
    let dims = call.dims(0)?;
    let at = call.node.int("axis", 1);
    let at = if at == dims.len() as i64 { dims.len() } else { normal(at, dims.len())? };
    let sides = (product(&dims[..at]), product(&dims[at..]));
    let (Some(first), Some(second)) = sides else { return unknown("its sizes are too large") };
    shaped(call.input(0)?, vec![first, second])
}

pub(super) fn reshape(call: &RowCall<'_>) -> Made {
    let input = call.input(0)?;
    let target = match (call.node.ints("shape"), call.optional(1)) {
        (Some(shape), _) => shape.iter().map(|&size| Dim::known(size)).collect(),
        (None, Some(RowValue { data: Some(data), .. })) => data.clone(),
        (None, Some(target)) if target.axis().is_some() => return meet("its shape depends on the rows"),
        (None, Some(target)) if target.rows == RowRelation::Count => return meet(COMPUTED),
        (None, _) if input.is_constant() => return Ok(vec![RowValue::constant()]),
        _ => return unknown("its shape is computed"),
    };
    let dims = dims_of(input)?;
    let mut shape = Vec::with_capacity(target.len());
    for (at, size) in target.iter().enumerate() {
        shape.push(match size.value() {
            Some(0) if call.node.int("allowzero", 0) == 0 => match dims.get(at) {
                Some(dim) => dim.clone(),
                None => return unknown("it copies a dimension that is not there"),
            },
            _ => size.clone(),
        });
    }
    // A number below 0 stands for the rest.
    let Some(open) = shape.iter().position(|size| size.value().is_some_and(|size| size < 0)) else {
        return shaped(input, shape);
    };
    shape[open] = Dim::known(1);
    let rest = product(dims).zip(product(&shape)).and_then(|(all, others)| all.over(&others));
    match (rest, input.axis()) {
        (Some(rest), _) => shape[open] = rest,
        // The rest holds no rows if another dimension holds all of them.
        (None, Some(_)) if !shape.iter().any(has_batch) => return unknown("the size of the batch in it is computed"),
        (None, _) => shape[open] = call.fresh(),
    }
    shaped(input, shape)
}

/// Returns a tensor's elements in the same order in another shape.
fn shaped(input: &RowValue, shape: Vec<Dim>) -> Made {
    let Some(axis) = input.axis() else {
        return match shape.iter().any(has_batch) {
            true => unknown("it gives the size of the batch to what has no rows"),
            false => Ok(vec![moved(input, shape, input.rows.clone(), input.data.clone())]),
        };
    };
    let with: Vec<usize> = (0..shape.len()).filter(|&at| has_batch(&shape[at])).collect();
    let to = match with[..] {
        [] => return meet(FIXED),
        [to] => to,
        _ => return meet(CROSSED),
    };
    let (Some((before, behind)), Some(parts)) = (around(dims_of(input)?, axis), shape[to].over(&Dim::batch())) else {
        return unknown("the sizes around the batch are computed");
    };
    let outer = product(&shape[..to]).and_then(|above| before.over(&above));
    let inner = product(&shape[to + 1..]).and_then(|below| behind.over(&below));
    // As the number of elements stays, one side determines the other.
    let inner = match (outer, inner) {
        (Some(outer), _) => parts.over(&outer),
        (None, Some(inner)) => parts.over(&inner).map(|_| inner),
        (None, None) => None,
    };
    match inner {
        Some(inner) if !has_batch(&inner) => {
            let rows = RowAxis { axis: to, inner, content: axis.content.clone() };
            Ok(vec![RowValue::new(shape, RowRelation::Along(rows))])
        }
        _ => unknown("the elements of a row do not stay together"),
    }
}

pub(super) fn expand(call: &RowCall<'_>) -> Made {
    let (input, target) = (call.input(0)?, call.input(1)?);
    let Some(sizes) = &target.data else {
        return match (&input.rows, &target.rows) {
            (RowRelation::Constant, RowRelation::Constant) => Ok(vec![RowValue::constant()]),
            (_, RowRelation::Constant) => unknown("its shape is computed"),
            _ => meet(COMPUTED),
        };
    };
    if sizes.iter().any(|size| size.value().is_some_and(|size| size < 0)) {
        return unknown("its shape has a negative size");
    }
    // The rule for broadcasting holds, as with a tensor of the target's shape.
    let other = filled(sizes.clone())?;
    if input.rows == RowRelation::Count {
        return meet(super::call::BY_COUNT);
    }
    let other = match (input.axis(), other.axis()) {
        (Some(own), Some(axis)) => {
            RowValue::new(sizes.clone(), RowRelation::Along(RowAxis { inner: own.inner.clone(), ..axis.clone() }))
        }
        _ => other,
    };
    let (shape, rows) = super::call::broadcast(call, &[input, &other])?;
    let count = product(&shape).and_then(|count| count.value()).filter(|&count| count <= MAX_DATA as i64);
    let data = match (&input.data, count) {
        (Some(data), Some(count)) if data.len() == 1 => Some(vec![data[0].clone(); count.max(0) as usize]),
        (Some(data), Some(count)) if data.len() as i64 == count => Some(data.clone()),
        _ => None,
    };
    let value = RowValue::new(shape, rows);
    Ok(vec![if value.is_constant() { RowValue { data, ..value } } else { value }])
}

pub(super) fn tile(call: &RowCall<'_>) -> Made {
    let (input, repeats) = (call.input(0)?, call.input(1)?);
    if call.opset < 6 {
        return unknown("it repeats along one axis, as in old versions");
    }
    let Some(repeats) = &repeats.data else {
        return match (&input.rows, &repeats.rows) {
            (RowRelation::Constant, RowRelation::Constant) => Ok(vec![RowValue::constant()]),
            (_, RowRelation::Constant) => unknown("the number of its repeats is computed"),
            _ => meet(COMPUTED),
        };
    };
    let dims = dims_of(input)?;
    let times = |(at, dim): (usize, &Dim)| repeats.get(at).and_then(|times| dim.times(times));
    let Some(shape) = dims.iter().enumerate().map(times).collect::<Option<Vec<_>>>() else {
        return unknown("its sizes are computed");
    };
    let counted: Vec<usize> = (0..repeats.len()).filter(|&at| has_batch(&repeats[at])).collect();
    match (&input.rows, &counted[..]) {
        (RowRelation::Along(rows), []) => Ok(vec![RowValue::new(shape, RowRelation::Along(rows.clone()))]),
        (RowRelation::Constant, []) => Ok(vec![RowValue::new(shape, RowRelation::Constant)]),
        // Each row gets the whole, side by side.
        (RowRelation::Constant, &[at]) if repeats[at].is_batch() => {
            let rows = RowAxis::new(at, dims[at].clone());
            Ok(vec![RowValue::new(shape, RowRelation::Along(rows))])
        }
        (RowRelation::Count, _) => meet(super::call::BY_COUNT),
        _ => meet(CROSSED),
    }
}
