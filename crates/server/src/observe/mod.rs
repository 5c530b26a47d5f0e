//! Reports of the server about itself: metrics, logs, traces, recordings, desired devices.

pub(crate) mod access_log;
pub(crate) mod call_errors;
pub(crate) mod metrics;
pub(crate) mod recording;
pub(crate) mod signals;
pub(crate) mod starvation;
#[cfg_attr(not(feature = "otlp"), path = "no_telemetry.rs")]
pub(crate) mod telemetry;
