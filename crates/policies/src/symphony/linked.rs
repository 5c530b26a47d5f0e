//! Several shards and a matchmaker whose messages take time: the behaviour of halves on separate
//! threads or machines, in virtual time.
//!
//! Without delay the decisions equal [`Fused`](super::Fused)'s for any number of shards, which a
//! property test checks. With delay, simulations show the cost of sharding.

use super::grants::{Grant, ToMatchmaker};
use super::{DeviceChoice, Matchmaker, ModelShard, Rules};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_sched::{Control, Limits, Outbox, Request, Scheduler, Setup, TaskDone};
use std::collections::VecDeque;

/// Returns the shard that owns a model.
pub fn shard_of(model: ModelId, shards: usize) -> usize {
    model.index() % shards
}

/// Shards and their matchmaker, for a driver that carries their messages.
pub struct Halves {
    /// The shards; the id of a model modulo their number gives its shard.
    pub shards: Vec<ModelShard>,
    /// The matchmaker.
    pub matchmaker: Matchmaker,
}

impl Halves {
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: &Rules, shards: usize) -> Halves {
        let limits = &setup.limits;
        let mut halves = Halves {
            shards: (0..shards).map(|number| ModelShard::new(limits, number, rules.clone())).collect(),
            matchmaker: Matchmaker::new(limits, choice, shards),
        };
        for (id, model) in (0..).map(ModelId).zip(&setup.models) {
            let loaded = Control::ModelLoaded(id, Box::new(model.clone()));
            halves.shards[shard_of(id, shards)].on_control(Time::ORIGIN, loaded);
        }
        for device in (0..setup.devices as u16).map(DeviceId) {
            let joined = Control::DeviceJoined(device);
            halves.shards.iter_mut().for_each(|shard| shard.on_control(Time::ORIGIN, joined.clone()));
        }
        // Both halves know the initial models and devices.
        let changes = halves.shards.iter_mut().flat_map(ModelShard::take_changes);
        changes.for_each(|changes| halves.matchmaker.on_mail(Time::ORIGIN, changes));
        halves
    }
}

/// Shards, a matchmaker, and links between them.
pub(crate) struct Linked {
    /// The shards, by number.
    shards: Vec<ModelShard>,
    /// The matchmaker.
    matchmaker: Matchmaker,
    /// Time that a message takes in either direction.
    delay: Nanos,
    /// Limits of the whole scheduler.
    limits: Limits,
    /// Messages to the matchmaker with their times of arrival, in order.
    to_matchmaker: VecDeque<(Time, ToMatchmaker)>,
    /// Grants to shards with their times of arrival, in order.
    to_shards: VecDeque<(Time, Grant)>,
    /// The shard of each live request, by slot.
    shard_of: Vec<u16>,
}

impl Linked {
    /// Builds `shards` shards, to which models are assigned round robin.
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: &Rules, shards: usize, delay: Nanos) -> Linked {
        let limits = &setup.limits;
        // Offers are sent for each change and stay on the link for its delay; one settle writes a
        // bounded number.
        let burst = limits.models + 2 * limits.tasks();
        let Halves { shards, matchmaker } = Halves::new(setup, choice, rules, shards);
        Linked {
            shards,
            matchmaker,
            delay,
            limits: *limits,
            to_matchmaker: VecDeque::with_capacity(64 * burst),
            to_shards: VecDeque::with_capacity(limits.tasks()),
            shard_of: vec![0; limits.requests],
        }
    }

    fn shard_of_model(&self, model: ModelId) -> usize {
        shard_of(model, self.shards.len())
    }

    /// Delivers the messages that have arrived and settles, until no more arrive at this instant.
    fn turn(&mut self, now: Time, out: &mut Outbox) {
        for shard in &mut self.shards {
            shard.settle(now, out);
            // Releases and offers of one settle arrive together, as they do in one mailbox.
            self.to_matchmaker.extend(shard.take_mail().map(|mail| (now + self.delay, mail)));
        }
        while let Some((_, mail)) = self.to_matchmaker.pop_front_if(|(at, _)| *at <= now) {
            self.matchmaker.on_mail(now, mail);
        }
    }

    fn deliver_grants(&mut self, now: Time) -> bool {
        let mut delivered = false;
        while let Some((_, grant)) = self.to_shards.pop_front_if(|(at, _)| *at <= now) {
            let shard = self.shard_of_model(grant.model);
            self.shards[shard].on_grant(grant);
            delivered = true;
        }
        delivered
    }
}

