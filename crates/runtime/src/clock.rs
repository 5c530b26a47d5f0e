//! Wall time as the core counts it: nanoseconds since an origin, never backwards.
//!
//! All of the runtime reads time here, so that "now" means the same to a front-end thread that stamps an arrival and to
//! the scheduler thread that decides about it.

use ripieno_base::{Nanos, Time};
use std::time::{Duration, Instant};

/// Converts between the instants of the operating system and the times of the core.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// The time of `instant`; negative if it lies before the origin.
    pub fn time(&self, instant: Instant) -> Time {
        match instant.checked_duration_since(self.origin) {
            Some(since) => Time(saturating_nanos(since).0),
            None => Time(saturating_nanos(self.origin - instant).0.saturating_neg()),
        }
    }

    /// The instant of `time`; none for [`Time::NEVER`], and the origin for what lies before it.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        if time == Time::NEVER {
            return None;
        }
        self.origin.checked_add(Duration::from_nanos(time.0.max(0).cast_unsigned()))
    }
}

/// A duration as the core counts it; the longest one if it does not fit.
pub(crate) fn saturating_nanos(span: Duration) -> Nanos {
    Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_instants_convert_both_ways() {
        let clock = Clock::start();
        let time = Time(1_234_567_890);
        assert_eq!(clock.time(clock.instant(time).unwrap()), time);
        assert_eq!(clock.instant(Time::NEVER), None);
        assert_eq!(clock.time(clock.instant(Time(-5)).unwrap()), Time::ORIGIN);
        assert!(clock.now() >= Time::ORIGIN);
        assert_eq!(saturating_nanos(Duration::MAX), Nanos::MAX);
    }
}
