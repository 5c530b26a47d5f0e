//! Small graphs: some must be refused, with a given message, and the others must pass.

use super::*;
use prost::Message;
use ripieno_onnx::proto::{AttributeProto, EntryProto, FunctionProto, ModelProto, TensorProto, ValueInfoProto};
use std::path::Path;

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        op_type: op.to_owned(),
        ..NodeProto::default()
    }
}

fn to(kind: i32, node: NodeProto) -> NodeProto {
    let attribute = vec![AttributeProto { name: "to".to_owned(), i: Some(i64::from(kind)), ..Default::default() }];
    NodeProto { attribute, ..node }
}

fn weight(name: &str, numbers: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        data_type: elem::INT64,
        dims: vec![numbers.len() as i64],
        int64_data: numbers.to_vec(),
        ..Default::default()
    }
}

fn named(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.to_owned(), r#type: None }
}

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

/// Analyses a graph from `n`, INT64 [1], and `x`, FP32 [batch, 4], to `y`.
fn follow(nodes: Vec<NodeProto>, weights: Vec<TensorProto>, ranges: &[InputRange], narrow: bool) -> Result<(), String> {
    let output = vec![named("y")];
    let graph = GraphProto {
        node: nodes,
        initializer: weights,
        input: vec![named("n"), named("x")],
        output,
        ..GraphProto::default()
    };
    follow_model(&ModelProto { graph: Some(graph), ..ModelProto::default() }, ranges, narrow)
}

fn follow_model(model: &ModelProto, ranges: &[InputRange], narrow: bool) -> Result<(), String> {
    follow_at(model, Path::new("m.onnx"), ranges, narrow)
}

fn follow_at(model: &ModelProto, path: &Path, ranges: &[InputRange], narrow: bool) -> Result<(), String> {
    let file = OnnxFile::parse(model.encode_to_vec(), path).unwrap();
    let inputs = [spec("n", DataType::Int64, &[1]), spec("x", DataType::Fp32, &[-1, 4])];
    let limits = EngineLimits { narrow, ..EngineLimits::default() };
    ValueAnalysis::nothing().follow(&file, &inputs, ranges, limits).map_err(|error| error.to_string())
}

fn range(most: f64) -> [InputRange; 1] {
    [InputRange { tensor: "n".to_owned(), least: 0.0, most }]
}

#[test]
fn numbers_that_may_leave_the_range_are_refused_by_an_engine_of_32_bits() {
    let huge = || vec![weight("c", &[1 << 40])];
    let small = || vec![weight("c", &[7])];
    let one = |op: &str, inputs: &[&str]| vec![node(op, inputs, "y")];
    let cases = [
        (one("Add", &["n", "c"]), huge()),
        (one("Add", &["n", "c"]), small()),
        (one("Mul", &["n", "n"]), vec![]),
        (one("Pow", &["n", "c"]), small()),
        (one("CumSum", &["n", "c"]), small()),
        (one("ReduceSum", &["n"]), vec![]),
        (one("ReduceProd", &["n"]), vec![]),
        (one("Equal", &["n", "c"]), huge()),
        (vec![to(elem::INT64, node("Cast", &["x"], "y"))], vec![]),
        (vec![node("Mul", &["c", "d"], "y")], vec![weight("c", &[100_000]), weight("d", &[100_000])]),
    ];
    for (nodes, weights) in cases {
        let op = nodes[0].op_type.clone();
        let refused = follow(nodes.clone(), weights.clone(), &[], true).unwrap_err();
        assert!(refused.starts_with("m.onnx: ") && refused.contains("--engine onnxruntime"), "{op}: {refused}");
        assert!(op == "Cast" || refused.contains(&format!("operator {op} 'y'")), "{op}: {refused}");
        assert_eq!(follow(nodes, weights, &[], false), Ok(()), "{op}: 64 bits are enough");
    }
    let declared = |nodes: Vec<NodeProto>| follow(nodes, vec![weight("c", &[7])], &range(1000.0), true);
    assert_eq!(declared(one("Add", &["n", "c"])), Ok(()));
    assert_eq!(declared(one("Mul", &["n", "n"])), Ok(()));
}

