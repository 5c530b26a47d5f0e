//! Devices join, leave, hang and are lost while requests run, under every policy. Each request has
//! exactly one answer: the right one, or an error that allows a retry. The decisions replay.

use crate::common::hanging::Hanging;
use crate::common::stepping::{DEPTH, Stepping, answer_to, counting, sequence};
use crate::common::{Client, SAFETY, bytes, data, in_one_piece_and_in_shards, policy};
use ripieno_base::{DeviceId, ModelId, Nanos};
use ripieno_executor::{BlockSource, EmulatedEngine, EmulatedOptions, Executor, ModelSource};
use ripieno_model::{Block, DataType, DropRule, Model, Profile, TensorSpec, Walk};
use ripieno_policies::{CATALOGUE, ServedPolicy, build, find};
use ripieno_runtime::{
    DeviceRefused, DeviceState, Engine, EngineConfig, Failure, HangBound, Header, Job, JobResult, OnStep, Recording,
    ServedModel, replay,
};
use ripieno_sched::{Limits, Options, Setup};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { requests: 256, models: 3, devices: 4, depth: 2, batch: 8, ..Limits::ONE };

fn hanging() -> Arc<Hanging> {
    Hanging::over(EmulatedEngine::new(EmulatedOptions::default()).with_depth(LIMITS.depth))
}

/// A model of this number of blocks that answers with its input; no request is refused for
/// lateness.
fn emulated(executor: &Hanging, blocks: usize, ms: f64) -> ServedModel {
    let profile = Profile::linear(ms / 4.0, ms, LIMITS.batch).unwrap();
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let names: Vec<String> = (0..blocks).map(|at| format!("block{at}")).collect();
    let source = |name: &String| BlockSource { profile: Some(profile.clone()), ..BlockSource::new(name) };
    let source = ModelSource::new("m", names.iter().map(source).collect(), LIMITS.batch);
    let loaded = executor.load(&ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..source }).unwrap();
    let blocks: Vec<Block> = names.iter().map(|name| Block::new(name, profile.clone())).collect();
    let walk = if blocks.len() == 1 { Walk::Whole } else { Walk::Chain };
    let whole = Model::whole("m", profile, Nanos::from_millis(40));
    let model = Model { blocks, walk, drop: Some(DropRule::Never), ..whole };
    ServedModel { model, loaded, max_queue: Some(256), max_queued_work: None, answer_late: true }
}

fn config(name: &str, executor: &Arc<Hanging>, devices: usize, shards: usize) -> EngineConfig {
    let lanes = find(name).unwrap().needs(&Options::new()).lanes;
    let setup = Setup { models: Vec::new(), devices, limits: Limits { lanes, ..LIMITS } };
    let scheduler = policy(name, &setup, &Options::new(), shards);
    let executor: Arc<dyn Executor> = executor.clone();
    EngineConfig::new(scheduler, setup, vec![executor; devices])
}

fn states(engine: &Engine) -> Vec<(u16, DeviceState)> {
    engine.device_metrics().iter().map(|device| (device.id, device.state)).collect()
}

fn state(engine: &Engine, id: DeviceId) -> Option<DeviceState> {
    states(engine).into_iter().find(|(at, _)| *at == id.0).map(|(_, state)| state)
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < SAFETY, "never {what}");
        std::thread::yield_now();
    }
}

fn is_lost(answer: &JobResult) -> bool {
    matches!(answer, Err(Failure::Outage { cause, .. }) if cause.contains("was lost"))
}

/// Outcomes of the requests of a run.
#[derive(Default)]
struct Tally {
    asked: AtomicUsize,
    good: AtomicUsize,
    lost: AtomicUsize,
}

impl Tally {
    /// Sends eight requests at a time until stopped, and checks each answer.
    fn ask(&self, client: &Client, stop: &AtomicBool) {
        let mut number = 0;
        while !stop.load(Ordering::SeqCst) {
            let mut waits = [false; 8];
            for (at, waits) in waits.iter_mut().enumerate() {
                *waits = client.submit(number + at, 1 + (number + at) % 11, None).is_ok();
            }
            let asked = waits.iter().filter(|waits| **waits).count();
            for _ in 0..asked {
                let (answered, answer) = client.next();
                assert!(std::mem::take(&mut waits[answered - number]), "request {answered} was answered twice");
                if is_lost(&answer) {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                } else {
                    assert_eq!(data(answer), bytes(1 + answered % 11, answered as u8)[0].data.to_vec());
                    self.good.fetch_add(1, Ordering::SeqCst);
                }
            }
            self.asked.fetch_add(asked, Ordering::SeqCst);
            number += 8;
        }
    }

