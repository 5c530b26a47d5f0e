//! Admission control in front of real policies.

use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Extent, Model, Profile};
use ripieno_policies::{FAITHFUL, build, build_served};
use ripieno_sched::{
    Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone,
    Why,
};

const LIMITS: Limits = Limits { requests: 256, models: 2, devices: 2, batch: 8, ..Limits::ONE };

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

/// Two models with an SLO of 400 ms, of 10 ms a row, on two devices.
fn scheduler(policy: &str, drop: Option<DropRule>) -> Box<dyn Scheduler> {
    let profile = Profile::linear(10.0, 0.0, 8).unwrap();
    let model = |name| Model { drop, ..Model::whole(name, profile.clone(), Nanos::from_millis(400)) };
    let setup = Setup { models: ["a", "b"].map(model).into(), devices: 2, limits: LIMITS };
    build_served(policy, &setup, &Options::default()).unwrap()
}

/// Sends `count` requests of one row at the start; returns how many are refused, and why the last
/// one is.
fn refused(scheduler: &mut dyn Scheduler, first: u32, count: u32, (model, client): (u16, u16)) -> (usize, Option<Why>) {
    let class = RequestClass { client, ..RequestClass::default() };
    let deadline = ms(400);
    for slot in (first..first + count).map(RequestSlot) {
        let request =
            Request { slot, model: ModelId(model), arrived: ms(0), deadline, rows: 1, extent: Extent::ONE, class };
        scheduler.on_request(ms(0), &request);
    }
    let mut out = Outbox::new(&LIMITS);
    scheduler.settle(ms(0), &mut out);
    let reason = |action: &Action| match action {
        Action::Reject { why, .. } => Some(*why),
        _ => None,
    };
    let refused: Vec<_> = out.actions().iter().filter_map(reason).collect();
    (refused.len(), refused.last().copied())
}

#[test]
fn a_queue_holds_what_the_devices_do_within_the_slo() {
    assert_eq!(refused(&mut *scheduler("dva", None), 0, 100, (0, 0)), (20, Some(Why::Hopeless)));
    assert_eq!(refused(&mut *scheduler("dva", Some(DropRule::Never)), 0, 100, (0, 0)), (0, None));
}

#[test]
fn models_and_clients_have_equal_parts_of_the_queue() {
    let mut scheduler = scheduler("dva", None);
    assert_eq!(refused(&mut *scheduler, 0, 1, (1, 0)), (0, None));
    assert_eq!(refused(&mut *scheduler, 1, 50, (0, 0)), (10, Some(Why::Share)));
    assert_eq!(refused(&mut *scheduler, 51, 50, (0, 1)), (30, Some(Why::Share)));
    assert_eq!(refused(&mut *scheduler, 101, 50, (1, 0)), (11, Some(Why::Share)));
}

#[test]
fn a_policy_that_checks_deadlines_is_left_to_do_so_unless_clients_compete() {
    let mut scheduler = scheduler("deferred", None);
    assert_eq!(refused(&mut *scheduler, 0, 100, (0, 0)), (0, None));
    assert_eq!(refused(&mut *scheduler, 100, 50, (0, 1)), (10, Some(Why::Share)));
    assert_eq!(refused(&mut *scheduler, 150, 50, (1, 1)), (0, None));
}

/// Sends a request every other millisecond, two and a half times what the devices do; returns the
/// reasons of those refused.
fn refused_over_time(each: impl Fn(u32) -> (u16, u8)) -> Vec<Why> {
    let (mut scheduler, mut reasons) = (scheduler("deferred", None), Vec::new());
    for slot in 0..200 {
        let (now, (client, priority)) = (ms(2 * i64::from(slot)), each(slot));
        let class = RequestClass { client, priority, ..RequestClass::default() };
        let (slot, model, deadline) = (RequestSlot(slot), ModelId(0), now + Nanos::from_millis(400));
        let request = Request { slot, model, arrived: now, deadline, rows: 1, extent: Extent::ONE, class };
        scheduler.on_request(now, &request);
        let mut out = Outbox::new(&LIMITS);
        scheduler.settle(now, &mut out);
        reasons.extend(out.actions().iter().filter_map(|action| match action {
            Action::Reject { why, .. } => Some(*why),
            _ => None,
        }));
    }
    reasons
}

