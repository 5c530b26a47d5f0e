//! The door in front of a real policy, on one device that is slower than its profile says.

use crate::{Action, Limits, Options, Outbox, Request, RequestClass, Scheduler, Setup, build_served};
use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{Extent, Model, Profile};

const MODELS: [(&str, i64, i64); 3] = [("long", 200_000, 0), ("light", 100, 10), ("medium", 20_000, 20_000)];
const LIMITS: Limits = Limits { requests: 64, models: 3, devices: 1, lanes: 1, depth: 1, batch: 8, nodes: 0 };

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

/// Models with a target of 400 ms, by microseconds for one row and for each further one.
fn door() -> Box<dyn Scheduler> {
    let model = |&(name, first, more): &(&str, i64, i64)| {
        let table: Vec<_> = (0..8).map(|at| Nanos((first + more * at) * 1000)).collect();
        Model::whole(name, Profile::from_table(&table).unwrap(), Nanos::from_millis(400))
    };
    let setup = Setup { models: MODELS.iter().map(model).collect(), devices: 1, limits: LIMITS };
    build_served("lazy", &setup, &Options::default()).unwrap()
}

/// Whether a request of one row that comes at `now` is let in.
fn is_let_in(door: &mut dyn Scheduler, now: i64, slot: u32, model: u16, within: i64) -> bool {
    let (arrived, deadline, slot) = (ms(now), ms(now + within), RequestSlot(slot));
    let class = RequestClass::default();
    door.on_request(
        arrived,
        &Request { slot, model: ModelId(model), arrived, deadline, rows: 1, extent: Extent::ONE, class },
    );
    let mut out = Outbox::new(&LIMITS);
    door.settle(arrived, &mut out);
    !out.actions().iter().any(|action| matches!(action, Action::Reject { request, .. } if *request == slot))
}

#[test]
fn a_starved_request_does_not_shut_out_those_of_its_model_that_can_be_in_time() {
    let mut door = door();
    assert!(is_let_in(&mut *door, 0, 0, 0, 400), "it runs, for longer than it should");
    assert!(is_let_in(&mut *door, 1, 1, 1, 299), "as things stand, it will be in time");
    // Its margin is used up; a further row would delay it by 10 us.
    assert!(is_let_in(&mut *door, 260, 2, 1, 400));
    assert!(is_let_in(&mut *door, 261, 3, 1, 400));
}

#[test]
fn a_batch_does_not_grow_until_its_oldest_request_is_late_unless_it_is() {
    let mut door = door();
    assert!(is_let_in(&mut *door, 0, 0, 0, 400));
    assert!(is_let_in(&mut *door, 1, 1, 2, 299));
    // 20 ms more for each row: with this one, it would be late.
    assert!(!is_let_in(&mut *door, 265, 2, 2, 400));
    assert!(is_let_in(&mut *door, 301, 3, 2, 400), "now it is late");
}
