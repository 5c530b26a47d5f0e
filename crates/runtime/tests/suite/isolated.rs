//! A model whose engine process dies under load: each request has one answer, all answers of the
//! other model are good, and the model comes back.

use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{
    BlockSource, CpuEngine, CpuOptions, Executor, InputRange, Isolation, ModelSource, Tensor, serve_engine,
};
use ripieno_model::{DataType, Model, Profile};
use ripieno_policies::{build_served, find, served_options};
use ripieno_runtime::{Ending, Engine, EngineConfig, EngineProcesses, Failure, Job, JobResult, ServedModel};
use ripieno_sched::{Limits, Objective, Options, Setup};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const LIMITS: Limits = Limits { requests: 1_024, models: 2, depth: 2, batch: 4, ..Limits::ONE };
/// An argument unique to these processes: a test filter that skips nothing.
const STARTED_BY_A_KEEPER: &str = "--skip=started-by-a-keeper";

/// The engine process; not a test.
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

/// Allocates the square of the largest number of the batch, which fails for [`KILLER`], and adds it
/// to each number.
fn greedy() -> ModelSource {
    let args = ["isolated::engine_process", "--exact", "--nocapture", STARTED_BY_A_KEEPER].map(str::to_owned).to_vec();
    let (program, task_limit) = (std::env::current_exe().unwrap(), Isolation::TASK_LIMIT);
    let isolation = Isolation { program, args, memory_limit: Some(1 << 29), task_limit };
    let range = InputRange { tensor: "n".to_owned(), least: 1.0, most: KILLER as f64 };
    ModelSource { ranges: vec![range], isolation: Some(isolation), ..source("scratch") }
}

const KILLER: i64 = 11_000;

fn whole(n: i64) -> Tensor {
    Tensor { name: "n".into(), datatype: DataType::Int64, shape: vec![1, 1], data: n.to_le_bytes().to_vec().into() }
}

fn real(at: usize) -> Tensor {
    let data = (at as f32).to_le_bytes().to_vec();
    Tensor { name: "x".into(), datatype: DataType::Fp32, shape: vec![1, 1], data: data.into() }
}

fn submit(engine: &Engine, model: ModelId, client: u16, input: Tensor, on_answer: OnAnswer) -> Result<(), Failure> {
    let job = Job { client, ..Job::new(model, [input].into(), 1, on_answer) };
    engine.submit(job).map(drop)
}

type OnAnswer = Box<dyn FnOnce(JobResult) + Send>;

/// Sends `count` requests to a model, a few at a time; returns the answer of each.
fn ask(engine: &Engine, model: ModelId, count: usize, input: impl Fn(usize) -> Tensor) -> Vec<JobResult> {
    let (sender, answers) = channel();
    let mut got: Vec<Option<JobResult>> = (0..count).map(|_| None).collect();
    let (mut asked, mut answered) = (0, 0);
    while answered < count {
        while asked < count && asked - answered < 8 {
            let (number, sender) = (asked, sender.clone());
            submit(engine, model, 1, input(number), Box::new(move |answer| drop(sender.send((number, answer)))))
                .unwrap();
            asked += 1;
        }
        let (number, answer) = answers.recv_timeout(PATIENCE).expect("every request is answered");
        assert!(got[number].replace(answer).is_none(), "request {number} was answered twice");
        answered += 1;
    }
    got.into_iter().flatten().collect()
}

/// Sends these numbers together; returns the outcome of each, including refusals.
fn send(engine: &Engine, model: ModelId, client: u16, numbers: &[i64]) -> Vec<Result<JobResult, Failure>> {
    let outcomes = numbers.iter().map(|&n| {
        let (sender, answer) = channel();
        submit(engine, model, client, whole(n), Box::new(move |answer| drop(sender.send(answer)))).map(|()| answer)
    });
    let outcomes: Vec<_> = outcomes.collect();
    let wait = |answer: Receiver<JobResult>| {
        let only = answer.recv_timeout(PATIENCE).expect("every request is answered");
        assert!(answer.recv().is_err(), "a request is answered once");
        only
    };
    outcomes.into_iter().map(|outcome| outcome.map(wait)).collect()
}

