//! Requests of any length, and requests that leave a chain early, under every policy of the
//! catalogue that serves such models: each has exactly one answer, the same as alone.

use crate::common::catalogue::{MAX_BATCH, PATIENCE, scrambled, source, start, submit};
use bytes::Bytes;
use ripieno_base::{BlockId, ModelId, Nanos};
use ripieno_executor::{
    BlockSource, ComparisonOperator, CpuEngine, CpuOptions, Executor, InputLength, LengthDims, ModelSource,
    OutputLength, Tensor, TensorRule,
};
use ripieno_model::{Block, DataType, DropRule, LengthProfiles, Model, Profile, Walk};
use ripieno_policies::{CATALOGUE, Policy, find};
use ripieno_runtime::{Failure, Job, ServedModel};
use std::sync::Arc;
use std::sync::mpsc::channel;

const LONGEST: usize = 24;
/// Number of requests per policy.
const REQUESTS: usize = 10_000;
/// Averages looked-up rows under a mask, in two blocks.
fn pool() -> ModelSource {
    let input = |tensor: &str| InputLength { tensor: tensor.to_owned(), dim: 1, pad: 0.0 };
    let outputs = vec![OutputLength::new("tokens", 1)];
    let lengths = LengthDims { inputs: vec![input("ids"), input("mask")], outputs };
    ModelSource { lengths, max_length: LONGEST as u32, ..source(&["pool_first", "pool_second"]) }
}

/// Three blocks: rows that begin above 1 leave after the first, those at most -1 skip the second.
fn ways() -> ModelSource {
    let mut source = source(&["way_first", "way_second", "way_third"]);
    let rule = |comparison, number| TensorRule { tensor: "confidence".to_owned(), comparison, number };
    source.blocks[0].exit = Some(rule(ComparisonOperator::Above, 1.0));
    source.blocks[0].skip = Some((rule(ComparisonOperator::AtMost, -1.0), BlockId(2)));
    source.blocks[0].exit_outputs = vec![("y".to_owned(), "early".to_owned())];
    source
}

/// The scheduler's view: with higher costs for longer batches and early blocks, so that policies
/// have a choice.
fn served(executor: &dyn Executor, source: &ModelSource) -> ServedModel {
    let loaded = executor.load(source).unwrap();
    let linear = |scale: f64| Profile::linear(0.01 * scale, 0.05 * scale, MAX_BATCH).unwrap();
    let lengths = loaded.lengths().map(|_| {
        LengthProfiles::new(vec![(4, linear(1.0)), (12, linear(2.0)), (LONGEST as u32, linear(4.0))]).unwrap()
    });
    let block = |block: &BlockSource| Block {
        lengths: lengths.clone(),
        skips: block.skip.is_some(),
        ..Block::new(&block.name, linear(4.0))
    };
    let blocks = source.blocks.iter().map(block).collect();
    // No request is refused for lateness on a slow machine, and deferred batching defers only
    // briefly.
    let whole = Model::whole(&source.name, linear(4.0), Nanos::from_millis(500));
    let model = Model { blocks, walk: Walk::Chain, drop: Some(DropRule::Never), ..whole };
    ServedModel { model, loaded, max_queue: Some(256), max_queued_work: None, answer_late: true }
}

fn weight(at: usize, factor: usize) -> f32 {
    ((at * factor % 17) as f32 - 8.0) / 8.0
}

