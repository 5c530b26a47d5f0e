//! Visits the operators of a graph in order and keeps a value for each tensor.

use super::call::{BY_COUNT, BY_POSITION, Made, RowCall, RowCause, meet, unknown};
use super::scope::RowScope;
use super::value::{MAX_DATA, MAX_RANK, RowAxis, RowContent, RowRelation, RowValue, broken, has_batch};
use super::{RowFinding, RowFindingKind, catalogue, control};
use crate::dim::Dim;
use crate::file::OnnxFile;
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto};
use crate::read::constant_tensor;
use crate::weights;
use std::collections::HashMap;
use std::sync::Arc;

/// Largest number of outputs of an operator.
const MAX_OUTPUTS: usize = 1024;
/// Largest number of elements of a constant that get symbols of their own.
const MAX_SYMBOLS: i64 = 16;

/// Walks a file's graph from the values of its inputs. Returns the values of its tensors.
pub(super) fn run(file: &OnnxFile, inputs: HashMap<String, RowValue>) -> HashMap<String, RowValue> {
    let opset = file.model.opset_import.iter().find(|set| matches!(&*set.domain, "" | "ai.onnx"));
    let mut scope = RowScope::new(file.functions(), opset.map_or(1, |set| set.version), graph, inputs);
    graph(&mut scope, file.graph());
    scope.leave()
}

/// Walks a graph in the innermost scope.
fn graph(scope: &mut RowScope<'_>, graph: &GraphProto) {
    for weight in &graph.initializer {
        let value = of_weight(weight);
        let value = with_symbols(scope, value);
        scope.insert(&weight.name, value);
    }
    for weight in &graph.sparse_initializer {
        if let Some(values) = &weight.values {
            let value = with_symbols(scope, of_sparse(weight));
            scope.insert(&values.name, value);
        }
    }
    nodes(scope, &graph.node, &[]);
}

/// Visits nodes in order. `attributes` come from the call of the function that has the nodes.
fn nodes(scope: &mut RowScope<'_>, nodes: &[NodeProto], attributes: &[AttributeProto]) {
    for node in nodes {
        let resolved = resolve(node, attributes);
        visit(scope, &resolved);
    }
}

/// Replaces references to a function's attributes by the attributes of its call.
fn resolve<'a>(node: &'a NodeProto, attributes: &[AttributeProto]) -> std::borrow::Cow<'a, NodeProto> {
    if node.attribute.iter().all(|attribute| attribute.ref_attr_name.is_empty()) {
        return std::borrow::Cow::Borrowed(node);
    }
    let mut resolved = node.clone();
    resolved.attribute = node
        .attribute
        .iter()
        .filter_map(|attribute| {
            if attribute.ref_attr_name.is_empty() {
                return Some(attribute.clone());
            }
            let given = attributes.iter().find(|given| given.name == attribute.ref_attr_name)?;
            Some(AttributeProto { name: attribute.name.clone(), ..given.clone() })
        })
        .collect();
    std::borrow::Cow::Owned(resolved)
}

fn visit(scope: &mut RowScope<'_>, node: &NodeProto) {
    let made = match scope.visit() && node.output.len() <= MAX_OUTPUTS {
        true => evaluate(scope, node),
        false => Err(too_many()),
    };
    let too_large = || RowValue::new(Vec::new(), RowRelation::Broken(Arc::new(RowFinding::at(node, too_many()))));
    let failed = |cause: RowCause| {
        let value = RowValue::new(Vec::new(), RowRelation::Broken(Arc::new(RowFinding::at(node, cause))));
        vec![value; node.output.len()]
    };
    let mut values = made.unwrap_or_else(failed).into_iter();
    for name in node.output.iter() {
        let missing = || failed(RowCause { kind: RowFindingKind::Unknown, why: "it has an unknown output".to_owned() });
        let value = values.next().unwrap_or_else(|| missing().remove(0));
        let value = if scope.holds(&value) { with_symbols(scope, value) } else { too_large() };
        scope.insert(name, value);
    }
}

/// The cause of a graph beyond the limits of the analysis.
fn too_many() -> RowCause {
    RowCause { kind: RowFindingKind::Unknown, why: "the graph is too large for the analysis".to_owned() }
}

/// Returns the outputs of a node.
fn evaluate(scope: &mut RowScope<'_>, node: &NodeProto) -> Made {
    let mut inputs = Vec::with_capacity(node.input.len());
    for name in &node.input {
        inputs.push(match (name.is_empty(), scope.get(name)) {
            (true, _) => None,
            (false, Some(value)) => Some(value.clone()),
            (false, None) => return unknown(format!("no operator before it computes '{name}'")),
        });
    }
    if let Some(rows) = broken(inputs.iter().flatten()) {
        return Ok(vec![RowValue::new(Vec::new(), rows); node.output.len()]);
    }
    if let Some(function) = function(scope, node) {
        return call_function(scope, function, node, inputs);
    }
    if node.is_standard() && matches!(&*node.op_type, "If" | "Loop" | "Scan") {
        return control::flow(scope, node, inputs);
    }
    let constant = inputs.iter().flatten().all(RowValue::is_constant);
    let first_axis = RowAxis::new(0, Dim::known(1));
    let call = RowCall { node, inputs, opset: scope.opset, symbols: &scope.symbols, first_axis: &first_axis };
    if let Some(why) = catalogue::random(&call) {
        return meet(why);
    }
    if node.attribute.iter().any(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty()) {
        return unknown("it holds a graph");
    }
    if constant {
        return Ok(of_constants(&call));
    }
    guard(&call)?;
    catalogue::apply(&call)
}

