//! Engines in processes of their own: what kills one fails what ran in it, and nothing else.

use crate::common::*;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::*;
use ripieno_model::DataType;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// An argument that nobody else gives to this program: a filter that leaves out nothing.
const STARTED_BY_A_KEEPER: &str = "--skip=started-by-a-keeper";

/// Not a test, but what [`isolation`] starts.
#[test]
fn engine_process() {
    if std::env::args().any(|arg| arg == STARTED_BY_A_KEEPER) {
        serve_engine().unwrap();
    }
}

fn isolation() -> Isolation {
    let args = ["isolated::engine_process", "--exact", "--nocapture", STARTED_BY_A_KEEPER];
    let args = args.map(str::to_owned).to_vec();
    Isolation { program: std::env::current_exe().unwrap(), args, memory_limit: None }
}

/// An engine all of whose models run in processes.
pub(crate) struct Isolating(pub(crate) Box<dyn Engine>);

impl Engine for Isolating {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn device_key(&self) -> String {
        self.0.device_key()
    }
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError> {
        self.0.load(&ModelSource { isolation: Some(isolation()), ..source.clone() })
    }
    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.0.open(lanes, sink)
    }
}

/// Answers with so many zeros as a request asks for, of which it cannot have 11,000 squared.
fn greedy() -> ModelSource {
    let range = InputRange { tensor: "n".to_owned(), least: 0.0, most: 11_000.0 };
    let isolation = Isolation { memory_limit: Some(1 << 29), ..isolation() };
    ModelSource { ranges: vec![range], isolation: Some(isolation), ..files(&["zeros_of"]) }
}

fn size(rows: i64, columns: i64) -> Tensor {
    let data: Vec<u8> = [rows, columns].iter().flat_map(|size| size.to_le_bytes()).collect();
    Tensor { name: "n".into(), datatype: DataType::Int64, shape: vec![1, 2], data: data.into() }
}

fn until<T>(mut act: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match act() {
            Some(value) => return value,
            None => assert!(begun.elapsed() < PATIENCE, "it never came"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_model_that_takes_its_process_down_is_back_soon() {
    for engine in [cpu().engine, onnxruntime().engine] {
        let stand = Stand::new(&*engine, &greedy());
        stand.device.attach(ModelId(1), engine.load(&files(&["mlp"])).unwrap());
        for round in 0..2 {
            let ask = |n: Tensor| {
                let member = Member::new(RequestSlot(0), 1, entry(n));
                stand.device.submit(task(round, 0, vec![member])).unwrap();
                stand.result()
            };
            let good = until(|| ask(size(2, 3)).outcome.ok());
            assert_eq!(good[0].outputs[0].shape, [1, 2, 3]);
            assert_eq!(stand.model.outage(), None);
            let died = ask(size(11_000, 11_000));
            let cause = died.outcome.unwrap_err().to_string();
            // An engine may see that it cannot have so much, and say so.
            if died.outage.is_none() {
                println!("{}: {cause}", engine.name());
                continue;
            }
            assert!(cause.contains("the process of the model's engine ended"), "{cause}");
            // The neighbour knows nothing of it.
            let row = numbers(4, 7);
            let member = request(1, &row);
            let beside = Task { model: ModelId(1), ..task(9, 0, vec![member]) };
            stand.device.submit(beside).unwrap();
            assert_close(&floats(&stand.result().outcome.unwrap()[0].outputs[0]), &mlp(&row));
        }
        until(|| stand.ask(size(1, 1)).ok());
    }
}

#[test]
fn the_built_in_engine_is_taken_down_by_what_it_cannot_have() {
    let stand = Stand::new(&*cpu().engine, &greedy());
    let member = Member::new(RequestSlot(0), 1, entry(size(11_000, 11_000)));
    stand.device.submit(task(0, 0, vec![member])).unwrap();
    let result = stand.result();
    assert!(result.outcome.is_err() && result.outage.is_some(), "{result:?}");
    until(|| stand.model.outage());
    until(|| stand.model.outage().is_none().then_some(()));
}

#[test]
fn an_error_of_the_engine_is_no_outage() {
    let stand = Stand::new(&Isolating(cpu().engine), &files(&["gather"]));
    let spec = stand.model.inputs()[0].clone();
    let data = 1_000_000_i64.to_le_bytes().to_vec();
    let tensor =
        Tensor { name: spec.name.as_str().into(), datatype: DataType::Int64, shape: vec![1, 1], data: data.into() };
    stand.device.submit(task(0, 0, vec![Member::new(RequestSlot(0), 1, entry(tensor))])).unwrap();
    let result = stand.result();
    assert!(result.outcome.is_err() && result.outage.is_none(), "{result:?}");
}

#[test]
fn what_cannot_be_loaded_or_started_says_so() {
    let engine = cpu().engine;
    let refused = |isolation: Isolation, file: &str| {
        let source = ModelSource { isolation: Some(isolation), ..files(&[file]) };
        engine.load(&source).map(|_| ()).unwrap_err().to_string()
    };
    let nowhere = Isolation { program: Path::new("/no/such/program").to_owned(), ..isolation() };
    assert!(refused(nowhere, "mlp").contains("/no/such/program cannot be started"));
    let other = Isolation { program: "/bin/true".into(), ..isolation() };
    let error = refused(other, "mlp");
    assert!(error.contains("ended while it loaded the model"), "{error}");
    let tight = Isolation { memory_limit: Some(1 << 20), ..isolation() };
    assert!(refused(tight, "mlp").contains("model 'mlp'"));
    assert!(refused(isolation(), "unknown_operator").contains("rten cannot load it"));
}

#[test]
fn a_process_goes_with_its_model() {
    let (sender, results) = channel();
    let engine = Isolating(cpu().engine);
    let model = engine.load(&files(&["mlp"])).unwrap();
    let device = engine.open(1, Arc::new(move |result| drop(sender.send(result)))).unwrap();
    for id in 0..3 {
        device.attach(ModelId(0), Arc::clone(&model));
        let row = numbers(4, 1);
        let task = Task {
            id: TaskId(id),
            model: ModelId(0),
            block: BlockId(0),
            lane: LaneId(0),
            members: vec![request(0, &row)],
            not_before: None,
        };
        device.submit(task).unwrap();
        let result = results.recv_timeout(PATIENCE).unwrap();
        assert_close(&floats(&result.outcome.unwrap()[0].outputs[0]), &mlp(&row));
        device.detach(ModelId(0));
    }
    let gone = Arc::downgrade(&model);
    drop((device, model));
    assert!(gone.upgrade().is_none());
}
