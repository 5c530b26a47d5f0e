//! Detects devices that are slower than the others, from the durations of their tasks.
//!
//! A wrong profile is wrong on every device, and corrected by [`Calibration`].
//! A difference from the fastest device is the device's own: its clock is throttled, another
//! process uses it, it is another model. The measurement is the same: samples at intervals, nearly
//! all of which must agree, and large steps only. Profiles are learnt from devices that are not
//! slower, so that both mechanisms do not correct the same error. The tasks of a slow device may
//! correct a profile before the device is known to be slow. The other devices then seem fast, so
//! the slow one is reported, and the profile is corrected back. A device that is so slow that it
//! gets no tasks could never show that it has recovered, so it is reported as nominal after a
//! while.

use super::drift::{Pause, SizeClass};
use ripieno_base::{DeviceId, Nanos, Time};

/// Percentage of the fastest device's latency below which a device counts as equally fast.
const ALIKE: i64 = 125;
/// Time without tasks after which a slow device is reported as nominal.
const RETRY_AFTER: Nanos = Nanos::from_millis(10_000);
/// Upper bound on the reported slowdown, in percent.
const SLOWEST: i64 = 10_000;

/// The estimated speed of each device.
#[derive(Debug)]
pub struct Speeds(Vec<SpeedSample>);

#[derive(Clone, Copy, Debug)]
struct SpeedSample {
    /// True if the device is present.
    present: bool,
    /// Recent samples of the device.
    samples: SizeClass,
    /// Latency that was reported to the scheduler, relative to the profiles, in percent.
    reported: u32,
    /// Time of the device's last task or report.
    last_seen: Time,
    /// Pause between two reports.
    pause: Pause,
}

const UNSEEN: SpeedSample = SpeedSample {
    present: false,
    samples: SizeClass::EMPTY,
    reported: 100,
    last_seen: Time::ORIGIN,
    pause: Pause::none(),
};

impl Speeds {
    /// Creates the table for `devices` devices, the first `present` of which are present.
    pub fn new(devices: usize, present: usize) -> Speeds {
        Speeds((0..devices).map(|at| SpeedSample { present: at < present, ..UNSEEN }).collect())
    }

    /// Adds a device, of unknown speed.
    pub fn join(&mut self, id: DeviceId) {
        self.0[id.index()] = SpeedSample { present: true, ..UNSEEN };
    }

    /// Removes a device.
    pub fn leave(&mut self, id: DeviceId) {
        self.0[id.index()].present = false;
    }

    /// Forgets all samples, since a profile was replaced.
    pub fn forget(&mut self) {
        self.0.iter_mut().for_each(|seen| seen.samples = SizeClass::EMPTY);
    }

    /// Returns the latency that was reported for a device, relative to the profiles, in percent.
    pub fn percent(&self, id: DeviceId) -> u32 {
        self.0[id.index()].reported
    }

    /// Returns whether profiles may be learnt from this device: it is not slower than the others,
    /// or all are slow.
    pub fn is_fair(&self, id: DeviceId) -> bool {
        self.percent(id) == 100 || !self.0.iter().any(|seen| seen.present && seen.reported == 100)
    }

    /// Adds a task that had its device for itself and took `took`, where the profile in force has
    /// `profiled`. Returns a device and its new latency in percent, if one differs from its last
    /// report.
    pub fn observe(&mut self, now: Time, id: DeviceId, took: Nanos, profiled: Nanos) -> Option<(DeviceId, u32)> {
        let seen = &mut self.0[id.index()];
        seen.last_seen = now;
        if !seen.samples.sample(now, took, profiled) {
            return None;
        }
        self.assess(now, id).map(|percent| (id, percent)).or_else(|| Some((self.suspect(now)?, 100)))
    }

    /// Returns a slow device that has run nothing for long.
    fn suspect(&mut self, now: Time) -> Option<DeviceId> {
        let idle = |seen: &SpeedSample| seen.present && seen.reported > 100 && now - seen.last_seen > RETRY_AFTER;
        let at = self.0.iter().position(idle)?;
        let seen = &mut self.0[at];
        (seen.reported, seen.samples, seen.last_seen) = (100, SizeClass::EMPTY, now);
        Some(DeviceId(at as u16))
    }

