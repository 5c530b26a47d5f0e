//! The costs of batches of padded requests, by rows and length.
//!
//! A division into groups needs thousands of costs, so the costs at the profiled lengths are kept
//! in a table. Between two lengths a cost grows along a line, as in the profile.

use ripieno_base::Nanos;
use ripieno_model::Model;

/// Beyond the longest profiled length, costs are tabled up to this multiple of it.
const BEYOND: u32 = 64;
/// Scale of the part of the way from one tabled length to the next.
const PART: u32 = 1 << 20;

/// Mean and promised device time of the whole walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddedCost {
    /// Mean duration.
    pub mean: Nanos,
    /// Duration that is rarely exceeded.
    pub promised: Nanos,
}

/// A length's place in the table.
#[derive(Clone, Copy, Debug)]
pub struct LengthPlace {
    /// Index of the first cost of a tabled length: the longest that does not exceed the length.
    at: u32,
    /// Part of the way to the next tabled length, scaled by [`PART`].
    part: u32,
}

/// The table of one model.
#[derive(Debug)]
pub struct CostsByLength {
    /// Ascending.
    lengths: Box<[u32]>,
    /// Number of batch sizes.
    sizes: usize,
    /// Costs in the order of the lengths; of each length, in the order of batch sizes.
    costs: Box<[PaddedCost]>,
}

impl CostsByLength {
    /// Creates the table of a padded model for batches of up to `sizes` rows. All costs are zero.
    pub fn new(model: &Model, sizes: usize) -> CostsByLength {
        let tables = model.blocks.iter().filter_map(|block| block.lengths.as_ref());
        let mut lengths: Vec<u32> = tables.flat_map(|table| table.table().iter().map(|(length, _)| *length)).collect();
        let longest = *lengths.iter().max().expect("requests are padded");
        // Learnt costs are not linear between two profiled lengths that are far apart, so powers of
        // two are tabled, too.
        lengths.extend((0..).map(|step| 1 << step).take_while(|&length| length < longest));
        lengths.push(longest.saturating_mul(BEYOND));
        lengths.sort_unstable();
        lengths.dedup();
        let cost = PaddedCost { mean: Nanos::ZERO, promised: Nanos::ZERO };
        let costs = vec![cost; lengths.len() * sizes].into();
        CostsByLength { lengths: lengths.into(), sizes, costs }
    }

    /// Sets all costs, given by rows and length.
    pub fn derive(&mut self, cost: impl Fn(usize, u32) -> PaddedCost) {
        for (&length, costs) in self.lengths.iter().zip(self.costs.chunks_mut(self.sizes)) {
            for (own, rows) in costs.iter_mut().zip(1..) {
                *own = cost(rows, length);
            }
        }
    }

    /// Returns a length's place.
    pub fn place(&self, length: u32) -> LengthPlace {
        let next = self.lengths.partition_point(|&tabled| tabled <= length);
        if next == 0 {
            return LengthPlace { at: 0, part: 0 };
        }
        let last = self.lengths.len() - 2;
        let at = (next - 1).min(last);
        let (low, high) = (self.lengths[at], self.lengths[at + 1]);
        let part = u64::from(length.min(high) - low) * u64::from(PART) / u64::from((high - low).max(1));
        LengthPlace { at: (at * self.sizes) as u32, part: part as u32 }
    }

    /// Returns the mean cost of a batch.
    pub fn mean(&self, rows: usize, place: LengthPlace) -> Nanos {
        let at = place.at as usize + rows - 1;
        between(self.costs[at].mean, self.costs[at + self.sizes].mean, place.part)
    }

    /// Returns the cost of a batch that it is promised to stay within.
    pub fn promised(&self, rows: usize, place: LengthPlace) -> Nanos {
        let at = place.at as usize + rows - 1;
        between(self.costs[at].promised, self.costs[at + self.sizes].promised, place.part)
    }
}

/// Interpolates between the values of two tabled lengths.
fn between(low: Nanos, high: Nanos, part: u32) -> Nanos {
    low + Nanos((i128::from((high - low).0) * i128::from(part) / i128::from(PART)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::{Block, LengthProfiles, Profile};

    #[test]
    fn costs_are_those_of_the_profile() {
        let linear = |ms| Profile::linear(ms, ms / 4.0, 4).unwrap();
        let lengths = LengthProfiles::new(vec![(2, linear(1.0)), (8, linear(3.0)), (16, linear(4.0))]).unwrap();
        let mut model = Model::whole("m", linear(4.0), Nanos::from_millis(100));
        model.blocks[0] = Block { lengths: Some(lengths.clone()), ..model.blocks[0].clone() };
        let mut costs = CostsByLength::new(&model, 4);
        costs.derive(|rows, length| {
            let mean = lengths.latency(rows, length);
            PaddedCost { mean, promised: mean * 2 }
        });
        for rows in 1..=4 {
            for length in [1, 2, 3, 7, 8, 9, 15, 16, 17, 40, 1_000] {
                let (known, place) = (lengths.latency(rows, length), costs.place(length));
                let near = |cost: Nanos, known: Nanos| (cost - known).0.abs() <= known.0 / 10_000;
                assert!(near(costs.mean(rows, place), known), "{rows} rows of {length}");
                assert!(near(costs.promised(rows, place), known * 2), "{rows} rows of {length}");
            }
        }
        assert_eq!(costs.mean(1, costs.place(u32::MAX)), costs.mean(1, costs.place(16 * BEYOND)));
        // Durations of days do not overflow.
        costs.derive(|rows, length| {
            let days = Nanos::from_millis(86_400_000) * i64::from(length) * rows as i64;
            PaddedCost { mean: days, promised: Nanos::MAX }
        });
        let (whole, half) = (costs.place(16), costs.place(12));
        assert_eq!((costs.mean(2, half), costs.promised(1, half)), (costs.mean(2, whole).scale(3, 4), Nanos::MAX));
    }
}