    /// Waits until some more requests have been answered.
    fn go_on(&self) {
        let before = self.asked.load(Ordering::SeqCst);
        until("goes on", || self.asked.load(Ordering::SeqCst) >= before + 64);
    }
}

/// Makes all kinds of device changes in sequence. Two of four devices serve at the start, and two
/// at the end.
fn change(engine: &Engine, executor: &Hanging, tally: &Tally) {
    let gone = |id: DeviceId| until("is gone", || state(engine, id).is_none());
    tally.go_on();
    assert_eq!(engine.add_device(), Ok(DeviceId(2)));
    tally.go_on();
    engine.remove_device(DeviceId(0)).unwrap();
    gone(DeviceId(0));
    tally.go_on();
    // Lost immediately, in the midst of its tasks; the second one also hangs.
    engine.lose_device(DeviceId(1)).unwrap();
    assert_eq!(engine.add_device().map(|id| id == DeviceId(1)).map(drop), Ok(()));
    tally.go_on();
    let third = executor.device(2);
    third.hang();
    tally.go_on_with(&third);
    engine.lose_device(DeviceId(2)).unwrap();
    assert_eq!(state(engine, DeviceId(2)), Some(DeviceState::Lost));
    tally.go_on();
    third.let_go();
    gone(DeviceId(2));
    assert!(engine.add_device().is_ok());
    tally.go_on();
}

/// Stops the clients when a test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Tally {
    /// Waits until a hanging device holds a task.
    fn go_on_with(&self, device: &crate::common::hanging::Hold) {
        device.await_tasks(device.tasks().max(1));
    }
}

fn built(header: &Header) -> Result<ServedPolicy, String> {
    Ok(policy(&header.policy, &header.setup, &Options::new(), header.shards))
}

#[test]
fn under_every_policy_devices_come_and_go_and_everybody_has_one_answer() {
    let sharded = CATALOGUE.iter().filter(|policy| policy.is_sharded()).map(|policy| (policy, 2));
    for (policy, shards) in CATALOGUE.iter().map(|policy| (policy, 1)).chain(sharded) {
        let executor = hanging();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("devices-{}-{shards}.jsonl", policy.name));
        let mut config = config(policy.name, &executor, 2, shards);
        let (name, options) = (policy.name.to_owned(), serde_json::json!({}));
        config.record = Some(Recording { path: path.clone(), policy: name, options });
        config.policy = Some(policy);
        let engine = Engine::start(config).unwrap();
        let models: Vec<ModelId> =
            [1, 3].iter().filter_map(|&blocks| engine.load(emulated(&executor, blocks, 0.2)).ok()).collect();
        let (tally, stop) = (Tally::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for &model in &models {
                let client = Client::new(&engine, model);
                scope.spawn(|| {
                    let client = client;
                    tally.ask(&client, &stop);
                });
            }
            let _stop = StopOnDrop(&stop);
            change(&engine, &executor, &tally);
        });
        assert!(engine.drain(SAFETY), "{}", policy.name);
        let [asked, good, lost] = [&tally.asked, &tally.good, &tally.lost].map(|count| count.load(Ordering::SeqCst));
        assert!(asked == good + lost && good > asked / 2, "{}: {good} good, {lost} lost of {asked}", policy.name);
        engine.shutdown();
        let replayed = replay(&path, built).unwrap();
        assert_eq!((replayed.difference, replayed.truncated), (None, false), "{}", policy.name);
    }
}

/// Starts a server whose devices all hang, and a client of a model with this latency.
fn all_hang(devices: usize, ms: f64, shards: usize) -> (Arc<Hanging>, Engine, Client) {
    let executor = hanging();
    let engine = Engine::start(config("eager", &executor, devices, shards)).unwrap();
    let client = Client::new(&engine, engine.load(emulated(&executor, 1, ms)).unwrap());
    (0..devices).for_each(|device| executor.device(device).hang());
    (executor, engine, client)
}

