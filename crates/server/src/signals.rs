//! The signals that an autoscaler follows, over the last seconds: bad rate, idle fraction, devices that the load needs.
//!
//! A task samples the counters once a second, whoever scrapes and how often, so that all readers see the same window.
//! Before the second sample there is nothing to say, and the metrics are left out: a made-up value would be acted upon.

use crate::state::State;
use parking_lot::Mutex;
use ripieno_base::{Nanos, Time};
use ripieno_report::{Reading, Signals, Totals};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// How far back the signals look.
const WINDOW: Nanos = Nanos::from_millis(10_000);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The signals of a server that runs.
pub(crate) struct LiveSignals {
    started: Instant,
    signals: Mutex<Signals>,
}

impl LiveSignals {
    pub(crate) fn new() -> LiveSignals {
        LiveSignals { started: Instant::now(), signals: Mutex::new(Signals::new(WINDOW)) }
    }

    /// The signals now; none in the first second.
    pub(crate) fn reading(&self) -> Option<Reading> {
        self.signals.lock().reading()
    }

    fn sample(&self, state: &State) {
        let since_start = Nanos(i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX));
        let totals = totals(state, since_start);
        self.signals.lock().observe(Time::ORIGIN + since_start, totals);
    }
}

/// Samples until the server goes down.
pub(crate) async fn keep_sampling(state: Arc<State>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => state.signals.sample(&state),
            () = state.drained() => return,
        }
    }
}

fn totals(state: &State, since_start: Nanos) -> Totals {
    let entries = state.registry.ready_entries();
    let model = |id| state.backend.model(id).map(|model| (u64::from(id.0), model.totals()));
    let mut models: Vec<_> = entries.iter().filter_map(|entry| model(entry.id)).collect();
    models.sort_unstable_by_key(|&(id, _)| id);
    Totals { present: since_start * state.backend.devices().len() as i64, models }
}
