//! Several shards and a matchmaker compared with one scheduler: the same load has the same
//! outcomes, and no shard continues without the others.

use crate::common::device::Doubling;
use crate::common::fifo::{Fifo, Told};
use crate::common::hanging::Hanging;
use crate::common::{Client, SAFETY, data, eager, emulated, limits, policy, served, setup};
use ripieno_base::{BlockId, Nanos};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_model::Profile;
use ripieno_policies::build_shards;
use ripieno_runtime::{DeviceState, Engine, EngineConfig, Failure, HangBound, JobResult, StartError};
use ripieno_sched::Options;
use ripieno_workload::{below, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);

/// A client's answer, with the number of rows of its batch.
type Outcome = Result<(Vec<u8>, usize), Failure>;

/// Waits for a new turn of each shard. All earlier messages have then reached the matchmaker.
fn sync(engine: &Engine, clients: &[Client]) {
    for _ in 0..2 {
        for client in clients {
            let profile = Profile::linear(0.01, 0.01, 4).unwrap();
            engine.replace_profile(client.model, BlockId(0), profile).unwrap();
        }
    }
}

/// Sends requests of four models to one gated device, in random order: some are cancelled, some
/// have no time left, on some the device fails. Returns the outcome of each, in the order of the
/// answers.
fn stepped(shards: usize, seed: u64) -> Vec<(usize, Outcome)> {
    let (executor, gatekeeper) = Doubling::gated_and_failing(5);
    let setup = setup(1, limits(256));
    let scheduler = build_shards("eager", &setup, &eager(), shards).unwrap();
    let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![executor])).unwrap();
    // Dropped before the engine, which waits for its device: a failing test fails, rather than
    // hangs.
    let gatekeeper = gatekeeper;
    let clients = [1, 1, 2, 1].map(|blocks| Client::new(&engine, engine.load(served(blocks, LONG)).unwrap()));
    let (mut random, mut log, mut running) = (stream(seed, 0), Vec::new(), 0);
    let mut draw = |below_what: u64| below(&mut random, below_what) as usize;
    let (sender, answers) = channel::<(usize, JobResult)>();
    let clients = clients.map(|client| Client { sender: sender.clone(), ..client });
    let told = |log: &mut Vec<(usize, Outcome)>| {
        let (number, answer) = answers.recv_timeout(SAFETY).expect("an answer");
        log.push((number, answer.map(|answered| (answered.outputs[0].data.to_vec(), answered.batch))));
        number
    };
    let mut number = 0;
    for _ in 0..40 {
        let mut waiting: BTreeMap<usize, _> = BTreeMap::new();
        for _ in 0..draw(6) {
            let client = &clients[draw(4)];
            let timeout = (running > 0 && draw(8) == 0).then(|| Duration::from_millis(1));
            let ticket = client.submit(number, 1 + draw(4), timeout).unwrap();
            if running == 0 {
                gatekeeper.begun.recv_timeout(SAFETY).unwrap();
                running = 1;
            } else if timeout.is_some() {
                assert_eq!(told(&mut log), number, "only that one has no time");
            } else {
                waiting.insert(number, ticket);
            }
            number += 1;
        }
        if let Some((&number, ticket)) = waiting.iter().next().filter(|_| draw(3) == 0) {
            ticket.cancel();
            assert_eq!(told(&mut log), number, "only that one is cancelled");
        }
        sync(&engine, &clients);
        if running == 1 {
            gatekeeper.release.send(()).unwrap();
            // Until the next task has begun, or there is none: then all clients have been answered.
            let until = Instant::now() + SAFETY;
            while gatekeeper.begun.try_recv().is_err() {
                assert!(Instant::now() < until, "neither a task nor the last answer");
                if engine.unanswered() == 0 {
                    running = 0;
                    break;
                }
                std::thread::yield_now();
            }
        }
        answers.try_iter().for_each(|(number, answer)| {
            log.push((number, answer.map(|answered| (answered.outputs[0].data.to_vec(), answered.batch))));
        });
    }
    drop(gatekeeper.release);
    while log.len() < number {
        told(&mut log);
    }
    assert!(engine.drain(SAFETY));
    log
}

#[test]
fn shards_answer_a_load_as_one_piece_does() {
    for seed in 0..6 {
        let whole = stepped(1, seed);
        let kinds = |is: fn(&Outcome) -> bool| whole.iter().filter(|(_, outcome)| is(outcome)).count();
        let failed = kinds(|outcome| matches!(outcome, Err(Failure::Failed(_))));
        let (expired, cancelled) =
            (kinds(|outcome| *outcome == Err(Failure::Expired)), kinds(|outcome| *outcome == Err(Failure::Cancelled)));
        assert!(failed > 0 && expired + cancelled > 0 && kinds(Result::is_ok) > 20, "{whole:?}");
        assert!(whole.iter().any(|(_, outcome)| outcome.as_ref().is_ok_and(|(data, batch)| *batch > data.len())));
        for shards in [2, 3] {
            assert_eq!(stepped(shards, seed), whole, "seed {seed}, {shards} shards");
        }
    }
}