/// Starts two devices, of which the first hangs; it is detected after a tenth of a second.
fn one_hangs(shards: usize) -> (Arc<Hanging>, Engine, Client) {
    let executor = hanging();
    let hang = HangBound { times: 1, least: Nanos::from_millis(100) };
    let engine = Engine::start(EngineConfig { hang, ..config("eager", &executor, 2, shards) }).unwrap();
    let client = Client::new(&engine, engine.load(emulated(&executor, 1, 0.1)).unwrap());
    executor.device(0).hang();
    (executor, engine, client)
}

/// Returns the device that holds the only task, apart from lost ones.
fn holder(executor: &Hanging, lost: &[usize]) -> usize {
    let holds = |at: &usize| !lost.contains(at) && executor.device(*at).tasks() > 0;
    let find = || (0..executor.opened()).find(holds);
    until("is started", || find().is_some());
    find().unwrap()
}

in_one_piece_and_in_shards! {
    fn a_lost_request_restarts_once_and_then_may_retry(shards: usize) {
        let (executor, engine, client) = all_hang(3, 0.1, shards);
        client.submit(7, 1, None).unwrap();
        let first = holder(&executor, &[]);
        engine.lose_device(DeviceId(first as u16)).unwrap();
        let second = holder(&executor, &[first]);
        engine.lose_device(DeviceId(second as u16)).unwrap();
        let (number, answer) = client.next();
        assert!(number == 7 && is_lost(&answer), "{answer:?}");
        let third = executor.device(3 - first - second);
        assert_eq!(third.tasks(), 0, "it runs no third time");
        third.let_go();
        client.submit(8, 1, None).unwrap();
        assert_eq!(data(client.next().1), [8]);
        let seen = || engine.model_metrics(client.model).unwrap();
        assert_eq!((seen().success.count, seen().fail.count), (1, 1));
        until("gives its places back", || seen().live == 0);
        [first, second].iter().for_each(|&at| executor.device(at).let_go());
    }

    fn what_a_lost_device_reports_late_is_not_heard(shards: usize) {
        let (executor, engine, client) = all_hang(2, 0.1, shards);
        client.submit(1, 3, None).unwrap();
        let first = holder(&executor, &[]);
        let other = executor.device(1 - first);
        other.let_go();
        engine.lose_device(DeviceId(first as u16)).unwrap();
        assert_eq!(data(client.next().1), [1, 2, 3]);
        assert_eq!(state(&engine, DeviceId(first as u16)), Some(DeviceState::Lost));
        executor.device(first).let_go();
        until("has ended", || state(&engine, DeviceId(first as u16)).is_none());
        for number in 0..50 {
            client.submit(number, 1, None).unwrap();
            assert_eq!(data(client.next().1), [number as u8]);
        }
        assert!(engine.drain(SAFETY));
        assert!(client.answers.try_recv().is_err(), "no job is answered twice");
    }

    fn a_lost_request_that_would_be_late_does_not_restart(shards: usize) {
        // Alone it takes 62.5 s.
        let (executor, engine, client) = all_hang(3, 50_000.0, shards);
        client.submit(1, 1, Some(Duration::from_secs(62))).unwrap();
        let first = holder(&executor, &[]);
        engine.lose_device(DeviceId(first as u16)).unwrap();
        assert!(is_lost(&client.next().1));
        client.submit(2, 1, Some(Duration::from_secs(600))).unwrap();
        let second = holder(&executor, &[first]);
        engine.lose_device(DeviceId(second as u16)).unwrap();
        let third = holder(&executor, &[first, second]);
        engine.lose_device(DeviceId(third as u16)).unwrap();
        assert!(is_lost(&client.next().1));
        (0..3).for_each(|at| executor.device(at).let_go());
    }

    fn a_device_that_leaves_ends_what_it_holds(shards: usize) {
        let (executor, engine, client) = all_hang(2, 0.1, shards);
        client.submit(5, 1, None).unwrap();
        let first = holder(&executor, &[]);
        let (id, other) = (DeviceId(first as u16), DeviceId(1 - first as u16));
        engine.remove_device(id).unwrap();
        assert_eq!(state(&engine, id), Some(DeviceState::Leaving));
        assert_eq!(engine.remove_device(id), Err(DeviceRefused::NotServing(id.0)));
        assert_eq!(engine.remove_device(other), Err(DeviceRefused::Last(other.0)));
        assert_eq!(engine.remove_device(DeviceId(9)), Err(DeviceRefused::NotServing(9)));
        executor.device(1 - first).let_go();
        client.submit(6, 1, None).unwrap();
        assert_eq!(client.next().0, 6, "the other one serves");
        executor.device(first).let_go();
        assert_eq!(data(client.next().1), [5]);
        until("is gone", || state(&engine, id).is_none());
        assert_eq!((engine.add_device(), engine.add_device()), (Ok(id), Ok(DeviceId(2))));
        assert_eq!(engine.add_device(), Ok(DeviceId(3)));
        assert_eq!(engine.add_device(), Err(DeviceRefused::TooMany(4)));
        engine.shutdown();
        assert_eq!(engine.add_device(), Err(DeviceRefused::TooMany(4)));
    }

    fn while_no_device_serves_everybody_may_ask_again(shards: usize) {
        let (executor, engine, client) = all_hang(1, 0.1, shards);
        (0..9).for_each(|number| drop(client.submit(number, 8, None).unwrap()));
        executor.device(0).await_tasks(1);
        engine.lose_device(DeviceId(0)).unwrap();
        client.submit(9, 1, None).unwrap();
        for _ in 0..10 {
            assert!(matches!(client.next_failure().1, Failure::Outage { .. }));
        }
        assert_eq!(engine.add_device(), Ok(DeviceId(1)));
        client.submit(10, 1, None).unwrap();
        assert_eq!(data(client.next().1), [10]);
        executor.device(0).let_go();
    }

    fn a_device_that_hangs_is_found_out_and_comes_again_once_it_has_ended(shards: usize) {
        let (executor, engine, client) = one_hangs(shards);
        // On a slow machine the other one may seem to hang, too; but every request is answered.
        let ask = |numbers: std::ops::Range<usize>| {
            numbers.clone().for_each(|number| drop(client.submit(number, 1, None).unwrap()));
            numbers.filter(|_| client.next().1.is_ok()).count()
        };
        ask(0..40);
        until("is lost", || state(&engine, DeviceId(0)) == Some(DeviceState::Lost));
        executor.device(0).let_go();
        until("serves again", || state(&engine, DeviceId(0)) == Some(DeviceState::Serving));
        until("answers again", || ask(0..40) == 40);
        assert!(executor.opened() > 2);
    }

    fn a_device_that_hangs_while_it_leaves_does_not_come_again(shards: usize) {
        let (executor, engine, client) = one_hangs(shards);
        client.submit(1, 1, None).unwrap();
        executor.device(0).await_tasks(1);
        // The device may have been detected already, or the other one, on a slow machine.
        let leaves = engine.remove_device(DeviceId(0)).is_ok();
        until("is lost", || state(&engine, DeviceId(0)) == Some(DeviceState::Lost));
        let _ = client.next();
        executor.device(0).let_go();
        if leaves {
            until("is gone", || state(&engine, DeviceId(0)).is_none());
            assert_eq!(engine.add_device(), Ok(DeviceId(0)), "no device took its id");
        }
    }
}