    /// Returns the latency to report for a device, if its last report is off.
    fn assess(&mut self, now: Time, id: DeviceId) -> Option<u32> {
        let others = self.0.iter().enumerate().filter(|(at, seen)| seen.present && *at != id.index());
        let fastest_other = others.filter_map(|(_, seen)| seen.samples.median()).min()?;
        let seen = &mut self.0[id.index()];
        let own = seen.samples.median()?;
        let fastest = fastest_other.min(own).max(1);
        if !seen.samples.is_off(fastest * i64::from(seen.reported)) || !seen.pause.pass(now) {
            return None;
        }
        let percent = (own * 100 / fastest).min(SLOWEST);
        seen.reported = if percent < ALIKE { 100 } else { percent as u32 };
        seen.samples = SizeClass::EMPTY;
        Some(seen.reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    /// Observes tasks that take these percentages of 10 ms (0: the device has none) for `seconds`
    /// seconds; returns the reports.
    fn reported(speeds: &mut Speeds, percents: &[i64], from_s: i64, seconds: i64) -> Vec<(u16, u32)> {
        let mut reported = Vec::new();
        for step in 0..10 * seconds {
            let now = Time::ORIGIN + MS(from_s * 1_000 + step * 100);
            for (id, percent) in (0..).zip(percents) {
                let took = MS(10).scale(percent.unsigned_abs(), 100);
                let percent = (*percent > 0).then(|| speeds.observe(now, DeviceId(id), took, MS(10))).flatten();
                reported.extend(percent.map(|(id, percent)| (id.0, percent)));
            }
        }
        reported
    }

    #[test]
    fn a_slow_device_is_reported_once_and_again_when_it_recovers() {
        let mut speeds = Speeds::new(3, 3);
        assert_eq!(reported(&mut speeds, &[100, 300, 110], 0, 10), [(1, 300)]);
        assert_eq!([0, 1, 2].map(|id| speeds.is_fair(DeviceId(id))), [true, false, true]);
        assert_eq!(reported(&mut speeds, &[100, 310, 140], 10, 10), []);
        assert_eq!(reported(&mut speeds, &[100, 100, 100], 20, 10), [(1, 100)]);
        assert_eq!((speeds.percent(DeviceId(1)), speeds.percent(DeviceId(0))), (100, 100));
    }

    #[test]
    fn slowness_on_every_device_is_an_error_of_the_profile() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(reported(&mut speeds, &[400, 400], 0, 20), []);
        let mut alone = Speeds::new(4, 1);
        assert_eq!(reported(&mut alone, &[400], 0, 20), []);
    }

    #[test]
    fn absent_devices_are_no_measure_and_new_ones_are_unknown() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(reported(&mut speeds, &[100, 300], 0, 10), [(1, 300)]);
        speeds.leave(DeviceId(0));
        assert!(speeds.is_fair(DeviceId(1)), "there is no other to learn from");
        assert_eq!(reported(&mut speeds, &[100, 900], 10, 10)[..], []);
        speeds.join(DeviceId(1));
        assert_eq!(speeds.percent(DeviceId(1)), 100);
    }

    #[test]
    fn a_device_without_tasks_is_reported_as_nominal_after_a_while() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(reported(&mut speeds, &[100, 9_000], 0, 5), [(1, 9_000)]);
        assert_eq!(reported(&mut speeds, &[100, 0], 5, 9), []);
        assert_eq!(reported(&mut speeds, &[100, 0], 14, 9), [(1, 100)]);
        assert_eq!(reported(&mut speeds, &[100, 9_000], 23, 9), [(1, 9_000)]);
    }

    #[test]
    fn a_few_late_tasks_are_chance() {
        let mut speeds = Speeds::new(2, 2);
        for step in 0..200 {
            let now = Time::ORIGIN + MS(step * 100);
            let late = if step % 4 == 0 { 5 } else { 1 };
            assert_eq!(speeds.observe(now, DeviceId(0), MS(10) * late, MS(10)), None);
            assert_eq!(speeds.observe(now, DeviceId(1), MS(10), MS(10)), None);
        }
    }
}
