//! The counters of the last minutes: each second a sample, of which the page shows differences.
//!
//! Ten seconds of whole samples give rates and quantiles; ten minutes of two numbers a second give
//! the sparklines. Both come from the counters that /metrics shows.

use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{DeviceSnapshot, Ending, HistogramSnapshot, ModelSnapshot};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Number of seconds that rates and quantiles are taken over.
pub(super) const WINDOW_S: usize = 10;
/// Number of seconds of a sparkline.
pub(super) const TRACE_S: usize = 600;

/// Name and version of a model.
pub(super) type ModelKey = (String, String);

/// All counters at one instant.
pub(super) struct CounterSample {
    at: Instant,
    models: BTreeMap<ModelKey, (Arc<ServedEntry>, ModelSnapshot)>,
    devices: Vec<DeviceSnapshot>,
}

/// Requests that ended in a second: all, and those that were late, refused or failed.
pub(super) type SecondCount = (f64, f64);

/// The last samples.
#[derive(Default)]
pub(crate) struct Samples {
    whole: VecDeque<CounterSample>,
    traces: BTreeMap<ModelKey, VecDeque<SecondCount>>,
}

/// The figures of a model over the window.
pub(super) struct ModelView {
    pub(super) entry: Arc<ServedEntry>,
    /// The counters now.
    pub(super) now: ModelSnapshot,
    /// Requests that ended, a second.
    pub(super) rate: f64,
    /// Share of them that were answered by their deadline; `None` without any.
    pub(super) share: Option<f64>,
    /// Median and 99th percentile of the latency in milliseconds.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// Mean number of rows in a batch.
    pub(super) mean_batch: Option<f64>,
    /// Number of requests that were answered by their deadline.
    pub(super) good: u64,
    /// Number of bad ends by outcome.
    pub(super) bad: Vec<(Ending, u64)>,
    /// Batches and mean duration in milliseconds by number of rows.
    pub(super) by_batch: Vec<(usize, u64, f64)>,
    /// The last ten minutes.
    pub(super) trace: Vec<SecondCount>,
}

/// A device over the window.
pub(super) struct DeviceView {
    pub(super) device: DeviceSnapshot,
    /// Share of the time that it spent on batches.
    pub(super) busy: f64,
    /// Batches a second.
    pub(super) batches: f64,
}

impl Samples {
    /// Takes a sample.
    pub(super) fn take(&mut self, models: Vec<(Arc<ServedEntry>, ModelSnapshot)>, devices: Vec<DeviceSnapshot>) {
        let keyed = |(entry, model): (Arc<ServedEntry>, ModelSnapshot)| {
            ((entry.name.clone(), entry.version.clone()), (entry, model))
        };
        let models: BTreeMap<_, _> = models.into_iter().map(keyed).collect();
        self.traces.retain(|key, _| models.contains_key(key));
        for (key, (_, model)) in &models {
            let before = self.whole.back().and_then(|sample| earlier(sample, key, model));
            let (all, bad) = ended_since(model, before);
            let trace = self.traces.entry(key.clone()).or_default();
            trace.push_back((all as f64, bad as f64));
            while trace.len() > TRACE_S {
                trace.pop_front();
            }
        }
        self.whole.push_back(CounterSample { at: Instant::now(), models, devices });
        while self.whole.len() > WINDOW_S + 1 {
            self.whole.pop_front();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Samples::default();
    }

    /// Returns the models, ordered by name and version.
    pub(super) fn models(&self) -> Vec<ModelView> {
        let Some((first, last, span)) = self.window() else { return Vec::new() };
        let view = |(key, (entry, now)): (&ModelKey, &(Arc<ServedEntry>, ModelSnapshot))| {
            let before = earlier(first, key, now);
            let trace = self.traces.get(key).map_or_else(Vec::new, |trace| trace.iter().copied().collect());
            model_view(entry, now, before, span, trace)
        };
        last.models.iter().map(view).collect()
    }

    /// Returns the devices that serve or leave.
    pub(super) fn devices(&self) -> Vec<DeviceView> {
        let Some((first, last, span)) = self.window() else { return Vec::new() };
        let view = |device: &DeviceSnapshot| {
            let before = first.devices.iter().find(|before| before.id == device.id);
            let busy_ns = device.busy_ns.saturating_sub(before.map_or(0, |before| before.busy_ns));
            let batches = device.batches.saturating_sub(before.map_or(0, |before| before.batches));
            let busy = (busy_ns as f64 / 1e9 / span).min(1.0);
            DeviceView { device: *device, busy, batches: batches as f64 / span }
        };
        last.devices.iter().map(view).collect()
    }

    fn window(&self) -> Option<(&CounterSample, &CounterSample, f64)> {
        let (first, last) = (self.whole.front()?, self.whole.back()?);
        Some((first, last, last.at.duration_since(first.at).as_secs_f64().max(1e-3)))
    }
}

/// Returns a model's counters in an earlier sample; `None` if they began anew since then, as after
/// a reload: a version that comes back has counters of its own.
fn earlier<'a>(sample: &'a CounterSample, key: &ModelKey, now: &ModelSnapshot) -> Option<&'a ModelSnapshot> {
    let (_, before) = sample.models.get(key)?;
    let ended = |model: &ModelSnapshot| model.requests.iter().map(|(_, count)| count).sum::<u64>();
    let goes_on = before.batches <= now.batches
        && before.response.count <= now.response.count
        && before.batch_rows.sum <= now.batch_rows.sum
        && ended(before) <= ended(now);
    goes_on.then_some(before)
}