/// Adds a device. On a slow machine, other devices may take longer to leave than one call waits.
fn add(engine: &Engine) -> Result<DeviceId, DeviceRefused> {
    let again = |added: &Result<_, _>| matches!(added, Err(DeviceRefused::NotEnded(_)));
    std::iter::repeat_with(|| engine.add_device()).find(|added| !again(added)).expect("it repeats for ever")
}

in_one_piece_and_in_shards! {
    /// A device that was given up ends soon, so a new device takes its place even at the largest
    /// number of devices.
    fn a_device_comes_in_the_place_of_one_that_was_just_given_up(shards: usize) {
        let executor = hanging();
        let engine = Engine::start(config("eager", &executor, 4, shards)).unwrap();
        let client = Client::new(&engine, engine.load(emulated(&executor, 1, 0.1)).unwrap());
        for number in 0..50 {
            let id = DeviceId(number % 4);
            if number % 8 < 4 { engine.lose_device(id) } else { engine.remove_device(id) }.unwrap();
            assert_eq!(add(&engine), Ok(id));
            client.submit(usize::from(number), 1, None).unwrap();
            assert_eq!(data(client.next().1), [number as u8]);
        }
    }

    fn in_the_place_of_a_device_that_hangs_comes_none_until_it_has_ended(shards: usize) {
        let (executor, engine, client) = all_hang(4, 0.1, shards);
        client.submit(1, 1, None).unwrap();
        let first = holder(&executor, &[]);
        let id = DeviceId(first as u16);
        engine.lose_device(id).unwrap();
        assert!(matches!(engine.add_device(), Err(DeviceRefused::NotEnded(_))));
        (0..4).for_each(|at| executor.device(at).let_go());
        assert_eq!(add(&engine), Ok(id));
        assert_eq!(data(client.next().1), [1]);
    }
}

