//! Requests of several rows: a batch that the next request does not fit into cannot grow, so it
//! does not wait.

use expect_test::expect;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::{build, find};
use ripieno_sched::{Limits, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Scenario, Trace, World, simulate};
use ripieno_workload::{stream, unit};
use std::fmt::Write as _;

#[test]
fn a_batch_that_cannot_grow_starts_immediately() {
    let model = Model::whole("m", Profile::linear(1.0, 5.0, 8).unwrap(), Nanos::from_millis(1_000));
    let limits = Limits { requests: 8, batch: 8, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices: 1, limits };
    let mut scheduler = build("deferred", &setup, &Options::new()).unwrap();
    let arrival = |millis: i64, rows: u32| {
        let at = Time::ORIGIN + Nanos::from_millis(millis);
        Arrival { rows, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(1_000)) }
    };
    let arrivals = [arrival(0, 3), arrival(1, 3), arrival(2, 3), arrival(3, 6)];
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    World::new(scheduler.as_mut(), &setup).run(arrivals.into_iter(), [], &mut [&mut trace, &mut checkers]);
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        2,13,0,m,m,1 2
        13,21,0,m,m,3
        991,1002,0,m,m,4
    "#]]
    .assert_eq(&trace.tasks_csv());
}

#[test]
fn a_file_may_list_requests_of_several_rows() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("wide.toml");
    std::fs::write(folder.join("wide.csv"), "arrival_ms,model,rows\n1,m,4\n2,m,1\n").unwrap();
    let model = "[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 5\nmax_batch = 8\nslo_ms = 16\n";
    std::fs::write(&file, format!("requests_file = \"wide.csv\"\n{model}")).unwrap();
    for policy in ["cellular", "late", "deferred"] {
        let mut scenario = Scenario::read(&file).unwrap();
        scenario.serve_under(find(policy).unwrap(), Options::new());
        assert_eq!(simulate(&scenario, None).unwrap().total.requests, 2, "{policy}");
    }
}

/// Beyond the peak: no number of these requests fills the largest batch, of 32 rows.
#[test]
fn requests_that_do_not_fill_a_batch_keep_the_devices_busy() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (rows, devices, capacity) in [(3, 1, 526.0), (3, 4, 2_105.0), (12, 4, 500.0), (17, 4, 320.0)] {
        let name = format!("unfilled-{rows}-{devices}");
        let (mut random, mut at_ms, mut listed) = (stream(1, rows), 0.0, "arrival_ms,model,rows\n".to_owned());
        while at_ms < 3_000.0 {
            at_ms -= (1.0 - unit(&mut random)).ln() * 1e3 / (1.5 * capacity);
            writeln!(listed, "{at_ms},m,{rows}").unwrap();
        }
        std::fs::write(folder.join(format!("{name}.csv")), listed).unwrap();
        let model = "[[model]]\nname = \"m\"\nalpha_ms = 0.5\nbeta_ms = 4\nmax_batch = 32\nslo_ms = 100\n";
        let scenario = format!("requests_file = \"{name}.csv\"\n[cluster]\ndevices = {devices}\n{model}");
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, scenario).unwrap();
        let mut scenario = Scenario::read(&file).unwrap();
        scenario.serve_under(find("unified").unwrap(), Options::new());
        let good = simulate(&scenario, None).unwrap().total.goodput_rps;
        assert!(good > 0.95 * capacity, "{good}/s of {capacity}/s, {rows} rows, {devices} devices");
    }
}
