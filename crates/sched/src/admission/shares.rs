//! Whose turn it is when there is too much: max-min fair shares of the devices between models, and of a model's share
//! between its clients.
//!
//! A *flow* is what one client sends to one model. Its demand is the device time a second that its requests ask for, in a
//! window of about a second, and of a quarter of one. While all demands together fit in both, nobody is held back. When they do
//! not, each has a share of the devices: models in proportion to their weights, clients of a model equally, and what somebody
//! does not need goes to the others. Who asks for less than the share is let in whole. Who asks for more gives way to them
//! ([`YieldsTo`]): it leaves room in the queue. If somebody who asks for little, or has little, loses requests all the same, those who
//! ask for more are let in at the rate of their shares, by a token bucket, for a minute from then on.
//!
//! How much fits is reckoned from profiles and corrected by what is seen: when flows that are let in whole lose requests
//! all the same, less is given to the others.
//!
//! Rejected: fair queueing in front of the policy. It would hold requests back from policies that choose batches by what waits, and
//! a wait there is time that the request lacks later. Fair shares of each policy's own queues: there are a dozen.

use super::devices::DeviceTimes;
use crate::Limits;
use ripieno_base::{ModelId, Nanos, Time};

/// Clients of a model that are told apart; further ones share with one of these.
pub(crate) const CLIENTS: usize = 64;
const TICK_NS: i64 = 125_000_000;
/// Demands fade by one part in so many each tick, and so are known over that many ticks: a second.
const FADE: i64 = 8;
/// That somebody was hurt is remembered for so many ticks: a minute. If somebody is hurt again within as long after that, it is
/// remembered twice as long: an hour at most.
const REMEMBERED: i64 = 480;
const LONGEST: i64 = 60 * REMEMBERED;
/// So many lost requests hurt; one in a second is forgiven.
const HURT: u16 = 8;
const SECOND: Nanos = Nanos(1_000_000_000);
/// The part of the devices that is divided, in parts of 1024: at most all, at least half.
const ALL: i64 = 1024;
const LEAST: i64 = 512;
/// One, as a fraction of a second that a flow is known.
const WHOLE: i64 = 1 << 20;
/// Recent demands stand for one part in so many of a second.
const RECENT: i64 = 4;
/// One lost request in so many of those who may not lose any is too much.
const LOSS: i64 = 64;
/// Of so many refused requests of a lower priority in a row, one is let in.
const STARVED: u8 = 16;

/// The flows and what each may have.
#[derive(Debug)]
pub(crate) struct Shares {
    flows: Vec<Flow>,
    /// Flows with a demand.
    active: Vec<u32>,
    weights: Vec<u32>,
    tick: i64,
    /// Until which tick somebody who asks for less than an equal part, or has less than half of one, has lost requests of late.
    hurt_until: i64,
    /// For how many ticks that is remembered.
    remembered: i64,
    /// Since when those who ask for more have been held back: who is late from before says nothing of what is divided.
    held_since: Time,
    /// Device time a second, all of it.
    capacity: i64,
    /// What is divided, in parts of [`ALL`].
    divided: i64,
    /// Room for dividing: models, and the clients of one.
    claims: Vec<Claim>,
    parts: Vec<Claim>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Device time asked for, fading: in a steady state that of a second.
    demand: i64,
    /// The part of a second that it stands for, in parts of [`WHOLE`]: less than all as long as the flow is young.
    known: i64,
    /// What was asked for, fading faster: in a steady state that of a quarter of a second.
    recent: i64,
    /// The same of what was answered in time.
    had: i64,
    /// To whom it gives way.
    yields: YieldsTo,
    /// Nanoseconds a second that it may have; none: as much as it asks for.
    allowed: Option<i64>,
    tokens: i64,
    filled: Time,
    /// Of what was let in: work, and the part that was not answered in time.
    passed: i64,
    lost: i64,
    losses: u16,
    /// For how many ticks the last of them has not been forgiven.
    losses_age: u8,
    /// The highest priority of the last second, and how long ago it was seen.
    top: u8,
    /// Whether one was seen.
    ranked: bool,
    top_age: u8,
    /// Whether it has had several priorities lately.
    mixed: bool,
    starved: u8,
}

