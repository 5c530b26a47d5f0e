//! Graphs deeper than any exporter creates: they are served or refused, and never end the process.

use crate::common::*;
use prost::Message;
use ripieno_executor::*;
use std::path::PathBuf;

// The required messages of onnx.proto, under their published field numbers.

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset: Vec<OpsetProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OpsetProto {
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "11")]
    input: Vec<InfoProto>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<InfoProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op: String,
}

#[derive(Clone, PartialEq, Message)]
struct InfoProto {
    #[prost(string, tag = "1")]
    name: String,
    /// A TypeProto, as bytes.
    #[prost(bytes = "vec", tag = "2")]
    r#type: Vec<u8>,
}

/// FP32 [batch, 4]: tensor_type { elem_type: 1, shape { dim { dim_param: "b" },
/// dim { dim_value: 4 } } }.
const TYPE: [u8; 15] = [0x0a, 13, 0x08, 1, 0x12, 9, 0x0a, 3, 0x12, 1, b'b', 0x0a, 2, 0x08, 4];

fn relus(count: usize) -> Vec<u8> {
    let name = |at: usize| {
        if at == 0 {
            "x".to_owned()
        } else if at == count {
            "y".to_owned()
        } else {
            format!("h{at}")
        }
    };
    let node = |at: usize| NodeProto { input: vec![name(at)], output: vec![name(at + 1)], op: "Relu".to_owned() };
    let info = |name: &str| vec![InfoProto { name: name.to_owned(), r#type: TYPE.to_vec() }];
    let graph =
        GraphProto { node: (0..count).map(node).collect(), name: "deep".into(), input: info("x"), output: info("y") };
    ModelProto { ir_version: 8, graph: Some(graph), opset: vec![OpsetProto { version: 17 }] }.encode_to_vec()
}

struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn thousands_of_operators_in_a_row_are_run_or_refused() {
    // With the stack that the server loads them on.
    let thread = std::thread::Builder::new().stack_size(256 << 20).spawn(|| {
        run(&*cpu().engine, 2000).unwrap();
        run(&onnxruntime_engine(), 6000).unwrap();
        run(&*isolated_onnxruntime_of_two_lanes().engine, 6000).unwrap();
        let refused = run(&*cpu().engine, 6000).unwrap_err().to_string();
        assert!(refused.contains("more than 2000 others") && refused.contains("use --engine onnxruntime"), "{refused}");
    });
    thread.unwrap().join().unwrap();
}

fn run(engine: &dyn Executor, operators: usize) -> Result<(), LoadError> {
    let file = File(std::env::temp_dir().join(format!("ripieno-deep-{}-{operators}.onnx", std::process::id())));
    std::fs::write(&file.0, relus(operators)).unwrap();
    let block = BlockSource { path: Some(file.0.clone()), ..BlockSource::new("deep") };
    let stand = Stand::of_model(engine, engine.load(&ModelSource::new("deep", vec![block], 2))?, 1);
    let y = stand.ask(fp32("x", &[1, 4], &[1.0, -1.0, 0.5, -0.0])).unwrap();
    assert_eq!(floats(&y[0]), [1.0, 0.0, 0.5, 0.0]);
    Ok(())
}
