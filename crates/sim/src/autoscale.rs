//! An autoscaler in virtual time: it periodically reads the signals and lets devices join and
//! leave.
//!
//! It sees the [`Signals`](ripieno_report::Signals) of the time since its last reading, like an
//! autoscaler of a real cluster, and is as slow as one: a requested device joins only after its
//! start-up, with its models loaded. A device that leaves first ends its task. Devices join and
//! leave at the upper end of the ids, which the policies' preference for the smallest id keeps
//! idle.
//!
//! Without a rule it only reads, which gives the windows of a run whose load changes.

use crate::meter::Meter;
use crate::observer::{End, Observer, Run};
use crate::{Controller, Fault};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_report::{Reading, ScalingRule, WindowFigures};
use ripieno_sched::{Request, Setup};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The settings of the autoscaler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autoscale {
    /// Time between readings, which is the length of a window.
    pub every: Nanos,
    /// Smallest number of devices.
    pub min: usize,
    /// Largest number of devices.
    pub max: usize,
    /// Time from the request for a device until it joins, models loaded.
    pub startup: Nanos,
    /// The rule that turns signals into a number of devices.
    pub rule: ScalingRule,
    /// Number of consecutive windows that must agree before devices are released; the largest
    /// desired number counts.
    pub release_after: usize,
}

/// The autoscaler; it only reads if `scale` is none.
pub(crate) struct Autoscaler {
    every: Nanos,
    scale: Option<Autoscale>,
    meter: Rc<RefCell<Meter>>,
    next_look: Time,
    /// Join times of the requested devices, in order; their ids follow the ids of the present ones.
    joining: VecDeque<Time>,
    /// Number of devices that are still to leave at this instant.
    leaving: usize,
    /// Desired numbers of devices of the last windows.
    desired_numbers: VecDeque<usize>,
    windows: Vec<WindowFigures>,
}

/// An observer that feeds the meter of an [`Autoscaler`].
pub(crate) struct MeterHandle(Rc<RefCell<Meter>>);

impl Autoscaler {
    pub(crate) fn new(every: Nanos, scale: Option<Autoscale>, setup: &Setup) -> Autoscaler {
        Autoscaler {
            every,
            scale,
            meter: Rc::new(RefCell::new(Meter::new(setup))),
            next_look: Time::ORIGIN + every,
            joining: VecDeque::new(),
            leaving: 0,
            desired_numbers: VecDeque::new(),
            windows: Vec::new(),
        }
    }

    pub(crate) fn meter_handle(&self) -> MeterHandle {
        MeterHandle(Rc::clone(&self.meter))
    }

    /// Returns the mean number of devices from `start` to `end`.
    pub(crate) fn mean_devices(&self, start: Time, end: Time) -> f64 {
        self.meter.borrow().mean_devices(start, end)
    }

    /// Returns the windows of the run; the last one ends with the last arrival, unless it is short.
    pub(crate) fn finish(mut self, last_arrival: Time) -> Vec<WindowFigures> {
        let begun = self.next_look - Time::ORIGIN - self.every;
        if (last_arrival - Time::ORIGIN - begun).0 > self.every.0 / 2 {
            self.close_window(last_arrival);
        }
        self.windows
    }

    fn close_window(&mut self, now: Time) -> Reading {
        let rule = self.scale.map_or(ScalingRule::PAPER, |scale| scale.rule);
        let (reading, window) = self.meter.borrow_mut().close_window(now, &rule);
        self.windows.push(window);
        reading
    }

    /// Reads the window that ends now and decides.
    fn look(&mut self, now: Time) {
        let reading = self.close_window(now);
        self.next_look = now + self.every;
        let Some(scale) = self.scale else { return };
        let desired = scale.rule.desired(&reading).clamp(scale.min, scale.max);
        if self.desired_numbers.len() == scale.release_after {
            self.desired_numbers.pop_front();
        }
        self.desired_numbers.push_back(desired);
        let present = self.meter.borrow().present();
        let requested = present + self.joining.len();
        let agreed = self.desired_numbers.len() == scale.release_after && !scale.rule.is_overload(&reading);
        let keep = self.desired_numbers.iter().copied().max().unwrap_or(desired);
        if desired > requested {
            self.joining.extend(std::iter::repeat_n(now + scale.startup, desired - requested));
        } else if agreed && keep < requested {
            self.joining.truncate(keep.saturating_sub(present));
            self.leaving = present.saturating_sub(keep);
        }
    }
}

impl Controller for Autoscaler {
    fn next_at(&mut self, due: Time) -> Time {
        match due {
            Time::NEVER => Time::NEVER,
            _ => self.joining.front().map_or(self.next_look, |&join| join.min(self.next_look)),
        }
    }

