//! The queue of one model and the batch that can be gathered from it: GETBATCH and UPDATECANDIDATE of Symphony's
//! Algorithm 1 (section 3.2).
//!
//! Waiting requests stand in deadline order (arrival order under [`Gather::Fifo`]), ties by arrival at the server.
//! Insertion walks from the tail: O(1) when all requests have the same SLO, which is the normal case.
//!
//! The target of the window rule is the largest b with ℓ(b) + b/r ≤ SLO, r being the measured rate: gathering b rows
//! at that rate and running them must fit. With N = r·ℓ(b)/b devices this is the staggered bound (1 + 1/N)·ℓ(b) ≤ SLO
//! of section 3.3, and with less than one device of load it is the rule for a device that is not full.
//!
//! Under [`Gather::Spare`] nobody is passed over for the sake of the last rows of that target: batches of Poisson arrivals have
//! their target size on average, not each, and whoever insists on it gives up requests that could be served. The part of the
//! target that is aimed at is 1 − 1.8 s, at least 0.85, where s is by how much the number of arrivals within an SLO varies. When
//! a tenth of the requests is lost there is no room for chance any more; from there on to three tenths it rises to all of the target.

use super::cut::{Others, Waiting};
use super::scarcity::{Share, Terms, WHOLE};
use super::{Gather, Price, Rule, Start, Window};
use crate::Request;
use crate::parts::models;
use crate::parts::queue::{Order, Queue};
use crate::parts::rate::{Rate, RateMeter};
use crate::parts::reach::Reach;
use crate::parts::requests::Requests;
use ripieno_base::{Nanos, Time};
use ripieno_model::{DropRule, Model, Profile};

/// The least part of the target that is aimed at, in thousandths.
const AIM_MIN: u64 = 850;

/// The part of the devices' time that is planned with, in thousandths; the rest is left for chance.
const CARRIED_PERMILLE: u128 = 900;

/// What a row takes is known from about so many.
const MEMORY: u64 = 256;

const SECOND: Nanos = Nanos::from_millis(1_000);

/// What a model asks of the devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    pub(crate) rows: u64,
    pub(crate) work: Nanos,
    pub(crate) rate: u64,
    pub(crate) busy: u64,
    /// That times how long its last batch took, in microseconds.
    pub(crate) held: u64,
}

/// By so much the rank of who is urgent lies before that of who is not.
const BEFORE_OTHERS: Nanos = Nanos(i64::MAX / 4);

/// A model of a shard.
pub(crate) type Served = models::Served<ModelQueue>;

/// Waiting requests of one model, and what decides about batches of them.
#[derive(Debug)]
pub(crate) struct ModelQueue {
    pub(crate) rule: Rule,
    /// ℓ(b) of the whole walk and the way of a batch to its device: from the decision to the answer, if nobody leaves early.
    pub(super) profile: Profile,
    /// What batches take of a device on average.
    pub(super) reach: Reach,
    pub(crate) rate: RateMeter,
    pub(crate) queue: Queue,
    /// The batch size that the window rule aims at.
    target: usize,
    /// The part of it that is aimed at, in thousandths, where passing over has a second class.
    aim: u64,
    /// The share of lost rows among the last ones.
    pub(crate) lost: Share,
    /// The smallest batch size in which the devices carry the load, at most the target.
    enough: usize,
    /// The batch size in which requests would be answered soonest on average, if it is one below the target.
    pace: usize,
    /// By how much the number of arrivals varies, in thousandths of what it does by chance; so much where it is not known.
    dispersion: u64,
    /// What other models leave of the devices, and how many there are.
    room: (u64, usize),
    /// When a batch started last.
    pub(crate) started: Time,
    /// The rows of the last batches, and how long these took; how long the very last took.
    batches: (u64, Nanos),
    last: Nanos,
}

