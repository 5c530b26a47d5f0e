//! Branches and loops.
//!
//! A branch that the rows or their number decide ends the proof, also if both sides are row by row:
//! one row's condition decides for all. The body of a loop is walked until the values that it
//! carries keep their form.

use super::call::{FIXED, Made, RowCause, dims_of, meet, normal, unknown};
use super::scope::RowScope;
use super::value::{RowRelation, RowValue, broken, has_batch};
use crate::dim::Dim;
use crate::proto::{GraphProto, NodeProto};
use std::collections::HashMap;

/// Number of times that a body is walked before its values count as unknown.
const ROUNDS: usize = 4;

/// Returns the outputs of `If`, `Loop` or `Scan`.
pub(super) fn flow(scope: &mut RowScope<'_>, node: &NodeProto, inputs: Vec<Option<RowValue>>) -> Made {
    match &*node.op_type {
        "If" => branch(scope, node, &inputs),
        "Loop" => repeat(scope, node, inputs),
        _ => scan(scope, node, inputs),
    }
}

fn body<'a>(node: &'a NodeProto, name: &str) -> Result<&'a GraphProto, RowCause> {
    let graph = node.attr(name).and_then(|attribute| attribute.g.as_deref());
    graph.map_or_else(|| unknown("its graph is missing"), Ok)
}

/// Walks a graph with these inputs and returns its outputs.
fn walk_body(scope: &mut RowScope<'_>, graph: &GraphProto, inputs: Vec<RowValue>) -> Made {
    if inputs.len() != graph.input.len() {
        return unknown("its graph has another number of inputs");
    }
    let names: HashMap<String, RowValue> = graph.input.iter().map(|info| info.name.clone()).zip(inputs).collect();
    let entered = scope.enter(names);
    if entered {
        (scope.walk)(scope, graph);
    }
    let outputs = graph.output.iter().map(|info| scope.get(&info.name).cloned()).collect::<Option<Vec<_>>>();
    scope.leave();
    match outputs.filter(|_| entered) {
        Some(outputs) => Ok(outputs),
        None => unknown("its graph is too deep or computes no value for an output"),
    }
}

fn branch(scope: &mut RowScope<'_>, node: &NodeProto, inputs: &[Option<RowValue>]) -> Made {
    let Some(Some(condition)) = inputs.first() else { return unknown("it has no condition") };
    let (yes, no) = (body(node, "then_branch")?, body(node, "else_branch")?);
    match &condition.rows {
        RowRelation::Constant => {}
        RowRelation::Count => return meet("the number of rows decides which branch it takes"),
        _ => return meet("the rows decide which branch it takes"),
    }
    match condition.ints().as_deref() {
        Some([0]) => walk_body(scope, no, Vec::new()),
        Some([_]) => walk_body(scope, yes, Vec::new()),
        _ => {
            let (yes, no) = (walk_body(scope, yes, Vec::new())?, walk_body(scope, no, Vec::new())?);
            if yes.len() != no.len() {
                return unknown("its branches have different numbers of outputs");
            }
            yes.iter().zip(&no).map(|(yes, no)| merged(scope, yes, no)).collect()
        }
    }
}

/// Returns what is known of a value that is one of two.
fn merged(scope: &RowScope<'_>, a: &RowValue, b: &RowValue) -> Result<RowValue, RowCause> {
    if let Some(rows) = broken([a, b].into_iter()) {
        return Ok(RowValue::new(Vec::new(), rows));
    }
    let rows = match (&a.rows, &b.rows) {
        (first, second) if first == second => first.clone(),
        (RowRelation::Constant | RowRelation::Count, RowRelation::Constant | RowRelation::Count) => RowRelation::Count,
        _ => return unknown("its values have rows in one case only"),
    };
    let same = a.data == b.data;
    let data = a.data.clone().filter(|_| same);
    let any = RowValue { rows: rows.clone(), ..RowValue::constant() };
    let (Some(first), Some(second)) = (&a.shape, &b.shape) else { return Ok(any) };
    if first.len() != second.len() {
        return if matches!(rows, RowRelation::Along(_)) {
            unknown("its values have different shapes")
        } else {
            Ok(any)
        };
    }
    let mut shape = Vec::with_capacity(first.len());
    for (one, other) in first.iter().zip(second) {
        shape.push(match one == other {
            true => one.clone(),
            false if has_batch(one) || has_batch(other) => return unknown("its values have different rows"),
            false => {
                scope.symbols.set(scope.symbols.get() + 1);
                Dim::symbol(&format!("?{}", scope.symbols.get()))
            }
        });
    }
    Ok(RowValue { data, ..RowValue::new(shape, rows) })
}

/// Whether a walk from `general` holds for `next`, too. Sizes of `any` stand for any number.
fn covers(general: &RowValue, next: &RowValue, any: &[Dim]) -> bool {
    let shapes = match (&general.shape, &next.shape) {
        (Some(first), Some(second)) => {
            let fits = |(one, other): (&Dim, &Dim)| one == other || any.contains(one) && !has_batch(other);
            first.len() == second.len() && first.iter().zip(second).all(fits)
        }
        (None, _) => true,
        _ => false,
    };
    general.rows == next.rows && shapes && (general.data.is_none() || general.data == next.data)
}

