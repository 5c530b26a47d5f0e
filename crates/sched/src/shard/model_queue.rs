//! The queue of one model and the batch that can be gathered from it: GETBATCH and UPDATECANDIDATE
//! of Algorithm 1 of "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling"
//! (section 3.2).
//!
//! Waiting requests are in deadline order (arrival order under [`Gather::Fifo`]), ties in order of
//! arrival at the server. Insertion searches from the tail: O(1) when all requests have the same
//! SLO, which is the normal case.
//!
//! The target of the window rule is the largest b with ℓ(b) + b/r ≤ SLO, where r is the measured
//! rate: gathering b rows at that rate and running them must fit. With N = r·ℓ(b)/b devices this is
//! the staggered bound (1 + 1/N)·ℓ(b) ≤ SLO of section 3.3, and with less than one device of load
//! it is the rule for a device that is not full.
//!
//! [`Gather::Spare`] aims at a fraction of that target. Batches of Poisson arrivals reach their
//! target size on average, not each, and passing over requests for the last rows gives up requests
//! that could be served. The fraction is 1 − 1.8 s, at least 0.85, where s is the relative spread
//! of the number of arrivals within an SLO. From a loss of 10 % to one of 30 % of the requests it
//! rises linearly to 1, since an overloaded device needs full batches.

use super::cut::{Others, Waiting};
use super::scarcity::{PriceTerms, Share, WHOLE};
use super::{Gather, Price, Rule, StartRule, Window};
use crate::Request;
use crate::parts::cost::largest;
use crate::parts::models;
use crate::parts::queue::{Queue, QueueOrder};
use crate::parts::rate::{Rate, RateMeter};
use crate::parts::reach::{self, Reach};
use crate::parts::requests::Requests;
use ripieno_base::{Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};

/// Smallest fraction of the target, in thousandths.
const TARGET_FRACTION_MIN: u64 = 850;

/// Planned utilisation of the devices, in thousandths; the rest absorbs random arrivals.
const UTILISATION_PERMILLE: u128 = 900;

/// Share of rows lost, in thousandths of the last 256, from which batches are as large as the SLO
/// allows. The smallest stable batch follows from the rate of the last seconds, which is too low
/// for some seconds after a step. Near the peak, random arrivals lose fewer rows than this. At 15
/// and at 60, useful answers in 75 runs on late devices differ by 0.1 % on average, at the worst by
/// 3 %, and after a step not at all.
const LOSING_PERMILLE: u64 = 30;

/// Number of recent rows from which the device time of a row is known.
const MEMORY: u64 = 256;

/// Weight of the moving mean of `slip`: each batch counts one part in 16. The mean follows a change
/// within some 20 batches. At half and twice the value, useful answers in 75 runs on late devices
/// differ by 0.1 % on average, and by 3 % at the worst.
const SLIP_WEIGHT: i64 = 16;

const SECOND: Nanos = Nanos::from_millis(1_000);

/// Demand of a model for device time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ModelDemand {
    pub(crate) rows: u64,
    pub(crate) work: Nanos,
    pub(crate) rate: u64,
    pub(crate) busy: u64,
    /// `busy` times the duration of its last batch in microseconds.
    pub(crate) held: u64,
}

/// Distance in rank between urgent and other candidates.
const URGENT_FIRST: Nanos = Nanos(i64::MAX / 4);

/// A model of a shard.
pub(crate) type ShardModel = models::ModelEntry<ModelQueue>;

