//! Rules of the analysis, on graphs of a few operators.

use super::{RowAnalysis, RowVerdict, analyse_rows, other_batch_dims};
use crate::OnnxFile;
use crate::fixture::{Draft, axis, encoder, perm, residual_network};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetProto, elem};
use prost::Message;
use std::path::Path;

fn analysis(draft: &Draft) -> RowAnalysis {
    analyse_rows(&OnnxFile::parse(draft.encode(), Path::new("m.onnx")).unwrap())
}

/// Returns "independent", or the operator and the reason.
fn said(draft: &Draft) -> String {
    match analysis(draft).verdict() {
        RowVerdict::Independent => "independent".to_owned(),
        RowVerdict::Meet(finding) => format!("meet {finding}"),
        RowVerdict::Unknown(finding) => format!("unknown {finding}"),
    }
}

/// A graph with the input `x` of `[n, 4, 6]`, small constants, and the output `y`.
fn graph(build: impl FnOnce(&mut Draft)) -> Draft {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, 4, 6]);
    draft.ints("zero", &[0]);
    draft.ints("one", &[1]);
    draft.ints("far", &[i64::MAX]);
    draft.scalar("nought", 0);
    draft.scalar("unit", 1);
    draft.weight("w", &[6, 6]);
    build(&mut draft);
    draft.output("y", &[-1, 4, 6]);
    draft
}

/// Adds the shape of `x`, and the list `n` of its first dimension.
fn sizes(draft: &mut Draft) {
    draft.op("Shape", &["x"], &["shape"]);
    draft.op("Gather", &["shape", "zero"], &["n"]);
}

#[test]
fn networks_of_exporters_are_proved() {
    assert_eq!(said(&encoder()), "independent");
    assert_eq!(said(&residual_network()), "independent");
}

#[test]
fn what_combines_rows_is_named() {
    let across = |op: &str, with: &[&str], attributes: Vec<AttributeProto>| {
        said(&graph(|draft| {
            let inputs = [&["x"], with].concat();
            draft.op(op, &inputs, &["y"]).attribute = attributes;
        }))
    };
    assert_eq!(across("Softmax", &[], axis(0)), "meet Softmax 'y': it combines the rows of the batch");
    assert_eq!(across("Softmax", &[], axis(1)), "independent");
    assert_eq!(across("CumSum", &["nought"], vec![]), "meet CumSum 'y': it combines the rows of the batch");
    assert_eq!(across("CumSum", &["unit"], vec![]), "independent");
    assert_eq!(across("ReduceMax", &[], vec![]), "meet ReduceMax 'y': it combines the rows of the batch");
    assert!(across("NonZero", &[], vec![]).starts_with("meet NonZero 'y'"));
    assert!(across("RandomNormalLike", &[], vec![]).contains("random"));
    assert!(across("Gather", &["zero"], axis(0)).contains("picks rows"));
    assert!(across("Slice", &["zero", "one", "zero"], vec![]).contains("takes some rows"));
    assert_eq!(across("Slice", &["zero", "far", "zero"], vec![]), "independent");
    assert!(across("Concat", &["x"], axis(0)).contains("appends to the batch"));
    assert!(across("Transpose", &[], perm(&[1, 0, 2])).contains("rows stand along dimension 1"));
    assert!(across("MadeUp", &[], vec![]).starts_with("unknown MadeUp 'y': the analysis has no rule"));
}

#[test]
fn broadcasts_keep_rows_apart_or_cross_them() {
    let with = |dims: &[i64]| {
        said(&graph(|draft| {
            draft.weight("v", dims);
            draft.op("Add", &["x", "v"], &["y"]);
        }))
    };
    assert_eq!(with(&[4, 6]), "independent");
    assert_eq!(with(&[1, 4, 1]), "independent");
    assert!(with(&[4, 4, 6]).starts_with("meet Add 'y': it is made for a fixed number of rows"));
    let crossed = said(&graph(|draft| {
        draft.op("Transpose", &["x"], &["t"]).attribute = perm(&[1, 0, 2]);
        draft.op("Add", &["x", "t"], &["y"]);
    }));
    assert!(crossed.starts_with("meet Add 'y': it combines each row with every row"));
}

