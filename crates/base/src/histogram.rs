//! Whole numbers with their counts, such as lengths of sentences or outputs.
//!
//! The simulator, the server and the experiment planner share this type. So all of them can read a
//! file that describes a corpus.

use std::fmt;

/// Lengths with their counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    lengths: Vec<u32>,
    /// Cumulative count up to and including each length.
    cumulative: Vec<u64>,
}

/// Reason why a histogram is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistogramError {
    /// A line of a file is malformed.
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// A requested mean is out of range. Holds the mean as given.
    Mean(String),
    /// No lengths are left. The flag tells whether a maximum excluded them.
    Empty(bool),
}

impl fmt::Display for HistogramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HistogramError::Line { line, text } => write!(
                f,
                "line {line}: {text:?}; each line holds a length of at least 1 and a count, after a header \
                 \"length,count\""
            ),
            HistogramError::Mean(value) => write!(f, "mean = {value}; it must be at least 1"),
            HistogramError::Empty(false) => f.write_str("no length was counted"),
            HistogramError::Empty(true) => f.write_str("no length was counted, or all are above max"),
        }
    }
}

impl std::error::Error for HistogramError {}

impl Histogram {
    /// Largest allowed length.
    pub const LONGEST: u32 = 1 << 20;

    /// Creates a histogram from counted lengths, in any order. A length may occur several times.
    pub fn new(mut counts: Vec<(u32, u64)>) -> Result<Histogram, HistogramError> {
        counts.retain(|&(_, count)| count > 0);
        counts.sort_unstable();
        let (mut lengths, mut cumulative): (Vec<u32>, Vec<u64>) = Default::default();
        let mut total = 0_u64;
        for (length, count) in counts {
            total = total.saturating_add(count);
            if lengths.last() == Some(&length) {
                *cumulative.last_mut().expect("as long as the lengths") = total;
            } else {
                lengths.push(length);
                cumulative.push(total);
            }
        }
        if total == 0 { Err(HistogramError::Empty(false)) } else { Ok(Histogram { lengths, cumulative }) }
    }

    /// Parses lines of `length,count`. A first line without numbers is a header.
    pub fn parse(text: &str) -> Result<Histogram, HistogramError> {
        let mut counts = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let numbers = line.split_once(',').map(|(length, count)| (length.trim().parse(), count.trim().parse()));
            match numbers {
                _ if line.trim().is_empty() => {}
                Some((Ok(length), Ok(count))) if (1..=Histogram::LONGEST).contains(&length) => {
                    counts.push((length, count));
                }
                Some((Err(_), Err(_))) if at == 0 => {}
                _ => return Err(HistogramError::Line { line: at + 1, text: line.to_owned() }),
            }
        }
        Histogram::new(counts)
    }

    /// Returns the text that [`Histogram::parse`] reads.
    pub fn to_csv(&self) -> String {
        let lines = self.counts().map(|(length, count)| format!("{length},{count}\n"));
        std::iter::once("length,count\n".to_owned()).chain(lines).collect()
    }

    /// Returns each length with its count, ascending.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let before = std::iter::once(0).chain(self.cumulative.iter().copied());
        self.lengths.iter().zip(&self.cumulative).zip(before).map(|((&length, &to), from)| (length, to - from))
    }

    /// Returns the sum of the counts; at least 1.
    pub fn total(&self) -> u64 {
        self.cumulative.last().copied().unwrap_or(0)
    }

    /// Returns the longest length.
    pub fn longest(&self) -> u32 {
        self.lengths.last().copied().unwrap_or(0)
    }

    /// Returns the mean length.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.counts().map(|(length, count)| f64::from(length) * count as f64).sum();
        sum / self.total() as f64
    }

    /// Returns the length at the quantile `share` in 0..1. A random `share` draws each length in
    /// proportion to its count.
    pub fn at(&self, share: f64) -> u32 {
        let rank = (share * self.total() as f64) as u64;
        let at = self.cumulative.partition_point(|&to| to <= rank);
        self.lengths[at.min(self.lengths.len() - 1)]
    }

    /// Returns the smallest length that covers the share `share` in 0..=1 of all values.
    pub fn covering(&self, share: f64) -> u32 {
        // Corrects a rounding error of the product, so that 0.9 of 10 is 9.
        let rank = (share * self.total() as f64 - 1e-6).ceil().max(1.0) as u64;
        let at = self.cumulative.partition_point(|&to| to < rank);
        self.lengths[at.min(self.lengths.len() - 1)]
    }

    /// Returns the share of values less than or equal to `length`.
    pub fn covered_by(&self, length: u32) -> f64 {
        let within = self.lengths.partition_point(|&other| other <= length);
        let count = within.checked_sub(1).map_or(0, |last| self.cumulative[last]);
        count as f64 / self.total() as f64
    }

    /// Returns the histogram without lengths above `max`.
    pub fn up_to(&self, max: u32) -> Result<Histogram, HistogramError> {
        let kept = self.counts().filter(|&(length, _)| length <= max).collect();
        Histogram::new(kept).map_err(|_| HistogramError::Empty(true))
    }

    /// Returns the histogram with all lengths scaled by one factor so that their mean is `mean`,
    /// and rounded.
    pub fn scaled_to(&self, mean: f64) -> Result<Histogram, HistogramError> {
        if !(mean >= 1.0 && mean <= f64::from(Histogram::LONGEST)) {
            return Err(HistogramError::Mean(mean.to_string()));
        }
        let factor = mean / self.mean();
        let stretch = |length: u32| ((f64::from(length) * factor).round() as u32).clamp(1, Histogram::LONGEST);
        Histogram::new(self.counts().map(|(length, count)| (stretch(length), count)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten() -> Histogram {
        Histogram::new((1..=10).rev().map(|length| (length, 1)).collect()).unwrap()
    }

    #[test]
    fn coverage_is_the_smallest_length_that_enough_do_not_exceed() {
        let ten = ten();
        assert_eq!([0.0, 0.1, 0.11, 0.5, 0.9, 0.901, 1.0].map(|share| ten.covering(share)), [1, 1, 2, 5, 9, 10, 10]);
        assert_eq!([0, 1, 9, 20].map(|length| ten.covered_by(length)), [0.0, 0.1, 0.9, 1.0]);
    }

    #[test]
    fn equal_lengths_are_one_and_text_comes_back() {
        let histogram = Histogram::new(vec![(7, 1), (3, 2), (7, 4), (9, 0)]).unwrap();
        assert_eq!(histogram.to_csv(), "length,count\n3,2\n7,5\n");
        assert_eq!(Histogram::parse(&histogram.to_csv()), Ok(histogram.clone()));
        assert_eq!((histogram.total(), histogram.longest(), histogram.up_to(5).unwrap().total()), (7, 7, 2));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        assert!(Histogram::parse("length,count\n0,3\n").unwrap_err().to_string().contains("line 2"));
        assert_eq!(Histogram::parse("length,count\n"), Err(HistogramError::Empty(false)));
        assert_eq!(ten().up_to(0), Err(HistogramError::Empty(true)));
        assert!(ten().scaled_to(0.5).unwrap_err().to_string().contains("mean = 0.5"));
    }
}
