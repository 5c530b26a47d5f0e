//! Tensors of sizes: `Shape`, arithmetic on its output, and tensors made from sizes.
//!
//! A tensor whose elements are known sizes depends on the number of rows exactly if one of them
//! mentions the batch. An element that cannot be computed from sizes that do not mention it is a
//! new symbol.

use super::call::{CROSSED, Made, RowCall, broadcast, dims_of, meet, unknown};
use super::value::{MAX_DATA, RowAxis, RowContent, RowRelation, RowValue, has_batch};
use crate::dim::{Dim, product};
use crate::weights;

/// The reason why a shape that is computed from the number of rows cannot be followed.
pub(super) const COMPUTED: &str = "its shape is computed from the number of rows";

pub(super) fn shape(call: &RowCall<'_>) -> Made {
    let dims = call.dims(0)?;
    let rank = dims.len() as i64;
    let bound = |name: &str, default: i64| {
        let at = call.node.int(name, default);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    let data = dims[start..end.max(start)].to_vec();
    Ok(vec![RowValue::of_data(vec![Dim::known(data.len() as i64)], data)])
}

pub(super) fn size(call: &RowCall<'_>) -> Made {
    let dims = call.dims(0)?;
    match product(dims) {
        Some(size) => Ok(vec![RowValue::of_data(vec![], vec![size])]),
        None if dims.iter().any(has_batch) => Ok(vec![RowValue::new(vec![], RowRelation::Count)]),
        None => Ok(vec![RowValue::new(vec![], RowRelation::Constant)]),
    }
}

pub(super) fn constant_of_shape(call: &RowCall<'_>) -> Made {
    let sizes = call.input(0)?;
    let Some(data) = &sizes.data else {
        return if sizes.is_constant() { Ok(vec![RowValue::constant()]) } else { meet(COMPUTED) };
    };
    let mut value = filled(data.clone())?;
    let count = product(data).and_then(|count| count.value()).filter(|count| (0..=MAX_DATA as i64).contains(count));
    let element = call.node.attr("value").and_then(|attribute| attribute.t.as_deref()).and_then(weights::small_ints);
    if let (true, Some(count), Some([element, ..])) = (value.is_constant(), count, element.as_deref()) {
        value.data = Some(vec![Dim::known(*element); count as usize]);
    }
    Ok(vec![value])
}

/// Returns a tensor of this shape whose elements are all the same.
pub(super) fn filled(shape: Vec<Dim>) -> Result<RowValue, super::call::RowCause> {
    let with: Vec<usize> = (0..shape.len()).filter(|&at| has_batch(&shape[at])).collect();
    match with[..] {
        [] => Ok(RowValue::new(shape, RowRelation::Constant)),
        [axis] => match shape[axis].over(&Dim::batch()).filter(|inner| !has_batch(inner)) {
            Some(inner) => Ok(RowValue::new(shape, RowRelation::Along(RowAxis::new(axis, inner)))),
            None => meet(COMPUTED),
        },
        _ => meet(CROSSED),
    }
}

pub(super) fn range(call: &RowCall<'_>) -> Made {
    if call.given().any(|input| input.axis().is_some()) {
        return meet("its length depends on the rows");
    }
    let element = |at: usize| call.input(at).ok()?.data.as_ref()?.first().cloned();
    let counts = call.given().any(|input| !input.is_constant());
    if !counts {
        let span = element(1).zip(element(0)).filter(|_| element(2).is_some_and(|step| step.is(1)));
        let length = span.and_then(|(limit, start)| range_length(&start, &limit));
        let length = length.unwrap_or_else(|| call.fresh());
        let start = element(0).and_then(|start| start.value()).is_some_and(|start| start >= 0);
        let rises = element(2).and_then(|step| step.value()).is_some_and(|step| step > 0);
        let below = element(1).filter(|limit| start && rises && (limit.is_size() || limit.value() > Some(0)));
        return Ok(vec![RowValue { below, ..RowValue::new(vec![length], RowRelation::Constant) }]);
    }
    let bounds = (element(0), element(1), element(2));
    match bounds {
        (Some(start), Some(limit), Some(step)) if start.is(0) && limit.is_batch() && step.is(1) => {
            let rows = RowAxis { content: RowContent::position(), ..RowAxis::new(0, Dim::known(1)) };
            Ok(vec![RowValue::new(vec![limit], RowRelation::Along(rows))])
        }
        _ => meet("it counts to the number of rows"),
    }
}

/// Returns the number of whole numbers from `start` up to, but without, `limit`.
fn range_length(start: &Dim, limit: &Dim) -> Option<Dim> {
    match (start.value(), limit.value()) {
        (Some(start), Some(limit)) => Some(Dim::known(limit.checked_sub(start)?.max(0))),
        (Some(0), None) if limit.is_size() => Some(limit.clone()),
        _ => None,
    }
}

/// Computes an elementwise operator of which an input depends on the number of rows.
pub(super) fn arithmetic(call: &RowCall<'_>) -> Made {
    let inputs: Vec<&RowValue> = call.given().collect();
    if inputs.iter().any(|input| input.axis().is_some()) {
        return meet(super::call::BY_COUNT);
    }
    let constant = |input: &&RowValue| RowValue { rows: RowRelation::Constant, ..(*input).clone() };
    let constants: Vec<RowValue> = inputs.iter().map(constant).collect();
    let Ok((shape, _)) = broadcast(call, &constants.iter().collect::<Vec<_>>()) else {
        return unknown(COMPUTED);
    };
    Ok(vec![match elements(call) {
        Some(data) => RowValue::of_data(shape, data),
        None => RowValue::new(shape, RowRelation::Count),
    }])
}

/// Returns the elements that an elementwise operator computes from sizes. `None` if it is not known
/// whether they depend on the number of rows.
pub(super) fn elements(call: &RowCall<'_>) -> Option<Vec<Dim>> {
    let lists = call.inputs.iter().map(|input| input.as_ref()?.data.as_ref()).collect::<Option<Vec<_>>>()?;
    // A list of one element and dimensions of 1 broadcast alike; other shapes must be lists.
    if call.given().any(|input| !(input.rank() <= Some(1) || input.is_single())) {
        return None;
    }
    let count = lists.iter().map(|list| list.len()).max()?;
    if lists.iter().any(|list| list.len() != count && list.len() != 1) {
        return None;
    }
    let at = |index: usize| -> Vec<&Dim> {
        lists.iter().map(|list| &list[if list.len() == 1 { 0 } else { index }]).collect()
    };
    (0..count).map(|index| element(call, &at(index))).collect()
}

fn element(call: &RowCall<'_>, inputs: &[&Dim]) -> Option<Dim> {
    let made = computed(call, inputs);
    made.or_else(|| (!inputs.iter().any(|input| has_batch(input))).then(|| call.fresh()))
}

/// Returns one element of the output, if it is a size or a number.
fn computed(call: &RowCall<'_>, inputs: &[&Dim]) -> Option<Dim> {
    let truth = |value: bool| Some(Dim::known(i64::from(value)));
    let known = |at: usize| inputs.get(at).and_then(|dim| dim.value());
    match (call.op(), inputs) {
        ("Identity" | "Cast", [one]) if call.op() == "Identity" || is_integer(call.node.int("to", 0)) => {
            Some((*one).clone())
        }
        ("Neg", [one]) => one.times(&Dim::known(-1)),
        ("Not", [_]) => truth(known(0)? == 0),
        ("Add", [a, b]) => a.plus(b),
        ("Sub", [a, b]) => a.minus(b),
        ("Mul", [a, b]) => a.times(b),
        ("Div", [a, b]) => divided(a, b),
        ("Mod", [a, b]) if a.value() >= Some(0) && b.value() > Some(0) => {
            Some(Dim::known(a.value()?.checked_rem(b.value()?)?))
        }
        ("Equal", [a, b]) => truth(equal(a, b)?),
        ("And", [_, _]) => truth(known(0)? != 0 && known(1)? != 0),
        ("Or", [_, _]) => truth(known(0)? != 0 || known(1)? != 0),
        ("Max", [a, b]) => ordered(a, b).map(|(_, more)| more.clone()),
        ("Min", [a, b]) => ordered(a, b).map(|(less, _)| less.clone()),
        ("Greater", [_, _]) => truth(known(0)? > known(1)?),
        ("Less", [_, _]) => truth(known(0)? < known(1)?),
        ("GreaterOrEqual", [_, _]) => truth(known(0)? >= known(1)?),
        ("LessOrEqual", [_, _]) => truth(known(0)? <= known(1)?),
        ("Where", [test, yes, no]) => match test.value() {
            Some(0) => Some((*no).clone()),
            Some(_) => Some((*yes).clone()),
            None => (yes == no).then(|| (*yes).clone()),
        },
        _ => None,
    }
}

/// Returns the content of an elementwise operator's output, of whose inputs one holds positions of
/// rows: the sum of a multiple of the position and a number below a bound is still an index.
pub(super) fn position(call: &RowCall<'_>) -> RowContent {
    let mut indices = call.given().filter_map(|input| match input.axis()?.content {
        RowContent::Positions { ref stride, ref extent } => Some((stride, extent)),
        _ => None,
    });
    let (Some((stride, extent)), None) = (indices.next(), indices.next()) else { return RowContent::Positional };
    let other = call.given().find(|input| input.is_constant());
    let made = match (call.op(), other) {
        ("Identity", None) => Some((stride.clone(), extent.clone())),
        ("Cast", None) if is_integer(call.node.int("to", 0)) => Some((stride.clone(), extent.clone())),
        ("Mul", Some(other)) if extent.is(1) => {
            let times = other.data.as_deref().and_then(|data| if let [one] = data { Some(one) } else { None });
            let times = times.filter(|times| times.is_size());
            times.and_then(|times| Some((stride.times(times)?, Dim::known(1))))
        }
        ("Add", Some(other)) => other.bound().and_then(|below| {
            let extent = if extent.is(1) { Some(below) } else { extent.plus(&below)?.minus(&Dim::known(1)) };
            Some((stride.clone(), extent?))
        }),
        _ => None,
    };
    made.map_or(RowContent::Positional, |(stride, extent)| RowContent::Positions { stride, extent })
}

/// Returns the upper bound of what an elementwise operator computes from constants that have one.
pub(super) fn bound(call: &RowCall<'_>) -> Option<Dim> {
    let bounds = call.given().map(RowValue::bound).collect::<Option<Vec<_>>>()?;
    match (call.op(), &bounds[..]) {
        ("Identity", [one]) => Some(one.clone()),
        ("Cast", [one]) if is_integer(call.node.int("to", 0)) => Some(one.clone()),
        ("Add", [a, b]) => a.plus(b)?.minus(&Dim::known(1)),
        ("Mul", [a, b]) => Some(Dim::known((a.value()? - 1).checked_mul(b.value()? - 1)?.checked_add(1)?)),
        _ => None,
    }
}

/// Whether ONNX's number of an element type is one of integers that hold any size, or of booleans.
fn is_integer(elem: i64) -> bool {
    matches!(elem, 6 | 7 | 9 | 12 | 13)
}

fn divided(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.value(), b.value()) {
        (Some(a), Some(b)) => a.checked_div(b).map(Dim::known),
        _ => a.over(b).or_else(|| Dim::opaque(&format!("({a} // {b})"))),
    }
}

