//! The queue of one model and the batch that can be gathered from it: GETBATCH and UPDATECANDIDATE
//! of Algorithm 1 of "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling"
//! (section 3.2).
//!
//! Waiting requests are in deadline order (arrival order under [`Gather::Fifo`]), ties in order of
//! arrival at the server. Insertion searches from the tail: O(1) when all requests have the same
//! SLO, which is the normal case.
//!
//! The target of the window rule is the largest b with ℓ(b) + b/r ≤ SLO, where r is the measured
//! rate: the time to gather b rows and the time to run them must fit. With N = r·ℓ(b)/b devices
//! this is the staggered bound (1 + 1/N)·ℓ(b) ≤ SLO of section 3.3. With less than one device of
//! load it is the rule for a device that is not full.

use super::grants::Window;
use super::{Gather, Rule, StartRule};
use ripieno_base::{Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_sched::estimate::cost::largest;
use ripieno_sched::estimate::rate::RateMeter;
use ripieno_sched::tables::models;
use ripieno_sched::tables::queue::{Queue, QueueOrder};
use ripieno_sched::tables::requests::Requests;
use ripieno_sched::{NetworkDelay, Request};

/// A model of a shard.
pub(crate) type ShardModel = models::ModelEntry<ModelQueue>;

/// Waiting requests of one model, and the quantities that its batches depend on.
#[derive(Debug)]
pub(crate) struct ModelQueue {
    /// The rule that forms candidates.
    pub(crate) rule: Rule,
    /// The measured time to gather batches, which the rule's time to reach a device includes.
    pub(super) gather: NetworkDelay,
    /// ℓ(b) of the whole walk plus the time to reach the device: from the decision to the answer,
    /// if no member leaves early.
    pub(super) profile: Profile,
    /// Arrival rate.
    pub(crate) rate: RateMeter,
    /// Waiting requests.
    pub(crate) queue: Queue,
    /// Target batch size of the window rule.
    target: usize,
    /// Start of the last batch.
    pub(crate) started: Time,
}

/// The best batch that can be formed now: `rows` rows, beginning with the request `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) first: u32,
    pub(crate) rows: usize,
    /// Whether the next request in the queue does not fit, so that waiting gains nothing.
    pub(crate) closed: bool,
}

impl ModelQueue {
    pub(crate) fn new(model: &Model, max_batch: usize, rule: Rule) -> ModelQueue {
        let profile = with_lead(model, &rule);
        let target = profile.largest_within(Nanos(model.slo.0 / 2)).clamp(1, max_batch);
        ModelQueue {
            rule,
            gather: NetworkDelay::default(),
            profile,
            rate: RateMeter::new(),
            queue: Queue::default(),
            target,
            started: Time::ORIGIN,
        }
    }
}

/// Batches that a model can form from its queue.
pub(crate) trait BatchRules {
    /// Recomputes everything that depends on the profile after a block was measured again.
    fn refresh_profile(&mut self, now: Time);

    /// Returns the order of the queue.
    fn order(&self) -> QueueOrder;

    /// Counts arrived rows.
    fn record(&mut self, now: Time, rows: u32);

    /// Sets the target batch size from the rate of arrivals.
    fn update_target(&mut self, now: Time);

    /// Returns the largest batch that can be answered within `span` of the decision.
    fn largest_within(&self, span: Nanos) -> usize;

    /// Returns the head of the queue if it must leave: it could not meet its deadline even alone,
    /// or, where deadlines do not affect batches, the drop rule applies.
    fn hopeless_head(&self, requests: &Requests, now: Time) -> Option<u32>;

    /// Returns the last time at which this request may stay at the head of the queue.
    fn head_leaves_after(&self, requests: &Requests, head: u32) -> Time;

    /// Returns the best batch at `now` on a device that needs `percent` % of the profile. The head
    /// must not be hopeless.
    fn gather(&self, requests: &Requests, now: Time, percent: u32) -> Option<Candidate>;

    /// Returns the profiled duration that a batch beginning with `first` may have, on a device that
    /// needs `percent` % of the profile. The time to reach a fast device is not shorter; a batch
    /// that would be in time on a nominal device is in time on a fast one.
    fn span(&self, first: &Request, now: Time, percent: u32) -> Nanos;

    /// Returns the window of a candidate at `now`: exec, latest, and its rank among candidates that
    /// may start.
    fn window(&self, requests: &Requests, now: Time, candidate: Candidate) -> Window;

    /// Returns whether late requests keep their place among those that are not.
    fn keeps_order(&self) -> bool;

    /// Returns whether batches take the oldest requests, since some cannot meet their deadlines or
    /// the first one would keep the batch small.
    fn serves_late(&self, requests: &Requests, now: Time) -> bool;

    /// Returns the size of the largest batch while requests are late, so that other models wait for
    /// at most half of this model's SLO.
    fn late_batch(&self) -> usize;

    /// Returns the window of a batch of the oldest requests. The window is ranked as if its latest
    /// start were one SLO after the model's last batch. So requests of other models that can meet
    /// their deadlines go first, but the model has a batch in each of its SLOs.
    fn late_window(&self, now: Time) -> Window;

    /// Returns the time of the next check of the queue if no event comes before: its candidate or
    /// its head becomes impossible, or an overdue request expires.
    fn wakeup(&self, requests: &Requests, window: Option<Window>) -> Time;
}

impl BatchRules for ShardModel {
    fn refresh_profile(&mut self, now: Time) {
        self.profile = with_lead(&self.model, &self.rule);
        self.update_target(now);
    }

    fn order(&self) -> QueueOrder {
        if self.rule.gather == Gather::Fifo { QueueOrder::Arrival } else { QueueOrder::Deadline }
    }

