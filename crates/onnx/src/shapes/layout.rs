//! Operators that move elements.

use super::elementwise::broadcast;
use super::{InferredTensor, OpCall, axis};
use crate::dim::{Dim, product};

/// Returns the input's known elements, if the new shape has at most one dimension.
fn kept(call: &OpCall<'_>, shape: &[Dim]) -> Option<Vec<Dim>> {
    call.input(0)?.data.clone().filter(|_| shape.len() <= 1)
}

fn reshaped(call: &OpCall<'_>, shape: Vec<Dim>) -> Option<Vec<InferredTensor>> {
    let data = kept(call, &shape);
    Some(vec![InferredTensor { elem: call.input(0)?.elem, shape, data }])
}

pub(super) fn reshape(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, wanted) = (call.input(0)?, call.input(1)?);
    let Some(wanted) = &wanted.data else {
        let rank = usize::try_from(wanted.shape.first()?.value()?).ok().filter(|&rank| rank <= 16)?;
        return reshaped(call, (0..rank).map(|axis| call.unknown(axis)).collect());
    };
    let zero_keeps = call.node.int("allowzero", 0) == 0;
    let mut shape = Vec::with_capacity(wanted.len());
    for (at, size) in wanted.iter().enumerate() {
        match size.value() {
            Some(0) if zero_keeps => shape.push(Some(input.shape.get(at)?.clone())),
            Some(-1) => shape.push(None),
            Some(size) if size < -1 => return None,
            _ => shape.push(Some(size.clone())),
        }
    }
    let open: Vec<usize> = (0..shape.len()).filter(|&at| shape[at].is_none()).collect();
    if open.len() > 1 {
        return None;
    }
    let rest = product(shape.iter().flatten());
    let open_size = || product(&input.shape)?.over(&rest?);
    let size = open.first().map(|&at| open_size().unwrap_or_else(|| call.unknown(at)));
    let shape = shape.into_iter().map(|dim| dim.or_else(|| size.clone())).collect::<Option<_>>()?;
    reshaped(call, shape)
}

pub(super) fn flatten(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let (at, rank) = (call.node.int("axis", 1), input.shape.len());
    let at = if at == rank as i64 { rank } else { axis(at, rank)? };
    let side = |dims: &[Dim], number: usize| product(dims).unwrap_or_else(|| call.unknown(number));
    InferredTensor::one(input.elem, vec![side(&input.shape[..at], 0), side(&input.shape[at..], 1)])
}

pub(super) fn transpose(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let rank = input.shape.len();
    let order = match call.node.ints("perm") {
        Some(order) if order.len() == rank => order.to_vec(),
        Some(_) => return None,
        None => (0..rank as i64).rev().collect(),
    };
    let shape = order.into_iter().map(|at| axis(at, rank).map(|at| input.shape[at].clone()));
    reshaped(call, shape.collect::<Option<_>>()?)
}

pub(super) fn squeeze(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let rank = input.shape.len();
    let named = call.node.ints("axes").is_some() || call.has(1);
    let gone: Vec<usize> = match named {
        true => call.axes(1)?.into_iter().map(|at| axis(at, rank)).collect::<Option<_>>()?,
        false => (0..rank).filter(|&at| input.shape[at].is(1)).collect(),
    };
    let left = input.shape.iter().enumerate().filter(|(at, _)| !gone.contains(at));
    reshaped(call, left.map(|(_, dim)| dim.clone()).collect())
}

pub(super) fn unsqueeze(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, axes) = (call.input(0)?, call.axes(1)?);
    let rank = input.shape.len().checked_add(axes.len()).filter(|&rank| rank <= 16)?;
    let new = axes.into_iter().map(|at| axis(at, rank)).collect::<Option<Vec<_>>>()?;
    let mut old = input.shape.iter();
    let dim = |at: usize| if new.contains(&at) { Some(Dim::known(1)) } else { old.next().cloned() };
    let shape = (0..rank).map(dim).collect::<Option<_>>()?;
    reshaped(call, shape)
}

pub(super) fn concat(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let first = call.input(0)?;
    let at = axis(call.node.int("axis", 0), first.shape.len())?;
    let (mut shape, mut sum, mut data) = (first.shape.clone(), Dim::known(0), Some(Vec::new()));
    for input in &call.inputs {
        let input = (*input)?;
        sum = sum.plus(input.shape.get(at)?).unwrap_or_else(|| call.unknown(at));
        for (dim, other) in shape.iter_mut().zip(&input.shape) {
            if dim.value().is_none() && other.value().is_some() {
                dim.clone_from(other);
            }
        }
        data = data.zip(input.data.as_ref()).map(|(all, more): (Vec<Dim>, _)| [&all[..], more].concat());
    }
    shape[at] = sum;
    Some(vec![InferredTensor { elem: first.elem, shape, data }])
}

pub(super) fn split(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let at = axis(call.node.int("axis", 0), input.shape.len())?;
    let count = call.node.output.len() as i64;
    let whole = &input.shape[at];
    let sizes: Vec<Dim> = match call.node.ints("split").map(<[i64]>::to_vec).or_else(|| call.ints(1)) {
        Some(sizes) => sizes.into_iter().map(Dim::known).collect(),
        None if call.has(1) => return None,
        None => equal_parts(whole, count)?,
    };
    let part = |size: Dim| {
        let mut shape = input.shape.clone();
        shape[at] = size;
        InferredTensor::new(input.elem, shape)
    };
    (sizes.len() as i64 == count).then(|| sizes.into_iter().map(part).collect())
}

