//! Autoscaling signals over the last seconds: bad rate, idle fraction, devices that the load needs.
//!
//! A task samples the counters once per second, independent of scrapes, so that all readers see the
//! same window. Before the second sample the metrics are omitted, because an autoscaler would act
//! on a placeholder value.

use parking_lot::Mutex;
use ripieno_base::{Nanos, Time};
use ripieno_report::{ModelTotals, Reading, Signals, Totals};
use std::time::{Duration, Instant};

/// Length of the window.
const WINDOW: Nanos = Nanos::from_millis(10_000);
/// Sampling interval.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Signals of a running server.
pub(crate) struct LiveSignals {
    started: Instant,
    signals: Mutex<Signals>,
    /// Time of the last sample, and total device time until then.
    present: Mutex<(Nanos, Nanos)>,
}

impl LiveSignals {
    pub(crate) fn new() -> LiveSignals {
        LiveSignals { started: Instant::now(), signals: Mutex::new(Signals::new(WINDOW)), present: Mutex::default() }
    }

    /// Returns the current signals; `None` in the first second. `best` returns the devices that a
    /// model needs for a rate, as in [`Signals::reading`].
    pub(crate) fn reading(&self, best: impl Fn(u64, f64) -> Option<f64>) -> Option<Reading> {
        self.signals.lock().reading(best)
    }

    /// Clears all samples, which did not cover the whole load.
    pub(crate) fn clear(&self) {
        *self.signals.lock() = Signals::new(WINDOW);
    }

    /// Adds a sample of the counters with the current number of devices.
    pub(crate) fn sample(&self, devices: usize, models: Vec<(u64, ModelTotals)>) {
        let since_start = Nanos(i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX));
        let mut present = self.present.lock();
        *present = (since_start, present.1 + (since_start - present.0) * devices as i64);
        self.signals.lock().observe(Time::ORIGIN + since_start, Totals { present: present.1, models });
    }
}
