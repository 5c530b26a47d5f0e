//! Slots in which a backend keeps the state of requests.

use parking_lot::Mutex;
use ripieno_base::RequestSlot;

/// The slots of a backend's process.
///
/// A model's state is kept by slot, its devices share it, and they may follow several engines: of
/// an earlier scheduler, or of another sub-cluster. So each session has slots of its own.
#[derive(Default)]
pub(super) struct SlotPool(Mutex<FreeSlots>);

#[derive(Default)]
struct FreeSlots {
    /// Number of slots so far.
    count: u32,
    free: Vec<RequestSlot>,
}

impl SlotPool {
    pub(super) fn take(&self) -> RequestSlot {
        let mut slots = self.0.lock();
        slots.free.pop().unwrap_or_else(|| {
            slots.count += 1;
            RequestSlot(slots.count - 1)
        })
    }

    /// Takes slots back that no request uses any more.
    pub(super) fn give_back(&self, slots: impl Iterator<Item = RequestSlot>) {
        self.0.lock().free.extend(slots);
    }
}
