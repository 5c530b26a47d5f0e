//! Requests that run cell by cell: a cluster answers as one process does, whatever becomes of the
//! backends that hold their state.
//!
//! The cells compute, so that a step with another request's state, or a repeated one, gives another
//! answer.

use crate::common::{
    Client, DEPTH, RunningBackend, SAFETY, SchedulerPair, anywhere, asking_for, backend_of, client, described,
    scheduler, starts, until,
};
use crate::hanging::Hanging;
use bytes::Bytes;
use ripieno_base::{BlockId, ModelId, Nanos};
use ripieno_cluster::plane::{
    Handshake, LinkBounds, Message, MessageReader, PeerLink, Role, Tcp, Transport, connect_handshake,
};
use ripieno_cluster::{BackendModel, BackendModels, ClusterScheduler, InitialPlan, ModelDescription, StartedEngine};
use ripieno_executor::{
    AnswerSource, AnswerSteps, BlockSource, CpuEngine, CpuOptions, Executor, Initial, InputLink, InputSource,
    ModelSource, StepLimit, Tensor,
};
use ripieno_model::{Block, DataType, DropRule, Model, Profile, Steps, Walk};
use ripieno_runtime::{DeviceSnapshot, DeviceState, Engine, Failure, HangBound, Job, JobResult, ServedModel};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const LONGEST: usize = 12;
/// Number of ids that the cells' embedding knows.
const IDS: usize = 17;
const MAX_BATCH: usize = 8;
/// No request that is to try again.
const NONE: [&str; 0] = [];

const WALKS: [Walk; 6] =
    [Walk::Repeat, Walk::Stacked, Walk::Bidirectional, Walk::EncodeDecode, Walk::Tree, Walk::Graph];

fn cell(name: &str, file: &str, steps: Steps, links: &[InputLink]) -> BlockSource {
    let path = format!("{}/../executor/tests/models/{file}.onnx", env!("CARGO_MANIFEST_DIR"));
    BlockSource { path: Some(path.into()), steps, links: links.to_vec(), ..BlockSource::new(name) }
}

fn link(input: &str, from: InputSource) -> InputLink {
    InputLink { input: input.into(), from, initial: None }
}

fn rnn(name: &str) -> BlockSource {
    cell(name, "cell_rnn", Steps::Length, &[link("h", InputSource::Previous("h_next".into()))])
}

fn answer(name: &str, block: u16, tensor: &str, take: AnswerSteps) -> AnswerSource {
    AnswerSource { name: name.into(), block: Some(BlockId(block)), tensor: tensor.into(), take }
}

fn head(a: InputSource, b: InputSource) -> BlockSource {
    cell("head", "cell_head", Steps::Once, &[link("a", a), link("b", b)])
}

fn source(walk: Walk) -> ModelSource {
    let last = |block: u16| InputSource::Last(BlockId(block), "h_next".into());
    let (blocks, answers) = match walk {
        Walk::Stacked => {
            let above = [
                link("x", InputSource::Step(BlockId(0), "y".into())),
                link("h", InputSource::Previous("h_next".into())),
            ];
            let second = cell("second", "cell_layer", Steps::Length, &above);
            (vec![rnn("first"), second], vec![answer("y", 1, "y", AnswerSteps::Every)])
        }
        Walk::Bidirectional => {
            let backward = BlockSource { backward: true, beside: true, ..rnn("backward") };
            let ends = vec![answer("back", 1, "y", AnswerSteps::Every), answer("score", 2, "score", AnswerSteps::Last)];
            (vec![rnn("forward"), backward, head(last(0), last(1))], ends)
        }
        Walk::EncodeDecode => {
            let initial = |initial, link| InputLink { initial: Some(initial), ..link };
            let links = [
                initial(Initial::Number(2.0), link("token", InputSource::Previous("token_next".into()))),
                initial(Initial::Last(BlockId(0), "h_next".into()), link("h", InputSource::Previous("h_next".into()))),
            ];
            let decoder = cell("decoder", "cell_decoder", Steps::UntilEnd, &links);
            let decoder = BlockSource { end: Some("done".into()), ..decoder };
            // The walk goes on after the block that runs until its end.
            let ends = vec![
                answer("tokens", 1, "token_next", AnswerSteps::Every),
                answer("score", 2, "score", AnswerSteps::Last),
            ];
            (vec![rnn("encoder"), decoder, head(last(0), last(1))], ends)
        }
        Walk::Tree | Walk::Graph => {
            let child = |at: u32| InputSource::Child(at, "h_next".into());
            let leaf = cell("leaf", "cell_leaf", Steps::Nodes, &[]);
            let inner = cell("inner", "cell_internal", Steps::Nodes, &[link("h0", child(0)), link("h1", child(1))]);
            let root = AnswerSource { block: None, ..answer("h", 0, "h_next", AnswerSteps::Last) };
            (vec![leaf, inner], vec![root])
        }
        _ => {
            let ends = vec![answer("y", 0, "y", AnswerSteps::Every), answer("h", 0, "h_next", AnswerSteps::Last)];
            (vec![rnn("cell")], ends)
        }
    };
    let limit = StepLimit::Extra(8);
    ModelSource { walk, answers, max_length: 40, limit, ..ModelSource::new(walk.name(), blocks, MAX_BATCH) }
}

