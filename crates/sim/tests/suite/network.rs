//! Batches that need time to reach their devices: the next one is there when the last one ends.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::build;
use ripieno_sched::{Limits, NetworkDelay, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Delay, Fault, Network, Scenario, Trace, World, simulate};

/// Two devices that run batches of up to 8 rows in 6 to 13 ms, which arrive after 2.2 to 3.6 ms,
/// under more load than they carry.
fn overloaded(policy: &str, options: &str) -> f64 {
    let text = format!(
        "duration_s = 10\nrate = 2000\npolicy = \"{policy}\"\npolicy_options = {{ {options} }}\nmax_live = 200\n\
         [cluster]\ndevices = 2\n[network]\ncontrol_us = 2000\ndata_us_per_request = 200\n\
         [[model]]\nname = \"m\"\nslo_ms = 60\nmax_batch = 8\nalpha_ms = 1.0\nbeta_ms = 5.0\n"
    );
    let scenario = Scenario::parse(&text, "s.toml").unwrap();
    simulate(&scenario, None).unwrap().total.goodput_rps
}

#[test]
fn a_policy_that_knows_the_delay_keeps_devices_busy() {
    for policy in ["deferred", "unified"] {
        let (blind, knows) = (overloaded(policy, "control_us = 0, data_us_per_row = 0"), overloaded(policy, ""));
        // Without a batch ahead a device is idle for 3.6 of 16.6 ms. Always busy, both carry 1,231
        // rows a second.
        assert!(knows > 1.12 * blind && knows > 1_100.0, "{policy}: {blind} and {knows} answers a second in time");
    }
}

/// Returns the tasks of 64 requests that come together, in batches of 8 rows that take 13 ms, after
/// 4 ms of gathering. The scheduler may learn the time to gather.
fn gathered(policy: &str, knows: bool) -> Vec<(f64, f64)> {
    let model = Model::whole("m", Profile::linear(1.0, 5.0, 8).unwrap(), Nanos::from_millis(2_000));
    let limits = Limits { requests: 64, batch: 8, depth: 2, nodes: 64, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices: 1, limits };
    let mut scheduler = build(policy, &setup, &Options::new()).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    let data_per_row = Nanos::from_micros(500);
    let delay = NetworkDelay { control: Nanos::ZERO, data_per_row };
    let network = Network { control: Delay::Fixed(Nanos::ZERO), data_per_row, estimate: Nanos::ZERO };
    let arrivals = (0..64).map(|_| Arrival::new(Time::ORIGIN, ModelId(0), Time::ORIGIN + setup.models[0].slo));
    let faults = knows.then_some((Time::ORIGIN, Fault::Gather(ModelId(0), delay)));
    let mut world = World::new(scheduler.as_mut(), &setup).with_network(network, 1);
    world.run(arrivals, faults, &mut [&mut trace, &mut checkers]);
    checkers.finish();
    let csv = trace.tasks_csv();
    let times = csv.lines().skip(1).map(|line| {
        let mut fields = line.split(',').map(|field| field.parse::<f64>());
        (fields.next().unwrap().unwrap(), fields.next().unwrap().unwrap())
    });
    times.collect()
}

#[test]
fn a_batch_is_gathered_by_the_time_that_the_last_one_ends() {
    for policy in ["unified", "deferred", "eager"] {
        let end = |tasks: &[(f64, f64)]| tasks.last().unwrap().1;
        let (blind, knows) = (gathered(policy, false), gathered(policy, true));
        assert_eq!((blind.len(), end(&blind)), (8, 8.0 * 17.0), "{policy}: {blind:?}");
        // The first batch is gathered on an idle device: "unified" learns that batches take longer.
        let most = if policy == "unified" { 112.0 } else { 108.0 };
        assert!((108.0..=most).contains(&end(&knows)) && knows.len() == 8, "{policy}: {knows:?}");
    }
}