impl Scheduler for Linked {
    fn on_request(&mut self, now: Time, request: &Request) {
        let shard = self.shard_of_model(request.model);
        self.shard_of[request.slot.index()] = shard as u16;
        self.shards[shard].on_request(now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.shards[done.task.index() / self.limits.tasks()].on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        let shard = match &control {
            Control::ModelLoaded(id, _) | Control::ModelUnloaded(id) | Control::GatherMeasured(id, _) => {
                self.shard_of_model(*id)
            }
            Control::ProfileReplaced { model, .. } => self.shard_of_model(*model),
            Control::Cancelled(request) => usize::from(self.shard_of[request.index()]),
            Control::DeviceJoined(_)
            | Control::DeviceLeft(_)
            | Control::DeviceSlowed { .. }
            | Control::NetworkDelayed(_) => {
                self.shards.iter_mut().for_each(|shard| shard.on_control(now, control.clone()));
                return;
            }
        };
        self.shards[shard].on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.deliver_grants(now);
        loop {
            self.turn(now, out);
            let Some(grant) = self.matchmaker.next_grant(now) else { return };
            self.to_shards.push_back((now + self.delay, grant));
            self.deliver_grants(now);
        }
    }

    fn next_wakeup(&self) -> Time {
        let shards = self.shards.iter().map(ModelShard::next_wakeup).min().unwrap_or(Time::NEVER);
        let mail = self.to_matchmaker.front().map_or(Time::NEVER, |(at, _)| *at);
        let grants = self.to_shards.front().map_or(Time::NEVER, |(at, _)| *at);
        shards.min(self.matchmaker.next_wakeup()).min(mail).min(grants)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.shards[task.index() / self.limits.tasks()].members(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symphony::{Gather, StartBy, StartRule, Ways};
    use ripieno_model::{DropRule, Extent, Model, Profile};
    use ripieno_sched::tables::models::{BatchOptions, PerModel};
    use ripieno_sched::{Action, NetworkDelay, Outcome, RequestClass};

    const LIMITS: Limits = Limits { requests: 64, models: 3, devices: 2, depth: 2, batch: 4, ..Limits::ONE };
    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    fn rules() -> Rules {
        // Batches are sent ahead, so that all kinds of messages are on the link.
        let network = NetworkDelay { control: MS(1), ..NetworkDelay::default() };
        let ways = Ways { network, ..Ways::default() };
        let options = BatchOptions { drop: DropRule::Never, max_batch: PerModel::all(None) };
        let start = PerModel::all(StartBy::Rule(StartRule::After(Nanos::ZERO)));
        Rules { start, options, gather: Gather::Fifo, drops_passed: false, single: false, ways }
    }

    fn setup() -> Setup {
        let model = |name: &str| Model::whole(name, Profile::linear(1.0, 3.0, 4).unwrap(), MS(60_000));
        Setup { models: ["a", "b", "c"].map(model).into(), devices: 2, limits: LIMITS }
    }

    /// Runs 200 requests for three models, one per millisecond. Returns the log of starts and ends,
    /// and the largest number of tasks on a device.
    fn run() -> (Vec<(Time, Action)>, usize) {
        let setup = setup();
        let mut linked = Linked::new(&setup, DeviceChoice::SmallestId, &rules(), 2, Nanos::from_micros(100));
        let (mut out, mut log, mut most) = (Outbox::new(&LIMITS), Vec::new(), 0);
        let mut running: Vec<Vec<(Time, TaskId)>> = vec![Vec::new(); LIMITS.devices];
        let (mut free, mut arrived) = ((0..64).rev().map(RequestSlot).collect::<Vec<_>>(), 0_u16);
        for step in 1..6_000_usize {
            let now = Time::ORIGIN + Nanos::from_micros(50 * step as i64);
            let mut due = linked.next_wakeup() <= now;
            if step.is_multiple_of(20) && arrived < 200 {
                let (slot, model) = (free.pop().expect("devices keep up"), ModelId(arrived % 3));
                let deadline = now + MS(60_000);
                let (extent, class) = (Extent::ONE, RequestClass::default());
                linked.on_request(now, &Request { slot, model, arrived: now, deadline, rows: 1, extent, class });
                (due, arrived) = (true, arrived + 1);
            }
            for tasks in &mut running {
                if tasks.first().is_some_and(|(end, _)| *end <= now) {
                    let (_, task) = tasks.remove(0);
                    linked.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] });
                    due = true;
                }
            }
            if !due {
                continue;
            }
            linked.settle(now, &mut out);
            for &action in out.actions() {
                match action {
                    Action::Start { task, device, .. } => {
                        let rows = linked.members(task).len() as i64;
                        let tasks = &mut running[device.index()];
                        let free = tasks.last().map_or(now, |(end, _)| *end).max(now + MS(1));
                        tasks.push((free + MS(3 + rows), task));
                        most = most.max(tasks.len());
                    }
                    Action::Finish { request } => free.push(request),
                    other => panic!("no request is rejected: {other:?}"),
                }
                log.push((now, action));
            }
            out.clear();
        }
        (log, most)
    }

