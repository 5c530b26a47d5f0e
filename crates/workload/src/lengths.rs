//! Distributions of sequence lengths.

use crate::{SeededRng, unit};
use rand_distr::{Distribution, LogNormal};
use ripieno_base::{Histogram, HistogramError};

/// The distribution of the lengths of a model's requests.
#[derive(Clone, Debug, PartialEq)]
pub enum LengthDistribution {
    /// All requests have the same length.
    Fixed(u32),
    /// exp of a normal variable, rounded, and clamped to `min..=max`.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The smallest length.
        min: u32,
        /// The largest length.
        max: u32,
    },
    /// Drawn with the frequencies of a histogram.
    Histogram(Histogram),
}

/// The reason why lengths cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthError {
    /// A parameter is out of range.
    #[error("{key} = {value}; it must be {expected}")]
    Parameter {
        /// Name of the parameter.
        key: &'static str,
        /// The given value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A histogram cannot be used.
    #[error(transparent)]
    Histogram(#[from] HistogramError),
    /// No data set has this name.
    #[error("dataset = {0:?}; there are {known}", known = known_data_sets())]
    Unknown(String),
}

/// The built-in data sets of lengths.
const DATA_SETS: [(&str, &str); 6] = [
    ("europarl-en", include_str!("../data/europarl-en.csv")),
    ("europarl-fr", include_str!("../data/europarl-fr.csv")),
    ("newstest2013-en", include_str!("../data/newstest2013-en.csv")),
    ("glue-rte", include_str!("../data/glue-rte.csv")),
    ("glue-cola", include_str!("../data/glue-cola.csv")),
    ("sst2-sentences", include_str!("../data/sst2-sentences.csv")),
];

fn known_data_sets() -> String {
    DATA_SETS.map(|(name, _)| format!("{name:?}")).join(", ")
}

/// The largest length of a sequence.
pub const MAX_LENGTH: u32 = Histogram::LONGEST;

impl LengthDistribution {
    /// Returns a log-normal distribution, if its parameters are valid.
    pub fn log_normal(mu: f64, sigma: f64, min: u32, max: u32) -> Result<LengthDistribution, LengthError> {
        let bad = |key, value: f64, expected| LengthError::Parameter { key, value: value.to_string(), expected };
        if !(mu.is_finite() && mu.abs() < 14.0) {
            return Err(bad("mu", mu, "a logarithm between -14 and 14"));
        }
        if !(0.0..10.0).contains(&sigma) {
            return Err(bad("sigma", sigma, "at least 0 and below 10"));
        }
        if min < 1 || min > max || max > MAX_LENGTH {
            let expected = "at least 1 and at most max, which is at most 1048576";
            return Err(LengthError::Parameter { key: "min", value: min.to_string(), expected });
        }
        Ok(LengthDistribution::LogNormal { mu, sigma, min, max })
    }

    /// Draws a length.
    pub fn draw(&self, random: &mut SeededRng) -> u32 {
        match self {
            LengthDistribution::Fixed(length) => *length,
            LengthDistribution::LogNormal { mu, sigma, min, max } => {
                let exact = LogNormal::new(*mu, *sigma).map_or(1.0, |law| law.sample(random));
                (exact.round() as u32).clamp(*min, *max)
            }
            LengthDistribution::Histogram(histogram) => histogram.at(unit(random)),
        }
    }

    /// Returns the largest length that can be drawn.
    pub fn longest(&self) -> u32 {
        match self {
            LengthDistribution::Fixed(length) => *length,
            LengthDistribution::LogNormal { max, .. } => *max,
            LengthDistribution::Histogram(histogram) => histogram.at(1.0),
        }
    }

    /// Returns the mean; for log-normal lengths the mean of a sample.
    pub fn mean(&self) -> f64 {
        const SAMPLE: u32 = 4096;
        match self {
            LengthDistribution::Fixed(length) => f64::from(*length),
            LengthDistribution::LogNormal { .. } => {
                let mut random = crate::stream(0, 0);
                (0..SAMPLE).map(|_| f64::from(self.draw(&mut random))).sum::<f64>() / f64::from(SAMPLE)
            }
            LengthDistribution::Histogram(histogram) => histogram.mean(),
        }
    }
}

/// Returns the lengths of a built-in data set.
pub fn counted_lengths(name: &str) -> Result<Histogram, LengthError> {
    let found = DATA_SETS.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| LengthError::Unknown(name.to_owned()))?;
    Ok(Histogram::parse(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;

    #[test]
    fn europarl_has_its_mean_and_tail() {
        let histogram = counted_lengths("europarl-en").unwrap();
        assert!((histogram.mean() - 28.8).abs() < 0.1, "{}", histogram.mean());
        let scaled = histogram.scaled_to(24.0).unwrap();
        assert!((scaled.mean() - 24.0).abs() < 0.1);
        assert_eq!((scaled.at(0.9), scaled.at(0.99), scaled.at(1.0)), (44, 72, 122));
        assert!(scaled.up_to(50).unwrap().at(1.0) == 50);
    }

    #[test]
    fn sentences_of_glue_have_their_means() {
        let means =
            ["glue-rte", "glue-cola", "sst2-sentences"].map(|name| counted_lengths(name).unwrap().mean().round());
        assert_eq!(means, [63.0, 8.0, 19.0]);
        assert_eq!(LengthDistribution::Histogram(counted_lengths("glue-rte").unwrap()).longest(), 283);
    }

    #[test]
    fn draws_follow_the_counts() {
        let lengths = LengthDistribution::Histogram(Histogram::parse("length,count\n3,1\n7,3\n").unwrap());
        let mut random = stream(1, 1);
        let sevens = (0..10_000).filter(|_| lengths.draw(&mut random) == 7).count();
        assert!((7_300..7_700).contains(&sevens), "{sevens}");
        assert_eq!(lengths.mean(), 6.0);
    }

    #[test]
    fn log_normal_lengths_have_their_moments_and_bounds() {
        let lengths = LengthDistribution::log_normal(2.914, 0.727, 1, 330).unwrap();
        let mut random = stream(2, 0);
        let mut drawn: Vec<_> = (0..50_000).map(|_| lengths.draw(&mut random)).collect();
        drawn.sort_unstable();
        assert!((18..=19).contains(&drawn[25_000]) && (45..=49).contains(&drawn[45_000]), "{}", drawn[45_000]);
        assert!((lengths.mean() - 24.0).abs() < 1.0);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        assert!(counted_lengths("x").unwrap_err().to_string().contains("europarl-en"));
        assert!(LengthDistribution::log_normal(f64::NAN, 1.0, 1, 2).unwrap_err().to_string().contains("mu = NaN"));
        assert!(LengthDistribution::log_normal(1.0, 1.0, 3, 2).unwrap_err().to_string().contains("min = 3"));
    }
}
