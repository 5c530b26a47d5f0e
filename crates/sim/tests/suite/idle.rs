//! An idle device runs immediately: a lone request on an idle server starts when it arrives,
//! whatever came before, under every work-conserving policy. Under policies that defer it is in
//! time, even if it is the first request and the device is slower than its profile.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_policies::build;
use ripieno_sched::{Limits, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Jitter, Trace, World};

/// Policies that keep no device idle for larger batches, as `serve` runs them.
const PROMPT: &[(&str, &str)] = &[
    ("serial", ""),
    ("eager", ""),
    ("eager", "gather=window drop=expired"),
    ("eager", "shards=2"),
    ("unified", ""),
    ("clockwork", ""),
    ("shepherd", ""),
    ("cellular", ""),
    ("bucketed", ""),
    ("graph-merge", ""),
    ("lazy", ""),
    ("lazy-oracle", ""),
    ("delay-batch", ""),
    ("dva", "buffers=1"),
];

const NONE: (Jitter, u64) = (Jitter { mean_us: 0.0, mean_percent: 0.0 }, 0);

const SLO: Nanos = Nanos::from_millis(10_000);

fn at(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

fn arrival(millis: i64, model: u16) -> Arrival {
    Arrival::new(at(millis), ModelId(model), at(millis) + SLO)
}

fn setup(devices: usize) -> Setup {
    let model = |name: &str| Model::whole(name, Profile::linear(0.5, 4.0, 16).unwrap(), SLO);
    let limits = Limits { requests: 30_000, models: 2, devices, depth: 5, batch: 16, ..Limits::ONE };
    Setup { models: vec![model("quiet"), model("busy")], devices, limits }
}

/// Returns arrival, start and end of each request of model `quiet`, in ms.
fn run(policy: &str, text: &str, setup: &Setup, arrivals: &[Arrival], jitter: (Jitter, u64)) -> Vec<(f64, f64, f64)> {
    let mut scheduler = build(policy, setup, &options(text)).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(setup));
    let mut world = World::new(scheduler.as_mut(), setup).with_learning(&setup.models).with_jitter(jitter.0, jitter.1);
    world.run(arrivals.iter().copied(), [], &mut [&mut trace, &mut checkers]);
    checkers.finish();
    let requests = trace.requests_csv();
    let quiet = requests.lines().map(|line| line.split(',').collect::<Vec<_>>()).filter(|fields| fields[1] == "quiet");
    let millis = |text: &str| text.parse().unwrap_or(f64::NAN);
    quiet.map(|fields| (millis(fields[2]), millis(fields[3]), millis(fields[4]))).collect()
}

/// A burst on the other model that keeps all devices busy for at least half a second, then silence,
/// then requests of the quiet model, one at a time: 50 ms after the last batch of the burst, and
/// later.
#[test]
fn after_a_burst_on_another_model_a_lone_request_starts_immediately() {
    for devices in [1, 2, 4] {
        let setup = setup(devices);
        let count = 1_200 * devices as i64;
        let mut arrivals: Vec<_> = (0..count).map(|index| arrival(index * 500 / count, 1)).collect();
        arrivals.extend([6_000, 6_050, 7_000, 14_000].map(|millis| arrival(millis, 0)));
        for &(policy, text) in PROMPT {
            let quiet = run(policy, text, &setup, &arrivals, NONE);
            assert_eq!(quiet.len(), 4);
            for (arrived, started, _) in quiet {
                assert_eq!(arrived, started, "{policy} {text} on {devices} devices");
            }
        }
    }
}

/// The same after the model's own burst: arrivals of the last seconds say nothing about future
/// ones.
#[test]
fn after_a_burst_on_its_own_model_a_lone_request_starts_immediately() {
    for &(policy, text) in PROMPT {
        let setup = setup(2);
        let mut arrivals: Vec<_> = (0..800).map(|index| arrival(index / 4, 0)).collect();
        arrivals.push(arrival(3_000, 0));
        let quiet = run(policy, text, &setup, &arrivals, NONE);
        let &(arrived, started, _) = quiet.last().unwrap();
        assert_eq!(arrived, started, "{policy} {text}");
    }
}

/// Runs 60 requests of `quiet`, which loses none, then 60 of `busy`, which loses most. Then lone
/// requests of `quiet` come; returns the longest wait of these, in parts of the SLO.
fn longest_wait(objective: &str, slo_ms: i64, devices: usize) -> f64 {
    let mut setup = setup(devices);
    for (model, slo) in setup.models.iter_mut().zip([slo_ms, 150]) {
        *model = Model::whole(&model.name, Profile::linear(2.0, 50.0, 8).unwrap(), Nanos::from_millis(slo));
    }
    let due = |millis, slo, model| Arrival { deadline: at(millis + slo), ..arrival(millis, model) };
    let mut arrivals: Vec<_> = (0..60 * devices).map(|_| due(0, slo_ms, 0)).collect();
    arrivals.extend((0..60 * devices).map(|_| due(600, 150, 1)));
    arrivals.extend((0..5).map(|index| due(800 + 70 * index, slo_ms, 0)));
    let quiet = run("unified", objective, &setup, &arrivals, NONE);
    let waits = quiet[60 * devices..].iter().map(|(arrived, started, _)| started - arrived);
    waits.fold(0.0, f64::max) / slo_ms as f64
}