    fn finished(log: &[(Time, Action)]) -> usize {
        log.iter().filter(|(_, action)| matches!(action, Action::Finish { .. })).count()
    }

    #[test]
    fn devices_hold_batches_that_are_sent_ahead() {
        let (log, most) = run();
        assert_eq!((finished(&log), most), (200, LIMITS.depth));
    }

    fn settled(halves: &mut Halves, shard: usize, now: Time) -> Vec<Action> {
        let mut out = Outbox::new(&LIMITS);
        halves.shards[shard].settle(now, &mut out);
        halves.shards[shard].take_mail().for_each(|mail| halves.matchmaker.on_mail(now, mail));
        out.actions().to_vec()
    }

    fn halves() -> Halves {
        let mut halves = Halves::new(&setup(), DeviceChoice::SmallestId, &rules(), 2);
        let (deadline, extent, class) = (Time::NEVER, Extent::ONE, RequestClass::default());
        let (slot, model, arrived) = (RequestSlot(0), ModelId(0), Time::ORIGIN);
        let request = Request { slot, model, arrived, deadline, rows: 1, extent, class };
        halves.shards[0].on_request(Time::ORIGIN, &request);
        halves
    }

    #[test]
    fn a_grant_that_crosses_with_a_leave_comes_back() {
        let (mut halves, now) = (halves(), Time(1));
        assert_eq!(settled(&mut halves, 0, now), []);
        let grant = halves.matchmaker.next_grant(now).expect("a device is free");
        let gone = grant.device();
        halves.shards[0].on_control(now, Control::DeviceLeft(gone));
        halves.shards[0].on_grant(grant);
        assert_eq!(settled(&mut halves, 0, now), [], "nothing begins on a device that has gone");
        let next = halves.matchmaker.next_grant(now).expect("the model asks anew");
        assert_ne!(next.device(), gone);
        halves.shards[0].on_grant(next);
        assert!(matches!(settled(&mut halves, 0, now)[..], [Action::Start { .. }]));
        assert!(halves.matchmaker.next_grant(now).is_none());
    }

    #[test]
    fn a_device_is_granted_while_all_shards_have_it_and_is_as_slow_as_the_slowest_report() {
        let (mut halves, now) = (halves(), Time(1));
        let send = |halves: &mut Halves, shard: usize, control: Control| {
            halves.shards[shard].on_control(now, control);
            settled(halves, shard, now);
        };
        let first = DeviceId(0);
        send(&mut halves, 1, Control::DeviceLeft(DeviceId(1)));
        send(&mut halves, 1, Control::DeviceLeft(first));
        settled(&mut halves, 0, now);
        assert!(halves.matchmaker.next_grant(now).is_none(), "one says of each that it left");
        send(&mut halves, 0, Control::DeviceSlowed { device: first, percent: 300 });
        send(&mut halves, 1, Control::DeviceJoined(first));
        send(&mut halves, 1, Control::DeviceSlowed { device: first, percent: 200 });
        let grant = halves.matchmaker.next_grant(now).expect("it is there again");
        assert_eq!((grant.device(), grant.percent), (first, 300));
    }
}
