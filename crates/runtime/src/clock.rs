//! Wall time as the core counts it: nanoseconds since an origin, never decreasing.
//!
//! All threads of the runtime read this clock. So the arrival times that server threads record can
//! be compared with the scheduler thread's time.

use ripieno_base::{Nanos, Time};
use std::time::{Duration, Instant};

/// Converts between instants of the operating system and times of the core.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock whose origin is the current instant.
    pub fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// Returns the time of `instant`; negative if it lies before the origin.
    pub fn time(&self, instant: Instant) -> Time {
        match instant.checked_duration_since(self.origin) {
            Some(since) => Time(saturating_nanos(since).0),
            None => Time(saturating_nanos(self.origin - instant).0.saturating_neg()),
        }
    }

    /// Returns the instant of `time`; `None` for [`Time::NEVER`], the origin for earlier times.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        if time == Time::NEVER {
            return None;
        }
        self.origin.checked_add(Duration::from_nanos(time.0.max(0).cast_unsigned()))
    }
}

/// Converts a duration to core time, saturating at the largest value.
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
