//! Collects the events of a run and computes its figures.
//!
//! A request counts by its arrival: if it arrived in the window, its outcome counts whenever it
//! comes. A batch counts by its start. Device time is clipped to the window. So warm-up and the
//! draining of queues after the last arrival distort neither rates nor the busy fraction, and a
//! caller may record every event.

use ripieno_base::{DeviceId, ModelId, Nanos, Time};

use crate::advice::{ModelTotals, Reading, ScalingRule};
use crate::latencies::Latencies;
use crate::summary::{Figures, ModelFigures, RunInfo, Summary};

/// The observed part of a run, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservationWindow {
    /// Start: the end of the warm-up.
    pub start: Time,
    /// End; [`Time::NEVER`] for a live run whose end is not known yet.
    pub end: Time,
}

impl ObservationWindow {
    /// Returns the window from `start` until the run is finished.
    pub fn from(start: Time) -> ObservationWindow {
        ObservationWindow { start, end: Time::NEVER }
    }

    fn contains(self, time: Time) -> bool {
        self.start <= time && time <= self.end
    }

    /// Returns the length of the part of `start..end` within the window.
    fn overlap(self, start: Time, end: Time) -> Nanos {
        (end.min(self.end) - start.max(self.start)).max(Nanos::ZERO)
    }
}

/// Collects the events of a run; allocates only at construction and at the end.
#[derive(Clone, Debug)]
pub struct Collector {
    window: ObservationWindow,
    devices: usize,
    models: Vec<ModelTally>,
}

/// The counters of one model.
#[derive(Clone, Debug)]
struct ModelTally {
    name: String,
    latencies: Latencies,
    in_time: u64,
    late: u64,
    dropped: u64,
    /// Number of batches by number of rows.
    batches: Vec<u64>,
    /// Time spent on this model, and tasks started, by device.
    busy: Vec<Nanos>,
    tasks: Vec<u64>,
}

impl Collector {
    /// Returns a collector for the models `names` (in the order of their ids), `devices` devices
    /// and batches of up to `max_batch` rows.
    pub fn new<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
        devices: usize,
        max_batch: usize,
        window: ObservationWindow,
    ) -> Collector {
        let models = names.into_iter().map(|name| ModelTally::new(name.into(), devices, max_batch)).collect();
        Collector { window, devices, models }
    }

    /// Records that a request that arrived at `arrival` was answered at `finish`.
    pub fn record_answer(&mut self, model: ModelId, arrival: Time, deadline: Time, finish: Time) {
        if self.window.contains(arrival) {
            let tally = &mut self.models[model.index()];
            tally.latencies.record(finish - arrival);
            *(if finish <= deadline { &mut tally.in_time } else { &mut tally.late }) += 1;
        }
    }

    /// Records that a request that arrived at `arrival` will never be answered.
    pub fn record_drop(&mut self, model: ModelId, arrival: Time) {
        if self.window.contains(arrival) {
            self.models[model.index()].dropped += 1;
        }
    }

    /// Records that a batch of `rows` rows occupied `device` from `start` to `end`.
    ///
    /// # Panics
    /// If the batch is larger than the `max_batch` of the constructor.
    pub fn record_batch(&mut self, model: ModelId, rows: usize, device: DeviceId, start: Time, end: Time) {
        let tally = &mut self.models[model.index()];
        assert!(rows < tally.batches.len(), "a batch of {rows} rows, above the largest announced");
        let busy = self.window.overlap(start, end);
        tally.busy[device.index()] += busy;
        tally.tasks[device.index()] += u64::from(busy > Nanos::ZERO);
        if self.window.contains(start) {
            tally.batches[rows] += 1;
        }
    }

    /// Returns the figures of the run. An open window ends at `now`; requests without an outcome
    /// are not counted.
    pub fn finish(&self, now: Time, info: RunInfo) -> Summary {
        let window = ObservationWindow { end: self.window.end.min(now), ..self.window };
        let span_s = (window.end - window.start).as_secs_f64();
        let total = self.models.iter().fold(None, |sum: Option<ModelTally>, tally| match sum {
            None => Some(tally.clone()),
            Some(mut sum) => {
                sum.merge(tally);
                Some(sum)
            }
        });
        let total = total.unwrap_or_else(|| ModelTally::new(String::new(), self.devices, 0));
        let models: Vec<ModelFigures> = self
            .models
            .iter()
            .map(|tally| ModelFigures { name: tally.name.clone(), figures: tally.figures(span_s) })
            .collect();
        let total = total.figures(span_s);
        let devices = info.mean_devices.unwrap_or(self.devices as f64);
        let signals = Reading {
            load: self.models.iter().map(|tally| tally.load(span_s)).sum(),
            ..Reading::new(devices, total.bad_rate, idle_fraction(&total, self.devices, devices))
        };
        Summary {
            policy: info.policy,
            seed: info.seed,
            idle_fraction: signals.idle_fraction,
            desired_devices: ScalingRule::PAPER.desired(&signals),
            total,
            worst_bad_rate: models.iter().map(|model| model.figures.bad_rate).fold(0.0, f64::max),
            events: info.events,
            wall_s: info.wall_s,
            models,
            unfolded: None,
            windows: Vec::new(),
        }
    }
}

