//! The cost of a request relative to its model's profile.
//!
//! A profile is measured with inputs of one size. Requests whose inputs have other sizes cost more
//! or less, by a factor that the driver learns. The driver passes the factor on with each request,
//! so that a recording replays to the same decisions. Steps of 9 % are finer than what batches vary
//! by, and a small integer has no rounding that differs between machines.

use ripieno_base::Nanos;
use ripieno_model::{Block, Profile};

/// Number of steps of a doubling.
const STEPS: i32 = 8;
/// Scale of [`EIGHTHS`].
const ONE: u64 = 1024;
/// 2^(k/8), in parts of [`ONE`].
const EIGHTHS: [u64; STEPS as usize] = [1024, 1117, 1218, 1328, 1448, 1579, 1722, 1878];

/// A factor of the profiled cost, as a binary logarithm in eighths: 8 is twice the profile, -8 half
/// of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CostScale(pub i8);

impl CostScale {
    /// The cost is the profiled one.
    pub const PROFILED: CostScale = CostScale(0);

    /// Returns the factor nearest to a measured duration over the profiled one.
    pub fn measured(took: Nanos, profiled: Nanos) -> CostScale {
        let (mut low, mut high) = (-i8::MAX, i8::MAX);
        while low < high {
            let middle = low + ((i16::from(high) - i16::from(low)) / 2) as i8;
            // Half a step above the factor, as the mean of it and the next.
            let (own, next) = (CostScale(middle).of(profiled), CostScale(middle + 1).of(profiled));
            if took.0 <= own.0 + (next.0 - own.0) / 2 { high = middle } else { low = middle + 1 }
        }
        CostScale(low)
    }

    /// Returns the cost, given the profiled one.
    pub fn of(self, profiled: Nanos) -> Nanos {
        if self == CostScale::PROFILED {
            return profiled;
        }
        let (doublings, eighths) = (i32::from(self.0).div_euclid(STEPS), i32::from(self.0).rem_euclid(STEPS));
        let factor = EIGHTHS[eighths as usize];
        let shift = doublings.unsigned_abs();
        let scaled = if doublings >= 0 { (factor << shift, ONE) } else { (factor, ONE << shift) };
        let least = profiled.min(Nanos(1));
        profiled.scale(scaled.0, scaled.1).max(least)
    }

    /// Returns the reciprocal.
    pub fn inverse(self) -> CostScale {
        CostScale(self.0.saturating_neg())
    }

    /// Returns the number of steps between two factors.
    pub fn distance(self, other: CostScale) -> u8 {
        self.0.abs_diff(other.0)
    }

    /// Returns the profile of a block's batches of such requests.
    pub fn of_profile(self, profile: &Profile) -> Profile {
        let table: Vec<Nanos> = profile.table().iter().map(|&cost| self.of(cost).max(Nanos(1))).collect();
        Profile::from_table(&table).expect("a scaled profile is as long as before, and positive")
    }

    /// Replaces a block's profile by the profile of such requests.
    pub fn apply(self, block: &mut Block) {
        if self != CostScale::PROFILED {
            block.replace_profile(self.of_profile(&block.profile));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    #[test]
    fn a_factor_is_the_nearest_eighth_of_a_doubling() {
        assert_eq!(CostScale::measured(MS(20), MS(10)), CostScale(8));
        assert_eq!(CostScale::measured(MS(10), MS(40)), CostScale(-16));
        assert_eq!(CostScale::measured(MS(10), MS(10)), CostScale::PROFILED);
        for (took, profiled) in [(52, 10), (7, 300), (1_000, 999), (3, 1)] {
            let found = CostScale::measured(MS(took), MS(profiled)).of(MS(profiled));
            let off = (found - MS(took)).0.abs() as f64 / MS(took).0 as f64;
            assert!(off < 0.05, "{took} over {profiled}: {found:?}");
        }
        assert_eq!(CostScale::measured(Nanos::MAX, Nanos(1)), CostScale(i8::MAX));
        assert_eq!(CostScale::measured(Nanos(1), MS(10_000_000)), CostScale(-i8::MAX));
    }

    #[test]
    fn factors_grow_and_are_undone_by_their_reciprocals() {
        for step in -127..=127_i8 {
            let scale = CostScale(step);
            let there_and_back = scale.inverse().of(scale.of(MS(1_000)));
            assert!((there_and_back - MS(1_000)).0.abs() < MS(10).0, "{step}: {there_and_back:?}");
            assert!(step == 127 || scale.of(MS(1)) < CostScale(step + 1).of(MS(1)));
        }
        assert_eq!(CostScale(-127).of(Nanos(1)), Nanos(1), "no cost vanishes");
    }
}