fn repeat(scope: &mut RowScope<'_>, node: &NodeProto, mut inputs: Vec<Option<RowValue>>) -> Made {
    let graph = body(node, "body")?;
    if inputs.len() < 2 {
        return unknown("it has no condition");
    }
    let carried = inputs.split_off(2);
    for decides in inputs.iter().flatten() {
        match &decides.rows {
            RowRelation::Constant => {}
            RowRelation::Count => return meet("the number of rows decides how often it repeats"),
            _ => return meet("the rows decide how often it repeats"),
        }
    }
    let Some(carried) = carried.into_iter().collect::<Option<Vec<_>>>() else {
        return unknown("it has no first value");
    };
    let number = RowValue::new(vec![], RowRelation::Constant);
    let (carried, made) = settle(scope, graph, carried, 1, &|carried| {
        [number.clone(), number.clone()].into_iter().chain(carried.iter().cloned()).collect()
    })?;
    match made.first().map(|condition| &condition.rows) {
        Some(RowRelation::Constant) => {}
        Some(rows @ RowRelation::Broken(_)) => {
            return Ok(vec![RowValue::new(Vec::new(), rows.clone()); node.output.len()]);
        }
        Some(RowRelation::Count) => return meet("the number of rows decides how often it repeats"),
        _ => return meet("the rows decide how often it repeats"),
    }
    let stacked = made[1 + carried.len()..].iter().map(|value| stacked(scope, value, 0));
    let stacked = stacked.collect::<Result<Vec<_>, _>>()?;
    Ok(carried.into_iter().chain(stacked).collect())
}

/// Walks a body until the values that it carries keep their form. Returns these, and all outputs.
/// The carried values are outputs from `from` on.
fn settle(
    scope: &mut RowScope<'_>,
    graph: &GraphProto,
    mut carried: Vec<RowValue>,
    from: usize,
    inputs: &dyn Fn(&[RowValue]) -> Vec<RowValue>,
) -> Result<(Vec<RowValue>, Vec<RowValue>), RowCause> {
    let mut any = Vec::new();
    for _ in 0..ROUNDS {
        let made = walk_body(scope, graph, inputs(&carried))?;
        let Some(next) = made.get(from..from + carried.len()) else {
            return unknown("its graph has too few outputs");
        };
        if carried.iter().zip(next).all(|(now, next)| covers(now, next, &any)) {
            return Ok((carried, made));
        }
        let merge = |(now, next): (&RowValue, &RowValue)| match covers(now, next, &any) {
            true => Ok(now.clone()),
            false => merged(scope, now, next),
        };
        let all = carried.iter().zip(next).map(merge).collect::<Result<Vec<_>, _>>()?;
        if let Some(rows) = broken(all.iter()) {
            let value = RowValue::new(Vec::new(), rows);
            return Ok((vec![value.clone(); carried.len()], vec![value; made.len()]));
        }
        let old: Vec<&Dim> = carried.iter().filter_map(|now| now.shape.as_ref()).flatten().collect();
        let new = all.iter().filter_map(|all| all.shape.as_ref()).flatten().filter(|dim| !old.contains(dim));
        any = any.iter().cloned().chain(new.cloned()).collect();
        carried = all;
    }
    unknown("the values that it carries change their form")
}

/// Returns a value of each step, stacked along a new axis.
fn stacked(scope: &RowScope<'_>, value: &RowValue, at: usize) -> Result<RowValue, RowCause> {
    if broken([value].into_iter()).is_some() {
        return Ok(value.clone());
    }
    let Some(mut shape) = value.shape.clone() else { return Ok(RowValue::constant()) };
    if at > shape.len() {
        return unknown("it stacks along a dimension that is not there");
    }
    scope.symbols.set(scope.symbols.get() + 1);
    shape.insert(at, Dim::symbol(&format!("?{}", scope.symbols.get())));
    let rows = match value.axis() {
        Some(axis) => RowRelation::Along(axis.at(axis.axis + usize::from(axis.axis >= at))),
        None => value.rows.clone(),
    };
    Ok(RowValue::new(shape, rows))
}

fn scan(scope: &mut RowScope<'_>, node: &NodeProto, inputs: Vec<Option<RowValue>>) -> Made {
    let graph = body(node, "body")?;
    if scope.opset < 9 {
        return unknown("it has the form of an old version");
    }
    let Some(mut states) = inputs.into_iter().collect::<Option<Vec<_>>>() else {
        return unknown("an input is missing");
    };
    let count = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(usize::MAX);
    let Some(first) = states.len().checked_sub(count) else { return unknown("it has too few inputs") };
    let steps = states.split_off(first);
    let axes = node.ints("scan_input_axes").unwrap_or_default();
    let slices = steps.iter().enumerate().map(|(number, value)| {
        let rank = dims_of(value)?.len();
        element(value, normal(axes.get(number).copied().unwrap_or(0), rank)?)
    });
    let slices = slices.collect::<Result<Vec<_>, _>>()?;
    let (states, made) = settle(scope, graph, states, 0, &|states| states.iter().chain(&slices).cloned().collect())?;
    let axes = node.ints("scan_output_axes").unwrap_or_default();
    let stack = |(number, value): (usize, &RowValue)| {
        let rank = value.rank().map_or(1, |rank| rank + 1);
        stacked(scope, value, normal(axes.get(number).copied().unwrap_or(0), rank)?)
    };
    let outputs = made[states.len()..].iter().enumerate().map(stack).collect::<Result<Vec<_>, _>>()?;
    Ok(states.into_iter().chain(outputs).collect())
}

/// Returns one element of a value along an axis, without this axis.
fn element(value: &RowValue, at: usize) -> Result<RowValue, RowCause> {
    let mut shape = dims_of(value)?.to_vec();
    shape.remove(at);
    let rows = match value.axis() {
        Some(axis) if axis.axis == at => return meet("it steps along the rows of the batch"),
        Some(axis) => RowRelation::Along(axis.at(axis.axis - usize::from(axis.axis > at))),
        None if value.rows == RowRelation::Count => return meet(FIXED),
        None => RowRelation::Constant,
    };
    Ok(RowValue::new(shape, rows))
}