/// The best batch that can be formed now: `rows` rows, beginning with the request `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) first: u32,
    pub(crate) rows: usize,
    /// Whether the next request in the queue does not fit, so that nothing is gained by waiting.
    pub(crate) closed: bool,
}

impl ModelQueue {
    pub(crate) fn new(model: &Model, max_batch: usize, rule: Rule) -> ModelQueue {
        let (profile, reach) = (with_lead(model, &rule), Reach::new(model));
        let target = profile.largest_within(Nanos(model.slo.0 / 2)).clamp(1, max_batch);
        let (rate, queue) = (RateMeter::new(), Queue::default());
        let (aim, lost, enough, started) = (AIM_MIN, Share::default(), 1, Time::ORIGIN);
        let (batches, last) = ((1, reach.latency(1)), Nanos::ZERO);
        ModelQueue {
            rule,
            profile,
            reach,
            rate,
            queue,
            target,
            aim,
            lost,
            enough,
            pace: usize::MAX,
            dispersion: 1_000,
            room: (0, 1),
            started,
            batches,
            last,
        }
    }
}

impl Served {
    /// Puts the profile in force after a block was measured anew.
    pub(crate) fn refresh_profile(&mut self, now: Time) {
        self.profile = with_lead(&self.model, &self.rule);
        self.own.reach.reckon(&self.model);
        self.update_target(now);
    }

    /// Who stands before whom.
    pub(crate) fn order(&self) -> Order {
        if self.rule.gather == Gather::Fifo { Order::Arrival } else { Order::Deadline }
    }

    /// Counts arrived rows.
    pub(crate) fn record(&mut self, now: Time, rows: u32) {
        if self.rate.record(now, rows) {
            self.own.reach.refresh(&self.model);
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
        self.aim = 1_000_u64.saturating_sub(spread * 9 / 5).max(AIM_MIN);
        // A few samples are alike by chance.
        let known = self.rate.dispersion_permille(now).filter(|_| rate.window >= SECOND);
        self.own.dispersion = known.unwrap_or(1_000);
        let waits = |batch: usize| self.waits(batch, rate);
        let pace = (1..=self.target).min_by_key(|&batch| waits(batch)).filter(|pace| *pace < self.target);
        self.pace = pace.unwrap_or(usize::MAX);
    }

    /// How long a request waits for its answer on average if batches of so many rows start evenly: for the others of its batch, for a
    /// device where chance has them all busy, in step at worst, and for the batch to run.
    fn waits(&self, batch: usize, rate: Rate) -> Nanos {
        let (cost, (room, devices)) = (self.reach.latency(batch), self.room);
        let load = rate.load_permille(batch, cost) + (1_000 * devices as u64).saturating_sub(room);
        let spare = (1_000 * devices as u64).saturating_sub(load);
        if spare == 0 {
            return Nanos(i64::MAX - batch as i64);
        }
        let queue = cost.scale(load * self.dispersion, spare * 2_000);
        cost + Nanos(rate.gather_time(batch - 1).0 / 2) + queue
    }

    /// The batch size for which heads are passed over.
    fn goal(&self) -> usize {
        if self.rule.gather != Gather::Spare {
            return self.target;
        }
        let short = (self.lost.permille().saturating_sub(100) * 5).min(1_000);
        let aim = self.aim + (1_000 - self.aim) * short / 1_000;
        self.enough.min((self.target as u64 * aim / 1_000).max(1) as usize)
    }

    /// The largest batch that can be answered within `span` of the decision.
    pub(crate) fn largest_within(&self, span: Nanos) -> usize {
        self.profile.largest_within(span)
    }

    /// The head of the queue if it cannot stay there: it could not even run alone in time, or, where deadlines do not
    /// decide about batches, the drop rule says so.
    pub(crate) fn hopeless_head(&self, requests: &Requests, now: Time) -> Option<u32> {
        let head = self.queue.head()?;
        (now > self.head_leaves_after(requests, head)).then_some(head)
    }

    /// The last moment at which this request may stand at the head of the queue.
    fn head_leaves_after(&self, requests: &Requests, head: u32) -> Time {
        let request = requests.get(head);
        let alone = request.deadline - self.profile.latency(request.rows as usize);
        match (self.rule.gather, self.drop) {
            (Gather::Prefix | Gather::Window | Gather::Spare, _) | (Gather::Fifo, DropRule::Hopeless) => alone,
            (Gather::Fifo, DropRule::Expired) => Time(request.deadline.0 - 1),
            (Gather::Fifo, DropRule::Never) => Time::NEVER,
        }
    }

    /// The best batch at `now` on a device that needs `percent` % of the profile. The head must not be hopeless.
    pub(crate) fn gather(&self, requests: &Requests, now: Time, percent: u32) -> Option<Candidate> {
        let head = self.queue.head()?;
        if self.rule.single {
            return Some(Candidate { first: head, rows: requests.get(head).rows as usize, closed: true });
        }
        // Usually everything that waits fits: one look at the table instead of a search.
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
            Gather::Window | Gather::Spare => self.goal(),
            Gather::Prefix | Gather::Fifo => 0,
        };
        let (first, rows, closed) = self.queue.gather(requests, (head, rows), target, largest)?;
        Some(Candidate { first, rows, closed })
    }

