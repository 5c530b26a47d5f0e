//! The devices by id, as whoever loads models, adds devices or looks at them sees them.
//!
//! The scheduler's thread has its own list and looks here only when a device comes or goes. An id is taken from when its device
//! is opened until the last thread of the device has ended. A device that hangs may never get there: its id stays taken, so
//! that what it still reports can be told from what its successor does, and there are never more reports than places.

use parking_lot::{Condvar, Mutex};
use ripieno_base::DeviceId;
use ripieno_executor::Device;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long a device that was given up, or is to leave, is waited for by who wants its place: what does not hang is gone
/// within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A device in a list that its user owns.
pub(crate) type Shared = Arc<dyn Device>;

/// A device that held nothing after a loop's last turn.
pub(crate) type KnownIdle = Arc<Mutex<Option<Shared>>>;

/// How a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// It takes batches.
    #[default]
    Serving,
    /// It ends what it holds, and is gone then.
    Leaving,
    /// It was given up; some thread of it has not ended.
    Lost,
}

impl DeviceState {
    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            DeviceState::Serving => "serving",
            DeviceState::Leaving => "leaving",
            DeviceState::Lost => "lost",
        }
    }
}

/// Why devices stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefused {
    /// So many serve, which is the bound.
    #[error("there are {0} devices, which is the bound; start the server with a higher one")]
    TooMany(usize),
    /// Fewer than the bound serve, but one that leaves or was given up has not ended.
    #[error("a device that leaves, or was given up, has not ended and keeps its place; retry after {0:?}")]
    NotEnded(Duration),
    /// It cannot be opened.
    #[error("the device cannot be opened: {0}")]
    Unopened(String),
    /// There is no such device, or it is going already.
    #[error("there is no device {0} that serves")]
    NotServing(u16),
    /// Nobody would be left to serve.
    #[error("device {0} is the last one; add another first")]
    Last(u16),
    /// They are those of a cluster.
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

/// Opens a device anew under its id; called once its threads have ended.
type Reopen = Box<dyn Fn(DeviceId) + Send + Sync>;

/// All devices.
pub(crate) struct DeviceTable {
    slots: Mutex<Vec<Slot>>,
    /// Told when an id is free again.
    freed: Condvar,
    reopen: OnceLock<Reopen>,
}

#[derive(Clone, Default)]
struct Slot {
    /// None of an id that is free, or whose device is being opened.
    state: Option<DeviceState>,
    opening: bool,
    /// Loops that give it tasks.
    users: usize,
    /// Of one that was given up: another is opened in its place once it has ended.
    again: bool,
    /// None once it is being closed.
    device: Option<Shared>,
}

impl DeviceTable {
    /// Of these devices, each for so many loops, and so many ids in all.
    pub(crate) fn new(devices: &[Shared], users: usize, ids: usize) -> DeviceTable {
        let serving = |device: &Shared| Slot { users, ..Slot::serving(Arc::clone(device)) };
        let mut slots: Vec<Slot> = devices.iter().map(serving).collect();
        slots.resize(ids, Slot::default());
        DeviceTable { slots: Mutex::new(slots), freed: Condvar::new(), reopen: OnceLock::new() }
    }

    /// What is to be done once a device that hung has ended after all.
    pub(crate) fn on_end(&self, reopen: Reopen) {
        assert!(self.reopen.set(reopen).is_ok(), "it is said once");
    }

    /// Takes the smallest id that is free. Where none is, but a device is on its way out, waits a while for its end.
    pub(crate) fn reserve(&self) -> Result<DeviceId, DeviceRefused> {
        let (mut slots, until) = (self.slots.lock(), Instant::now() + PATIENCE);
        loop {
            if let Some(at) = slots.iter().position(|slot| slot.state.is_none() && !slot.opening) {
                slots[at].opening = true;
                return Ok(DeviceId(at as u16));
            }
            let going = |slot: &Slot| matches!(slot.state, Some(DeviceState::Leaving | DeviceState::Lost));
            if !slots.iter().any(going) {
                return Err(DeviceRefused::TooMany(slots.len()));
            }
            // Who comes again keeps its place.
            let waits = slots.iter().any(|slot| going(slot) && !slot.again);
            if !waits || self.freed.wait_until(&mut slots, until).timed_out() {
                return Err(DeviceRefused::NotEnded(PATIENCE));
            }
        }
    }

