//! Arrival times of requests: a renewal process with a given mean rate.
//!
//! Burstiness has one parameter, the shape of a Gamma distribution for the gaps: CV² = 1/shape, so
//! shape 1 is Poisson, small shapes are bursty and large ones approach uniform. Times are
//! accumulated as real numbers and rounded one by one, because rounding each gap would let the mean
//! rate of fast streams drift.

use std::fmt;
use std::str::FromStr;

use rand_distr::{Distribution, Exp, Gamma};
use ripieno_base::Time;

use crate::random::{SeededRng, stream};

/// The distribution of the gaps between arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// Equal gaps; the first arrival is at time 0.
    Uniform,
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps; CV² = 1/shape.
    Gamma {
        /// The shape k, above 0; 1 is Poisson.
        shape: f64,
    },
}

/// The reason why an arrival process cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArrivalError {
    /// The text does not name a process.
    #[error("arrival = {0:?} is unknown; use \"poisson\", \"uniform\" or \"gamma:SHAPE\" (for example gamma:0.3)")]
    Unknown(String),
    /// The shape is invalid.
    #[error("arrival shape = {0} cannot be used; give a number above 0 (1 = Poisson, smaller = burstier)")]
    Shape(String),
    /// The rate is invalid.
    #[error("rate = {0} cannot be used; give a number of requests per second above 0")]
    Rate(f64),
}

impl FromStr for ArrivalProcess {
    type Err = ArrivalError;

    fn from_str(text: &str) -> Result<ArrivalProcess, ArrivalError> {
        match text.split_once(':') {
            None if text == "poisson" => Ok(ArrivalProcess::Poisson),
            None if text == "uniform" => Ok(ArrivalProcess::Uniform),
            Some(("gamma", shape)) => {
                let parsed = shape.parse().map_err(|_| ArrivalError::Shape(shape.to_owned()))?;
                ArrivalProcess::Gamma { shape: parsed }.checked()
            }
            _ => Err(ArrivalError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for ArrivalProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrivalProcess::Uniform => f.write_str("uniform"),
            ArrivalProcess::Poisson => f.write_str("poisson"),
            ArrivalProcess::Gamma { shape } => write!(f, "gamma:{shape}"),
        }
    }
}

impl ArrivalProcess {
    fn checked(self) -> Result<ArrivalProcess, ArrivalError> {
        match self {
            ArrivalProcess::Gamma { shape } if !(shape > 0.0 && shape.is_finite()) => {
                Err(ArrivalError::Shape(shape.to_string()))
            }
            usable => Ok(usable),
        }
    }
}

/// The endless sequence of arrival times of one stream.
#[derive(Clone, Debug)]
pub struct Arrivals {
    gaps: Gaps,
    random: SeededRng,
    /// Number of arrivals so far; uniform times are computed from it, so that they cannot drift.
    count: u64,
    elapsed_ns: f64,
}

#[derive(Clone, Debug)]
enum Gaps {
    Fixed(f64),
    Exponential(Exp<f64>),
    Gamma(Gamma<f64>),
}

impl Arrivals {
    /// Returns arrivals at a mean of `rate` requests per second, drawn from the stream `index` of
    /// `seed`.
    pub fn new(arrival: ArrivalProcess, rate: f64, seed: u64, index: u64) -> Result<Arrivals, ArrivalError> {
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(ArrivalError::Rate(rate));
        }
        let mean_gap_ns = 1e9 / rate;
        let gaps = match arrival.checked()? {
            ArrivalProcess::Uniform => Gaps::Fixed(mean_gap_ns),
            ArrivalProcess::Poisson => {
                Gaps::Exponential(Exp::new(1.0 / mean_gap_ns).map_err(|_| ArrivalError::Rate(rate))?)
            }
            ArrivalProcess::Gamma { shape } => {
                let gamma = Gamma::new(shape, mean_gap_ns / shape);
                Gaps::Gamma(gamma.map_err(|_| ArrivalError::Shape(shape.to_string()))?)
            }
        };
        Ok(Arrivals { gaps, random: stream(seed, index), count: 0, elapsed_ns: 0.0 })
    }
}