    fn act(&mut self, now: Time) -> Option<Fault> {
        if now >= self.next_look {
            self.look(now);
        }
        let mut meter = self.meter.borrow_mut();
        if self.leaving > 0 {
            self.leaving -= 1;
            let last = meter.present() - 1;
            meter.set_present(now, last);
            return Some(Fault::Leave(DeviceId(last as u16)));
        }
        if self.joining.front().is_some_and(|&at| at <= now) {
            self.joining.pop_front();
            let next = meter.present();
            meter.set_present(now, next + 1);
            return Some(Fault::Join(DeviceId(next as u16)));
        }
        None
    }
}

impl Observer for MeterHandle {
    fn accepted(&mut self, _id: u64, request: &Request) {
        self.0.borrow_mut().arrived(request.model);
    }

    fn refused(&mut self, _now: Time, _id: u64, model: ModelId) {
        let mut meter = self.0.borrow_mut();
        meter.arrived(model);
        meter.ended(model, 0, false);
    }

    fn started(&mut self, _now: Time, run: &Run<'_>) {
        self.0.borrow_mut().started(run);
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        self.0.borrow_mut().done(run.task, now);
    }

    fn ended(&mut self, now: Time, _id: u64, request: &Request, end: End) {
        let rows = if end == End::Finished { request.rows } else { 0 };
        self.0.borrow_mut().ended(request.model, rows, end == End::Finished && now <= request.deadline);
    }
}

/// The table `[autoscale]` of a scenario.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AutoscaleTable {
    every_s: Option<f64>,
    min: Option<usize>,
    max: Option<usize>,
    startup_s: Option<f64>,
    threshold: Option<f64>,
    headroom: Option<f64>,
    burst: Option<f64>,
    release_after: Option<usize>,
    /// The rule whose values hold unless they are given: "goodput" or "efficiency" = the paper's,
    /// "latency" = the one of a server for short latencies.
    objective: Option<String>,
}

impl AutoscaleTable {
    /// Checks the table; the run begins with `devices`.
    pub(crate) fn parse(&self, devices: usize) -> Result<Autoscale, String> {
        let seconds = |key: &str, given: Option<f64>, default: f64, least: f64| match given.unwrap_or(default) {
            value if value.is_finite() && (least..1e9).contains(&value) => Ok(Nanos::from_secs_f64(value)),
            value => Err(format!("autoscale.{key} = {value}; it must be a number of seconds of at least {least}")),
        };
        let fraction = |key: &str, given: Option<f64>, default: f64| match given.unwrap_or(default) {
            value if (0.0..1.0).contains(&value) => Ok(value),
            value => Err(format!("autoscale.{key} = {value}; it must be at least 0 and less than 1")),
        };
        let (min, release_after) = (self.min.unwrap_or(1), self.release_after.unwrap_or(1));
        let max = self.max.ok_or("autoscale.max is missing; give the most devices that may ever be there")?;
        if !(1..=max).contains(&min) || max > 65_536 {
            return Err(format!("autoscale.min = {min} and max = {max}; they must be 1 <= min <= max <= 65536"));
        }
        if !(min..=max).contains(&devices) {
            return Err(format!(
                "cluster.devices = {devices}; the run begins with them, so it must be from autoscale.min = {min} to \
                 autoscale.max = {max}"
            ));
        }
        let usual = match self.objective.as_deref() {
            None | Some("goodput" | "efficiency") => ScalingRule::PAPER,
            Some("latency") => ScalingRule::LATENCY,
            Some(other) => {
                return Err(format!(
                    "autoscale.objective = {other:?}; it must be \"goodput\", \"efficiency\" or \"latency\""
                ));
            }
        };
        let burst = self.burst.unwrap_or(usual.burst);
        if !(0.0..=100.0).contains(&burst) {
            return Err(format!("autoscale.burst = {burst}; it must be from 0 to 100"));
        }
        if !(1..=1000).contains(&release_after) {
            return Err(format!("autoscale.release_after = {release_after}; it must be 1 to 1000 windows"));
        }
        Ok(Autoscale {
            every: seconds("every_s", self.every_s, 10.0, 0.001)?,
            min,
            max,
            startup: seconds("startup_s", self.startup_s, 0.0, 0.0)?,
            rule: ScalingRule {
                threshold: fraction("threshold", self.threshold, usual.threshold)?,
                headroom: fraction("headroom", self.headroom, usual.headroom)?,
                burst,
                counts: usual.counts,
            },
            release_after,
        })
    }
}
