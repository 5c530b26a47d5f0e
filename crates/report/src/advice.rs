//! The number of devices that a load needs, from two signals: the bad rate and the idle fraction.
//!
//! Both are signals because deferred scheduling leaves spare devices idle instead of keeping them
//! busy with small batches. So idle time is capacity that can be released, and the bad rate in
//! overload is the share of the load without a device. The rule is from "Symphony: Optimized DNN
//! Model Serving using Deferred Batch Scheduling", section 3.5: with N devices and a bad rate r
//! above a threshold, N·r/(1−r) more; at an idle fraction f, N·f fewer. The paper leaves some
//! choices open; ours are: both numbers round towards more devices, at least one stays, an
//! overloaded window never releases, and one step asks for at most ten times the devices. A model
//! whose SLO no device can meet would ask for more without end; so bad requests while most devices
//! idle are not attributed to the number of devices.
//!
//! With several models r underestimates the need: overload drops the requests of expensive models
//! first, and these are few. So each model's device time is divided by one minus its own bad rate,
//! and the sum is the need of the load. For one model that is the paper's N/(1−r), and it never
//! asks for less than that.
//!
//! The rule alone leaves no margin: after it has released all idle time, any burst is too much.
//! [`ScalingRule::headroom`] and [`ScalingRule::burst`] add one. Live and simulated runs use the
//! same rule.
//!
//! A scheduler for short latencies keeps spare devices busy with small batches, so idle time says
//! nothing about it. [`ScalingRule::LATENCY`] counts the devices that the load would keep busy in
//! the best batches within its SLOs.

use ripieno_base::{Nanos, Time};
use std::collections::VecDeque;

/// Upper bound on the bad rate that is used: at 0.9 ten times the devices are asked for.
const MAX_BAD_RATE: f64 = 0.9;
/// Idle fraction above which bad requests are not attributed to missing devices.
const MAX_IDLE_FRACTION: f64 = 0.5;
/// Tolerance for rounding errors before the number of devices is rounded up.
const ROUNDING: f64 = 1e-6;
/// Number of samples kept: at one per second, four minutes.
const MAX_SAMPLES: usize = 256;

/// Converts the signals to a number of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalingRule {
    /// The bad rate above which devices are added.
    pub threshold: f64,
    /// Target idle fraction, as a margin for growing load. With this and `burst` at 0 the rule is
    /// the paper's; above 0, devices are also added before any request is bad.
    pub headroom: f64,
    /// Devices beyond the busy ones, in square roots of their number: the margin for random
    /// arrivals, which is relatively smaller the more devices share it.
    pub burst: f64,
    /// The devices that count as busy.
    pub counts: BusyDevices,
}

/// The devices that count as busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyDevices {
    /// Those with a task.
    Observed,
    /// Those that the same requests would keep busy in the best batches, at most those with a task.
    InBestBatches,
}

impl ScalingRule {
    /// The paper's rule for few devices, with the usual threshold of 1 % bad requests.
    pub const PAPER: ScalingRule =
        ScalingRule { threshold: 0.01, headroom: 0.0, burst: 0.0, counts: BusyDevices::Observed };
    /// The rule for short latencies: a tenth of the devices is to spare, and more where few devices
    /// share bursts.
    pub const LATENCY: ScalingRule =
        ScalingRule { threshold: 0.01, headroom: 0.1, burst: 0.5, counts: BusyDevices::InBestBatches };

    /// Returns the number of devices that the load of this reading needs, at least 1.
    pub fn desired(&self, reading: &Reading) -> usize {
        let Reading { devices, bad_rate, .. } = *reading;
        let (busy, load) = self.busy_and_load(reading);
        let load = if self.is_bad(reading) { load.max(busy) } else { busy };
        let least = if self.is_overload(reading) { devices / (1.0 - bad_rate.min(MAX_BAD_RATE)) } else { 1.0 };
        let needed = load / (1.0 - self.headroom) + self.burst * load.sqrt();
        ((needed.max(least) - ROUNDING).ceil() as usize).max(1)
    }

