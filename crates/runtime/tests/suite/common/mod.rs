//! A first-in-first-out scheduler, devices that tests control, and clients that remember their answers.

pub(crate) mod catalogue;
pub(crate) mod device;
pub(crate) mod fifo;
pub(crate) mod hanging;
pub(crate) mod stepping;

use bytes::Bytes;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{BlockSource, Engine as Executor, Loaded, ModelSource, Tensor};
use ripieno_model::{Block, DataType, Model, Profile, TensorSpec, Walk};
use ripieno_runtime::{Answer, Engine, EngineConfig, Failure, Job, Refused, ServedModel, Ticket};
use ripieno_sched::{Limits, Setup};
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Generous: only a hang takes so long.
pub(crate) const SAFETY: Duration = Duration::from_secs(60);

/// Doubles every byte, as often as it has blocks.
pub(crate) struct Doubler(pub usize);

impl Loaded for Doubler {
    fn inputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn outputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn blocks(&self) -> usize {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(crate) fn limits(requests: usize) -> Limits {
    Limits { requests, models: 4, devices: 2, lanes: 1, depth: 1, batch: 8, nodes: 0 }
}

pub(crate) fn setup(devices: usize, limits: Limits) -> Setup {
    Setup { models: Vec::new(), devices, limits }
}

/// An engine with the first-in-first-out scheduler.
pub(crate) fn config(executor: &Arc<dyn Executor>, devices: usize, limits: Limits) -> EngineConfig {
    let setup = setup(devices, limits);
    EngineConfig::new(Box::new(fifo::Fifo::new(&setup)), setup, vec![Arc::clone(executor); devices])
}

pub(crate) fn start(executor: &Arc<dyn Executor>, devices: usize, limits: Limits) -> Engine {
    Engine::start(config(executor, devices, limits)).unwrap()
}

/// A model of `blocks` blocks, batches of at most 4 rows.
pub(crate) fn served(blocks: usize, slo: Duration) -> ServedModel {
    let profile = Profile::linear(0.01, 0.01, 4).unwrap();
    let block = |at| Block::new(format!("block{at}"), profile.clone());
    let slo = Nanos(i64::try_from(slo.as_nanos()).unwrap());
    let walk = if blocks == 1 { Walk::Whole } else { Walk::Chain };
    let model =
        Model { blocks: (0..blocks).map(block).collect(), walk, ..Model::whole("doubler", profile.clone(), slo) };
    ServedModel { model, loaded: Arc::new(Doubler(blocks)), max_queue: 100_000, answer_late: false }
}

/// A model of one block that emulated devices answer with its input, in batches as large as the profile has them.
pub(crate) fn emulated(executor: &Arc<dyn Executor>, name: &str, profile: Profile, slo: Nanos) -> ServedModel {
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new(name) };
    let source = ModelSource::new(name, vec![block], profile.max_batch());
    let loaded = executor.load(&ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..source });
    let model = Model::whole(name, profile, slo);
    ServedModel { model, loaded: loaded.unwrap(), max_queue: 1_024, answer_late: false }
}

pub(crate) fn bytes(rows: usize, first: u8) -> Arc<[Tensor]> {
    let data: Vec<u8> = (0..rows).map(|row| first.wrapping_add(row as u8)).collect();
    let shape = vec![rows as i64, 1];
    vec![Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data: Bytes::from(data) }].into()
}

/// The bytes of an answer.
pub(crate) fn data(answer: Answer) -> Vec<u8> {
    answer.expect("an answer with outputs").outputs[0].data.to_vec()
}

/// Submits and collects all answers in one place.
pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) model: ModelId,
    pub(crate) sender: Sender<(usize, Answer)>,
    pub(crate) answers: Receiver<(usize, Answer)>,
}

impl Client {
    pub(crate) fn new(engine: &Engine, model: ModelId) -> Client {
        let (sender, answers) = channel();
        Client { engine: engine.clone(), model, sender, answers }
    }

    /// Submits a job that its answers carry the number of.
    pub(crate) fn submit(&self, number: usize, rows: usize, timeout: Option<Duration>) -> Result<Ticket, Refused> {
        let sender = self.sender.clone();
        // A test that has seen enough may be gone.
        let on_answer = Box::new(move |answer| drop(sender.send((number, answer))));
        self.engine.submit(Job {
            model: self.model,
            inputs: bytes(rows, number as u8),
            rows,
            timeout,
            client: 0,
            priority: 0,
            on_step: None,
            on_answer,
        })
    }

    /// The next answer, which is a failure.
    pub(crate) fn next_failure(&self) -> (usize, Failure) {
        let (number, answer) = self.next();
        (number, answer.expect_err("a failure"))
    }

    /// The next answer, whosever it is.
    pub(crate) fn next(&self) -> (usize, Answer) {
        self.answers.recv_timeout(SAFETY).expect("an answer")
    }
}