/// Who asks for less than the share, seen from a flow that asks for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum YieldsTo {
    /// Nobody, or it does not ask for more itself.
    #[default]
    Nobody,
    /// Other models.
    Models,
    /// Other clients of its model, perhaps other models as well.
    Clients,
}

/// What a flow asks for in a second.
type DemandOf = fn(&Flow) -> i64;

/// Somebody's demand, weight, and name.
#[derive(Clone, Copy, Debug)]
struct Claim {
    demand: i64,
    weight: u32,
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
            hurt_until: i64::MIN / 2,
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

    /// The flow of a client's requests for a model.
    pub(crate) fn flow(model: ModelId, client: u16) -> u32 {
        (model.index() * CLIENTS + usize::from(client) % CLIENTS) as u32
    }

    /// To whom a flow gives way since it asks for more than its share.
    pub(crate) fn yields(&self, flow: u32) -> YieldsTo {
        self.flows[flow as usize].yields
    }

    /// Whether requests of a higher priority than this have come lately.
    pub(crate) fn is_outranked(&self, flow: u32, priority: u8) -> bool {
        self.flows[flow as usize].top > priority
    }

    /// A request that asks for `work` has come: whether its flow may have it.
    pub(crate) fn ask(&mut self, now: Time, flow: u32, work: i64, priority: u8) -> bool {
        let known = &mut self.flows[flow as usize];
        if known.demand == 0 {
            self.active.push(flow);
        }
        known.demand = known.demand.saturating_add(work);
        known.recent = known.recent.saturating_add(work);
        known.rank(priority);
        let may = known.take(now, work, priority);
        if may {
            known.passed = known.passed.saturating_add(work);
        }
        may
    }

    /// A request that came at `entered` has not been answered in time, or was not let in since it would not have been.
    pub(crate) fn on_loss(&mut self, entered: Time, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        if entered >= self.held_since {
            known.lost = known.lost.saturating_add(work);
        }
        known.losses = (known.losses + 1).min(2 * HURT);
        let little =
            known.demand.min(known.had.saturating_mul(2)).saturating_mul(self.active.len() as i64) < self.capacity;
        if little && known.losses >= HURT {
            if self.tick >= self.hurt_until {
                let again = self.tick - self.hurt_until < self.remembered;
                self.remembered = if again { (2 * self.remembered).min(LONGEST) } else { REMEMBERED };
            }
            self.hurt_until = self.tick + self.remembered;
        }
    }

    /// A request that was let in has been answered in time.
    pub(crate) fn on_answer(&mut self, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        known.had = known.had.saturating_add(work);
    }

    /// A request was withdrawn: nobody wants its work any more.
    pub(crate) fn on_withdrawal(&mut self, flow: u32, work: i64) {
        let known = &mut self.flows[flow as usize];
        known.demand = (known.demand - work).max(i64::from(known.demand > 0));
    }

    /// Divides anew if it is time; whether it was.
    pub(crate) fn tick(&mut self, now: Time, devices: &DeviceTimes) -> bool {
        let tick = now.0.div_euclid(TICK_NS);
        let passed = tick - self.tick;
        if passed <= 0 {
            return false;
        }
        self.tick = tick;
        if !self.active.is_empty() {
            self.grow(passed.min(64));
            self.adapt();
            self.capacity = devices.within(SECOND);
            self.divide(now);
            self.fade(passed.min(64));
        }
        true
    }

    /// Demands have been seen for so many ticks more.
    fn grow(&mut self, ticks: i64) {
        for &flow in &self.active {
            let known = &mut self.flows[flow as usize].known;
            (0..ticks).for_each(|_| *known += (WHOLE - *known) / FADE);
        }
    }

