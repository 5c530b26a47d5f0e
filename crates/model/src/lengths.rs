//! Cost of a block whose requests differ in length: a batch is padded to its longest member.
//!
//! Profiles are measured at a few lengths and interpolated linearly between them, like batch sizes
//! in a [`Profile`].

use crate::Profile;
use crate::profile::WorkRate;
use ripieno_base::Nanos;
use std::fmt;

/// Latency ℓ(b) by the length to which batches are padded.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LengthProfiles {
    /// Profiles by length, ascending. All have the same largest batch.
    table: Box<[(u32, Profile)]>,
    /// Number of rows and length with the highest throughput.
    best: (usize, u32),
}

/// Reason why profiles do not form a table by length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LengthsError {
    /// The table is empty.
    Empty,
    /// A length is zero, or not greater than the previous length.
    NotAscending {
        /// Length that causes the error.
        length: u32,
    },
    /// A profile has another number of batch sizes than the first one.
    Uneven {
        /// Length of the profile.
        length: u32,
    },
    /// A batch costs less at a longer length than at a shorter one.
    Falls {
        /// The longer length.
        length: u32,
    },
}

impl LengthProfiles {
    /// Creates a table of profiles by length. Lengths must ascend, all profiles must have equal
    /// batch sizes, and no cost may decrease with the length.
    pub fn new(table: Vec<(u32, Profile)>) -> Result<LengthProfiles, LengthsError> {
        let Some((first, rest)) = table.split_first() else { return Err(LengthsError::Empty) };
        if first.0 == 0 {
            return Err(LengthsError::NotAscending { length: 0 });
        }
        for ((before, shorter), (length, profile)) in std::iter::once(first).chain(rest).zip(rest) {
            let length = *length;
            if length <= *before {
                return Err(LengthsError::NotAscending { length });
            }
            if profile.max_batch() != shorter.max_batch() {
                return Err(LengthsError::Uneven { length });
            }
            if profile.table().iter().zip(shorter.table()).any(|(long, short)| long < short) {
                return Err(LengthsError::Falls { length });
            }
        }
        let points = || table.iter().flat_map(|(length, profile)| (1..=profile.max_batch()).map(move |b| (b, *length)));
        let mut lengths = LengthProfiles { best: (1, first.0), table: table.clone().into() };
        lengths.best = points().max_by_key(|&(rows, length)| lengths.rate(rows, length)).expect("a profile has sizes");
        Ok(lengths)
    }

    /// Returns the latency of a batch that is padded to `length`. Between two lengths of the table,
    /// it is interpolated linearly and rounded down. Below the shortest length it is the shortest
    /// length's. Beyond the longest length it grows in proportion to the length.
    pub fn latency(&self, rows: usize, length: u32) -> Nanos {
        let at = self.table.partition_point(|&(known, _)| known < length);
        let cost = |at: usize| self.table[at].1.latency(rows);
        let last = self.table.len() - 1;
        let (above, below) = match at {
            0 => return cost(0),
            at if at > last => return cost(last).scale(u64::from(length), u64::from(self.table[last].0)),
            at => (at, at - 1),
        };
        let (low, high) = (self.table[below].0, self.table[above].0);
        let rise = (cost(above) - cost(below)).scale(u64::from(length - low), u64::from(high - low));
        cost(below) + rise
    }

    /// Returns the share of its device that a batch can use, in millionths; see
    /// [`Block::share`](crate::Block::share).
    pub fn share(&self, rows: usize, length: u32) -> u32 {
        let (best_rows, best_length) = self.best;
        self.rate(rows, length).over(self.rate(best_rows, best_length))
    }

    /// Scales the table after the block's cost changed from `old` to `new`. At each batch size, the
    /// ratio of the two applies to every length. The result has as many batch sizes as the shortest
    /// of the three profiles.
    pub(crate) fn scaled(&self, old: &Profile, new: &Profile) -> LengthProfiles {
        let scaled = |profile: &Profile| {
            let each = profile.table().iter().zip(old.table()).zip(new.table());
            let table: Vec<_> = each
                .map(|((cost, old), new)| cost.scale(new.0.unsigned_abs(), old.0.unsigned_abs()).max(Nanos(1)))
                .collect();
            Profile::from_table(&table).expect("a latency for each batch size")
        };
        let table = self.table.iter().map(|(length, profile)| (*length, scaled(profile))).collect();
        LengthProfiles::new(table).expect("one ratio for all lengths keeps their order")
    }

