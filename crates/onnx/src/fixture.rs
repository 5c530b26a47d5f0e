//! Small models for tests, and rten to run them. They are built in code, so that each test shows
//! its graph.

use crate::proto::{
    DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetProto, ShapeProto, TensorProto, TensorTypeProto,
    TypeProto, ValueInfoProto, elem,
};
use crate::weights::{float_tensor, int_tensor};
use crate::{OnnxModel, Slices};
use prost::Message;
use ripieno_workload::{stream, unit};
use rten::Value;
use rten_tensor::{AsView, Layout, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// A graph under construction.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) graph: GraphProto,
}

impl Draft {
    /// Adds an operator.
    pub(crate) fn op(&mut self, op_type: &str, inputs: &[&str], outputs: &[&str]) -> &mut NodeProto {
        self.graph.node.push(NodeProto::new(op_type, inputs, outputs));
        self.graph.node.last_mut().expect("one was just added")
    }

    /// Adds a weight of varied numbers.
    pub(crate) fn weight(&mut self, name: &str, dims: &[i64]) {
        let count = dims.iter().product::<i64>() as usize;
        let scale = 1.0 / (count as f32).sqrt().max(4.0);
        let mut random = stream(self.graph.initializer.len() as u64, 0);
        let elements: Vec<f32> = (0..count).map(|_| (2.0 * unit(&mut random) as f32 - 1.0) * 4.0 * scale).collect();
        self.graph.initializer.push(float_tensor(name, dims, &elements));
    }

    pub(crate) fn ints(&mut self, name: &str, elements: &[i64]) {
        self.graph.initializer.push(int_tensor(name, elements));
    }

    pub(crate) fn scalar(&mut self, name: &str, element: i64) {
        self.graph.initializer.push(TensorProto { dims: vec![], ..int_tensor(name, &[element]) });
    }

    /// Adds an input. Dimensions below 0 are named: -1 "n", -2 "s", -3 "t".
    pub(crate) fn input(&mut self, name: &str, elem: i32, dims: &[i64]) {
        self.graph.input.push(info(name, elem, dims));
    }

    pub(crate) fn output(&mut self, name: &str, dims: &[i64]) {
        self.graph.output.push(info(name, elem::FLOAT, dims));
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let opset_import = vec![OperatorSetProto { domain: String::new(), version: 17 }];
        let graph = Some(self.graph.clone());
        ModelProto { ir_version: 8, opset_import, graph, ..ModelProto::default() }.encode_to_vec()
    }

    pub(crate) fn model(&self) -> OnnxModel {
        OnnxModel::parse(self.encode(), Path::new("test.onnx")).unwrap_or_else(|cause| panic!("{cause}"))
    }

    pub(crate) fn refused(&self) -> String {
        OnnxModel::parse(self.encode(), Path::new("test.onnx")).expect_err("it should be refused").to_string()
    }
}

