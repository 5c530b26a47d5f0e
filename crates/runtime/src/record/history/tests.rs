//! Causes of calls in histories made by hand; `tests/suite/why.rs` has causes in live runs.

use super::causes::{Cause, Explained, Explainer};
use super::{CallReason, History};
use crate::Ending;
use crate::RefusedWhy;
use crate::record::flight::{Aside, FlightEntry, RunWorld};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model, Profile};
use ripieno_sched::{Action, Control, Event, Outcome, Reason, Request, RequestClass, WaitGain};

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

/// A history that grows by whole steps, on one of its shards; times are in milliseconds.
struct Script(History, usize);

fn at(ms: f64) -> Time {
    Time::ORIGIN + Nanos::from_millis_f64(ms)
}

impl Script {
    /// Begins with models a and b on one device: ℓ(b) = 1 + 1·b ms up to four rows, SLO 20 ms.
    fn new() -> Script {
        Script::of(1, 0)
    }

    /// Begins so in one of several sub-clusters, each of which has one device.
    fn of(sub_clusters: usize, shard: usize) -> Script {
        let mut script = Script(History::new(vec![RunWorld::new(1); sub_clusters], sub_clusters), shard);
        for (id, name) in [(A, "a"), (B, "b")] {
            let model = Model::whole(name, Profile::linear(1.0, 1.0, 4).unwrap(), Nanos::from_millis(20));
            script.event(0.0, Event::Control(Control::ModelLoaded(id, Box::new(model))));
        }
        script
    }

    fn event(&mut self, ms: f64, event: Event) {
        self.0.add(self.1, at(ms), &FlightEntry::Event(event));
    }

    fn aside(&mut self, ms: f64, aside: Aside) {
        self.0.add(self.1, at(ms), &FlightEntry::Aside(aside));
    }

    /// A call of one row arrives.
    fn call(&mut self, ms: f64, slot: u32, model: ModelId, allowed_ms: f64) {
        let (lead, deadline) = (RequestSlot(slot), at(ms + allowed_ms));
        self.aside(ms, Aside::Call { lead, model, parts: 1, deadline, tag: 0 });
        let (class, extent) = (RequestClass::default(), Extent::ONE);
        let request = Request { slot: lead, model, arrived: at(ms), deadline, rows: 1, extent, class };
        self.event(ms, Event::Request(request));
    }

    /// A batch runs from one time to another.
    fn run(&mut self, task: u32, model: ModelId, slots: &[u32], from: f64, to: f64, outcome: Outcome) {
        self.decide(task, model, slots, from);
        self.end_run(task, from, to, outcome);
    }

    /// A batch is sent to the device.
    fn decide(&mut self, task: u32, model: ModelId, slots: &[u32], from: f64) {
        let (task, block, device, lane, not_before) = (TaskId(task), BlockId(0), DeviceId(0), LaneId(0), at(from));
        let actions = vec![Action::Start { task, model, block, device, lane, length: 1, not_before }];
        let members = vec![slots.iter().map(|slot| RequestSlot(*slot)).collect()];
        self.event(from, Event::Settle { actions, members, nodes: Vec::new() });
    }

    /// A batch that was sent has run from one time to another.
    fn end_run(&mut self, task: u32, from: f64, to: f64, outcome: Outcome) {
        let task = TaskId(task);
        self.aside(to, Aside::Ran { task, started: at(from), finished: at(to), rerun: false });
        self.event(to, Event::TaskDone { task, outcome, ended: Vec::new(), skips: Vec::new() });
    }

    fn end(&mut self, ms: f64, slot: u32, ending: Ending) {
        self.aside(ms, Aside::Ended { lead: RequestSlot(slot), ending });
    }

    /// Something that reaches the scheduler every millisecond, so that it is never silent.
    fn heartbeat(&mut self, from: u32, to: u32) {
        for ms in from..to {
            self.event(f64::from(ms), Event::Control(Control::Cancelled(RequestSlot(999))));
        }
    }

    fn explained(&self) -> Vec<Explained> {
        Explainer::new(&self.0).all()
    }

    fn causes(&self) -> Vec<Cause> {
        self.explained().into_iter().map(|each| each.cause).collect()
    }
}

