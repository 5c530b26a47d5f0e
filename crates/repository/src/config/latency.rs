//! Latencies given in `model.toml` instead of measured.

use super::MAX_MS;
use super::keys::Keys;
use ripieno_model::Latency;

pub(super) fn read_latency(keys: &Keys<'_>) -> Result<Option<Latency>, String> {
    let table = keys.numbers("latency_ms", "[5.1, 6.0, 6.8]")?;
    let alpha_ms = keys.number_from_zero("alpha_ms", MAX_MS)?;
    let beta_ms = keys.number_from_zero("beta_ms", MAX_MS)?;
    Latency::from_keys(table.as_deref(), alpha_ms, beta_ms).map_err(|error| keys.wrong(error.key, error.problem))
}