fn model(source: &ModelSource) -> Model {
    let profile = Profile::linear(0.01, 0.05, MAX_BATCH).unwrap();
    let block = |of: &BlockSource| {
        let (steps, beside) = (of.steps, of.beside);
        Block { steps, beside, ..Block::new(of.name.clone(), profile.clone()) }
    };
    let blocks = source.blocks.iter().map(block).collect();
    let whole = Model::whole(&source.name, profile.clone(), Nanos::from_millis(60_000));
    Model { blocks, walk: source.walk, drop: Some(DropRule::Never), ..whole }
}

pub(crate) fn cpu() -> Arc<dyn Executor> {
    Arc::new(CpuEngine::new(CpuOptions { threads: 1 }).with_depth(DEPTH))
}

/// Loads the model of a walk, as a backend's process does.
pub(crate) fn loaded(walk: Walk, executor: &dyn Executor) -> BackendModel {
    let source = source(walk);
    let loaded = executor.load(&source).unwrap();
    let described = described(&source.name, "cpu", &*loaded, model(&source));
    BackendModel { description: ModelDescription { streams: !walk.brings_graph(), ..described }, loaded }
}

/// Starts a backend whose models are its own.
pub(crate) fn backend(schedulers: &[String], executor: Arc<dyn Executor>, walks: &[Walk]) -> RunningBackend {
    let models = BackendModels::default();
    (0..).zip(walks).for_each(|(number, &walk)| models.add(number, loaded(walk, &*executor)).unwrap());
    backend_of(schedulers.to_vec(), Arc::new(models), executor, None, None)
}