#[test]
fn calls_in_time_and_cancelled_ones_need_no_cause() {
    let mut script = Script::new();
    script.call(1.0, 1, A, 20.0);
    script.call(1.0, 2, A, 20.0);
    script.run(1, A, &[1], 1.0, 3.0, Outcome::Ok);
    script.end(3.0, 1, Ending::Ok);
    script.end(4.0, 2, Ending::Cancelled);
    assert_eq!(script.causes(), []);
    let call = script.0.calls().next().unwrap();
    assert_eq!((call.tasks.len(), call.ended), (1, Some((at(3.0), Ending::Ok))));
    assert_eq!(script.0.task(call.tasks[0]).unwrap().profiled, Nanos::from_millis(2));
}

#[test]
fn the_first_batches_after_a_load_are_cold_if_later_ones_are_not() {
    let slow = |later_ms: f64| {
        let mut script = Script::new();
        let mut ms = 1.0;
        for number in 0..20 {
            let took = if number < 4 { 30.0 } else { later_ms };
            script.call(ms, number, A, 20.0);
            script.run(number, A, &[number], ms, ms + took, Outcome::Ok);
            script.end(ms + took, number, if took > 20.0 { Ending::Late } else { Ending::Ok });
            ms += took;
        }
        script.causes()
    };
    assert_eq!(slow(2.0), [Cause::Cold; 4]);
    assert_eq!(slow(30.0), [Cause::SlowDevice; 20]);
}

#[test]
fn other_work_idle_devices_and_a_silent_scheduler_are_distinguished() {
    // The device runs the other model as long as it should, and too long for this one.
    let mut script = Script::new();
    script.heartbeat(1, 2);
    script.call(2.0, 1, A, 8.0);
    for number in 0..3 {
        let from = 2.0 + 5.0 * f64::from(number);
        for slot in 0..4 {
            script.call(from, 10 + slot, B, 500.0);
        }
        script.heartbeat(from as u32, from as u32 + 5);
        script.run(20 + number, B, &[10, 11, 12, 13], from, from + 5.0, Outcome::Ok);
    }
    script.end(10.0, 1, Ending::Expired);
    assert_eq!(script.causes(), [Cause::Overload], "more arrived than the device can do");

    // Nothing ran although the scheduler was awake.
    let mut script = Script::new();
    script.call(2.0, 1, A, 20.0);
    script.heartbeat(3, 22);
    script.end(22.0, 1, Ending::Expired);
    assert_eq!(script.causes(), [Cause::BatchWait]);

    // A batch held the device until its inputs came, and the scheduler had nothing to decide.
    let mut script = Script::new();
    script.call(1.0, 2, B, 500.0);
    script.decide(7, B, &[2], 1.0);
    script.call(2.0, 1, A, 20.0);
    script.end(22.0, 1, Ending::Expired);
    script.end_run(7, 40.0, 42.0, Outcome::Ok);
    assert_eq!(script.causes(), [Cause::SlowInputs]);

    // Nothing ran, and the scheduler did nothing either.
    let mut script = Script::new();
    script.call(2.0, 1, A, 20.0);
    script.end(40.0, 1, Ending::Expired);
    assert_eq!(script.causes(), [Cause::Stalled]);

    // One long batch of the other model, within its profile.
    let mut script = Script::new();
    script.call(1.0, 5, B, 500.0);
    script.call(2.0, 1, A, 4.0);
    script.heartbeat(2, 8);
    script.run(9, B, &[5], 1.0, 3.0, Outcome::Ok);
    script.call(3.0, 6, B, 500.0);
    script.run(10, B, &[6], 3.0, 5.0, Outcome::Ok);
    script.run(11, A, &[1], 5.0, 7.0, Outcome::Ok);
    script.end(7.0, 1, Ending::Late);
    let explained = script.explained();
    assert_eq!(explained[0].cause, Cause::QueueBehind, "{explained:?}");
    assert!(explained[0].detail.contains("the devices ran b"), "{explained:?}");
}

#[test]
fn a_model_beyond_capacity_is_overload_whatever_its_share() {
    let mut script = Script::new();
    // Batches of four take 5 ms, so that the device does 800 rows a second.
    (0..1_500).for_each(|slot| script.call(f64::from(slot), slot, A, 20.0));
    script.call(1_499.5, 2_000, B, 20.0);
    script.end(1_500.0, 1_499, Ending::Share);
    script.end(1_500.0, 2_000, Ending::Share);
    let explained = script.explained();
    let [own, other] = &explained[..] else { panic!("{explained:?}") };
    assert_eq!((own.cause, other.cause), (Cause::Overload, Cause::Share));
    assert_eq!(own.detail, "offered 1001/s, the devices can do 800/s");
}

