//! A model whose engine's process dies under load: each request has one answer, those of the neighbour are all good, and the
//! model is back.

use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{
    BlockSource, CpuEngine, CpuOptions, Engine as Executor, InputRange, Isolation, ModelSource, Tensor, serve_engine,
};
use ripieno_model::{DataType, Model, Profile};
use ripieno_runtime::{Answer, Engine, EngineConfig, Failure, Job, ServedModel};
use ripieno_sched::{Limits, Objective, Options, Setup, build_served, find, served_options};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const LIMITS: Limits = Limits { requests: 1_024, models: 2, devices: 1, lanes: 1, depth: 2, batch: 4, nodes: 0 };
/// A filter that leaves out nothing, and that nobody else gives to this program.
const STARTED_BY_A_KEEPER: &str = "--skip=started-by-a-keeper";

/// Not a test, but the process of the engine.
#[test]
fn engine_process() {
    if std::env::args().any(|arg| arg == STARTED_BY_A_KEEPER) {
        serve_engine().unwrap();
    }
}

fn source(name: &str) -> ModelSource {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../executor/tests/models/{name}.onnx"));
    ModelSource::new(name, vec![BlockSource { path: Some(path), ..BlockSource::new(name) }], LIMITS.batch)
}

/// Answers with so many zeros as a request asks for, of which it cannot have 11,000 squared.
fn greedy() -> ModelSource {
    let args = ["isolated::engine_process", "--exact", "--nocapture", STARTED_BY_A_KEEPER].map(str::to_owned).to_vec();
    let isolation = Isolation { program: std::env::current_exe().unwrap(), args, memory_limit: Some(1 << 29) };
    let range = InputRange { tensor: "n".to_owned(), least: 0.0, most: 11_000.0 };
    ModelSource { ranges: vec![range], isolation: Some(isolation), ..source("zeros_of") }
}

fn size(side: i64) -> Tensor {
    let data: Vec<u8> = [side, side].iter().flat_map(|size| size.to_le_bytes()).collect();
    Tensor { name: "n".into(), datatype: DataType::Int64, shape: vec![1, 2], data: data.into() }
}

fn number(at: usize) -> Tensor {
    let data = (at as f32).to_le_bytes().to_vec();
    Tensor { name: "x".into(), datatype: DataType::Fp32, shape: vec![1, 1], data: data.into() }
}

/// Asks so many requests of a model, a few at a time; their answers, each once.
fn ask(engine: &Engine, model: ModelId, count: usize, input: impl Fn(usize) -> Tensor) -> Vec<Answer> {
    let (sender, answers) = channel();
    let mut got: Vec<Option<Answer>> = (0..count).map(|_| None).collect();
    let (mut asked, mut answered) = (0, 0);
    while answered < count {
        while asked < count && asked - answered < 8 {
            let (number, sender) = (asked, sender.clone());
            let on_answer = Box::new(move |answer| drop(sender.send((number, answer))));
            let (inputs, on_step) = ([input(number)].into(), None);
            let job = Job { model, inputs, rows: 1, timeout: None, client: 0, priority: 0, on_step, on_answer };
            engine.submit(job).unwrap();
            asked += 1;
        }
        let (number, answer) = answers.recv_timeout(PATIENCE).expect("every request is answered");
        assert!(got[number].replace(answer).is_none(), "request {number} was answered twice");
        answered += 1;
    }
    got.into_iter().flatten().collect()
}

#[test]
fn what_dies_takes_nobody_with_it() {
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions::default()));
    let policy = find("deferred").unwrap();
    let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
    let options = served_options(policy, Options::new(), Objective::Latency);
    let scheduler = build_served(policy.name, &setup, &options).unwrap();
    let engine = Engine::start(EngineConfig {
        policy: Some(policy),
        ..EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)])
    });
    let engine = engine.unwrap();
    let load = |source: &ModelSource| {
        let loaded = executor.load(source).unwrap();
        let max_batch = if loaded.batched() { LIMITS.batch } else { 1 };
        let profile = Profile::linear(0.01, 0.5, max_batch).unwrap();
        // Nothing is refused here for being late: what is counted is something else.
        let model = Model::whole(&source.name, profile, Nanos::from_millis(600_000));
        engine.load(ServedModel { model, loaded, max_queue: 1_024, answer_late: false }).unwrap()
    };
    let (greedy, double) = (load(&greedy()), load(&source("double")));
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| ask(&engine, double, 2_000, number));
        // One in forty takes the process down.
        let answers = ask(&engine, greedy, 200, |at| size(if at % 40 == 20 { 11_000 } else { 3 }));
        let good = answers.iter().filter(|answer| answer.is_ok()).count();
        let outages = answers.iter().filter(|answer| matches!(answer, Err(Failure::Outage(_)))).count();
        println!("{good} good, {outages} to be sent again");
        assert!(good > 0 && outages > 0 && good + outages == answers.len(), "{answers:?}");
        for (at, answer) in neighbour.join().unwrap().into_iter().enumerate() {
            let outputs = answer.unwrap().outputs;
            assert_eq!(outputs[0].data[..], (2.0 * at as f32).to_le_bytes(), "request {at}");
        }
    });
    let begun = Instant::now();
    while ask(&engine, greedy, 1, |_| size(2))[0].is_err() {
        assert!(begun.elapsed() < PATIENCE, "it does not come back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(engine.drain(PATIENCE));
}