/// Device time was short a moment ago, but nothing more comes: an idle device starts a lone
/// request. Under the objective of efficiency the request waits as long as nothing has come.
#[test]
fn no_wait_outlasts_the_arrivals_that_it_is_for() {
    for devices in [1, 2, 8] {
        for slo_ms in [700, 2_000, 5_000, 10_000] {
            let wait = longest_wait("objective=latency", slo_ms, devices) * slo_ms as f64;
            assert!(wait < 70.0, "{devices} devices, SLO {slo_ms} ms: {wait} ms");
            let part = longest_wait("objective=efficiency", slo_ms, devices);
            assert!(part < 0.65, "{devices} devices, SLO {slo_ms} ms: {part} of the SLO");
        }
    }
}

/// Requests that arrive alone gain nothing by waiting, so they wait neither for their deadline nor
/// for a margin to be learnt from them.
#[test]
fn efficiency_does_not_make_lone_requests_wait() {
    let arrivals: Vec<_> = (1..10).map(|index| arrival(index * 11_000, 0)).collect();
    for (arrived, started, _) in run("unified", "objective=efficiency", &setup(1), &arrivals, NONE) {
        assert_eq!(arrived, started);
    }
}

/// Published deferral waits for the latest start, which the margin moves far enough ahead for the
/// very first request.
#[test]
fn a_first_request_is_in_time_on_a_device_that_is_slower_than_profiled() {
    for (policy, text) in [("deferred", ""), ("unified", "objective=efficiency"), ("unified", "")] {
        for seed in 0..30 {
            let mut setup = setup(1);
            setup.models[0].slo = Nanos::from_millis(100);
            let lone = Arrival { deadline: at(101), ..arrival(1, 0) };
            let jitter = Jitter { mean_us: 300.0, mean_percent: 5.0 };
            let quiet = run(policy, text, &setup, &[lone], (jitter, seed));
            let (arrived, _, ended) = quiet[0];
            assert!(ended - arrived <= 100.0, "{policy} {text}: {quiet:?}");
        }
    }
}

/// Without margins nearly every lone request of the published rule is late on such a device; with
/// them fewer than one in ten are.
#[test]
fn margins_are_learnt_from_task_durations() {
    let mut setup = setup(1);
    setup.models[0].slo = Nanos::from_millis(100);
    let late = |margins: bool| {
        let mut scheduler = build("deferred", &setup, &options("")).unwrap();
        let mut trace = Trace::new(&setup.models);
        let world =
            World::new(scheduler.as_mut(), &setup).with_jitter(Jitter { mean_us: 2_000.0, mean_percent: 0.0 }, 1);
        let mut world = if margins { world.with_learning(&setup.models) } else { world };
        let lone = |index: i64| Arrival { deadline: at(200 * index + 100), ..arrival(200 * index, 0) };
        world.run((0..1_000).map(lone), [], &mut [&mut trace]);
        trace.requests_csv().matches("late").count()
    };
    assert!(late(false) > 600, "{}", late(false));
    assert!(late(true) < 90, "{}", late(true));
}

/// A policy that never drops keeps late requests in its queue; behind a server none waits there
/// beyond the deadline.
#[test]
fn clients_that_wait_no_more_are_withdrawn_at_their_deadline() {
    let ended = |expire: bool, late: bool| {
        let mut setup = setup(1);
        setup.models[0].slo = Nanos::from_millis(10);
        setup.models[0].drop = late.then_some(DropRule::Never);
        let mut scheduler = build("serial", &setup, &options("")).unwrap();
        let mut trace = Trace::new(&setup.models);
        let mut world = World::new(scheduler.as_mut(), &setup);
        world = if expire { world.with_expiry() } else { world };
        // Each takes 4.5 ms; the scheduler receives the last when its deadline has passed.
        let hurried = Arrival { arrived: at(0), deadline: at(1), ..arrival(2, 0) };
        let lone = |millis: i64| Arrival { deadline: at(millis + 10), ..arrival(millis, 0) };
        world.run([lone(0), lone(0), lone(1), lone(1), hurried].into_iter(), [], &mut [&mut trace]);
        let csv = trace.requests_csv();
        let outcomes: Vec<_> =
            csv.lines().skip(1).filter_map(|line| line.rsplit(',').next()).map(str::to_owned).collect();
        outcomes.join(" ")
    };
    assert_eq!(ended(false, false), "ok late late late late");
    // The third runs when its deadline passes, so its end is merely late.
    assert_eq!(ended(true, false), "ok ok late dropped dropped");
    assert_eq!(ended(true, true), "ok late late late late");
}
