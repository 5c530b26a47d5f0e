//! Moving means of integers.

/// A moving mean. The first values count equally; later ones weigh 1 against `MEMORY` of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovingMean<const MEMORY: i64> {
    mean: i64,
    seen: i64,
}

impl<const MEMORY: i64> MovingMean<MEMORY> {
    /// Creates a mean of a guess that counts as `weight` values.
    pub const fn guess(mean: i64, weight: i64) -> MovingMean<MEMORY> {
        MovingMean { mean, seen: weight }
    }

    /// Adds a value.
    pub fn add(&mut self, value: i64) {
        self.seen = (self.seen + 1).min(MEMORY);
        self.mean += (value - self.mean) / self.seen;
    }

    /// Returns the mean; 0 without a value.
    pub const fn get(self) -> i64 {
        self.mean
    }

    /// Returns the number of values, the guess included; at most `MEMORY`.
    pub const fn seen(self) -> i64 {
        self.seen
    }

    /// Replaces the mean, whose weight stays.
    pub fn set(&mut self, mean: i64) {
        self.mean = mean;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_count_equally_and_later_ones_by_the_memory() {
        let mut mean = MovingMean::<4>::default();
        [8, 0, 4].into_iter().for_each(|value| mean.add(value));
        assert_eq!((mean.get(), mean.seen()), (4, 3));
        (0..3).for_each(|_| mean.add(4));
        mean.add(44);
        assert_eq!((mean.get(), mean.seen()), (14, 4));
    }

    #[test]
    fn a_guess_weighs_as_much_as_its_values() {
        let mut mean = MovingMean::<100>::guess(10, 9);
        mean.add(30);
        assert_eq!((mean.get(), mean.seen()), (12, 10));
    }
}
