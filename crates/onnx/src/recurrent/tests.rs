//! Compares cells stepped through a sequence with the operator over the whole sequence, in rten.

use super::RecurrentCells;
use crate::OnnxModel;
use crate::fixture::{Draft, NamedTensors, assert_close, numbers, perm, run};
use crate::proto::{AttributeProto, NodeProto, elem};
use bytes::Bytes;
use proptest::prelude::*;
use rten_tensor::{Layout, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

const FEATURES: i64 = 3;
const HIDDEN: i64 = 4;

/// Adds a recurrent operator with weights, time first.
fn recurrent(draft: &mut Draft, op: &str, [from, to]: [&str; 2], inputs: i64, directions: i64) {
    let gates = match op {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let part = |name: &str| format!("{to}_{name}");
    draft.weight(&part("w"), &[directions, gates * HIDDEN, inputs]);
    draft.weight(&part("r"), &[directions, gates * HIDDEN, HIDDEN]);
    draft.weight(&part("b"), &[directions, 2 * gates * HIDDEN]);
    let names = [from.to_owned(), part("w"), part("r"), part("b")];
    let outputs = [part("every"), part("last")];
    draft.op(op, &names.each_ref().map(String::as_str), &outputs.each_ref().map(String::as_str));
    let direction = if directions == 2 { "bidirectional" } else { "forward" };
    let attribute = AttributeProto {
        name: "direction".to_owned(),
        s: Some(Bytes::from(direction)),
        r#type: 3,
        ..AttributeProto::default()
    };
    let node = draft.graph.node.pop().unwrap().with_int("hidden_size", HIDDEN);
    draft.graph.node.push(NodeProto { attribute: [&node.attribute[..], &[attribute]].concat(), ..node });
}

/// Begins a graph with x [batch, s, 3], transposed to time first.
fn begun() -> Draft {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, -2, FEATURES]);
    draft.op("Transpose", &["x"], &["turned"]).attribute = perm(&[1, 0, 2]);
    draft
}

fn element(x: &Tensor<f32>, at: usize) -> Tensor<f32> {
    let [batch, _, features] = x.shape()[..] else { panic!("[batch, length, features]") };
    let row = |row: usize| (0..features).map(move |feature| [row, at, feature]);
    Tensor::from_data(&[batch, features], (0..batch).flat_map(row).map(|at| x[at]).collect::<Vec<_>>())
}

/// Walks like the server: each block's last outputs are kept; a backward block begins at the end.
fn walk(
    cells: &RecurrentCells,
    x: &Tensor<f32>,
    outputs: &BTreeMap<&str, Vec<&str>>,
) -> BTreeMap<String, Vec<Tensor<f32>>> {
    let [batch, length, _] = x.shape()[..] else { panic!("[batch, length, features]") };
    let mut kept: NamedTensors = NamedTensors::new();
    let mut every: BTreeMap<String, Vec<Tensor<f32>>> = BTreeMap::new();
    let steps = (0..length).flat_map(|at| cells.blocks.iter().filter(|cell| !cell.once).map(move |cell| (at, cell)));
    for (at, cell) in steps.chain(cells.blocks.iter().filter(|cell| cell.once).map(|cell| (0, cell))) {
        let at = if cell.name == "backward" { length - 1 - at } else { at };
        let mut given = NamedTensors::new();
        for (input, from) in &cell.inputs {
            let tensor = match from.strip_prefix("previous.") {
                Some(state) => kept.get(&format!("{}.{state}", cell.name)).cloned(),
                None if from == "request" => Some(element(x, at)),
                None => kept.get(from).cloned(),
            };
            let zeros = || Tensor::zeros(&[batch, HIDDEN as usize]);
            given.insert(input.clone(), tensor.unwrap_or_else(zeros));
        }
        let wanted: Vec<String> = outputs[&*cell.name].iter().map(|&name| name.to_owned()).collect();
        for (name, tensor) in run(cell.file.clone(), &given, &wanted) {
            let name = format!("{}.{name}", cell.name);
            every.entry(name.clone()).or_default().push(tensor.clone());
            kept.insert(name, tensor);
        }
    }
    every
}

fn whole(draft: &Draft, x: &Tensor<f32>, output: &str) -> Tensor<f32> {
    let inputs = NamedTensors::from([("x".to_owned(), x.clone())]);
    run(draft.encode(), &inputs, &[output.to_owned()]).remove(output).unwrap()
}

