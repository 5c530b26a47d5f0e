//! Requests of lost devices, under every policy.

use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_policies::{CATALOGUE, build};
use ripieno_sched::{Limits, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Fault, Trace, World};

fn at(us: i64) -> Time {
    Time::ORIGIN + Nanos::from_micros(us)
}

/// Runs two requests together on a device of two, with faults; returns the tasks as rows of CSV.
fn tasks(policy: &str, faults: &[(i64, Fault)]) -> Vec<String> {
    let profile = Profile::linear(1.0, 4.0, 4).unwrap();
    let model = Model { drop: Some(DropRule::Never), ..Model::whole("m", profile, Nanos::from_millis(60)) };
    let limits = Limits { requests: 4, devices: 2, batch: 4, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices: 2, limits };
    let mut scheduler = build(policy, &setup, &Options::new()).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    let mut world = World::new(scheduler.as_mut(), &setup);
    let arrivals = (0..2).map(|_| Arrival::new(at(0), ModelId(0), at(60_000)));
    let faults = faults.iter().map(|(us, fault)| (at(*us), fault.clone()));
    world.run(arrivals, faults, &mut [&mut checkers, &mut trace]);
    assert_eq!(world.live(), 0, "{policy}");
    checkers.finish();
    trace.tasks_csv().lines().skip(1).map(str::to_owned).collect()
}

/// Returns the start and device of the first task of request 1.
fn first(policy: &str) -> (i64, DeviceId) {
    let tasks = tasks(policy, &[]);
    let row: Vec<&str> =
        tasks.iter().map(|row| row.split(',').collect()).find(|row: &Vec<&str>| has(row, "1")).unwrap();
    ((row[0].parse::<f64>().unwrap() * 1e3) as i64, DeviceId(row[2].parse().unwrap()))
}

fn has(row: &[&str], id: &str) -> bool {
    row[5].split(' ').any(|member| member == id)
}

fn runs(tasks: &[String], id: &str) -> usize {
    tasks.iter().filter(|row| has(&row.split(',').collect::<Vec<_>>(), id)).count()
}

#[test]
fn a_request_of_a_lost_device_runs_again_elsewhere() {
    for policy in CATALOGUE {
        let (begun, device) = first(policy.name);
        let tasks = tasks(policy.name, &[(begun + 1_000, Fault::Lose(device))]);
        assert_eq!(runs(&tasks, "1"), 2, "{}: {tasks:?}", policy.name);
        assert!(tasks.last().unwrap().split(',').nth(2) != Some(&device.0.to_string()), "{}: {tasks:?}", policy.name);
    }
}

#[test]
fn a_withdrawn_request_does_not_run_again() {
    for policy in CATALOGUE {
        let (begun, device) = first(policy.name);
        let faults = [(begun + 500, Fault::Cancel(1)), (begun + 1_000, Fault::Lose(device))];
        let tasks = tasks(policy.name, &faults);
        assert_eq!((runs(&tasks, "1"), runs(&tasks, "2") > 0), (1, true), "{}: {tasks:?}", policy.name);
    }
}

#[test]
fn a_leaving_device_may_be_lost_with_its_tasks() {
    for policy in CATALOGUE {
        let (begun, device) = first(policy.name);
        let faults = [(begun + 500, Fault::Leave(device)), (begun + 1_000, Fault::Lose(device))];
        let tasks = tasks(policy.name, &faults);
        assert_eq!(runs(&tasks, "1"), 2, "{}: {tasks:?}", policy.name);
    }
}
