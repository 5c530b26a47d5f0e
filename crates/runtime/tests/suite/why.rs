//! A drill: a live engine with an injected fault each, and the cause that is found for its late,
//! refused and failed calls.

use crate::common::device::Doubling;
use crate::common::{SAFETY, bytes, config, emulated, limits, served};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_model::Profile;
use ripieno_policies::{build_served, find};
use ripieno_runtime::history::History;
use ripieno_runtime::history::causes::{Cause, Explained, Explainer};
use ripieno_runtime::{Engine, EngineConfig, FlightConfig, Job, RingBounds, ServedModel};
use ripieno_sched::{Options, Setup};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Share of the bad calls whose cause must be the injected one.
const ENOUGH: f64 = 0.95;

fn flight(config: &mut EngineConfig) {
    let (policy, options, bounds) = ("deferred".to_owned(), serde_json::json!({}), RingBounds::default());
    config.flight = Some(FlightConfig { policy, options, bounds });
}

/// Starts a server's scheduler, with its admission control, on emulated devices.
fn engine(executor: &Arc<dyn Executor>) -> Engine {
    let setup = Setup { models: Vec::new(), devices: 1, limits: limits(512) };
    let scheduler = build_served("deferred", &setup, &Options::new()).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)]);
    config.policy = find("deferred").ok();
    flight(&mut config);
    Engine::start(config).unwrap()
}

fn device() -> Arc<dyn Executor> {
    Arc::new(EmulatedEngine::new(EmulatedOptions::default()))
}

/// A model that takes `factor` times what its profile says, 2 ms and 0.5 ms a row.
fn model(executor: &Arc<dyn Executor>, factor: f64, slo_ms: i64) -> ServedModel {
    let profile = |factor: f64| Profile::linear(0.5 * factor, 2.0 * factor, 8).unwrap();
    let mut served = emulated(executor, "m", profile(factor), Nanos::from_millis(slo_ms));
    served.model.blocks[0].profile = profile(1.0);
    served
}

/// A client that sends a call when the last one has ended.
fn client(engine: &Engine, model: ModelId, client: u16, calls: usize) {
    let (sender, answers) = channel();
    for _ in 0..calls {
        let sender = sender.clone();
        let on_answer = Box::new(move |answer: ripieno_runtime::JobResult| sender.send(answer.is_ok()).unwrap());

        let job = Job { client, ..Job::new(model, bytes(1, 7), 1, on_answer) };
        if engine.submit(job).is_ok() {
            answers.recv_timeout(SAFETY).expect("an answer");
        }
    }
}

/// Runs clients of these numbers and counts of calls side by side.
fn clients(engine: &Engine, model: ModelId, each: impl IntoIterator<Item = (u16, usize)>) {
    std::thread::scope(|scope| {
        for (number, calls) in each {
            scope.spawn(move || client(engine, model, number, calls));
        }
    });
}

fn explained(engine: &Engine, name: &str) -> Vec<Explained> {
    assert!(engine.drain(SAFETY));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("why-{name}.jsonl"));
    engine.flight().unwrap().dump(&mut std::fs::File::create(&path).unwrap()).unwrap();
    let history = History::read(&path).unwrap();
    Explainer::new(&history).all()
}

/// Checks that nearly all bad calls have this cause, and that there are enough of them.
fn check(explained: &[Explained], cause: Cause, least: usize) {
    assert!(explained.len() >= least, "only {} bad calls: {explained:?}", explained.len());
    let named = explained.iter().filter(|each| each.cause == cause).count();
    let others: Vec<_> = explained.iter().filter(|each| each.cause != cause).take(5).collect();
    let share = named as f64 / explained.len() as f64;
    assert!(share >= ENOUGH, "{cause:?} for {named} of {}; others: {others:?}", explained.len());
}

#[test]
fn a_device_slower_than_its_profile() {
    let executor = device();
    let engine = engine(&executor);
    let model = engine.load(model(&executor, 5.0, 9)).unwrap();
    clients(&engine, model, [(0, 40); 4]);
    check(&explained(&engine, "slow"), Cause::SlowDevice, 40);
}

#[test]
fn a_burst_beyond_capacity() {
    let executor = device();
    let engine = engine(&executor);
    let model = engine.load(model(&executor, 1.0, 25)).unwrap();
    clients(&engine, model, [(0, 1); 120]);
    check(&explained(&engine, "burst"), Cause::Overload, 20);
}

#[test]
fn an_overload() {
    let executor = device();
    let engine = engine(&executor);
    let model = engine.load(model(&executor, 1.0, 20)).unwrap();
    clients(&engine, model, [(0, 40); 60]);
    let mut bad = explained(&engine, "overload");
    // On a busy machine the first batches take longer than their profile, and so do those during
    // which it pauses.
    bad.retain(|each| !matches!(each.cause, Cause::Cold | Cause::SlowDevice));
    check(&bad, Cause::Overload, 500);
}

#[test]
fn an_slo_below_a_lone_run() {
    let executor = device();
    let engine = engine(&executor);
    let model = engine.load(model(&executor, 1.0, 2)).unwrap();
    clients(&engine, model, [(0, 20); 2]);
    check(&explained(&engine, "short"), Cause::ShortDeadline, 20);
}

#[test]
fn a_greedy_client() {
    let executor = device();
    let engine = engine(&executor);
    let model = engine.load(model(&executor, 1.0, 20)).unwrap();
    clients(&engine, model, [(1, 20)].into_iter().chain([(2, 60); 60]));
    check(&explained(&engine, "greedy"), Cause::Share, 200);
}

#[test]
fn a_cold_model() {
    // The first batches end when their call is past its deadline, the later ones immediately.
    let (executor, gate) = Doubling::gated();
    let mut config = config(&executor, 1, limits(64), 1);
    flight(&mut config);
    let engine = Engine::start(config).unwrap();
    let mut cold = served(1, Duration::from_millis(150));
    cold.model.blocks[0].profile = Profile::linear(0.5, 2.0, 4).unwrap();
    let model = engine.load(cold).unwrap();
    for _ in 0..6 {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| client(&engine, model, 0, 1));
            gate.begun.recv_timeout(SAFETY).expect("a batch begins");
            call.join().unwrap();
            gate.release.send(()).unwrap();
        });
    }
    drop(gate);
    client(&engine, model, 0, 60);
    check(&explained(&engine, "cold"), Cause::Cold, 6);
}

#[test]
fn a_neighbour_that_fails() {
    // Each third batch fails whole, with two to four calls in it.
    let (executor, gate) = Doubling::gated_and_failing(3);
    let mut config = config(&executor, 1, limits(64), 1);
    flight(&mut config);
    let engine = Engine::start(config).unwrap();
    let model = engine.load(served(1, Duration::from_secs(600))).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..24 {
            let engine = &engine;
            scope.spawn(move || client(engine, model, 0, 1));
        }
        // The first batch holds what came first; later ones fill up behind it.
        while engine.unanswered() < 24 {
            std::thread::yield_now();
        }
        for _ in 0..24 {
            gate.release.send(()).unwrap();
        }
    });
    check(&explained(&engine, "neighbour"), Cause::Neighbour, 4);
}