#[test]
fn without_a_device_that_is_the_cause() {
    let mut script = Script::new();
    script.event(0.5, Event::Control(Control::DeviceLeft(DeviceId(0))));
    script.call(1.0, 0, A, 20.0);
    script.end(1.5, 0, Ending::Outage);
    // A device that comes later changes nothing about it.
    script.event(2.0, Event::Control(Control::DeviceJoined(DeviceId(0))));
    assert_eq!(script.causes(), [Cause::NoDevice]);
}

#[test]
fn a_process_that_did_not_run_is_the_cause() {
    let mut script = Script::new();
    script.call(0.0, 0, A, 20.0);
    script.run(0, A, &[0], 90.0, 92.0, Outcome::Ok);
    script.end(92.0, 0, Ending::Late);
    script.aside(93.0, Aside::Stalled { from: at(2.0), to: at(90.0) });
    let explained = script.explained();
    assert_eq!(explained[0].cause, Cause::Stalled, "{explained:?}");
    assert!(explained[0].detail.contains("did not run for 88.0 ms of 92.0 ms"), "{explained:?}");
    assert_eq!(script.0.stalls().collect::<Vec<_>>(), [(at(2.0), at(90.0))]);
    script.0.forget_before(at(91.0));
    assert_eq!(script.0.stalls().count(), 0);
}

#[test]
fn a_call_does_not_wait_for_itself() {
    // Two calls of one model: the second waits for the first, which began before it came.
    let mut script = Script::new();
    for slot in [1, 3, 4] {
        script.call(1.0, slot, A, 60.0);
    }
    script.heartbeat(1, 2);
    script.run(1, A, &[1, 3, 4], 1.0, 5.0, Outcome::Ok);
    script.call(2.0, 2, A, 4.0);
    let (request, to) = (RequestSlot(2), RequestSlot(1));
    script.aside(2.0, Aside::Decided(Reason::Lost { request, to }));
    script.run(2, A, &[2], 5.0, 7.0, Outcome::Ok);
    script.end(5.0, 1, Ending::Ok);
    script.end(7.0, 2, Ending::Late);
    let explained = script.explained();
    assert_eq!(explained[0].cause, Cause::OwnQueue, "{explained:?}");
    assert_eq!(explained[0].detail, "the devices ran other requests of a for 3.0 ms of 5.0 ms");

    // It runs immediately, and too long beside others.
    let mut script = Script::new();
    script.call(1.0, 1, A, 4.0);
    for slot in 2..5 {
        script.call(1.0, slot, A, 60.0);
    }
    script.run(1, A, &[1, 2, 3, 4], 1.0, 6.0, Outcome::Ok);
    script.end(6.0, 1, Ending::Late);
    let explained = script.explained();
    assert_eq!(explained[0].cause, Cause::OwnBatch, "{explained:?}");
    assert_eq!(explained[0].detail, "its own batches ran for 5.0 ms of 5.0 ms");

    // It is refused although no batch is known.
    let mut script = Script::new();
    script.call(1.0, 1, A, 20.0);
    script.end(1.0, 1, Ending::Hopeless);
    let explained = script.explained();
    assert_eq!(explained[0].cause, Cause::Unknown, "{explained:?}");
}

#[test]
fn the_decisions_about_a_call_are_named() {
    // Another model's batch goes first, then the scheduler waits for further requests.
    let mut script = Script::new();
    script.call(1.0, 5, B, 500.0);
    script.call(2.0, 1, A, 20.0);
    let (request, to, until) = (RequestSlot(1), RequestSlot(5), at(20.0));
    script.aside(2.0, Aside::Decided(Reason::Lost { request, to }));
    script.run(9, B, &[5], 2.0, 4.0, Outcome::Ok);
    for ms in [4.0, 8.0] {
        script.aside(ms, Aside::Decided(Reason::Waited { request, gain: WaitGain::FullerBatch, until }));
    }
    script.heartbeat(5, 22);
    script.end(22.0, 1, Ending::Expired);
    // Too late by its forecast.
    script.call(23.0, 2, A, 20.0);
    script.aside(23.0, Aside::Decided(Reason::Refused { request: RequestSlot(2), end: at(55.0) }));
    script.end(23.1, 2, Ending::Hopeless);
    let explained = script.explained();
    assert!(
        explained[0].detail.ends_with("; waited for a fuller batch (2); a batch of b went first (1)"),
        "{explained:?}"
    );
    assert!(explained[1].detail.ends_with("; forecast: answered 12.0 ms after its deadline"), "{explained:?}");
    let reasons: Vec<_> = script.0.reasons().map(|reason| (reason.call, reason.why)).collect();
    let waited = (1, CallReason::Waited(WaitGain::FullerBatch));
    assert_eq!(reasons, [(1, CallReason::LostTo(1)), waited, waited, (2, CallReason::Refused(Nanos::from_millis(12)))]);
    script.0.forget_before(at(5.0));
    assert_eq!(script.0.reasons().count(), 2);
}