    /// How many rows of a candidate take at most `span`, no request in part.
    pub(super) fn within(&self, requests: &Requests, of: Candidate, span: Nanos) -> usize {
        let room = self.profile.largest_within(span).min(of.rows);
        self.queue.fill(requests, of.first, room, of.rows as u64)
    }

    /// For how long others may have the devices before a request that comes then has to start: as long again for those who
    /// are as urgent.
    pub(crate) fn patience(&self) -> Nanos {
        Nanos((self.model.slo - self.profile.latency(1)).0 / 2)
    }

    /// How many rows of a candidate a device takes.
    pub(super) fn cut(&self, requests: &Requests, now: Time, of: Candidate, price: u64, others: &Others) -> usize {
        let Candidate { first, rows, .. } = of;
        if self.rule.start != Start::Priced(Price::Measured) || rows <= 1 {
            return rows;
        }
        // Where device time is short nothing is gained by using more of it, but that others are in time.
        let take =
            |room: usize| self.queue.fill(requests, first, room.max(requests.get(first).rows as usize), rows as u64);
        if price > 0 {
            return take(self.endurable(rows, others));
        }
        // Of an unknown load nothing is left to those who come.
        let Some(rate) = self.rate.rate(now) else { return rows };
        let (queue, slo) = (self.queue.rows(), self.model.slo);
        let batch = Waiting { rows, queue, rate, slo, least: self.pace.min(self.enough) }
            .cut(others, |rows| self.reach.latency(rows));
        take(batch)
    }

    /// How many of so many rows others can wait for, if the device time that smaller batches take more is less than what others ask
    /// for while they could not wait: their requests would be lost, and what else they take in time, too. Else all.
    fn endurable(&self, rows: usize, others: &Others) -> usize {
        let cost = |rows: usize| self.reach.latency(rows);
        let most = largest(rows, |rows| cost(rows) <= others.patience);
        if most == 0 || most == rows {
            return rows;
        }
        let all = 1_000 * self.room.1.max(1) as u64;
        let lost = (cost(rows) - others.patience).scale(all.saturating_sub(others.room), all);
        if cost(most).scale(rows as u64, most as u64) <= cost(rows) + lost { most } else { rows }
    }

    /// How long a batch that begins with `first` may take by the profile, on a device that needs `percent` % of it. The way to a
    /// fast device is as long as to any other; a batch that would be in time on a usual one is so there.
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