#[test]
fn folded_rows_are_followed_and_told_apart() {
    let folded = |to: &[i64], back: &[i64]| {
        said(&graph(|draft| {
            draft.ints("flat", to);
            draft.ints("back", back);
            draft.op("Reshape", &["x", "flat"], &["f"]);
            draft.op("Relu", &["f"], &["r"]);
            draft.op("Reshape", &["r", "back"], &["y"]);
        }))
    };
    assert_eq!(folded(&[-1, 6], &[-1, 4, 6]), "independent");
    assert_eq!(folded(&[-1], &[-1, 2, 12]), "independent");
    assert!(folded(&[4, -1], &[-1, 4, 6]).starts_with("unknown Reshape"), "rows are cut in four");
    assert!(
        folded(&[-1, 6], &[4, -1, 6]).contains("meet output 'y'")
            || folded(&[-1, 6], &[4, -1, 6]).starts_with("unknown")
    );
    let reduced = said(&graph(|draft| {
        draft.ints("flat", &[1, -1]);
        draft.op("Reshape", &["x", "flat"], &["f"]);
        draft.op("ReduceMax", &["f"], &["m"]).attribute = NodeProto::default().with_ints("axes", &[1]).attribute;
        draft.op("Add", &["x", "m"], &["y"]);
    }));
    assert!(reduced.starts_with("meet ReduceMax 'm'"), "{reduced}");
}

#[test]
fn the_number_of_rows_may_shape_and_not_count() {
    let shaped = said(&graph(|draft| {
        sizes(draft);
        draft.ints("rest", &[24]);
        draft.op("Concat", &["n", "rest"], &["flat"]).attribute = axis(0);
        draft.op("Reshape", &["x", "flat"], &["f"]);
        draft.op("Reshape", &["f", "shape"], &["y"]);
    }));
    assert_eq!(shaped, "independent");
    let counted = said(&graph(|draft| {
        sizes(draft);
        draft.op("Cast", &["n"], &["real"]).attribute = NodeProto::default().with_int("to", 1).attribute;
        draft.op("Div", &["x", "real"], &["y"]);
    }));
    assert!(counted.starts_with("meet Div 'y': its values depend on the number of rows"), "{counted}");
    let positions = said(&graph(|draft| {
        sizes(draft);
        draft.op("Squeeze", &["n"], &["count"]);
        draft.op("Range", &["nought", "count", "unit"], &["range"]);
        draft.op("Gather", &["w", "range"], &["v"]);
        draft.op("Add", &["x", "v"], &["y"]);
    }));
    assert!(positions.starts_with("meet Gather 'v': its values depend on a row's position"), "{positions}");
}

#[test]
fn rows_picked_by_their_own_position_are_proved() {
    let picked = |first: &str| {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[-1, 4, 6]);
        draft.input("last", elem::INT64, &[-1]);
        for (name, value) in [("nought", 0), ("unit", 1)] {
            draft.scalar(name, value);
        }
        draft.ints("end", &[-1]);
        draft.op("Shape", &["x"], &["shape"]);
        draft.op("Gather", &["shape", "nought"], &["count"]);
        draft.op("Range", &["nought", "count", "unit"], &["range"]);
        for name in ["range", "last"] {
            draft.op("Unsqueeze", &[name, "end"], &[&format!("{name}_column")]);
        }
        draft.op("Concat", &[first, "last_column"], &["index"]).attribute = axis(-1);
        draft.op("GatherND", &["x", "index"], &["y"]);
        draft.output("y", &[-1, 6]);
        said(&draft)
    };
    assert_eq!(picked("range_column"), "independent");
    assert!(picked("last_column").starts_with("meet GatherND 'y': it picks rows of the batch"));
}

#[test]
fn inputs_of_other_names_are_no_rows_of_the_batch() {
    let mut draft = Draft::default();
    draft.input("nodes", elem::FLOAT, &[-1, 6]);
    draft.input("edges", elem::INT64, &[-2, 2]);
    draft.op("Relu", &["nodes"], &["y"]);
    draft.output("y", &[-1, 6]);
    assert_eq!(said(&draft), "meet input 'edges': its batch dimension would be 's' beside 'n'");
    for name in ["unk__17", "edges_dynamic_axes_1", ""] {
        let shape = draft.graph.input[1].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap();
        shape.dim[0].dim_param = Some(name.to_owned());
        assert_eq!(said(&draft), "independent", "{name:?} names nothing");
    }
    let mut square = Draft::default();
    square.input("x", elem::FLOAT, &[-1, -1]);
    square.op("Relu", &["x"], &["y"]);
    square.output("y", &[-1, -1]);
    assert!(said(&square).contains("its dimension 1 has the size of the batch, too"));
}

