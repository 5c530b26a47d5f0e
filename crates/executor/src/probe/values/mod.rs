//! Analysis of a model's values at load. It prevents three errors that no engine reports:
//!
//! * An engine that computes INT64 in 32 bits truncates larger numbers silently.
//! * An engine whose `Relu` and `Clip` treat NaN as less than any number answers with a number.
//!   Requests with NaN in an input that reaches such an operator are refused, unless the model
//!   checks for NaN itself.
//! * Operators such as `ConstantOfShape` and `Range` create a tensor whose size is a number. If the
//!   number comes from a request, one client could make the process run out of memory.
//!
//! The analysis propagates bounds of all numbers through the graph, operator by operator. It begins
//! with constants and the ranges of requests. A request's size bounds all values that derive only
//! from shapes, so these values are exempt. So models that compute with shapes and look up ids are
//! not refused.
//!
//! The analysis is coarse where precision does not matter. An unknown operator may output any
//! number of its type. Values that a `Loop` passes between iterations are assumed to fit, unless
//! they derive from the request.

mod numbers;
mod operators;
mod value;

use crate::contract::source::InputRange;
use crate::{LoadError, RequestError, Tensor};
use operators::compute;
use ripieno_model::{DataType, TensorSpec};
use ripieno_onnx::OnnxFile;
use ripieno_onnx::proto::{FunctionProto, GraphProto, NodeProto, elem};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use value::{ANY, ElementOrigin, ElementValue, MAX_ITEMS, NARROW, NumberBounds, TensorValue};

/// Largest size in bytes of a tensor whose size depends on numbers of a request.
const MAX_TENSOR_BYTES: f64 = (1u64 << 30) as f64;

/// Results of the blocks analysed so far.
#[derive(Default)]
pub(crate) struct ValueAnalysis {
    /// Values of tensors, by name.
    values: HashMap<String, TensorValue>,
    /// Inputs of the request from which each value derives.
    sources: HashMap<String, BTreeSet<String>>,
    /// Inputs whose NaN an operator would turn into a number, with the name of the operator.
    loses_nan: BTreeMap<String, &'static str>,
    /// Inputs that the model itself checks for NaN.
    looks_for_nan: BTreeSet<String>,
}

/// Limits of an engine's arithmetic.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineLimits {
    /// Whether INT64 is computed in 32 bits.
    pub(crate) narrow: bool,
    /// Operators that turn NaN into a number.
    pub(crate) lose_nan: &'static [&'static str],
    /// Largest allowed depth of a graph, if the engine recurses over the graph on a thread with a
    /// small stack.
    pub(crate) deepest: Option<usize>,
    /// Whether inputs with defaults can have a datatype; `None` for all datatypes.
    pub(crate) carries: Option<fn(DataType) -> bool>,
}

impl ValueAnalysis {
    pub(crate) fn nothing() -> ValueAnalysis {
        ValueAnalysis::default()
    }

    /// Returns the inputs that must not contain NaN, each with the operator that would turn NaN
    /// into a number.
    pub(crate) fn loses_nan(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let lost = self.loses_nan.iter().filter(|(input, _)| !self.looks_for_nan.contains(*input));
        lost.map(|(input, operator)| (&**input, *operator))
    }

