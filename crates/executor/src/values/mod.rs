//! What a model computes with a request's values, found out at load: whole numbers that an engine cannot hold, sizes that a
//! client could choose, and NaN that an engine would make a number of.
//!
//! Three harms are prevented that no engine reports. An engine that computes INT64 in 32 bits cuts off what is larger, and answers.
//! One whose `Relu` and `Clip` take NaN for less than any number answers with that number; so requests with NaN in an input that such
//! an operator may see are refused, unless the model looks for NaN itself. And an operator that makes a tensor as large as a
//! number in the request says (`ConstantOfShape`, `Range`, …) lets one client allocate until the process ends. So bounds of all
//! numbers are followed through the graph: from constants, from what requests may hold, and operator by operator. What stems
//! from shapes alone is left alone, since a request's size bounds it; that keeps ordinary models, which compute with shapes and
//! look up ids, out of it.
//!
//! The analysis is coarse where it does not matter: what an unknown operator gives may be any number of its type, and what a
//! `Loop` hands from turn to turn is taken to fit unless it stems from the request.

mod numbers;
mod operators;
mod value;

use crate::source::InputRange;
use crate::{LoadError, RequestError, Tensor};
use operators::compute;
use ripieno_model::{DataType, TensorSpec};
use ripieno_onnx::OnnxFile;
use ripieno_onnx::proto::{FunctionProto, GraphProto, NodeProto, elem};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use value::{ANY, Bounds, Item, MOST_ITEMS, NARROW, Origin, Value};

/// The largest tensor that numbers of a request may ask for, in bytes.
const MOST_BYTES: f64 = (1u64 << 30) as f64;

/// What the blocks before have left.
#[derive(Default)]
pub(crate) struct Known {
    /// In tensors of these names.
    values: HashMap<String, Value>,
    /// The inputs of the request that these stem from.
    sources: HashMap<String, BTreeSet<String>>,
    /// Inputs whose NaN an operator would make a number of, and that operator.
    loses_nan: BTreeMap<String, &'static str>,
    /// Inputs in which the model looks for NaN.
    looks_for_nan: BTreeSet<String>,
}

/// An engine's limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Whether INT64 is computed in 32 bits.
    pub(crate) narrow: bool,
    /// Operators that give a number for NaN.
    pub(crate) lose_nan: &'static [&'static str],
    /// The most operators one after the other, where it recurses into them on a thread of its own.
    pub(crate) deepest: Option<usize>,
}

impl Known {
    pub(crate) fn nothing() -> Known {
        Known::default()
    }

    /// The inputs whose requests must not bring NaN, and which operator would make a number of it.
    pub(crate) fn loses_nan(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let lost = self.loses_nan.iter().filter(|(input, _)| !self.looks_for_nan.contains(*input));
        lost.map(|(input, operator)| (&**input, *operator))
    }

