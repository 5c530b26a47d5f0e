//! Max-min fair shares of the devices between models, and of a model's share between its clients.
//!
//! A *flow* is the requests of one client to one model. Its demand is the device time per second of
//! its requests, over a window of about a second. While all demands fit, no flow is limited.
//! Otherwise each has a share of the devices: models in proportion to their weights, clients of a
//! model equally, and unneeded parts go to the others. A flow below its share is admitted whole. If
//! a flow with a small demand, or with few answers, loses requests, flows above their share are
//! limited for the next minute. A token bucket then admits them at the rate of their shares.
//!
//! The capacity is estimated from profiles and corrected by observation: if flows that are admitted
//! whole still lose requests while the devices are busy, the others get less.
//!
//! Rejected alternatives: fair queueing in front of the policy would delay requests of policies
//! that choose batches by the waiting ones, and this delay reduces their remaining time. Fair
//! shares within each policy's own queues would be needed in a dozen policies.

use super::utilisation::DeviceUse;
use crate::Limits;
use ripieno_base::{ModelId, Nanos, Permille, Time};

/// Number of distinguished clients of a model; further ones share a flow with one of these.
pub(crate) const CLIENTS: usize = 64;
const TICK_NS: i64 = 125_000_000;
/// Number of ticks over which demands fade: a second.
const FADE: i64 = 8;
/// Number of ticks for which a hurt flow is remembered: a minute. If a flow is hurt again in
/// the minute after it was forgotten, the time doubles, up to an hour.
const REMEMBERED: i64 = 480;
const LONGEST: i64 = 60 * REMEMBERED;
/// Number of lost requests that hurt a flow; one per second is forgiven.
const HARMED: u16 = 8;
const SECOND: Nanos = Nanos(1_000_000_000);
/// Bounds on the part of the devices that is divided, in parts of 1024.
const ALL: i64 = 1024;
const LEAST: i64 = 512;
/// Time without a request after which a flow no longer limits others, though its demand takes
/// longer to fade. A flow that can be hurt loses more than one request a second, so it is rarely
/// silent for so long.
const GONE: Nanos = Nanos(4 * SECOND.0);
/// Scale of [`Flow::known`]: one whole second.
const WHOLE: i64 = 1 << 20;
/// Reciprocal of the share of work that flows below their share may lose before the divided part is
/// reduced.
const LOSS: i64 = 64;
/// Utilisation of the devices below which a loss does not reduce the part that is divided.
const BUSY: Permille = Permille::from_parts(900);
/// Number of consecutive refused requests of a lower priority after which one is admitted.
const STARVED: u8 = 16;

/// The flows and their shares.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Flows, by model and client.
    flows: Vec<Flow>,
    /// Flows with a demand.
    active: Vec<u32>,
    /// Weight of each model.
    weights: Vec<u32>,
    /// Number of the current tick.
    tick: i64,
    /// Tick until which it is remembered that a flow was harmed: it lost requests, although its
    /// demand was below an equal part or it had few answers.
    harmed_until: i64,
    /// Number of ticks for which a loss is remembered.
    remembered: i64,
    /// Time since which flows above their share have been limited. Requests that came earlier say
    /// nothing about the division.
    held_since: Time,
    /// Total device time per second.
    capacity: i64,
    /// The divided part, in parts of [`ALL`].
    divided: i64,
    /// Scratch memory for dividing: models.
    claims: Vec<Claim>,
    /// Scratch memory for dividing: the clients of one model.
    parts: Vec<Claim>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Demanded device time, fading: in a steady state the demand of one second.
    demand: i64,
    /// The part of a second that `demand` covers, in parts of [`WHOLE`]: less than all while the
    /// flow is young.
    known: i64,
    /// Device time of answers in time, fading like the demand.
    had: i64,
    /// Allowed device time in nanoseconds per second; `None` means unlimited.
    allowed: Option<i64>,
    /// Device time that the token bucket holds, in nanoseconds.
    tokens: i64,
    /// Time at which the bucket was last filled.
    filled: Time,
    /// Admitted work.
    passed: i64,
    /// Admitted work that was not answered in time.
    lost: i64,
    /// Number of recent losses.
    losses: u16,
    /// Time of its last request.
    last_request: Time,
    /// Number of ticks since a loss was last forgiven.
    losses_age: u8,
    /// The highest priority of the last second.
    top: u8,
    /// True if a priority was seen.
    ranked: bool,
    /// Number of ticks since the last request of priority `top`.
    top_age: u8,
    /// True if the flow has had several priorities recently.
    mixed: bool,
    /// Number of requests of a lower priority refused in a row.
    starved: u8,
}

