//! Counters for the signals of the autoscaler, per window.

use crate::observer::Run;
use ripieno_base::{DeviceId, ModelId, Nanos, TaskId, Time};
use ripieno_model::Model;
use ripieno_model::bounds::busy_devices;
use ripieno_report::{ModelTotals, ModelWindow, Reading, ScalingRule, Totals, WindowFigures};
use ripieno_sched::Setup;

/// Counters since the start, and their values at the start of the current window.
pub(crate) struct Meter {
    models: Vec<WindowCounts>,
    /// The models, for their need in the best batches.
    specs: Vec<Model>,
    /// Running tasks, by task id.
    running: Vec<Option<MeteredTask>>,
    /// Changes of the number of devices.
    presence: Vec<(Time, usize)>,
    /// Per device, whether it ran a task in this window.
    used: Vec<bool>,
    window: WindowStart,
}

#[derive(Clone, Copy, Default)]
struct WindowCounts {
    arrived: u64,
    good: u64,
    bad: u64,
    /// Rows answered.
    rows: u64,
    /// Device time of the tasks that have ended.
    busy: Nanos,
}

#[derive(Clone, Copy)]
struct MeteredTask {
    model: ModelId,
    device: DeviceId,
    start: Time,
    end: Time,
}

/// The counters at the start of the current window.
struct WindowStart {
    at: Time,
    totals: Totals,
    models: Vec<WindowCounts>,
}

impl Meter {
    pub(crate) fn new(setup: &Setup) -> Meter {
        let models = vec![WindowCounts::default(); setup.models.len()];
        Meter {
            window: WindowStart { at: Time::ORIGIN, totals: Totals::default(), models: models.clone() },
            models,
            specs: setup.models.clone(),
            running: vec![None; setup.limits.tasks()],
            presence: vec![(Time::ORIGIN, setup.devices)],
            used: vec![false; setup.limits.devices],
        }
    }

    pub(crate) fn arrived(&mut self, model: ModelId) {
        self.models[model.index()].arrived += 1;
    }

    /// Counts an ended request and the rows that were answered; `good` if that was in time.
    pub(crate) fn ended(&mut self, model: ModelId, rows: u32, good: bool) {
        let counts = &mut self.models[model.index()];
        counts.rows += u64::from(rows);
        *(if good { &mut counts.good } else { &mut counts.bad }) += 1;
    }

    pub(crate) fn started(&mut self, run: &Run<'_>) {
        let Run { task, model, device, start, end, .. } = *run;
        if self.running.len() <= task.index() {
            // Each shard of a scheduler has task ids of its own.
            self.running.resize(task.index() + 1, None);
        }
        self.running[task.index()] = Some(MeteredTask { model, device, start, end });
        self.used[device.index()] = true;
    }

    pub(crate) fn done(&mut self, task: TaskId, now: Time) {
        if let Some(running) = self.running[task.index()].take() {
            self.models[running.model.index()].busy += running.busy(now);
        }
    }

    /// Returns the number of present devices.
    pub(crate) fn present(&self) -> usize {
        self.presence.last().map_or(0, |&(_, present)| present)
    }

    pub(crate) fn set_present(&mut self, now: Time, present: usize) {
        match self.presence.last_mut() {
            Some(last) if last.0 == now => last.1 = present,
            _ => self.presence.push((now, present)),
        }
    }

    pub(crate) fn mean_devices(&self, start: Time, end: Time) -> f64 {
        if end <= start {
            self.present() as f64
        } else {
            self.device_time(start, end).as_secs_f64() / (end - start).as_secs_f64()
        }
    }

    /// Returns the total time of present devices from `start` to `end`.
    fn device_time(&self, start: Time, end: Time) -> Nanos {
        let before = self.presence.partition_point(|&(at, _)| at <= start).saturating_sub(1);
        let changes = &self.presence[before..];
        let nexts = changes.iter().skip(1).map(|&(at, _)| at).chain([Time::NEVER]);
        let span = |(&(at, present), next): (&(Time, usize), Time)| {
            (next.min(end) - at.max(start)).max(Nanos::ZERO) * present as i64
        };
        changes.iter().zip(nexts).map(span).sum()
    }

    /// Returns the totals up to now, including the past part of running tasks.
    fn totals(&self, now: Time) -> Totals {
        let total = |counts: &WindowCounts| {
            let WindowCounts { good, bad, rows, busy, .. } = *counts;
            ModelTotals { good, bad, broken: 0, busy, rows }
        };
        let mut models: Vec<_> = (0..).zip(self.models.iter().map(total)).collect();
        for running in self.running.iter().flatten() {
            models[running.model.index()].1.busy += running.busy(now);
        }
        Totals { present: self.window.totals.present + self.device_time(self.window.at, now), models }
    }

    /// Ends the window; returns its signals, and all its figures.
    pub(crate) fn close_window(&mut self, now: Time, rule: &ScalingRule) -> (Reading, WindowFigures) {
        let totals = self.totals(now);
        let span = now - self.window.at;
        let within = totals.since(&self.window.totals);
        let best = |id: u64, rows_per_s: f64| busy_devices(&self.specs[id as usize], rows_per_s);
        let reading = within.reading(span, best);
        let models: Vec<_> =
            self.models.iter().zip(&self.window.models).map(|(now, then)| now.since(then, span)).collect();
        let figures = WindowFigures {
            end_s: (now - Time::ORIGIN).as_secs_f64(),
            span_s: span.as_secs_f64(),
            offered_rps: models.iter().map(|model| model.offered_rps).sum(),
            goodput_rps: models.iter().map(|model| model.goodput_rps).sum(),
            bad_rate: reading.bad_rate,
            devices: reading.devices,
            devices_used: self.used.iter().filter(|&&used| used).count(),
            busy_devices: within.busy().as_secs_f64() / span.as_secs_f64(),
            idle_fraction: reading.idle_fraction,
            desired_devices: rule.desired(&reading),
            models,
        };
        self.used.fill(false);
        self.running.iter().flatten().for_each(|running| self.used[running.device.index()] = true);
        self.window = WindowStart { at: now, totals, models: self.models.clone() };
        (reading, figures)
    }
}

impl WindowCounts {
    fn since(&self, then: &WindowCounts, span: Nanos) -> ModelWindow {
        let a_second = |count: u64| count as f64 / span.as_secs_f64();
        let (good, bad) = (self.good - then.good, self.bad - then.bad);
        ModelWindow {
            offered_rps: a_second(self.arrived - then.arrived),
            goodput_rps: a_second(good),
            bad_rate: if bad > 0 { bad as f64 / (good + bad) as f64 } else { 0.0 },
        }
    }
}

impl MeteredTask {
    /// Returns the device time until `now`.
    fn busy(&self, now: Time) -> Nanos {
        (now.min(self.end) - self.start).max(Nanos::ZERO)
    }
}
