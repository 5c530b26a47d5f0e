//! A model whose late requests are still answered, like one without an SLO, leaves others their
//! share.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_policies::build_served;
use ripieno_sched::{Limits, Request, Setup};
use ripieno_sim::{Arrival, End, Observer, Scenario, World, simulate};

/// Returns the losses of the heavy and the light model, where the heavy one is offered three times
/// the capacity.
fn lost(policy: &str) -> (f64, f64) {
    let models = "[[model]]\nname = \"heavy\"\nshare = 540.0\nalpha_ms = 5.0\nbeta_ms = 5.0\nslo_ms = 500.0\nmax_batch = 32\n\
                  drop = \"never\"\n\
                  [[model]]\nname = \"light\"\nshare = 20.0\nalpha_ms = 0.5\nbeta_ms = 2.0\nslo_ms = 400.0\nmax_batch = 8\n";
    let head =
        format!("rate = 560.0\nrequests = 8000\nwarmup_fraction = 0.2\nadmission = true\npolicy = \"{policy}\"\n");
    let summary = simulate(&Scenario::parse(&format!("{head}{models}"), "s.toml").unwrap(), None).unwrap();
    (summary.models[0].figures.bad_rate, summary.models[1].figures.bad_rate)
}

#[test]
fn lateness_without_an_slo_takes_no_share_from_others() {
    for policy in ["unified", "cellular", "dva", "lazy", "delay-batch"] {
        let (heavy, light) = lost(policy);
        println!("no_slo   {policy:12} heavy loses {heavy:.3}, light {light:.3}");
        assert!(heavy > 0.5, "{policy}: what cannot be done is refused: {heavy:.3}");
        assert!(light < 0.15, "{policy}: {light:.3}");
    }
}

/// Returns the numbers of refused requests of a text encoder and of a tiny model beside it, neither
/// with an SLO. Every three seconds 32 texts of 60 ms each arrive within a quarter of a second; the
/// tiny model gets ten requests a second of 13 µs.
fn refused(policy: &str, text: &str) -> [usize; 2] {
    let model = |name: &str, each_ms: f64, slo: i64| {
        let profile = Profile::linear(each_ms, each_ms / 4.0, 8).unwrap();
        Model { drop: Some(DropRule::Never), ..Model::whole(name, profile, Nanos::from_millis(slo)) }
    };
    let limits = Limits { requests: 1024, models: 2, depth: 5, batch: 8, ..Limits::ONE };
    let models = vec![model("encoder", 60.0, 203), model("tiny", 0.01, 10)];
    let setup = Setup { models, devices: 1, limits };
    let arrival = |millis: i64, model: u16| {
        let at = Time::ORIGIN + Nanos::from_millis(millis);
        Arrival::new(at, ModelId(model), at + setup.models[usize::from(model)].slo)
    };
    let bursts = (0..10).flat_map(|burst| (0..32).map(move |at| arrival(3_000 * burst + 1_000 + 8 * at, 0)));
    let mut arrivals: Vec<_> = bursts.chain((0..300).map(|ping| arrival(100 * ping, 1))).collect();
    arrivals.sort_by_key(|arrival| arrival.at);
    let mut scheduler = build_served(policy, &setup, &options(text)).unwrap();
    let mut refusals = Refusals::default();
    let mut world = World::new(scheduler.as_mut(), &setup).with_learning(&setup.models);
    world.run(arrivals.into_iter(), [], &mut [&mut refusals]);
    refusals.0
}

/// Refused requests by model.
#[derive(Default)]
struct Refusals([usize; 2]);

impl Observer for Refusals {
    fn ended(&mut self, _now: Time, _id: u64, request: &Request, end: End) {
        self.0[request.model.index()] += usize::from(end != End::Finished);
    }
}

#[test]
fn a_burst_is_not_refused_for_a_neighbour_that_hardly_needs_the_device() {
    for (policy, text) in [("dva", "buffers=1"), ("lazy", ""), ("cellular", ""), ("deferred", ""), ("unified", "")] {
        assert_eq!(refused(policy, text), [0, 0], "{policy}");
    }
}

/// Returns the arrivals of the first model's requests in the order of their answers, the longest
/// wait for one, and the longest wait of a light neighbour. Neither has an SLO; the first is
/// offered 1.3 times the capacity for four seconds, then nothing.
fn answers(policy: &str, text: &str) -> Answers {
    let model = |name: &str, profile: Profile, slo: i64| Model {
        drop: Some(DropRule::Never),
        in_arrival_order: true,
        ..Model::whole(name, profile, Nanos::from_millis(slo))
    };
    let limits = Limits { requests: 1024, models: 2, depth: 5, batch: 8, ..Limits::ONE };
    let [heavy, light] = [Profile::linear(20.0, 3.0, 8).unwrap(), Profile::linear(6.0, 2.0, 8).unwrap()];
    let setup = Setup { models: vec![model("heavy", heavy, 69), model("light", light, 24)], devices: 1, limits };
    let arrival = |millis: i64, model: u16| {
        let at = Time::ORIGIN + Nanos::from_millis(millis);
        Arrival::new(at, ModelId(model), at + setup.models[usize::from(model)].slo)
    };
    let mut arrivals: Vec<_> = (0..220).map(|at| arrival(18 * at, 0)).collect();
    arrivals.extend((0..10).map(|at| arrival(400 * at + 7, 1)));
    arrivals.sort_by_key(|arrival| arrival.at);
    let mut scheduler = build_served(policy, &setup, &options(text)).unwrap();
    let mut answers = Answers::default();
    let mut world = World::new(scheduler.as_mut(), &setup).with_learning(&setup.models);
    world.run(arrivals.into_iter(), [], &mut [&mut answers]);
    answers
}

#[derive(Default)]
struct Answers {
    order: Vec<Time>,
    longest: [Nanos; 2],
    refused: usize,
}

impl Observer for Answers {
    fn ended(&mut self, now: Time, _id: u64, request: &Request, end: End) {
        let model = request.model.index();
        self.refused += usize::from(end != End::Finished);
        self.longest[model] = self.longest[model].max(now - request.arrived);
        self.order.extend((model == 0).then_some(request.arrived));
    }
}

#[test]
fn without_an_slo_answers_come_in_the_order_of_arrival_and_a_light_neighbour_waits_for_one_batch() {
    for (policy, text) in [
        ("unified", "objective=latency"),
        ("unified", "objective=efficiency"),
        ("deferred", ""),
        ("eager", ""),
        ("timeout", ""),
        ("dva", "buffers=1"),
    ] {
        let Answers { order, longest: [heavy, light], refused } = answers(policy, text);
        println!("no_slo   {policy:12} {text:22} heavy at most {heavy:?}, light {light:?}");
        assert_eq!((order.len(), refused), (220, 0), "{policy}");
        assert!(order.is_sorted(), "{policy}: an earlier request is answered later");
        // 220 rows of 20 to 23 ms in 4 s.
        assert!(heavy < Nanos::from_millis(1_300), "{policy}: {heavy:?}");
        let bound = if policy == "dva" { heavy } else { Nanos::from_millis(60) };
        assert!(light <= bound, "{policy}: {light:?}");
    }
}