/// Refuses numbers and positions of rows where an operator takes values.
fn guard(call: &RowCall<'_>) -> Result<(), RowCause> {
    let counts = call.given().any(|input| input.rows == RowRelation::Count);
    if counts && !catalogue::takes_counts(call) {
        return meet(BY_COUNT);
    }
    let mut special = call.given().filter_map(RowValue::axis).map(|axis| &axis.content);
    match special.any(|content| *content != RowContent::Plain && !catalogue::takes_positions(call, content)) {
        true => meet(BY_POSITION),
        false => Ok(()),
    }
}

/// Returns the outputs of an operator whose inputs are the same for any batch.
fn of_constants(call: &RowCall<'_>) -> Vec<RowValue> {
    let constants = || vec![RowValue::constant(); call.node.output.len()];
    if call.op() == "Constant" && call.node.is_standard() {
        let tensor = call.node.attribute.first().and_then(constant_tensor);
        return tensor.map_or_else(constants, |tensor| vec![of_weight(&tensor)]);
    }
    let made = catalogue::apply(call).unwrap_or_else(|_| constants());
    let constant = |value: RowValue| {
        let counts = value.shape.iter().flatten().any(has_batch);
        let shape = value.shape.filter(|_| !counts && !matches!(value.rows, RowRelation::Broken(_)));
        RowValue { shape, rows: RowRelation::Constant, ..value }
    };
    made.into_iter().map(constant).collect()
}

fn function<'a>(scope: &RowScope<'a>, node: &NodeProto) -> Option<&'a FunctionProto> {
    let same = |a: &str, b: &str| a == b || matches!((a, b), ("" | "ai.onnx", "" | "ai.onnx"));
    let fits =
        |function: &&&'a FunctionProto| same(&function.domain, &node.domain) && function.overload == node.overload;
    scope.functions_named(&node.op_type).iter().find(fits).copied()
}

/// Walks the body of a function with the inputs and attributes of a call.
fn call_function(
    scope: &mut RowScope<'_>,
    function: &FunctionProto,
    node: &NodeProto,
    inputs: Vec<Option<RowValue>>,
) -> Made {
    if inputs.len() < function.input.len() {
        return unknown("it calls a function without some of its inputs");
    }
    let given = function.input.iter().zip(inputs);
    let Some(values) = given.map(|(name, value)| Some((name.clone(), value?))).collect() else {
        return unknown("it calls a function without some of its inputs");
    };
    let mut attributes = node.attribute.clone();
    attributes.extend(function.attribute_proto.iter().cloned());
    let opset = function.opset_import.iter().find(|set| matches!(&*set.domain, "" | "ai.onnx"));
    let outer = scope.opset;
    scope.opset = opset.map_or(outer, |set| set.version);
    let outside = scope.isolate(values);
    if scope.is_shallow() {
        nodes(scope, &function.node, &attributes);
    }
    let inside = scope.restore(outside);
    scope.opset = outer;
    match function.output.iter().map(|name| inside.get(name).cloned()).collect::<Option<Vec<_>>>() {
        Some(values) => Ok(values),
        None => unknown("its function is too deep or computes no value for an output"),
    }
}

fn of_weight(tensor: &TensorProto) -> RowValue {
    if tensor.dims.len() > MAX_RANK {
        return RowValue::constant();
    }
    let shape: Vec<Dim> = tensor.dims.iter().map(|&size| Dim::known(size)).collect();
    let small = weights::elements(tensor).filter(|&count| count <= MAX_DATA);
    let flat = || TensorProto { dims: vec![small? as i64], ..tensor.clone() }.into();
    let flat: Option<TensorProto> = small.and_then(|_| flat());
    let ints = flat.as_ref().and_then(weights::small_ints);
    let data = ints.map(|ints| ints.into_iter().map(Dim::known).collect());
    let below = weights::largest_index(tensor).and_then(|most| most.checked_add(1)).map(Dim::known);
    RowValue { data, below, weight: flat.map(Arc::new), ..RowValue::new(shape, RowRelation::Constant) }
}

fn of_sparse(tensor: &SparseTensorProto) -> RowValue {
    if tensor.dims.len() > MAX_RANK {
        return RowValue::constant();
    }
    RowValue::new(tensor.dims.iter().map(|&size| Dim::known(size)).collect(), RowRelation::Constant)
}

/// Gives each element of a small constant list a symbol, so that it is followed.
fn with_symbols(scope: &RowScope<'_>, mut value: RowValue) -> RowValue {
    let count = value.shape.as_deref().and_then(|shape| match shape {
        [] => Some(1),
        [one] => one.value(),
        _ => None,
    });
    if let Some(count) = count.filter(|count| (0..=MAX_SYMBOLS).contains(count))
        && value.data.is_none()
        && value.is_constant()
    {
        let first = scope.symbols.get();
        scope.symbols.set(first + count as usize);
        value.data = Some((1..=count as usize).map(|at| Dim::symbol(&format!("?{}", first + at))).collect());
    }
    value
}
