//! Requests whose inputs are on a remote frontend, on devices that join an engine which started
//! without any.

use crate::common::{SAFETY, eager, limits, policy, served, setup};
use ripieno_base::ModelId;
use ripieno_executor::{
    Device, ExecError, Executor, LoadError, LoadedModel, Loss, MemberProgress, ModelSource, Payload, RemoteRows, Sink,
    Task, TaskMember, TaskResult,
};
use ripieno_model::Extent;
use ripieno_runtime::{Engine, EngineConfig, Failure, JobResult, RemoteJob};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A device that records the rows it receives and then applies a given function to each member.
struct Far {
    seen: Sender<Rows>,
    does: fn(&TaskMember) -> MemberProgress,
}

/// First row and number of rows.
type Rows = (u32, usize);

impl Executor for Far {
    fn name(&self) -> &'static str {
        "far"
    }

    fn device_key(&self) -> String {
        "far".to_owned()
    }

    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Err(LoadError("models are elsewhere".to_owned()))
    }

    fn open(&self, _: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (tasks, received) = channel::<Task>();
        let (seen, does) = (self.seen.clone(), self.does);
        std::thread::spawn(move || received.iter().for_each(|task| sink(run(&task, &seen, does))));
        Ok(Box::new(FarDevice(Mutex::new(tasks))))
    }
}

fn run(task: &Task, seen: &Sender<Rows>, does: fn(&TaskMember) -> MemberProgress) -> TaskResult {
    for member in &task.members {
        let entry = member.entry.as_ref().expect("each runs one block");
        let Payload::Elsewhere(origin) = entry.payload else { panic!("no inputs are here") };
        assert_eq!((origin.frontend, origin.request), (3, 70));
        seen.send((origin.first_row, member.rows)).unwrap();
    }
    let (now, outcome) = (Instant::now(), Ok(task.members.iter().map(does).collect()));
    TaskResult {
        id: task.id,
        outcome,
        rerun: None,
        lost: None,
        started: now,
        finished: now,
        host_time: std::time::Duration::ZERO,
        holds_next: false,
    }
}

struct FarDevice(Mutex<Sender<Task>>);

impl Device for FarDevice {
    fn depth(&self) -> usize {
        1
    }
    fn attach(&self, _: ModelId, _: Arc<dyn LoadedModel>) {}
    fn detach(&self, _: ModelId) {}
    fn submit(&self, task: Task) -> Result<(), Task> {
        self.0.lock().unwrap().send(task).expect("the device's thread listens");
        Ok(())
    }
}

struct Bench {
    engine: Engine,
    model: ModelId,
    seen: Receiver<Rows>,
}

/// Starts an engine without devices, and adds one.
fn bench(does: fn(&TaskMember) -> MemberProgress) -> Bench {
    let setup = setup(0, limits(8));
    let scheduler = policy("eager", &setup, &eager(), 1);
    let engine = Engine::start(EngineConfig::new(scheduler, setup, Vec::new())).unwrap();
    let model = engine.load(served(1, Duration::from_secs(30))).unwrap();
    let (seen, received) = channel();
    engine.add_device_of(&Far { seen, does }).unwrap();
    Bench { engine, model, seen: received }
}

impl Bench {
    fn submit(&self, rows: usize, extent: Extent) -> Result<Receiver<JobResult>, Failure> {
        let (send, answer) = channel();
        let on_answer = Box::new(move |answer| send.send(answer).unwrap());
        let origin = RemoteRows { frontend: 3, request: 70, first_row: 0 };
        let (model, timeout, bytes) = (self.model, None, rows);
        let job = RemoteJob {
            model,
            origin,
            rows,
            extent,
            graph: None,
            stream: false,
            sizes: None,
            bytes,
            timeout,
            age: Duration::ZERO,
            way: Duration::ZERO,
            client: 0,
            priority: 0,
            on_answer,
        };
        let submitted = self.engine.submit_remote(job);
        self.engine.wake_scheduler();
        submitted.map(|_| answer)
    }
}

#[test]
fn each_batch_gets_its_own_rows_of_the_request() {
    let bench = bench(|_| MemberProgress::ended(Vec::new()));
    let answer = bench.submit(6, Extent::ONE).unwrap().recv_timeout(SAFETY).unwrap().unwrap();
    assert!(answer.outputs.is_empty());
    let mut rows: Vec<Rows> = bench.seen.try_iter().collect();
    rows.sort_unstable();
    assert_eq!(rows, [(0, 4), (4, 2)]);
}

#[test]
fn whose_inputs_were_lost_may_ask_again_and_is_not_to_blame() {
    let bench = bench(|_| {
        let lost = Some(Loss { retry_after: Duration::from_secs(1), inside: false });
        MemberProgress { lost, ..MemberProgress::failed(ExecError("its front end is gone".to_owned())) }
    });
    let failure = bench.submit(1, Extent::ONE).unwrap().recv_timeout(SAFETY).unwrap().unwrap_err();
    assert!(matches!(failure, Failure::Outage { .. }), "{failure}");
    assert_eq!(bench.engine.model_metrics(bench.model).unwrap().bad_requests, 0);
}

#[test]
fn a_length_that_the_model_does_not_have_is_refused() {
    let bench = bench(|_| MemberProgress::ended(Vec::new()));
    let refused = bench.submit(1, Extent { length: 2, limit: 0 }).unwrap_err();
    assert!(matches!(refused, Failure::Invalid(_)), "{refused}");
}
