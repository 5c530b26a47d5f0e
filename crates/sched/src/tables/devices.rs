//! The table of devices: presence and speed.

use crate::Limits;
use ripieno_base::{DeviceId, Nanos};
use std::ops::{Deref, DerefMut};

/// A device, and a policy's data of it.
#[derive(Clone, Debug)]
pub struct DeviceState<T> {
    /// True if the device accepts tasks.
    pub present: bool,
    /// Latency of the device relative to the profiles, in percent.
    pub percent: u32,
    /// The scheduler's own state of the device.
    pub own: T,
}

impl<T> DeviceState<T> {
    /// Returns the duration on this device of a task with a profiled cost.
    pub fn takes(&self, cost: Nanos) -> Nanos {
        takes(self.percent, cost)
    }

    /// Returns the profiled cost that takes `span` on this device.
    pub fn by_profile(&self, span: Nanos) -> Nanos {
        if self.percent == 100 { span } else { span.scale(100, self.percent.into()) }
    }
}

/// Returns the duration of a profiled cost on a device of this latency percentage.
pub fn takes(percent: u32, cost: Nanos) -> Nanos {
    if percent == 100 { cost } else { cost.scale(percent.into(), 100) }
}

impl<T> Deref for DeviceState<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.own
    }
}

impl<T> DerefMut for DeviceState<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.own
    }
}

/// All devices, by id.
#[derive(Debug)]
pub struct Devices<T> {
    all: Vec<DeviceState<T>>,
    /// Number of present devices.
    present: usize,
}

impl<T> Devices<T> {
    /// Creates the table, with the first `present` devices present.
    pub fn new(limits: &Limits, present: usize, own: impl Fn() -> T) -> Devices<T> {
        let device = |id| DeviceState { present: id < present, percent: 100, own: own() };
        Devices { all: (0..limits.devices).map(device).collect(), present }
    }

    /// Marks a device as present, at nominal speed.
    pub fn join(&mut self, id: DeviceId) {
        let device = &mut self.all[id.index()];
        assert!(!device.present, "the driver let a device join twice: {id:?}");
        (device.present, device.percent) = (true, 100);
        self.present += 1;
    }

    /// Marks a device as absent.
    pub fn leave(&mut self, id: DeviceId) {
        let device = &mut self.all[id.index()];
        assert!(device.present, "the driver let an absent device leave: {id:?}");
        device.present = false;
        self.present -= 1;
    }

    /// Sets the latency of a device, in percent of the profile.
    pub fn slow(&mut self, id: DeviceId, percent: u32) {
        self.all[id.index()].percent = percent.max(1);
    }

    /// Returns the number of present devices.
    pub fn present(&self) -> usize {
        self.present
    }

    /// Returns the ids of all devices, present or not.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> + use<T> {
        (0..self.all.len() as u16).map(DeviceId)
    }

    /// Returns all devices with their ids, present or not.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceId, &DeviceState<T>)> {
        self.all.iter().zip(0..).map(|(device, id)| (DeviceId(id), device))
    }
}

impl<T> std::ops::Index<DeviceId> for Devices<T> {
    type Output = DeviceState<T>;

    fn index(&self, id: DeviceId) -> &DeviceState<T> {
        &self.all[id.index()]
    }
}

impl<T> std::ops::IndexMut<DeviceId> for Devices<T> {
    fn index_mut(&mut self, id: DeviceId) -> &mut DeviceState<T> {
        &mut self.all[id.index()]
    }
}
