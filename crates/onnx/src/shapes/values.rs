//! Tracks small integer tensors from which graphs compute shapes: `Shape`, and arithmetic on its
//! output.

use super::{InferredTensor, MAX_DATA, OpCall};
use crate::dim::{Dim, product};
use crate::proto::elem;
use crate::weights;

pub(super) fn shape(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let dims = &call.input(0)?.shape;
    let rank = dims.len() as i64;
    let bound = |name: &str, default: i64| {
        let at = call.node.int(name, default);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    let data: Vec<Dim> = dims.get(start..end.max(start))?.to_vec();
    Some(vec![InferredTensor { elem: elem::INT64, shape: vec![Dim::known(data.len() as i64)], data: Some(data) }])
}

pub(super) fn size(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let data = product(&call.input(0)?.shape).map(|size| vec![size]);
    Some(vec![InferredTensor { elem: elem::INT64, shape: vec![], data }])
}

pub(super) fn constant_of_shape(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let sizes = call.input(0)?;
    let value = call.node.attr("value").and_then(|attribute| attribute.t.as_deref());
    let elem = value.map_or(elem::FLOAT, |value| value.data_type);
    let rank = sizes.shape.first()?.value().and_then(|rank| usize::try_from(rank).ok())?;
    let shape = match &sizes.data {
        Some(data) => data.clone(),
        None if rank <= MAX_DATA => (0..rank).map(|axis| call.unknown(axis)).collect(),
        None => return None,
    };
    let count = product(&shape).and_then(|size| size.value()).filter(|&count| (0..=MAX_DATA as i64).contains(&count));
    let element = value.and_then(weights::small_ints).and_then(|ints| ints.first().copied());
    let data = count.zip(element).map(|(count, element)| vec![Dim::known(element); count as usize]);
    Some(vec![InferredTensor { elem, shape, data }])
}

pub(super) fn range(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let bound = |at: usize| call.input(at)?.data.as_ref()?.first().cloned();
    let length = || {
        let (start, limit, step) = (bound(0)?, bound(1)?, bound(2)?);
        let span = limit.minus(&start)?;
        match (span.value(), step.value()?) {
            (_, 1) => Some(span),
            (Some(span), step) if step != 0 => {
                let steps = span.checked_div(step)?.checked_add(i64::from(span % step != 0))?;
                Some(Dim::known(steps.max(0)))
            }
            _ => None,
        }
    };
    InferredTensor::one(call.input(0)?.elem, vec![length().unwrap_or_else(|| call.unknown(0))])
}

/// Returns the elements that an elementwise operator on integers computes, if they can be inferred.
pub(super) fn elementwise(call: &OpCall<'_>) -> Option<Vec<Dim>> {
    let first = call.input(0)?.data.as_ref()?;
    let known = |result: bool| Some(Dim::known(i64::from(result)));
    let by: fn(&Dim, &Dim) -> Option<Dim> = match &*call.node.op_type {
        "Identity" | "Cast" | "CastLike" => return Some(first.clone()),
        "Neg" => return first.iter().map(|dim| dim.times(&Dim::known(-1))).collect(),
        "Not" => return first.iter().map(|dim| known(dim.value()? == 0)).collect(),
        "Add" => Dim::plus,
        "Sub" => Dim::minus,
        "Mul" => Dim::times,
        "Div" => divide,
        "Equal" => equal,
        "Max" => |a, b| Some(Dim::known(a.value()?.max(b.value()?))),
        "Min" => |a, b| Some(Dim::known(a.value()?.min(b.value()?))),
        "Greater" => |a, b| Some(Dim::known(i64::from(a.value()? > b.value()?))),
        "Less" => |a, b| Some(Dim::known(i64::from(a.value()? < b.value()?))),
        _ => return None,
    };
    let second = call.input(1).filter(|_| call.inputs.len() == 2)?.data.as_ref()?;
    pairs(first, second)?.map(|(a, b)| by(a, b)).collect()
}

pub(super) fn select(call: &OpCall<'_>) -> Option<Vec<Dim>> {
    let data = |at: usize| call.input(at)?.data.as_ref();
    let (test, yes, no) = (data(0)?, data(1)?, data(2)?);
    let count = [test, yes, no].iter().map(|list| list.len()).max()?;
    let at = |list: &[Dim], index: usize| list.get(if list.len() == 1 { 0 } else { index }).cloned();
    (0..count).map(|index| if at(test, index)?.value()? != 0 { at(yes, index) } else { at(no, index) }).collect()
}

fn pairs<'a>(a: &'a [Dim], b: &'a [Dim]) -> Option<impl Iterator<Item = (&'a Dim, &'a Dim)>> {
    let count = a.len().max(b.len());
    let fits = |list: &[Dim]| list.len() == count || list.len() == 1;
    let at = |list: &'a [Dim], index: usize| &list[if list.len() == 1 { 0 } else { index }];
    (count > 0 && fits(a) && fits(b)).then(|| (0..count).map(move |index| (at(a, index), at(b, index))))
}

fn divide(a: &Dim, b: &Dim) -> Option<Dim> {
    if let (Some(a), Some(b)) = (a.value(), b.value()) {
        return a.checked_div(b).map(Dim::known);
    }
    a.over(b).or_else(|| Dim::opaque(&format!("({a} // {b})")))
}

/// Compares two sizes. Exporters compare sizes with -1. A size is never below 0, and a size that
/// only a request determines is assumed not to be 0.
fn equal(a: &Dim, b: &Dim) -> Option<Dim> {
    let equal = match (a.value(), b.value()) {
        (Some(a), Some(b)) => a == b,
        (Some(number), None) | (None, Some(number)) if number <= 0 => false,
        _ if a == b => true,
        _ => return None,
    };
    Some(Dim::known(i64::from(equal)))
}
