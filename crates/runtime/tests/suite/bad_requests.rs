//! Requests that the engine fails on, and requests of other shapes, under every policy of the
//! catalogue: other requests are answered as if alone.

use crate::common::catalogue::{MAX_BATCH, PATIENCE, scrambled, source, start, submit};
use ripieno_base::{BlockId, Nanos};
use ripieno_executor::{
    AnswerSource, AnswerSteps, BlockSource, CpuEngine, CpuOptions, Executor, InputLink, InputSource, ModelSource,
    Tensor,
};
use ripieno_model::{Block, DataType, DropRule, Model, Profile, Steps, Walk};
use ripieno_policies::{CATALOGUE, Policy};
use ripieno_runtime::{Failure, ModelSnapshot, ServedModel};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const REQUESTS: usize = 400;
/// Number of rows of the table that the models look up; row i is [i, -i].
const ROWS: usize = 100;
/// The requests of a test.
struct Kind {
    name: &'static str,
    source: fn() -> ModelSource,
    /// Returns the input of a request.
    input: fn(usize) -> Tensor,
    /// Returns its answer; `None` if the engine fails on it.
    answer: fn(usize) -> Option<Vec<f32>>,
}

const KINDS: [Kind; 4] = [
    Kind { name: "whole", source: || source(&["pick_third"]), input: |at| number("g", row(at)), answer: looked_up },
    Kind {
        name: "chain",
        source: || source(&["pick_first", "pick_second", "pick_third"]),
        input: |at| number("x", row(at)),
        answer: looked_up,
    },
    Kind { name: "cells", source: sums, input: sequence, answer: added_up },
    Kind { name: "shapes", source: || source(&["double"]), input: wide, answer: |at| Some(doubled(at)) },
];

/// Whether the request is bad: it looks up a row of its own that does not exist.
fn is_bad(at: usize) -> bool {
    scrambled(at).is_multiple_of(12)
}

fn row(at: usize) -> usize {
    if is_bad(at) { 1_000 + at } else { scrambled(at + 1) % ROWS }
}

fn floats(name: &str, shape: &[i64], numbers: &[f32]) -> Tensor {
    let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into();
    Tensor { name: name.into(), datatype: DataType::Fp32, shape: shape.to_vec(), data }
}

fn number(name: &str, row: usize) -> Tensor {
    floats(name, &[1], &[row as f32])
}

fn looked_up(at: usize) -> Option<Vec<f32>> {
    (!is_bad(at)).then(|| vec![row(at) as f32, -(row(at) as f32)])
}

/// Adds up the rows that it looks up, one per step.
fn sums() -> ModelSource {
    let mut source = source(&["cell_pick"]);
    source.blocks[0].steps = Steps::Length;
    source.blocks[0].links =
        vec![InputLink { input: "h".into(), from: InputSource::Previous("h_next".into()), initial: None }];
    let answer =
        AnswerSource { name: "h".into(), block: Some(BlockId(0)), tensor: "h_next".into(), take: AnswerSteps::Last };
    ModelSource { walk: Walk::Repeat, answers: vec![answer], ..source }
}

/// A bad request may be bad at any of its steps, including the first and the last.
fn numbers(at: usize) -> Vec<f32> {
    let length = 1 + scrambled(at + 2) % 6;
    let bad = scrambled(at + 3) % length;
    let row = |step: usize| if step == bad { row(at) } else { scrambled(at + step) % ROWS };
    (0..length).map(|step| row(step) as f32).collect()
}

fn sequence(at: usize) -> Tensor {
    let numbers = numbers(at);
    floats("g", &[1, numbers.len() as i64], &numbers)
}

fn added_up(at: usize) -> Option<Vec<f32>> {
    let sum: f32 = numbers(at).iter().sum();
    (!is_bad(at)).then(|| vec![sum, -sum])
}

/// Rows of four or five numbers, and occasionally of another width.
fn wide(at: usize) -> Tensor {
    let width = [4, 5, 4, 5, 4, 5, 4, 1 + at % 40][scrambled(at) % 8];
    let numbers: Vec<f32> = (0..width).map(|place| (at * 7 + place) as f32).collect();
    floats("x", &[1, width as i64], &numbers)
}

fn doubled(at: usize) -> Vec<f32> {
    wide(at).data.as_chunks().0.iter().map(|&bytes| 2.0 * f32::from_le_bytes(bytes)).collect()
}