/// The demand and weight of a model or flow.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Demanded device time per second.
    demand: i64,
    /// Weight of the claim.
    weight: u32,
    /// Number of the model or flow.
    name: u32,
}

impl Shares {
    pub(crate) fn new(limits: &Limits) -> Shares {
        let flows = limits.models * CLIENTS;
        Shares {
            flows: vec![Flow::default(); flows],
            active: Vec::with_capacity(flows),
            weights: vec![1; limits.models],
            tick: 0,
            harmed_until: i64::MIN / 2,
            remembered: REMEMBERED,
            held_since: Time::ORIGIN,
            capacity: 0,
            divided: ALL,
            claims: Vec::with_capacity(limits.models),
            parts: Vec::with_capacity(CLIENTS),
        }
    }

    pub(crate) fn set_weight(&mut self, model: ModelId, weight: u32) {
        self.weights[model.index()] = weight.max(1);
    }

    /// Returns the flow of a client's requests for a model.
    pub(crate) fn flow(model: ModelId, client: u16) -> u32 {
        (model.index() * CLIENTS + usize::from(client) % CLIENTS) as u32
    }

    /// Returns whether a model has had requests in the last seconds.
    pub(crate) fn is_active(&self, model: ModelId) -> bool {
        self.active.iter().any(|&flow| flow as usize / CLIENTS == model.index())
    }

    /// Returns whether no other flow has had requests in the last second.
    pub(crate) fn is_sole(&self, now: Time, flow: u32) -> bool {
        let is_recent = |other: u32| now - self.flows[other as usize].last_request < SECOND;
        !self.active.iter().any(|&other| other != flow && is_recent(other))
    }

    /// Records a request that demands `work`; returns whether its flow may have it.
    pub(crate) fn admit(&mut self, now: Time, flow: u32, work: i64, priority: u8) -> bool {
        let known = &mut self.flows[flow as usize];
        if known.demand == 0 {
            self.active.push(flow);
        }
        known.last_request = now;
        known.demand = known.demand.saturating_add(work);
        known.note_priority(priority);
        let may = known.take(now, work, priority);
        if may {
            known.passed = known.passed.saturating_add(work);
        }
        may
    }

    /// Records a request that arrived at `entered` and was not answered in time, or was refused for
    /// that reason.
    pub(crate) fn on_loss(&mut self, entered: Time, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        if entered >= self.held_since {
            known.lost = known.lost.saturating_add(work);
        }
        known.losses = (known.losses + 1).min(2 * HARMED);
        let little =
            known.demand.min(known.had.saturating_mul(2)).saturating_mul(self.active.len() as i64) < self.capacity;
        if little && known.losses >= HARMED {
            if self.tick >= self.harmed_until {
                let again = self.tick - self.harmed_until < self.remembered;
                self.remembered = if again { (2 * self.remembered).min(LONGEST) } else { REMEMBERED };
            }
            self.harmed_until = self.tick + self.remembered;
        }
    }

    /// Records an admitted request that has been answered in time.
    pub(crate) fn on_answer(&mut self, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        known.had = known.had.saturating_add(work);
    }

    /// Records a withdrawn request, whose work is no longer demanded.
    pub(crate) fn on_withdrawal(&mut self, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        known.demand = (known.demand - work).max(i64::from(known.demand > 0));
    }

    /// Divides the devices again if a tick has passed; returns whether it has.
    pub(crate) fn tick(&mut self, now: Time, devices: &mut DeviceUse) -> bool {
        let tick = now.0.div_euclid(TICK_NS);
        let passed = tick - self.tick;
        if passed <= 0 {
            return false;
        }
        self.tick = tick;
        if !self.active.is_empty() {
            self.grow(passed.min(64));
            self.adapt(devices.utilisation(now));
            self.capacity = devices.within(SECOND);
            self.divide(now);
            self.fade(passed.min(64));
        }
        true
    }

