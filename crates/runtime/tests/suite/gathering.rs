//! A device that gathers its next batch while one computes gets that batch before the end of the
//! running one.

use crate::common::{Client, Doubler, SAFETY, policy, served};
use ripieno_base::ModelId;
use ripieno_executor::{Device, Executor, LoadError, LoadedModel, MemberProgress, ModelSource, Sink, Task, TaskResult};
use ripieno_runtime::{Engine, EngineConfig};
use ripieno_sched::{Limits, Options, Setup};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { requests: 64, models: 4, depth: 2, batch: 8, nodes: 64, ..Limits::ONE };
/// Number of rows of the largest batch.
const ROWS: usize = 4;

/// Opens a device whose tasks the test ends.
struct ByHand(Mutex<Sender<(Sink, Receiver<Task>)>>);

impl Executor for ByHand {
    fn name(&self) -> &'static str {
        "by-hand"
    }

    fn device_key(&self) -> String {
        "by-hand".to_owned()
    }

    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Ok(Arc::new(Doubler(1)))
    }

    fn open(&self, _: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (tasks, received) = channel();
        self.0.lock().unwrap().send((sink, received)).unwrap();
        Ok(Box::new(HandDevice(Mutex::new(tasks))))
    }
}

struct HandDevice(Mutex<Sender<Task>>);

impl Device for HandDevice {
    fn depth(&self) -> usize {
        LIMITS.depth
    }

    fn attach(&self, _: ModelId, _: Arc<dyn LoadedModel>) {}

    fn detach(&self, _: ModelId) {}

    fn submit(&self, task: Task) -> Result<(), Task> {
        self.0.lock().unwrap().send(task).map_err(|unsent| unsent.0)
    }
}

/// Ends a task that took this long to gather.
fn end(sink: &Sink, task: &Task, host_time: Duration) {
    let (now, outcome) = (Instant::now(), task.members.iter().map(|_| MemberProgress::ended(Vec::new())).collect());
    let (id, outcome) = (task.id, Ok(outcome));
    let (rerun, lost, holds_next) = (None, None, false);
    sink(TaskResult { id, outcome, rerun, lost, started: now, finished: now, host_time, holds_next });
}

#[test]
fn the_next_batch_is_at_the_device_once_the_time_to_gather_is_known() {
    for name in ["unified", "deferred", "eager"] {
        let (opened, open) = channel();
        let executor: Arc<dyn Executor> = Arc::new(ByHand(Mutex::new(opened)));
        let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
        let scheduler = policy(name, &setup, &Options::new(), 1);
        let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![executor])).unwrap();
        let (sink, tasks) = open.recv_timeout(SAFETY).unwrap();
        let client = Client::new(&engine, engine.load(served(1, Duration::from_secs(100))).unwrap());
        let next = || tasks.recv_timeout(SAFETY).unwrap_or_else(|_| panic!("{name}: no task"));
        // Full batches, so that no policy waits for more rows, which take longer to gather than to
        // compute.
        for number in 0..64 {
            let _ticket = client.submit(number, ROWS, None).unwrap();
            end(&sink, &next(), Duration::from_secs(1));
            assert!(client.next().1.is_ok());
        }
        let _tickets = [0, 1].map(|number| client.submit(number, ROWS, None).unwrap());
        let held = [next(), next()];
        held.iter().for_each(|task| end(&sink, task, Duration::from_secs(1)));
        assert!((0..2).all(|_| client.next().1.is_ok()));
        engine.drain(SAFETY);
    }
}