    fn record(&mut self, now: Time, rows: u32) {
        if self.rate.record(now, rows) {
            self.update_target(now);
        }
    }

    fn update_target(&mut self, now: Time) {
        let Some(rate) = self.rate.rate(now) else {
            return;
        };
        let fits = |batch: usize| self.profile.latency(batch) + rate.gather_time(batch) <= self.model.slo;
        self.target = largest(self.max_batch, fits).max(1);
    }

    fn largest_within(&self, span: Nanos) -> usize {
        self.profile.largest_within(span)
    }

    fn hopeless_head(&self, requests: &Requests, now: Time) -> Option<u32> {
        let head = self.queue.head()?;
        (now > self.head_leaves_after(requests, head)).then_some(head)
    }

    fn head_leaves_after(&self, requests: &Requests, head: u32) -> Time {
        let request = requests.get(head);
        let alone = request.deadline - self.profile.latency(request.rows as usize);
        match (self.rule.gather, self.drop) {
            (Gather::Prefix | Gather::Window, _) | (Gather::Fifo, DropRule::Hopeless) => alone,
            (Gather::Fifo, DropRule::Expired) => Time(request.deadline.0 - 1),
            (Gather::Fifo, DropRule::Never) => Time::NEVER,
        }
    }

    fn gather(&self, requests: &Requests, now: Time, percent: u32) -> Option<Candidate> {
        let head = self.queue.head()?;
        if self.rule.single {
            return Some(Candidate { first: head, rows: requests.get(head).rows as usize, closed: true });
        }
        // In the usual case all waiting requests fit: one table lookup instead of a search.
        let (rows, request) = (self.queue.rows(), requests.get(head));
        if rows <= self.max_batch as u64
            && (self.rule.gather == Gather::Fifo
                || self.profile.latency(rows as usize) <= self.span(request, now, percent))
        {
            return Some(Candidate { first: head, rows: rows as usize, closed: false });
        }
        let largest = |first: u32| {
            let request = requests.get(first);
            // A request that is wider than the limit runs alone.
            let limit = self.max_batch.max(request.rows as usize);
            match self.rule.gather {
                Gather::Fifo => limit,
                Gather::Prefix | Gather::Window => {
                    self.profile.largest_within(self.span(request, now, percent)).min(limit)
                }
            }
        };
        let target = match self.rule.gather {
            // Passing over heads would break the order of arrival.
            Gather::Window if !self.keeps_order() => self.target,
            Gather::Prefix | Gather::Window | Gather::Fifo => 0,
        };
        let (first, rows, closed) = self.queue.gather(requests, (head, rows), target, largest)?;
        Some(Candidate { first, rows, closed })
    }

    fn span(&self, first: &Request, now: Time, percent: u32) -> Nanos {
        let left = first.deadline - now;
        let scaled = |span: Nanos| span.scale(100, u64::from(percent));
        match percent {
            100 => left,
            101.. => scaled(left),
            _ => {
                let lead = self.rule.ways.network.lead(self.profile.max_batch()).min(left);
                left.max(scaled(left - lead) + lead)
            }
        }
    }

    fn window(&self, requests: &Requests, now: Time, candidate: Candidate) -> Window {
        let first = requests.get(candidate.first);
        let latest = match self.rule.gather {
            Gather::Fifo => Time::NEVER,
            Gather::Prefix | Gather::Window => first.deadline - self.profile.latency(candidate.rows),
        };
        let frontrun = first.deadline - self.profile.latency(candidate.rows + 1);
        let exec = match self.rule.start {
            _ if candidate.closed || candidate.rows >= self.max_batch => now,
            StartRule::Frontrun => frontrun,
            StartRule::After(wait) => (first.arrived + wait).min(latest),
        };
        let rank = if self.rule.gather == Gather::Fifo { first.arrived } else { latest };
        Window { exec: exec.max(now), latest, rank, lead: self.rule.ways.network.lead(candidate.rows) }
    }

    fn keeps_order(&self) -> bool {
        self.model.in_arrival_order && self.drop == DropRule::Never
    }

    fn serves_late(&self, requests: &Requests, now: Time) -> bool {
        if !self.keeps_order() || self.rule.gather == Gather::Fifo {
            return false;
        }
        let keeps_small = |head: u32| {
            let room = self.profile.largest_within(requests.get(head).deadline - now);
            (room as u64) < self.queue.rows().min(self.late_batch() as u64)
        };
        self.queue.overdue().is_some() || self.queue.head().is_some_and(keeps_small)
    }

    fn late_batch(&self) -> usize {
        let limit = if self.rule.single { 1 } else { self.max_batch };
        self.profile.largest_within(Nanos(self.model.slo.0 / 2)).clamp(1, limit)
    }

    fn late_window(&self, now: Time) -> Window {
        let turn = self.started + self.model.slo;
        Window { exec: now, latest: Time::NEVER, rank: turn, lead: self.rule.ways.network.lead(self.late_batch()) }
    }

    fn wakeup(&self, requests: &Requests, window: Option<Window>) -> Time {
        let candidate = window.map_or(Time::NEVER, |window| window.latest.next());
        let head = self.queue.head().map_or(Time::NEVER, |head| self.head_leaves_after(requests, head).next());
        let alone = |rows: u32| self.profile.latency(rows as usize);
        let expiry = self.queue.next_expiry(requests, self.drop, alone);
        candidate.min(head).min(expiry)
    }
}

fn with_lead(model: &Model, rule: &Rule) -> Profile {
    let cost = model.profile();
    let rows = 1..=cost.max_batch();
    let table: Vec<_> = rows.map(|rows| cost.latency(rows) + rule.ways.network.lead(rows)).collect();
    Profile::from_table(&table).expect("a profile that is longer by a delay is a profile")
}
