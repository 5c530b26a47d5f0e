//! Models in cells: each error is clear, and valid models serve and answer as they were trained to.

use super::super::load::{Loader, Profiling};
use super::super::scan::scan;
use super::{cpu, onnx, silent};
use crate::fixture::TempRepository;
use crate::{PreparedModel, inspect};
use bytes::Bytes;
use ripieno_executor::Tensor;
use ripieno_model::{DataType, Steps, Walk};
use ripieno_runtime::{Engine, EngineConfig, Job};
use ripieno_sched::{Limits, Options, Setup};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const DECODER: &str = r#"walk = "encode-decode"
slo_ms = 60000
max_batch = 8
[[block]]
name = "encoder"
[block.inputs]
h = "previous.h_next"
[[block]]
name = "decoder"
end = "done"
max_batch = 4
[block.inputs]
token = "previous.token_next"
h = "previous.h_next"
[block.initial]
h = "encoder.h_next"
[[output]]
name = "tokens"
from = "decoder.token_next"
take = "every"
"#;

fn decoder(text: &str) -> TempRepository {
    let folder = TempRepository::new();
    folder.write("m/model.toml", text);
    folder.write("m/1/encoder.onnx", onnx("cell_rnn.onnx"));
    folder.write("m/1/decoder.onnx", onnx("cell_decoder.onnx"));
    folder
}

fn prepare(folder: &Path, profiling: Profiling) -> Result<PreparedModel, String> {
    let found = scan(folder)?.remove(0).found?;
    Loader::new(cpu(), silent()).prepare(&found, profiling)
}