/// Runs a sequence of four encoder and six decoder steps, on devices of which only the first waits
/// for the test.
fn lose_a_walk(steps: usize, streams: bool) -> JobResult {
    let (executor, release) = Stepping::gated();
    let limits = Limits { requests: 8, devices: 2, depth: DEPTH, batch: 8, nodes: 64, ..Limits::ONE };
    let setup = Setup { models: Vec::new(), devices: 2, limits };
    let scheduler = build("cellular", &setup, &Options::new()).unwrap();
    let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![executor; 2])).unwrap();
    let model = engine.load(counting(Duration::from_secs(600))).unwrap();
    let ((answer, answers), (seen, step)) = (channel(), channel::<()>());
    let on_answer = Box::new(move |given| answer.send(given).unwrap());
    let on_step: Option<OnStep> = streams.then(|| Box::new(move |_| seen.send(()).unwrap()) as OnStep);
    let inputs = sequence(&SEQUENCE);
    let job = Job { on_step, ..Job::new(model, inputs, 1, on_answer) };
    engine.submit(job).unwrap();
    (0..steps).for_each(|_| release.send(()).unwrap());
    if streams && steps > SEQUENCE.len() {
        step.recv_timeout(SAFETY).unwrap();
    }
    engine.lose_device(DeviceId(0)).unwrap();
    drop(release);
    let answer = answers.recv_timeout(SAFETY).unwrap();
    assert!(answers.recv_timeout(SAFETY).is_err(), "it is answered once");
    assert!(engine.drain(SAFETY));
    answer
}

const SEQUENCE: [u8; 4] = [1, 1, 1, 2];

#[test]
fn a_walk_whose_device_was_lost_begins_anew() {
    for steps in [0, 1, 3, 5, 7] {
        assert_eq!(lose_a_walk(steps, false).unwrap().outputs[0].data, answer_to(&SEQUENCE), "after {steps} steps");
    }
    assert!(lose_a_walk(2, true).is_ok(), "no client has seen a step of it");
}

#[test]
fn a_request_with_streamed_steps_does_not_restart() {
    assert!(is_lost(&lose_a_walk(5, true)));
}

in_one_piece_and_in_shards! {
    fn a_slower_device_is_reported_until_it_recovers(shards: usize) {
        let executor = hanging();
        let engine = Engine::start(config("eager", &executor, 2, shards)).unwrap();
        let client = Client::new(&engine, engine.load(emulated(&executor, 1, 0.2)).unwrap());
        let ask_until = |what: &str, is: &dyn Fn([u32; 2]) -> bool| {
            until(what, || {
                // Full batches, so that both devices get some.
                (0..4).for_each(|number| drop(client.submit(number, 8, None).unwrap()));
                (0..4).for_each(|_| drop(data(client.next().1)));
                let seen = engine.device_metrics();
                is([seen[0].percent, seen[1].percent])
            });
        };
        // More than a slow machine adds, but little enough that it still gets tasks.
        executor.device(1).slow(Duration::from_millis(12));
        ask_until("is distinguished", &|[first, second]| first == 100 && second > 150);
        executor.device(1).slow(Duration::ZERO);
        ask_until("recovers", &|percents| percents == [100; 2]);
    }
}
