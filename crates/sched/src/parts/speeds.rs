//! Which devices are slower than the others, by what their tasks take.
//!
//! A profile that is wrong is wrong on every device, and corrected by [`Calibration`](crate::Calibration). What sets a device
//! apart from the fastest one is its own: its clock is throttled, somebody else uses it, it is another make. Measured as there:
//! samples at intervals, nearly all of which must agree, and large steps only. Whoever learns profiles learns from devices that
//! are not slower, so that both do not correct the same error. If a profile was corrected by the tasks of a slow device
//! before that was known, the other devices seem fast, so that the slow one is told for what it is, and the profile is
//! corrected back. A device that is so slow that it is given nothing could never show that it has recovered: it is given the
//! benefit of the doubt after a while.

use super::drift::{Pause, SizeClass};
use ripieno_base::{DeviceId, Nanos, Time};

/// What is closer to the fastest than this, in percent, is taken for as fast.
const ALIKE: i64 = 125;
/// A slow device that has run nothing for so long is told to be as fast as the others.
const DOUBT: Nanos = Nanos::from_millis(10_000);
/// Slower than this, in percent, no device is told to be.
const SLOWEST: i64 = 10_000;

/// How fast each device seems to be.
#[derive(Debug)]
pub struct Speeds(Vec<SpeedSample>);

#[derive(Clone, Copy, Debug)]
struct SpeedSample {
    present: bool,
    samples: SizeClass,
    /// What the scheduler was told: its latency relative to the profiles, in percent.
    told: u32,
    /// When it last ran something, or the scheduler was told.
    heard: Time,
    pause: Pause,
}

const UNSEEN: SpeedSample =
    SpeedSample { present: false, samples: SizeClass::EMPTY, told: 100, heard: Time::ORIGIN, pause: Pause::none() };

impl Speeds {
    /// Of at most so many devices, the first `present` of which are there.
    pub fn new(devices: usize, present: usize) -> Speeds {
        Speeds((0..devices).map(|at| SpeedSample { present: at < present, ..UNSEEN }).collect())
    }

    /// A device joins; nothing is known of it.
    pub fn join(&mut self, id: DeviceId) {
        self.0[id.index()] = SpeedSample { present: true, ..UNSEEN };
    }

    /// A device has gone.
    pub fn leave(&mut self, id: DeviceId) {
        self.0[id.index()].present = false;
    }

    /// A profile was replaced: what was compared with the old one says nothing any more.
    pub fn forget(&mut self) {
        self.0.iter_mut().for_each(|seen| seen.samples = SizeClass::EMPTY);
    }

    /// What the scheduler was told of a device: its latency relative to the profiles, in percent.
    pub fn percent(&self, id: DeviceId) -> u32 {
        self.0[id.index()].told
    }

    /// Whether profiles are to be learnt from what this device does: of one that is slower only if all are.
    pub fn is_fair(&self, id: DeviceId) -> bool {
        self.percent(id) == 100 || !self.0.iter().any(|seen| seen.present && seen.told == 100)
    }

    /// A task that had its device for itself took so long, where the profile in force has `profiled`. Which device is from now on
    /// to be told at what percent, if one is not what it was told to be.
    pub fn observe(&mut self, now: Time, id: DeviceId, took: Nanos, profiled: Nanos) -> Option<(DeviceId, u32)> {
        let seen = &mut self.0[id.index()];
        seen.heard = now;
        if !seen.samples.sample(now, took, profiled) {
            return None;
        }
        self.judge(now, id).map(|percent| (id, percent)).or_else(|| Some((self.doubted(now)?, 100)))
    }

    /// A slow device that has run nothing for long.
    fn doubted(&mut self, now: Time) -> Option<DeviceId> {
        let idle = |seen: &SpeedSample| seen.present && seen.told > 100 && now - seen.heard > DOUBT;
        let at = self.0.iter().position(idle)?;
        let seen = &mut self.0[at];
        (seen.told, seen.samples, seen.heard) = (100, SizeClass::EMPTY, now);
        Some(DeviceId(at as u16))
    }

    /// What a device is to be told at, if it is off.
    fn judge(&mut self, now: Time, id: DeviceId) -> Option<u32> {
        let others = self.0.iter().enumerate().filter(|(at, seen)| seen.present && *at != id.index());
        let fastest_other = others.filter_map(|(_, seen)| seen.samples.median()).min()?;
        let seen = &mut self.0[id.index()];
        let own = seen.samples.median()?;
        let fastest = fastest_other.min(own).max(1);
        if !seen.samples.is_off(fastest * i64::from(seen.told)) || !seen.pause.pass(now) {
            return None;
        }
        let percent = (own * 100 / fastest).min(SLOWEST);
        seen.told = if percent < ALIKE { 100 } else { percent as u32 };
        seen.samples = SizeClass::EMPTY;
        Some(seen.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    /// Devices whose tasks take so many percent of 10 ms (0: it has none), for so many seconds; what was told.
    fn told(speeds: &mut Speeds, percents: &[i64], from_s: i64, seconds: i64) -> Vec<(u16, u32)> {
        let mut told = Vec::new();
        for step in 0..10 * seconds {
            let now = Time::ORIGIN + MS(from_s * 1_000 + step * 100);
            for (id, percent) in (0..).zip(percents) {
                let took = MS(10).scale(percent.unsigned_abs(), 100);
                let percent = (*percent > 0).then(|| speeds.observe(now, DeviceId(id), took, MS(10))).flatten();
                told.extend(percent.map(|(id, percent)| (id.0, percent)));
            }
        }
        told
    }

    #[test]
    fn who_is_slower_than_the_fastest_is_told_once_and_again_when_it_recovers() {
        let mut speeds = Speeds::new(3, 3);
        assert_eq!(told(&mut speeds, &[100, 300, 110], 0, 10), [(1, 300)]);
        assert_eq!([0, 1, 2].map(|id| speeds.is_fair(DeviceId(id))), [true, false, true]);
        assert_eq!(told(&mut speeds, &[100, 310, 140], 10, 10), []);
        assert_eq!(told(&mut speeds, &[100, 100, 100], 20, 10), [(1, 100)]);
        assert_eq!((speeds.percent(DeviceId(1)), speeds.percent(DeviceId(0))), (100, 100));
    }

    #[test]
    fn what_is_slow_everywhere_is_the_profile() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(told(&mut speeds, &[400, 400], 0, 20), []);
        let mut alone = Speeds::new(4, 1);
        assert_eq!(told(&mut alone, &[400], 0, 20), []);
    }

    #[test]
    fn who_has_gone_is_no_measure_and_who_joins_is_unknown() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(told(&mut speeds, &[100, 300], 0, 10), [(1, 300)]);
        speeds.leave(DeviceId(0));
        assert!(speeds.is_fair(DeviceId(1)), "there is no other to learn from");
        assert_eq!(told(&mut speeds, &[100, 900], 10, 10)[..], []);
        speeds.join(DeviceId(1));
        assert_eq!(speeds.percent(DeviceId(1)), 100);
    }

    #[test]
    fn who_is_given_nothing_has_the_benefit_of_the_doubt() {
        let mut speeds = Speeds::new(2, 2);
        assert_eq!(told(&mut speeds, &[100, 9_000], 0, 5), [(1, 9_000)]);
        assert_eq!(told(&mut speeds, &[100, 0], 5, 9), []);
        assert_eq!(told(&mut speeds, &[100, 0], 14, 9), [(1, 100)]);
        assert_eq!(told(&mut speeds, &[100, 9_000], 23, 9), [(1, 9_000)]);
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