    /// Returns true if devices are missing: too many requests are bad, and not for another reason.
    pub fn is_overload(&self, reading: &Reading) -> bool {
        self.is_bad(reading) && reading.idle_fraction <= MAX_IDLE_FRACTION
    }

    fn is_bad(&self, reading: &Reading) -> bool {
        let (busy, load) = self.busy_and_load(reading);
        reading.bad_rate > self.threshold || load * (1.0 - self.threshold) > busy
    }

    /// Returns the devices that count as busy, and those that would if no request had been bad.
    fn busy_and_load(&self, reading: &Reading) -> (f64, f64) {
        match self.counts {
            BusyDevices::Observed => (reading.devices * (1.0 - reading.idle_fraction.clamp(0.0, 1.0)), reading.load),
            BusyDevices::InBestBatches => (reading.best_busy, reading.best_load),
        }
    }
}

impl Default for ScalingRule {
    fn default() -> ScalingRule {
        ScalingRule::PAPER
    }
}

/// Returns the paper's advice: the number of devices to have, given `devices` with this bad rate
/// and idle fraction.
pub fn advice(devices: usize, bad_rate: f64, idle_fraction: f64, threshold: f64) -> usize {
    ScalingRule { threshold, ..ScalingRule::PAPER }.desired(&Reading::new(devices as f64, bad_rate, idle_fraction))
}

/// The signals over a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Mean number of devices present.
    pub devices: f64,
    /// Requests dropped or answered late, over all requests that ended; 0 if none did.
    pub bad_rate: f64,
    /// Requests that failed for another reason than too few devices, over all that ended. They ask
    /// for no devices.
    pub broken_rate: f64,
    /// The fraction of the devices' time without a task.
    pub idle_fraction: f64,
    /// Number of devices that would have been busy if no request had been bad.
    pub load: f64,
    /// Number of devices that the answered requests would have kept busy in the best batches.
    pub best_busy: f64,
    /// The same if no request had been bad.
    pub best_load: f64,
}

impl Reading {
    /// Returns the signals of a load without regard to its models.
    pub fn new(devices: f64, bad_rate: f64, idle_fraction: f64) -> Reading {
        let busy = devices * (1.0 - idle_fraction);
        let load = busy / (1.0 - bad_rate.min(MAX_BAD_RATE));
        Reading { devices, bad_rate, broken_rate: 0.0, idle_fraction, load, best_busy: busy, best_load: load }
    }

    /// Returns the share of the requests that were not answered by their deadline, for any reason.
    pub fn not_in_time(&self) -> f64 {
        self.bad_rate + self.broken_rate
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sum of the times for which devices were present.
    pub present: Nanos,
    /// Counters by model, ascending by a number that is unique to the model.
    pub models: Vec<(u64, ModelTotals)>,
}

/// Counters of one model since it was loaded; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// Requests answered in time.
    pub good: u64,
    /// Requests dropped or answered late.
    pub bad: u64,
    /// Requests that failed, or were refused because a device, process or scheduler was missing.
    pub broken: u64,
    /// Time that devices spent on its tasks.
    pub busy: Nanos,
    /// Rows answered.
    pub rows: u64,
}

impl ModelTotals {
    /// Returns the difference to `earlier`; all of it if a number has fallen, which means that the
    /// model was loaded again.
    fn since(&self, earlier: &ModelTotals) -> ModelTotals {
        let fallen = self.good < earlier.good || self.bad < earlier.bad || self.broken < earlier.broken;
        match fallen || self.busy < earlier.busy || self.rows < earlier.rows {
            true => *self,
            false => ModelTotals {
                good: self.good - earlier.good,
                bad: self.bad - earlier.bad,
                broken: self.broken - earlier.broken,
                busy: self.busy - earlier.busy,
                rows: self.rows - earlier.rows,
            },
        }
    }

    /// Returns the device time that its whole load would have taken, in seconds.
    pub(crate) fn load_s(&self) -> f64 {
        self.busy.as_secs_f64() / self.good_part()
    }

