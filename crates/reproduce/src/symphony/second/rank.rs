//! Symphony's scheduler by the rules of its authors' public code, written anew from facts about it.
//!
//! 1. The waiting requests of a model are in two sets by deadline. A head that keeps the newest
//!    requests from running as one batch moves from the suffix to the prefix.
//! 2. The target size comes from the rate: a request waits for a batch, and for one of the devices
//!    that the rate needs. A prefix whose head cannot be in a batch of the target size loses it.
//! 3. The batch takes the prefix, then the suffix, as far as the first deadline allows.
//! 4. The candidate is schedulable from its exec until its first deadline allows it no more. It
//!    takes the device that has been free for longest; a device takes the most urgent candidate.
//! 5. Each arrival and each grant makes a new candidate, which is not schedulable until its exec.
//!
//! Messages take no time here, profiles have no deviation, and devices do not change.

use super::rate::SampledRate;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::Profile;
use ripieno_sched::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use std::collections::{BTreeMap, BTreeSet};

/// The time at which a candidate becomes schedulable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankStart {
    /// The last moment that keeps the batch's size: deferred.
    Frontrun,
    /// The moment of its arrival: eager.
    Immediately,
}

/// The options of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankOptions {
    pub(super) start: RankStart,
    /// False: a head is dropped only if it cannot run even alone.
    pub(super) has_target: bool,
    /// Time by which batches start before their latest start.
    pub(super) jitter: Nanos,
}

/// Longer than any deadline: the latency of a batch beyond the largest.
const NEVER_DONE: Nanos = Nanos::from_millis(3_600_000);

/// Requests by deadline, and by arrival among equals.
type RequestsByDeadline = BTreeMap<(Time, u64), RequestSlot>;

#[derive(Clone, Copy, Debug)]
struct RankCandidate {
    exec: Time,
    invalid_after: Time,
    /// True from exec on, if no device was free.
    schedulable: bool,
}

struct RankModel {
    profile: Profile,
    max_batch: usize,
    slo: Nanos,
    suffix: RequestsByDeadline,
    prefix: RequestsByDeadline,
    rate: SampledRate,
    candidate: Option<RankCandidate>,
    is_changed: bool,
}

/// The scheduler.
pub(super) struct RankScheduler {
    options: RankOptions,
    models: Vec<RankModel>,
    /// The free devices, by the time at which they became free.
    free: BTreeSet<(Time, u16)>,
    /// Members of the task of each device.
    members: Vec<Vec<RequestSlot>>,
    arrivals: u64,
    /// Ends of requests for the next settle.
    ended: Vec<Action>,
}

impl RankModel {
    fn latency(&self, batch: usize) -> Nanos {
        if batch > self.max_batch { NEVER_DONE } else { self.profile.latency(batch) }
    }

    /// Returns the target size by the rate.
    fn target(&self) -> usize {
        let (slo, ms) = (self.slo.as_millis_f64(), |batch: usize| self.profile.latency(batch).as_millis_f64());
        let largest =
            |fits: &dyn Fn(usize) -> bool| (1..=self.max_batch).take_while(|&batch| fits(batch)).count().max(1);
        let Some(per_ms) = self.rate.per_ms().filter(|&rate| rate > 0.0) else {
            return largest(&|batch| ms(batch) <= slo / 2.0);
        };
        let devices = |batch: usize| per_ms * ms(batch) / batch as f64;
        let staggered = largest(&|batch| ms(batch) * (1.0 + 1.0 / devices(batch).max(1.0)) <= slo);
        if staggered < self.max_batch && devices(staggered + 1) <= 1.0 {
            return largest(&|batch| ms(batch) + batch as f64 / per_ms <= slo);
        }
        staggered
    }

    fn first_deadline(&self) -> Option<Time> {
        let first = |waiting: &RequestsByDeadline| waiting.first_key_value().map(|(key, _)| key.0);
        first(&self.prefix).into_iter().chain(first(&self.suffix)).min()
    }

    /// Returns the size of the batch that can start now; drops heads that it passes over.
    fn gather(&mut self, now: Time, target: usize, dropped: &mut Vec<Action>) -> usize {
        while let Some((&key, &slot)) = self.suffix.first_key_value() {
            if key.0 >= now + self.latency(self.suffix.len()) {
                break;
            }
            self.suffix.remove(&key);
            self.prefix.insert(key, slot);
        }
        let mut size = target.min(self.suffix.len());
        while let Some((&key, &slot)) = self.prefix.first_key_value() {
            if key.0 >= now + self.latency(size.max(1)) {
                break;
            }
            self.prefix.remove(&key);
            dropped.push(Action::Reject { request: slot, why: Why::Hopeless });
        }
        let waiting = self.prefix.len() + self.suffix.len();
        let first = self.first_deadline().unwrap_or(Time::NEVER);
        while size < waiting && first >= now + self.latency(size + 1) {
            size += 1;
        }
        size
    }

