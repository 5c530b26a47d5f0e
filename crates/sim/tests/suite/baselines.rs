//! Small examples of "clockwork", "nexus" and "shepherd", calculated by hand. All times in ms.

use expect_test::{Expect, expect};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Trace, World};

/// ℓ(b) = αb + β and the SLO.
type Costs = (f64, f64, i64);

/// Runs requests, given as `(time, model)`, and compares the tasks.
fn check(
    policy: &str,
    options: &[(&str, f64)],
    devices: usize,
    models: &[Costs],
    requests: &[(f64, u16)],
    tasks: &Expect,
) {
    let options = options.iter().map(|&(knob, value)| (knob.to_owned(), OptionValue::Float(value))).collect();
    tasks.assert_eq(&tasks_of(policy, &options, devices, models, requests));
}

/// Returns the tasks that a policy runs.
fn tasks_of(policy: &str, options: &Options, devices: usize, models: &[Costs], requests: &[(f64, u16)]) -> String {
    let names = ["a", "b", "c"];
    let model = |(&(alpha, beta, slo), name): (&Costs, &&str)| {
        Model::whole(name, Profile::linear(alpha, beta, 16).unwrap(), Nanos::from_millis(slo))
    };
    let models: Vec<_> = models.iter().zip(&names).map(model).collect();
    let limits = Limits { requests: 64, models: models.len(), devices, batch: 16, ..Limits::ONE };
    let setup = Setup { models, devices, limits };
    let arrival = |&(millis, model): &(f64, u16)| {
        let at = Time::ORIGIN + Nanos::from_millis_f64(millis);
        Arrival::new(at, ModelId(model), at + setup.models[usize::from(model)].slo)
    };
    let mut scheduler = build(policy, &setup, options).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    World::new(scheduler.as_mut(), &setup).run(requests.iter().map(arrival), [], &mut [&mut trace, &mut checkers]);
    checkers.finish();
    assert!(!trace.requests_csv().contains("late"));
    trace.tasks_csv()
}

/// The device is free at 6. With a look-ahead of 2 its next batch is chosen at 4: of a (latest 22 −
/// 6 = 16) and b (latest 31 − 6 = 25) it is a, without the request that arrives at 5. That one is
/// chosen at 10 for 12 (latest 25 − 6 = 19).
#[test]
fn clockwork_chooses_before_the_device_is_free() {
    let models = [(1.0, 5.0, 20), (2.0, 4.0, 30)];
    let requests = [(0.0, 0), (1.0, 1), (2.0, 0), (5.0, 0)];
    check(
        "clockwork",
        &[("lookahead_ms", 2.0)],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,12,0,a,a,3
        12,18,0,a,a,4
        18,24,0,b,b,2
    "#]],
    );
}

/// Without look-ahead the choice is made at 6, with both requests of a: ℓ(2) = 7.
#[test]
fn clockwork_without_look_ahead_is_eager() {
    let models = [(1.0, 5.0, 20), (2.0, 4.0, 30)];
    let requests = [(0.0, 0), (1.0, 1), (2.0, 0), (5.0, 0)];
    check(
        "clockwork",
        &[("lookahead_ms", 0.0)],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,13,0,a,a,3 4
        13,19,0,b,b,2
    "#]],
    );
}

/// At 3 three requests of b wait, three times the running batch: a is aborted, and runs again from
/// its start at 11.
#[test]
fn shepherd_preempts_at_three_times_the_size() {
    let models = [(1.0, 9.0, 40), (1.0, 5.0, 30)];
    let requests = [(0.0, 0), (1.0, 1), (2.0, 1), (3.0, 1)];
    check(
        "shepherd",
        &[],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,3,0,a,a,1
        3.000001,11.000001,0,b,b,2 3 4
        11.000001,21.000001,0,a,a,1
    "#]],
    );
}

/// Three are too few for a ratio of 4: a ends at 10, and b follows.
#[test]
fn shepherd_does_not_preempt_for_less() {
    let models = [(1.0, 9.0, 40), (1.0, 5.0, 30)];
    let requests = [(0.0, 0), (1.0, 1), (2.0, 1), (3.0, 1)];
    check(
        "shepherd",
        &[("preempt_ratio", 4.0)],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,10,0,a,a,1
        10,18,0,b,b,2 3 4
    "#]],
    );
}

