//! The worked example of Symphony's section 3.3: three devices, one model, ℓ(b) = b + 5, SLO 12,
//! request i at 0.75·(i − 1). The paper's time units are milliseconds here.

use expect_test::{Expect, expect};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::build;
use ripieno_sched::{Limits, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Trace, World};

fn arrival(millis: f64) -> Arrival {
    let at = Time::ORIGIN + Nanos::from_millis_f64(millis);
    Arrival::new(at, ModelId(0), at + Nanos::from_millis(12))
}

/// The requests of the example by their number there, from `R1` on.
fn requests(numbers: impl IntoIterator<Item = u32>) -> Vec<Arrival> {
    numbers.into_iter().map(|number| arrival(0.75 * f64::from(number - 1))).collect()
}

fn run(policy: &str, gather: &str, arrivals: Vec<Arrival>) -> Trace {
    let model = Model::whole("m", Profile::linear(1.0, 5.0, 32).unwrap(), Nanos::from_millis(12));
    let limits = Limits { requests: 64, devices: 3, batch: 32, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices: 3, limits };
    let options = Options::from([("gather".to_owned(), ripieno_sched::OptionValue::Text(gather.to_owned()))]);
    let mut scheduler = build(policy, &setup, &options).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    World::new(scheduler.as_mut(), &setup).run(arrivals.into_iter(), [], &mut [&mut trace, &mut checkers]);
    checkers.finish();
    trace
}

fn check_tasks(trace: &Trace, expected: Expect) {
    expected.assert_eq(&trace.tasks_csv());
}

#[test]
fn deferred_forms_batches_of_four_in_staggered_execution() {
    for gather in ["prefix", "window"] {
        let trace = run("deferred", gather, requests(1..=20));
        check_tasks(
            &trace,
            expect![[r#"
                start_ms,end_ms,device,model,block,members
                2.25,11.25,0,m,m,1 2 3 4
                5.25,14.25,1,m,m,5 6 7 8
                8.25,17.25,2,m,m,9 10 11 12
                11.25,20.25,0,m,m,13 14 15 16
                14.25,23.25,1,m,m,17 18 19 20
            "#]],
        );
    }
}

#[test]
fn deferred_regains_the_stagger_after_three_missing_requests() {
    for gather in ["prefix", "window"] {
        let trace = run("deferred", gather, requests((1..=12).chain(16..=31)));
        check_tasks(
            &trace,
            expect![[r#"
                start_ms,end_ms,device,model,block,members
                2.25,11.25,0,m,m,1 2 3 4
                5.25,14.25,1,m,m,5 6 7 8
                8.25,17.25,2,m,m,9 10 11 12
                13.5,22.5,0,m,m,13 14 15 16
                16.5,25.5,1,m,m,17 18 19 20
                19.5,28.5,2,m,m,21 22 23 24
                22.5,31.5,0,m,m,25 26 27 28
            "#]],
        );
        assert!(!trace.requests_csv().contains("dropped"));
    }
}

/// Until 11.25 the devices are as under deferred scheduling: batches of four started at 2.25, 5.25
/// and 8.25. Eager scheduling starts immediately, so the four requests of each of these batches
/// arrive together at its start. They are ids 1 to 12; R16 of the paper is id 13 here, so paper
/// number = id + 3.
#[test]
fn eager_from_request_16_runs_small_batches_and_drops() {
    let first = [2.25, 5.25, 8.25].into_iter().flat_map(|start| [arrival(start); 4]);
    let arrivals = first.chain(requests(16..=40)).collect();
    let trace = run("eager", "prefix", arrivals);
    check_tasks(
        &trace,
        expect![[r#"
        start_ms,end_ms,device,model,block,members
        2.25,11.25,0,m,m,1 2 3 4
        5.25,14.25,1,m,m,5 6 7 8
        8.25,17.25,2,m,m,9 10 11 12
        11.25,17.25,0,m,m,13
        14.25,23.25,1,m,m,14 15 16 17
        17.25,26.25,0,m,m,18 19 20 21
        18,24,2,m,m,22
        23.25,30.25,1,m,m,23 24
        24,32,2,m,m,25 26 27
        26.25,34.25,0,m,m,28 29 30
        30.25,36.25,1,m,m,31
        32,38,2,m,m,33
        34.25,40.25,0,m,m,36
    "#]],
    );
    let dropped = trace
        .requests_csv()
        .lines()
        .filter(|line| line.ends_with("dropped"))
        .map(|line| {
            let id: u32 = line.split(',').next().unwrap().parse().unwrap();
            id + 3
        })
        .collect::<Vec<_>>();
    assert_eq!(dropped[..3], [35, 37, 38]);
}