    /// Records that demands have been observed for `ticks` more ticks.
    fn grow(&mut self, ticks: i64) {
        for &flow in &self.active {
            let known = &mut self.flows[flow as usize].known;
            (0..ticks).for_each(|_| *known += (WHOLE - *known) / FADE);
        }
    }

    /// Reduces the divided part if flows with small demands lose requests while devices are busy.
    /// Losses while devices are idle are not caused by the shares of other flows.
    fn adapt(&mut self, utilisation: Permille) {
        let (mut passed, mut lost, mut held) = (0_i64, 0_i64, false);
        for flow in self.active.iter().map(|&flow| &self.flows[flow as usize]) {
            match flow.allowed {
                Some(_) => held = true,
                None => (passed, lost) = (passed.saturating_add(flow.passed), lost.saturating_add(flow.lost)),
            }
        }
        let harmed = held && lost.saturating_mul(LOSS) > passed && utilisation > BUSY;
        self.divided = if harmed { self.divided - self.divided / 64 } else { self.divided + 2 }.clamp(LEAST, ALL);
    }

    /// Divides in max-min fair shares: between models by weight, then between the clients of each
    /// model above its share.
    fn divide(&mut self, now: Time) {
        let flows = || self.active.iter().map(|&flow| &self.flows[flow as usize]);
        let several = flows().filter(|flow| now - flow.last_request < GONE).count() > 1;
        let mixed = flows().any(|flow| flow.mixed);
        let contended = mixed || (several && self.tick < self.harmed_until);
        let level = self.level().filter(|_| contended);
        if level.is_none() {
            self.held_since = now;
        }
        let Shares { flows, active, claims, parts, .. } = self;
        for claim in claims.iter() {
            let own = active.iter().filter(|&&flow| flow / CLIENTS as u32 == claim.name);
            let share = level.map(|level| level.share(claim)).filter(|&share| share < claim.demand);
            let level = share.and_then(|share| {
                parts.clear();
                let part = |&flow: &u32| Claim { demand: flows[flow as usize].rate(), weight: 1, name: flow };
                parts.extend(own.clone().map(part));
                fill(parts, share)
            });
            for &flow in own {
                let known = &mut flows[flow as usize];
                let claim = Claim { demand: known.rate(), weight: 1, name: flow };
                let share = level.map(|level| level.share(&claim)).filter(|&share| share < claim.demand);
                known.allowed = share;
            }
        }
    }

    /// Returns the level of models' shares if their demands do not all fit; leaves the claims in
    /// order.
    fn level(&mut self) -> Option<Level> {
        let Shares { flows, active, weights, claims, .. } = self;
        claims.clear();
        for &flow in active.iter() {
            let (name, demand) = (flow / CLIENTS as u32, flows[flow as usize].rate());
            match claims.iter_mut().find(|claim| claim.name == name) {
                Some(claim) => claim.demand = claim.demand.saturating_add(demand),
                None => claims.push(Claim { demand, weight: weights[name as usize], name }),
            }
        }
        let capacity = (i128::from(self.capacity) * i128::from(self.divided) / i128::from(ALL)) as i64;
        fill(claims, capacity)
    }

    fn fade(&mut self, ticks: i64) {
        let flows = &mut self.flows;
        self.active.retain(|&flow| {
            let known = &mut flows[flow as usize];
            for _ in 0..ticks {
                known.demand -= (known.demand + FADE - 1) / FADE;
                known.had -= (known.had + FADE - 1) / FADE;
            }
            known.age(ticks);
            if known.demand == 0 {
                *known = Flow::default();
            }
            known.demand > 0
        });
    }
}

impl Flow {
    /// Returns the demanded device time per second.
    fn rate(&self) -> i64 {
        (i128::from(self.demand) * i128::from(WHOLE) / i128::from(self.known.max(WHOLE / FADE))) as i64
    }