    /// Gives the others less when those who ask for little lose requests.
    fn adapt(&mut self) {
        let (mut passed, mut lost, mut held) = (0_i64, 0_i64, false);
        for flow in self.active.iter().map(|&flow| &self.flows[flow as usize]) {
            match flow.allowed {
                Some(_) => held = true,
                None => (passed, lost) = (passed.saturating_add(flow.passed), lost.saturating_add(flow.lost)),
            }
        }
        let hurt = held && lost.saturating_mul(LOSS) > passed;
        self.divided = if hurt { self.divided - self.divided / 64 } else { self.divided + 2 }.clamp(LEAST, ALL);
    }

    /// Max-min fair shares: between models by weight, then between the clients of each model that asks for more.
    fn divide(&mut self, now: Time) {
        let flows = || self.active.iter().map(|&flow| &self.flows[flow as usize]);
        let (several, mixed) = (self.active.len() > 1, flows().any(|flow| flow.mixed));
        let contended = mixed || (several && self.tick < self.hurt_until);
        // What fits over a second may not fit now: a load that has just begun fills the queue within less than that.
        let mut demand: DemandOf = Flow::rate;
        let mut level = self.level(demand);
        let steps_up = level.is_none();
        if steps_up {
            demand = |flow| flow.recent.saturating_mul(RECENT);
            level = self.level(demand);
        }
        let level = level.filter(|_| several || mixed);
        let holds = contended && !steps_up;
        if !holds {
            self.held_since = now;
        }
        let Shares { flows, active, claims, parts, .. } = self;
        for claim in claims.iter() {
            let own = active.iter().filter(|&&flow| flow / CLIENTS as u32 == claim.name);
            let share = level.map(|level| level.share(claim)).filter(|&share| share < claim.demand);
            let level = share.and_then(|share| {
                parts.clear();
                let part = |&flow: &u32| Claim { demand: demand(&flows[flow as usize]), weight: 1, name: flow };
                parts.extend(own.clone().map(part));
                fill(parts, share)
            });
            for &flow in own {
                let known = &mut flows[flow as usize];
                let claim = Claim { demand: demand(known), weight: 1, name: flow };
                let share = level.map(|level| level.share(&claim)).filter(|&share| share < claim.demand);
                known.yields = if share.is_some() { YieldsTo::Clients } else { YieldsTo::Nobody };
                known.allow(now, share.filter(|_| holds));
            }
        }
        self.find_modest();
    }

    /// Who asks for more gives way only to those who do not, where there are any.
    fn find_modest(&mut self) {
        let Shares { flows, active, claims, .. } = self;
        let modest = |flows: &[Flow], flow: u32| flows[flow as usize].yields == YieldsTo::Nobody;
        let most = match active.iter().any(|&flow| modest(flows, flow)) {
            true => YieldsTo::Models,
            false => YieldsTo::Nobody,
        };
        for claim in claims.iter() {
            let own = || active.iter().copied().filter(|flow| flow / CLIENTS as u32 == claim.name);
            if !own().any(|flow| modest(flows, flow)) {
                own().for_each(|flow| flows[flow as usize].yields = most);
            }
        }
    }