    /// Analyses a block whose file declares these inputs. Returns an error if the engine must not
    /// run the block.
    pub(crate) fn follow(
        &mut self,
        file: &OnnxFile,
        inputs: &[TensorSpec],
        ranges: &[InputRange],
        limits: EngineLimits,
    ) -> Result<(), LoadError> {
        let refuse = |cause: String| LoadError(format!("{}: {cause}", file.path().display()));
        check_functions(file.functions()).map_err(refuse)?;
        let graph = file.graph();
        let mut values: HashMap<&str, TensorValue> = HashMap::new();
        let before: Vec<(String, TensorValue)> = inputs
            .iter()
            .map(|spec| {
                let value = self.values.get(&spec.name).cloned().unwrap_or_else(|| of_request(spec, ranges, limits));
                (spec.name.clone(), value)
            })
            .collect();
        values.extend(before.iter().map(|(name, value)| (&**name, value.clone())));
        let (loses_nan, looks_for_nan) = Default::default();
        let mut walk = GraphWalk {
            path: file.path(),
            values,
            limits,
            sources: HashMap::new(),
            depths: HashMap::new(),
            loses_nan,
            looks_for_nan,
            made: HashSet::new(),
        };
        walk.made.extend(before.iter().map(|(name, _)| &**name));
        let sources = |name: &String| self.sources.get(name).cloned().unwrap_or_else(|| BTreeSet::from([name.clone()]));
        walk.sources.extend(before.iter().map(|(name, _)| (&**name, sources(name))));
        walk.graph(graph).map_err(refuse)?;
        walk.check_outputs(graph).map_err(refuse)?;
        let given: Vec<(String, TensorValue)> = graph
            .output
            .iter()
            .filter_map(|output| Some((output.name.clone(), walk.values.get(&*output.name)?.clone())))
            .collect();
        let outputs = graph.output.iter();
        let sources =
            outputs.filter_map(|output| Some((output.name.clone(), walk.sources.get(&*output.name)?.clone())));
        self.sources.extend(sources);
        self.loses_nan.extend(walk.loses_nan);
        self.looks_for_nan.extend(walk.looks_for_nan);
        self.values.extend(given);
        Ok(())
    }
}

/// Returns the value of an input, from its type and declared range.
fn of_request(spec: &TensorSpec, ranges: &[InputRange], limits: EngineLimits) -> TensorValue {
    let kind = match spec.datatype {
        DataType::Fp32 => elem::FLOAT,
        DataType::Fp64 => elem::DOUBLE,
        DataType::Int64 => elem::INT64,
        DataType::Int32 => elem::INT32,
        DataType::Int8 => elem::INT8,
        DataType::Uint8 => elem::UINT8,
        DataType::Bool => elem::BOOL,
        _ => 0,
    };
    let bounds = match ranges.iter().find(|range| range.tensor == spec.name) {
        Some(range) => NumberBounds::new(range.least, range.most),
        // Requests with larger numbers are refused at admission.
        None if kind == elem::INT64 && limits.narrow => NARROW,
        None => NumberBounds::of_type(kind),
    };
    let item = ElementValue { origin: ElementOrigin::Request, bounds };
    match spec.shape[..] {
        [] => TensorValue::of_items(kind, vec![item]),
        [length] if (1..=MAX_ITEMS as i64).contains(&length) => {
            TensorValue::of_items(kind, vec![item; length as usize])
        }
        _ => TensorValue::new(kind, ElementOrigin::Request, bounds),
    }
}

/// Refuses a request with a number outside the declared range of its input, or outside the engine's
/// range.
pub(crate) fn check_request(
    inputs: &[Tensor],
    ranges: &[InputRange],
    limits: EngineLimits,
) -> Result<(), RequestError> {
    for tensor in inputs {
        let range = ranges.iter().find(|range| *range.tensor == *tensor.name);
        if let Some(range) = range
            && let Some(wrong) = numbers(tensor).find(|number| !(range.least..=range.most).contains(number))
        {
            let InputRange { least, most, .. } = range;
            return Err(RequestError(format!(
                "input '{}' holds {wrong}, but the model takes {least} to {most} there; send less, or change min and max in its \
                 model.toml",
                tensor.name
            )));
        }
        if limits.narrow
            && tensor.datatype == DataType::Int64
            && let Some(wrong) = whole_numbers(tensor).find(|&number| i32::try_from(number).is_err())
        {
            return Err(RequestError(format!(
                "input '{}' holds {wrong}, which does not fit the 32-bit integers that engine 'cpu' computes in: send less, or \
                 serve with --engine onnxruntime",
                tensor.name
            )));
        }
    }
    Ok(())
}