/// Returns the idle fraction of `present` devices, from the busy fraction of all devices.
fn idle_fraction(total: &Figures, devices: usize, present: f64) -> f64 {
    (1.0 - total.busy_fraction * ratio(devices as f64, present)).clamp(0.0, 1.0)
}

impl ModelTally {
    fn new(name: String, devices: usize, max_batch: usize) -> ModelTally {
        ModelTally {
            name,
            latencies: Latencies::new(),
            in_time: 0,
            late: 0,
            dropped: 0,
            batches: vec![0; max_batch + 1],
            busy: vec![Nanos::ZERO; devices],
            tasks: vec![0; devices],
        }
    }

    fn merge(&mut self, other: &ModelTally) {
        self.latencies.merge(&other.latencies);
        self.in_time += other.in_time;
        self.late += other.late;
        self.dropped += other.dropped;
        self.batches.iter_mut().zip(&other.batches).for_each(|(sum, &count)| *sum += count);
        self.busy.iter_mut().zip(&other.busy).for_each(|(sum, &busy)| *sum += busy);
        self.tasks.iter_mut().zip(&other.tasks).for_each(|(sum, &count)| *sum += count);
    }

    /// Returns the number of devices that this model would have kept busy if no request had been
    /// bad.
    fn load(&self, span_s: f64) -> f64 {
        let totals = ModelTotals {
            good: self.in_time,
            bad: self.late + self.dropped,
            busy: self.busy.iter().copied().sum(),
            ..ModelTotals::default()
        };
        ratio(totals.load_s(), span_s)
    }

    fn figures(&self, span_s: f64) -> Figures {
        let requests = self.in_time + self.late + self.dropped;
        let busy_s = self.busy.iter().copied().sum::<Nanos>().as_secs_f64();
        Figures {
            offered_rps: ratio(requests as f64, span_s),
            goodput_rps: ratio(self.in_time as f64, span_s),
            bad_rate: ratio((self.late + self.dropped) as f64, requests as f64),
            mean_ms: self.latencies.mean_ms(),
            p50_ms: self.latencies.p50_ms(),
            p90_ms: self.latencies.p90_ms(),
            p99_ms: self.latencies.p99_ms(),
            mean_batch: mean(&self.batches),
            median_batch: median(&self.batches),
            busy_fraction: ratio(busy_s, span_s * self.busy.len() as f64),
            devices_used: self.tasks.iter().filter(|&&count| count > 0).count(),
            requests,
            dropped: self.dropped,
            late: self.late,
        }
    }
}

/// Returns `part / whole`, or 0 if nothing was observed.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Returns the mean of values that are given as counts by value.
fn mean(counts: &[u64]) -> f64 {
    let sum: u128 = counts.iter().enumerate().map(|(value, &count)| value as u128 * u128::from(count)).sum();
    ratio(sum as f64, counts.iter().sum::<u64>() as f64)
}

/// Returns the median of values that are given as counts by value; the mean of the middle two for
/// an even number.
fn median(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return 0.0;
    }
    (value_at(counts, (total - 1) / 2) + value_at(counts, total / 2)) as f64 / 2.0
}

/// Returns the value of rank `rank`, from 0, among values given as counts by value.
fn value_at(counts: &[u64], rank: u64) -> usize {
    let mut seen = 0;
    let found = counts.iter().position(|&count| {
        seen += count;
        seen > rank
    });
    found.expect("the rank is below the number of values")
}

#[cfg(test)]
mod tests;