/// The device is free at 6. One request of a waits, which arrived first and is most urgent,
/// and two of b: b goes first.
#[test]
fn shepherd_takes_the_largest_batch_first() {
    let models = [(1.0, 5.0, 20), (1.0, 5.0, 30)];
    let requests = [(0.0, 0), (1.0, 0), (2.0, 1), (3.0, 1)];
    check(
        "shepherd",
        &[],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,13,0,b,b,3 4
        13,19,0,a,a,2
    "#]],
    );
}

/// No rates are known, so each model gets a device. The device of b stays idle, although requests
/// of a wait.
#[test]
fn nexus_keeps_models_on_their_devices() {
    let models = [(1.0, 5.0, 22), (1.0, 5.0, 22)];
    let requests = [(0.0, 0), (1.0, 0), (2.0, 0), (3.0, 0)];
    check(
        "nexus",
        &[],
        2,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,14,0,a,a,2 3 4
    "#]],
    );
}

/// One device for both: they take turns, although two requests of a wait when it is b's turn.
#[test]
fn nexus_runs_models_in_turn() {
    let models = [(1.0, 5.0, 40), (1.0, 5.0, 40)];
    let requests = [(0.0, 0), (1.0, 0), (2.0, 1), (3.0, 0)];
    check(
        "nexus",
        &[],
        1,
        &models,
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,12,0,b,b,3
        12,19,0,a,a,2 4
    "#]],
    );
}

/// One model on two devices: requests go to them in turn as they arrive, whether they are busy or
/// not. The plan is for batches of 6, since 2ℓ(6) = 22.
#[test]
fn nexus_routes_requests_as_they_arrive() {
    let requests: Vec<_> = (0..9).map(|at| (f64::from(at) * 0.5, 0)).collect();
    check(
        "nexus",
        &[],
        2,
        &[(1.0, 5.0, 22)],
        &requests,
        &expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        0.5,6.5,1,a,a,2
        6,15,0,a,a,3 5 7 9
        6.5,14.5,1,a,a,4 6 8
    "#]],
    );
}

/// Options for batches of at most the planned size.
fn window() -> Options {
    Options::from([("gather".to_owned(), OptionValue::Text("window".to_owned()))])
}

/// Batches of 6 are planned, since 2ℓ(6) = 22. Eight that arrive while one runs are one batch,
/// since ℓ(8) = 13 is in time; with `window` six run first, after which only one more can.
#[test]
fn nexus_may_exceed_its_planned_batch() {
    let requests: Vec<_> = [(0.0, 1), (1.0, 8)].into_iter().flat_map(|(at, n)| vec![(at, 0); n]).collect();
    let tasks = |options: Options| tasks_of("nexus", &options, 1, &[(1.0, 5.0, 22)], &requests);
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,19,0,a,a,2 3 4 5 6 7 8 9
    "#]]
    .assert_eq(&tasks(Options::new()));
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,a,a,1
        6,17,0,a,a,2 3 4 5 6 7
        17,23,0,a,a,8
    "#]]
    .assert_eq(&tasks(window()));
}

/// Six requests run from 0 to 11 and six from 11 to 22. Then one that is due at 32 waits, for which
/// only ℓ(5) = 10 is in time, and seven that are due at 33. Without the first, the batch has its
/// planned size: ℓ(6) = 11 ends at 33.
#[test]
fn nexus_drops_a_head_to_keep_its_planned_batch() {
    let requests: Vec<_> =
        [(0.0, 6), (1.0, 6), (10.0, 1), (11.0, 7)].into_iter().flat_map(|(at, n)| vec![(at, 0); n]).collect();
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,11,0,a,a,1 2 3 4 5 6
        11,22,0,a,a,7 8 9 10 11 12
        22,33,0,a,a,14 15 16 17 18 19
    "#]]
    .assert_eq(&tasks_of("nexus", &window(), 1, &[(1.0, 5.0, 22)], &requests));
}