    /// A loop uses a device from now on.
    pub(crate) fn serve(&self, id: DeviceId, device: Shared) {
        let slot = &mut self.slots.lock()[id.index()];
        let users = slot.users + 1;
        *slot = Slot { users, ..Slot::serving(device) };
    }

    /// What is lost stays so.
    pub(crate) fn set(&self, id: DeviceId, state: DeviceState) {
        let known = &mut self.slots.lock()[id.index()].state;
        *known = Some(if *known == Some(DeviceState::Lost) { DeviceState::Lost } else { state });
    }

    /// A loop uses a device no more. The last one has it end; if one of them lost it, it may be to come `again`.
    pub(crate) fn part_with(self: &Arc<DeviceTable>, id: DeviceId, again: bool) {
        let slot = &mut self.slots.lock()[id.index()];
        (slot.users, slot.again) = (slot.users - 1, slot.again || again);
        if slot.users == 0 {
            self.close(id, slot.again);
        }
    }

    /// Those that are there, or were and have not ended; not those that are being opened.
    pub(crate) fn all(&self) -> Vec<(DeviceId, DeviceState, Option<Shared>)> {
        let slots = self.slots.lock();
        let each = (0..).map(DeviceId).zip(slots.iter());
        each.filter_map(|(id, slot)| Some((id, slot.state?, slot.device.clone()))).collect()
    }

    /// How a device is, if it is there.
    pub(crate) fn state(&self, id: DeviceId) -> Option<DeviceState> {
        self.slots.lock().get(id.index())?.state
    }

    /// How many serve.
    pub(crate) fn serving(&self) -> usize {
        self.slots.lock().iter().filter(|slot| slot.state == Some(DeviceState::Serving)).count()
    }

    /// Those that models are attached to.
    pub(crate) fn open(&self) -> Vec<Shared> {
        let slots = self.slots.lock();
        let open = slots.iter().filter(|slot| slot.state != Some(DeviceState::Lost));
        open.filter_map(|slot| slot.device.clone()).collect()
    }

    pub(crate) fn free(&self, id: DeviceId) {
        self.slots.lock()[id.index()] = Slot::default();
        self.freed.notify_all();
    }

    /// Has a device end on a thread of its own, which may take as long as it likes. Its id is free then; if it is to come
    /// `again`, it is opened anew under it.
    fn close(self: &Arc<DeviceTable>, id: DeviceId, again: bool) {
        let table = Arc::clone(self);
        let end = move || {
            // Not in one statement: the lock would be held until the device has ended.
            let device = table.slots.lock()[id.index()].device.take();
            device.into_iter().for_each(end_last);
            let Some(reopen) = table.reopen.get().filter(|_| again) else { return table.free(id) };
            table.slots.lock()[id.index()] = Slot { opening: true, ..Slot::default() };
            reopen(id);
        };
        // Without a thread it is never ended, and its id stays taken.
        if let Err(error) = thread::Builder::new().name(format!("ripieno-close-{}", id.0)).spawn(end) {
            tracing::error!(device = id.0, %error, "no thread to close a device");
        }
    }

    /// Ends all that are open, on this thread.
    pub(crate) fn close_all(&self) {
        let open: Vec<Shared> = self.slots.lock().iter_mut().filter_map(|slot| slot.device.take()).collect();
        drop(open);
    }
}

/// Ends a device. Whoever drops it last waits for its threads, so nobody else must be the last: once it is in no list, others
/// hold it for a moment at most.
fn end_last(mut device: Shared) {
    while Arc::get_mut(&mut device).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
}

impl Slot {
    fn serving(device: Shared) -> Slot {
        Slot { state: Some(DeviceState::Serving), device: Some(device), ..Slot::default() }
    }
}