#[test]
fn quantisation_of_all_rows_differs_from_other_causes() {
    let draft = graph(|draft| {
        draft.op("DynamicQuantizeLinear", &["x"], &["q", "scale", "zero_point"]);
        draft.op("DequantizeLinear", &["q", "scale", "zero_point"], &["y"]);
    });
    let RowVerdict::Meet(finding) = analysis(&draft).verdict() else { panic!("{}", said(&draft)) };
    assert_eq!((finding.is_quantisation(), &*finding.operator), (true, "DynamicQuantizeLinear"));
}

/// A graph attribute of one operator on an outer value.
fn branch(name: &str, op: &str, from: &str) -> AttributeProto {
    let to = format!("{name}_value");
    let mut graph = GraphProto { node: vec![NodeProto::new(op, &[from], &[&to])], ..GraphProto::default() };
    graph.output.push(crate::proto::ValueInfoProto { name: to, ..Default::default() });
    AttributeProto { name: name.to_owned(), g: Some(Box::new(graph)), ..AttributeProto::default() }
}

#[test]
fn branches_may_depend_on_sizes_and_not_on_rows() {
    let branched = |condition: &dyn Fn(&mut Draft)| {
        said(&graph(|draft| {
            condition(draft);
            let branches = vec![branch("then_branch", "Relu", "x"), branch("else_branch", "Abs", "x")];
            draft.op("If", &["test"], &["y"]).attribute = branches;
        }))
    };
    let rows = branched(&|draft| {
        draft.op("ReduceMax", &["x"], &["most"]).attribute = NodeProto::default().with_int("keepdims", 0).attribute;
        draft.op("IsNaN", &["most"], &["test"]);
    });
    assert!(rows.starts_with("meet ReduceMax 'most'"), "{rows}");
    let count = branched(&|draft| {
        sizes(draft);
        draft.op("Greater", &["n", "one"], &["test"]);
    });
    assert!(count.starts_with("meet If 'y': the number of rows decides"), "{count}");
    let constant = branched(&|draft| {
        draft.op("Shape", &["w"], &["s"]);
        draft.op("Gather", &["s", "nought"], &["six"]);
        draft.op("Equal", &["six", "unit"], &["test"]);
    });
    assert_eq!(constant, "independent");
}

#[test]
fn functions_are_walked() {
    let draft = graph(|draft| {
        let node = draft.op("Own", &["x"], &["y"]);
        node.domain = "local".to_owned();
        node.attribute = axis(0);
    });
    let mut inner = NodeProto::new("Softmax", &["a"], &["b"]);
    inner.attribute =
        vec![AttributeProto { name: "axis".to_owned(), ref_attr_name: "axis".to_owned(), ..Default::default() }];
    let function = FunctionProto {
        name: "Own".to_owned(),
        domain: "local".to_owned(),
        input: vec!["a".to_owned()],
        output: vec!["b".to_owned()],
        attribute: vec!["axis".to_owned()],
        node: vec![inner],
        opset_import: vec![OperatorSetProto { domain: String::new(), version: 17 }],
        ..FunctionProto::default()
    };
    let mut model = ModelProto::decode(&*draft.encode()).unwrap();
    model.functions = vec![function];
    let verdict = |model: &ModelProto| {
        analyse_rows(&OnnxFile::parse(model.encode_to_vec(), Path::new("m.onnx")).unwrap()).verdict()
    };
    let RowVerdict::Meet(finding) = verdict(&model) else { panic!("a softmax over rows") };
    assert_eq!((&*finding.operator, &*finding.node), ("Softmax", "b"));
    model.graph.as_mut().unwrap().node[0].attribute = axis(2);
    assert_eq!(verdict(&model), RowVerdict::Independent);
}

#[test]
fn a_batch_that_is_not_first_is_found_where_it_is_proved() {
    let second = |op: &str, attributes: Vec<AttributeProto>| {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[-2, -1, 6]);
        draft.op(op, &["x"], &["y"]).attribute = attributes;
        draft.output("y", &[-2, -1, 6]);
        other_batch_dims(&OnnxFile::parse(draft.encode(), Path::new("m.onnx")).unwrap())
    };
    assert_eq!(second("Softmax", axis(0)), Some(vec![("x".to_owned(), 1), ("y".to_owned(), 1)]));
    assert_eq!(second("Transpose", perm(&[1, 0, 2])), Some(vec![("y".to_owned(), 1)]), "the input begins with it");
    assert_eq!(second("ReduceMax", vec![]), None);
}
