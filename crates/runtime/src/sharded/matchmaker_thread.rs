//! The thread of the matchmaker, which does not sleep: it is meant for a core of its own, where the next mail is always
//! a few microseconds away.

use super::meter::{Meter, Spent};
use crate::Clock;
use crate::shards::MatchmakerLoop;
use ripieno_base::Time;
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes turns until it is told to stop.
pub(super) fn run(mut looped: MatchmakerLoop, clock: Clock, stop: &AtomicBool, counted_from: Time) -> Spent {
    let mut meter = Meter::new(counted_from);
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        meter.begin(now);
        meter.worked(looped.match_at(|| now) > 0);
    }
    meter.spent
}
