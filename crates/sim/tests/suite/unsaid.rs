//! A model whose late requests are still answered, like one without an SLO, leaves others their
//! share.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_sched::{Limits, Request, Setup, build_served};
use ripieno_sim::{Arrival, End, Observer, Scenario, World, simulate};

/// Returns the losses of the heavy and the light model, where the heavy one is offered three times
/// the capacity.
fn lost(policy: &str, options: &str) -> (f64, f64) {
    let models = "[[model]]\nname = \"heavy\"\nshare = 540.0\nalpha_ms = 5.0\nbeta_ms = 5.0\nslo_ms = 500.0\nmax_batch = 32\n\
                  drop = \"never\"\n\
                  [[model]]\nname = \"light\"\nshare = 20.0\nalpha_ms = 0.5\nbeta_ms = 2.0\nslo_ms = 400.0\nmax_batch = 8\n";
    let head =
        format!("rate = 560.0\nrequests = 8000\nwarmup_fraction = 0.2\nadmission = true\npolicy = \"{policy}\"\n");
    let summary = simulate(&Scenario::parse(&format!("{head}{options}{models}"), "s.toml").unwrap(), None).unwrap();
    (summary.models[0].figures.bad_rate, summary.models[1].figures.bad_rate)
}

#[test]
fn lateness_that_is_nobodys_concern_takes_no_share_from_others() {
    let objective = "[policy_options]\nobjective = \"latency\"\n";
    for (policy, options) in [("deferred", objective), ("cellular", ""), ("dva", ""), ("lazy", ""), ("delay-batch", "")]
    {
        let (heavy, light) = lost(policy, options);
        println!("unsaid   {policy:12} heavy loses {heavy:.3}, light {light:.3}");
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
    let limits = Limits { requests: 1024, models: 2, devices: 1, lanes: 1, depth: 5, batch: 8, nodes: 0 };
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
    for (policy, text) in [("dva", "buffers=1"), ("lazy", ""), ("cellular", ""), ("deferred", "objective=latency")] {
        assert_eq!(refused(policy, text), [0, 0], "{policy}");
    }
}
