//! What the command line shows of a model, as plain data: the tables of `models`, `profile` and `serve`; and how far it is.

use super::sample::Sample;
use ripieno_model::{Profile, TensorSpec};
use serde::Serialize;
use std::sync::Arc;

/// Told how far the measurement of a model is: its name, batch sizes done, batch sizes in all.
pub type Progress = Arc<dyn Fn(&str, usize, usize) + Send + Sync>;

/// One model of a repository.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// The model.
    pub name: String,
    /// Its version; empty if none was found.
    pub version: String,
    /// READY if it loads (or serves), UNAVAILABLE if not.
    pub state: String,
    /// Inputs, as in "images FP32 [-1, 64]".
    pub inputs: Vec<String>,
    /// Outputs, likewise.
    pub outputs: Vec<String>,
    /// The latency target.
    pub slo_ms: Option<f64>,
    /// Whether it follows from the profile, because nobody named one.
    pub slo_is_derived: Option<bool>,
    /// What becomes of a request that misses it: "answer" or "refuse".
    pub late: Option<&'static str>,
    /// The most rows in one batch.
    pub max_batch: Option<usize>,
    /// Why requests do not share batches, if they do not.
    pub unbatched: Option<String>,
    /// ℓ(b) of the whole walk, where it is known.
    pub profile: Option<ProfileReport>,
    /// ℓ(b) of each block of a chain, likewise; empty for a model of one block.
    pub blocks: Vec<ProfileReport>,
    /// Rows a second that the devices can answer within the SLO at best.
    pub best_goodput_rps: Option<f64>,
    /// A request to try it with.
    pub sample: Option<Sample>,
    /// What is odd about it; it is served all the same.
    pub warnings: Vec<String>,
    /// Why it is not served: file, key and fix in one line.
    pub error: Option<String>,
}

/// A latency profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// The model or block.
    pub name: String,
    /// "given", "cached" or "measured".
    pub origin: &'static str,
    /// Cost of each further row by the fitted line.
    pub alpha_ms: f64,
    /// Fixed cost of a batch by the fitted line.
    pub beta_ms: f64,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
    /// Of a cell, the most rows in one batch: as configured, or the best size by measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// ℓ(1), ℓ(2), …; of the longest requests, where they differ in length.
    pub latency_ms: Vec<f64>,
    /// The same of batches padded to less, by length; empty where requests do not differ in length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<LengthReport>,
}

/// What batches padded to one length cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthReport {
    /// The length.
    pub length: u32,
    /// ℓ(1), ℓ(2), …
    pub latency_ms: Vec<f64>,
}

impl ModelReport {
    /// A model that cannot be served.
    pub(super) fn failed(name: &str, version: &str, error: String) -> ModelReport {
        ModelReport {
            name: name.to_owned(),
            version: version.to_owned(),
            state: "UNAVAILABLE".to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            slo_ms: None,
            slo_is_derived: None,
            late: None,
            max_batch: None,
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

/// A tensor for people.
pub(super) fn describe(spec: &TensorSpec, batched: bool) -> String {
    let shape = if batched { &spec.shape[..] } else { &spec.shape[1..] };
    format!("{} {} {shape:?}", spec.name, spec.datatype)
}