    /// Returns the part of the requests that were good, as far as it counts.
    fn good_part(&self) -> f64 {
        1.0 - ratio(self.bad as f64, (self.good + self.bad) as f64).min(MAX_BAD_RATE)
    }
}

impl Totals {
    /// Returns the difference to `earlier`, without models that have been unloaded since.
    pub fn since(&self, earlier: &Totals) -> Totals {
        let before = |id: u64| earlier.models.binary_search_by_key(&id, |&(id, _)| id).ok();
        let model =
            |&(id, now): &(u64, ModelTotals)| (id, before(id).map_or(now, |at| now.since(&earlier.models[at].1)));
        Totals { present: self.present - earlier.present, models: self.models.iter().map(model).collect() }
    }

    /// Returns the signals, if these are the counters of a time of length `span`.
    ///
    /// `best` returns the number of devices that a model keeps busy in the best batches at a rate
    /// in rows per second. It returns `None` if that is unknown; then the observed time counts.
    pub fn reading(&self, span: Nanos, best: impl Fn(u64, f64) -> Option<f64>) -> Reading {
        let sum =
            |count: fn(&ModelTotals) -> u64| self.models.iter().map(|(_, model)| count(model)).sum::<u64>() as f64;
        let (good, bad, broken) = (sum(|model| model.good), sum(|model| model.bad), sum(|model| model.broken));
        let ended = good + bad + broken;
        let load_s: f64 = self.models.iter().map(|(_, model)| model.load_s()).sum();
        let idle_s = (self.present - self.busy()).as_secs_f64().max(0.0);
        let (mut best_busy, mut best_load) = (0.0, 0.0);
        for (id, model) in &self.models {
            let (observed, good) = (ratio(model.busy.as_secs_f64(), span.as_secs_f64()), model.good_part());
            let offered = ratio(model.rows as f64, span.as_secs_f64()) / good;
            let busy = best(*id, offered).map_or(observed, |all| (all * good).min(observed));
            (best_busy, best_load) = (best_busy + busy, best_load + busy / good);
        }
        Reading {
            best_busy,
            best_load,
            devices: ratio(self.present.as_secs_f64(), span.as_secs_f64()),
            bad_rate: ratio(bad, ended),
            broken_rate: ratio(broken, ended),
            idle_fraction: ratio(idle_s, self.present.as_secs_f64()),
            load: ratio(load_s, span.as_secs_f64()),
        }
    }

    /// Returns the time that devices spent on tasks.
    pub fn busy(&self) -> Nanos {
        self.models.iter().map(|(_, model)| model.busy).sum()
    }
}

/// The signals over a sliding window, which extends to the last sample that is at least a span old.
#[derive(Clone, Debug)]
pub struct Signals {
    span: Nanos,
    samples: VecDeque<(Time, Totals)>,
}

impl Signals {
    /// Returns an empty window of length `span`.
    pub fn new(span: Nanos) -> Signals {
        Signals { span, samples: VecDeque::new() }
    }

    /// Adds a sample; samples come in order of time.
    pub fn observe(&mut self, now: Time, totals: Totals) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, totals));
        while self.samples.get(1).is_some_and(|&(at, _)| now - at >= self.span) {
            self.samples.pop_front();
        }
    }

    /// Returns the signals of the window, as [`Totals::reading`]; `None` before two samples.
    pub fn reading(&self, best: impl Fn(u64, f64) -> Option<f64>) -> Option<Reading> {
        let ((start, first), (end, last)) = (self.samples.front()?, self.samples.back()?);
        (end > start).then(|| last.since(first).reading(*end - *start, best))
    }
}

