//! Every policy of the catalogue serves live on emulated devices, and its recorded run replays.

use crate::common::{Client, data, emulated, policy};
use ripieno_base::Nanos;
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_model::Profile;
use ripieno_policies::{CATALOGUE, ServedPolicy};
use ripieno_runtime::{Engine, EngineConfig, Header, Recording, ServedModel, replay};
use ripieno_sched::{Limits, Options, Setup};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMITS: Limits = Limits { requests: 256, models: 3, devices: 2, depth: 2, batch: 8, ..Limits::ONE };

/// A model that answers with its input, ℓ(b) = 0.3 + 0.1·b ms, to be answered within 40 ms.
fn model(executor: &Arc<dyn Executor>, name: &str) -> ServedModel {
    emulated(executor, name, Profile::linear(0.1, 0.3, 8).unwrap(), Nanos::from_millis(40))
}

fn built(header: &Header) -> Result<ServedPolicy, String> {
    let options: Options = serde_json::from_value(header.options.clone()).map_err(|error| error.to_string())?;
    Ok(policy(&header.policy, &header.setup, &options, header.shards))
}

/// Drives two models concurrently, from a thread each; requests of up to three batches, some with
/// tight deadlines.
fn drive(engine: &Engine, executor: &Arc<dyn Executor>) {
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let client = Client::new(engine, engine.load(model(executor, name)).unwrap());
            scope.spawn(move || {
                for round in 0..10 {
                    let jobs = (round * 10..round * 10 + 10).map(|number| (number, 1 + number % 20));
                    let timeout = |number: usize| number.is_multiple_of(4).then_some(Duration::from_micros(300));
                    let tickets = jobs.map(|(number, rows)| client.submit(number, rows, timeout(number)).unwrap());
                    let tickets: Vec<_> = tickets.collect();
                    for _ in &tickets {
                        let (number, answer) = client.next();
                        // The number in time depends on the machine and the policy, but no answer
                        // may be wrong.
                        if answer.is_ok() {
                            let expected: Vec<u8> = (0..1 + number % 20).map(|row| (number + row) as u8).collect();
                            assert_eq!(data(answer), expected);
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn every_policy_serves_live_and_replays() {
    let sharded = CATALOGUE.iter().filter(|policy| policy.is_sharded()).map(|policy| (policy, 2));
    for (row, shards) in CATALOGUE.iter().map(|policy| (policy, 1)).chain(sharded) {
        let limits = Limits { lanes: row.needs(&Options::new()).lanes, ..LIMITS };
        let setup = Setup { models: Vec::new(), devices: 2, limits };
        let scheduler = policy(row.name, &setup, &Options::new(), shards);
        let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(2));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{shards}.jsonl", row.name));
        let options = serde_json::to_value(Options::new()).unwrap();
        let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor); 2]);
        config.record = Some(Recording { path: path.clone(), policy: row.name.to_owned(), options });
        let engine = Engine::start(config).unwrap();
        drive(&engine, &executor);
        assert!(engine.drain(crate::common::SAFETY), "{}", row.name);
        for (id, name, seen) in engine.all_metrics() {
            assert_eq!(seen.success.count + seen.fail.count, 100, "{} {id:?} {name}", row.name);
        }
        assert!(engine.device_metrics()[0].busy_ns > 0);
        engine.shutdown();
        let replayed = replay(&path, built).unwrap();
        assert_eq!((replayed.difference, replayed.truncated), (None, false), "{}", row.name);
        assert!(replayed.settles > 20, "{}", row.name);
    }
}
