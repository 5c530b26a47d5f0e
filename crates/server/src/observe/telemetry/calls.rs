//! The sampled calls that have not been sent.

use crate::config::TelemetryConfig;
use crate::trace::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// Largest number of sampled calls that have not been sent; further ones are not sampled.
const MOST_PENDING: usize = 4_096;
/// The sampled calls, and the way to the collector.
pub(crate) struct Telemetry {
    pub(super) provider: SdkTracerProvider,
    ratio: f64,
    random: RandomState,
    count: AtomicU64,
    pub(super) pending: Mutex<HashMap<u64, SampledCall>>,
}

/// A sampled call that has not been sent.
#[derive(Clone, Debug)]
pub(crate) struct SampledCall {
    /// Span of the client's call.
    pub(super) parent: Option<SpanContext>,
    /// Time at which its last byte arrived.
    pub(super) received: SystemTime,
    pub(super) since: Instant,
}

impl Telemetry {
    /// Opens the way to the collector, which need not be there yet.
    pub(crate) fn new(config: &TelemetryConfig) -> Result<Telemetry, String> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&config.endpoint).build();
        let exporter = exporter.map_err(|error| format!("{}: {error}", config.endpoint))?;
        let resource = Resource::builder().with_service_name(config.service.clone()).build();
        // What is sent was chosen before: no variable of the environment changes that.
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_batch_exporter(exporter);
        let provider = provider.with_resource(resource).build();
        Ok(Telemetry::over(provider, config.ratio))
    }

    pub(super) fn over(provider: SdkTracerProvider, ratio: f64) -> Telemetry {
        let (random, count, pending) = (RandomState::new(), AtomicU64::new(0), Mutex::default());
        Telemetry { provider, ratio, random, count, pending }
    }

    /// Returns the tag of a call if it is sampled: if its client's span is, or by the ratio where
    /// there is none.
    pub(crate) fn begin(&self, parent: Option<&TraceContext>, received: Instant) -> Option<u64> {
        let tag = self.random.hash_one(self.count.fetch_add(1, Ordering::Relaxed)).max(1);
        let parent = parent.map(context_of);
        let sampled = match &parent {
            Some(parent) => parent.is_sampled(),
            None => (tag as f64) < self.ratio * u64::MAX as f64,
        };
        if !sampled {
            return None;
        }
        let mut pending = self.pending.lock();
        if pending.len() >= MOST_PENDING {
            return None;
        }
        let (received, since) = (SystemTime::now() - received.elapsed(), Instant::now());
        pending.insert(tag, SampledCall { parent, received, since });
        Some(tag)
    }
}

/// Returns the client's span of a valid header.
fn context_of(trace: &TraceContext) -> SpanContext {
    let part = |from: usize, to: usize| trace.text().get(from..to).unwrap_or_default();
    let trace_id = TraceId::from_hex(part(3, 35)).unwrap_or(TraceId::INVALID);
    let span_id = SpanId::from_hex(part(36, 52)).unwrap_or(SpanId::INVALID);
    let flags = TraceFlags::new(u8::from_str_radix(part(53, 55), 16).unwrap_or(0));
    SpanContext::new(trace_id, span_id, flags, true, TraceState::default())
}