/// Waiting requests of one model, and the quantities that its batches depend on.
#[derive(Debug)]
pub(crate) struct ModelQueue {
    pub(crate) rule: Rule,
    /// ℓ(b) of the whole walk plus the time to reach the device: from the decision to the answer,
    /// if no member leaves early.
    pub(super) profile: Profile,
    /// Mean device time of batches, by size.
    pub(super) reach: Reach,
    pub(crate) rate: RateMeter,
    pub(crate) queue: Queue,
    /// Target batch size of the window rule.
    target: usize,
    /// Fraction of the target under [`Gather::Spare`], in thousandths.
    target_fraction: u64,
    /// Share of lost rows among the last ones.
    pub(crate) lost: Share,
    /// Smallest batch size at which the devices carry the load, at most the target.
    min_stable_batch: usize,
    /// Batch size with the shortest mean response time; `usize::MAX` if it is not below the target.
    fastest_batch: usize,
    /// Index of dispersion of arrivals, in thousandths; 1,000 = Poisson, also while it is not
    /// known.
    dispersion: u64,
    /// Thousandths of a device that other models leave, and the number of devices.
    spare: (u64, usize),
    /// Start of the last batch.
    pub(crate) started: Time,
    /// Rows of the recent batches and their total duration; duration of the last one.
    batches: (u64, Nanos),
    last: Nanos,
    /// Moving mean of the time that batches occupy a device beyond `reach`.
    slip: Nanos,
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
        let (profile, reach) = (with_lead(model, &rule), Reach::new(model));
        let target = profile.largest_within(Nanos(model.slo.0 / 2)).clamp(1, max_batch);
        let (rate, queue) = (RateMeter::new(), Queue::default());
        let (target_fraction, lost, min_stable_batch, started) =
            (TARGET_FRACTION_MIN, Share::default(), 1, Time::ORIGIN);
        let (batches, last) = ((1, reach.latency(1)), Nanos::ZERO);
        ModelQueue {
            rule,
            profile,
            reach,
            rate,
            queue,
            target,
            target_fraction,
            lost,
            min_stable_batch,
            fastest_batch: usize::MAX,
            dispersion: 1_000,
            spare: (0, 1),
            started,
            batches,
            last,
            slip: Nanos::ZERO,
        }
    }

    /// Returns the mean time that a batch of this size occupies a device: its profiled mean plus
    /// the learnt difference. All capacity estimates use it; deadlines have margins of their own.
    /// For a batch that exceeds the model's limit it is `Nanos::MAX`.
    pub(super) fn cost(&self, batch: usize) -> Nanos {
        let profiled = self.reach.latency(batch);
        if profiled == Nanos::MAX { profiled } else { (profiled + self.slip).max(Nanos(1)) }
    }

    /// Learns from a batch that occupied its device for `took` where [`ModelQueue::cost`] was
    /// `expected`.
    pub(super) fn note_occupancy(&mut self, took: Nanos, expected: Nanos) {
        self.slip += Nanos((took - expected).0 / SLIP_WEIGHT);
    }
}

impl ShardModel {
    /// Recomputes everything that depends on the profile after a block was measured again.
    pub(crate) fn refresh_profile(&mut self, now: Time) {
        self.profile = with_lead(&self.model, &self.rule);
        self.own.reach.recompute(&self.model, reach::profiled);
        // The corrected profile includes what was learnt beside the old one.
        self.own.slip = Nanos::ZERO;
        self.update_target(now);
    }

    /// Returns the order of the queue.
    pub(crate) fn order(&self) -> QueueOrder {
        if self.rule.gather == Gather::Fifo { QueueOrder::Arrival } else { QueueOrder::Deadline }
    }

    /// Counts arrived rows.
    pub(crate) fn record(&mut self, now: Time, rows: u32) {
        if self.rate.record(now, rows) {
            self.own.reach.refresh(&self.model, reach::profiled);
            self.update_target(now);
        }
    }

    fn update_target(&mut self, now: Time) {
        let Some(rate) = self.rate.rate(now) else {
            return;
        };
        let fits = |batch: usize| self.profile.latency(batch) + rate.gather_time(batch) <= self.model.slo;
        self.target = largest(self.max_batch, fits).max(1);
        let spread = self.rate.spread_permille(now, self.model.slo).unwrap_or(1_000);
        self.target_fraction = 1_000_u64.saturating_sub(spread * 9 / 5).max(TARGET_FRACTION_MIN);
        // A few samples are similar by chance.
        let known = self.rate.dispersion_permille(now).filter(|_| rate.window >= SECOND);
        self.own.dispersion = known.unwrap_or(1_000);
        let response_time = |batch: usize| self.response_time(batch, rate);
        let fastest = (1..=self.target).min_by_key(|&batch| response_time(batch));
        self.fastest_batch = fastest.filter(|batch| *batch < self.target).unwrap_or(usize::MAX);
    }

