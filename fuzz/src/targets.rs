//! The fuzz targets. If a format has a length or a choice outside of its bytes, the first byte of
//! the input takes its place.

use bytes::Bytes;
use prost::Message;
use ripieno_base::BlockId;
use ripieno_cluster::plane::{ByteStream, Handshake, MessageReader};
use ripieno_model::{DataType, Graph, TensorSpec};
use ripieno_onnx::{OnnxFile, OnnxModel, analyse_rows, open_batch, other_batch_dims};
use ripieno_repository::TritonConfig;
use ripieno_repository::config::ModelConfig;
use ripieno_text::{TextConfig, TextModel, TextReader};
use ripieno_wire::json::{InputShape, encode_generate, encode_infer, parse_generate, parse_infer};
use ripieno_wire::proto::inference::{ModelInferRequest, ModelStreamInferResponse};
use ripieno_wire::{InferRequest, InferResponse, OutputEncoding, ResponseTensor, WireError, grpc};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// A fuzz target and its name, which is the name of the corpus folder.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The folder under `corpus/`.
    pub name: &'static str,
    /// Whether its inputs are text, so that mutations insert words rather than numbers.
    pub is_text: bool,
    /// Takes any bytes; returns true if they were accepted.
    pub run: fn(&[u8]) -> bool,
}

/// All targets.
pub const TARGETS: [Target; 10] = [
    Target { name: "http_json", is_text: true, run: http_json },
    Target { name: "binary", is_text: true, run: binary },
    Target { name: "generate", is_text: true, run: generate },
    Target { name: "grpc", is_text: false, run: grpc_messages },
    Target { name: "model_toml", is_text: true, run: model_toml },
    Target { name: "config_pbtxt", is_text: true, run: config_pbtxt },
    Target { name: "onnx", is_text: false, run: onnx },
    Target { name: "tree", is_text: false, run: tree },
    Target { name: "plane", is_text: false, run: plane },
    Target { name: "texts", is_text: true, run: texts },
];

fn http_json(input: &[u8]) -> bool {
    answer(parse_infer("model", "1", &Bytes::copy_from_slice(input), None))
}

/// JSON, followed by the tensors that it declares. The first two bytes are the length of the JSON;
/// a header may hold any value, so other lengths are tried as well.
fn binary(input: &[u8]) -> bool {
    let Some((&length, body)) = input.split_first_chunk() else { return false };
    let body = Bytes::copy_from_slice(body);
    for odd in [0, body.len(), body.len() + 1, usize::MAX] {
        answer(parse_infer("model", "1", &body, Some(odd)));
    }
    answer(parse_infer("model", "1", &body, Some(usize::from(u16::from_le_bytes(length)))))
}

fn generate(input: &[u8]) -> bool {
    let shapes = [
        InputShape { name: "x", datatype: DataType::Fp32, rank: 2 },
        InputShape { name: "ids", datatype: DataType::Int64, rank: 3 },
        InputShape { name: "text", datatype: DataType::Bytes, rank: 1 },
    ];
    answer(parse_generate("model", "", input, &shapes))
}

/// A request, and the responses that our own client reads.
fn grpc_messages(input: &[u8]) -> bool {
    let is_answer = ModelStreamInferResponse::decode(input).is_ok();
    let Ok(message) = ModelInferRequest::decode(input) else { return is_answer };
    // A field that is set and empty is omitted when it is written, so a message may shrink, but
    // never grow beyond a few bytes.
    assert!(message.encoded_len() <= 11 * input.len() + 64, "a message grows when it is read");
    answer(grpc::parse_infer(message))
}

/// Encodes a parsed request as a response, in each form.
fn answer(parsed: Result<InferRequest, WireError>) -> bool {
    let Ok(request) = parsed else { return false };
    for form in [OutputEncoding::Json, OutputEncoding::Binary] {
        let outputs = request.inputs.iter().map(|input| ResponseTensor {
            name: input.name.clone(),
            datatype: input.datatype,
            shape: input.shape.clone(),
            data: input.data.clone(),
            // Elements in shared memory do not fit the shape until the server has fetched them.
            encoding: if input.shared_memory.is_some() { OutputEncoding::SharedMemory } else { form },
        });
        let response = InferResponse { id: request.id.clone(), outputs: outputs.collect(), ..InferResponse::default() };
        // FP16 and BF16 have no JSON form: an error, which the server sends to the client.
        let _ = encode_infer(&response);
        let _ = encode_generate(&response);
        let _ = grpc::encode_infer(response).encode_to_vec();
    }
    true
}

/// Longest texts of the model that reads them.
const TOKENS: usize = 12;

/// Encodes a text alone and as a pair with its own second half, whole and cut; returns false if it
/// is too long.
fn texts(input: &[u8]) -> bool {
    static MODEL: LazyLock<TextModel> = LazyLock::new(text_model);
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let half = &text[text.floor_char_boundary(text.len() / 2)..];
    let mut is_short = true;
    for second in [None, Some(half)] {
        let (whole, cut) = (MODEL.encode(text, second, false), MODEL.encode(text, second, true));
        let cut = cut.expect("a text that is cut has tokens");
        assert!(cut.ids.len() <= TOKENS && cut.ids.len() == cut.types.len(), "{cut:?}");
        match whole {
            // A text that fits is not cut.
            Ok(whole) => assert_eq!(whole, cut),
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "one line: {error}");
                is_short = false;
            }
        }
        let inputs = MODEL.encode_inputs(&cut, |_| DataType::Int64);
        assert!(inputs.iter().all(|(_, length, bytes)| bytes.len() == 8 * length));
    }
    is_short
}