#[test]
fn cells_are_measured_and_their_batches_chosen() {
    let folder = decoder(DECODER);
    let prepared = || prepare(folder.path(), Profiling::IfMissing).unwrap();
    // A measurement that something else has disturbed is used, and not kept.
    let mut twice = std::iter::repeat_with(|| (prepared(), prepared())).take(100);
    let (measured, cached) = twice.find(|(_, again)| again.origin == "cached").expect("one is kept");
    let model = measured.model().unwrap();
    assert_eq!((model.walk, model.max_batch), (Walk::EncodeDecode, 8));
    assert_eq!(model.blocks.iter().map(|block| block.steps).collect::<Vec<_>>(), [Steps::Length, Steps::UntilEnd]);
    assert_eq!(model.blocks.iter().map(|block| block.priority).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(model.blocks[1].max_batch(), 4, "as its owner says");
    assert!([1, 2, 4, 8].contains(&model.blocks[0].max_batch()), "as was measured");
    assert_eq!(cached.model().unwrap(), model);
    let report = &inspect(folder.path(), cpu()).unwrap()[0];
    assert_eq!((&report.error, report.inputs.as_slice()), (&None, &["token INT64 [-1, -1]".to_owned()][..]));
    assert_eq!((report.outputs[0].as_str(), report.blocks[1].batch), ("tokens INT64 [-1, -1]", Some(4)));
}

#[test]
fn cells_that_are_not_proved_run_one_row_at_a_time() {
    let toml = "walk = \"repeat\"\nslo_ms = 60000\nmax_batch = 8\n[[block]]\nname = \"cell\"\n[block.inputs]\n\
                h = \"previous.h_next\"\n[[output]]\nname = \"y\"\nfrom = \"cell.y\"\n";
    let prepared = |file: &str, more: &str| {
        let folder = TempRepository::new();
        folder.write("m/model.toml", format!("{more}{toml}"));
        folder.write("m/1/cell.onnx", onnx(file));
        prepare(folder.path(), Profiling::IfMissing).unwrap()
    };
    let largest = |prepared: &PreparedModel| prepared.model().unwrap().blocks[0].profile.max_batch();
    let proved = prepared("cell_layer.onnx", "");
    assert_eq!(proved.unbatched, None);
    let open = prepared("cell_unproved.onnx", "");
    let why = open.unbatched.clone().unwrap();
    assert!(why.contains("rows of cell \"cell\"") && why.contains("SequenceConstruct"), "{why}");
    assert_eq!(largest(&open), 1);
    let trusted = prepared("cell_unproved.onnx", "batching = \"trust\"\n");
    assert_eq!(trusted.unbatched, None);
}

#[test]
fn a_length_profile_says_how_many_steps_to_expect() {
    let folder = decoder(&DECODER.replacen("slo_ms", "length_profile = \"lengths.csv\"\ncoverage = 0.75\nslo_ms", 1));
    let error = prepare(folder.path(), Profiling::Never).err().unwrap();
    assert!(
        error.contains("model.toml: length_profile = \"lengths.csv\"") && error.contains("cannot be read"),
        "{error}"
    );
    folder.write("m/lengths.csv", "length,count\n2,1\n5,2\n9,1\n");
    let prepared = prepare(folder.path(), Profiling::IfMissing).unwrap();
    assert_eq!(prepared.model().unwrap().dec_timesteps, Some(5));
}

#[test]
fn every_mistake_in_the_cells_is_one_clear_error() {
    let cases = [
        (
            "h = \"encoder.h_next\"",
            "h = \"encoder.y2\"",
            "takes 'y2' of block 'encoder' (",
            "its outputs are h_next, y",
        ),
        ("end = \"done\"", "end = \"over\"", "end = \"over\" is none of its outputs", "h_next, token_next, done"),
        (
            "from = \"decoder.token_next\"",
            "from = \"decoder.y\"",
            "[[output]] \"tokens\": block 'decoder' (",
            "has no output 'y'",
        ),
        (
            "token = \"previous.token_next\"",
            "token = \"previous.h_next\"",
            "input 'token' is INT64 [-1], but 'h_next'",
            "FP32 [-1, 3]",
        ),
        (
            "name = \"decoder\"",
            "name = \"decoder\"\nfile = \"gone.onnx\"",
            "gone.onnx: there is no such file",
            "put the model there",
        ),
        (
            "[block.initial]\n",
            "[block.initial]\ntoken = 99\n",
            "input 'token' cannot begin as 99",
            "the cell knows 0 to 16",
        ),
    ];
    for (before, after, expected, further) in cases {
        assert!(DECODER.contains(before));
        let folder = decoder(&DECODER.replacen(before, after, 1));
        let error = prepare(folder.path(), Profiling::Always).err().unwrap_or_else(|| panic!("{after} loads"));
        assert!(error.contains(expected) && error.contains(further) && !error.contains('\n'), "{after}: {error}");
    }
}

fn demo_repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// A sample: its inputs and the expected answer.
struct Sample {
    inputs: Vec<Tensor>,
    answer: String,
}

fn samples(name: &str) -> Vec<Sample> {
    let path = demo_repository().join("samples").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let integers = |list: &serde_json::Value| -> Vec<i64> {
        list.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
    };
    let tensor = |input: &serde_json::Value| Tensor {
        name: input["name"].as_str().unwrap().into(),
        datatype: DataType::Int64,
        shape: integers(&input["shape"]),
        data: Bytes::from(integers(&input["data"]).iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()),
    };
    let sample = |row: &serde_json::Value| Sample {
        inputs: row["inputs"].as_array().unwrap().iter().map(tensor).collect(),
        answer: row["answer"].as_str().unwrap().to_owned(),
    };
    document["rows"].as_array().unwrap().iter().map(sample).collect()
}

fn numbers(tensor: &Tensor) -> Vec<i64> {
    match tensor.datatype {
        DataType::Int64 => tensor.data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        other => panic!("{} is {other}", tensor.name),
    }
}

/// Formats an answer: letters up to the end token, a label, or a number.
fn read(name: &str, outputs: &[Tensor]) -> String {
    let numbers = numbers(&outputs[0]);
    match name {
        "dates" => numbers.iter().filter(|&&code| (32..127).contains(&code)).map(|&code| code as u8 as char).collect(),
        "sentiment" => ["negative", "positive"][numbers[0] as usize].to_owned(),
        _ => numbers[0].to_string(),
    }
}

/// All samples concurrently, under the policy that batches cells, on two devices.
#[test]
fn the_demo_models_answer_as_they_were_trained_to() {
    let limits = Limits { requests: 512, models: 3, devices: 2, lanes: 1, depth: 2, batch: 64, nodes: 1 << 16 };
    let setup = Setup { models: vec![], devices: 2, limits };
    let scheduler = ripieno_policies::build("cellular", &setup, &Options::new()).unwrap();
    let target = cpu();
    let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![Arc::clone(&target.engine); 2])).unwrap();
    let loader = Loader::new(target, silent());
    for name in ["dates", "arithmetic", "sentiment"] {
        let folder = TempRepository::new();
        copy(&demo_repository().join("repository").join(name), &folder.path().join(name));
        let toml = folder.path().join(name).join("model.toml");
        let patient =
            std::fs::read_to_string(&toml).unwrap().replace("slo_ms = 200.0", "slo_ms = 60000\nlate = \"answer\"");
        std::fs::write(&toml, patient).unwrap();
        let prepared =
            loader.prepare(&scan(folder.path()).unwrap().remove(0).found.unwrap(), Profiling::IfMissing).unwrap();
        let id = engine.load(prepared.served().unwrap()).unwrap();
        let samples = samples(name);
        let (answer, answers) = channel();
        for (number, sample) in samples.iter().take(200).enumerate() {
            let answer = answer.clone();
            let on_answer = Box::new(move |result| answer.send((number, result)).unwrap());
            let inputs = sample.inputs.clone().into();
            engine.submit(Job::new(id, inputs, 1, on_answer)).unwrap();
        }
        let asked = samples.len().min(200);
        let right = (0..asked).filter(|_| {
            let (number, result): (usize, ripieno_runtime::JobResult) =
                answers.recv_timeout(Duration::from_secs(120)).unwrap();
            read(name, &result.unwrap().outputs) == samples[number].answer
        });
        let right = right.count();
        assert!(right * 100 >= asked * 95 && asked > 0, "{name}: {right} of {asked} are right");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_name().to_string_lossy().starts_with('.') {
            true => {}
            false if entry.path().is_dir() => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}