#[test]
fn an_operator_that_gives_every_state_becomes_a_cell_that_repeats() {
    let mut draft = begun();
    recurrent(&mut draft, "LSTM", ["turned", "l"], FEATURES, 1);
    draft.ints("one", &[1]);
    draft.op("Squeeze", &["l_every", "one"], &["states"]);
    draft.op("Transpose", &["states"], &["batched"]).attribute = perm(&[1, 0, 2]);
    draft.weight("w", &[HIDDEN, 5]);
    draft.op("MatMul", &["batched", "w"], &["y"]);
    draft.output("y", &[-1, -2, 5]);
    let cells = draft.model().cells().unwrap();
    assert_eq!((cells.walk, cells.outputs[0].every), ("repeat", true));
    let x = numbers(&[2, 6, FEATURES as usize]);
    let outputs = BTreeMap::from([("cell", vec!["h_next", "c_next", "y"])]);
    let steps = walk(&cells, &x, &outputs).remove("cell.y").unwrap();
    let expected = whole(&draft, &x, "y");
    for (at, step) in steps.iter().enumerate() {
        assert_close(step, &element(&expected, at));
    }
}

#[test]
fn a_gru_that_resets_behind_the_product_gives_the_same() {
    let mut draft = begun();
    recurrent(&mut draft, "GRU", ["turned", "l"], FEATURES, 1);
    let node = draft.graph.node.pop().unwrap().with_int("linear_before_reset", 1);
    draft.graph.node.push(node);
    draft.scalar("zero", 0);
    draft.op("Gather", &["l_last", "zero"], &["y"]);
    draft.output("y", &[-1, HIDDEN]);
    let cells = draft.model().cells().unwrap();
    let x = numbers(&[3, 5, FEATURES as usize]);
    let mut steps = walk(&cells, &x, &BTreeMap::from([("cell", vec!["h_next"]), ("head", vec!["y"])]));
    assert_close(&steps.remove("head.y").unwrap()[0], &whole(&draft, &x, "y"));
}

#[test]
fn stacked_layers_take_each_others_states_and_a_head_runs_once() {
    let mut draft = begun();
    draft.ints("one", &[1]);
    draft.weight("into", &[FEATURES, 6]);
    draft.op("MatMul", &["turned", "into"], &["wide"]);
    recurrent(&mut draft, "LSTM", ["wide", "a"], 6, 1);
    draft.op("Squeeze", &["a_every", "one"], &["a_states"]);
    recurrent(&mut draft, "LSTM", ["a_states", "b"], HIDDEN, 1);
    draft.op("Squeeze", &["b_every", "one"], &["b_states"]);
    draft.op("Add", &["a_states", "b_states"], &["both"]);
    draft.op("Transpose", &["both"], &["batched"]).attribute = perm(&[1, 0, 2]);
    draft.scalar("end", -1);
    draft.op("Gather", &["batched", "end"], &["last"]).attribute = crate::fixture::axis(1);
    draft.weight("w", &[HIDDEN, 2]);
    draft.op("MatMul", &["last", "w"], &["y"]);
    draft.output("y", &[-1, 2]);
    let cells = draft.model().cells().unwrap();
    assert_eq!(cells.walk, "stacked");
    let from: Vec<&str> = cells.blocks[1].inputs.iter().map(|(_, from)| from.as_str()).collect();
    assert_eq!(from, ["layer1.h_next", "previous.h_next", "previous.c_next"]);
    assert_eq!(cells.blocks[2].inputs, [("batched_step".to_owned(), "layer2.batched_step".to_owned())]);
    let x = numbers(&[2, 7, FEATURES as usize]);
    let state = vec!["h_next", "c_next"];
    let last = [&state[..], &["batched_step"]].concat();
    let outputs = BTreeMap::from([("layer1", state), ("layer2", last), ("head", vec!["y"])]);
    assert_close(&walk(&cells, &x, &outputs).remove("head.y").unwrap()[0], &whole(&draft, &x, "y"));
}

#[test]
fn both_directions_meet_in_the_head() {
    let mut draft = begun();
    recurrent(&mut draft, "LSTM", ["turned", "l"], FEATURES, 2);
    draft.op("Transpose", &["l_last"], &["batched"]).attribute = perm(&[1, 0, 2]);
    draft.op("Flatten", &["batched"], &["joined"]);
    draft.weight("w", &[2 * HIDDEN, 2]);
    draft.op("MatMul", &["joined", "w"], &["y"]);
    draft.output("y", &[-1, 2]);
    let cells = draft.model().cells().unwrap();
    assert_eq!((cells.walk, cells.outputs[0].every), ("bidirectional", false));
    let x = numbers(&[2, 5, FEATURES as usize]);
    let state = vec!["h_next", "c_next"];
    let outputs = BTreeMap::from([("forward", state.clone()), ("backward", state), ("head", vec!["y"])]);
    assert_close(&walk(&cells, &x, &outputs).remove("head.y").unwrap()[0], &whole(&draft, &x, "y"));
}