    /// Follows the values of a block, of which the file declares these inputs, and refuses it if it must not be run.
    pub(crate) fn follow(
        &mut self,
        file: &OnnxFile,
        inputs: &[TensorSpec],
        ranges: &[InputRange],
        limits: Limits,
    ) -> Result<(), LoadError> {
        let refuse = |cause: String| LoadError(format!("{}: {cause}", file.path().display()));
        check_functions(file.functions()).map_err(refuse)?;
        let graph = file.graph();
        let mut values: HashMap<&str, Value> = HashMap::new();
        let before: Vec<(String, Value)> = inputs
            .iter()
            .map(|spec| {
                let value = self.values.get(&spec.name).cloned().unwrap_or_else(|| of_request(spec, ranges, limits));
                (spec.name.clone(), value)
            })
            .collect();
        values.extend(before.iter().map(|(name, value)| (&**name, value.clone())));
        let (loses_nan, looks_for_nan) = Default::default();
        let mut walk = Walk {
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
        let given: Vec<(String, Value)> = graph
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

/// The elements of an input, as far as its type and owner say.
fn of_request(spec: &TensorSpec, ranges: &[InputRange], limits: Limits) -> Value {
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
        Some(range) => Bounds::new(range.least, range.most),
        // What is larger is refused when it comes.
        None if kind == elem::INT64 && limits.narrow => NARROW,
        None => Bounds::of_type(kind),
    };
    let item = Item { origin: Origin::Request, bounds };
    match spec.shape[..] {
        [] => Value::of_items(kind, vec![item]),
        [length] if (1..=MOST_ITEMS as i64).contains(&length) => Value::of_items(kind, vec![item; length as usize]),
        _ => Value::new(kind, Origin::Request, bounds),
    }
}

/// Refuses a request that brings a number beyond what its input is declared to hold, or beyond what the engine can.
pub(crate) fn check_request(inputs: &[Tensor], ranges: &[InputRange], limits: Limits) -> Result<(), RequestError> {
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

/// The elements as numbers; nothing of strings.
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

/// The values of a graph, in the order in which they are computed.
struct Walk<'a> {
    values: HashMap<&'a str, Value>,
    limits: Limits,
    /// The inputs of the request that a value stems from.
    sources: HashMap<&'a str, BTreeSet<String>>,
    loses_nan: BTreeMap<String, &'static str>,
    looks_for_nan: BTreeSet<String>,
    /// How many operators, one after the other, a value took.
    depths: HashMap<&'a str, usize>,
    /// What is there when a node comes.
    made: HashSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn graph(&mut self, graph: &'a GraphProto) -> Result<(), String> {
        self.made.extend(graph.input.iter().map(|input| &*input.name));
        for weight in &graph.initializer {
            self.made.insert(&weight.name);
            let value = Value::constant(weight.data_type, numbers::numbers(weight), weight.dims.len());
            self.values.insert(&weight.name, value);
        }
        graph.node.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &'a NodeProto) -> Result<(), String> {
        self.check_order(node)?;
        self.check_depth(node)?;
        let taken: Vec<Option<Value>> = node.input.iter().map(|name| self.values.get(&**name).cloned()).collect();
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
            if value.origin == Origin::Shapes && value.kind == elem::INT64 {
                // As large as a request is, and so within the range.
                value.bounds = Bounds::new(value.bounds.least.max(NARROW.least), value.bounds.most.min(NARROW.most));
            }
            self.values.insert(name, value);
            self.sources.insert(name, sources.clone());
        }
        Ok(())
    }

    /// The graphs within an operator; what they give is what it gives.
    fn body(&mut self, node: &'a NodeProto, taken: &[Option<Value>]) -> Result<Vec<Value>, String> {
        let mut given: Vec<Value> = Vec::new();
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
            for (at, input) in graph.input.iter().enumerate() {
                let value = match (&*node.op_type, at) {
                    ("Loop", 0) => Value::new(elem::INT64, Origin::Shapes, Bounds::new(0.0, value::LONGEST)),
                    ("Loop", 1) => Value::new(elem::BOOL, Origin::Shapes, Bounds::new(0.0, 1.0)),
                    _ => taken.get(at).cloned().flatten().map_or(Value::new(0, Origin::Request, ANY), handed_on),
                };
                self.values.insert(&input.name, value);
                let outer = node.input.get(at).and_then(|name| self.sources.get(&**name)).cloned();
                self.sources.insert(&input.name, outer.unwrap_or_default());
            }
            self.graph(graph)?;
            let skipped = usize::from(node.op_type == "Loop");
            let results = graph.output.iter().skip(skipped).map(|output| self.values.get(&*output.name).cloned());
            for (at, result) in results.enumerate() {
                let result = result.unwrap_or(Value::new(0, Origin::Request, ANY));
                match given.get_mut(at) {
                    Some(before) => {
                        *before = Value::new(
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

    /// Some engines sort nodes that do not stand in the order in which they run; here they would be followed wrongly.
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

    /// Operators that make a tensor as large as their inputs' numbers say.
    fn check_sizes(&self, node: &NodeProto, taken: &[Option<Value>]) -> Result<(), String> {
        let Some((asked, at)) = operators::largest(node, taken) else { return Ok(()) };
        if asked * 8.0 <= MOST_BYTES {
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
            MOST_BYTES as u64 >> 20
        ))
    }

    /// Whole numbers of the file or of a cast that the engine has cut to 32 bits, where that matters.
    fn check_wide(&self, node: &NodeProto, taken: &[Option<Value>]) -> Result<(), String> {
        if !self.limits.narrow || operators::hands_on(&node.op_type) {
            return Ok(());
        }
        let wide = |value: &Value| value.kind == elem::INT64 && !value.bounds.within(NARROW);
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
        taken: &[Option<Value>],
        value: &Value,
    ) -> Result<(), String> {
        let computes = self.limits.narrow && operators::computes(&node.op_type) && value.kind == elem::INT64;
        let whole = || taken.iter().flatten().any(|value| value.kind == elem::INT64);
        match computes && value.origin != Origin::Shapes && whole() && !value.bounds.within(NARROW) {
            true => Err(too_wide(node, output)),
            false => Ok(()),
        }
    }

    fn check_outputs(&self, graph: &GraphProto) -> Result<(), String> {
        let wide = |value: &Value| value.kind == elem::INT64 && !value.bounds.within(NARROW);
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

/// Functions are not followed, so nothing in them may make a tensor as large as it is told.
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
            "{} in function '{}' makes a tensor as large as it is told, and what it is told within a function is not known: inline the \
             functions (onnx.inliner.inline_local_functions)",
            label(node),
            function.name
        )),
        None => Ok(()),
    }
}

/// What a body gets turn by turn is like what it gets at first, but for its elements.
fn handed_on(value: Value) -> Value {
    let bounds = if value.kind == elem::INT64 { NARROW } else { Bounds::of_type(value.kind) };
    Value::new(value.kind, value.origin.max(Origin::Shapes), bounds)
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