#[test]
fn constants_beside_the_file_have_the_numbers_that_they_hold() {
    let path = std::env::temp_dir().join(format!("ripieno-external-{}.onnx", std::process::id()));
    let data = path.with_extension("data");
    let entry = |key: &str, value: &str| EntryProto { key: key.to_owned(), value: value.to_owned() };
    let beside = |numbers: [i64; 2]| {
        std::fs::write(&data, [[0; 2], numbers].concat().into_iter().flat_map(i64::to_le_bytes).collect::<Vec<_>>())
            .unwrap();
        let location = data.file_name().unwrap().to_str().unwrap().to_owned();
        let external_data = vec![entry("location", &location), entry("offset", "16"), entry("length", "16")];
        let positions = TensorProto { int64_data: vec![], external_data, ..weight("positions", &[0, 0]) };
        let graph = GraphProto {
            node: vec![node("Add", &["n", "positions"], "y")],
            initializer: vec![positions],
            input: vec![named("n"), named("x")],
            output: vec![named("y")],
            ..GraphProto::default()
        };
        let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        follow_at(&model, &path, &range(1000.0), true)
    };
    assert_eq!(beside([3, 511]), Ok(()));
    assert!(beside([3, 1 << 40]).unwrap_err().contains("--engine onnxruntime"));
    std::fs::remove_file(data).unwrap();
}

#[test]
fn ids_shapes_and_ends_of_slices_pass() {
    let end = || vec![weight("zero", &[0]), weight("end", &[i64::MAX])];
    let pass = |nodes: Vec<NodeProto>, weights| assert_eq!(follow(nodes, weights, &[], true), Ok(()));
    pass(vec![node("Slice", &["x", "zero", "end"], "y")], end());
    pass(vec![node("Gather", &["x", "n"], "y")], vec![]);
    pass(vec![node("Shape", &["x"], "s"), node("Mul", &["s", "s"], "t"), node("Add", &["t", "s"], "y")], vec![]);
    pass(vec![node("Min", &["n", "end"], "y")], end());
    pass(vec![to(elem::FLOAT, node("Cast", &["n"], "f")), node("Mul", &["f", "f"], "y")], vec![]);
    let counted = vec![
        node("Equal", &["n", "zero"], "e"),
        to(elem::INT64, node("Cast", &["e"], "m")),
        node("CumSum", &["m", "zero"], "s"),
        node("Mul", &["s", "m"], "p"),
        node("Add", &["p", "zero"], "y"),
    ];
    pass(counted, end());
    let best = vec![node("ArgMax", &["x"], "a"), node("Add", &["a", "zero"], "y")];
    pass(best, end());
}

#[test]
fn sizes_that_a_request_chooses_need_a_bound() {
    let square = || {
        vec![
            node("Concat", &["n", "n"], "s"),
            node("ConstantOfShape", &["s"], "z"),
            to(elem::FLOAT, node("Cast", &["z"], "y")),
        ]
    };
    let refused = follow(square(), vec![], &[], false).unwrap_err();
    assert!(refused.contains("operator ConstantOfShape 'z'"), "{refused}");
    assert!(refused.contains("(input n)") && refused.contains("[[input]] name = \"n\""), "{refused}");
    assert_eq!(follow(square(), vec![], &range(1000.0), false), Ok(()));
    assert!(follow(square(), vec![], &range(100_000.0), false).is_err(), "its square is too large");
    let weights = || vec![weight("zero", &[0]), weight("one", &[1])];
    for (op, inputs) in [
        ("Expand", &["x", "n"][..]),
        ("Tile", &["x", "n"]),
        ("OneHot", &["one", "n", "x"]),
        ("Range", &["zero", "n", "one"]),
        ("Pad", &["x", "n"]),
    ] {
        let graph = || vec![node(op, inputs, "y")];
        assert!(follow(graph(), weights(), &[], false).is_err(), "{op}");
        assert_eq!(follow(graph(), weights(), &range(64.0), false), Ok(()), "{op}");
    }
    let as_large_as_the_request = vec![node("Shape", &["x"], "s"), node("ConstantOfShape", &["s"], "y")];
    assert_eq!(follow(as_large_as_the_request, vec![], &[], true), Ok(()));
}