fn whole_numbers(tensor: &Tensor) -> impl Iterator<Item = i64> {
    tensor.data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes))
}

/// Returns the elements as numbers; empty for strings.
fn numbers(tensor: &Tensor) -> Box<dyn Iterator<Item = f64> + '_> {
    macro_rules! read {
        ($number:ty) => {
            Box::new(tensor.data.as_chunks().0.iter().map(|&bytes| <$number>::from_le_bytes(bytes) as f64))
        };
    }
    match tensor.datatype {
        DataType::Int64 => read!(i64),
        DataType::Int32 => read!(i32),
        DataType::Int16 => read!(i16),
        DataType::Int8 => read!(i8),
        DataType::Uint64 => read!(u64),
        DataType::Uint32 => read!(u32),
        DataType::Uint16 => read!(u16),
        DataType::Fp32 => read!(f32),
        DataType::Fp64 => read!(f64),
        DataType::Uint8 | DataType::Bool => Box::new(tensor.data.iter().map(|&byte| f64::from(byte))),
        DataType::Fp16 => {
            Box::new(tensor.data.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f64()))
        }
        DataType::Bf16 => {
            Box::new(tensor.data.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f64()))
        }
        DataType::Bytes => Box::new(std::iter::empty()),
    }
}

/// Analysis of one graph, which visits the nodes in the order of computation.
struct GraphWalk<'a> {
    /// Path of the ONNX file.
    path: &'a Path,
    values: HashMap<&'a str, TensorValue>,
    limits: EngineLimits,
    /// Inputs of the request from which each value derives.
    sources: HashMap<&'a str, BTreeSet<String>>,
    loses_nan: BTreeMap<String, &'static str>,
    looks_for_nan: BTreeSet<String>,
    /// Depth of each value: the number of operators on the longest path to it.
    depths: HashMap<&'a str, usize>,
    /// Names that exist before the current node.
    made: HashSet<&'a str>,
}

impl<'a> GraphWalk<'a> {
    fn graph(&mut self, graph: &'a GraphProto) -> Result<(), String> {
        self.made.extend(graph.input.iter().map(|input| &*input.name));
        for weight in &graph.initializer {
            self.made.insert(&weight.name);
            let external = numbers::with_external(weight, self.path);
            let known = external.as_ref().unwrap_or(weight);
            let value = TensorValue::constant(weight.data_type, numbers::numbers(known), weight.dims.len());
            self.values.insert(&weight.name, value);
        }
        graph.node.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &'a NodeProto) -> Result<(), String> {
        self.check_order(node)?;
        self.check_depth(node)?;
        let taken: Vec<Option<TensorValue>> = node.input.iter().map(|name| self.values.get(&**name).cloned()).collect();
        self.check_sizes(node, &taken)?;
        self.check_wide(node, &taken)?;
        let given = match &*node.op_type {
            "If" | "Loop" | "Scan" => self.body(node, &taken)?,
            _ => compute(node, &taken),
        };
        let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
        let results = bodies.flat_map(|body| body.output.iter().map(|output| &output.name));
        let sources: BTreeSet<String> =
            node.input.iter().chain(results).filter_map(|name| self.sources.get(&**name)).flatten().cloned().collect();
        if let Some(operator) = self.limits.lose_nan.iter().find(|operator| **operator == node.op_type) {
            self.loses_nan.extend(sources.iter().map(|input| (input.clone(), *operator)));
        }
        if node.op_type == "IsNaN" {
            self.looks_for_nan.extend(sources.iter().cloned());
        }
        for (name, mut value) in node.output.iter().zip(given) {
            self.check_arithmetic(node, name, &taken, &value)?;
            if value.origin == ElementOrigin::Shapes && value.kind == elem::INT64 {
                // The size of a request bounds this value, so it is within the range.
                value.bounds =
                    NumberBounds::new(value.bounds.least.max(NARROW.least), value.bounds.most.min(NARROW.most));
            }
            self.values.insert(name, value);
            self.sources.insert(name, sources.clone());
        }
        Ok(())
    }

