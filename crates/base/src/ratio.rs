//! Ratios as integers, whose type names their scale.

use crate::Nanos;
use std::iter::Sum;
use std::ops::{Add, Sub};

/// A ratio in parts: `ONE` parts are the whole. Decisions compare ratios, so they are integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio<const ONE: u64>(u64);

/// A ratio in parts of 1,000.
pub type Permille = Ratio<1_000>;

impl<const ONE: u64> Ratio<ONE> {
    /// The ratio 0.
    pub const ZERO: Ratio<ONE> = Ratio(0);
    /// The ratio 1.
    pub const WHOLE: Ratio<ONE> = Ratio(ONE);

    /// Creates the ratio of this number of parts.
    pub const fn from_parts(parts: u64) -> Ratio<ONE> {
        Ratio(parts)
    }

    /// Returns the ratio of two spans, at least 0. An empty `whole` counts as one nanosecond.
    pub fn of(part: Nanos, whole: Nanos) -> Ratio<ONE> {
        Ratio(part.scale(ONE, whole.0.max(1).cast_unsigned()).0.max(0).cast_unsigned())
    }

    /// Returns the number of parts.
    pub const fn parts(self) -> u64 {
        self.0
    }

    /// Returns what is missing to 1; 0 from 1 on.
    pub const fn complement(self) -> Ratio<ONE> {
        Ratio(ONE.saturating_sub(self.0))
    }

    /// Returns this part of a span.
    pub fn part_of(self, span: Nanos) -> Nanos {
        span.scale(self.0, ONE)
    }

    /// Returns the ratio in parts of 1,000, rounded down.
    pub const fn permille(self) -> Permille {
        Ratio(self.0 * 1_000 / ONE)
    }

    /// Returns the moving mean after one more value, of which the past weighs `memory`.
    pub const fn toward(self, value: Ratio<ONE>, weight: u64, memory: u64) -> Ratio<ONE> {
        Ratio((self.0 * (memory - weight) + value.0 * weight) / memory)
    }
}

impl<const ONE: u64> Add for Ratio<ONE> {
    type Output = Ratio<ONE>;

    fn add(self, other: Ratio<ONE>) -> Ratio<ONE> {
        Ratio(self.0 + other.0)
    }
}

impl<const ONE: u64> Sub for Ratio<ONE> {
    type Output = Ratio<ONE>;

    /// Returns the difference; 0 if `other` is larger.
    fn sub(self, other: Ratio<ONE>) -> Ratio<ONE> {
        Ratio(self.0.saturating_sub(other.0))
    }
}

impl<const ONE: u64> Sum for Ratio<ONE> {
    fn sum<I: Iterator<Item = Ratio<ONE>>>(ratios: I) -> Ratio<ONE> {
        Ratio(ratios.map(|ratio| ratio.0).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_of_spans_and_parts_of_spans_agree() {
        let half = Permille::of(Nanos(3), Nanos(6));
        assert_eq!((half.parts(), half.part_of(Nanos(9)), half.complement()), (500, Nanos(4), half));
        assert_eq!(Permille::of(Nanos(-3), Nanos(6)), Permille::ZERO);
        assert_eq!(Permille::of(Nanos(2), Nanos::ZERO).parts(), 2_000);
        assert_eq!(Ratio::<8>::from_parts(3).permille(), Permille::from_parts(375));
    }

    #[test]
    fn differences_stop_at_zero() {
        let (small, large) = (Permille::from_parts(3), Permille::from_parts(5));
        assert_eq!((small - large, large - small), (Permille::ZERO, Permille::from_parts(2)));
        assert_eq!([small, large].into_iter().sum::<Permille>(), small + large);
    }

    #[test]
    fn a_moving_mean_reaches_a_constant_value() {
        let mut mean = Ratio::<1024>::ZERO;
        (0..200).for_each(|_| mean = mean.toward(Ratio::WHOLE, 1, 8));
        assert!(mean.parts() > 1_015, "{mean:?}");
        assert_eq!(mean.toward(Ratio::ZERO, 8, 8), Ratio::ZERO);
    }
}