    /// The window of a candidate at `now`: exec, latest, and its rank among candidates that may start.
    pub(crate) fn window(&self, requests: &Requests, now: Time, candidate: Candidate, terms: &Terms) -> Window {
        let first = requests.get(candidate.first);
        let latest = match self.rule.gather {
            Gather::Fifo => Time::NEVER,
            Gather::Prefix | Gather::Window | Gather::Spare => first.deadline - self.profile.latency(candidate.rows),
        };
        let frontrun = first.deadline - self.profile.latency(candidate.rows + 1);
        let exec = match self.rule.start {
            _ if candidate.closed || candidate.rows >= self.max_batch => now,
            Start::Frontrun => frontrun,
            Start::Priced(_) => {
                let pays = self.pays_until(now, first, terms.guard, candidate.rows, terms.price);
                pays.max(self.apart(now, candidate.rows, terms).min(frontrun - terms.guard))
            }
            Start::After(wait) => (first.arrived + wait).min(latest),
        };
        let rank = match (self.rule.gather, self.rule.start) {
            (Gather::Fifo, _) => first.arrived,
            // Who would be late behind all others goes before them; the others go in the order of their arrival. Where device time
            // is short so much waits that nobody has time to spare.
            (_, Start::Priced(Price::Measured)) if self.urgent_from(latest, terms) > exec.max(now) => first.arrived,
            (_, Start::Priced(Price::Measured)) => latest - terms.ahead - BEFORE_OTHERS,
            // A light model finds no free device later where others hold them for long. Among the others nobody goes ahead: beyond
            // the peak whoever came after would have all of the losses.
            _ => latest - terms.ahead,
        };
        Window { exec: exec.max(now), latest, rank, lead: self.rule.network.lead(candidate.rows) }
    }

    /// From when on a batch of so many rows starts well apart from others.
    ///
    /// Whoever comes after the last idle device has been taken waits for the next one to fall free. If by then more will have come than
    /// wait now, all together wait least if the batch starts halfway; not if its own device were back before, which waiting puts
    /// off as well. Where requests come evenly, so can batches start, and none is larger than another, which is worth some of the
    /// devices' time; the more they come by chance the less of it lasts. Where device time is short they do in any case: batches that are
    /// large by chance are those that pass over their oldest.
    fn apart(&self, now: Time, rows: usize, terms: &Terms) -> Time {
        let evenly = self.started + terms.spacing;
        if terms.price > 0 {
            return evenly;
        }
        let Some(rate) = self.rate.rate(now) else { return now };
        let [free, next] = terms.free;
        let (gap, come) = (next - free, rate.gather_time(rows) + (free - now));
        let own = self.reach.latency(rows.min(self.reach.largest()));
        let halfway =
            if next == Time::NEVER || come >= gap || own <= gap { now } else { free + Nanos((gap - come).0 / 2) };
        halfway + (evenly - halfway).max(Nanos::ZERO).scale(1_000 - self.dispersion.min(1_000), 1_000)
    }

    /// From when on a candidate goes before others, which are not to make it late.
    pub(crate) fn urgent_from(&self, latest: Time, terms: &Terms) -> Time {
        latest - terms.ahead - terms.behind
    }

    /// When the queue must be looked at again although nothing happens: its candidate or its head becomes impossible,
    /// or an overdue request expires.
    pub(crate) fn wakeup(&self, requests: &Requests, window: Option<Window>) -> Time {
        let candidate = window.map_or(Time::NEVER, |window| window.latest.next());
        let head = self.queue.head().map_or(Time::NEVER, |head| self.head_leaves_after(requests, head).next());
        let alone = |rows: u32| self.profile.latency(rows as usize);
        let expiry = self.queue.next_expiry(requests, self.drop, alone);
        candidate.min(head).min(expiry)
    }