/// A text model with the tokenizer of the tests.
fn text_model() -> TextModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/text/tests/models");
    let reader = TextReader::read(&[folder]).expect("the tokenizer can be read").expect("there is one");
    let spec =
        |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
    let inputs = ["input_ids", "attention_mask"].map(|name| spec(name, DataType::Int64, &[-1, -1]));
    let output = spec("last_hidden_state", DataType::Fp32, &[-1, -1, 4]);
    reader.fit(&TextConfig::default(), TOKENS, &inputs, &[output]).expect("the tokenizer fits")
}

fn model_toml(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    match ModelConfig::parse("model.toml", text) {
        // An accepted configuration must also be usable.
        Ok(config) => {
            let batch = config.max_batch.unwrap_or(32).min(64);
            config.latency.iter().for_each(|latency| drop(latency.profile(batch)));
            config.blocks.iter().flat_map(|block| &block.latency).for_each(|latency| drop(latency.profile(batch)));
            true
        }
        Err(message) => {
            assert!(message.starts_with("model.toml") && !message.contains('\n'), "one line: {message:?}");
            false
        }
    }
}

fn config_pbtxt(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    match TritonConfig::parse("config.pbtxt", text, "m", &[1, 3]) {
        Ok(read) => {
            // The migrated settings must be a valid configuration, even if parts are refused.
            let toml = read.settings.to_toml(read.model_file.as_deref());
            let known = ModelConfig::parse("model.toml", &toml);
            assert!(known.is_ok() || read.check().is_err(), "{known:?}\n{toml}");
            let lines = read.check().err().into_iter().chain(read.warnings());
            lines.for_each(|line| assert!(!line.contains('\n'), "one line: {line:?}"));
            true
        }
        Err(message) => {
            assert!(message.starts_with("config.pbtxt:") && !message.contains('\n'), "one line: {message:?}");
            false
        }
    }
}

/// A model that is parsed, inspected and sliced in every way.
fn onnx(input: &[u8]) -> bool {
    if let Ok(file) = OnnxFile::parse(Bytes::copy_from_slice(input), Path::new("/nowhere/model.onnx")) {
        let _ = (analyse_rows(&file).verdict(), other_batch_dims(&file), open_batch(&file));
    }
    let parsed = OnnxModel::parse(Bytes::copy_from_slice(input), Path::new("/nowhere/model.onnx"));
    let Ok(model) = parsed else { return false };
    let _ = (model.inputs(), model.outputs(), model.external_files());
    let layers = model.layers();
    if let Ok(slices) = model.slice(&layers, "layers") {
        let _ = (slices.shared(), slices.estimate(4));
    }
    let costs = model.estimate(&layers, 4);
    let _ = model.stages(&layers, &costs, Some(1 << 20), 2);
    if model.is_recurrent() {
        let _ = model.cells();
    }
    true
}

/// A table of nodes as in a request: the first byte is the number of inputs per node, two bytes
/// make a number.
fn tree(input: &[u8]) -> bool {
    let Some((&arity, rest)) = input.split_first() else { return false };
    let arity = usize::from(arity % 5);
    let numbers: Vec<i64> =
        rest.as_chunks().0.iter().map(|&[low, high]| i64::from(i16::from_le_bytes([low, high]))).collect();
    let nodes = numbers.len().checked_div(arity).unwrap_or(numbers.len());
    let children = |node: usize| &numbers[node * arity..(node + 1) * arity];
    let graph = Graph::new(nodes, |node| BlockId((node % 3) as u16), children);
    let tree = Graph::tree(nodes, children, BlockId(0), BlockId(1));
    assert!(graph.is_ok() || tree.is_err(), "a tree is a graph");
    for graph in [&graph, &tree].into_iter().flatten() {
        assert_eq!(graph.len(), nodes);
        for node in 0..graph.len() as u32 {
            let before = |&input: &u32| input == Graph::NONE || input < node;
            assert!(graph.inputs(node).iter().all(before), "a node comes after all that it depends on");
            assert!(graph.origin(node) < nodes && graph.element(node) < nodes);
        }
    }
    graph.is_ok()
}

/// Messages between roles of a cluster: a handshake, or messages one after the other. Read messages
/// are written again.
fn plane(input: &[u8]) -> bool {
    let greets = input.first_chunk().is_some_and(|bytes| Handshake::from_bytes(bytes).is_ok());
    let mut reader = MessageReader::new(Arc::new(Said(Mutex::new(Bytes::copy_from_slice(input)))), Duration::ZERO);
    let mut read = 0;
    while let Ok(message) = reader.read() {
        let mut written = Vec::new();
        message.encode(&mut written);
        assert!(written.len() <= 2 * input.len() + 64, "a message grows when it is read");
        read += 1;
    }
    greets || read > 0
}

/// A stream of bytes from a peer that has disconnected.
struct Said(Mutex<Bytes>);

impl ByteStream for Said {
    fn read(&self, into: &mut [u8], _: Duration) -> io::Result<usize> {
        let mut rest = self.0.lock().map_err(|_| io::ErrorKind::Other)?;
        let read = into.len().min(rest.len());
        into[..read].copy_from_slice(&rest.split_to(read));
        Ok(read)
    }

    fn write_all(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn close(&self) {}

    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}
