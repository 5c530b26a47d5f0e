//! Time as signed integer nanoseconds.
//!
//! Integers ensure that decisions are equal bit for bit on every run and machine. Signed values
//! allow a time before the origin, such as a deadline minus a latency; saturation at zero would
//! hide it. `std::time::Instant` is not used, because it has no zero and no "never", and can only
//! be obtained from a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Nanos(pub i64);

/// An instant, in nanoseconds since the run's origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Time(pub i64);

impl Nanos {
    /// The empty span.
    pub const ZERO: Nanos = Nanos(0);
    /// The longest span. A time plus this span is [`Time::NEVER`].
    pub const MAX: Nanos = Nanos(i64::MAX);

    /// Creates a span of whole microseconds.
    pub const fn from_micros(micros: i64) -> Nanos {
        Nanos(micros * 1_000)
    }

    /// Creates a span of whole milliseconds.
    pub const fn from_millis(millis: i64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    /// Creates a span from fractional milliseconds, rounded to the nearest nanosecond. Saturates.
    pub fn from_millis_f64(millis: f64) -> Nanos {
        Nanos((millis * 1e6).round() as i64)
    }

    /// Creates a span from fractional seconds, rounded to the nearest nanosecond. Saturates.
    pub fn from_secs_f64(secs: f64) -> Nanos {
        Nanos((secs * 1e9).round() as i64)
    }

    /// Returns this span in milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns this span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns `self · numerator / denominator`. The product does not overflow.
    pub fn scale(self, numerator: u64, denominator: u64) -> Nanos {
        let denominator = denominator.max(1);
        // Avoids a 128-bit division, which takes a hundred instructions, for most spans.
        let narrow = i64::try_from(numerator).ok().and_then(|numerator| self.0.checked_mul(numerator));
        if let (Some(product), Ok(denominator)) = (narrow, i64::try_from(denominator)) {
            return Nanos(product / denominator);
        }
        let scaled = i128::from(self.0) * i128::from(numerator) / i128::from(denominator);
        Nanos(scaled.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }
}

impl Time {
    /// The origin of the run.
    pub const ORIGIN: Time = Time(0);
    /// A time later than every instant.
    pub const NEVER: Time = Time(i64::MAX);

    /// Returns the next instant, one nanosecond later.
    pub fn next(self) -> Time {
        Time(self.0.saturating_add(1))
    }

    /// Returns the time since the origin in milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl Mul<i64> for Nanos {
    type Output = Nanos;
    fn mul(self, factor: i64) -> Nanos {
        Nanos(self.0.saturating_mul(factor))
    }
}

impl std::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(spans: I) -> Nanos {
        spans.fold(Nanos::ZERO, Add::add)
    }
}

impl Add<Nanos> for Time {
    type Output = Time;
    fn add(self, span: Nanos) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Nanos> for Time {
    type Output = Time;
    fn sub(self, span: Nanos) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Sub for Time {
    type Output = Nanos;
    fn sub(self, other: Time) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Time::NEVER { f.write_str("never") } else { write!(f, "t={} ns", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_absorbs_additions() {
        assert_eq!(Time::NEVER + Nanos(5), Time::NEVER);
        assert_eq!(Time(3) + Nanos::MAX, Time::NEVER);
        assert_eq!(Time::NEVER.next(), Time::NEVER);
    }

    #[test]
    fn a_deadline_minus_a_latency_may_lie_before_the_origin() {
        assert_eq!(Time(5) - Nanos(8), Time(-3));
    }

    #[test]
    fn scale_does_not_overflow_in_between() {
        assert_eq!(Nanos(i64::MAX / 2).scale(3, 4), Nanos(((i64::MAX / 2) as i128 * 3 / 4) as i64));
        assert_eq!(Nanos(10).scale(1, 0), Nanos(10));
    }

    #[test]
    fn milliseconds_round_to_the_nearest_nanosecond() {
        assert_eq!(Nanos::from_millis_f64(1.053), Nanos(1_053_000));
        assert_eq!(Nanos::from_millis_f64(0.000_000_6), Nanos(1));
    }
}