    /// Returns the table for batches that are padded to the next of these ascending `sizes`.
    pub fn stepped(&self, sizes: &[usize]) -> LengthProfiles {
        let table = self.table.iter().map(|(length, profile)| (*length, profile.stepped(sizes))).collect();
        LengthProfiles::new(table).expect("steps keep the order of the lengths")
    }

    /// Returns the profiles by length.
    pub fn table(&self) -> &[(u32, Profile)] {
        &self.table
    }

    fn rate(&self, rows: usize, length: u32) -> WorkRate {
        WorkRate { work: rows as u64 * u64::from(length), latency: self.latency(rows, length) }
    }
}

impl fmt::Display for LengthsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LengthsError::Empty => f.write_str("latencies by length need at least one length"),
            LengthsError::NotAscending { length } => {
                write!(f, "lengths must ascend from 1, but {length} does not")
            }
            LengthsError::Uneven { length } => {
                write!(f, "the latencies of length {length} are not as many as those of the first length")
            }
            LengthsError::Falls { length } => {
                write!(f, "length {length} has a batch that costs less than the same of a shorter length")
            }
        }
    }
}

impl std::error::Error for LengthsError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;

    fn profile(millis: &[i64]) -> Profile {
        Profile::from_table(&millis.iter().map(|&ms| Nanos::from_millis(ms)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn cost_grows_along_a_line_between_known_lengths() {
        let lengths =
            LengthProfiles::new(vec![(8, profile(&[2, 2])), (16, profile(&[2, 4])), (32, profile(&[4, 8]))]).unwrap();
        let micros = |rows, length| lengths.latency(rows, length).0 / 1_000;
        assert_eq!(
            [1, 8, 12, 16, 20, 32, 64].map(|length| micros(2, length)),
            [2_000, 2_000, 3_000, 4_000, 5_000, 8_000, 16_000]
        );
        assert_eq!(lengths.latency(3, 8), Nanos::MAX);
        // The highest throughput of the device is eight elements per millisecond.
        assert_eq!([lengths.share(1, 8), lengths.share(2, 8), lengths.share(1, 16)], [500_000, 1_000_000, 1_000_000]);
    }

    #[test]
    fn a_new_profile_changes_the_cost_at_every_length_in_proportion() {
        let mut block = Block::new("padded", profile(&[4, 8, 8]));
        block.lengths = Some(LengthProfiles::new(vec![(8, profile(&[2, 2, 2])), (32, profile(&[4, 8, 8]))]).unwrap());
        block.replace_profile(profile(&[8, 8, 10]));
        let micros = |block: &Block, length| [1, 2, 3].map(|rows| block.cost(rows, length).0 / 1_000);
        // The cost of one row doubles, and the cost of two rows stays. No batch costs less than a
        // smaller one.
        assert_eq!(micros(&block, 8), [4_000, 4_000, 4_000]);
        assert_eq!(micros(&block, 32), [8_000, 8_000, 10_000]);
        assert_eq!((block.share(3, 32), block.share(2, 8)), (1_000_000, 416_666));
        // A shorter profile reduces the number of batch sizes. No cost becomes zero.
        block.replace_profile(Profile::from_table(&[Nanos(1), Nanos(2)]).unwrap());
        assert_eq!([1, 2].map(|rows| block.cost(rows, 8)), [Nanos(1); 2]);
        assert_eq!(block.cost(3, 8), Nanos::MAX);
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        let refused = |table| LengthProfiles::new(table).unwrap_err();
        assert_eq!(refused(vec![]), LengthsError::Empty);
        assert_eq!(refused(vec![(0, profile(&[1]))]), LengthsError::NotAscending { length: 0 });
        assert_eq!(refused(vec![(4, profile(&[1])), (4, profile(&[1]))]), LengthsError::NotAscending { length: 4 });
        assert_eq!(refused(vec![(4, profile(&[1])), (8, profile(&[1, 2]))]), LengthsError::Uneven { length: 8 });
        assert_eq!(refused(vec![(4, profile(&[2])), (8, profile(&[1]))]), LengthsError::Falls { length: 8 });
    }
}
