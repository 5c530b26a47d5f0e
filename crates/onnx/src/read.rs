//! Construction of a graph that can be sliced, from a file.
//!
//! `Constant` nodes become weights, so that a weight is stored only in the blocks that use it,
//! whichever form the exporter chose. A graph that cannot be sliced with certainty is refused here
//! with the reason, before the search for cuts.

use crate::dim::Dim;
use crate::error::{OnnxError, refuse};
use crate::file::OnnxFile;
use crate::graph::{GraphValue, OnnxModel, OpNode};
use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, elem};
use crate::shapes;
use crate::weights;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;

/// Operators that contain graphs.
const CONTROL_FLOW: [&str; 6] = ["If", "Loop", "Scan", "SequenceMap", "Optional", "SplitToSequence"];
const MAX_NODES: usize = 1 << 20;

impl OnnxModel {
    /// Reads and checks an ONNX file. Weights in external files are not read until blocks are
    /// written.
    pub fn read(path: &Path) -> Result<OnnxModel, OnnxError> {
        OnnxModel::of(OnnxFile::read(path)?)
    }

    /// Checks a file from memory. `path` names the file in messages, and external weights are in
    /// its folder.
    pub fn parse(bytes: impl Into<Bytes>, path: &Path) -> Result<OnnxModel, OnnxError> {
        OnnxModel::of(OnnxFile::parse(bytes, path)?)
    }

    fn of(OnnxFile { path, model: file, graph }: OnnxFile) -> Result<OnnxModel, OnnxError> {
        let named = |cause: OnnxError| OnnxError(format!("{}: {cause}", path.display()));
        if !file.functions.is_empty() {
            let fix = "export it with inlined functions (onnx.inliner)";
            return Err(named(OnnxError(format!("it defines functions of its own, which are not sliced: {fix}"))));
        }
        let mut model = Builder::build(graph, &path).map_err(named)?;
        (model.ir_version, model.opsets) = (file.ir_version, file.opset_import);
        let version = model.opset();
        shapes::infer(&mut model, version).map_err(named)?;
        Ok(model)
    }
}

#[derive(Default)]
struct Builder {
    values: Vec<GraphValue>,
    numbers: HashMap<String, usize>,
    weights: Vec<TensorProto>,
    length: Option<String>,
    batch_names: BTreeSet<String>,
}

impl Builder {
    fn build(graph: GraphProto, path: &Path) -> Result<OnnxModel, OnnxError> {
        let mut builder = Builder::default();
        if !graph.sparse_initializer.is_empty() {
            return refuse("it holds sparse weights, which are not sliced: export it with dense ones");
        }
        if graph.node.len() > MAX_NODES || graph.node.is_empty() {
            return refuse(format!("it has {} operators; 1 to {MAX_NODES} can be sliced", graph.node.len()));
        }
        for weight in graph.initializer {
            builder.weight(weight)?;
        }
        let (constants, nodes): (Vec<_>, Vec<_>) = graph.node.into_iter().partition(is_constant);
        for node in constants {
            builder.constant(node)?;
        }
        let inputs = builder.inputs(&graph.input)?;
        builder.declared(&graph.value_info);
        builder.declared(&graph.output);
        let nodes = builder.nodes(nodes, &inputs)?;
        let outputs = builder.outputs(&graph.output)?;
        let Builder { values, weights, length, .. } = builder;
        let path = path.to_owned();
        Ok(OnnxModel { path, ir_version: 0, opsets: Vec::new(), values, nodes, weights, inputs, outputs, length })
    }

    fn value(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let value = GraphValue { name: name.to_owned(), elem: 0, shape: vec![], data: None, weight: None, node: None };
        self.values.push(value);
        self.numbers.insert(name.to_owned(), self.values.len() - 1);
        self.values.len() - 1
    }

    fn weight(&mut self, weight: TensorProto) -> Result<(), OnnxError> {
        if weight.name.is_empty() || self.numbers.contains_key(&weight.name) {
            return refuse(format!("two weights are named '{}', or one has no name: export it anew", weight.name));
        }
        if weight.dims.iter().any(|&dim| dim < 0) {
            return refuse(format!("weight '{}' has the shape {:?}: export it anew", weight.name, weight.dims));
        }
        let number = self.value(&weight.name);
        let value = &mut self.values[number];
        value.elem = weight.data_type;
        value.shape = weight.dims.iter().map(|&dim| Dim::known(dim)).collect();
        value.data = weights::small_ints(&weight).map(|ints| ints.into_iter().map(Dim::known).collect());
        value.weight = Some(self.weights.len());
        self.weights.push(weight);
        Ok(())
    }