/// Sends requests until the model answers; returns the number of those that were told to retry.
fn until_back(engine: &Engine, model: ModelId) -> u64 {
    let (begun, mut again) = (Instant::now(), 0);
    loop {
        match send(engine, model, 1, &[3]).remove(0) {
            Ok(Ok(_)) => return again,
            Ok(Err(Failure::Outage { .. })) | Err(Failure::Outage { .. }) => again += 1,
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come back");
        std::thread::yield_now();
    }
}

fn start(executor: &Arc<dyn Executor>) -> Engine {
    let policy = find("unified").unwrap();
    let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
    let options = served_options(policy, Options::new(), Objective::Latency);
    let scheduler = build_served(policy.name, &setup, &options).unwrap();
    let config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)]);
    Engine::start(EngineConfig { policy: Some(policy), ..config }).unwrap()
}

fn load(engine: &Engine, executor: &Arc<dyn Executor>, source: &ModelSource) -> ModelId {
    let loaded = executor.load(source).unwrap();
    let profile = Profile::linear(0.01, 0.5, LIMITS.batch).unwrap();
    // No request is refused for lateness here, since other outcomes are counted.
    let model = Model::whole(&source.name, profile, Nanos::from_millis(600_000));
    engine
        .load(ServedModel { model, loaded, max_queue: Some(1_024), max_queued_work: None, answer_late: false })
        .unwrap()
}

#[test]
fn a_crashed_process_affects_no_other_model() {
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions::default()));
    let engine = start(&executor);
    let (greedy, double) = (load(&engine, &executor, &greedy()), load(&engine, &executor, &source("double")));
    let mut outages = 0;
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| ask(&engine, double, 2_000, real));
        for death in 0..3 {
            outages += until_back(&engine, greedy);
            assert_eq!(engine.model_processes(greedy), Some(EngineProcesses { up: true, restarts: death }));
            let outcomes = send(&engine, greedy, 7, &[7, 7, KILLER, 7, 7]);
            let lost = |outcome: &Result<JobResult, Failure>| {
                matches!(outcome, Ok(Err(Failure::Outage { .. })) | Err(Failure::Outage { .. }))
            };
            assert!(lost(&outcomes[2]) && outcomes.iter().all(|outcome| lost(outcome) || matches!(outcome, Ok(Ok(_)))));
            outages += outcomes.iter().filter(|outcome| lost(outcome)).count() as u64;
        }
        for (at, answer) in neighbour.join().unwrap().into_iter().enumerate() {
            let outputs = answer.unwrap().outputs;
            assert_eq!(outputs[0].data[..], (2.0 * at as f32).to_le_bytes(), "request {at}");
        }
    });
    outages += until_back(&engine, greedy);
    let metrics = engine.model_metrics(greedy).unwrap();
    assert!(metrics.requests.contains(&(Ending::Outage, outages)), "{outages}: {:?}", metrics.requests);
    assert!(engine.drain(PATIENCE));
}

#[test]
fn clients_of_a_crashed_process_run_alone_for_a_while() {
    let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions::default()));
    let engine = start(&executor);
    let greedy = load(&engine, &executor, &greedy());
    let batches = |client| -> Vec<usize> {
        let outcomes = send(&engine, greedy, client, &[2; 40]);
        outcomes.into_iter().map(|outcome| outcome.unwrap().unwrap().batch).collect()
    };
    assert!(batches(7).into_iter().any(|rows| rows > 1));
    send(&engine, greedy, 7, &[KILLER]);
    until_back(&engine, greedy);
    assert_eq!(batches(7), [1; 40]);
    assert!(batches(8).into_iter().any(|rows| rows > 1), "another client");
}