    fn note_priority(&mut self, priority: u8) {
        self.mixed |= self.ranked && priority != self.top;
        self.ranked = true;
        if priority >= self.top {
            (self.top, self.top_age) = (priority, 0);
        }
    }

    fn age(&mut self, ticks: i64) {
        self.passed -= self.passed / 2;
        self.lost -= self.lost / 2;
        self.top_age = self.top_age.saturating_add(ticks as u8);
        self.losses_age = self.losses_age.saturating_add(ticks as u8);
        self.losses = self.losses.saturating_sub(u16::from(self.losses_age / FADE as u8));
        self.losses_age %= FADE as u8;
        if i64::from(self.top_age) > FADE {
            (self.top, self.ranked, self.mixed) = (0, false, false);
        }
    }

    /// Takes tokens for `work` if the flow is limited; returns whether there were enough. A request
    /// of a lower priority must leave half the bucket.
    fn take(&mut self, now: Time, work: i64, priority: u8) -> bool {
        let Some(rate) = self.allowed else { return true };
        let (burst, passed) = ((rate / 4).max(work), now - self.filled);
        let more = (i128::from(rate) * i128::from(passed.0) / i128::from(SECOND.0)).min(i128::from(burst)) as i64;
        // Steps of less than a nanosecond are not added yet, so that rounding loses nothing.
        if more > 0 {
            (self.tokens, self.filled) = ((self.tokens + more).min(burst), now);
        }
        let outranked = priority < self.top && self.starved < STARVED;
        let may = self.tokens >= if outranked { work.saturating_add(burst / 2) } else { work };
        if may {
            self.tokens -= work;
        }
        if priority < self.top {
            self.starved = if may { 0 } else { self.starved.saturating_add(1) };
        }
        may
    }
}

/// The share per unit of weight if demands do not all fit.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Capacity that is left for the claims that do not fit.
    left: i64,
    /// Sum of the weights of these claims.
    weight: i64,
}

impl Level {
    fn share(self, claim: &Claim) -> i64 {
        (i128::from(self.left) * i128::from(claim.weight) / i128::from(self.weight)) as i64
    }
}