impl Iterator for Arrivals {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        match &self.gaps {
            Gaps::Fixed(gap_ns) => self.elapsed_ns = self.count as f64 * gap_ns,
            Gaps::Exponential(gap) => self.elapsed_ns += gap.sample(&mut self.random),
            Gaps::Gamma(gap) => self.elapsed_ns += gap.sample(&mut self.random),
        }
        self.count += 1;
        Some(Time(rounded(self.elapsed_ns)))
    }
}

/// Rounds like `f64::round` for non-negative values, without the library call for each arrival.
fn rounded(ns: f64) -> i64 {
    let whole = ns as i64;
    whole.saturating_add(i64::from(ns - whole as f64 >= 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn first(arrival: &str, want: Expect) {
        let times: Vec<i64> =
            Arrivals::new(arrival.parse().unwrap(), 1000.0, 1, 0).unwrap().take(4).map(|t| t.0).collect();
        want.assert_eq(&format!("{times:?}"));
    }

    /// Returns the mean rate (per second) and squared coefficient of variation of the gaps.
    fn moments(arrival: ArrivalProcess, rate: f64) -> (f64, f64) {
        let times: Vec<f64> =
            Arrivals::new(arrival, rate, 7, 3).unwrap().take(200_000).map(|t| t.0 as f64 / 1e9).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (1.0 / mean, variance / (mean * mean))
    }

    #[test]
    fn the_first_arrivals_of_a_seed_never_change() {
        first("uniform", expect!["[0, 1000000, 2000000, 3000000]"]);
        first("poisson", expect!["[363656, 3081910, 3082392, 3495506]"]);
        first("gamma:0.3", expect!["[20656, 109528, 128839, 1864128]"]);
    }

    #[test]
    fn rate_and_burstiness_are_as_asked() {
        for (arrival, cv2) in [
            (ArrivalProcess::Uniform, 0.0),
            (ArrivalProcess::Poisson, 1.0),
            (ArrivalProcess::Gamma { shape: 0.25 }, 4.0),
            (ArrivalProcess::Gamma { shape: 4.0 }, 0.25),
        ] {
            let (rate, measured) = moments(arrival, 5000.0);
            assert!((rate / 5000.0 - 1.0).abs() < 0.02, "{arrival}: {rate}");
            assert!((measured - cv2).abs() < 0.04 * cv2 + 1e-9, "{arrival}: {measured}");
        }
    }

    #[test]
    fn rounding_is_that_of_the_library() {
        let mut random = stream(1, 1);
        let drawn = (0..10_000).map(|at| crate::unit(&mut random) * 10_f64.powi(at % 20));
        for ns in drawn.chain([0.0, 0.5, 0.49999999999999994, 1.5, 2.5, 4503599627370495.5, 1e300]) {
            assert_eq!(rounded(ns), ns.round() as i64, "{ns}");
        }
    }

    #[test]
    fn uniform_times_do_not_drift() {
        let last = Arrivals::new(ArrivalProcess::Uniform, 3000.0, 0, 0).unwrap().nth(3_000_000).unwrap();
        assert_eq!(last, Time(1_000_000_000_000));
    }

    #[test]
    fn a_stream_depends_on_its_seed_and_index_only() {
        let times = |seed, index| -> Vec<Time> {
            Arrivals::new(ArrivalProcess::Poisson, 10.0, seed, index).unwrap().take(9).collect()
        };
        assert_eq!(times(1, 2), times(1, 2));
        assert_ne!(times(1, 2), times(2, 1));
        assert_ne!(times(1, 2), times(1, 3));
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let parse = |text: &str| text.parse::<ArrivalProcess>().unwrap_err().to_string();
        assert!(parse("burst").contains("\"burst\""));
        assert!(parse("gamma:0").contains("shape = 0"));
        assert!(parse("gamma:NaN").contains("NaN"));
        assert!(parse("gamma:x").contains("shape = x"));
        assert_eq!(Arrivals::new(ArrivalProcess::Poisson, 0.0, 1, 1).unwrap_err(), ArrivalError::Rate(0.0));
    }

    #[test]
    fn text_and_value_agree() {
        for text in ["poisson", "uniform", "gamma:0.3"] {
            assert_eq!(text.parse::<ArrivalProcess>().unwrap().to_string(), text);
        }
    }
}
