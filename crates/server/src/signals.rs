//! The signals that an autoscaler follows, over the last seconds: bad rate, idle fraction, devices that the load needs.
//!
//! A task samples the counters once a second, whoever scrapes and how often, so that all readers see the same window.
//! Before the second sample there is nothing to say, and the metrics are left out: a made-up value would be acted upon.

use parking_lot::Mutex;
use ripieno_base::{Nanos, Time};
use ripieno_report::{ModelTotals, Reading, Signals, Totals};
use std::time::{Duration, Instant};

/// How far back the signals look.
const WINDOW: Nanos = Nanos::from_millis(10_000);
/// How often they are sampled.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The signals of a server that runs.
pub(crate) struct LiveSignals {
    started: Instant,
    signals: Mutex<Signals>,
    /// When samples were taken last, and how long devices were there in all until then.
    present: Mutex<(Nanos, Nanos)>,
}

impl LiveSignals {
    pub(crate) fn new() -> LiveSignals {
        LiveSignals { started: Instant::now(), signals: Mutex::new(Signals::new(WINDOW)), present: Mutex::default() }
    }

    /// The signals now; none in the first second.
    pub(crate) fn reading(&self) -> Option<Reading> {
        self.signals.lock().reading()
    }

    /// Forgets what it has seen: it was not the whole of it.
    pub(crate) fn clear(&self) {
        *self.signals.lock() = Signals::new(WINDOW);
    }

    /// Takes in the counters, read now, when so many devices are there.
    pub(crate) fn sample(&self, devices: usize, models: Vec<(u64, ModelTotals)>) {
        let since_start = Nanos(i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX));
        let mut present = self.present.lock();
        *present = (since_start, present.1 + (since_start - present.0) * devices as i64);
        self.signals.lock().observe(Time::ORIGIN + since_start, Totals { present: present.1, models });
    }
}
