use super::*;
use ripieno_base::{BlockId, Nanos};
use ripieno_model::Extent;
use ripieno_model::{Block, Profile};
use ripieno_sched::{Limits, RequestClass};
use std::fmt::Write;

const LIMITS: Limits = Limits { requests: 4, batch: 4, ..Limits::ONE };

/// Eight nodes of 1 ms.
fn lazy(slo_ms: i64) -> LazyBatching {
    reading(slo_ms, Waited::UntilIssue)
}

fn reading(slo_ms: i64, waited: Waited) -> LazyBatching {
    let profile = Profile::from_table(&[Nanos::from_millis(1); 4]).unwrap();
    let blocks = ["A", "B", "C", "D", "E", "F", "G", "H"].map(|name| Block::new(name, profile.clone()));
    let model = Model { walk: Walk::Chain, blocks: blocks.into(), ..Model::whole("m", profile, ms(slo_ms) - ms(0)) };
    let setup = Setup { models: vec![model], devices: 1, limits: LIMITS };
    let options = BatchOptions { drop: DropRule::Never, max_batch: PerModel::all(None) };
    let rules = LazyRules { options, dec_timesteps: PerModel::all(None), gated: false };
    LazyBatching::new(&setup, Estimator::Equation(waited), rules)
}

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

fn arrive(lazy: &mut LazyBatching, slot: u32, arrived: Time, slo_ms: i64) {
    let deadline = arrived + Nanos::from_millis(slo_ms);
    let request = Request {
        slot: RequestSlot(slot),
        model: ModelId(0),
        arrived,
        deadline,
        rows: 1,
        extent: Extent::ONE,
        class: RequestClass::default(),
    };
    lazy.on_request(arrived, &request);
}

/// Ends the running node, if there is one, and settles.
fn border(lazy: &mut LazyBatching, now: Time) {
    if lazy.devices[DeviceId(0)].runs(&lazy.cohorts) {
        lazy.on_task_done(now, &TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[], skips: &[] });
    }
    lazy.settle(now, &mut Outbox::new(&LIMITS));
}

/// Returns the stack, bottom first, as [requests:node].
fn stack(lazy: &LazyBatching) -> String {
    let mut text = String::new();
    for &id in &lazy.devices[DeviceId(0)].stack {
        let names: Vec<String> = lazy.cohorts.members(id).map(|slot| slot.0.to_string()).collect();
        write!(text, "[{}:{}]", names.join("-"), char::from(b'A' + lazy.cohorts.get(id).block.0 as u8)).unwrap();
    }
    text
}

