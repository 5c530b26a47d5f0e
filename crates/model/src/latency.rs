//! Latencies in the form in which users write them in `model.toml` and scenario files.

use crate::{Profile, ProfileError};
use ripieno_base::Nanos;
use std::fmt;

/// A latency profile written by hand.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    /// `latency_ms = [ℓ(1), ℓ(2), …]`
    Table(Vec<f64>),
    /// `alpha_ms`, `beta_ms`: ℓ(b) = αb + β
    Line {
        /// Cost of each additional row.
        alpha_ms: f64,
        /// Fixed cost of a batch.
        beta_ms: f64,
    },
}

/// Reason why a combination of keys is not a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyError {
    /// Key that causes the error.
    pub key: &'static str,
    /// Problem and fix, in words that follow the key in a sentence.
    pub problem: &'static str,
}

impl Latency {
    /// Combines the keys `latency_ms`, `alpha_ms` and `beta_ms`; `None` if none is given. The
    /// caller must have checked that the values are valid durations.
    pub fn from_keys(
        latency_ms: Option<&[f64]>,
        alpha_ms: Option<f64>,
        beta_ms: Option<f64>,
    ) -> Result<Option<Latency>, LatencyError> {
        let wrong = |key, problem| Err(LatencyError { key, problem });
        match (latency_ms, alpha_ms, beta_ms) {
            (None, None, None) => Ok(None),
            (Some(table), None, None) => Ok(Some(Latency::Table(table.to_vec()))),
            (None, Some(alpha_ms), Some(beta_ms)) if alpha_ms + beta_ms > 0.0 => {
                Ok(Some(Latency::Line { alpha_ms, beta_ms }))
            }
            (None, Some(_), Some(_)) => wrong("alpha_ms", "must be above 0 where beta_ms is 0"),
            (None, Some(_), None) => wrong("alpha_ms", "needs beta_ms beside it, the fixed cost of a batch"),
            (None, None, Some(_)) => wrong("beta_ms", "needs alpha_ms beside it, the cost of each further row"),
            (Some(_), ..) => wrong("latency_ms", "stands beside alpha_ms or beta_ms; give the table or the line"),
        }
    }

    /// Returns the profile for batches of up to `max_batch` rows.
    pub fn profile(&self, max_batch: usize) -> Result<Profile, ProfileError> {
        match self {
            Latency::Line { alpha_ms, beta_ms } => Profile::linear(*alpha_ms, *beta_ms, max_batch),
            Latency::Table(millis) => {
                let table: Vec<Nanos> = millis.iter().map(|&ms| Nanos::from_millis_f64(ms)).collect();
                Profile::from_table(&table).map(|profile| profile.truncated(max_batch))
            }
        }
    }

    /// Returns the largest batch that the profile describes; `None` if it has no limit.
    pub fn max_batch(&self) -> Option<usize> {
        match self {
            Latency::Line { .. } => None,
            Latency::Table(millis) => Some(millis.len()),
        }
    }
}

impl fmt::Display for LatencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.problem)
    }
}

impl std::error::Error for LatencyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_or_a_line_and_never_half_of_one() {
        let of = |table: Option<&[f64]>, alpha, beta| {
            Latency::from_keys(table, alpha, beta).map_err(|error| error.to_string())
        };
        assert_eq!(of(None, None, None), Ok(None));
        assert_eq!(of(Some(&[1.0]), None, None), Ok(Some(Latency::Table(vec![1.0]))));
        assert_eq!(of(None, Some(0.0), Some(2.0)), Ok(Some(Latency::Line { alpha_ms: 0.0, beta_ms: 2.0 })));
        let refused = |table, alpha, beta| of(table, alpha, beta).unwrap_err();
        assert_eq!(refused(None, Some(0.0), Some(0.0)), "alpha_ms must be above 0 where beta_ms is 0");
        assert_eq!(refused(None, Some(1.0), None), "alpha_ms needs beta_ms beside it, the fixed cost of a batch");
        assert_eq!(refused(None, None, Some(1.0)), "beta_ms needs alpha_ms beside it, the cost of each further row");
        assert!(refused(Some(&[1.0]), Some(1.0), None).starts_with("latency_ms stands beside alpha_ms"));
    }

    #[test]
    fn latencies_become_profiles_of_the_wanted_length() {
        let table = Latency::Table(vec![2.0, 3.0, 4.0]);
        assert_eq!(table.profile(2).unwrap().table(), [Nanos::from_millis(2), Nanos::from_millis(3)]);
        let line = Latency::Line { alpha_ms: 1.0, beta_ms: 1.0 };
        assert_eq!((line.max_batch(), line.profile(3).unwrap().max_batch()), (None, 3));
    }
}
