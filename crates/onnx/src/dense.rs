//! Rewrites a file for rten: `Gemm` into operators that it runs faster, attributes that it needs
//! ([`windows`](crate::windows)), and the names of external files.
//!
//! rten packs the weights of `MatMul` once, at load, but packs the weights of `Gemm` for each
//! batch. At the batch sizes of serving, this costs more than the multiplication: for a layer of
//! 512 by 512 about 0.4 ms, ten times the rest. Exporters write every dense layer as `Gemm`. So y =
//! x·Bᵀ + c becomes `Transpose`, `MatMul` and `Add`. rten computes `Transpose` at load and fuses
//! the other two.
//!
//! The file is edited as a stream of protobuf fields. All fields except the rewritten nodes are
//! copied unchanged, so unknown fields are preserved.

use crate::proto::{
    AttributeProto, EntryProto, GRAPH_INITIALIZER, GRAPH_NODE, MODEL_GRAPH, ModelProto, NodeProto, TENSOR_EXTERNAL_DATA,
};
use crate::windows;
use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};
use std::collections::HashMap;

/// Returns the model as rten wants it, unchanged if it is so already. `external` are the names of
/// its external files: the file at index i is afterwards called by [`external_name`], since rten
/// accepts certain endings only. `optional` are names of inputs whose defaults are removed, since
/// rten takes inputs with defaults for constants.
pub fn rewrite_for_rten(model: Vec<u8>, external: &[String], optional: &[&str]) -> Vec<u8> {
    let model = if external.is_empty() { model } else { rename_external(model, external) };
    let model = if optional.is_empty() { model } else { remove_defaults(model, optional) };
    let model = Bytes::from(model);
    let weights = ModelProto::decode(model.clone()).ok().and_then(|model| model.graph).map(|graph| {
        let weights = graph.initializer.into_iter().map(|weight| (weight.name, weight.dims));
        weights.collect::<HashMap<String, Vec<i64>>>()
    });
    let Some(weights) = weights else { return model.into() };
    let node = |node: &[u8], out: &mut Vec<u8>| match NodeProto::decode(node)
        .ok()
        .and_then(|node| windows::complete(&node, &weights).map(|node| vec![node]).or_else(|| split(node, &weights)))
    {
        Some(nodes) => nodes.iter().for_each(|node| put(GRAPH_NODE, &node.encode_to_vec(), out)),
        None => put(GRAPH_NODE, node, out),
    };
    let graph = |graph: &[u8], out: &mut Vec<u8>| match edit(graph, GRAPH_NODE, &node) {
        Some(graph) => put(MODEL_GRAPH, &graph, out),
        None => put(MODEL_GRAPH, graph, out),
    };
    edit(&model, MODEL_GRAPH, &graph).unwrap_or_else(|| model.into())
}

/// Returns the name of the external file at this index in a rewritten model.
pub fn external_name(index: usize) -> String {
    format!("{index}.data")
}

fn rename_external(model: Vec<u8>, external: &[String]) -> Vec<u8> {
    let entry = |entry: &[u8], out: &mut Vec<u8>| {
        let renamed = EntryProto::decode(entry).ok().filter(|entry| entry.key == "location").and_then(|entry| {
            let index = external.iter().position(|name| *name == entry.value)?;
            Some(EntryProto { value: external_name(index), ..entry })
        });
        match renamed {
            Some(renamed) => put(TENSOR_EXTERNAL_DATA, &renamed.encode_to_vec(), out),
            None => put(TENSOR_EXTERNAL_DATA, entry, out),
        }
    };
    let within =
        |number: u32, inner: &dyn Fn(&[u8], &mut Vec<u8>), outer: u32, message: &[u8], out: &mut Vec<u8>| match edit(
            message, number, inner,
        ) {
            Some(message) => put(outer, &message, out),
            None => put(outer, message, out),
        };
    let weight =
        |weight: &[u8], out: &mut Vec<u8>| within(TENSOR_EXTERNAL_DATA, &entry, GRAPH_INITIALIZER, weight, out);
    let graph = |graph: &[u8], out: &mut Vec<u8>| within(GRAPH_INITIALIZER, &weight, MODEL_GRAPH, graph, out);
    edit(&model, MODEL_GRAPH, &graph).unwrap_or(model)
}

/// A weight, of which only the name is read.
#[derive(Clone, PartialEq, Message)]
struct NamedWeight {
    #[prost(string, tag = "8")]
    name: String,
}

fn remove_defaults(model: Vec<u8>, names: &[&str]) -> Vec<u8> {
    let weight = |weight: &[u8], out: &mut Vec<u8>| {
        let is_default = NamedWeight::decode(weight).is_ok_and(|weight| names.contains(&&*weight.name));
        if !is_default {
            put(GRAPH_INITIALIZER, weight, out);
        }
    };
    let graph = |graph: &[u8], out: &mut Vec<u8>| match edit(graph, GRAPH_INITIALIZER, &weight) {
        Some(graph) => put(MODEL_GRAPH, &graph, out),
        None => put(MODEL_GRAPH, graph, out),
    };
    edit(&model, MODEL_GRAPH, &graph).unwrap_or(model)
}

