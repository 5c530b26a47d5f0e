//! Reports for the command line, as plain data: tables of `models`, `profile` and `serve`, and
//! measurement progress.

use super::sample::Sample;
use ripieno_model::{Profile, TensorSpec};
use serde::Serialize;
use std::sync::Arc;

/// Callback for measurement progress: model name, batch sizes measured, batch sizes in total.
pub type MeasureProgress = Arc<dyn Fn(&str, usize, usize) + Send + Sync>;

/// State of a model whose files are right, but which no engine has loaded.
pub const NOT_TRIED: &str = "not tried";

/// Report on one model of a repository.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// Model name.
    pub name: String,
    /// Model version; empty if none was found.
    pub version: String,
    /// READY if the model loads, [`NOT_TRIED`] if it was only read, else UNAVAILABLE.
    pub state: String,
    /// Engine that runs it, if it is loaded.
    pub engine: Option<&'static str>,
    /// Shapes of the request that its profile was measured with, if the file leaves some open.
    pub measured_at: Option<String>,
    /// Inputs, such as "images FP32 [-1, 64]"; "(optional)" follows those with defaults.
    pub inputs: Vec<String>,
    /// Outputs, likewise.
    pub outputs: Vec<String>,
    /// Latency target.
    pub slo_ms: Option<f64>,
    /// Whether the target is derived from the profile, because none is configured.
    pub slo_is_derived: Option<bool>,
    /// Handling of a request that misses the target: "answer" or "refuse".
    pub late: Option<&'static str>,
    /// Maximum rows in a batch.
    pub max_batch: Option<usize>,
    /// Sizes that batches are padded to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch_sizes: Vec<usize>,
    /// Reason for which requests do not share batches.
    pub unbatched: Option<String>,
    /// ℓ(b) of the whole model, if known.
    pub profile: Option<ProfileReport>,
    /// ℓ(b) of each block of a chain, if known; empty for a model of one block.
    pub blocks: Vec<ProfileReport>,
    /// Upper bound on the rows per second that the devices can answer within the SLO.
    pub best_goodput_rps: Option<f64>,
    /// A sample request.
    pub sample: Option<Sample>,
    /// Warnings; the model is served nevertheless.
    pub warnings: Vec<String>,
    /// Reason for which the model is not served: file, key and fix in one line.
    pub error: Option<String>,
}

/// Report on a latency profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// Model or block name.
    pub name: String,
    /// Source: "given", "cached" or "measured".
    pub origin: &'static str,
    /// Cost of each additional row, from the fitted line.
    pub alpha_ms: f64,
    /// Fixed cost of a batch, from the fitted line.
    pub beta_ms: f64,
    /// Coefficient of determination of the line.
    pub r_squared: f64,
    /// Maximum rows in a batch of a cell: configured, or the best measured size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// ℓ(1), ℓ(2), …; for the maximum length, if requests vary in length.
    pub latency_ms: Vec<f64>,
    /// The same for shorter padded lengths; empty if requests do not vary in length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<LengthReport>,
}

/// Latencies of batches padded to one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthReport {
    /// Padded length.
    pub length: u32,
    /// ℓ(1), ℓ(2), …
    pub latency_ms: Vec<f64>,
}

impl ModelReport {
    /// Creates the report of a model that cannot be served.
    pub(super) fn failed(name: &str, version: &str, error: String) -> ModelReport {
        ModelReport {
            engine: None,
            measured_at: None,
            name: name.to_owned(),
            version: version.to_owned(),
            state: "UNAVAILABLE".to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            slo_ms: None,
            slo_is_derived: None,
            late: None,
            max_batch: None,
            batch_sizes: Vec::new(),
            unbatched: None,
            profile: None,
            blocks: Vec::new(),
            best_goodput_rps: None,
            sample: None,
            warnings: Vec::new(),
            error: Some(error),
        }
    }
}

impl ProfileReport {
    pub(super) fn new(name: &str, origin: &'static str, profile: &Profile) -> ProfileReport {
        let fit = profile.fit();
        ProfileReport {
            name: name.to_owned(),
            origin,
            alpha_ms: fit.alpha_ms,
            beta_ms: fit.beta_ms,
            r_squared: fit.r_squared,
            batch: None,
            latency_ms: millis(profile),
            lengths: Vec::new(),
        }
    }

    pub(super) fn with_lengths(self, lengths: &[(u32, Profile)]) -> ProfileReport {
        let report = |(length, profile): &(u32, Profile)| LengthReport { length: *length, latency_ms: millis(profile) };
        ProfileReport { lengths: lengths.iter().map(report).collect(), ..self }
    }
}

fn millis(profile: &Profile) -> Vec<f64> {
    profile.table().iter().map(|latency| latency.as_millis_f64()).collect()
}

/// Formats a tensor specification.
pub(super) fn describe(spec: &TensorSpec, batched: bool) -> String {
    let shape = if batched { &spec.shape[..] } else { &spec.shape[1..] };
    format!("{} {} {shape:?}", spec.name, spec.datatype)
}
