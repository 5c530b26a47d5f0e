//! How many devices the load needs, from two signals: the bad rate and the idle fraction.
//!
//! They work as signals because of what deferred scheduling does with spare devices: it leaves them idle instead of
//! keeping them busy with small batches. So idle time is capacity that can go, and the bad rate in overload is the
//! share of the load that there is no device for. The rule is that of "Symphony: Optimized DNN Model Serving using
//! Deferred Batch Scheduling", section 3.5: with N devices and a bad rate r above a threshold, N·r/(1−r) more; at an
//! idle fraction f, N·f fewer. What it leaves open is chosen here: both round towards more devices, at least one stays,
//! a bad window never releases, and one step adds at most ninefold, since a model whose SLO no device can meet would
//! otherwise ask for infinitely many.
//!
//! The rule alone runs at the edge: after it has released all idle time, any burst is too much. [`Rule::headroom`] moves
//! the aim away from it. Live and simulated go through the same [`Signals`].

use ripieno_base::{Nanos, Time};
use std::collections::VecDeque;

/// The most of a bad rate that is believed: at 0.9 ten times the devices are asked for.
const MOST_BAD: f64 = 0.9;
/// What a device count may exceed a whole number by without a further device: the error of the sums before.
const ROUNDING: f64 = 1e-6;
/// Samples kept: at one a second, four minutes.
const MOST_SAMPLES: usize = 256;

/// How the signals turn into a number of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The bad rate above which devices are added.
    pub threshold: f64,
    /// The fraction of time that devices are to stay idle, as margin for bursts and for load that grows meanwhile. With
    /// 0 the rule is the paper's; above, devices are also added before anything is bad, to keep this much idle.
    pub headroom: f64,
}

impl Rule {
    /// The paper's rule, with the threshold at what counts as good everywhere else: 1 % bad.
    pub const PAPER: Rule = Rule { threshold: 0.01, headroom: 0.0 };

    /// The devices that the load of this reading needs, at least 1.
    pub fn desired(&self, reading: &Reading) -> usize {
        let Reading { devices, bad_rate, idle_fraction } = *reading;
        let bad = if bad_rate > self.threshold { bad_rate.min(MOST_BAD) } else { 0.0 };
        let needed = devices * (1.0 - idle_fraction.clamp(0.0, 1.0)) / (1.0 - self.headroom) / (1.0 - bad);
        let floor = if bad > 0.0 { devices / (1.0 - bad) } else { 1.0 };
        ((needed.max(floor) - ROUNDING).ceil() as usize).max(1)
    }
}

impl Default for Rule {
    fn default() -> Rule {
        Rule::PAPER
    }
}

/// The paper's advice: how many devices to have, now that there are `devices` with this bad rate and idle fraction.
pub fn advice(devices: usize, bad_rate: f64, idle_fraction: f64, threshold: f64) -> usize {
    Rule { threshold, ..Rule::PAPER }.desired(&Reading { devices: devices as f64, bad_rate, idle_fraction })
}

/// The signals over some span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The devices that were there, in the mean over time.
    pub devices: f64,
    /// Requests dropped or answered late, over all requests that ended; 0 where none did.
    pub bad_rate: f64,
    /// The fraction of the devices' time that they spent on no task.
    pub idle_fraction: f64,
}

/// What has happened since the start; each number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that have ended.
    pub requests: u64,
    /// Of these, dropped or answered late.
    pub bad: u64,
    /// Time that devices spent on tasks.
    pub busy: Nanos,
    /// Time that devices were there.
    pub present: Nanos,
}

impl Totals {
    /// What happened since `earlier`; none if a number has fallen.
    pub fn since(&self, earlier: &Totals) -> Option<Totals> {
        Some(Totals {
            requests: self.requests.checked_sub(earlier.requests)?,
            bad: self.bad.checked_sub(earlier.bad)?,
            busy: (self.busy >= earlier.busy).then(|| self.busy - earlier.busy)?,
            present: (self.present >= earlier.present).then(|| self.present - earlier.present)?,
        })
    }

    /// The signals, if this is what happened within `span`.
    pub fn reading(&self, span: Nanos) -> Reading {
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let (busy, present) = (self.busy.as_secs_f64(), self.present.as_secs_f64());
        Reading {
            devices: ratio(present, span.as_secs_f64()),
            bad_rate: ratio(self.bad as f64, self.requests as f64),
            idle_fraction: if present > 0.0 { (1.0 - busy / present).clamp(0.0, 1.0) } else { 0.0 },
        }
    }
}

/// The signals over a sliding window.
///
/// It is fed with totals now and then; the window reaches back to the last sample that is at least a span old. A total
/// that falls, since a model was unloaded and took its counters along, starts the window anew.
#[derive(Clone, Debug)]
pub struct Signals {
    span: Nanos,
    samples: VecDeque<(Time, Totals)>,
}

