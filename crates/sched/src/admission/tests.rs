//! Admission control in front of a real policy, on one device that is slower than its profile.

use crate::{
    Action, Control, Limits, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone, build_served,
};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Extent, Model, Profile};

const MODELS: [(&str, i64, i64); 3] = [("long", 200_000, 0), ("light", 100, 10), ("medium", 20_000, 20_000)];
const LIMITS: Limits = Limits { requests: 64, models: 3, devices: 1, lanes: 1, depth: 1, batch: 8, nodes: 0 };

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

/// Models with an SLO of 400 ms, by microseconds for one row and for each further one.
fn scheduler() -> Box<dyn Scheduler> {
    let model = |&(name, first, more): &(&str, i64, i64)| {
        let table: Vec<_> = (0..8).map(|at| Nanos((first + more * at) * 1000)).collect();
        Model::whole(name, Profile::from_table(&table).unwrap(), Nanos::from_millis(400))
    };
    let setup = Setup { models: MODELS.iter().map(model).collect(), devices: 1, limits: LIMITS };
    build_served("lazy", &setup, &Options::default()).unwrap()
}

/// Returns whether a request of one row that arrives at `now` is admitted.
fn is_admitted(scheduler: &mut dyn Scheduler, now: i64, slot: u32, model: u16, within: i64) -> bool {
    let (arrived, deadline, slot) = (ms(now), ms(now + within), RequestSlot(slot));
    let class = RequestClass::default();
    scheduler.on_request(
        arrived,
        &Request { slot, model: ModelId(model), arrived, deadline, rows: 1, extent: Extent::ONE, class },
    );
    let mut out = Outbox::new(&LIMITS);
    scheduler.settle(arrived, &mut out);
    !out.actions().iter().any(|action| matches!(action, Action::Reject { request, .. } if *request == slot))
}

#[test]
fn a_starved_request_does_not_shut_out_those_of_its_model_that_can_be_in_time() {
    let mut scheduler = scheduler();
    assert!(is_admitted(&mut *scheduler, 0, 0, 0, 400), "it runs, for longer than it should");
    assert!(is_admitted(&mut *scheduler, 1, 1, 1, 299), "as things stand, it will be in time");
    // Its margin is used up; a further row would delay it by 10 us.
    assert!(is_admitted(&mut *scheduler, 260, 2, 1, 400));
    assert!(is_admitted(&mut *scheduler, 261, 3, 1, 400));
}

#[test]
fn a_batch_does_not_grow_until_its_oldest_request_is_late_unless_it_is() {
    let mut scheduler = scheduler();
    assert!(is_admitted(&mut *scheduler, 0, 0, 0, 400));
    assert!(is_admitted(&mut *scheduler, 1, 1, 2, 299));
    // 20 ms more for each row: with this one, it would be late.
    assert!(!is_admitted(&mut *scheduler, 265, 2, 2, 400));
    assert!(is_admitted(&mut *scheduler, 301, 3, 2, 400), "now it is late");
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

const UNEVEN: Limits = Limits { requests: 256, models: 1, devices: 2, lanes: 1, depth: 1, batch: 1, nodes: 0 };

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
fn a_device_that_is_slower_counts_once_whether_announced_or_learnt_before() {
    let slo = Nanos::from_millis(200);
    let late = |seconds: &[Vec<Nanos>]| seconds.iter().flatten().filter(|latency| **latency > slo).count();
    let [at_once, later, never] = [2, 4, 10].map(|reported_after| Uneven::new().run(reported_after));
    // Requests admitted before are unlucky; later ones are not admitted to be late.
    assert!(late(&at_once[..3]) * 2 < late(&never[..3]), "{} of {}", late(&at_once[..3]), late(&never[..3]));
    assert!(late(&at_once[3..]) <= 25 && late(&later[5..]) <= 25, "a margin is tried out");
    // If the devices' capacity were underestimated, the queue would be shorter. A margin for
    // earlier errors stays.
    for (answered, least) in at_once[3..].iter().map(|of| (of, 190)).chain(later[5..].iter().map(|of| (of, 160))) {
        let longest = answered.iter().max().expect("something was answered");
        assert!(answered.len() >= 124 && *longest > Nanos::from_millis(least), "{} in {longest:?}", answered.len());
    }
}

/// Returns how many of 32 requests of 60 ms that arrive within 320 ms are admitted, half a second
/// after the last of `pings` requests of a tiny model.
fn admitted_beside(policy: &str, (slo, tiny_slo): (i64, i64), drop: Option<DropRule>, pings: i64) -> usize {
    let model = |name: &str, micros: i64, slo: i64| {
        let table: Vec<_> = (1..=8).map(|rows| Nanos(micros * 1000 * rows)).collect();
        Model { drop, ..Model::whole(name, Profile::from_table(&table).unwrap(), Nanos::from_millis(slo)) }
    };
    let setup =
        Setup { models: vec![model("encoder", 60_000, slo), model("tiny", 13, tiny_slo)], devices: 1, limits: LIMITS };
    let mut scheduler = build_served(policy, &setup, &Options::default()).unwrap();
    for ping in 0..pings {
        assert!(is_admitted(&mut *scheduler, 100 * ping, 63, 1, tiny_slo));
        scheduler.on_task_done(
            ms(100 * ping + 1),
            &TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[], skips: &[] },
        );
        scheduler.settle(ms(100 * ping + 1), &mut Outbox::new(&LIMITS));
    }
    let at = |slot: u32| 100 * pings + 400 + 10 * i64::from(slot);
    (0..32).filter(|&slot| is_admitted(&mut *scheduler, at(slot), slot, 0, slo)).count()
}

#[test]
fn a_burst_is_refused_only_if_another_model_in_use_would_be_late_for_it() {
    let never = Some(DropRule::Never);
    assert_eq!(admitted_beside("dva", (180, 10), never, 1), 32, "no SLO, one request of the neighbour");
    assert_eq!(admitted_beside("dva", (180, 10), never, 20), 32, "no SLO, a neighbour in use");
    assert_eq!(admitted_beside("dva", (5_000, 1_000), None, 1), 32, "one request is no use");
    assert_eq!(admitted_beside("dva", (5_000, 10), None, 20), 32, "a single request of 60 ms is too long for it");
    let kept = admitted_beside("dva", (5_000, 1_000), None, 20);
    assert!((8..20).contains(&kept), "the neighbour's requests stay in time: {kept}");
}
