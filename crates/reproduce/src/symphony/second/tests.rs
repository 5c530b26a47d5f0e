//! The second reading beside `deferred` and `eager`, task by task.

use super::rank::{RankOptions, RankScheduler, RankStart};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Request, Scheduler, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Run, World};
use ripieno_workload::{SeededRng, below, stream, unit};

/// Tasks by start, device, model, size and end, and the requests that are dropped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decisions {
    tasks: Vec<(Time, usize, ModelId, Vec<u64>)>,
    dropped: Vec<u64>,
}

impl Observer for Decisions {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let mut members = run.ids.to_vec();
        members.sort_unstable();
        self.tasks.push((run.start, run.device.index(), run.model, members));
    }

    fn ended(&mut self, _now: Time, id: u64, _request: &Request, end: End) {
        if end != End::Finished {
            self.dropped.push(id);
        }
    }
}

fn setup(random: &mut SeededRng) -> Setup {
    let count = 1 + below(random, 4) as usize;
    let models = (0..count).map(|place| {
        let (alpha, beta) = (0.2 + 2.0 * unit(random), 8.0 * unit(random));
        let profile = Profile::linear(alpha, beta, 16).unwrap();
        let slo = Nanos::from_millis_f64(2.0 * (4.0 * alpha + beta));
        Model::whole(&place.to_string(), profile, slo)
    });
    let models: Vec<_> = models.collect();
    let devices = 1 + below(random, 4) as usize;
    let limits = Limits { requests: 4_000, models: count, devices, batch: 16, ..Limits::ONE };
    Setup { models, devices, limits }
}

/// Returns arrivals at a random share of what the devices carry at most.
fn arrivals(random: &mut SeededRng, setup: &Setup) -> Vec<Arrival> {
    let best = |model: &Model| model.profile().latency(16).as_millis_f64() / 16.0;
    let ms: f64 = setup.models.iter().map(best).sum::<f64>() / setup.models.len() as f64;
    let gap_ms = ms / setup.devices as f64 / (0.2 + 1.2 * unit(random));
    let mut at = Time::ORIGIN;
    let mut arrival = || {
        at = at + Nanos::from_millis_f64(-gap_ms * (1.0 - unit(random)).ln()) + Nanos(1);
        let model = ModelId(below(random, setup.models.len() as u64) as u16);
        Arrival::new(at, model, at + setup.models[model.index()].slo)
    };
    (0..600).map(|_| arrival()).collect()
}

fn decisions(setup: &Setup, arrivals: &[Arrival], scheduler: &mut dyn Scheduler) -> Decisions {
    let (mut decisions, mut checkers) = (Decisions::default(), Checkers::new(setup));
    World::new(scheduler, setup).run(arrivals.iter().copied(), [], &mut [&mut checkers, &mut decisions]);
    checkers.finish();
    decisions.dropped.sort_unstable();
    decisions
}

/// Without a target the public code gathers the textbook's batch. Both readings of the paper then
/// make the same decisions.
#[test]
fn without_a_target_both_readings_decide_alike() {
    let text = |value: &str| OptionValue::Text(value.to_owned());
    let options = Options::from([("gather".to_owned(), text("prefix")), ("device".to_owned(), text("earliest-free"))]);
    let (mut tasks, mut dropped) = (0, 0);
    for seed in 0..200 {
        let random = &mut stream(seed, 0);
        let setup = setup(random);
        let arrivals = arrivals(random, &setup);
        for (start, policy) in [(RankStart::Frontrun, "deferred"), (RankStart::Immediately, "eager")] {
            let rank = RankOptions { start, has_target: false, jitter: Nanos::ZERO };
            let second = decisions(&setup, &arrivals, &mut RankScheduler::new(&setup, rank));
            let ours = decisions(&setup, &arrivals, build(policy, &setup, &options).unwrap().as_mut());
            assert_eq!(second, ours, "seed {seed}, {policy}");
            (tasks, dropped) = (tasks + ours.tasks.len(), dropped + ours.dropped.len());
        }
    }
    assert!(tasks > 10_000 && dropped > 1_000, "{tasks} tasks, {dropped} dropped");
}