fn info(name: &str, elem_type: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = |&dim: &i64| match usize::try_from(-dim) {
        Ok(open) if open > 0 => {
            DimensionProto { dim_value: None, dim_param: Some(["n", "s", "t"][open - 1].to_owned()) }
        }
        _ => DimensionProto { dim_value: Some(dim), dim_param: None },
    };
    let shape = Some(ShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type, shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

/// Tensors by name.
pub(crate) type NamedTensors = BTreeMap<String, Tensor<f32>>;

/// Creates a tensor of varied numbers between about -1 and 1.
pub(crate) fn numbers(shape: &[usize]) -> Tensor<f32> {
    let count = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..count).map(|at| ((at * 7919 + 13) % 201) as f32 / 100.0 - 1.0).collect();
    Tensor::from_data(shape, data)
}

/// Runs an ONNX file in rten.
pub(crate) fn run(file: Vec<u8>, given: &NamedTensors, wanted: &[String]) -> NamedTensors {
    let mut options = rten::ModelOptions::with_all_ops();
    options.enable_optimization(false);
    let model = options.load(file).expect("rten loads the file");
    let inputs = model.input_ids().iter().map(|&id| {
        let name = model.node_info(id).and_then(|info| info.name().map(str::to_owned)).expect("inputs have names");
        (id, Value::from(given[&name].clone()).into())
    });
    let outputs: Vec<_> = wanted.iter().map(|name| model.node_id(name).expect("the output is there")).collect();
    let values = model.run(inputs.collect(), &outputs, None).expect("rten runs the file");
    let float = |value: Value| Tensor::<f32>::try_from(value).expect("tests use floats");
    wanted.iter().cloned().zip(values.into_iter().map(float)).collect()
}

/// Runs the blocks in sequence, linked by tensor names.
pub(crate) fn run_chain(slices: &Slices<'_>, given: &NamedTensors) -> NamedTensors {
    let mut tensors = given.clone();
    for block in &slices.blocks {
        let wanted: Vec<String> = block.outputs.iter().map(|spec| spec.name.clone()).collect();
        let file = slices.encode(block).unwrap();
        tensors.extend(run(file, &tensors, &wanted));
    }
    tensors
}

#[track_caller]
pub(crate) fn assert_close(found: &Tensor<f32>, expected: &Tensor<f32>) {
    assert_eq!(found.shape(), expected.shape());
    for (found, expected) in found.iter().zip(expected.iter()) {
        assert!((found - expected).abs() <= 1e-4, "{found} is not {expected}");
    }
}

/// Convolutions with normalisation and activation, two residual blocks, a branch and a head. The
/// features are a second output.
pub(crate) fn residual_network() -> Draft {
    let mut draft = Draft::default();
    draft.input("image", elem::FLOAT, &[-1, 3, 8, 8]);
    conv(&mut draft, "image", "stem", [8, 3, 3]);
    for block in ["a", "b"] {
        let from = if block == "a" { "stem" } else { "a" };
        let [one, two, sum] = ["one", "two", "sum"].map(|part| format!("{block}_{part}"));
        conv(&mut draft, from, &one, [8, 8, 3]);
        conv(&mut draft, &one, &two, [8, 8, 1]);
        draft.op("Add", &[&two, from], &[&sum]);
        draft.op("Relu", &[&sum], &[block]);
    }
    draft.op("GlobalAveragePool", &["b"], &["pooled"]);
    draft.op("Flatten", &["pooled"], &["features"]);
    draft.weight("head_w", &[200, 8]);
    draft.weight("head_b", &[200]);
    draft.op("Gemm", &["features", "head_w", "head_b"], &["logits"]);
    let head = draft.graph.node.pop().expect("the head").with_int("transB", 1);
    draft.graph.node.push(head);
    draft.output("logits", &[-1, 200]);
    draft.output("features", &[-1, 8]);
    draft
}

fn conv(draft: &mut Draft, from: &str, to: &str, [out, into, kernel]: [i64; 3]) {
    let part = |name: &str| format!("{to}_{name}");
    draft.weight(&part("w"), &[out, into, kernel, kernel]);
    for name in ["scale", "bias", "mean"] {
        draft.weight(&part(name), &[out]);
    }
    draft.graph.initializer.push(float_tensor(&part("var"), &[out], &vec![1.0; out as usize]));
    let pad = kernel / 2;
    draft.op("Conv", &[from, &part("w")], &[&part("conv")]);
    let node = draft.graph.node.pop().expect("the convolution").with_ints("pads", &[pad, pad, pad, pad]);
    let node = node.with_ints("strides", &[1, 1]).with_ints("dilations", &[1, 1]);
    draft.graph.node.push(node);
    let inputs = ["conv", "scale", "bias", "mean", "var"].map(part);
    draft.op("BatchNormalization", &inputs.each_ref().map(String::as_str), &[&part("norm")]);
    draft.op("Relu", &[&part("norm")], &[to]);
}

/// Two encoder layers as exporters write them. Reshapes make the heads, with sizes that are
/// computed from `Shape` once for all layers.
pub(crate) fn encoder() -> Draft {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, -2, 8]);
    draft.scalar("zero", 0);
    draft.scalar("one", 1);
    draft.ints("heads", &[2, 4]);
    draft.ints("width", &[8]);
    draft.ints("front", &[0]);
    draft.op("Shape", &["x"], &["x_shape"]);
    for (index, name) in [("zero", "n"), ("one", "s")] {
        draft.op("Gather", &["x_shape", index], &[name]);
        draft.op("Unsqueeze", &[name, "front"], &[&format!("{name}_list")]);
    }
    draft.op("Concat", &["n_list", "s_list", "heads"], &["split_shape"]).attribute = axis(0);
    draft.op("Concat", &["n_list", "s_list", "width"], &["join_shape"]).attribute = axis(0);
    encoder_layer(&mut draft, "x", "first");
    encoder_layer(&mut draft, "first", "second");
    draft.output("second", &[-1, -2, 8]);
    draft
}

pub(crate) fn axis(axis: i64) -> Vec<crate::proto::AttributeProto> {
    NodeProto::default().with_int("axis", axis).attribute
}

pub(crate) fn perm(order: &[i64]) -> Vec<crate::proto::AttributeProto> {
    NodeProto::default().with_ints("perm", order).attribute
}

fn encoder_layer(draft: &mut Draft, from: &str, to: &str) {
    let part = |name: &str| format!("{to}_{name}");
    for (name, order) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
        let [weight, flat, split, turned] = ["w", "flat", "split", ""].map(|step| part(&format!("{name}{step}")));
        draft.weight(&weight, &[8, 8]);
        draft.op("MatMul", &[from, &weight], &[&flat]);
        draft.op("Reshape", &[&flat, "split_shape"], &[&split]);
        draft.op("Transpose", &[&split], &[&turned]).attribute = perm(&order);
    }
    draft.op("MatMul", &[&part("q"), &part("k")], &[&part("scores")]);
    draft.op("Softmax", &[&part("scores")], &[&part("share")]).attribute = axis(-1);
    draft.op("MatMul", &[&part("share"), &part("v")], &[&part("mixed")]);
    draft.op("Transpose", &[&part("mixed")], &[&part("back")]).attribute = perm(&[0, 2, 1, 3]);
    draft.op("Reshape", &[&part("back"), "join_shape"], &[&part("joined")]);
    for (name, dims) in [("out", [8, 8]), ("up", [8, 16]), ("down", [16, 8])] {
        draft.weight(&part(&format!("{name}_w")), &dims);
    }
    draft.op("MatMul", &[&part("joined"), &part("out_w")], &[&part("out")]);
    draft.op("Add", &[&part("out"), from], &[&part("attended")]);
    draft.op("MatMul", &[&part("attended"), &part("up_w")], &[&part("up")]);
    draft.op("Relu", &[&part("up")], &[&part("active")]);
    draft.op("MatMul", &[&part("active"), &part("down_w")], &[&part("down")]);
    draft.op("Add", &[&part("down"), &part("attended")], &[to]);
}