impl Signals {
    /// Signals over `span`.
    pub fn new(span: Nanos) -> Signals {
        Signals { span, samples: VecDeque::with_capacity(MOST_SAMPLES) }
    }

    /// Takes a sample; samples come in order of time.
    pub fn observe(&mut self, now: Time, totals: Totals) {
        if self.samples.back().is_some_and(|(_, last)| totals.since(last).is_none()) {
            self.samples.clear();
        }
        if self.samples.len() == MOST_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, totals));
        while self.samples.get(1).is_some_and(|&(at, _)| now - at >= self.span) {
            self.samples.pop_front();
        }
    }

    /// The signals of the window; none before two samples.
    pub fn reading(&self) -> Option<Reading> {
        let (&(start, first), &(end, last)) = (self.samples.front()?, self.samples.back()?);
        (end > start).then(|| last.since(&first).map(|totals| totals.reading(end - start))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_rule_rounds_towards_more_devices() {
        // N·r/(1−r) = 32 · 0.2/0.8 = 8 more; N·f = 32 · 0.3 = 9.6 fewer, so 9.
        assert_eq!((advice(32, 0.2, 0.0, 0.01), advice(32, 0.0, 0.3, 0.01)), (40, 23));
        assert_eq!((advice(32, 0.21, 0.0, 0.01), advice(10, 0.0, 0.3, 0.01)), (41, 7));
        // At the threshold nothing is added, and idle time decides.
        assert_eq!((advice(10, 0.01, 0.0, 0.01), advice(10, 0.011, 0.5, 0.01)), (10, 11));
    }

    #[test]
    fn one_device_stays_and_growth_is_bounded() {
        assert_eq!((advice(5, 0.0, 1.0, 0.01), advice(1, 0.0, 1.0, 0.01), advice(0, 0.0, 0.0, 0.01)), (1, 1, 1));
        assert_eq!(advice(4, 1.0, 0.0, 0.01), 40);
    }

    #[test]
    fn headroom_is_kept_in_both_directions() {
        let rule = Rule { headroom: 0.1, ..Rule::PAPER };
        let desired = |bad_rate, idle_fraction| rule.desired(&Reading { devices: 90.0, bad_rate, idle_fraction });
        // Busy 90: a hundred. Busy 45: fifty. Overload with a tenth bad: as many as N/(1−r), and a tenth of them idle.
        assert_eq!((desired(0.0, 0.0), desired(0.0, 0.5), desired(0.1, 0.0)), (100, 50, 112));
        // At the aim it stays.
        assert_eq!(rule.desired(&Reading { devices: 100.0, bad_rate: 0.0, idle_fraction: 0.1 }), 100);
        // A bad window never releases, however idle it was.
        assert_eq!(desired(0.02, 0.5), 92);
    }

    fn totals(requests: u64, bad: u64, busy_s: f64, present_s: f64) -> Totals {
        Totals { requests, bad, busy: Nanos::from_secs_f64(busy_s), present: Nanos::from_secs_f64(present_s) }
    }

    fn at(seconds: i64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn the_window_slides() {
        let mut signals = Signals::new(Nanos::from_millis(10_000));
        assert_eq!(signals.reading(), None);
        for second in 0..=30 {
            // From second 15 on every request is bad and both devices are busy.
            let late = (second - 15).max(0) as f64;
            signals
                .observe(at(second), totals(100 * second as u64, 100 * late as u64, 2.0 * late, 2.0 * second as f64));
        }
        assert_eq!(signals.reading(), Some(Reading { devices: 2.0, bad_rate: 1.0, idle_fraction: 0.0 }));
        signals.observe(at(40), totals(3_000, 1_500, 30.0, 80.0));
        assert_eq!(signals.reading(), Some(Reading { devices: 2.0, bad_rate: 0.0, idle_fraction: 1.0 }));
    }

    #[test]
    fn a_total_that_falls_starts_anew() {
        let mut signals = Signals::new(Nanos::from_millis(10_000));
        signals.observe(at(0), totals(100, 50, 0.0, 0.0));
        signals.observe(at(1), totals(10, 0, 0.5, 1.0));
        assert_eq!(signals.reading(), None);
        signals.observe(at(2), totals(20, 5, 1.0, 2.0));
        assert_eq!(signals.reading(), Some(Reading { devices: 1.0, bad_rate: 0.5, idle_fraction: 0.5 }));
    }

    #[test]
    fn samples_are_bounded() {
        let mut signals = Signals::new(Nanos::MAX);
        (0..10_000).for_each(|second| signals.observe(at(second), Totals::default()));
        assert_eq!(signals.samples.len(), MOST_SAMPLES);
    }
}
