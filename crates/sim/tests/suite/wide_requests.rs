//! Requests of several rows: a batch that the next request does not fit into cannot grow, so it does not wait.

use expect_test::expect;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_sched::{Limits, Options, Setup, build};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Trace, World};

#[test]
fn a_batch_that_cannot_grow_starts_at_once() {
    let model = Model::whole("m", Profile::linear(1.0, 5.0, 8).unwrap(), Nanos::from_millis(1_000));
    let limits = Limits { requests: 8, models: 1, devices: 1, lanes: 1, depth: 1, batch: 8, nodes: 0 };
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