/// The scheduler's view: no request is refused for lateness on a slow machine, and deferred
/// batching defers briefly.
fn served(executor: &dyn Executor, source: &ModelSource) -> ServedModel {
    let loaded = executor.load(source).unwrap();
    let profile = Profile::linear(0.05, 0.2, MAX_BATCH).unwrap();
    let block = |block: &BlockSource| Block { steps: block.steps, ..Block::new(&block.name, profile.clone()) };
    let blocks: Vec<Block> = source.blocks.iter().map(block).collect();
    let walk = match source.walk {
        Walk::Whole if blocks.len() > 1 => Walk::Chain,
        walk => walk,
    };
    let whole = Model::whole(&source.name, profile.clone(), Nanos::from_millis(500));
    let model = Model { blocks, walk, drop: Some(DropRule::Never), ..whole };
    ServedModel { model, loaded, max_queue: Some(256), max_queued_work: None, answer_late: true }
}

/// Sends requests, and checks that each gets its one answer. Returns the metrics.
fn serve(policy: &'static Policy, kind: &Kind, shards: usize) -> ModelSnapshot {
    let name = format!("{}, {}, {shards} shards", policy.name, kind.name);
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions { threads: 2 }));
    let engine = start(policy, &executor, shards);
    let model = engine.load(served(&*executor, &(kind.source)())).unwrap();
    let (sender, answers) = channel();
    for at in 0..REQUESTS {
        let (sender, inputs) = (sender.clone(), [(kind.input)(at)].into());
        submit(&engine, model, (&inputs, 1), move |answer| drop(sender.send((at, answer))));
    }
    let mut seen = vec![0; REQUESTS];
    for _ in 0..REQUESTS {
        let (at, answer) = answers.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{name}: an answer is missing"));
        seen[at] += 1;
        match ((kind.answer)(at), answer) {
            (Some(expected), Ok(answered)) => {
                let data = &answered.outputs[0].data;
                let found: Vec<f32> = data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
                assert_eq!(found, expected, "{name}: request {at}");
            }
            (None, Err(Failure::Failed(text))) => {
                let others = (0..REQUESTS).filter(|&other| other != at && is_bad(other));
                let told =
                    |other: usize| text.split(|c: char| !c.is_ascii_digit()).any(|n| n == row(other).to_string());
                assert!(others.into_iter().all(|other| !told(other)), "{name}: request {at} hears of another: {text}");
            }
            (expected, answer) => panic!("{name}: request {at} should have {expected:?} and has {answer:?}"),
        }
    }
    assert!(seen.iter().all(|&count| count == 1));
    assert!(engine.drain(PATIENCE));
    // The last slot is freed right after its answer.
    let until = Instant::now() + PATIENCE;
    let counted = loop {
        let counted = engine.model_metrics(model).unwrap();
        if (counted.live, counted.waiting) == (0, 0) {
            break counted;
        }
        assert!(Instant::now() < until, "{name}: {} slots are never given back", counted.live);
        std::thread::yield_now();
    };
    engine.shutdown();
    counted
}

fn served_by(policy: &Policy, kind: &Kind) -> bool {
    policy.check_walk(&served(&CpuEngine::new(CpuOptions::default()), &(kind.source)()).model).is_ok()
}

/// Runs under every policy that serves models of a kind; returns the number of these policies.
fn under_every_policy(kind: usize, judge: impl Fn(&str, &ModelSnapshot)) -> usize {
    let kind = &KINDS[kind];
    let policies: Vec<&'static Policy> = CATALOGUE.iter().filter(|policy| served_by(policy, kind)).collect();
    policies.iter().for_each(|policy| judge(policy.name, &serve(policy, kind, 1)));
    let sharded = policies.iter().filter(|policy| policy.is_sharded());
    sharded.for_each(|policy| judge(policy.name, &serve(policy, kind, 2)));
    policies.len()
}

/// Checks that each bad request was found and separated from its neighbours.
fn bad_requests_were_found(policy: &str, counted: &ModelSnapshot) {
    let bad = (0..REQUESTS).filter(|&at| is_bad(at)).count() as u64;
    assert_eq!(counted.bad_requests, bad, "{policy}");
    let alone = counted.batch_rows.sum as u64 == counted.batches;
    assert!(counted.batches_again > 0 || alone, "{policy}: no bad request had a neighbour, so nothing was tested");
}

#[test]
fn a_bad_request_fails_alone_in_whole_models() {
    assert!(under_every_policy(0, bad_requests_were_found) >= 9);
}

#[test]
fn a_bad_request_of_the_third_block_fails_alone_in_chains() {
    assert!(under_every_policy(1, bad_requests_were_found) >= 9);
}

#[test]
fn a_bad_request_fails_alone_in_cells() {
    assert!(under_every_policy(2, bad_requests_were_found) >= 3);
}

#[test]
fn requests_of_any_shape_are_all_answered() {
    let all_well = |policy: &str, counted: &ModelSnapshot| {
        assert_eq!((counted.batches_again, counted.bad_requests), (0, 0), "{policy}");
    };
    assert!(under_every_policy(3, all_well) >= 9);
}
