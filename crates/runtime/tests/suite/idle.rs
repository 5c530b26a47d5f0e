//! Live, on emulated devices: a lone request on an idle server is answered as fast as the model
//! runs, after any load on another model. Bounds are generous: they distinguish milliseconds from
//! the ten seconds of the SLO.

use crate::common::{Client, emulated};
use ripieno_base::Nanos;
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_model::Profile;
use ripieno_policies::{DEFAULT_POLICY, build, find, served_options};
use ripieno_runtime::{Engine, EngineConfig, ServedModel};
use ripieno_sched::{Limits, Objective, Options, Setup};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { requests: 1_024, models: 2, batch: 16, ..Limits::ONE };

/// ℓ(b) = 4 + 0.1·b ms, within 10 s.
fn model(executor: &Arc<dyn Executor>, name: &str) -> ServedModel {
    emulated(executor, name, Profile::linear(0.1, 4.0, 16).unwrap(), Nanos::from_millis(10_000))
}

#[test]
fn a_lone_request_after_a_burst_on_another_model_does_not_wait_for_its_deadline() {
    // Under "efficiency" it may wait for others, but must be in time.
    for (objective, seconds) in [(Objective::Latency, 5), (Objective::Efficiency, 11)] {
        let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
        let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
        let policy = find(DEFAULT_POLICY).unwrap();
        let options = served_options(policy, Options::new(), objective);
        let scheduler = build(DEFAULT_POLICY, &setup, &options).unwrap();
        let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)]);
        config.policy = Some(policy);
        let engine = Engine::start(config).unwrap();
        let quiet = Client::new(&engine, engine.load(model(&executor, "quiet")).unwrap());
        let busy = Client::new(&engine, engine.load(model(&executor, "busy")).unwrap());
        // The first request ever, then a burst that keeps the device busy, then silence.
        let alone = |number: usize| {
            let asked = Instant::now();
            let _ticket = quiet.submit(number, 1, None).unwrap();
            quiet.next().1.expect("a lone request is in time");
            let took = asked.elapsed();
            assert!(took < Duration::from_secs(seconds), "{objective:?}: request {number} took {took:?}");
        };
        alone(0);
        let tickets: Vec<_> = (0..600).map(|number| busy.submit(number, 1, None).unwrap()).collect();
        tickets.iter().for_each(|_| drop(busy.next()));
        (1..4).for_each(alone);
        engine.drain(Duration::from_secs(10));
    }
}
