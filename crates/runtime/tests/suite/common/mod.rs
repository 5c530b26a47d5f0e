//! A first-in-first-out scheduler, devices that tests control, and clients that store their
//! answers.

pub(crate) mod catalogue;
pub(crate) mod device;
pub(crate) mod fifo;
pub(crate) mod hanging;
pub(crate) mod stepping;

use bytes::Bytes;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{BlockSource, Executor, LoadedModel, ModelSource, Tensor};
use ripieno_model::{Block, DataType, Model, Profile, TensorSpec, Walk};
use ripieno_policies::{ServedPolicy, build, build_shards};
use ripieno_runtime::{Engine, EngineConfig, Failure, Job, JobResult, ServedModel, Ticket};
use ripieno_sched::{Limits, OptionValue, Options, Setup};
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Generous time limit: only a hang reaches it.
pub(crate) const SAFETY: Duration = Duration::from_secs(60);

/// Doubles every byte once per block.
pub(crate) struct Doubler(pub usize);

impl LoadedModel for Doubler {
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
    Limits { requests, models: 4, devices: 2, batch: 8, ..Limits::ONE }
}

pub(crate) fn setup(devices: usize, limits: Limits) -> Setup {
    Setup { models: Vec::new(), devices, limits }
}

/// Runs each test twice: with an unsharded scheduler and with shards; it receives the number of
/// shards.
macro_rules! in_one_piece_and_in_shards {
    ($($(#[$said:meta])* fn $name:ident($shards:ident: usize) $body:block)*) => {$(
        $(#[$said])*
        mod $name {
            use super::*;

            fn test($shards: usize) $body

            #[test]
            fn in_one_piece() {
                test(1);
            }

            #[test]
            fn in_shards() {
                test(2);
            }
        }
    )*};
}
pub(crate) use in_one_piece_and_in_shards;

/// Creates a policy of the catalogue, unsharded or in this number of shards.
pub(crate) fn policy(name: &str, setup: &Setup, options: &Options, shards: usize) -> ServedPolicy {
    match shards {
        1 => build(name, setup, options).unwrap().into(),
        _ => build_shards(name, setup, options, shards).unwrap(),
    }
}

/// Configures an engine with the first-in-first-out scheduler, or with the most similar policy in
/// shards.
pub(crate) fn config(executor: &Arc<dyn Executor>, devices: usize, limits: Limits, shards: usize) -> EngineConfig {
    let setup = setup(devices, limits);
    let scheduler = match shards {
        1 => Box::new(fifo::Fifo::new(&setup)).into(),
        _ => policy("eager", &setup, &eager(), shards),
    };
    EngineConfig::new(scheduler, setup, vec![Arc::clone(executor); devices])
}

/// Options that make "eager" refuse no request and take them in order.
pub(crate) fn eager() -> Options {
    let word = |key: &str, value: &str| (key.to_owned(), OptionValue::Text(value.to_owned()));
    Options::from([word("drop", "never"), word("gather", "fifo")])
}

pub(crate) fn start(executor: &Arc<dyn Executor>, devices: usize, limits: Limits, shards: usize) -> Engine {
    Engine::start(config(executor, devices, limits, shards)).unwrap()
}

/// A model of `blocks` blocks, batches of at most 4 rows.
pub(crate) fn served(blocks: usize, slo: Duration) -> ServedModel {
    let profile = Profile::linear(0.01, 0.01, 4).unwrap();
    let block = |at| Block::new(format!("block{at}"), profile.clone());
    let slo = Nanos(i64::try_from(slo.as_nanos()).unwrap());
    let walk = if blocks == 1 { Walk::Whole } else { Walk::Chain };
    let model =
        Model { blocks: (0..blocks).map(block).collect(), walk, ..Model::whole("doubler", profile.clone(), slo) };
    ServedModel {
        model,
        loaded: Arc::new(Doubler(blocks)),
        max_queue: Some(100_000),
        max_queued_work: None,
        answer_late: false,
    }
}

/// A model of one block that emulated devices answer with its input, with the profile's largest
/// batch.
pub(crate) fn emulated(executor: &Arc<dyn Executor>, name: &str, profile: Profile, slo: Nanos) -> ServedModel {
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new(name) };
    let source = ModelSource::new(name, vec![block], profile.max_batch());
    let loaded = executor.load(&ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..source });
    let model = Model::whole(name, profile, slo);
    ServedModel { model, loaded: loaded.unwrap(), max_queue: Some(1_024), max_queued_work: None, answer_late: false }
}

pub(crate) fn bytes(rows: usize, first: u8) -> Arc<[Tensor]> {
    let data: Vec<u8> = (0..rows).map(|row| first.wrapping_add(row as u8)).collect();
    let shape = vec![rows as i64, 1];
    vec![Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data: Bytes::from(data) }].into()
}

/// Returns the bytes of an answer.
pub(crate) fn data(answer: JobResult) -> Vec<u8> {
    answer.expect("an answer with outputs").outputs[0].data.to_vec()
}

/// Submits jobs and collects all their answers.
pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) model: ModelId,
    pub(crate) sender: Sender<(usize, JobResult)>,
    pub(crate) answers: Receiver<(usize, JobResult)>,
}

impl Client {
    pub(crate) fn new(engine: &Engine, model: ModelId) -> Client {
        let (sender, answers) = channel();
        Client { engine: engine.clone(), model, sender, answers }
    }

    /// Submits a job; its answers carry `number`.
    pub(crate) fn submit(&self, number: usize, rows: usize, timeout: Option<Duration>) -> Result<Ticket, Failure> {
        let sender = self.sender.clone();
        // The test may have ended already.
        let on_answer = Box::new(move |answer| drop(sender.send((number, answer))));
        self.engine.submit(Job { timeout, ..Job::new(self.model, bytes(rows, number as u8), rows, on_answer) })
    }

    /// Returns the next answer, which must be a failure.
    pub(crate) fn next_failure(&self) -> (usize, Failure) {
        let (number, answer) = self.next();
        (number, answer.expect_err("a failure"))
    }

    /// Returns the next answer of any job.
    pub(crate) fn next(&self) -> (usize, JobResult) {
        self.answers.recv_timeout(SAFETY).expect("an answer")
    }
}
