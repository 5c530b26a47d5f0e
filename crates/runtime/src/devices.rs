//! The devices by id, as seen by the threads that load models, add devices or read metrics.
//!
//! The scheduler thread keeps its own list and accesses this one only when a device joins or
//! leaves. An id is taken from the opening of its device until the device's last thread has ended.
//! A hanging device may never end: its id then stays taken, so that its late results cannot be
//! mistaken for its successor's, and the number of results stays bounded.

use parking_lot::{Condvar, Mutex};
use ripieno_base::DeviceId;
use ripieno_executor::Device;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Time to wait for a departing or lost device to free its id; a device that does not hang ends
/// within milliseconds.
const MAX_END_WAIT: Duration = Duration::from_secs(1);

/// A device shared between threads.
pub(crate) type SharedDevice = Arc<dyn Device>;

/// A device that held no task after a loop's last turn.
pub(crate) type KnownIdle = Arc<Mutex<Option<SharedDevice>>>;

/// State of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// It accepts batches.
    #[default]
    Serving,
    /// It ends the tasks that it holds, then it is removed.
    Leaving,
    /// It was given up; at least one of its threads has not ended.
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

/// Reason why a change of the devices was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefused {
    /// The largest allowed number of devices serve.
    #[error("there are {0} devices, which is the bound; start the server with a higher one")]
    TooMany(usize),
    /// Fewer devices than the bound serve, but a leaving or lost one still occupies an id.
    #[error("a device that leaves, or was given up, has not ended and keeps its place; retry after {0:?}")]
    NotEnded(Duration),
    /// The device cannot be opened.
    #[error("the device cannot be opened: {0}")]
    Unopened(String),
    /// No such device exists, or it is leaving already.
    #[error("there is no device {0} that serves")]
    NotServing(u16),
    /// It is the last serving device.
    #[error("device {0} is the last one; add another first")]
    Last(u16),
    /// The devices belong to a cluster.
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

/// Reopens a device under its id; called once its threads have ended.
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
    /// `None` if the id is free or its device is being opened.
    state: Option<DeviceState>,
    opening: bool,
    /// Number of scheduler loops that give it tasks.
    users: usize,
    /// Whether a lost device is reopened once it has ended.
    again: bool,
    /// `None` once the device is being closed.
    device: Option<SharedDevice>,
}

impl DeviceDirectory {
    /// Creates the directory with room for `ids` devices; each given device starts with `users`
    /// loops.
    pub(crate) fn new(devices: &[SharedDevice], users: usize, ids: usize) -> DeviceDirectory {
        let serving = |device: &SharedDevice| DirectoryEntry { users, ..DirectoryEntry::serving(Arc::clone(device)) };
        let mut slots: Vec<DirectoryEntry> = devices.iter().map(serving).collect();
        slots.resize(ids, DirectoryEntry::default());
        DeviceDirectory { entries: Mutex::new(slots), freed: Condvar::new(), reopen: OnceLock::new() }
    }

    /// Sets the action for a hung device that has ended after all.
    pub(crate) fn on_end(&self, reopen: Reopen) {
        assert!(self.reopen.set(reopen).is_ok(), "it is said once");
    }

    /// Reserves the smallest free id. If none is free but a device is ending, waits up to
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
            // A device that will be reopened keeps its id.
            let waits = slots.iter().any(|slot| going(slot) && !slot.again);
            if !waits || self.freed.wait_until(&mut slots, until).timed_out() {
                return Err(DeviceRefused::NotEnded(MAX_END_WAIT));
            }
        }
    }

    /// Registers one more loop as a user of the device.
    pub(crate) fn add(&self, id: DeviceId, device: SharedDevice) {
        let slot = &mut self.entries.lock()[id.index()];
        let users = slot.users + 1;
        *slot = DirectoryEntry { users, ..DirectoryEntry::serving(device) };
    }

    /// Sets the state of a device; `Lost` is final.
    pub(crate) fn set_state(&self, id: DeviceId, state: DeviceState) {
        let known = &mut self.entries.lock()[id.index()].state;
        *known = Some(if *known == Some(DeviceState::Lost) { DeviceState::Lost } else { state });
    }

    /// Unregisters a loop from the device. The last one closes it; with `again` from any of them,
    /// it is reopened.
    pub(crate) fn release(self: &Arc<DeviceDirectory>, id: DeviceId, again: bool) {
        let slot = &mut self.entries.lock()[id.index()];
        (slot.users, slot.again) = (slot.users - 1, slot.again || again);
        if slot.users == 0 {
            self.close(id, slot.again);
        }
    }

    /// Returns all devices that have not ended, without those being opened.
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

    /// Returns the devices that models are attached to.
    pub(crate) fn open(&self) -> Vec<SharedDevice> {
        let slots = self.entries.lock();
        let open = slots.iter().filter(|slot| slot.state != Some(DeviceState::Lost));
        open.filter_map(|slot| slot.device.clone()).collect()
    }

    pub(crate) fn free(&self, id: DeviceId) {
        self.entries.lock()[id.index()] = DirectoryEntry::default();
        self.freed.notify_all();
    }

    /// Closes a device on a thread of its own, which may take arbitrarily long. Afterwards the id
    /// is freed, or the device reopened if `again`.
    fn close(self: &Arc<DeviceDirectory>, id: DeviceId, again: bool) {
        let table = Arc::clone(self);
        let end = move || {
            // A separate statement: otherwise the lock would be held until the device has ended.
            let device = table.entries.lock()[id.index()].device.take();
            if let Some(device) = device {
                end_last(device);
            }
            let Some(reopen) = table.reopen.get().filter(|_| again) else { return table.free(id) };
            table.entries.lock()[id.index()] = DirectoryEntry { opening: true, ..DirectoryEntry::default() };
            reopen(id);
        };
        // Without a thread the device is never ended, and its id stays taken.
        if let Err(error) = thread::Builder::new().name(format!("ripieno-close-{}", id.0)).spawn(end) {
            tracing::error!(device = id.0, %error, "no thread to close a device");
        }
    }

    /// Closes all open devices on the calling thread.
    pub(crate) fn close_all(&self) {
        let open: Vec<SharedDevice> = self.entries.lock().iter_mut().filter_map(|slot| slot.device.take()).collect();
        drop(open);
    }
}

/// Drops the last reference to a device, which waits for its threads. No other thread may be the
/// last: once the device is in no list, others hold a reference for a moment at most.
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
