//! Counters of a backend's device, for the metrics of its process.
//!
//! The scheduler counts the same batches as it learns of their ends. What only the backend can
//! count is the time by phase, and the rows that were copied: the scheduler has no tensors.

use parking_lot::Mutex;
use ripieno_executor::Device;
use ripieno_runtime::DeviceSnapshot;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Counters of a device over all its sessions.
#[derive(Default)]
pub struct DeviceUsage {
    batches: AtomicU64,
    busy_ns: AtomicU64,
    /// The device of the current session.
    device: Mutex<Option<Weak<dyn Device>>>,
}

impl DeviceUsage {
    /// Returns the counters, for a device of this id. Times by phase and copied rows are read from
    /// the device of the current session.
    pub fn snapshot(&self, id: u16) -> DeviceSnapshot {
        let (batches, busy_ns) = (self.batches.load(Relaxed), self.busy_ns.load(Relaxed));
        let counted = DeviceSnapshot { id, batches, busy_ns, percent: 100, ..DeviceSnapshot::default() };
        // The lock is released before the last reference to a device may be.
        let device = self.device.lock().as_ref().and_then(Weak::upgrade);
        let Some(device) = device else { return counted };
        DeviceSnapshot {
            rows_gathered: device.rows_gathered(),
            tasks_without_copy: device.tasks_without_copy(),
            tasks_gathered_ahead: device.tasks_gathered_ahead(),
            tasks_answered_beside: device.tasks_answered_beside(),
            spent: device.spent(),
            ..counted
        }
    }

    pub(super) fn on_open(&self, device: &Arc<dyn Device>) {
        *self.device.lock() = Some(Arc::downgrade(device));
    }

    pub(super) fn on_batch(&self, took_ns: u64) {
        self.batches.fetch_add(1, Relaxed);
        self.busy_ns.fetch_add(took_ns, Relaxed);
    }
}