/// Divides `capacity` between claims by weight, smallest demand per weight first; `None` if all
/// fit.
fn fill(claims: &mut [Claim], capacity: i64) -> Option<Level> {
    let by_need = |a: &Claim, b: &Claim| {
        let (left, right) = (i128::from(a.demand) * i128::from(b.weight), i128::from(b.demand) * i128::from(a.weight));
        left.cmp(&right).then(a.name.cmp(&b.name))
    };
    claims.sort_unstable_by(by_need);
    let mut level = Level { left: capacity, weight: claims.iter().map(|claim| i64::from(claim.weight)).sum() };
    for claim in claims.iter() {
        if claim.demand > level.share(claim) {
            return Some(level);
        }
        level.left -= claim.demand;
        level.weight -= i64::from(claim.weight);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { models: 3, ..Limits::ONE };
    const MS: i64 = 1_000_000;

    /// Returns the admitted device time of each flow, in hundredths, when it demands this much
    /// every millisecond.
    fn served(shares: &mut Shares, flows: &[(u32, i64, u8)]) -> Vec<i64> {
        let mut passed = vec![0; flows.len()];
        for at in 0..20_000 {
            let now = Time(at * MS);
            shares.tick(now, &mut DeviceUse::new(&LIMITS, 1, 1));
            if flows.len() > 1 {
                shares.on_loss(now, flows[0].0, 0);
            }
            for (&(flow, percent, priority), passed) in flows.iter().zip(&mut passed) {
                let work = percent * MS / 100;
                if shares.admit(now, flow, work, priority) && at >= 10_000 {
                    *passed += work;
                }
            }
        }
        passed.iter().map(|passed| (passed + 50 * MS) / (100 * MS)).collect()
    }

    #[test]
    fn a_flow_below_its_share_is_admitted_whole_and_the_others_divide_the_rest() {
        let flows = [(0, 10, 0), (CLIENTS as u32, 300, 0), (2 * CLIENTS as u32, 90, 0)];
        let mut shares = Shares::new(&LIMITS);
        assert_eq!(served(&mut shares, &flows), [10, 45, 45]);
        let mut shares = Shares::new(&LIMITS);
        shares.set_weight(ModelId(1), 2);
        assert_eq!(served(&mut shares, &flows), [10, 60, 30]);
    }

    #[test]
    fn clients_divide_the_share_of_their_model() {
        let flows = [(1, 5, 0), (0, 200, 0), (2, 200, 0), (CLIENTS as u32, 200, 0)];
        assert_eq!(served(&mut Shares::new(&LIMITS), &flows), [5, 23, 23, 50]);
    }

    #[test]
    fn no_flow_is_limited_unless_a_small_one_loses_requests() {
        let mut shares = Shares::new(&LIMITS);
        let mut asks = |at: i64, lose: bool| {
            let now = Time(at * MS);
            shares.tick(now, &mut DeviceUse::new(&LIMITS, 1, 1));
            let little = shares.admit(now, 0, MS / 100, 0);
            if lose {
                shares.on_loss(now, 0, MS / 100);
            }
            (little, (0..4).filter(|_| shares.admit(now, CLIENTS as u32, MS, 0)).count())
        };
        assert!((0..5_000).all(|at| asks(at, false) == (true, 4)));
        for at in 5_000..5_300 {
            asks(at, true);
        }
        let let_in: usize = (6_000..10_000).map(|at| asks(at, false).1).sum();
        assert!((3_500..4_300).contains(&let_in), "{let_in}");
        assert!((80_000..81_000).all(|at| asks(at, false) == (true, 4)));
    }

    #[test]
    fn a_flow_that_has_stopped_limits_no_other() {
        let mut shares = Shares::new(&LIMITS);
        let mut asks = |at: i64, both: bool| {
            let now = Time(at * MS);
            shares.tick(now, &mut DeviceUse::new(&LIMITS, 1, 1));
            if both {
                shares.admit(now, 0, MS, 0);
                shares.on_loss(now, 0, 0);
            }
            (0..2).filter(|_| shares.admit(now, CLIENTS as u32, MS, 0)).count()
        };
        let limited: usize = (0..3_000).map(|at| asks(at, true)).sum();
        assert!(limited < 3_000, "{limited}");
        let silent = 3_000 + GONE.0 / MS + TICK_NS / MS;
        let held = (3_000..silent).filter(|&at| asks(at, false) < 2).count();
        assert!(held > 0, "its last requests count for a while");
        assert!((silent..silent + 1_000).all(|at| asks(at, false) == 2));
    }

    #[test]
    fn one_loss_in_a_second_is_forgiven() {
        let mut shares = Shares::new(&LIMITS);
        for at in 0..60_000 {
            let now = Time(at * MS);
            shares.tick(now, &mut DeviceUse::new(&LIMITS, 1, 1));
            if at % 50 == 0 {
                assert!(shares.admit(now, 0, MS / 100, 0));
            }
            if at % 1_200 == 0 {
                shares.on_loss(now, 0, MS / 100);
            }
            assert!((0..4).all(|_| shares.admit(now, CLIENTS as u32, MS, 0)), "{at} ms");
        }
    }

    #[test]
    fn a_flow_is_the_only_one_a_second_after_the_others() {
        let mut shares = Shares::new(&LIMITS);
        shares.admit(Time(0), 1, MS, 0);
        shares.admit(Time(1), 0, MS, 0);
        let sole = |ms: i64| shares.is_sole(Time(ms * MS), 0);
        assert_eq!((sole(0), sole(999), sole(1_000)), (false, false, true));
        assert!(!shares.is_sole(Time(SECOND.0), 1), "the other's request is a nanosecond younger");
    }

    #[test]
    fn one_flow_alone_is_never_held_back() {
        assert_eq!(served(&mut Shares::new(&LIMITS), &[(0, 1000, 0)]), [1000]);
    }

    #[test]
    fn a_higher_priority_goes_first_and_a_lower_one_does_not_starve() {
        let served = served(&mut Shares::new(&LIMITS), &[(0, 60, 1), (0, 200, 0)]);
        assert_eq!(served[0], 60, "{served:?}");
        assert!(served[1] >= 10 && served[0] + served[1] <= 101, "{served:?}");
    }
}
