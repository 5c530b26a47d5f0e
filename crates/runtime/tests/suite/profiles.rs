//! Live, on emulated devices: a model whose profile is wrong is served as well as its batches
//! allow, and a profile tells which calls can never be in time. Bounds are generous: they
//! distinguish milliseconds from seconds, and some answers from none.

use crate::common::Client;
use ripieno_base::{BlockId, Nanos};
use ripieno_executor::{BlockSource, EmulatedEngine, EmulatedOptions, Executor, ModelSource};
use ripieno_model::{DataType, Model, Profile, TensorSpec};
use ripieno_policies::{build_served, find, served_options};
use ripieno_runtime::{Engine, EngineConfig, Failure, ServedModel};
use ripieno_sched::{Limits, Objective, Options, Setup};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { requests: 1_024, models: 2, batch: 8, ..Limits::ONE };

/// A model whose batches of b rows take 2 + 0.1·b ms, regardless of the profile.
fn emulated(executor: &Arc<dyn Executor>, profile: Profile, slo: Nanos) -> ServedModel {
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let truth = Profile::linear(0.1, 2.0, 8).unwrap();
    let block = BlockSource { profile: Some(truth), ..BlockSource::new("m") };
    let source = ModelSource::new("m", vec![block], 8);
    let loaded = executor.load(&ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..source });
    let model = Model::whole("m", profile, slo);
    ServedModel { model, loaded: loaded.unwrap(), max_queue: Some(1_024), max_queued_work: None, answer_late: false }
}

fn start(policy: &str, executor: &Arc<dyn Executor>) -> Engine {
    let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
    let policy = find(policy).unwrap();
    let options = served_options(policy, Options::new(), Objective::Latency);
    let scheduler = build_served(policy.name, &setup, &options).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)]);
    config.policy = Some(policy);
    Engine::start(config).unwrap()
}

fn corrections(engine: &Engine, client: &Client) -> u64 {
    engine.model_metrics(client.model).unwrap().profile_corrections
}

/// Sends requests until the profile has been corrected once more than `before` times.
fn until_corrected(engine: &Engine, client: &Client, before: u64) {
    let asked = Instant::now();
    while corrections(engine, client) <= before {
        assert!(asked.elapsed() < Duration::from_secs(60), "nothing was corrected");
        until_served(client, 1);
    }
}

/// Sends one request after the other until `in_a_row` were answered in time; returns the number of
/// those that were not.
fn until_served(client: &Client, in_a_row: usize) -> usize {
    let (asked, mut good, mut bad) = (Instant::now(), 0, 0);
    while good < in_a_row {
        assert!(asked.elapsed() < Duration::from_secs(60), "{bad} answers were none, {good} in a row at last");
        let _ticket = client.submit(0, 1, None).unwrap();
        if client.next().1.is_ok() {
            good += 1;
        } else {
            (good, bad) = (0, bad + 1);
        }
    }
    bad
}

#[test]
fn a_profile_by_which_every_request_is_hopeless_is_found_out() {
    for policy in ["deferred", "timeout", "dva", "lazy", "clockwork"] {
        let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
        let engine = start(policy, &executor);
        // After a stall of 309 ms: ℓ(1), and the rest extrapolated in proportion.
        let stalled = Profile::linear(309.0, 0.0, 8).unwrap();
        let served = emulated(&executor, stalled, Nanos::from_millis(200));
        let client = Client::new(&engine, engine.load(served).unwrap());
        let lost = until_served(&client, 20);
        println!("{policy}: {lost} lost");
        until_corrected(&engine, &client, 0);
        engine.drain(Duration::from_secs(10));
    }
}

#[test]
fn a_call_that_needs_longer_than_its_limit_on_idle_devices_learns_it() {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let engine = start("deferred", &executor);
    let served = emulated(&executor, Profile::linear(0.1, 2.0, 8).unwrap(), Nanos::from_millis(1_000));
    let client = Client::new(&engine, engine.load(served).unwrap());
    // 500 batches of 2.8 ms.
    client.submit(1, 4_000, None).unwrap();
    assert_eq!(client.next_failure(), (1, Failure::TooLong { needed: Duration::from_millis(1_400) }));
    client.submit(2, 8, None).unwrap();
    assert!(client.next().1.is_ok());
    engine.drain(Duration::from_secs(10));
}

#[test]
fn a_profile_that_is_too_long_is_corrected_by_what_runs() {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let engine = start("timeout", &executor);
    let served = emulated(&executor, Profile::linear(60.0, 20.0, 8).unwrap(), Nanos::from_millis(10_000));
    let client = Client::new(&engine, engine.load(served).unwrap());
    until_corrected(&engine, &client, 0);
    // A new profile from outside is treated like any other, and corrected as well.
    let before = corrections(&engine, &client);
    engine.replace_profile(client.model, BlockId(0), Profile::linear(500.0, 100.0, 8).unwrap()).unwrap();
    until_corrected(&engine, &client, before);
    engine.drain(Duration::from_secs(10));
}