    /// Analyses the graphs inside an operator. Their outputs become the operator's outputs.
    fn body(&mut self, node: &'a NodeProto, taken: &[Option<TensorValue>]) -> Result<Vec<TensorValue>, String> {
        let mut given: Vec<TensorValue> = Vec::new();
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
            for (at, input) in graph.input.iter().enumerate() {
                let value = match (&*node.op_type, at) {
                    ("Loop", 0) => {
                        TensorValue::new(elem::INT64, ElementOrigin::Shapes, NumberBounds::new(0.0, value::MAX_LENGTH))
                    }
                    ("Loop", 1) => TensorValue::new(elem::BOOL, ElementOrigin::Shapes, NumberBounds::new(0.0, 1.0)),
                    _ => taken
                        .get(at)
                        .cloned()
                        .flatten()
                        .map_or(TensorValue::new(0, ElementOrigin::Request, ANY), handed_on),
                };
                self.values.insert(&input.name, value);
                let outer = node.input.get(at).and_then(|name| self.sources.get(&**name)).cloned();
                self.sources.insert(&input.name, outer.unwrap_or_default());
            }
            self.graph(graph)?;
            let skipped = usize::from(node.op_type == "Loop");
            let results = graph.output.iter().skip(skipped).map(|output| self.values.get(&*output.name).cloned());
            for (at, result) in results.enumerate() {
                let result = result.unwrap_or(TensorValue::new(0, ElementOrigin::Request, ANY));
                match given.get_mut(at) {
                    Some(before) => {
                        *before = TensorValue::new(
                            result.kind,
                            before.origin.max(result.origin),
                            before.bounds.union(result.bounds),
                        );
                    }
                    None => given.push(result),
                }
            }
        }
        Ok(given)
    }

    /// Refuses nodes that are out of order. Some engines sort them, but this analysis would be
    /// wrong.
    fn check_order(&mut self, node: &'a NodeProto) -> Result<(), String> {
        let missing = node.input.iter().find(|name| !name.is_empty() && !self.made.contains(&***name));
        self.made.extend(node.output.iter().map(|name| &**name));
        match missing {
            Some(name) => Err(format!(
                "{} takes '{name}', which nothing before it gives: the nodes of an ONNX graph stand in the order in which they run; \
                 export the model anew",
                label(node)
            )),
            None => Ok(()),
        }
    }

    fn check_depth(&mut self, node: &'a NodeProto) -> Result<(), String> {
        let before = node.input.iter().filter_map(|name| self.depths.get(&**name)).max();
        let depth = before.map_or(1, |depth| depth + 1);
        self.depths.extend(node.output.iter().map(|name| (&**name, depth)));
        match self.limits.deepest.filter(|&deepest| depth > deepest) {
            Some(deepest) => Err(format!(
                "{} comes after more than {deepest} others, one after the other, which is too deep for engine 'cpu': use --engine \
                 onnxruntime",
                label(node)
            )),
            None => Ok(()),
        }
    }

    /// Checks operators that create a tensor whose size is a number in their inputs.
    fn check_sizes(&self, node: &NodeProto, taken: &[Option<TensorValue>]) -> Result<(), String> {
        let Some((asked, at)) = operators::largest(node, taken) else { return Ok(()) };
        if asked * 8.0 <= MAX_TENSOR_BYTES {
            return Ok(());
        }
        let inputs: Vec<String> =
            node.input.get(at).and_then(|name| self.sources.get(&**name)).into_iter().flatten().cloned().collect();
        if inputs.is_empty() {
            return Err(format!("{} makes a tensor of {asked:.0} elements: more than can be had", label(node)));
        }
        let name = inputs.first().map_or("…", String::as_str);
        Err(format!(
            "{} makes a tensor as large as numbers of the request say (input {}), so a client could have it take all memory: \
             declare what they may be, so that no more than {} MiB are asked for: [[input]] name = \"{name}\" min = 0 max = 64 in \
             model.toml",
            label(node),
            inputs.join(", "),
            MAX_TENSOR_BYTES as u64 >> 20
        ))
    }

    /// Checks integers, from the file or a cast, that the engine truncates to 32 bits. Ignores
    /// cases in which truncation has no effect.
    fn check_wide(&self, node: &NodeProto, taken: &[Option<TensorValue>]) -> Result<(), String> {
        if !self.limits.narrow || operators::hands_on(&node.op_type) {
            return Ok(());
        }
        let wide = |value: &TensorValue| value.kind == elem::INT64 && !value.bounds.within(NARROW);
        let harmed = taken
            .iter()
            .enumerate()
            .find(|(at, value)| value.as_ref().is_some_and(wide) && !operators::bounds_only(&node.op_type, *at));
        match harmed {
            Some((at, _)) => Err(too_wide(node, &node.input[at])),
            None => Ok(()),
        }
    }

    fn check_arithmetic(
        &self,
        node: &NodeProto,
        output: &str,
        taken: &[Option<TensorValue>],
        value: &TensorValue,
    ) -> Result<(), String> {
        let computes = self.limits.narrow && operators::computes(&node.op_type) && value.kind == elem::INT64;
        let whole = || taken.iter().flatten().any(|value| value.kind == elem::INT64);
        match computes && value.origin != ElementOrigin::Shapes && whole() && !value.bounds.within(NARROW) {
            true => Err(too_wide(node, output)),
            false => Ok(()),
        }
    }

    fn check_outputs(&self, graph: &GraphProto) -> Result<(), String> {
        let wide = |value: &TensorValue| value.kind == elem::INT64 && !value.bounds.within(NARROW);
        let output = graph.output.iter().find(|output| self.values.get(&*output.name).is_some_and(wide));
        match output.filter(|_| self.limits.narrow) {
            Some(output) => Err(format!(
                "output '{}' is INT64 and may be beyond the 32-bit integers that engine 'cpu' computes in: use --engine \
                 onnxruntime, or declare min and max of the inputs that it depends on in model.toml",
                output.name
            )),
            None => Ok(()),
        }
    }
}

