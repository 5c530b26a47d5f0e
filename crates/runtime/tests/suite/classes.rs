//! The classes of requests as the driver passes them to a scheduler: their shape, and isolation.

use crate::common::catalogue::source;
use ripieno_base::{ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_executor::{CpuEngine, CpuOptions, Executor, ModelSource, Tensor};
use ripieno_model::{DataType, Graph, Model, Profile};
use ripieno_policies::build;
use ripieno_runtime::{Engine, EngineConfig, Failure, Job, ServedModel};
use ripieno_sched::{Control, Limits, Options, Outbox, Request, Scheduler, Setup, Shape, TaskDone};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A policy of the catalogue that records the shapes it receives.
struct Noting {
    policy: Box<dyn Scheduler>,
    shapes: Arc<Mutex<Vec<Shape>>>,
}

impl Scheduler for Noting {
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.policy.on_graph(request, graph);
    }
    fn on_request(&mut self, now: Time, request: &Request) {
        self.shapes.lock().unwrap().push(request.class.shape);
        self.policy.on_request(now, request);
    }
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.policy.on_task_done(now, done);
    }
    fn on_control(&mut self, now: Time, control: Control) {
        self.policy.on_control(now, control);
    }
    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.policy.settle(now, out);
    }
    fn next_wakeup(&self) -> Time {
        self.policy.next_wakeup()
    }
    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.policy.members(task)
    }
}

/// A server of one model of one file, with the classes that its scheduler receives.
struct Stand {
    engine: Engine,
    model: ModelId,
    shapes: Arc<Mutex<Vec<Shape>>>,
}

impl Stand {
    fn new(file: &str) -> Stand {
        let limits = Limits { requests: 8, batch: 4, ..Limits::ONE };
        let setup = Setup { models: Vec::new(), devices: 1, limits };
        let policy = build("eager", &setup, &Options::new()).unwrap();
        let shapes = Arc::<Mutex<Vec<Shape>>>::default();
        let executor: Arc<dyn Executor> = Arc::new(CpuEngine::new(CpuOptions::default()));
        let scheduler = Box::new(Noting { policy, shapes: Arc::clone(&shapes) });
        let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)])).unwrap();
        let loaded = executor.load(&ModelSource { max_batch: 4, ..source(&[file]) }).unwrap();
        let profile = Profile::linear(0.05, 0.2, 4).unwrap();
        let model = Model::whole(file, profile, Nanos::from_millis(500));
        let model = engine
            .load(ServedModel { model, loaded, max_queue: Some(8), max_queued_work: None, answer_late: true })
            .unwrap();
        Stand { engine, model, shapes }
    }

    /// Submits a request, waits for the answer, and returns it with the shape that the scheduler
    /// received.
    fn ask(&self, name: &str, shape: &[i64], numbers: &[f32]) -> (Result<(), Failure>, Shape) {
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into();
        let input = Tensor { name: name.into(), datatype: DataType::Fp32, shape: shape.to_vec(), data };
        let (sender, answer) = channel();
        let on_answer = Box::new(move |answer: ripieno_runtime::JobResult| drop(sender.send(answer.map(drop))));
        let (model, inputs) = (self.model, vec![input].into());
        self.engine.submit(Job::new(model, inputs, 1, on_answer)).unwrap();
        let answer = answer.recv_timeout(Duration::from_secs(120)).unwrap();
        (answer, *self.shapes.lock().unwrap().last().unwrap())
    }
}

#[test]
fn requests_of_one_shape_have_one_number() {
    let stand = Stand::new("double");
    let wide = |width: usize| {
        let (answer, shape) = stand.ask("x", &[1, width as i64], &vec![1.0; width]);
        answer.unwrap();
        shape
    };
    let (four, five) = (wide(4), wide(5));
    assert!(four != five && four != Shape::ALONE && five != Shape::ALONE);
    assert_eq!([wide(5), wide(4), wide(4)], [five, four, four]);
    // A client may choose any number of shapes.
    for width in 6..400 {
        wide(width);
    }
    assert_eq!(wide(399), wide(399));
}

#[test]
fn a_model_of_one_shape_has_one_number_and_bad_clients_run_alone() {
    let stand = Stand::new("pick_third");
    let (well, shape) = stand.ask("g", &[1], &[5.0]);
    assert!(well.is_ok() && shape == Shape::default());
    let poison = || stand.ask("g", &[1], &[1_000.0]);
    let (failed, first) = poison();
    assert!(matches!(failed, Err(Failure::Failed(_))) && first == Shape::default());
    // The required number depends on their rate, since failures decay.
    assert!((0..100).any(|_| poison().1 == Shape::ALONE));
    let (well, shape) = stand.ask("g", &[1], &[7.0]);
    assert!(well.is_ok() && shape == Shape::ALONE, "the clients of the model are not identified");
}