/// A request and its answer by the models' formulas.
struct Case {
    inputs: Arc<[Tensor]>,
    rows: usize,
    outputs: Vec<(&'static str, Vec<i64>, Vec<f32>)>,
}

fn pool_case(at: usize) -> Case {
    let (rows, length) = (1 + scrambled(at) % 3, 1 + scrambled(at + 7) % LONGEST);
    let ids: Vec<usize> = (0..rows * length).map(|place| scrambled(at * 31 + place) % 17).collect();
    let integers = |name: &str, numbers: &mut dyn Iterator<Item = i64>| Tensor {
        name: name.into(),
        datatype: DataType::Int64,
        shape: vec![rows as i64, length as i64],
        data: numbers.flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into(),
    };
    let inputs =
        vec![integers("ids", &mut ids.iter().map(|&id| id as i64)), integers("mask", &mut ids.iter().map(|_| 1))];
    let looked_up = |id: usize| (0..3).map(move |column| weight(id * 3 + column, 5));
    let mean = ids.chunks(length).flat_map(|row| {
        (0..3).map(move |column| row.iter().map(|id| weight(id * 3 + column, 5)).sum::<f32>() / row.len() as f32)
    });
    let tokens = ids.iter().flat_map(|&id| looked_up(id)).map(|number| 2.0 * number);
    let outputs = vec![
        ("mean", vec![rows as i64, 3], mean.collect()),
        ("tokens", vec![rows as i64, length as i64, 3], tokens.collect()),
    ];
    Case { inputs: inputs.into(), rows, outputs }
}

fn way_case(at: usize) -> Case {
    let first = [2.0, 0.5, -2.0, 0.75][scrambled(at) % 4];
    let x: Vec<f32> =
        [first].into_iter().chain((1..4).map(|place| (scrambled(at + place) % 17) as f32 / 8.0 - 1.0)).collect();
    let layer = |x: &[f32], columns: usize, w: usize, b: usize| -> Vec<f32> {
        let sum = |j: usize| x.iter().enumerate().map(|(i, x)| x * weight(i * columns + j, w)).sum::<f32>();
        (0..columns).map(|j| sum(j) + weight(j, b)).collect()
    };
    let hidden: Vec<f32> = layer(&x, 8, 5, 3).into_iter().map(|h| h.max(0.0)).collect();
    let y = match first {
        first if first > 1.0 => hidden[..3].to_vec(),
        first if first <= -1.0 => layer(&hidden, 3, 7, 11),
        _ => layer(&hidden.iter().map(|h| 2.0 * h).collect::<Vec<_>>(), 3, 7, 11),
    };
    let data: Bytes = x.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into();
    let input = Tensor { name: "x".into(), datatype: DataType::Fp32, shape: vec![1, 4], data };
    Case { inputs: vec![input].into(), rows: 1, outputs: vec![("y", vec![1, 3], y)] }
}

fn check(policy: &str, at: usize, case: &Case, found: &[Tensor]) {
    assert_eq!(found.len(), case.outputs.len());
    for (name, shape, expected) in &case.outputs {
        let found = found.iter().find(|tensor| *tensor.name == **name).unwrap();
        assert_eq!(&found.shape, shape, "{policy}: request {at}, output {name}");
        let numbers = found.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let far = numbers.zip(expected).find(|(found, expected)| (found - *expected).abs() > 1e-4);
        assert_eq!(far, None, "{policy}: request {at}, output {name}");
    }
}

#[test]
fn every_answer_is_that_of_the_request_alone_under_every_policy() {
    let mut served = Vec::new();
    for policy in CATALOGUE {
        let kinds = kinds(policy);
        if !kinds.is_empty() {
            serve_all(policy, &kinds);
            served.push((policy.name, kinds.len()));
        }
    }
    // Where requests of a batch need not begin together, lengths cannot be padded.
    let both = [
        "serial",
        "timeout",
        "eager",
        "deferred",
        "clockwork",
        "nexus",
        "shepherd",
        "delay-batch",
        "dva",
        "cellular",
        "late",
        "unified",
    ];
    let one = ["lazy", "lazy-oracle"];
    served.sort_unstable();
    let mut expected: Vec<_> = both.map(|name| (name, 2)).into_iter().chain(one.map(|name| (name, 1))).collect();
    expected.sort_unstable();
    assert_eq!(served, expected);
}

/// The requests of a test.
struct Kind {
    source: fn() -> ModelSource,
    case: fn(usize) -> Case,
}

/// Returns the kinds that a policy serves.
fn kinds(policy: &Policy) -> Vec<Kind> {
    let executor = CpuEngine::new(CpuOptions::default());
    let all = [Kind { source: pool, case: pool_case }, Kind { source: ways, case: way_case }];
    let fits = |kind: &Kind| policy.check_walk(&served(&executor, &(kind.source)()).model).is_ok();
    all.into_iter().filter(fits).collect()
}

fn serve_all(policy: &'static Policy, kinds: &[Kind]) {
    let name = policy.name;
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions { threads: 2 }));
    let engine = start(policy, &executor, 1);
    let load = |kind: &Kind| engine.load(served(&*executor, &(kind.source)())).unwrap();
    let models: Vec<ModelId> = kinds.iter().map(load).collect();
    let kind_of = |at: usize| at % kinds.len();
    let cases: Vec<Case> = (0..REQUESTS).map(|at| (kinds[kind_of(at)].case)(at)).collect();
    let (sender, answers) = channel();
    for (at, case) in cases.iter().enumerate() {
        let sender = sender.clone();
        submit(&engine, models[kind_of(at)], (&case.inputs, case.rows), move |answer| drop(sender.send((at, answer))));
    }
    let mut seen = vec![0; cases.len()];
    for _ in &cases {
        let (at, answer) = answers.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{name}: an answer is missing"));
        seen[at] += 1;
        let answered = answer.unwrap_or_else(|failure| panic!("{name}: request {at}: {failure}"));
        check(name, at, &cases[at], &answered.outputs);
    }
    assert!(seen.iter().all(|&count| count == 1));
    assert!(engine.drain(PATIENCE));
    for (kind, &model) in models.iter().enumerate() {
        let metrics = engine.model_metrics(model).unwrap();
        let own = || (0..cases.len()).filter(|&at| kind_of(at) == kind);
        let of_way = |way: usize| own().filter(|at| scrambled(*at) % 4 == way).count() as u64;
        let brought: u64 = own().map(|at| cases[at].inputs[0].data.len() as u64 / 8).sum();
        let (seen, once) = match cases[kind].outputs.len() {
            2 => ((metrics.useful_elements, 0), (2 * brought, 0)),
            _ => ((metrics.skips, metrics.early_exits), (of_way(2), of_way(0))),
        };
        // Preemptive policies run some blocks again.
        assert!(seen == once || (name == "shepherd" && seen.0 > once.0), "{name}: each block once: {seen:?}, {once:?}");
        let wide = metrics.batch_rows.sum as u64 > metrics.batches;
        assert!(wide || name == "serial", "{name}: no batch had two rows, so nothing was tested");
    }
    engine.shutdown();
}

#[test]
fn a_request_of_two_lengths_is_refused_without_a_slot() {
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions::default()));
    let engine = start(find("dva").unwrap(), &executor, 1);
    let model = engine.load(served(&*executor, &pool())).unwrap();
    let (short, long) = (pool_case(1), pool_case(2));
    assert_ne!(short.inputs[0].shape[1], long.inputs[0].shape[1]);
    let inputs = vec![short.inputs[0].clone(), long.inputs[1].clone()].into();
    let on_answer = Box::new(|_| panic!("it was not accepted"));
    let refused = engine.submit(Job::new(model, inputs, 1, on_answer)).err().unwrap();
    assert!(matches!(&refused, Failure::Invalid(text) if text.contains("send them equally long")), "{refused}");
    assert_eq!(engine.model_metrics(model).unwrap().live, 0);
}