    /// How much each model may have if their demands do not all fit; leaves the claims in order.
    fn level(&mut self, demand: DemandOf) -> Option<Level> {
        let Shares { flows, active, weights, claims, .. } = self;
        claims.clear();
        for &flow in active.iter() {
            let (name, demand) = (flow / CLIENTS as u32, demand(&flows[flow as usize]));
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
                known.recent /= 2;
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
    /// Device time asked for in a second.
    fn rate(&self) -> i64 {
        (i128::from(self.demand) * i128::from(WHOLE) / i128::from(self.known.max(WHOLE / FADE))) as i64
    }

    fn rank(&mut self, priority: u8) {
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

    fn allow(&mut self, now: Time, share: Option<i64>) {
        if self.allowed.is_none() {
            (self.tokens, self.filled) = (0, now);
        }
        self.allowed = share;
    }

    /// Takes tokens for `work`, if it is held back. A lower priority leaves half the bucket to the higher ones.
    fn take(&mut self, now: Time, work: i64, priority: u8) -> bool {
        let Some(rate) = self.allowed else { return true };
        let (burst, passed) = ((rate / 4).max(work), now - self.filled);
        let more = (i128::from(rate) * i128::from(passed.0) / i128::from(SECOND.0)).min(i128::from(burst)) as i64;
        // Small steps are kept for later, so that rounding takes nothing away.
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

/// How much each unit of weight has when demands do not all fit.
#[derive(Clone, Copy, Debug)]
struct Level {
    left: i64,
    weight: i64,
}

impl Level {
    fn share(self, claim: &Claim) -> i64 {
        (i128::from(self.left) * i128::from(claim.weight) / i128::from(self.weight)) as i64
    }
}

/// Divides `capacity` between claims by weight, those who want least for their weight first; none if all fit.
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

    const LIMITS: Limits = Limits { requests: 1, models: 3, devices: 1, lanes: 1, depth: 1, batch: 1, nodes: 0 };
    const MS: i64 = 1_000_000;

    /// What each flow is let in of per second of device time, in hundredths, when it asks for so much of it every millisecond.
    fn served(shares: &mut Shares, flows: &[(u32, i64, u8)]) -> Vec<i64> {
        let mut passed = vec![0; flows.len()];
        for at in 0..20_000 {
            let now = Time(at * MS);
            shares.tick(now, &DeviceTimes::new(&LIMITS, 1));
            if flows.len() > 1 {
                shares.on_loss(now, flows[0].0, 0);
            }
            for (&(flow, percent, priority), passed) in flows.iter().zip(&mut passed) {
                let work = percent * MS / 100;
                if shares.ask(now, flow, work, priority) && at >= 10_000 {
                    *passed += work;
                }
            }
        }
        passed.iter().map(|passed| (passed + 50 * MS) / (100 * MS)).collect()
    }

    #[test]
    fn who_asks_for_less_than_the_share_has_all_of_it_and_the_others_divide_the_rest() {
        let flows = [(0, 10, 0), (CLIENTS as u32, 300, 0), (2 * CLIENTS as u32, 90, 0)];
        let mut shares = Shares::new(&LIMITS);
        assert_eq!(served(&mut shares, &flows), [10, 45, 45]);
        let mut shares = Shares::new(&LIMITS);
        shares.set_weight(ModelId(1), 2);
        assert_eq!(served(&mut shares, &flows), [10, 60, 30]);
    }

    #[test]
    fn clients_divide_what_their_model_has() {
        let flows = [(1, 5, 0), (0, 200, 0), (2, 200, 0), (CLIENTS as u32, 200, 0)];
        assert_eq!(served(&mut Shares::new(&LIMITS), &flows), [5, 23, 23, 50]);
    }

    #[test]
    fn nobody_is_held_back_unless_somebody_who_asks_for_little_is_hurt() {
        let mut shares = Shares::new(&LIMITS);
        let mut asks = |at: i64, lose: bool| {
            let now = Time(at * MS);
            shares.tick(now, &DeviceTimes::new(&LIMITS, 1));
            let little = shares.ask(now, 0, MS / 100, 0);
            if lose {
                shares.on_loss(now, 0, MS / 100);
            }
            (little, (0..4).filter(|_| shares.ask(now, CLIENTS as u32, MS, 0)).count())
        };
        assert!((0..5_000).all(|at| asks(at, false) == (true, 4)));
        for at in 5_000..5_300 {
            asks(at, true);
        }
        let let_in: usize = (6_000..10_000).map(|at| asks(at, false).1).sum();
        assert!((3_500..4_100).contains(&let_in), "{let_in}");
        assert!((80_000..81_000).all(|at| asks(at, false) == (true, 4)));
    }

    #[test]
    fn one_loss_in_a_second_is_forgiven() {
        let mut shares = Shares::new(&LIMITS);
        for at in 0..60_000 {
            let now = Time(at * MS);
            shares.tick(now, &DeviceTimes::new(&LIMITS, 1));
            if at % 50 == 0 {
                assert!(shares.ask(now, 0, MS / 100, 0));
            }
            if at % 1_200 == 0 {
                shares.on_loss(now, 0, MS / 100);
            }
            assert!((0..4).all(|_| shares.ask(now, CLIENTS as u32, MS, 0)), "{at} ms");
        }
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
