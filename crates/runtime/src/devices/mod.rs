//! The device directory, for threads that load models, add devices or read metrics.
//!
//! The scheduler thread keeps its own list. It uses this directory only when a device joins or
//! leaves. A device holds its id until the device's last thread has ended. A hanging device may
//! never end, and it then holds its id for ever. This keeps its late results apart from another
//! device's and bounds the number of results.

pub(crate) mod coverage;
pub(crate) mod hang_detector;
pub(crate) mod lane_times;
pub(crate) mod slots;

use parking_lot::{Condvar, Mutex};
use ripieno_base::DeviceId;
use ripieno_executor::Device;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a leaving or lost device to free its id. A device that does not hang ends
/// within milliseconds.
const MAX_END_WAIT: Duration = Duration::from_secs(1);

/// A device shared between threads.
pub(crate) type SharedDevice = Arc<dyn Device>;

/// A device that was idle at the end of the loop's last turn, if any.
pub(crate) type KnownIdle = Arc<Mutex<Option<SharedDevice>>>;

/// State of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// It accepts batches.
    #[default]
    Serving,
    /// It ends the tasks that it holds, then it is removed.
    Leaving,
    /// It was given up, and at least one of its threads has not ended.
    Lost,
}

impl DeviceState {
    /// Name of the state in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            DeviceState::Serving => "serving",
            DeviceState::Leaving => "leaving",
            DeviceState::Lost => "lost",
        }
    }
}

/// Reason why a device cannot be added or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefused {
    /// The largest allowed number of devices serve. Holds that number.
    #[error("there are {0} devices, which is the bound; start the server with a higher one")]
    TooMany(usize),
    /// Every id is taken, one or more by a leaving or lost device. Holds the time after which to
    /// retry.
    #[error("a device that leaves, or was given up, has not ended and keeps its place; retry after {0:?}")]
    NotEnded(Duration),
    /// The device cannot be opened. Holds the reason.
    #[error("the device cannot be opened: {0}")]
    Unopened(String),
    /// The device does not exist or is leaving already. Holds its id.
    #[error("there is no device {0} that serves")]
    NotServing(u16),
    /// The device is the last serving one. Holds its id.
    #[error("device {0} is the last one; add another first")]
    Last(u16),
    /// The devices are backends of a cluster, which the engine cannot add or remove.
    #[error("the devices of a cluster are its backends; start one, or stop one with SIGTERM")]
    Elsewhere,
    /// The engine has stopped.
    #[error("the server is shutting down")]
    Stopped,
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reopens a device under its id, after the device's threads have ended.
type Reopen = Box<dyn Fn(DeviceId) + Send + Sync>;

/// All devices by id.
pub(crate) struct DeviceDirectory {
    entries: Mutex<Vec<DirectoryEntry>>,
    /// Notified when an id becomes free.
    freed: Condvar,
    reopen: OnceLock<Reopen>,
}

#[derive(Clone, Default)]
struct DirectoryEntry {
    /// State of the device; `None` if the id is free or the device is being opened.
    state: Option<DeviceState>,
    opening: bool,
    /// Number of scheduler loops that use the device.
    users: usize,
    /// Whether a lost device is reopened once its threads have ended.
    again: bool,
    /// The device; `None` once it is being closed.
    device: Option<SharedDevice>,
}

impl DeviceDirectory {
    /// Creates a directory for up to `ids` devices. Each of `devices` is used by `users` loops.
    pub(crate) fn new(devices: &[SharedDevice], users: usize, ids: usize) -> DeviceDirectory {
        let serving = |device: &SharedDevice| DirectoryEntry { users, ..DirectoryEntry::serving(Arc::clone(device)) };
        let mut slots: Vec<DirectoryEntry> = devices.iter().map(serving).collect();
        slots.resize(ids, DirectoryEntry::default());
        DeviceDirectory { entries: Mutex::new(slots), freed: Condvar::new(), reopen: OnceLock::new() }
    }

    /// Sets the action that reopens a hung device after its threads have ended.
    pub(crate) fn on_end(&self, reopen: Reopen) {
        assert!(self.reopen.set(reopen).is_ok(), "it is said once");
    }

