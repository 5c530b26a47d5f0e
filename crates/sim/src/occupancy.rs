//! Device time that tasks really take, where it differs from the profile that the scheduler knows.
//!
//! A real engine keeps its device longer than profiled: inputs are copied, cores are shared with
//! the server, clocks change. [`Jitter`](crate::Jitter) has the excess alone; here every task is
//! late, and a device may become slower during the run. The scheduler knows nothing of it except
//! what it learns from ends of tasks.

use ripieno_base::{DeviceId, Nanos, Time};
use ripieno_workload::{SeededRng, stream, unit};
use serde::Deserialize;

/// Device time of tasks, relative to their profile.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Occupancy {
    /// Factor on the profiled time of every task.
    pub factor: f64,
    /// Mean of an additional exponential time, as a part of the latency of the largest batch.
    pub tail: f64,
    /// Devices that become slower or faster, in order of time.
    pub steps: Vec<OccupancyStep>,
}

/// A further factor on the time of every task from a point of time on; the last step that has begun
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OccupancyStep {
    /// Seconds since the start of the run.
    pub at_s: f64,
    /// Index of the device; all devices if absent.
    pub device: Option<usize>,
    /// Factor on the time of every task.
    pub factor: f64,
}

impl Default for Occupancy {
    fn default() -> Occupancy {
        Occupancy { factor: 1.0, tail: 0.0, steps: Vec::new() }
    }
}

/// Largest accepted factor, and largest accepted tail.
const LARGEST: f64 = 1_000.0;

impl Occupancy {
    pub(crate) fn check(self, devices: usize) -> Result<Occupancy, String> {
        let factor = |key: &str, value: f64| match value > 0.0 && value <= LARGEST {
            true => Ok(()),
            false => Err(format!("{key} = {value}; it must be above 0 and at most {LARGEST}")),
        };
        factor("occupancy.factor", self.factor)?;
        if !(0.0..=LARGEST).contains(&self.tail) {
            return Err(format!("occupancy.tail = {}; it must be between 0 and {LARGEST}", self.tail));
        }
        for (step, at) in self.steps.iter().zip(1..) {
            factor(&format!("occupancy.steps, entry {at}: factor"), step.factor)?;
            if !(step.at_s >= 0.0 && step.at_s <= 1e9) {
                return Err(format!("occupancy.steps, entry {at}: at_s = {}; it must be between 0 and 1e9", step.at_s));
            }
            if let Some(device) = step.device.filter(|&device| device >= devices) {
                return Err(format!(
                    "occupancy.steps, entry {at}: device = {device}; the cluster has {devices}, counted from 0"
                ));
            }
        }
        if !self.steps.is_sorted_by(|first, second| first.at_s <= second.at_s) {
            return Err("occupancy.steps must be in order of at_s".to_owned());
        }
        Ok(self)
    }

    pub(crate) fn is_exact(&self) -> bool {
        *self == Occupancy::default()
    }
}

/// Occupancy with its random numbers.
#[derive(Clone, Debug)]
pub(crate) struct OccupancyDraws<'a> {
    occupancy: &'a Occupancy,
    random: SeededRng,
}

impl<'a> OccupancyDraws<'a> {
    pub(crate) fn new(occupancy: &'a Occupancy, seed: u64) -> OccupancyDraws<'a> {
        // A stream of its own, so that arrivals are the same in an exact world.
        OccupancyDraws { occupancy, random: stream(seed, u64::MAX - 3) }
    }

    /// Returns the time that a task takes beyond `profiled`; negative on a device that is faster
    /// than profiled. `largest` is the profiled time of the largest batch of the block.
    pub(crate) fn excess(&mut self, now: Time, device: DeviceId, profiled: Nanos, largest: Nanos) -> Nanos {
        let applies = |step: &&OccupancyStep| {
            Time::ORIGIN + Nanos::from_secs_f64(step.at_s) <= now
                && step.device.is_none_or(|index| index == device.index())
        };
        let step = self.occupancy.steps.iter().rev().find(applies).map_or(1.0, |step| step.factor);
        let tail_ms = -(1.0 - unit(&mut self.random)).ln() * self.occupancy.tail * largest.as_millis_f64();
        let factor = self.occupancy.factor * step;
        Nanos::from_millis_f64(profiled.as_millis_f64() * (factor - 1.0) + tail_ms).max(Nanos(1) - profiled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    #[test]
    fn tasks_take_the_factor_and_the_tail() {
        let occupancy = Occupancy { factor: 1.2, tail: 0.1, steps: Vec::new() };
        let mut draws = OccupancyDraws::new(&occupancy, 1);
        let draw = |_| draws.excess(Time::ORIGIN, DeviceId(0), MS(5), MS(20)).as_millis_f64();
        let mean_ms = (0..100_000).map(draw).sum::<f64>() / 1e5;
        assert!((2.97..3.03).contains(&mean_ms), "1 ms of the factor and 2 ms of the tail: {mean_ms}");
    }

    #[test]
    fn the_last_step_of_a_device_holds() {
        let step = |at_s, device, factor| OccupancyStep { at_s, device, factor };
        let steps = vec![step(1.0, Some(1), 2.0), step(3.0, None, 0.5)];
        let occupancy = Occupancy { steps, ..Occupancy::default() }.check(2).unwrap();
        let mut draws = OccupancyDraws::new(&occupancy, 1);
        let mut excess = |ms, device| draws.excess(Time::ORIGIN + MS(ms), DeviceId(device), MS(10), MS(10));
        assert_eq!([excess(999, 1), excess(1_000, 1), excess(1_000, 0)], [MS(0), MS(10), MS(0)]);
        assert_eq!([excess(3_000, 1), excess(3_000, 0)], [MS(-5), MS(-5)]);
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let refused = |occupancy: Occupancy| occupancy.check(2).unwrap_err();
        let step = |at_s, device, factor| OccupancyStep { at_s, device, factor };
        let with = |steps| Occupancy { steps, ..Occupancy::default() };
        assert!(refused(Occupancy { factor: 0.0, ..Occupancy::default() }).starts_with("occupancy.factor = 0;"));
        assert!(refused(Occupancy { tail: -1.0, ..Occupancy::default() }).starts_with("occupancy.tail = -1;"));
        assert!(refused(with(vec![step(0.0, Some(2), 1.5)])).contains("device = 2; the cluster has 2"));
        assert!(refused(with(vec![step(0.0, None, f64::NAN)])).contains("entry 1: factor = NaN"));
        assert!(refused(with(vec![step(2.0, None, 1.0), step(1.0, None, 1.0)])).contains("in order of at_s"));
    }
}