/// Compares two sizes. A size is never below 0. Symbols of unknown elements may be numbers that do
/// not equal themselves.
fn equal(a: &Dim, b: &Dim) -> Option<bool> {
    match (a.value(), b.value()) {
        (Some(a), Some(b)) => Some(a == b),
        (Some(number), None) if number < 0 && b.is_size() => Some(false),
        (None, Some(number)) if number < 0 && a.is_size() => Some(false),
        _ if a == b && a.is_size() => Some(true),
        _ => None,
    }
}

/// Returns two sizes in ascending order, if it is known.
fn ordered<'a>(a: &'a Dim, b: &'a Dim) -> Option<(&'a Dim, &'a Dim)> {
    match (a.value(), b.value()) {
        (Some(first), Some(second)) => Some(if first <= second { (a, b) } else { (b, a) }),
        // A size is at least 1.
        (Some(number), None) if number <= 1 && b.is_size() => Some((a, b)),
        (None, Some(number)) if number <= 1 && a.is_size() => Some((b, a)),
        _ if a == b => Some((a, b)),
        _ => None,
    }
}

/// Returns a tensor with its elements where it is a list of sizes, for operators that move
/// elements.
pub(super) fn moved(input: &RowValue, shape: Vec<Dim>, rows: RowRelation, data: Option<Vec<Dim>>) -> RowValue {
    let below = input.bound();
    match (&rows, data) {
        (RowRelation::Constant | RowRelation::Count, Some(data)) => {
            RowValue { below, ..RowValue::of_data(shape, data) }
        }
        _ if input.axis().is_some() => RowValue::new(shape, rows),
        _ => RowValue { below, ..RowValue::new(shape, input.rows.clone()) },
    }
}

/// Computes the product of sizes, the only reduction that graphs use on them.
pub(super) fn reduced(call: &RowCall<'_>) -> Made {
    let input = call.input(0)?;
    let keep = call.node.int("keepdims", 1) != 0;
    if let (Ok([_]), Some(data), "ReduceProd") = (dims_of(input), &input.data, call.op())
        && let Some(all) = product(data)
    {
        return Ok(vec![RowValue::of_data(if keep { vec![Dim::known(1)] } else { vec![] }, vec![all])]);
    }
    meet(super::call::BY_COUNT)
}