    /// Adds the weight of a `Constant` node.
    fn constant(&mut self, node: NodeProto) -> Result<(), OnnxError> {
        let (Some(attribute), Some(name)) = (node.attribute.first(), node.output.first()) else {
            return refuse(format!("{} has no value: export the model anew", node.label()));
        };
        let mut weight = constant_tensor(attribute)
            .ok_or_else(|| OnnxError(format!("{} has a value of a kind that is not sliced", node.label())))?;
        weight.name.clone_from(name);
        self.weight(weight)
    }

    fn inputs(&mut self, infos: &[ValueInfoProto]) -> Result<Vec<usize>, OnnxError> {
        let mut inputs = Vec::new();
        for info in infos {
            if self.numbers.get(&info.name).is_some_and(|&number| self.values[number].weight.is_some()) {
                continue;
            }
            let (elem, shape) = self.input_shape(info)?;
            let number = self.value(&info.name);
            (self.values[number].elem, self.values[number].shape) = (elem, shape);
            inputs.push(number);
        }
        if inputs.is_empty() {
            return refuse("it has no input: a model that is served needs one");
        }
        Ok(inputs)
    }

    /// Returns the type and shape of an input. The first dimension must be the batch. At most one
    /// other dimension may be dynamic: the length.
    fn input_shape(&mut self, info: &ValueInfoProto) -> Result<(i32, Vec<Dim>), OnnxError> {
        let name = &info.name;
        let Some((elem, dims)) = tensor_type(info.r#type.as_ref()) else {
            return refuse(format!("input '{name}' is not a tensor of a known shape: export it with one"));
        };
        let mut shape = Vec::with_capacity(dims.len());
        for (axis, (size, param)) in dims.into_iter().enumerate() {
            shape.push(match (axis, size) {
                (0, Some(size)) => {
                    let fix = "export it with a dynamic batch axis";
                    return refuse(format!("input '{name}' has a fixed first dimension {size}: {fix}"));
                }
                (0, None) => {
                    self.batch_names.extend(param);
                    Dim::batch()
                }
                (_, Some(size)) => Dim::known(size),
                (axis, None) => self.length_dim(name, axis, param)?,
            });
        }
        match shape.is_empty() {
            true => refuse(format!("input '{name}' is a scalar: export it with a dynamic batch axis")),
            false => Ok((elem, shape)),
        }
    }

    fn length_dim(&mut self, input: &str, axis: usize, param: Option<String>) -> Result<Dim, OnnxError> {
        let param = param.filter(|param| !self.batch_names.contains(param));
        let name = param.unwrap_or_else(|| if axis == 1 { "length".to_owned() } else { format!("{input}_{axis}") });
        match &self.length {
            Some(known) if *known != name => refuse(format!(
                "input '{input}' has the dynamic dimension '{name}' beside '{known}': only the batch and one length may be \
                 dynamic; export it with the others fixed"
            )),
            _ => {
                self.length = Some(name.clone());
                Ok(Dim::symbol(&name))
            }
        }
    }