    /// Returns the mean response time of a request if batches of `batch` rows start evenly: the
    /// wait for the other rows of its batch, the wait for a device while random arrivals keep all
    /// of them busy, and the run time of the batch.
    fn response_time(&self, batch: usize, rate: Rate) -> Nanos {
        let (cost, (spare, devices)) = (self.cost(batch), self.spare);
        let load = rate.load_permille(batch, cost) + (1_000 * devices as u64).saturating_sub(spare);
        let idle = (1_000 * devices as u64).saturating_sub(load);
        if idle == 0 {
            return Nanos(i64::MAX - batch as i64);
        }
        let queue = cost.scale(load * self.dispersion, idle * 2_000);
        cost + Nanos(rate.gather_time(batch - 1).0 / 2) + queue
    }

    /// Returns the batch size for which heads are passed over.
    fn target_batch(&self) -> usize {
        if self.rule.gather != Gather::Spare {
            return self.target;
        }
        let short = (self.lost.permille().saturating_sub(100) * 5).min(1_000);
        let fraction = self.target_fraction + (1_000 - self.target_fraction) * short / 1_000;
        let target = (self.target as u64 * fraction / 1_000).max(1) as usize;
        if self.lost.permille() > LOSING_PERMILLE { target } else { self.min_stable_batch.min(target) }
    }

    /// Returns the largest batch that can be answered within `span` of the decision.
    pub(crate) fn largest_within(&self, span: Nanos) -> usize {
        self.profile.largest_within(span)
    }

    /// Returns the head of the queue if it must leave: it could not meet its deadline even alone,
    /// or, where deadlines do not affect batches, the drop rule applies.
    pub(crate) fn hopeless_head(&self, requests: &Requests, now: Time) -> Option<u32> {
        let head = self.queue.head()?;
        (now > self.head_leaves_after(requests, head)).then_some(head)
    }

    /// Returns the last time at which this request may stay at the head of the queue.
    fn head_leaves_after(&self, requests: &Requests, head: u32) -> Time {
        let request = requests.get(head);
        let alone = request.deadline - self.profile.latency(request.rows as usize);
        match (self.rule.gather, self.drop) {
            (Gather::Prefix | Gather::Window | Gather::Spare, _) | (Gather::Fifo, DropRule::Hopeless) => alone,
            (Gather::Fifo, DropRule::Expired) => Time(request.deadline.0 - 1),
            (Gather::Fifo, DropRule::Never) => Time::NEVER,
        }
    }