    fn update(&mut self, now: Time, options: RankOptions, dropped: &mut Vec<Action>) {
        self.is_changed = false;
        let target = if options.has_target { self.target() } else { 1 };
        let size = self.gather(now, target, dropped);
        let Some(first) = self.first_deadline().filter(|_| size > 0) else {
            self.candidate = None;
            return;
        };
        let chosen = match options.start {
            RankStart::Frontrun => first - options.jitter - self.latency(size + 1),
            RankStart::Immediately => now,
        };
        let (latest, invalid_after) = (first - options.jitter - self.latency(size), first - self.latency(size));
        let exec = now.max(chosen.min(latest));
        self.candidate = Some(RankCandidate { exec, invalid_after, schedulable: false });
    }

    /// Takes the members of a batch.
    fn take(&mut self, size: usize, members: &mut Vec<RequestSlot>) {
        for _ in 0..size {
            let next = self.prefix.pop_first().or_else(|| self.suffix.pop_first());
            members.extend(next.map(|(_, slot)| slot));
        }
    }
}

impl RankScheduler {
    pub(super) fn new(setup: &Setup, options: RankOptions) -> RankScheduler {
        let model = |model: &ripieno_model::Model| RankModel {
            profile: model.profile().clone(),
            max_batch: model.max_batch,
            slo: model.slo,
            suffix: RequestsByDeadline::new(),
            prefix: RequestsByDeadline::new(),
            rate: SampledRate::default(),
            candidate: None,
            is_changed: false,
        };
        RankScheduler {
            options,
            models: setup.models.iter().map(model).collect(),
            free: (0..setup.devices as u16).map(|device| (Time::ORIGIN, device)).collect(),
            members: vec![Vec::new(); setup.devices],
            arrivals: 0,
            ended: Vec::new(),
        }
    }

    /// Returns the model whose timer has fired first, if it is not schedulable yet.
    fn due(&self, now: Time) -> Option<usize> {
        let exec = |(id, model): (usize, &RankModel)| {
            let candidate = model.candidate.filter(|candidate| !candidate.schedulable && candidate.exec <= now)?;
            Some((candidate.exec, id))
        };
        self.models.iter().enumerate().filter_map(exec).min().map(|(_, id)| id)
    }

    /// Returns the schedulable model with the earliest latest start.
    fn most_urgent(&self) -> Option<usize> {
        let rank = |(id, model): (usize, &RankModel)| {
            let candidate = model.candidate.filter(|candidate| candidate.schedulable)?;
            Some((candidate.invalid_after, id))
        };
        self.models.iter().enumerate().filter_map(rank).min().map(|(_, id)| id)
    }

    /// Forms a model's batch for the device that has been free for longest. The batch may be larger
    /// than its candidate was.
    fn grant(&mut self, now: Time, id: usize, out: &mut Outbox) {
        let Some((since, device)) = self.free.pop_first() else { return };
        let model = &mut self.models[id];
        let target = if self.options.has_target { model.target() } else { 1 };
        let size = model.gather(now, target, &mut self.ended);
        let members = &mut self.members[usize::from(device)];
        members.clear();
        model.take(size, members);
        model.update(now, self.options, &mut self.ended);
        if size == 0 {
            self.free.insert((since, device));
            return;
        }
        out.push(Action::Start {
            task: TaskId(u32::from(device)),
            model: ModelId(id as u16),
            block: BlockId(0),
            device: DeviceId(device),
            lane: LaneId(0),
            length: 1,
            not_before: now,
        });
    }
}

impl Scheduler for RankScheduler {
    fn on_request(&mut self, now: Time, request: &Request) {
        let model = &mut self.models[request.model.index()];
        model.rate.record(now);
        model.suffix.insert((request.deadline, self.arrivals), request.slot);
        model.is_changed = true;
        self.arrivals += 1;
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        let finish = |&request: &RequestSlot| match done.outcome {
            Outcome::Ok => Action::Finish { request },
            _ => Action::Reject { request, why: Why::Failed },
        };
        self.ended.extend(self.members[done.task.index()].iter().map(finish));
        self.free.insert((now, done.task.index() as u16));
    }

    /// The experiments change nothing while they run.
    fn on_control(&mut self, _now: Time, _control: Control) {}

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        for model in &mut self.models {
            let is_over = model.candidate.is_some_and(|candidate| candidate.invalid_after < now);
            if model.is_changed || is_over {
                model.update(now, self.options, &mut self.ended);
            }
        }
        loop {
            let is_free = !self.free.is_empty();
            match (self.due(now), self.most_urgent()) {
                (Some(id), _) if is_free => self.grant(now, id, out),
                (Some(id), _) => {
                    self.models[id].candidate.iter_mut().for_each(|candidate| candidate.schedulable = true);
                }
                (None, Some(id)) if is_free => self.grant(now, id, out),
                _ => break,
            }
        }
        self.ended.drain(..).for_each(|action| out.push(action));
    }

    fn next_wakeup(&self) -> Time {
        let wakeup = |candidate: RankCandidate| match candidate.schedulable {
            true => Time(candidate.invalid_after.0 + 1),
            false => candidate.exec,
        };
        self.models.iter().filter_map(|model| model.candidate).map(wakeup).min().unwrap_or(Time::NEVER)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.members[task.index()]
    }
}