/// Returns `count` equal parts of a size; the last part may be smaller.
fn equal_parts(whole: &Dim, count: i64) -> Option<Vec<Dim>> {
    let Some(size) = whole.value() else {
        let part = whole.over(&Dim::known(count))?;
        return Some(vec![part; usize::try_from(count).ok()?]);
    };
    let part = size.checked_add(count - 1)?.checked_div(count)?;
    Some((0..count).map(|at| Dim::known((size - part.saturating_mul(at)).clamp(0, part))).collect())
}

pub(super) fn slice(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let rank = input.shape.len();
    let old = call.node.attr("starts").is_some();
    let list = |name: &str, at: usize| -> Option<Vec<Dim>> {
        match old {
            true => Some(call.node.ints(name)?.iter().map(|&int| Dim::known(int)).collect()),
            false => call.input(at)?.data.clone(),
        }
    };
    let axes = match (old, call.has(3)) {
        (true, _) => call.node.ints("axes").map(<[i64]>::to_vec),
        (false, true) => Some(call.ints(3)?),
        (false, false) => None,
    };
    let count = call.input(1).and_then(|starts| starts.shape.first()?.value()).unwrap_or(rank as i64);
    let axes = axes.unwrap_or_else(|| (0..count.clamp(0, rank as i64)).collect());
    let steps = if !old && call.has(4) { call.ints(4)? } else { vec![1; axes.len()] };
    let (starts, ends) = (list("starts", 1), list("ends", 2));
    let (mut shape, mut data) = (input.shape.clone(), input.data.clone());
    for (number, &at) in axes.iter().enumerate() {
        let at = axis(at, rank)?;
        let bound = |list: &Option<Vec<Dim>>| list.as_ref()?.get(number).cloned();
        let range = cut(&input.shape[at], bound(&starts), bound(&ends), *steps.get(number)?);
        shape[at] = range.as_ref().map_or_else(|| call.unknown(at), |(_, size)| size.clone());
        data = data.zip(range).and_then(|(data, (start, size))| pick(&data, start, size.value()?, steps[number]));
    }
    Some(vec![InferredTensor { elem: input.elem, shape, data }])
}

fn pick(data: &[Dim], start: i64, count: i64, step: i64) -> Option<Vec<Dim>> {
    let at = |number: i64| usize::try_from(start.checked_add(number.checked_mul(step)?)?).ok();
    (0..count.min(data.len() as i64)).map(|number| data.get(at(number)?).cloned()).collect()
}

/// Returns the first index and the number of elements of a slice of a dimension.
fn cut(size: &Dim, start: Option<Dim>, end: Option<Dim>, step: i64) -> Option<(i64, Dim)> {
    let (start, end) = (start?, end?);
    if let (Some(size), Some(start), Some(end)) = (size.value(), start.value(), end.value()) {
        let place = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (start, end, span) = match step {
            1.. => (place(start).clamp(0, size), place(end).clamp(0, size), 0),
            0 => return None,
            _ => (place(start).clamp(-1, size - 1), place(end).clamp(-1, size - 1), 0),
        };
        let span = if step > 0 { end - start } else { start - end } + span;
        let step = step.checked_abs()?;
        return Some((start, Dim::known((span.max(0) + step - 1) / step)));
    }
    if step != 1 {
        return None;
    }
    let far = end.value().is_some_and(|end| end >= i64::from(i32::MAX)) || end == *size;
    match (start.value(), end.value()) {
        (Some(start), _) if far && start >= 0 => Some((start, size.minus(&Dim::known(start))?)),
        (Some(start), _) if far => Some((start, Dim::known(start.checked_neg()?))),
        (Some(start), Some(end)) if start >= 0 && end < 0 => {
            Some((start, size.plus(&Dim::known(end.checked_sub(start)?))?))
        }
        (Some(start), Some(end)) if start >= 0 && end >= start && !size.is_batch() => {
            Some((start, Dim::known(end - start)))
        }
        (Some(0), None) => Some((0, end)),
        (Some(start), Some(end)) if start < 0 && end < 0 => Some((start, Dim::known(end.checked_sub(start)?.max(0)))),
        _ => None,
    }
}

pub(super) fn gather(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, indices) = (call.input(0)?, call.input(1)?);
    let at = axis(call.node.int("axis", 0), input.shape.len())?;
    let shape = [&input.shape[..at], &indices.shape, &input.shape[at + 1..]].concat();
    let pick = |data: &Vec<Dim>| {
        let indices = indices.data.as_ref()?.iter().map(Dim::value).collect::<Option<Vec<_>>>()?;
        indices.into_iter().map(|index| data.get(axis(index, data.len())?).cloned()).collect()
    };
    let data = input.data.as_ref().filter(|_| input.shape.len() == 1).and_then(pick);
    Some(vec![InferredTensor { elem: input.elem, shape, data }])
}

pub(super) fn expand(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    InferredTensor::one(input.elem, broadcast(&input.shape, call.input(1)?.data.as_ref()?)?)
}

pub(super) fn tile(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, repeats) = (call.input(0)?, call.input(1)?.data.as_ref());
    let size = |(at, dim): (usize, &Dim)| {
        let times = repeats.and_then(|repeats| dim.times(repeats.get(at)?));
        times.unwrap_or_else(|| call.unknown(at))
    };
    InferredTensor::one(input.elem, input.shape.iter().enumerate().map(size).collect())
}