#[test]
fn a_sole_client_is_not_told_of_a_share() {
    let urgent = |slot: u32| u8::from(slot.is_multiple_of(2));
    let alone = refused_over_time(|slot| (1, urgent(slot)));
    assert!(alone.contains(&Why::Overload) && !alone.contains(&Why::Share), "{alone:?}");
    let beside = refused_over_time(|slot| (u16::from(slot.is_multiple_of(5)), urgent(slot / 5)));
    assert!(beside.contains(&Why::Share) && !beside.contains(&Why::Overload), "{beside:?}");
}

/// Two devices that serve one request of 10 ms at a time, one of which becomes four times as slow.
struct Uneven {
    scheduler: Box<dyn Scheduler>,
    free: Vec<RequestSlot>,
    /// Tasks in flight: their ends, ids, and members.
    running: Vec<(Time, TaskId, RequestSlot)>,
    arrived: Vec<Time>,
    /// Latencies of the requests that were answered in each second.
    answered: Vec<Vec<Nanos>>,
}

const UNEVEN: Limits = Limits { requests: 256, devices: 2, ..Limits::ONE };

impl Uneven {
    fn new() -> Uneven {
        let profile = Profile::from_table(&[Nanos::from_millis(10)]).unwrap();
        let models = vec![Model::whole("m", profile, Nanos::from_millis(200))];
        let setup = Setup { models, devices: 2, limits: UNEVEN };
        let scheduler = build_served("serial", &setup, &Options::default()).unwrap();
        let free = (0..UNEVEN.requests as u32).map(RequestSlot).collect();
        Uneven {
            scheduler,
            free,
            running: Vec::new(),
            arrived: vec![Time::ORIGIN; 256],
            answered: vec![Vec::new(); 10],
        }
    }

    /// Runs ten seconds of 250 requests/s, twice the capacity; from the third on one device is
    /// slow, which is reported after `reported_after` seconds.
    fn run(mut self, reported_after: i64) -> Vec<Vec<Nanos>> {
        for millis in 0..10_000 {
            let now = ms(millis);
            if millis == reported_after * 1_000 {
                self.scheduler.on_control(now, Control::DeviceSlowed { device: DeviceId(1), percent: 400 });
            }
            while let Some(at) = self.running.iter().position(|(end, ..)| *end <= now) {
                let (_, task, _) = self.running.swap_remove(at);
                self.scheduler.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] });
            }
            if millis % 4 == 0 {
                let (slot, class) =
                    (self.free.pop().expect("admission control keeps the queue short"), RequestClass::default());
                self.arrived[slot.index()] = now;
                let deadline = now + Nanos::from_millis(200);
                let (model, extent) = (ModelId(0), Extent::ONE);
                let request = Request { slot, model, arrived: now, deadline, rows: 1, extent, class };
                self.scheduler.on_request(now, &request);
            }
            self.settle(now);
        }
        self.answered
    }

    fn settle(&mut self, now: Time) {
        let mut out = Outbox::new(&UNEVEN);
        self.scheduler.settle(now, &mut out);
        for action in out.actions() {
            match *action {
                Action::Start { task, device, .. } => {
                    let slow = device == DeviceId(1) && now >= ms(2_000);
                    let end = now + Nanos::from_millis(if slow { 40 } else { 10 });
                    self.running.push((end, task, self.scheduler.members(task)[0]));
                }
                Action::Finish { request } => {
                    let second = (now - Time::ORIGIN).0 / 1_000_000_000;
                    self.answered[second as usize].push(now - self.arrived[request.index()]);
                    self.free.push(request);
                }
                Action::Reject { request, .. } => self.free.push(request),
                Action::Cancel { .. } => {}
            }
        }
    }
}