/// Returns `part / whole`, or 0 if nothing was observed.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_rule_rounds_towards_more_devices() {
        // N·r/(1−r) = 32 · 0.2/0.8 = 8 more; N·f = 32 · 0.3 = 9.6 fewer, so 9.
        assert_eq!((advice(32, 0.2, 0.0, 0.01), advice(32, 0.0, 0.3, 0.01)), (40, 23));
        assert_eq!((advice(32, 0.21, 0.0, 0.01), advice(10, 0.0, 0.3, 0.01)), (41, 7));
        // At the threshold nothing is added, and idle time decides. An overloaded window never
        // releases.
        assert_eq!((advice(10, 0.01, 0.0, 0.01), advice(10, 0.011, 0.5, 0.01)), (10, 11));
    }

    #[test]
    fn one_device_stays_and_growth_is_bounded() {
        assert_eq!((advice(5, 0.0, 1.0, 0.01), advice(1, 0.0, 1.0, 0.01), advice(0, 0.0, 0.0, 0.01)), (1, 1, 1));
        assert_eq!(advice(4, 1.0, 0.0, 0.01), 40);
    }

    #[test]
    fn a_model_that_no_device_can_serve_in_time_asks_for_none() {
        // Only that model: all requests are bad, all devices are idle. Then with another model that
        // keeps three of ten devices busy.
        assert_eq!(advice(10, 1.0, 1.0, 0.01), 1);
        let models = [(0, model(0, 500, 0.0)), (1, model(500, 0, 3.0))];
        let seen = totals(10.0, models).reading(Nanos(1_000_000_000), unknown);
        assert_eq!((ScalingRule::PAPER.desired(&seen), ScalingRule::PAPER.is_overload(&seen)), (3, false));
    }

    #[test]
    fn headroom_is_kept_in_both_directions() {
        let rule = ScalingRule { headroom: 0.1, ..ScalingRule::PAPER };
        let desired = |devices, bad_rate, idle| rule.desired(&Reading::new(devices, bad_rate, idle));
        // Busy 90: a hundred. Busy 45: fifty. Overload with a tenth bad: as many as N/(1−r), and a
        // tenth of them idle.
        assert_eq!((desired(90.0, 0.0, 0.0), desired(90.0, 0.0, 0.5), desired(90.0, 0.1, 0.0)), (100, 50, 112));
        // At the target nothing changes.
        assert_eq!(desired(100.0, 0.0, 0.1), 100);
    }

    #[test]
    fn bursts_need_relatively_less_on_many_devices() {
        let rule = ScalingRule { burst: 0.5, ..ScalingRule::PAPER };
        let desired = |devices, idle| rule.desired(&Reading::new(devices, 0.0, idle));
        assert_eq!((desired(4.0, 0.0), desired(800.0, 0.5), desired(5.0, 1.0)), (5, 410, 1));
    }

    /// The need in the best batches of models whose requests differ in cost.
    fn unknown(_: u64, _: f64) -> Option<f64> {
        None
    }

    #[test]
    fn devices_that_are_busy_with_small_batches_are_released_for_short_latencies() {
        // All ten devices are busy, and 200 rows a second would keep two busy in the best batches.
        let counts = ModelTotals { rows: 200, ..model(200, 0, 10.0) };
        let best = |_: u64, rows_per_s: f64| Some(rows_per_s / 100.0);
        let seen = totals(10.0, [(0, counts)]).reading(Nanos(1_000_000_000), best);
        assert_eq!((seen.best_busy, seen.best_load), (2.0, 2.0));
        // 2 / 0.9 and half a root of 2 for bursts.
        assert_eq!((ScalingRule::LATENCY.desired(&seen), ScalingRule::PAPER.desired(&seen)), (3, 10));
        // With half of the requests bad, by both rules more are needed than there are.
        let counts = ModelTotals { rows: 1_000, ..model(1_000, 1_000, 10.0) };
        let seen = totals(10.0, [(0, counts)]).reading(Nanos(1_000_000_000), best);
        assert_eq!((seen.best_busy, seen.best_load), (10.0, 20.0));
        assert_eq!((ScalingRule::LATENCY.desired(&seen), ScalingRule::PAPER.desired(&seen)), (25, 20));
        // The best batches never take more than was seen; of other models what was seen counts.
        let counts = ModelTotals { rows: 9_000, ..model(9_000, 0, 4.0) };
        for best in [|_: u64, _: f64| Some(90.0), |_: u64, _: f64| None] {
            let seen = totals(10.0, [(0, counts)]).reading(Nanos(1_000_000_000), best);
            assert_eq!((seen.best_busy, ScalingRule::LATENCY.desired(&seen)), (4.0, 6));
        }
    }

    fn at(seconds: i64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn model(good: u64, bad: u64, busy_s: f64) -> ModelTotals {
        ModelTotals { good, bad, busy: Nanos::from_secs_f64(busy_s), ..ModelTotals::default() }
    }

    fn totals<const N: usize>(present_s: f64, models: [(u64, ModelTotals); N]) -> Totals {
        Totals { present: Nanos::from_secs_f64(present_s), models: models.to_vec() }
    }

    #[test]
    fn a_bad_request_of_a_heavy_model_asks_for_more() {
        // Ten devices for a second: five answer all of a light model's requests, five half of a
        // heavy one's.
        let seen =
            totals(10.0, [(0, model(9_900, 0, 5.0)), (1, model(100, 100, 5.0))]).reading(Nanos(1_000_000_000), unknown);
        let expected = Reading { load: 15.0, best_load: 15.0, ..Reading::new(10.0, 100.0 / 10_100.0, 0.0) };
        assert_eq!(seen, expected);
        assert_eq!((ScalingRule::PAPER.desired(&seen), advice(10, seen.bad_rate, 0.0, 0.01)), (15, 10));
    }

    #[test]
    fn the_window_slides() {
        let mut signals = Signals::new(Nanos::from_millis(10_000));
        assert_eq!(signals.reading(unknown), None);
        for second in 0..=30 {
            // From second 15 on every second request is bad and both devices are busy.
            let late = (second - 15).max(0) as u64;
            let model = model(100 * second as u64 - 50 * late, 50 * late, 2.0 * late as f64);
            signals.observe(at(second), totals(2.0 * second as f64, [(7, model)]));
        }
        let overload = Reading::new(2.0, 0.5, 0.0);
        assert_eq!(signals.reading(unknown), Some(overload));
        signals.observe(at(40), totals(80.0, [(7, model(2_250, 750, 30.0))]));
        assert_eq!(signals.reading(unknown), Some(Reading::new(2.0, 0.0, 1.0)));
    }

    #[test]
    fn an_outage_counts_as_bad_and_asks_for_no_devices() {
        // No device is there at all.
        let gone = ModelTotals { broken: 300, ..ModelTotals::default() };
        let seen = totals(0.0, [(0, gone)]).reading(Nanos(1_000_000_000), unknown);
        assert_eq!((seen.not_in_time(), ScalingRule::PAPER.desired(&seen)), (1.0, 1));
        // Four busy devices, and a second model whose engine fails on each request.
        let seen = totals(4.0, [(0, model(700, 0, 4.0)), (1, gone)]).reading(Nanos(1_000_000_000), unknown);
        assert_eq!((seen.not_in_time(), seen.bad_rate, ScalingRule::PAPER.desired(&seen)), (0.3, 0.0, 4));
    }

    #[test]
    fn models_come_go_and_start_anew() {
        let before = totals(1.0, [(1, model(10, 1, 0.5)), (2, model(100, 1, 0.5)), (4, model(7, 0, 0.1))]);
        let after = totals(3.0, [(1, model(30, 2, 1.0)), (2, model(5, 0, 0.25)), (3, model(9, 9, 0.25))]);
        let since = totals(2.0, [(1, model(20, 1, 0.5)), (2, model(5, 0, 0.25)), (3, model(9, 9, 0.25))]);
        assert_eq!(after.since(&before), since);
    }

    #[test]
    fn samples_are_bounded() {
        let mut signals = Signals::new(Nanos::MAX);
        (0..10_000).for_each(|second| signals.observe(at(second), Totals::default()));
        assert_eq!(signals.samples.len(), MAX_SAMPLES);
    }
}