    /// Reserves the smallest free id. If no id is free and a device is ending, waits up to
    /// [`MAX_END_WAIT`].
    pub(crate) fn reserve(&self) -> Result<DeviceId, DeviceRefused> {
        let (mut slots, until) = (self.entries.lock(), Instant::now() + MAX_END_WAIT);
        loop {
            if let Some(at) = slots.iter().position(|slot| slot.state.is_none() && !slot.opening) {
                slots[at].opening = true;
                return Ok(DeviceId(at as u16));
            }
            let going = |slot: &DirectoryEntry| matches!(slot.state, Some(DeviceState::Leaving | DeviceState::Lost));
            if !slots.iter().any(going) {
                return Err(DeviceRefused::TooMany(slots.len()));
            }
            // A device that will be reopened keeps its id, so waiting for it is useless.
            let waits = slots.iter().any(|slot| going(slot) && !slot.again);
            if !waits || self.freed.wait_until(&mut slots, until).timed_out() {
                return Err(DeviceRefused::NotEnded(MAX_END_WAIT));
            }
        }
    }

    /// Records that one more loop uses the device.
    pub(crate) fn add(&self, id: DeviceId, device: SharedDevice) {
        let slot = &mut self.entries.lock()[id.index()];
        let users = slot.users + 1;
        *slot = DirectoryEntry { users, ..DirectoryEntry::serving(device) };
    }

    /// Sets the state of a device. [`DeviceState::Lost`] is final.
    pub(crate) fn set_state(&self, id: DeviceId, state: DeviceState) {
        let known = &mut self.entries.lock()[id.index()].state;
        *known = Some(if *known == Some(DeviceState::Lost) { DeviceState::Lost } else { state });
    }

    /// Records that one loop fewer uses the device. The last loop closes it. The device is reopened
    /// afterwards if any loop passed `again`.
    pub(crate) fn release(self: &Arc<DeviceDirectory>, id: DeviceId, again: bool) {
        let slot = &mut self.entries.lock()[id.index()];
        (slot.users, slot.again) = (slot.users - 1, slot.again || again);
        if slot.users == 0 {
            self.close(id, slot.again);
        }
    }

    /// Returns all devices that are open, with their states; devices being opened are omitted.
    pub(crate) fn all(&self) -> Vec<(DeviceId, DeviceState, Option<SharedDevice>)> {
        let slots = self.entries.lock();
        let each = (0..).map(DeviceId).zip(slots.iter());
        each.filter_map(|(id, slot)| Some((id, slot.state?, slot.device.clone()))).collect()
    }

    /// Returns the state of a device, if it exists.
    pub(crate) fn state(&self, id: DeviceId) -> Option<DeviceState> {
        self.entries.lock().get(id.index())?.state
    }

    /// Returns the number of serving devices.
    pub(crate) fn serving(&self) -> usize {
        self.entries.lock().iter().filter(|slot| slot.state == Some(DeviceState::Serving)).count()
    }

    /// Returns the devices to which new models are attached: all open devices that are not lost.
    pub(crate) fn open(&self) -> Vec<SharedDevice> {
        let slots = self.entries.lock();
        let open = slots.iter().filter(|slot| slot.state != Some(DeviceState::Lost));
        open.filter_map(|slot| slot.device.clone()).collect()
    }

    pub(crate) fn free(&self, id: DeviceId) {
        self.entries.lock()[id.index()] = DirectoryEntry::default();
        self.freed.notify_all();
    }

    /// Closes a device on a new thread, because the device may take arbitrarily long to end. Then
    /// the device is reopened if `again`; otherwise the id is freed.
    fn close(self: &Arc<DeviceDirectory>, id: DeviceId, again: bool) {
        let table = Arc::clone(self);
        let end = move || {
            // A separate statement, so that the lock is released before the wait.
            let device = table.entries.lock()[id.index()].device.take();
            if let Some(device) = device {
                end_last(device);
            }
            let Some(reopen) = table.reopen.get().filter(|_| again) else { return table.free(id) };
            table.entries.lock()[id.index()] = DirectoryEntry { opening: true, ..DirectoryEntry::default() };
            reopen(id);
        };
        // Without a thread the device is never closed, and its id stays taken.
        if let Err(error) = thread::Builder::new().name(format!("ripieno-close-{}", id.0)).spawn(end) {
            tracing::error!(device = id.0, %error, "no thread to close a device");
        }
    }

    /// Closes all open devices on the calling thread. Blocks until their threads have ended.
    pub(crate) fn close_all(&self) {
        let open: Vec<SharedDevice> = self.entries.lock().iter_mut().filter_map(|slot| slot.device.take()).collect();
        drop(open);
    }
}

/// Drops the last reference to a device, which joins the device's threads. The directory no longer
/// lists the device, so other threads hold references for a moment at most. Waits until they have
/// dropped them, because they must not block on the join.
fn end_last(mut device: SharedDevice) {
    while Arc::get_mut(&mut device).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
}

impl DirectoryEntry {
    fn serving(device: SharedDevice) -> DirectoryEntry {
        DirectoryEntry { state: Some(DeviceState::Serving), device: Some(device), ..DirectoryEntry::default() }
    }
}