    /// Returns the best batch at `now` on a device that needs `percent` % of the profile. The head
    /// must not be hopeless.
    pub(crate) fn gather(&self, requests: &Requests, now: Time, percent: u32) -> Option<Candidate> {
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
                Gather::Prefix | Gather::Window | Gather::Spare => {
                    self.profile.largest_within(self.span(request, now, percent)).min(limit)
                }
            }
        };
        let target = match self.rule.gather {
            // Passing over heads would break the order of arrival.
            Gather::Window | Gather::Spare if !self.keeps_order() => self.target_batch(),
            Gather::Prefix | Gather::Window | Gather::Spare | Gather::Fifo => 0,
        };
        let (first, rows, closed) = self.queue.gather(requests, (head, rows), target, largest)?;
        Some(Candidate { first, rows, closed })
    }

    /// Returns the number of rows of a candidate that take at most `span`, without splitting a
    /// request.
    pub(super) fn within(&self, requests: &Requests, of: Candidate, span: Nanos) -> usize {
        let room = self.profile.largest_within(span).min(of.rows);
        self.queue.fill(requests, of.first, room, of.rows as u64)
    }

    /// Returns the longest time for which other models may occupy a device before a request that
    /// arrives meanwhile must start: half of the slack, since equally urgent requests need as much
    /// again.
    pub(crate) fn max_wait(&self) -> Nanos {
        Nanos((self.model.slo - self.profile.latency(1)).0 / 2)
    }

    /// Returns the number of rows of a candidate that a device takes.
    pub(super) fn cut(&self, requests: &Requests, now: Time, of: Candidate, price: u64, others: &Others) -> usize {
        let Candidate { first, rows, .. } = of;
        if self.rule.start != StartRule::Priced(Price::Measured) || rows <= 1 {
            return rows;
        }
        // While device time is short, smaller batches only help to keep other models in time.
        let take =
            |room: usize| self.queue.fill(requests, first, room.max(requests.get(first).rows as usize), rows as u64);
        if price > 0 {
            return take(self.waitable_rows(rows, others));
        }
        // With an unknown load, all rows are taken.
        let Some(rate) = self.rate.rate(now) else { return rows };
        let (queue, slo) = (self.queue.rows(), self.model.slo);
        let batch = Waiting { rows, queue, rate, slo, least: self.fastest_batch.min(self.min_stable_batch) }
            .cut(others, |rows| self.cost(rows));
        take(batch)
    }

    /// Returns the number of rows, at most `rows`, that other models can wait for. Returns `rows`
    /// if the extra device time of smaller batches exceeds the device time that other models would
    /// need while they cannot wait, and therefore lose.
    fn waitable_rows(&self, rows: usize, others: &Others) -> usize {
        let cost = |rows: usize| self.cost(rows);
        let most = largest(rows, |rows| cost(rows) <= others.max_wait);
        if most == 0 || most == rows {
            return rows;
        }
        let all = 1_000 * self.spare.1.max(1) as u64;
        let lost = (cost(rows) - others.max_wait).scale(all.saturating_sub(others.spare), all);
        if cost(most).scale(rows as u64, most as u64) <= cost(rows) + lost { most } else { rows }
    }

    /// Returns the profiled duration that a batch beginning with `first` may have, on a device that
    /// needs `percent` % of the profile. The time to reach a fast device is not shorter; a batch
    /// that would be in time on a nominal device is in time on a fast one.
    fn span(&self, first: &Request, now: Time, percent: u32) -> Nanos {
        let left = first.deadline - now;
        let scaled = |span: Nanos| span.scale(100, u64::from(percent));
        match percent {
            100 => left,
            101.. => scaled(left),
            _ => {
                let lead = self.rule.network.lead(self.profile.max_batch()).min(left);
                left.max(scaled(left - lead) + lead)
            }
        }
    }

    /// Returns the window of a candidate at `now`: exec, latest, and its rank among candidates that
    /// may start.
    pub(crate) fn window(&self, requests: &Requests, now: Time, candidate: Candidate, terms: &PriceTerms) -> Window {
        let first = requests.get(candidate.first);
        let latest = match self.rule.gather {
            Gather::Fifo => Time::NEVER,
            Gather::Prefix | Gather::Window | Gather::Spare => first.deadline - self.profile.latency(candidate.rows),
        };
        let frontrun = first.deadline - self.profile.latency(candidate.rows + 1);
        let exec = match self.rule.start {
            _ if candidate.closed || candidate.rows >= self.max_batch => now,
            StartRule::Frontrun => frontrun,
            StartRule::Priced(_) => {
                let pays = self.pays_until(now, first, terms.blocking, candidate.rows, terms.price);
                pays.max(self.spaced_from(now, candidate.rows, terms).min(frontrun - terms.blocking))
            }
            StartRule::After(wait) => (first.arrived + wait).min(latest),
        };
        let rank = match (self.rule.gather, self.rule.start) {
            (Gather::Fifo, _) => first.arrived,
            // Candidates that would be late after the backlog of all other models go first; the
            // others go in the order of their arrival. While device time is short, the backlog is
            // so long that all candidates are urgent.
            (_, StartRule::Priced(Price::Measured)) if self.urgent_from(latest, terms) > exec.max(now) => first.arrived,
            (_, StartRule::Priced(Price::Measured)) => latest - terms.head_start - URGENT_FIRST,
            // A light model finds no free device later if others occupy them for long. The others
            // get no head start: beyond the peak, models that came after would have all of the
            // losses.
            _ => latest - terms.head_start,
        };
        Window { exec: exec.max(now), latest, rank, lead: self.rule.network.lead(candidate.rows) }
    }

    /// Returns the time from which a batch of `rows` rows starts well spaced from other batches.
    ///
    /// A request that arrives after the last idle device was taken waits for the next free one. If
    /// more rows will have arrived by then than wait now, the total wait is least if the batch
    /// starts halfway; not if its own device would be free earlier, which waiting delays as well.
    /// If requests arrive evenly, batches can start evenly, and equal sizes save device time; the
    /// more random the arrivals, the smaller the benefit. While device time is short, batches are
    /// spaced in any case, since a batch that is large by chance passes over its oldest requests.
    fn spaced_from(&self, now: Time, rows: usize, terms: &PriceTerms) -> Time {
        let evenly = self.started + terms.spacing;
        if terms.price > 0 {
            return evenly;
        }
        let Some(rate) = self.rate.rate(now) else { return now };
        let [free, next] = terms.free;
        let (gap, come) = (next - free, rate.gather_time(rows) + (free - now));
        let own = self.cost(rows.min(self.reach.largest()));
        let halfway =
            if next == Time::NEVER || come >= gap || own <= gap { now } else { free + Nanos((gap - come).0 / 2) };
        halfway + (evenly - halfway).max(Nanos::ZERO).scale(1_000 - self.dispersion.min(1_000), 1_000)
    }

    /// Returns the time from which a candidate takes precedence, so that others do not make it
    /// late.
    pub(crate) fn urgent_from(&self, latest: Time, terms: &PriceTerms) -> Time {
        latest - terms.head_start - terms.backlog_wait
    }

    /// Returns whether late requests keep their place among those that are not.
    fn keeps_order(&self) -> bool {
        self.model.in_arrival_order && self.drop == DropRule::Never
    }

    /// Returns whether batches take the oldest requests, since some cannot meet their deadlines or
    /// the first one would keep the batch small.
    pub(crate) fn serves_late(&self, requests: &Requests, now: Time) -> bool {
        if !self.keeps_order() || self.rule.gather == Gather::Fifo {
            return false;
        }
        let keeps_small = |head: u32| {
            let room = self.profile.largest_within(requests.get(head).deadline - now);
            (room as u64) < self.queue.rows().min(self.late_batch() as u64)
        };
        self.queue.overdue().is_some() || self.queue.head().is_some_and(keeps_small)
    }

    /// Returns the size of the largest batch while requests are late, so that other models wait for
    /// at most half of this model's SLO.
    pub(crate) fn late_batch(&self) -> usize {
        let limit = if self.rule.single { 1 } else { self.max_batch };
        self.profile.largest_within(Nanos(self.model.slo.0 / 2)).clamp(1, limit)
    }

    /// Returns the window of a batch of the oldest requests. Its rank is that of a batch whose
    /// latest start is one SLO after the model's last batch: requests of other models that can meet
    /// their deadlines go first, but the model has a batch in each of its SLOs.
    pub(crate) fn late_window(&self, now: Time) -> Window {
        let turn = self.started + self.model.slo;
        let rank = if self.rule.start == StartRule::Priced(Price::Measured) { turn - URGENT_FIRST } else { turn };
        Window { exec: now, latest: Time::NEVER, rank, lead: self.rule.network.lead(self.late_batch()) }
    }

    /// Returns the time of the next check of the queue if no event comes before: its candidate or
    /// its head becomes impossible, or an overdue request expires.
    pub(crate) fn wakeup(&self, requests: &Requests, window: Option<Window>) -> Time {
        let candidate = window.map_or(Time::NEVER, |window| window.latest.next());
        let head = self.queue.head().map_or(Time::NEVER, |head| self.head_leaves_after(requests, head).next());
        let alone = |rows: u32| self.profile.latency(rows as usize);
        let expiry = self.queue.next_expiry(requests, self.drop, alone);
        candidate.min(head).min(expiry)
    }

    /// Returns the time at which waiting for further rows stops paying, for a batch of `rows` rows.
    /// The batch grows by the expected arrivals until its frontrun, which makes a row cheaper; the
    /// saving counts at the price of device time.
    fn pays_until(&self, now: Time, first: &Request, blocking: Nanos, rows: usize, price: u64) -> Time {
        // Without arrivals beyond the rows at hand, future arrivals are unknown.
        let Some(rate) = self.rate.rate(now).filter(|rate| rate.rows > rows as u64) else {
            return now;
        };
        let cost = |batch: usize| self.cost(batch).0 as u128;
        // The largest batch whose rows are not cheaper than the price justifies.
        let near = |batch: usize| {
            cost(rows) * u128::from(price) * batch as u128 <= cost(batch) * u128::from(WHOLE) * rows as u128
        };
        let more = largest(self.max_batch - rows, |more| near(rows + more));
        if rows + more >= self.max_batch {
            return now;
        }
        first.deadline - blocking - self.profile.latency(rows + more + 1) - rate.gather_time(more + 1)
    }

    /// Returns the rule for requests that are passed over although they could be punctual. Under
    /// [`Gather::Spare`] they run, while they still can, on a device that no candidate needs.
    pub(crate) fn drop_of_passed(&self) -> DropRule {
        match self.drop {
            DropRule::Hopeless if self.rule.gather == Gather::Spare => DropRule::Expired,
            drop => drop,
        }
    }

    /// Stores the load: `load` thousandths of a device in batches of the target size, `spare`
    /// thousandths that other models leave, on `devices` devices.
    pub(crate) fn note_load(&mut self, load: u64, spare: u64, devices: usize) {
        self.spare = (spare, devices);
        let per_row = u128::from(load) * self.target as u128;
        let each = self.target_cost().0 as u128 * devices.max(1) as u128 * UTILISATION_PERMILLE;
        let carries = |batch: usize| self.cost(batch).0 as u128 * per_row <= batch as u128 * each;
        // The usual answer is one row, or the target; the cost of a row falls with the size.
        self.min_stable_batch = match carries(1) {
            true => 1,
            false => (largest(self.target, |batch| !carries(batch)) + 1).min(self.target),
        };
    }

    /// Returns the time between the starts of evenly spaced batches, so that devices become free
    /// one after the other: ℓ(b)/N for stable batches, zero if single rows are stable.
    pub(crate) fn spacing(&self, devices: usize, price: u64) -> Nanos {
        match (if price > 0 { self.min_stable_batch } else { self.fastest_batch.min(self.min_stable_batch) }, devices) {
            (1, _) | (_, ..=1) => Nanos::ZERO,
            (batch, devices) => Nanos(self.cost(batch).0 / devices as i64),
        }
    }

    /// Returns the mean duration of a batch of the target size.
    pub(crate) fn target_cost(&self) -> Nanos {
        self.cost(self.target)
    }

    /// Records the start of a batch of `rows` rows. Returns its mean duration.
    pub(crate) fn note_batch(&mut self, now: Time, rows: usize) -> Nanos {
        (self.started, self.last) = (now, self.cost(rows));
        let (all, took) = self.batches;
        let halved = 1 + u64::from(all > MEMORY);
        self.batches = (all / halved + rows as u64, Nanos(took.0 / halved as i64) + self.last);
        self.last
    }

    /// Returns the waiting rows and their device time, the rows that arrive per second, and the
    /// thousandths of a device that this rate keeps busy in batches like the recent ones.
    pub(crate) fn demand(&self, now: Time) -> ModelDemand {
        let rows = self.queue.rows();
        let batch = rows.min(self.reach.largest() as u64);
        let work = if rows == 0 { Nanos::ZERO } else { self.cost(batch as usize).scale(rows, batch) };
        let rate = self.rate.rate(now);
        let busy = rate.map_or(0, |rate| rate.load_permille(self.batches.0 as usize, self.batches.1));
        ModelDemand {
            rows,
            work,
            rate: rate.map_or(0, |rate| rate.rows_in(SECOND)),
            busy,
            held: busy * (self.last.0 / 1_000) as u64,
        }
    }

    /// Returns the thousandths of a device that the measured rate keeps busy in batches of the
    /// target size, and the duration of one.
    pub(crate) fn load(&mut self, now: Time) -> (u64, Nanos) {
        self.rate.catch_up(now);
        let cost = self.target_cost();
        (self.rate.rate(now).map_or(0, |rate| rate.load_permille(self.target, cost)), cost)
    }
}

fn with_lead(model: &Model, rule: &Rule) -> Profile {
    let cost = model.profile();
    let rows = 1..=cost.max_batch();
    let table: Vec<_> = rows.map(|rows| cost.latency(rows) + rule.network.lead(rows)).collect();
    Profile::from_table(&table).expect("a profile that is longer by a delay is a profile")
}
