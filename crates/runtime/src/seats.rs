//! The devices as the scheduler's thread has them: which are there, which are to leave, what they hold.

use crate::devices::{DeviceState, DeviceTable, Shared};
use ripieno_base::{DeviceId, ModelId};
use ripieno_executor::Task;
use std::sync::Arc;

/// All devices by id.
pub(crate) struct Seats {
    seats: Vec<Seat>,
    /// How many of them take new batches: asked for each request.
    serving: usize,
    table: Arc<DeviceTable>,
    /// The one that fell idle last, while it is.
    idle: Option<DeviceId>,
}

/// What is known of a device.
#[derive(Default)]
struct Seat {
    /// None while there is none.
    device: Option<Shared>,
    /// Whether it takes no new batches.
    leaving: bool,
    /// Tasks that it holds.
    held: usize,
}

impl Seats {
    /// Of the devices in the table, and so many ids in all.
    pub(crate) fn new(table: Arc<DeviceTable>, ids: usize) -> Seats {
        let mut seats: Vec<Seat> = (0..ids).map(|_| Seat::default()).collect();
        table.all().into_iter().for_each(|(id, _, device)| seats[id.index()].device = device);
        let mut all = Seats { seats, serving: 0, table, idle: None };
        all.count();
        all
    }

    fn count(&mut self) {
        self.serving = self.seats.iter().filter(|seat| seat.device.is_some() && !seat.leaving).count();
    }

    /// A device serves from now on.
    pub(crate) fn join(&mut self, id: DeviceId, device: Shared) {
        let seat = &mut self.seats[id.index()];
        assert!(seat.device.is_none(), "device {} is there already", id.0);
        *seat = Seat { device: Some(Arc::clone(&device)), leaving: false, held: 0 };
        self.count();
        self.table.serve(id, device);
    }

    /// A device takes no new batches from now on.
    pub(crate) fn leave(&mut self, id: DeviceId) {
        self.seats[id.index()].leaving = true;
        self.count();
        self.table.set(id, DeviceState::Leaving);
    }

    /// How a device is, if it is there.
    pub(crate) fn state(&self, id: DeviceId) -> Option<DeviceState> {
        let seat = self.seats.get(id.index()).filter(|seat| seat.device.is_some())?;
        Some(if seat.leaving { DeviceState::Leaving } else { DeviceState::Serving })
    }

    /// How many devices take new batches.
    pub(crate) fn serving(&self) -> usize {
        self.serving
    }

    /// A device that was to leave and has ended all that it held.
    pub(crate) fn drained(&self) -> Option<DeviceId> {
        let at = self.seats.iter().position(|seat| seat.leaving && seat.held == 0)?;
        Some(DeviceId(at as u16))
    }

    /// Lets go of a device that holds nothing.
    pub(crate) fn part_with(&mut self, id: DeviceId) {
        self.seats[id.index()] = Seat::default();
        self.count();
        self.table.part_with(id, false);
    }

    /// Gives a device up. If it ends after all it comes `again`.
    pub(crate) fn lose(&mut self, id: DeviceId, again: bool) -> Shared {
        let device = std::mem::take(&mut self.seats[id.index()]).device.expect("only who is there is lost");
        self.count();
        self.table.set(id, DeviceState::Lost);
        self.table.part_with(id, again);
        device
    }

    /// The device of this id, if it is there.
    pub(crate) fn get(&self, id: DeviceId) -> Option<&Shared> {
        self.seats[id.index()].device.as_ref()
    }

    /// Gives a device a task; false if there is none.
    pub(crate) fn submit(&mut self, id: DeviceId, task: Task) -> bool {
        let seat = &mut self.seats[id.index()];
        let Some(device) = &seat.device else { return false };
        let (lane, accepted) = (task.lane, device.submit(task).is_ok());
        assert!(accepted, "a policy gave lane {} of device {} more tasks than its depth", lane.0, id.0);
        seat.held += 1;
        self.idle = self.idle.filter(|&idle| idle != id);
        true
    }

    /// A device has ended a task; false if it was given up before.
    pub(crate) fn end(&mut self, id: DeviceId) -> bool {
        let seat = &mut self.seats[id.index()];
        if seat.device.is_some() {
            seat.held -= 1;
            self.idle = if seat.held == 0 { Some(id) } else { self.idle };
        }
        seat.device.is_some()
    }

    /// A device that holds nothing, perhaps not the only one.
    pub(crate) fn idle(&self) -> Option<&Shared> {
        self.seats[self.idle?.index()].device.as_ref()
    }

    pub(crate) fn detach(&self, model: ModelId) {
        self.seats.iter().filter_map(|seat| seat.device.as_ref()).for_each(|device| device.detach(model));
    }
}