#[test]
fn a_queue_is_shorter_where_devices_are_slower_than_profiled() {
    let slo = Nanos::from_millis(200);
    for reported_after in [2, 4, 10] {
        let seconds = Uneven::new().run(reported_after);
        let late = |seconds: &[Vec<Nanos>]| seconds.iter().flatten().filter(|latency| **latency > slo).count();
        let settled = &seconds[5..];
        let all: usize = settled.iter().map(Vec::len).sum();
        assert!(all >= 5 * 120, "{all} answers in five seconds, of 125 a second");
        assert!(late(settled) * 20 < all, "{} of {all} late", late(settled));
    }
}

/// Gives a scheduler one request that is urgent and eight that are not, and settles.
fn enqueue(scheduler: &mut dyn Scheduler) -> Outbox {
    for slot in 0..9 {
        let deadline = ms(if slot == 0 { 13 } else { 60 });
        let (slot, model, class) = (RequestSlot(slot), ModelId(0), RequestClass::default());
        let request = Request { slot, model, arrived: ms(0), deadline, rows: 1, extent: Extent::ONE, class };
        scheduler.on_request(ms(0), &request);
    }
    let mut out = Outbox::new(&LIMITS);
    scheduler.settle(ms(0), &mut out);
    out
}

/// A model of 11 to 18 ms, and no device.
fn without_devices() -> Setup {
    let profile = Profile::linear(1.0, 10.0, 8).unwrap();
    Setup { models: vec![Model::whole("a", profile, Nanos::from_millis(60))], devices: 0, limits: LIMITS }
}

#[test]
fn heads_that_are_passed_over_leave_at_dispatch_or_at_each_update() {
    for (passed, gather, expected) in [("dispatch", "window", 0), ("update", "window", 1), ("update", "prefix", 0)] {
        let words = [("passed", passed), ("gather", gather)];
        let options = words.map(|(name, word)| (name.to_owned(), OptionValue::Text(word.to_owned()))).into();
        let out = enqueue(&mut *build("deferred", &without_devices(), &options).unwrap());
        let left = out.actions();
        assert_eq!(left.len(), expected, "{passed} {gather}: {left:?}");
        let first = |action: &Action| matches!(action, Action::Reject { request, why: Why::Hopeless } if *request == RequestSlot(0));
        assert!(left.iter().all(first), "{left:?}");
    }
}

#[test]
fn a_faithful_policy_has_no_margin_no_correction_and_no_refusal() {
    let faithful = Options::from([(FAITHFUL.to_owned(), OptionValue::Bool(true))]);
    let served = |options: &Options| build_served("deferred", &without_devices(), options).unwrap();
    assert!(served(&faithful).takes_real_deadlines() && !served(&Options::new()).takes_real_deadlines());
    let plain = build("deferred", &without_devices(), &Options::new()).unwrap();
    for (mut scheduler, corrected) in [(served(&faithful), false), (plain, true)] {
        let mut out = enqueue(&mut *scheduler);
        let planned = scheduler.next_wakeup();
        let profile = Profile::linear(1.5, 12.0, 8).unwrap();
        scheduler.on_control(ms(0), Control::ProfileReplaced { model: ModelId(0), block: BlockId(0), profile });
        scheduler.settle(ms(0), &mut out);
        assert_eq!(scheduler.next_wakeup() != planned, corrected, "{planned:?}");
    }
    let model = |name| Model::whole(name, Profile::linear(10.0, 0.0, 8).unwrap(), Nanos::from_millis(400));
    let setup = Setup { models: ["a", "b"].map(model).into(), devices: 2, limits: LIMITS };
    assert_eq!(refused(&mut *build_served("dva", &setup, &faithful).unwrap(), 0, 100, (0, 0)), (0, None));
    assert!(build_served("unified", &setup, &faithful).is_err());
    let number = Options::from([(FAITHFUL.to_owned(), OptionValue::Int(3))]);
    assert!(build_served("dva", &setup, &number).is_err());
}
