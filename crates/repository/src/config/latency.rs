//! Latencies that stand in `model.toml`, instead of being measured.

use super::LONGEST_MS;
use super::keys::Keys;
use ripieno_base::Nanos;
use ripieno_model::{Profile, ProfileError};

/// A latency profile as written by hand.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    /// `latency_ms = [ℓ(1), ℓ(2), …]`
    Table(Vec<f64>),
    /// `alpha_ms`, `beta_ms`: ℓ(b) = αb + β
    Line {
        /// Cost of each further row.
        alpha_ms: f64,
        /// Fixed cost of a batch.
        beta_ms: f64,
    },
}

impl Latency {
    /// The profile for batches of up to `max_batch` rows.
    pub fn profile(&self, max_batch: usize) -> Result<Profile, ProfileError> {
        match self {
            Latency::Line { alpha_ms, beta_ms } => Profile::linear(*alpha_ms, *beta_ms, max_batch),
            Latency::Table(millis) => {
                let table: Vec<Nanos> = millis.iter().map(|&ms| Nanos::from_millis_f64(ms)).collect();
                Profile::from_table(&table).map(|profile| profile.truncated(max_batch))
            }
        }
    }

    /// The largest batch described; none if any is.
    pub fn max_batch(&self) -> Option<usize> {
        match self {
            Latency::Line { .. } => None,
            Latency::Table(millis) => Some(millis.len()),
        }
    }
}

pub(super) fn read_latency(keys: &Keys<'_>) -> Result<Option<Latency>, String> {
    let table = keys.numbers("latency_ms", "[5.1, 6.0, 6.8]")?;
    let alpha_ms = keys.number_from_zero("alpha_ms", LONGEST_MS)?;
    let beta_ms = keys.number_from_zero("beta_ms", LONGEST_MS)?;
    match (table, alpha_ms, beta_ms) {
        (None, None, None) => Ok(None),
        (Some(table), None, None) => Ok(Some(Latency::Table(table))),
        (None, Some(alpha_ms), Some(beta_ms)) if alpha_ms + beta_ms > 0.0 => {
            Ok(Some(Latency::Line { alpha_ms, beta_ms }))
        }
        (None, Some(_), Some(_)) => Err(keys.wrong("alpha_ms", "alpha_ms and beta_ms cannot both be 0")),
        (None, Some(_), None) => Err(keys.wrong("alpha_ms", "needs beta_ms beside it, the fixed cost of a batch")),
        (None, None, Some(_)) => Err(keys.wrong("beta_ms", "needs alpha_ms beside it, the cost of each further row")),
        (Some(_), ..) => Err(keys.wrong("latency_ms", "stands beside alpha_ms or beta_ms; give the table or the line")),
    }
}