#[test]
fn the_batch_table_of_figure_10_instant_by_instant() {
    let mut lazy = lazy(1000);
    arrive(&mut lazy, 1, ms(2), 1000);
    let mut seen = Vec::new();
    for now in 2..=13 {
        border(&mut lazy, ms(now));
        seen.push(stack(&lazy));
        match now {
            3 => arrive(&mut lazy, 2, Time(3_500_000), 1000),
            4 => arrive(&mut lazy, 3, Time(4_500_000), 1000),
            _ => {}
        }
    }
    let expected = [
        "[1:A]",
        "[1:B]",
        "[1:C][2:A]",
        "[1:C][2:B][3:A]",
        "[1:C][2-3:B]",
        "[1-2-3:C]",
        "[1-2-3:D]",
        "[1-2-3:E]",
        "[1-2-3:F]",
        "[1-2-3:G]",
        "[1-2-3:H]",
        "",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn slack_is_20_alone_12_with_one_and_4_with_two_newcomers() {
    // Section IV-C: SLO 30, Req1 waits 2, each takes 8. One more is admitted while the slack is at
    // least its 8.
    let mut lazy = lazy(30);
    arrive(&mut lazy, 1, ms(0), 30);
    border(&mut lazy, ms(2));
    let slack = |lazy: &LazyBatching, others: i64| {
        let request = lazy.queues.fifo.request(RequestSlot(1));
        let single = slack::single(lazy.queues.models.get(ModelId(0)), request);
        (request.deadline - lazy.issues[1].at) - single * (1 + others)
    };
    assert_eq!([0, 1, 2].map(|others| slack(&lazy, others)), [20, 12, 4].map(Nanos::from_millis));
    arrive(&mut lazy, 2, ms(2), 30);
    arrive(&mut lazy, 3, ms(2), 30);
    // A third newcomer would leave -4.
    arrive(&mut lazy, 0, ms(2), 30);
    border(&mut lazy, ms(3));
    assert_eq!(stack(&lazy), "[1:B][2-3:A]");
}

/// On a device that needs twice the profiled time a request takes 16 of the 30 ms: no other fits
/// before it.
#[test]
fn a_slowed_device_leaves_less_slack() {
    let mut lazy = lazy(30);
    lazy.on_control(ms(0), Control::DeviceSlowed { device: DeviceId(0), percent: 200 });
    arrive(&mut lazy, 1, ms(0), 30);
    border(&mut lazy, ms(0));
    arrive(&mut lazy, 2, ms(2), 30);
    border(&mut lazy, ms(2));
    assert_eq!(stack(&lazy), "[1:B]");
    assert_eq!(lazy.prediction(RequestSlot(1)).map(|known| known.remaining), Some(Nanos::from_millis(16)));
}

/// Each takes 8 of 20 ms. The first waited for none of them, so by the letter it is preempted at 5
/// as at 1. Since it arrived 5 have passed, and 15 are less than 16.
#[test]
fn a_request_that_has_run_for_long_keeps_its_slack_by_the_letter_only() {
    for (waited, expected) in [(Waited::UntilIssue, "[1:F][2:A]"), (Waited::SinceArrival, "[1:F]")] {
        let mut lazy = reading(20, waited);
        arrive(&mut lazy, 1, ms(0), 20);
        (0..5).for_each(|now| border(&mut lazy, ms(now)));
        arrive(&mut lazy, 2, ms(5), 20);
        border(&mut lazy, ms(5));
        assert_eq!(stack(&lazy), expected, "{waited:?}");
    }
}

#[test]
fn a_late_request_is_not_preempted() {
    let mut lazy = lazy(30);
    arrive(&mut lazy, 1, ms(0), 1);
    border(&mut lazy, ms(0));
    arrive(&mut lazy, 2, ms(0), 1_000);
    border(&mut lazy, ms(1));
    assert_eq!(stack(&lazy), "[1:B]");
}

#[test]
fn requests_of_a_lost_device_return_to_their_place_in_the_queue() {
    let mut lazy = lazy(1000);
    arrive(&mut lazy, 1, ms(0), 1000);
    border(&mut lazy, ms(0));
    arrive(&mut lazy, 2, ms(1), 1000);
    lazy.on_control(ms(1), Control::DeviceLeft(DeviceId(0)));
    lazy.on_task_done(ms(1), &TaskDone { task: TaskId(0), outcome: Outcome::DeviceLost, ended: &[], skips: &[] });
    lazy.on_control(ms(1), Control::DeviceJoined(DeviceId(0)));
    border(&mut lazy, ms(1));
    assert_eq!(stack(&lazy), "[1-2:A]");
}

#[test]
fn a_request_that_skips_nodes_rests_until_its_sub_batch_is_there() {
    let mut lazy = lazy(1000);
    (0..3).for_each(|slot| arrive(&mut lazy, slot, ms(0), 1000));
    lazy.settle(ms(0), &mut Outbox::new(&LIMITS));
    let skips = [BlockId(1), BlockId(3), BlockId(3)];
    lazy.on_task_done(
        ms(1),
        &TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[false, false, true], skips: &skips },
    );
    let mut ran = Vec::new();
    for now in 1..=3 {
        let mut out = Outbox::new(&LIMITS);
        lazy.settle(ms(now), &mut out);
        ran.push((stack(&lazy), lazy.members(TaskId(0)).iter().map(|slot| slot.0).collect::<Vec<_>>()));
        lazy.on_task_done(ms(now + 1), &TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[], skips: &[] });
    }
    let expected = [("[0-1:B]", vec![0]), ("[0-1:C]", vec![0]), ("[0-1:D]", vec![0, 1])];
    assert_eq!(ran, expected.map(|(stack, members)| (stack.to_owned(), members)));
}