#[test]
fn graphs_within_operators_are_followed() {
    let body = |nodes: Vec<NodeProto>| GraphProto { node: nodes, output: vec![named("inner")], ..Default::default() };
    let within = |graph: GraphProto| {
        let attribute =
            vec![AttributeProto { name: "then_branch".to_owned(), g: Some(graph.into()), ..Default::default() }];
        NodeProto { attribute, ..node("If", &["c"], "y") }
    };
    let harmful = body(vec![node("Mul", &["n", "n"], "inner")]);
    let refused = follow(vec![within(harmful)], vec![weight("c", &[1])], &[], true).unwrap_err();
    assert!(refused.contains("operator Mul 'inner'"), "{refused}");
}

#[test]
fn requests_are_held_to_what_is_declared_and_to_32_bits() {
    let tensor = |numbers: &[i64]| Tensor {
        name: "n".into(),
        datatype: DataType::Int64,
        shape: vec![1, numbers.len() as i64],
        data: numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into(),
    };
    let check = |numbers: &[i64], ranges: &[InputRange], narrow| {
        check_request(&[tensor(numbers)], ranges, EngineLimits { narrow, ..EngineLimits::default() })
            .map_err(|error| error.0)
    };
    assert_eq!(check(&[0, i64::from(i32::MIN)], &[], true), Ok(()));
    assert!(check(&[1, 1 << 40], &[], true).unwrap_err().contains("input 'n' holds 1099511627776, which does not fit"));
    assert_eq!(check(&[1, 1 << 40], &[], false), Ok(()));
    assert!(check(&[1, 65], &range(64.0), false).unwrap_err().contains("holds 65, but the model takes 0 to 64"));
    assert_eq!(check(&[0, 64], &range(64.0), false), Ok(()));
    let nan = Tensor {
        datatype: DataType::Fp32,
        shape: vec![1],
        data: f32::NAN.to_le_bytes().to_vec().into(),
        ..tensor(&[])
    };
    assert!(check_request(&[nan], &range(64.0), EngineLimits::default()).is_err());
}