#[test]
fn what_a_call_shows_by_itself_comes_first() {
    let mut script = Script::new();
    script.call(1.0, 1, A, 1.0);
    script.end(2.0, 1, Ending::Expired);
    script.call(2.0, 2, A, 20.0);
    script.call(2.0, 3, A, 20.0);
    script.run(1, A, &[2, 3], 2.0, 4.0, Outcome::Failed);
    script.end(4.0, 2, Ending::Failed);
    script.end(4.0, 3, Ending::Failed);
    script.call(5.0, 4, A, 20.0);
    script.run(2, A, &[4], 5.0, 7.0, Outcome::Failed);
    script.end(7.0, 4, Ending::Failed);
    script.call(8.0, 5, A, 20.0);
    script.run(3, A, &[5], 8.0, 9.0, Outcome::DeviceLost);
    script.end(9.0, 5, Ending::Outage);
    script.call(9.0, 6, A, 20.0);
    script.end(9.0, 6, Ending::Share);
    script.aside(10.0, Aside::Refused { model: B, why: RefusedWhy::SlowClient });
    script.aside(10.0, Aside::Refused { model: B, why: RefusedWhy::QueueFull });
    let expected = [
        Cause::ShortDeadline,
        Cause::Neighbour,
        Cause::Neighbour,
        Cause::OwnFailure,
        Cause::Lost,
        Cause::Share,
        Cause::SlowClient,
        Cause::Overload,
    ];
    assert_eq!(script.causes(), expected);
}

#[test]
fn old_calls_are_forgotten_and_numbers_stay() {
    let mut script = Script::new();
    for number in 0..10 {
        let ms = f64::from(number) * 10.0;
        script.call(ms, number, A, 20.0);
        script.run(number, A, &[number], ms, ms + 2.0, Outcome::Ok);
        script.end(ms + 2.0, number, Ending::Ok);
    }
    script.0.forget_before(at(55.0));
    let numbers: Vec<u64> = script.0.calls().map(|call| call.number).collect();
    assert_eq!(numbers, [6, 7, 8, 9]);
    assert!(script.0.call(5).is_none() && script.0.task(5).is_none());
    assert_eq!(script.0.task(6).unwrap().calls, [6]);
}

/// The devices of other sub-clusters idle, and cannot run it.
#[test]
fn a_call_is_explained_by_what_ran_in_its_sub_cluster() {
    let mut script = Script::of(3, 1);
    script.call(1.0, 5, B, 500.0);
    script.call(2.0, 1, A, 4.0);
    script.run(9, B, &[5], 1.0, 3.0, Outcome::Ok);
    script.call(3.0, 6, B, 500.0);
    script.run(10, B, &[6], 3.0, 5.0, Outcome::Ok);
    script.run(11, A, &[1], 5.0, 7.0, Outcome::Ok);
    script.end(7.0, 1, Ending::Late);
    // Slots and tasks of another scheduler have the same numbers.
    script.1 = 2;
    let model = Model::whole("c", Profile::linear(1.0, 1.0, 4).unwrap(), Nanos::from_millis(20));
    script.event(2.0, Event::Control(Control::ModelLoaded(A, Box::new(model))));
    script.call(2.0, 1, A, 20.0);
    script.run(9, A, &[1], 3.0, 5.0, Outcome::Ok);
    script.end(5.0, 1, Ending::Ok);
    let explained = script.explained();
    assert_eq!(explained.len(), 1);
    assert_eq!(explained[0].cause, Cause::QueueBehind, "{explained:?}");
    assert!(explained[0].detail.contains("ran b"), "{explained:?}");
    assert_eq!(script.0.devices().len(), 3);
    assert_eq!(script.0.calls().map(|call| call.sub_cluster).collect::<Vec<_>>(), [1, 1, 1, 2]);
}