/// Copies a message field by field. `replace` writes the fields with the number `number`.
fn edit(message: &[u8], number: u32, replace: &dyn Fn(&[u8], &mut Vec<u8>)) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(message.len() + message.len() / 8);
    let mut rest = message;
    while rest.has_remaining() {
        let field = rest;
        let (found, wire_type) = decode_key(&mut rest).ok()?;
        let value = rest;
        skip_field(wire_type, found, &mut rest, DecodeContext::default()).ok()?;
        if found == number && wire_type == WireType::LengthDelimited {
            let mut value = &value[..value.len() - rest.len()];
            let length = prost::decode_length_delimiter(&mut value).ok()?;
            replace(value.get(..length)?, &mut out);
        } else {
            out.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    Some(out)
}

fn put(number: u32, message: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

/// Returns the nodes that replace a `Gemm`. `None` for any other node, or a `Gemm` that is not a
/// plain dense layer.
fn split(gemm: NodeProto, weights: &HashMap<String, Vec<i64>>) -> Option<Vec<NodeProto>> {
    if gemm.op_type != "Gemm" || !["", "ai.onnx"].contains(&&*gemm.domain) {
        return None;
    }
    let transposed = transposes_weights(&gemm.attribute)?;
    let ([x, weight], bias) = gemm.input.split_first_chunk()?;
    let ([y], true) = (&gemm.output[..], weights.contains_key(weight)) else { return None };
    let bias = bias.first().filter(|bias| !bias.is_empty());
    let node = |op_type: &str, input: &[&str], output: &str| NodeProto {
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        op_type: op_type.to_owned(),
        ..NodeProto::default()
    };
    let (turned, product) = (format!("{y}/turned-weights"), format!("{y}/product"));
    let mut nodes = Vec::with_capacity(3);
    if transposed {
        nodes.push(node("Transpose", &[weight], &turned).with_ints("perm", &[1, 0]));
    }
    let weight = if transposed { &turned } else { weight };
    match bias {
        Some(bias) => nodes.extend([node("MatMul", &[x, weight], &product), node("Add", &[&product, bias], y)]),
        None => nodes.push(node("MatMul", &[x, weight], y)),
    }
    Some(nodes)
}

/// Returns the value of `transB`; `None` if other attributes change the formula x·B + c.
fn transposes_weights(attributes: &[AttributeProto]) -> Option<bool> {
    let mut transposed = false;
    for attribute in attributes {
        match &*attribute.name {
            "alpha" | "beta" if attribute.f == Some(1.0) => {}
            "transA" if attribute.i.unwrap_or(0) == 0 => {}
            "transB" => transposed = attribute.i.unwrap_or(0) != 0,
            _ => return None,
        }
    }
    Some(transposed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gemm(attribute: Vec<AttributeProto>) -> NodeProto {
        NodeProto {
            input: ["x", "w", "c"].map(str::to_owned).to_vec(),
            output: vec!["y".to_owned()],
            op_type: "Gemm".to_owned(),
            attribute,
            ..NodeProto::default()
        }
    }

    fn int(name: &str, i: i64) -> AttributeProto {
        AttributeProto { name: name.to_owned(), i: Some(i), ..AttributeProto::default() }
    }

    fn float(name: &str, f: f32) -> AttributeProto {
        AttributeProto { name: name.to_owned(), f: Some(f), ..AttributeProto::default() }
    }

    fn operators(node: NodeProto) -> Option<Vec<String>> {
        let nodes = split(node, &HashMap::from([("w".to_owned(), Vec::new())]))?;
        Some(nodes.into_iter().map(|node| format!("{} {:?} {:?}", node.op_type, node.input, node.output)).collect())
    }

    #[test]
    fn a_dense_layer_is_taken_apart() {
        let nodes = operators(gemm(vec![float("alpha", 1.0), float("beta", 1.0), int("transB", 1)])).unwrap();
        assert_eq!(
            nodes,
            [
                r#"Transpose ["w"] ["y/turned-weights"]"#,
                r#"MatMul ["x", "y/turned-weights"] ["y/product"]"#,
                r#"Add ["y/product", "c"] ["y"]"#
            ]
        );
        let without_bias = NodeProto { input: vec!["x".to_owned(), "w".to_owned()], ..gemm(vec![]) };
        assert_eq!(operators(without_bias).unwrap(), [r#"MatMul ["x", "w"] ["y"]"#]);
    }

    #[test]
    fn anything_else_is_left_alone() {
        for attribute in [float("alpha", 0.5), float("beta", 0.0), int("transA", 1), int("broadcast", 1)] {
            assert_eq!(operators(gemm(vec![attribute])), None);
        }
        let computed = NodeProto { input: vec!["x".to_owned(), "h".to_owned()], ..gemm(vec![]) };
        assert_eq!(operators(computed), None);
        assert_eq!(operators(NodeProto { op_type: "MatMul".to_owned(), ..gemm(vec![]) }), None);
        for file in ["double", "gather", "identity_bytes"] {
            let path = format!("{}/../executor/tests/models/{file}.onnx", env!("CARGO_MANIFEST_DIR"));
            let model = std::fs::read(path).unwrap();
            assert_eq!(rewrite_for_rten(model.clone(), &[], &[]), model);
        }
        assert_eq!(rewrite_for_rten(b"no model".to_vec(), &[], &[]), b"no model");
    }

    #[test]
    fn external_files_get_names_that_rten_accepts() {
        let path = format!("{}/../executor/tests/models/mlp_external.onnx", env!("CARGO_MANIFEST_DIR"));
        let model = std::fs::read(path).unwrap();
        let names = |model: &[u8]| {
            let graph = ModelProto::decode(model).unwrap().graph.unwrap();
            let entries = graph.initializer.into_iter().flat_map(|weight| weight.external_data);
            entries.filter(|entry| entry.key == "location").map(|entry| entry.value).collect::<Vec<_>>()
        };
        let before = names(&model);
        assert!(before.iter().all(|name| name == "mlp_external.onnx.data") && !before.is_empty(), "{before:?}");
        let renamed = rename_external(model.clone(), &["other".to_owned(), before[0].clone()]);
        assert_eq!(names(&renamed), vec!["1.data"; before.len()]);
        assert_eq!(rename_external(model.clone(), &["other".to_owned()]), model);
    }
}
