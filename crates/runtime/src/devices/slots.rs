//! The scheduler thread's list of devices, with the state of each device and its number of tasks.

use crate::devices::{DeviceDirectory, DeviceState, KnownIdle, SharedDevice};
use ripieno_base::{DeviceId, ModelId};
use ripieno_executor::Task;
use std::sync::Arc;

/// All devices by id.
pub(crate) struct DeviceSlots {
    slots: Vec<DeviceSlot>,
    /// Number of devices that accept new batches. Cached, because every request reads it.
    serving: usize,
    table: Arc<DeviceDirectory>,
    /// The device that became idle last, if it is still idle.
    idle: Option<DeviceId>,
    /// The device of `idle`, for the threads that may wake it.
    known_idle: KnownIdle,
}

/// State of one device.
#[derive(Default)]
struct DeviceSlot {
    /// The device; `None` if the id is unused.
    device: Option<SharedDevice>,
    /// Whether the device is leaving, so that it accepts no new batches.
    leaving: bool,
    /// Number of tasks that the device holds.
    held: usize,
}

impl DeviceSlots {
    /// Creates slots for `ids` devices and fills in the devices of the directory.
    pub(crate) fn new(table: Arc<DeviceDirectory>, known_idle: KnownIdle, ids: usize) -> DeviceSlots {
        let mut slots: Vec<DeviceSlot> = (0..ids).map(|_| DeviceSlot::default()).collect();
        table.all().into_iter().for_each(|(id, _, device)| slots[id.index()].device = device);
        let mut all = DeviceSlots { slots, serving: 0, table, idle: None, known_idle };
        all.count();
        all
    }

    fn count(&mut self) {
        self.serving = self.slots.iter().filter(|slot| slot.device.is_some() && !slot.leaving).count();
    }

    /// Adds a serving device.
    pub(crate) fn join(&mut self, id: DeviceId, device: SharedDevice) {
        let slot = &mut self.slots[id.index()];
        assert!(slot.device.is_none(), "device {} is there already", id.0);
        *slot = DeviceSlot { device: Some(Arc::clone(&device)), leaving: false, held: 0 };
        self.count();
        self.table.add(id, device);
    }

    /// Marks a device as leaving, so that it accepts no new batches.
    pub(crate) fn leave(&mut self, id: DeviceId) {
        self.slots[id.index()].leaving = true;
        self.count();
        self.table.set_state(id, DeviceState::Leaving);
    }

    /// Returns the state of a device, if it exists.
    pub(crate) fn state(&self, id: DeviceId) -> Option<DeviceState> {
        let slot = self.slots.get(id.index()).filter(|slot| slot.device.is_some())?;
        Some(if slot.leaving { DeviceState::Leaving } else { DeviceState::Serving })
    }

    /// Number of devices that accept new batches.
    pub(crate) fn serving(&self) -> usize {
        self.serving
    }

    /// Returns a leaving device that has ended all its tasks and that the policy does not hold.
    pub(crate) fn drained(&self, holds: impl Fn(DeviceId) -> bool) -> Option<DeviceId> {
        let mut slots = (0..).map(DeviceId).zip(&self.slots);
        slots.find(|(id, slot)| slot.leaving && slot.held == 0 && !holds(*id)).map(|(id, _)| id)
    }

    /// Removes a device that holds no task.
    pub(crate) fn remove(&mut self, id: DeviceId) {
        self.slots[id.index()] = DeviceSlot::default();
        self.count();
        self.table.release(id, false);
    }

    /// Removes a lost device. With `again`, the device is reopened if it ends its task after all.
    pub(crate) fn lose(&mut self, id: DeviceId, again: bool) -> SharedDevice {
        let device = std::mem::take(&mut self.slots[id.index()]).device.expect("only who is there is lost");
        self.count();
        self.table.set_state(id, DeviceState::Lost);
        self.table.release(id, again);
        device
    }

    /// Returns the device with this id, if it exists.
    pub(crate) fn get(&self, id: DeviceId) -> Option<&SharedDevice> {
        self.slots[id.index()].device.as_ref()
    }

    /// Submits a task to a device. Returns false if the device does not exist.
    pub(crate) fn submit(&mut self, id: DeviceId, task: Task) -> bool {
        let slot = &mut self.slots[id.index()];
        let Some(device) = &slot.device else { return false };
        let (lane, accepted) = (task.lane, device.submit(task).is_ok());
        assert!(accepted, "a policy gave lane {} of device {} more tasks than its depth", lane.0, id.0);
        slot.held += 1;
        self.idle = self.idle.filter(|&idle| idle != id);
        true
    }

    /// Counts the end of a task. Returns false if the device had been given up.
    pub(crate) fn end(&mut self, id: DeviceId) -> bool {
        let slot = &mut self.slots[id.index()];
        if slot.device.is_some() {
            slot.held -= 1;
            self.idle = if slot.held == 0 { Some(id) } else { self.idle };
        }
        slot.device.is_some()
    }

    /// Tells the threads that may wake a device which one became idle last and is still idle.
    pub(crate) fn publish_idle(&self) {
        let idle = self.idle.and_then(|id| self.get(id));
        let mut known = self.known_idle.lock();
        if idle.map(Arc::as_ptr).map(<*const _>::cast::<()>) != known.as_ref().map(Arc::as_ptr).map(<*const _>::cast) {
            *known = idle.cloned();
        }
    }

    pub(crate) fn detach(&self, model: ModelId) {
        self.slots.iter().filter_map(|slot| slot.device.as_ref()).for_each(|device| device.detach(model));
    }
}