    /// Records declared types and shapes of values that nodes compute. They are used where
    /// inference has no result.
    fn declared(&mut self, infos: &[ValueInfoProto]) {
        for info in infos {
            let known = self.numbers.contains_key(&info.name);
            let Some((elem, dims)) = tensor_type(info.r#type.as_ref()).filter(|_| !known) else { continue };
            let dim = |(size, param): (Option<i64>, Option<String>)| match (size, param) {
                (Some(size), _) => Dim::known(size),
                (None, Some(param)) if self.batch_names.contains(&param) => Dim::batch(),
                (None, param) => Dim::symbol(&param.unwrap_or_else(|| "?".to_owned())),
            };
            let shape = dims.into_iter().map(dim).collect();
            let number = self.value(&info.name);
            (self.values[number].elem, self.values[number].shape) = (elem, shape);
        }
    }

    /// Returns the names of values that exist before the first node runs.
    fn given(&self, inputs: &[usize]) -> BTreeSet<String> {
        let weights = self.values.iter().filter(|value| value.weight.is_some());
        weights.chain(inputs.iter().map(|&input| &self.values[input])).map(|value| value.name.clone()).collect()
    }

    fn nodes(&mut self, protos: Vec<NodeProto>, inputs: &[usize]) -> Result<Vec<OpNode>, OnnxError> {
        let mut nodes = Vec::with_capacity(protos.len());
        for proto in sorted(protos, &self.given(inputs))? {
            check_plain(&proto)?;
            let inputs = proto.input.iter().map(|name| (!name.is_empty()).then(|| self.value(name))).collect();
            let outputs: Vec<Option<usize>> =
                proto.output.iter().map(|name| (!name.is_empty()).then(|| self.value(name))).collect();
            for &output in outputs.iter().flatten() {
                let value = &mut self.values[output];
                if value.node.is_some() || value.weight.is_some() {
                    return refuse(format!("tensor '{}' is computed twice: export the model anew", value.name));
                }
                value.node = Some(nodes.len());
            }
            nodes.push(OpNode { proto, inputs, outputs });
        }
        Ok(nodes)
    }

    fn outputs(&self, infos: &[ValueInfoProto]) -> Result<Vec<usize>, OnnxError> {
        let number = |info: &ValueInfoProto| {
            let number = self.numbers.get(&info.name).copied();
            number.ok_or_else(|| OnnxError(format!("nothing computes output '{}': export the model anew", info.name)))
        };
        let outputs = infos.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        if outputs.is_empty() { refuse("it has no output: export the model anew") } else { Ok(outputs) }
    }
}

fn is_constant(node: &NodeProto) -> bool {
    node.op_type == "Constant" && node.is_standard()
}

fn check_plain(node: &NodeProto) -> Result<(), OnnxError> {
    let holds_graph = node.attribute.iter().any(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty());
    if holds_graph || node.is_standard() && CONTROL_FLOW.contains(&&*node.op_type) {
        return refuse(format!("{} is control flow, which is not sliced", node.label()));
    }
    match node.attribute.iter().any(|attribute| !attribute.ref_attr_name.is_empty()) {
        true => refuse(format!("{} belongs into a function: export the model anew", node.label())),
        false => Ok(()),
    }
}

pub(crate) fn constant_tensor(attribute: &AttributeProto) -> Option<TensorProto> {
    let tensor = |data_type, dims: Vec<i64>| TensorProto { data_type, dims, ..TensorProto::default() };
    match &*attribute.name {
        "value" => attribute.t.as_deref().cloned(),
        "value_int" => Some(TensorProto { int64_data: vec![attribute.i?], ..tensor(elem::INT64, vec![]) }),
        "value_ints" => {
            let count = attribute.ints.len() as i64;
            Some(TensorProto { int64_data: attribute.ints.clone(), ..tensor(elem::INT64, vec![count]) })
        }
        "value_float" => Some(TensorProto { float_data: vec![attribute.f?], ..tensor(elem::FLOAT, vec![]) }),
        "value_floats" => {
            let count = attribute.floats.len() as i64;
            Some(TensorProto { float_data: attribute.floats.clone(), ..tensor(elem::FLOAT, vec![count]) })
        }
        _ => None,
    }
}

type Sizes = Vec<(Option<i64>, Option<String>)>;

/// Returns the element type, and the size or name of each dimension.
fn tensor_type(of: Option<&TypeProto>) -> Option<(i32, Sizes)> {
    let tensor = of?.tensor_type.as_ref()?;
    let dims = tensor.shape.as_ref()?.dim.iter().map(|dim| {
        let size = dim.dim_value.filter(|&size| size > 0);
        (size, dim.dim_param.clone().filter(|name| size.is_none() && !name.is_empty()))
    });
    Some((tensor.elem_type, dims.collect()))
}

/// Sorts the nodes topologically. Keeps the file's order if it is valid, as the format requires.
fn sorted(protos: Vec<NodeProto>, given: &BTreeSet<String>) -> Result<Vec<NodeProto>, OnnxError> {
    let mut giver: HashMap<&str, usize> = HashMap::new();
    for (at, proto) in protos.iter().enumerate() {
        giver.extend(proto.output.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), at)));
    }
    let mut waits = vec![0usize; protos.len()];
    let mut takers: Vec<Vec<usize>> = vec![Vec::new(); protos.len()];
    for (at, proto) in protos.iter().enumerate() {
        for name in proto.input.iter().filter(|name| !name.is_empty()) {
            match giver.get(name.as_str()) {
                Some(&from) => {
                    waits[at] += 1;
                    takers[from].push(at);
                }
                None if given.contains(name) => {}
                None => return refuse(format!("{} takes '{name}', which nothing gives", proto.label())),
            }
        }
    }
    let in_order = protos
        .iter()
        .enumerate()
        .all(|(at, proto)| proto.input.iter().filter_map(|name| giver.get(name.as_str())).all(|&from| from < at));
    if in_order {
        return Ok(protos);
    }
    let mut ready: VecDeque<usize> = (0..protos.len()).filter(|&at| waits[at] == 0).collect();
    let mut order = Vec::with_capacity(protos.len());
    while let Some(at) = ready.pop_front() {
        order.push(at);
        for &taker in &takers[at] {
            waits[taker] -= 1;
            if waits[taker] == 0 {
                ready.push_back(taker);
            }
        }
    }
    if order.len() < protos.len() {
        return refuse("its operators wait for one another in a circle: export the model anew");
    }
    let mut protos: Vec<Option<NodeProto>> = protos.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|at| protos[at].take()).collect())
}
