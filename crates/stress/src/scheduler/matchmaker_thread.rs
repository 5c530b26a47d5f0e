//! The matchmaker's thread. It never sleeps, because it is meant for a dedicated core on which mail
//! arrives every few microseconds.

use super::meter::{TurnMeter, TurnTime};
use ripieno_base::Time;
use ripieno_runtime::Clock;
use ripieno_runtime::shards::MatchmakerLoop;
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes turns until `stop` is set.
pub(super) fn run(mut event_loop: MatchmakerLoop, clock: Clock, stop: &AtomicBool, counted_from: Time) -> TurnTime {
    let mut meter = TurnMeter::new(counted_from);
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        meter.begin(now);
        meter.worked(event_loop.match_at(|| now) > 0);
    }
    meter.spent
}
