//! The present devices: their total speed, and the part of the time for which they are busy.

use crate::Limits;
use crate::tables::devices::Devices;
use ripieno_base::{DeviceId, Nanos, Permille, Time};

/// The devices of a server, and the tasks on each.
#[derive(Debug)]
pub(super) struct DeviceUse {
    /// The devices, with the number of tasks on each.
    devices: Devices<usize>,
    /// Number of present devices with a task.
    busy: usize,
    /// Sum of the devices' busy times since `began`.
    used: Nanos,
    /// Time up to which `used` counts.
    accounted: Time,
    /// Begin of the measured span.
    began: Time,
    /// Number of shards that use the devices: each has its own tasks only.
    shards: i64,
}

impl DeviceUse {
    pub(super) fn new(limits: &Limits, present: usize, shards: usize) -> DeviceUse {
        DeviceUse {
            devices: Devices::new(limits, present, || 0),
            busy: 0,
            used: Nanos::ZERO,
            accounted: Time::ORIGIN,
            began: Time::ORIGIN,
            shards: shards.max(1) as i64,
        }
    }

    /// Accounts for the time until `now`, then changes a device.
    fn change(&mut self, now: Time, id: DeviceId, change: impl FnOnce(&mut Devices<usize>)) {
        self.account(now);
        let is_busy = |devices: &Devices<usize>| devices[id].present && *devices[id] > 0;
        let before = is_busy(&self.devices);
        change(&mut self.devices);
        self.busy = self.busy + usize::from(is_busy(&self.devices)) - usize::from(before);
    }

    fn account(&mut self, now: Time) {
        self.used += (now - self.accounted) * self.busy as i64;
        self.accounted = now;
    }

    /// Records the start of a task.
    pub(super) fn start(&mut self, now: Time, device: DeviceId) {
        self.change(now, device, |devices| *devices[device] += 1);
    }

    /// Records the end of a task.
    pub(super) fn end(&mut self, now: Time, device: DeviceId) {
        self.change(now, device, |devices| *devices[device] -= 1);
    }

    /// Adds a device of profiled speed.
    pub(super) fn join(&mut self, now: Time, device: DeviceId) {
        self.change(now, device, |devices| devices.join(device));
    }

    /// Removes a device, unless it has left.
    pub(super) fn leave(&mut self, now: Time, device: DeviceId) {
        if self.devices[device].present {
            self.change(now, device, |devices| devices.leave(device));
        }
    }

    pub(super) fn slow(&mut self, device: DeviceId, percent: u32) {
        self.devices.slow(device, percent);
    }

    /// Returns the profiled work that all present devices do within a span. If no device is
    /// present, returns the work of one of profiled speed.
    pub(super) fn within(&self, span: Nanos) -> i64 {
        let present = self.devices.iter().filter(|(_, device)| device.present);
        let work = present.map(|(_, device)| device.by_profile(span).0).fold(0, i64::saturating_add);
        if work == 0 { span.0 } else { work }
    }

    /// Returns the duration of a profiled cost on the fastest device.
    pub(super) fn at_best(&self, cost: Nanos) -> Nanos {
        let present = self.devices.iter().filter(|(_, device)| device.present);
        present.map(|(_, device)| device.takes(cost)).min().unwrap_or(cost)
    }

    /// Returns the part of the time since the last call for which the devices were busy. A shard
    /// assumes that each other shard uses as much as itself.
    pub(super) fn utilisation(&mut self, now: Time) -> Permille {
        self.account(now);
        let present = self.devices.iter().filter(|(_, device)| device.present).count().max(1);
        let whole = ((now - self.began).0.saturating_mul(present as i64)).max(1);
        let used = Permille::of(std::mem::take(&mut self.used), Nanos(whole));
        self.began = now;
        Permille::from_parts(used.parts() * self.shards.cast_unsigned()).min(Permille::WHOLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_devices_are_busy_while_they_have_tasks() {
        let limits = Limits { devices: 3, depth: 2, ..Limits::ONE };
        let mut devices = DeviceUse::new(&limits, 2, 1);
        let at = |ms| Time::ORIGIN + Nanos::from_millis(ms);
        devices.start(at(0), DeviceId(0));
        devices.start(at(10), DeviceId(0));
        devices.end(at(20), DeviceId(0));
        devices.end(at(60), DeviceId(0));
        assert_eq!(devices.utilisation(at(100)).parts(), 300);
        devices.start(at(100), DeviceId(1));
        devices.join(at(150), DeviceId(2));
        devices.leave(at(150), DeviceId(1));
        assert_eq!(devices.utilisation(at(200)).parts(), 250);
    }

    #[test]
    fn a_slow_device_does_less_work() {
        let limits = Limits { devices: 2, ..Limits::ONE };
        let mut devices = DeviceUse::new(&limits, 2, 1);
        devices.slow(DeviceId(1), 400);
        assert_eq!((devices.within(Nanos(100)), devices.at_best(Nanos(7))), (125, Nanos(7)));
        devices.leave(Time::ORIGIN, DeviceId(0));
        assert_eq!((devices.within(Nanos(100)), devices.at_best(Nanos(7))), (25, Nanos(28)));
        devices.leave(Time::ORIGIN, DeviceId(1));
        assert_eq!(devices.within(Nanos(100)), 100, "at least one");
    }
}