    /// When waiting for further rows ceases to pay, for a batch of `rows` that is due at `due`. By its frontrun it will have
    /// grown by as much as arrives; so much cheaper, at the price of device time, is it a row.
    fn pays_until(&self, now: Time, first: &Request, guard: Nanos, rows: usize, price: u64) -> Time {
        // Where nothing came but what is at hand, nothing is known of what will come.
        let Some(rate) = self.rate.rate(now).filter(|rate| rate.rows > rows as u64) else {
            return now;
        };
        let cost = |batch: usize| self.reach.latency(batch).0 as u128;
        // The largest batch that is not cheaper by more than that.
        let near = |batch: usize| {
            cost(rows) * u128::from(price) * batch as u128 <= cost(batch) * u128::from(WHOLE) * rows as u128
        };
        let more = largest(self.max_batch - rows, |more| near(rows + more));
        if rows + more >= self.max_batch {
            return now;
        }
        first.deadline - guard - self.profile.latency(rows + more + 1) - rate.gather_time(more + 1)
    }

    /// What becomes of those who are passed over although they could be punctual. With a second class they run, while they
    /// still can be, on a device that nobody else wants.
    pub(crate) fn drop_of_passed(&self) -> DropRule {
        match self.drop {
            DropRule::Hopeless if self.rule.gather == Gather::Spare => DropRule::Expired,
            drop => drop,
        }
    }

    /// Takes note of the load: so many thousandths of a device in batches of target sizes, on `devices` devices.
    pub(crate) fn note_load(&mut self, load: u64, room: u64, devices: usize) {
        self.room = (room, devices);
        let per_row = u128::from(load) * self.target as u128;
        let each = self.target_cost().0 as u128 * devices.max(1) as u128 * CARRIED_PERMILLE;
        let carries = |batch: usize| self.reach.latency(batch).0 as u128 * per_row <= batch as u128 * each;
        // Usually single rows do, or nothing less than the target; costs a row fall with the size.
        self.enough = match carries(1) {
            true => 1,
            false => (largest(self.target, |batch| !carries(batch)) + 1).min(self.target),
        };
    }

    /// How far apart batches start if they do evenly, so that devices fall free one after the other: ℓ(b)/N for batches that are large
    /// enough. Not at all where single rows are.
    pub(crate) fn spacing(&self, devices: usize, price: u64) -> Nanos {
        match (if price > 0 { self.enough } else { self.pace.min(self.enough) }, devices) {
            (1, _) | (_, ..=1) => Nanos::ZERO,
            (pace, devices) => Nanos(self.reach.latency(pace).0 / devices as i64),
        }
    }

    /// How long a batch of the target size takes on average.
    pub(crate) fn target_cost(&self) -> Nanos {
        self.reach.latency(self.target)
    }

    /// A batch of so many rows has started. How long it takes on average.
    pub(crate) fn note_batch(&mut self, now: Time, rows: usize) -> Nanos {
        (self.started, self.last) = (now, self.reach.latency(rows));
        let (all, took) = self.batches;
        let halved = 1 + u64::from(all > MEMORY);
        self.batches = (all / halved + rows as u64, Nanos(took.0 / halved as i64) + self.last);
        self.last
    }

    /// Rows that wait, and the device time that these take; rows that come in a second, and the thousandths of a device that the
    /// measured rate keeps busy in batches such as the last ones.
    pub(crate) fn demand(&self, now: Time) -> Demand {
        let rows = self.queue.rows();
        let batch = rows.min(self.reach.largest() as u64);
        let work = if rows == 0 { Nanos::ZERO } else { self.reach.latency(batch as usize).scale(rows, batch) };
        let rate = self.rate.rate(now);
        let busy = rate.map_or(0, |rate| rate.load_permille(self.batches.0 as usize, self.batches.1));
        Demand {
            rows,
            work,
            rate: rate.map_or(0, |rate| rate.rows_in(SECOND)),
            busy,
            held: busy * (self.last.0 / 1_000) as u64,
        }
    }

    /// Thousandths of a device that the measured rate keeps busy in batches of the target size, and how long one takes.
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

/// The largest of `1..=max` that fits, where everything below something that fits does so too; 0 if none.
fn largest(max: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