#[test]
fn inputs_whose_nan_would_become_a_number_are_known() {
    let lost = |blocks: Vec<(Vec<NodeProto>, &str)>| {
        let mut known = ValueAnalysis::nothing();
        let mut inputs = vec![spec("x", DataType::Fp32, &[-1, 4]), spec("z", DataType::Fp32, &[-1, 4])];
        for (nodes, output) in blocks {
            let graph = GraphProto { node: nodes, output: vec![named(output)], ..GraphProto::default() };
            let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
            let file = OnnxFile::parse(model.encode_to_vec(), Path::new("m.onnx")).unwrap();
            let limits = EngineLimits { lose_nan: &["Relu", "Clip"], ..EngineLimits::default() };
            known.follow(&file, &inputs, &[], limits).unwrap();
            inputs.push(spec(output, DataType::Fp32, &[-1, 4]));
        }
        known.loses_nan().map(|(input, operator)| format!("{operator} {input}")).collect::<Vec<_>>()
    };
    assert_eq!(lost(vec![(vec![node("Exp", &["x"], "h"), node("Relu", &["h"], "y")], "y")]), ["Relu x"]);
    assert_eq!(lost(vec![(vec![node("Relu", &["x"], "h"), node("Add", &["h", "z"], "y")], "y")]), ["Relu x"]);
    assert_eq!(lost(vec![(vec![node("Max", &["x", "z"], "y")], "y")]), [""; 0]);
    // The chain spans two blocks, or a block and a body.
    let chain = vec![(vec![node("Add", &["x", "z"], "h")], "h"), (vec![node("Clip", &["h"], "y")], "y")];
    assert_eq!(lost(chain), ["Clip x", "Clip z"]);
    let body = GraphProto { node: vec![node("Neg", &["x"], "b")], output: vec![named("b")], ..GraphProto::default() };
    let attribute = vec![AttributeProto { name: "then_branch".to_owned(), g: Some(body.into()), ..Default::default() }];
    let branch = NodeProto { attribute, ..node("If", &["z"], "h") };
    assert_eq!(lost(vec![(vec![branch, node("Relu", &["h"], "y")], "y")]), ["Relu x", "Relu z"]);
    // A model that replaces missing values expects NaN.
    let filled = vec![node("IsNaN", &["x"], "gap"), node("Where", &["gap", "z", "x"], "h"), node("Relu", &["h"], "y")];
    assert_eq!(lost(vec![(filled, "y")]), ["Relu z"]);
}

#[test]
fn nodes_out_of_order_are_refused() {
    let nodes = [node("Relu", &["x"], "a"), node("Relu", &["a"], "y")];
    assert_eq!(follow(nodes.to_vec(), vec![], &[], true), Ok(()));
    let error = follow(nodes.into_iter().rev().collect(), vec![], &[], true).unwrap_err();
    assert!(error.contains("operator Relu 'y' takes 'a', which nothing before it gives"), "{error}");
}

#[test]
fn weights_that_lie_beside_the_file_may_be_anything() {
    let beside = TensorProto { dims: vec![1], int64_data: vec![], ..weight("c", &[]) };
    let error = follow(vec![node("Add", &["n", "c"], "y")], vec![beside.clone()], &range(10.0), true).unwrap_err();
    assert!(error.contains("--engine onnxruntime"), "{error}");
    let gathered = vec![node("Gather", &["c", "n"], "s"), node("ConstantOfShape", &["s"], "y")];
    assert!(
        follow(gathered, vec![beside], &range(10.0), false).unwrap_err().contains("as large as numbers of the request")
    );
}

#[test]
fn sizes_of_the_file_are_bounded_too() {
    let made = |size: &[i64]| follow(vec![node("ConstantOfShape", &["c"], "y")], vec![weight("c", size)], &[], false);
    assert_eq!(made(&[1 << 20, 64]), Ok(()));
    let error = made(&[1 << 20, 1 << 20]).unwrap_err();
    assert!(error.contains("makes a tensor of 1099511627776 elements"), "{error}");
    let padded = vec![weight("c", &[0, 400, 400, 400, 0, 400, 400, 400])];
    assert_eq!(follow(vec![node("Pad", &["x", "c"], "y")], padded, &[], false), Ok(()));
}

#[test]
fn what_functions_hide_is_refused_if_it_makes_sizes() {
    let with = |op: &str| {
        let graph =
            GraphProto { node: vec![node("Own", &["x"], "y")], output: vec![named("y")], ..GraphProto::default() };
        let graph = GraphProto { input: vec![named("n"), named("x")], ..graph };
        let function =
            FunctionProto { name: "Own".to_owned(), node: vec![node(op, &["a"], "b")], ..Default::default() };
        follow_model(&ModelProto { graph: Some(graph), functions: vec![function], ..ModelProto::default() }, &[], false)
    };
    assert_eq!(with("Relu"), Ok(()));
    let error = with("ConstantOfShape").unwrap_err();
    assert!(error.contains("ConstantOfShape 'b' in function 'Own'") && error.contains("inline"), "{error}");
}