fn int64(name: &str, shape: &[i64], numbers: &[i64]) -> Tensor {
    let data = Bytes::from(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
    Tensor { name: name.into(), datatype: DataType::Int64, shape: shape.to_vec(), data }
}

/// Returns a request of a walk, which differs from one number to the next.
fn request(walk: Walk, number: usize) -> Arc<[Tensor]> {
    let length = 1 + number * 7 % LONGEST;
    let length = if walk == Walk::Tree { length | 1 } else { length };
    let tokens: Vec<i64> = (0..length).map(|at| ((number * 5 + at * 3) % IDS) as i64).collect();
    let mut inputs = vec![int64("token", &[1, length as i64], &tokens)];
    if walk.brings_graph() {
        // As in a heap, with the root first in a tree and last in a graph.
        let child = |at: usize| if at < length { at as i64 } else { -1 };
        let mut children: Vec<[i64; 2]> = (0..length).map(|node| [child(2 * node + 1), child(2 * node + 2)]).collect();
        if walk == Walk::Graph {
            let turned = |child: i64| if child < 0 { -1 } else { length as i64 - 1 - child };
            children = children.iter().rev().map(|of| of.map(turned)).collect();
            let cells: Vec<i64> = children.iter().map(|of| i64::from(*of != [-1, -1])).collect();
            inputs.push(int64("children", &[1, length as i64, 2], &children.concat()));
            inputs.push(int64("cell", &[1, length as i64], &cells));
        } else {
            inputs.push(int64("children", &[1, length as i64, 2], &children.concat()));
        }
    }
    inputs.into()
}

fn walk_of(number: usize) -> Walk {
    WALKS[number % WALKS.len()]
}

/// One process that serves the same models.
pub(crate) struct OneProcess {
    engine: Engine,
    ids: Vec<ModelId>,
}

impl OneProcess {
    pub(crate) fn start(devices: usize) -> OneProcess {
        let executor = cpu();
        let StartedEngine { engine, .. } = starts("unified", HangBound::default())().unwrap();
        let load = |walk: Walk| {
            let source = source(walk);
            let (model, loaded) = (model(&source), executor.load(&source).unwrap());
            let served = ServedModel { model, loaded, max_queue: None, max_queued_work: None, answer_late: true };
            engine.load(served).unwrap()
        };
        let ids = WALKS.into_iter().map(load).collect();
        for _ in 0..devices {
            engine.add_device_of(&*executor).unwrap();
        }
        OneProcess { engine, ids }
    }

    /// Returns the steps and the answer of a request.
    pub(crate) fn streamed(&self, walk: Walk, number: usize) -> Streamed {
        let id = WALKS.iter().position(|&other| other == walk).map(|at| self.ids[at]).unwrap();
        stream(|job| drop(self.engine.submit(job).unwrap()), id, walk, number).end()
    }

    /// Returns the answers to requests of these numbers, each of which has one.
    fn answers(&self, numbers: usize) -> BTreeMap<usize, Vec<Tensor>> {
        let (send, answers) = channel();
        for number in 0..numbers {
            let at = number % WALKS.len();
            self.engine.submit(job(self.ids[at], number, &send)).unwrap();
        }
        let answers = (0..numbers).map(|_| answers.recv_timeout(SAFETY).unwrap());
        answers.map(|(number, answer): (usize, JobResult)| (number, answer.unwrap().outputs)).collect()
    }
}

fn job(model: ModelId, number: usize, sender: &Sender<(usize, JobResult)>) -> Job {
    let (inputs, sender) = (request(walk_of(number), number), sender.clone());
    let on_answer = Box::new(move |answer| drop(sender.send((number, answer))));
    let (timeout, client, priority, on_step) = (None, 0, 0, None);
    Job { model, inputs, rows: 1, timeout, stage: None, client, priority, on_step, on_answer }
}

/// Submits requests of all walks; calls `then` when half of them are submitted and some answered.
/// Waits for one answer of each: the right one, or one that permits a retry. Returns the latter.
fn drive(client: &Client, numbers: usize, expected: &BTreeMap<usize, Vec<Tensor>>, then: impl FnOnce()) -> Vec<String> {
    let ids = WALKS.map(|walk| client.model(walk.name()));
    let answered = || ids.iter().map(|&id| client.frontend.model(id).map_or(0, |of| of.success.count)).sum::<u64>();
    let (before, mut then, mut again) = (answered(), Some(then), Vec::new());
    for number in 0..numbers {
        if number == numbers / 2 {
            until("some are answered", || answered() > before + numbers as u64 / 8);
            then.take().into_iter().for_each(|then| then());
        }
        match client.frontend.submit(job(ids[number % WALKS.len()], number, &client.sender)) {
            Ok(_) => {}
            Err(Failure::Outage { cause, .. }) => again.push(format!("{number} was refused: {cause}")),
            Err(other) => panic!("request {number}: {other}"),
        }
    }
    let mut seen = BTreeSet::new();
    for _ in again.len()..numbers {
        let (number, answer) = client.answers.recv_timeout(SAFETY).expect("each has an answer");
        match answer {
            Ok(answered) => {
                assert_eq!(&answered.outputs, &expected[&number], "request {number}, {:?}", walk_of(number));
            }
            Err(Failure::Outage { cause, .. }) => again.push(format!("{number}, {:?}: {cause}", walk_of(number))),
            Err(other) => panic!("request {number}, {:?}: {other}", walk_of(number)),
        }
        assert!(seen.insert(number), "request {number} was answered twice");
    }
    assert!(client.answers.try_recv().is_err(), "more answers than requests");
    assert!(ids.iter().all(|&id| client.frontend.model(id).unwrap().live == 0));
    again
}

/// A scheduler, two backends and a client.
struct Cluster {
    scheduler: ClusterScheduler,
    backends: [RunningBackend; 2],
    client: Client,
}

impl Cluster {
    fn start(policy: &'static str, hang: HangBound, executors: [Arc<dyn Executor>; 2]) -> Cluster {
        let scheduler = scheduler(1, anywhere(), policy, hang);
        let address = [scheduler.address().to_string()];
        let backends = executors.map(|executor| backend(&address, executor, &WALKS));
        let client = client(scheduler.address());
        client.ready();
        until("both serve", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
        Cluster { scheduler, backends, client }
    }

    fn end(self) {
        self.client.frontend.close();
        let engine = self.scheduler.engine().unwrap();
        until("nothing is left in the scheduler", || engine.unanswered() == 0);
        self.backends.into_iter().for_each(RunningBackend::abort);
    }
}

fn answers_are_those_of_one_process(policy: &'static str) {
    const REQUESTS: usize = 600;
    let expected = OneProcess::start(2).answers(REQUESTS);
    let words = |number: usize| &expected[&number][0];
    assert!(
        (0..REQUESTS).filter(|number| walk_of(*number) == Walk::EncodeDecode).any(|number| words(number).shape[1] > 3)
    );
    assert!(expected.values().all(|outputs| !outputs.is_empty() && outputs.iter().all(|of| !of.data.is_empty())));
    let cluster = Cluster::start(policy, HangBound::default(), [cpu(), cpu()]);
    assert_eq!(drive(&cluster.client, REQUESTS, &expected, || {}), NONE);
    let engine = cluster.scheduler.engine().unwrap();
    let batches = |device: &DeviceSnapshot| device.batches;
    assert!(engine.device_metrics().iter().map(batches).all(|batches| batches > 0), "both have run some");
    cluster.end();
}

#[test]
fn answers_are_those_of_one_process_under_unified() {
    answers_are_those_of_one_process("unified");
}

#[test]
fn answers_are_those_of_one_process_under_cellular() {
    answers_are_those_of_one_process("cellular");
}

#[test]
fn walks_on_a_backend_that_dies_begin_again_elsewhere() {
    const REQUESTS: usize = 600;
    let expected = OneProcess::start(1).answers(REQUESTS);
    let cluster = Cluster::start("unified", HangBound::default(), [cpu(), cpu()]);
    let again = drive(&cluster.client, REQUESTS, &expected, || cluster.backends[0].stop.abort());
    assert!(again.len() < REQUESTS / 2, "{again:?}");
    cluster.end();
}

#[test]
fn walks_on_a_backend_that_leaves_are_not_lost() {
    const REQUESTS: usize = 600;
    let expected = OneProcess::start(1).answers(REQUESTS);
    let cluster = Cluster::start("unified", HangBound::default(), [cpu(), cpu()]);
    assert_eq!(drive(&cluster.client, REQUESTS, &expected, || cluster.backends[0].stop.leave()), NONE);
    cluster.end();
}

#[test]
fn walks_on_a_backend_that_hangs_begin_again_elsewhere_and_it_comes_again() {
    const REQUESTS: usize = 600;
    let expected = OneProcess::start(1).answers(REQUESTS);
    let hang = HangBound { times: 1, least: Nanos::from_millis(100) };
    let hanging = Hanging::over(cpu());
    let cluster = Cluster::start("unified", hang, [cpu(), hanging.clone()]);
    let again = drive(&cluster.client, REQUESTS, &expected, || hanging.set(true));
    assert!(again.len() < REQUESTS / 2, "{again:?}");
    hanging.set(false);
    until("it has come again", || cluster.scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
    // Its slots hold walks of the time before.
    assert_eq!(drive(&cluster.client, REQUESTS, &expected, || {}), NONE);
    cluster.end();
}

/// Two schedulers, some backends whose devices may be made to hang, and a client.
struct Spares {
    schedulers: SchedulerPair,
    backends: Vec<(RunningBackend, Arc<Hanging>)>,
    client: Client,
}

impl Spares {
    fn start(backends: usize, hang: HangBound) -> Spares {
        let schedulers = SchedulerPair::start(hang, InitialPlan::Whole);
        let client = asking_for(schedulers.addresses(), SAFETY);
        let mut spares = Spares { schedulers, backends: Vec::new(), client };
        (0..backends).for_each(|_| spares.start_backend());
        spares.client.ready();
        spares
    }

    fn start_backend(&mut self) {
        let hanging = Hanging::over(cpu());
        self.backends.push((backend(&self.schedulers.addresses(), hanging.clone(), &WALKS), hanging));
    }

    /// Waits until all processes serve, and returns the index of the primary.
    fn whole(&self) -> usize {
        until("all devices of a primary serve", || {
            let engine = self.schedulers.primary().and_then(|at| self.schedulers.get(at).engine());
            let serving = |device: &DeviceSnapshot| device.state == DeviceState::Serving;
            engine.is_some_and(|engine| {
                engine.device_metrics().iter().filter(|device| serving(device)).count() == self.backends.len()
            })
        });
        let primary = self.schedulers.settled();
        until("the client knows", || self.client.frontend.serving_devices() == self.backends.len());
        primary
    }

    fn end(self) {
        self.client.frontend.close();
        self.backends.into_iter().for_each(|(backend, _)| backend.abort());
    }
}

/// A scheduler that ends loses no walk, however far it was: each is answered right, and once.
#[test]
fn walks_in_flight_at_a_hand_over_end_or_begin_again() {
    const REQUESTS: usize = 600;
    let expected = OneProcess::start(1).answers(REQUESTS);
    let mut spares = Spares::start(2, HangBound::default());
    // The second hand-over goes back to a scheduler that counts its walks from one.
    for _ in 0..2 {
        let primary = spares.whole();
        let mut lost = spares.schedulers.take(primary);
        assert_eq!(drive(&spares.client, REQUESTS, &expected, || drop(lost.take())), NONE);
        spares.schedulers.start_again(primary, InitialPlan::Whole);
    }
    spares.end();
}

/// Each of ten thousand requests with twenty faults among them has one answer: the right one, or
/// one that permits a retry.
#[test]
fn whatever_fails_and_however_often_each_walk_has_one_answer() {
    const REQUESTS: usize = 500;
    let expected = OneProcess::start(1).answers(REQUESTS);
    let hang = HangBound { times: 1, least: Nanos::from_millis(250) };
    let (mut spares, mut again) = (Spares::start(3, hang), Vec::new());
    for fault in 0..20 {
        let primary = spares.whole();
        again.extend(match fault % 4 {
            0 => {
                let mut lost = spares.schedulers.take(primary);
                let again = drive(&spares.client, REQUESTS, &expected, || drop(lost.take()));
                spares.schedulers.start_again(primary, InitialPlan::Whole);
                again
            }
            1 | 2 => {
                let (gone, _) = spares.backends.remove(fault % 3);
                let goes = || if fault % 4 == 1 { gone.stop.abort() } else { gone.stop.leave() };
                let again = drive(&spares.client, REQUESTS, &expected, goes);
                gone.thread.join().unwrap();
                spares.start_backend();
                again
            }
            _ => {
                let hanging = Arc::clone(&spares.backends[fault % 3].1);
                let again = drive(&spares.client, REQUESTS, &expected, || hanging.set(true));
                hanging.set(false);
                again
            }
        });
    }
    assert!(again.len() < 20 * REQUESTS * 7 / 8, "{again:?}");
    spares.end();
}

/// A request whose steps are streamed.
pub(crate) struct Stream {
    steps: Receiver<(Vec<Tensor>, bool)>,
    answers: Receiver<JobResult>,
    /// The steps that were waited for.
    first: Vec<(Vec<Tensor>, bool)>,
}

/// The steps that a client has received, and then its answer.
pub(crate) struct Streamed {
    pub(crate) steps: Vec<(Vec<Tensor>, bool)>,
    pub(crate) answer: JobResult,
}

impl Stream {
    /// Waits for a step.
    pub(crate) fn await_step(&mut self) {
        self.first.push(self.steps.recv_timeout(SAFETY).unwrap());
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Streamed {
        // The sender of steps is dropped before the answer.
        let steps = self.first.into_iter().chain(self.steps.iter()).collect();
        Streamed { steps, answer: self.answers.recv_timeout(SAFETY).unwrap() }
    }
}

pub(crate) fn stream(submit: impl Fn(Job), model: ModelId, walk: Walk, number: usize) -> Stream {
    let ((send, steps), (end, answers)) = (channel(), channel());
    let on_step = Box::new(move |step: ripieno_runtime::StreamedStep| drop(send.send((step.outputs, step.last))));
    let on_answer = Box::new(move |answer| drop(end.send(answer)));
    let (inputs, timeout, client, priority) = (request(walk, number), None, 0, 0);
    let on_step = Some(on_step as ripieno_runtime::OnStep);
    submit(Job { model, inputs, rows: 1, timeout, stage: None, client, priority, on_step, on_answer });
    Stream { steps, answers, first: Vec::new() }
}

#[test]
fn steps_are_streamed_as_by_one_process() {
    let one = OneProcess::start(1);
    let cluster = Cluster::start("unified", HangBound::default(), [cpu(), cpu()]);
    for walk in WALKS.into_iter().filter(|walk| !walk.brings_graph()) {
        let id = cluster.client.model(walk.name());
        for number in 0..20 {
            let told = one.streamed(walk, number);
            let crossed = stream(|job| assert!(cluster.client.frontend.submit(job).is_ok()), id, walk, number).end();
            assert_eq!(crossed.steps, told.steps, "{walk:?}");
            assert!(crossed.steps.len() > 1 || number == 0 || walk == Walk::EncodeDecode || number * 7 % LONGEST == 0);
            let outputs = |answer: JobResult| answer.unwrap().outputs;
            assert_eq!(outputs(crossed.answer), outputs(told.answer), "{walk:?}");
        }
    }
    cluster.end();
}

#[test]
fn what_a_walk_does_not_take_is_refused_as_by_one_process() {
    let one = OneProcess::start(1);
    let cluster = Cluster::start("unified", HangBound::default(), [cpu(), cpu()]);
    let tokens = |numbers: &[i64]| int64("token", &[1, numbers.len() as i64], numbers);
    let wrong: [(Walk, Vec<Tensor>); 7] = [
        (Walk::Repeat, vec![int64("token", &[2, 1], &[1, 1])]),
        (Walk::Repeat, vec![int64("token", &[1, 0], &[])]),
        (Walk::Repeat, vec![tokens(&[0; 41])]),
        // Ids are checked where the model is.
        (Walk::Repeat, vec![tokens(&[3, IDS as i64])]),
        (Walk::EncodeDecode, vec![tokens(&[-1])]),
        (Walk::Tree, vec![tokens(&[1, 1]), int64("children", &[1, 2, 2], &[-1, -1, -1, -1])]),
        (
            Walk::Graph,
            vec![tokens(&[1, 1]), int64("children", &[1, 2, 2], &[-1, -1, 0, -1]), int64("cell", &[1, 2], &[0, 9])],
        ),
    ];
    for (walk, inputs) in wrong {
        let at = WALKS.iter().position(|&other| other == walk).unwrap();
        let failure = |submit: &dyn Fn(Job) -> Result<(), Failure>, model: ModelId| {
            let (send, answers) = channel();
            let on_answer = Box::new(move |answer: JobResult| drop(send.send(answer)));
            let (inputs, timeout, client, priority, on_step) = (inputs.clone().into(), None, 0, 0, None);
            let job = Job { model, inputs, rows: 1, timeout, stage: None, client, priority, on_step, on_answer };
            submit(job).err().unwrap_or_else(|| answers.recv_timeout(SAFETY).unwrap().unwrap_err())
        };
        let told = failure(&|job| one.engine.submit(job).map(drop), one.ids[at]);
        let id = cluster.client.model(walk.name());
        let crossed = failure(&|job| cluster.client.frontend.submit(job).map(drop), id);
        assert!(matches!(told, Failure::Invalid(_)), "{told}");
        assert_eq!(crossed, told, "{walk:?}");
    }
    // The cluster goes on, and no request counts as one on which the engine failed.
    let expected = one.answers(60);
    assert_eq!(drive(&cluster.client, 60, &expected, || {}), NONE);
    let engine = cluster.scheduler.engine().unwrap();
    assert!(engine.all_metrics().iter().all(|(_, _, model)| model.bad_requests == 0));
    cluster.end();
}

#[test]
fn a_peer_of_an_earlier_release_hears_nothing_of_cells() {
    let cluster = Cluster::start("unified", HangBound::default(), [cpu(), cpu()]);
    let models = |revision: u16| {
        let stream = Tcp.connect(&cluster.scheduler.address().to_string(), SAFETY).unwrap();
        let own = Handshake { revision, ..Handshake::new(Role::Frontend, 0) };
        connect_handshake(&*stream, own, Role::Scheduler).unwrap();
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
        link.send(&Message::RegisterFrontend(u32::from(revision) + 1, "127.0.0.1:1".to_owned()));
        let mut reader = MessageReader::new(stream, SAFETY);
        loop {
            if let Message::Models(models) = reader.read().unwrap() {
                link.close();
                return models.len();
            }
        }
    };
    assert_eq!(models(0), 0, "an empty list");
    assert!(models(1) > 0);
    cluster.end();
}