fn ended_since(now: &ModelSnapshot, before: Option<&ModelSnapshot>) -> (u64, u64) {
    let (mut all, mut bad) = (0, 0);
    for (ending, count) in endings_since(now, before) {
        all += if ending.is_good().is_some() { count } else { 0 };
        bad += if is_bad(ending) { count } else { 0 };
    }
    (all, bad)
}

fn endings_since<'a>(
    now: &'a ModelSnapshot,
    before: Option<&'a ModelSnapshot>,
) -> impl Iterator<Item = (Ending, u64)> + 'a {
    now.requests.iter().map(move |(ending, count)| {
        let earlier = before.and_then(|before| before.requests.iter().find(|(other, _)| other == ending));
        (*ending, count.saturating_sub(earlier.map_or(0, |(_, count)| *count)))
    })
}

/// Whether the outcome is one that an operator has to explain.
pub(super) fn is_bad(ending: Ending) -> bool {
    ending.is_good() == Some(false)
}

fn model_view(
    entry: &Arc<ServedEntry>,
    now: &ModelSnapshot,
    before: Option<&ModelSnapshot>,
    span: f64,
    trace: Vec<SecondCount>,
) -> ModelView {
    let bad: Vec<_> = endings_since(now, before).filter(|(ending, count)| is_bad(*ending) && *count > 0).collect();
    let good: u64 = endings_since(now, before).filter(|(ending, _)| *ending == Ending::Ok).map(|(_, n)| n).sum();
    let ended = good + bad.iter().map(|(_, count)| count).sum::<u64>();
    let batches = now.batches.saturating_sub(before.map_or(0, |before| before.batches));
    let rows = now.batch_rows.sum.saturating_sub(before.map_or(0, |before| before.batch_rows.sum));
    let quantile = |share| quantile(&now.response, before.map(|before| &before.response), share);
    let size = |(rows, tally): &(usize, ripieno_runtime::TallySnapshot)| {
        let earlier = before.and_then(|before| before.by_batch.iter().find(|(other, _)| other == rows));
        let (count, ns) = earlier.map_or((0, 0), |(_, tally)| (tally.count, tally.ns));
        let (count, ns) = (tally.count.saturating_sub(count), tally.ns.saturating_sub(ns));
        (count > 0).then(|| (*rows, count, ns as f64 / 1e6 / count as f64))
    };
    ModelView {
        entry: Arc::clone(entry),
        rate: ended as f64 / span,
        share: (ended > 0).then(|| good as f64 / ended as f64),
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        mean_batch: (batches > 0).then(|| rows as f64 / batches as f64),
        good,
        bad,
        by_batch: now.by_batch.iter().filter_map(size).collect(),
        trace,
        now: now.clone(),
    }
}

/// Returns a quantile in milliseconds of what was added to a histogram of nanoseconds, with the
/// values of a bucket spread evenly, as Prometheus does.
fn quantile(now: &HistogramSnapshot, before: Option<&HistogramSnapshot>, share: f64) -> Option<f64> {
    let count = now.count.saturating_sub(before.map_or(0, |before| before.count));
    if count == 0 {
        return None;
    }
    let wanted = share * count as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (at, (&bound, &cumulative)) in now.bounds.iter().zip(&now.cumulative).enumerate() {
        let earlier = before.and_then(|before| before.cumulative.get(at)).copied().unwrap_or(0);
        let upto = cumulative.saturating_sub(earlier) as f64;
        if upto >= wanted && upto > below {
            let part = (wanted - below) / (upto - below);
            return Some((lower + part * (bound as f64 - lower)) / 1e6);
        }
        (below, lower) = (upto, bound as f64);
    }
    Some(lower / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_difference() {
        let bounds: &[i64] = &[1_000_000, 2_000_000, 4_000_000];
        let snapshot = |cumulative: [u64; 3], count| HistogramSnapshot {
            bounds: Box::leak(bounds.to_vec().into_boxed_slice()),
            cumulative: cumulative.to_vec(),
            count,
            sum: 0,
        };
        let (before, now) = (snapshot([10, 10, 10], 10), snapshot([10, 20, 30], 30));
        assert_eq!(quantile(&now, Some(&before), 0.5), Some(2.0));
        assert_eq!(quantile(&now, Some(&before), 0.75), Some(3.0));
        assert_eq!(quantile(&now, Some(&now), 0.5), None);
        // Counters that began anew within the window are no reason to fail.
        assert_eq!(quantile(&before, Some(&now), 0.5), None);
        // Beyond the last bound there is no more to tell than that bound.
        assert_eq!(quantile(&snapshot([0, 0, 0], 5), None, 0.5), Some(4.0));
    }
}