#[test]
fn the_walk_is_said_in_toml() {
    let mut draft = begun();
    recurrent(&mut draft, "RNN", ["turned", "l"], FEATURES, 1);
    draft.scalar("zero", 0);
    draft.op("Gather", &["l_last", "zero"], &["y"]);
    draft.output("y", &[-1, HIDDEN]);
    let expected = "walk = \"repeat\"\n\n[[block]]\nname = \"cell\"\n[block.inputs]\n\"x\" = \"request\"\n\
                    \"h\" = \"previous.h_next\"\n\n[[block]]\nname = \"head\"\nonce = true\n[block.inputs]\n\
                    \"cell_h\" = \"cell.h_next\"\n\n[[output]]\nname = \"y\"\nfrom = \"head.y\"\ntake = \"last\"\n";
    assert_eq!(draft.model().cells().unwrap().to_toml(), expected);
    assert_eq!(super::text::quoted("a\"b\n"), "\"a\\\"b\\u000A\"");
}

#[test]
fn what_does_not_come_apart_is_refused_with_the_operator() {
    let refused = |draft: &Draft| draft.model().cells().unwrap_err().to_string();
    let every = |draft: &mut Draft, mix: &[&str]| {
        draft.ints("one", &[1]);
        draft.op("Squeeze", &["l_every", "one"], &["states"]);
        draft.op("Transpose", &["states"], &["batched"]).attribute = perm(&[1, 0, 2]);
        draft.op(mix[0], &mix[1..], &["y"]);
    };
    let mut mean = begun();
    recurrent(&mut mean, "LSTM", ["turned", "l"], FEATURES, 1);
    every(&mut mean, &["ReduceMean", "batched", "one"]);
    mean.output("y", &[-1, 1, HIDDEN]);
    assert!(refused(&mean).contains("takes all elements of"), "{}", refused(&mean));
    let mut softmax = begun();
    recurrent(&mut softmax, "LSTM", ["turned", "l"], FEATURES, 1);
    every(&mut softmax, &["Softmax", "batched"]);
    softmax.graph.node.last_mut().unwrap().attribute = crate::fixture::axis(1);
    softmax.output("y", &[-1, -2, HIDDEN]);
    assert!(refused(&softmax).contains("Softmax 'y' mixes the elements"), "{}", refused(&softmax));
    let mut both = begun();
    recurrent(&mut both, "LSTM", ["turned", "l"], FEATURES, 2);
    both.op("Transpose", &["l_every"], &["y"]).attribute = perm(&[2, 0, 1, 3]);
    both.output("y", &[-1, -2, 2, HIDDEN]);
    assert!(refused(&both).contains("both directions at one element"), "{}", refused(&both));
    assert!(refused(&crate::fixture::encoder()).contains("holds no LSTM, GRU or RNN"));
    let mut started = begun();
    started.weight("start", &[1, 1, HIDDEN]);
    recurrent(&mut started, "GRU", ["turned", "l"], FEATURES, 1);
    started.graph.node.last_mut().unwrap().input.extend(["".to_owned(), "start".to_owned()]);
    started.scalar("zero", 0);
    started.op("Gather", &["l_last", "zero"], &["y"]);
    started.output("y", &[-1, HIDDEN]);
    assert!(refused(&started).contains("has the initial state 'start'"), "{}", refused(&started));
}

/// Two layers and a head: an example of each converted part.
fn stacked() -> Draft {
    let mut draft = begun();
    draft.ints("one", &[1]);
    recurrent(&mut draft, "LSTM", ["turned", "a"], FEATURES, 1);
    draft.op("Squeeze", &["a_every", "one"], &["a_states"]);
    recurrent(&mut draft, "GRU", ["a_states", "b"], HIDDEN, 1);
    draft.scalar("zero", 0);
    draft.op("Gather", &["b_last", "zero"], &["y"]);
    draft.output("y", &[-1, HIDDEN]);
    draft
}

proptest! {
    #[test]
    fn damaged_recurrences_are_errors_and_never_panics(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        dims in prop::collection::vec((any::<prop::sample::Index>(), 0..4usize, any::<i64>()), 0..3),
    ) {
        let mut draft = stacked();
        for (weight, at, size) in dims {
            let weights = draft.graph.initializer.len();
            let dims = &mut draft.graph.initializer[weight.index(weights)].dims;
            if let Some(dim) = dims.get_mut(at) {
                *dim = if size % 2 == 0 { size } else { size % 5 };
            }
        }
        let mut bytes = draft.encode();
        for (place, byte) in flips {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(model) = OnnxModel::parse(bytes, Path::new("fuzz.onnx")) {
            let _ = model.cells();
        }
    }
}