/// Refuses functions that contain operators that create a tensor of a given size, because functions
/// are not analysed.
fn check_functions(functions: &[FunctionProto]) -> Result<(), String> {
    fn find(nodes: &[NodeProto]) -> Option<&NodeProto> {
        nodes.iter().find_map(|node| {
            let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
            let within = || bodies.into_iter().find_map(|body| find(&body.node));
            operators::sizes(&node.op_type).then_some(node).or_else(within)
        })
    }
    match functions.iter().find_map(|function| Some((function, find(&function.node)?))) {
        Some((function, node)) => Err(format!(
            "{} in function '{}' makes a tensor of a given size, which is not known within a function: inline the \
             functions (onnx.inliner.inline_local_functions)",
            label(node),
            function.name
        )),
        None => Ok(()),
    }
}

/// Returns the value of a body's input in later iterations. It equals the first iteration's value,
/// but its elements are unknown.
fn handed_on(value: TensorValue) -> TensorValue {
    let bounds = if value.kind == elem::INT64 { NARROW } else { NumberBounds::of_type(value.kind) };
    TensorValue::new(value.kind, value.origin.max(ElementOrigin::Shapes), bounds)
}

fn too_wide(node: &NodeProto, tensor: &str) -> String {
    format!(
        "{}: INT64 tensor '{tensor}' may hold numbers beyond the 32-bit integers that engine 'cpu' computes in: use --engine \
         onnxruntime, or declare min and max of the inputs that it depends on in model.toml",
        label(node)
    )
}

fn label(node: &NodeProto) -> String {
    format!("operator {}", node.label())
}

#[cfg(test)]
mod tests;