/// The idle device runs the turn of one shard; the other must use another thread.
#[test]
fn shards_that_get_requests_together_both_decide() {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let setup = setup(1, limits(16));
    let scheduler = policy("eager", &setup, &eager(), 2);
    let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)])).unwrap();
    let model = || emulated(&executor, "m", Profile::linear(0.01, 0.01, 4).unwrap(), Nanos::from_millis(600_000));
    let clients = [model(), model()].map(|model| Client::new(&engine, engine.load(model).unwrap()));
    for number in 0..2_000 {
        clients.iter().for_each(|client| drop(client.submit(number, 1, None).unwrap()));
        clients.iter().for_each(|client| assert_eq!(data(client.next().1), [number as u8]));
    }
}

/// Only the shard whose task hangs can detect the hang. The other shard must not get the device any
/// more, nor wait for it.
#[test]
fn a_device_that_one_shard_finds_hanging_is_lost_to_all() {
    let executor = Hanging::over(EmulatedEngine::new(EmulatedOptions::default()));
    let setup = setup(2, limits(64));
    let engines: Arc<dyn Executor> = executor.clone();
    let scheduler = policy("eager", &setup, &eager(), 2);
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(&engines); 2]);
    config.hang = HangBound { times: 1, least: Nanos::from_millis(2_000) };
    let engine = Engine::start(config).unwrap();
    let model = || emulated(&engines, "m", Profile::linear(0.01, 0.1, 4).unwrap(), Nanos::from_millis(600_000));
    let clients = [model(), model()].map(|model| Client::new(&engine, engine.load(model).unwrap()));
    executor.device(0).hang();
    // The first device is used first.
    clients[0].submit(7, 1, None).unwrap();
    executor.device(0).await_tasks(1);
    for number in 0..20 {
        clients[1].submit(number, 1, None).unwrap();
        assert_eq!(data(clients[1].next().1), [number as u8]);
    }
    assert_eq!(data(clients[0].next().1), [7], "it runs again on the other one");
    let state = || engine.device_metrics()[0].state;
    assert_eq!(state(), DeviceState::Lost);
    executor.device(0).let_go();
    let until = Instant::now() + SAFETY;
    while state() != DeviceState::Serving {
        assert!(Instant::now() < until, "it does not come again");
        std::thread::yield_now();
    }
    executor.device(1).hang();
    for client in &clients {
        client.submit(9, 1, None).unwrap();
        assert_eq!(data(client.next().1), [9], "both are given the one that came again");
    }
    executor.device(1).let_go();
}

#[test]
fn with_one_shard_all_end_and_everybody_is_answered() {
    let (executor, gatekeeper) = Doubling::gated();
    let setup = setup(1, limits(16));
    let mut scheduler = policy("eager", &setup, &eager(), 2);
    scheduler.pieces[1] = Box::new(Told(Fifo::new(&setup), || panic!("the policy's own fault"), || {}));
    let engine = Engine::start(EngineConfig::new(scheduler, setup, vec![executor])).unwrap();
    let gatekeeper = gatekeeper;
    let clients = [1, 1].map(|blocks| Client::new(&engine, engine.load(served(blocks, LONG)).unwrap()));
    clients[0].submit(1, 1, None).unwrap();
    gatekeeper.begun.recv_timeout(SAFETY).unwrap();
    clients[0].submit(2, 1, None).unwrap();
    clients[1].submit(3, 1, None).unwrap();
    for client in [&clients[0], &clients[0], &clients[1]] {
        assert_eq!(client.next_failure().1, Failure::ShuttingDown);
    }
    assert!(!engine.is_alive());
    assert!(clients[0].submit(4, 1, None).is_err());
    drop(gatekeeper);
}

#[test]
fn what_cannot_run_in_shards_is_refused_by_the_names_of_what_can() {
    let error = build_shards("cellular", &setup(1, limits(4)), &Options::new(), 2).err().unwrap().to_string();
    let names = "\"cellular\" does not run in shards; these do: timeout, eager, deferred";
    assert!(error.contains(names), "{error}");
    let mut pieces = policy("eager", &setup(1, limits(4)), &eager(), 2);
    pieces.matchmaker = None;
    let started = Engine::start(EngineConfig::new(pieces, setup(1, limits(4)), vec![Doubling::prompt()]));
    assert!(matches!(started.err().unwrap(), StartError::Config(text) if text.contains("matchmaker")));
}
