//! The half that owns devices: matches models that may send with devices that are free.
//!
//! Symphony's Algorithm 1 has a timer per model, at the candidate's exec, and one per device, at the end of its batch.
//! Both ask the same question, "is there a candidate in its window and a device that is free?", so both are answered in
//! one place: candidates wait in a heap by exec until their moment, then in a heap by urgency until a device is free.
//! Each step costs O(log models + log devices).

use super::{Class, Grant, Offer};
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Time};

/// Which of several free devices is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The smallest id: load gathers on the first devices, the last stay idle and can be released.
    SmallestId,
    /// The one that has been free for longest: load spreads evenly.
    EarliestFree,
}

/// Devices, and the moments at which models may send.
#[derive(Debug)]
pub(crate) struct Matchmaker {
    choice: DeviceChoice,
    devices: Vec<Device>,
    /// Devices that are there.
    present: usize,
    /// Free devices, by preference.
    free: IndexedHeap<Time>,
    /// Free devices that proved too slow for what waits; they come back at the end of the round.
    slow_devices: Vec<DeviceId>,
    /// Models whose overdue requests do not fit the free device; they come back at the end of the round.
    large_models: Vec<ModelId>,
    models: Vec<ModelState>,
    /// Models whose candidate's exec lies ahead, by exec.
    pending: IndexedHeap<Time>,
    /// Models whose candidate may start, by rank.
    ready: IndexedHeap<Time>,
    /// Models with overdue requests, by the arrival of the first.
    overdue: IndexedHeap<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Device {
    state: Presence,
    busy: bool,
    percent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Present,
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct ModelState {
    offer: Offer,
    in_flight: usize,
    instances: usize,
}

const NO_OFFER: Offer = Offer { punctual: None, overdue_since: None };

impl Matchmaker {
    pub(crate) fn new(models: usize, devices: usize, choice: DeviceChoice) -> Matchmaker {
        Matchmaker {
            choice,
            devices: vec![Device { state: Presence::Absent, busy: false, percent: 100 }; devices],
            present: 0,
            free: IndexedHeap::new(devices),
            slow_devices: Vec::with_capacity(devices),
            large_models: Vec::with_capacity(models),
            models: vec![ModelState { offer: NO_OFFER, in_flight: 0, instances: usize::MAX }; models],
            pending: IndexedHeap::new(models),
            ready: IndexedHeap::new(models),
            overdue: IndexedHeap::new(models),
        }
    }

    pub(crate) fn load_model(&mut self, id: ModelId, instances: usize) {
        let model = &mut self.models[id.index()];
        assert_eq!(model.in_flight, 0, "the driver reused the id of a model that still runs: {id:?}");
        *model = ModelState { offer: NO_OFFER, in_flight: 0, instances };
    }

    /// Devices that are there.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    pub(crate) fn join(&mut self, now: Time, id: DeviceId) {
        let device = &mut self.devices[id.index()];
        assert_ne!(device.state, Presence::Present, "the driver let a device join twice: {id:?}");
        (device.state, device.percent) = (Presence::Present, 100);
        self.present += 1;
        self.set_free(now, id);
    }

    pub(crate) fn leave(&mut self, id: DeviceId) {
        let device = &mut self.devices[id.index()];
        assert_eq!(device.state, Presence::Present, "the driver let an absent device leave: {id:?}");
        device.state = if device.busy { Presence::Leaving } else { Presence::Absent };
        self.present -= 1;
        self.free.remove(id.index());
    }

    pub(crate) fn slow(&mut self, id: DeviceId, percent: u32) {
        self.devices[id.index()].percent = percent.max(1);
    }

    /// A task of `model` on `device` has ended.
    pub(crate) fn release(&mut self, now: Time, model: ModelId, id: DeviceId) {
        let device = &mut self.devices[id.index()];
        device.busy = false;
        if device.state == Presence::Leaving {
            device.state = Presence::Absent;
        }
        self.set_free(now, id);
        self.models[model.index()].in_flight -= 1;
        self.arm(now, model);
    }

    fn set_free(&mut self, now: Time, id: DeviceId) {
        let device = self.devices[id.index()];
        if device.state == Presence::Present && !device.busy {
            let preference = match self.choice {
                DeviceChoice::SmallestId => Time::ORIGIN,
                DeviceChoice::EarliestFree => now,
            };
            self.free.set(id.index(), preference);
        }
    }

    /// Takes note of what a model asks for; the latest offer wins.
    pub(crate) fn post(&mut self, now: Time, id: ModelId, offer: Offer) {
        self.models[id.index()].offer = offer;
        self.arm(now, id);
    }

    /// Puts a model into the heaps where its offer belongs; into none if as many of its batches run as may.
    fn arm(&mut self, now: Time, id: ModelId) {
        let model = self.models[id.index()];
        let offer = if model.in_flight < model.instances { model.offer } else { NO_OFFER };
        let set = |heap: &mut IndexedHeap<Time>, at: Option<Time>| match at {
            Some(at) => heap.set(id.index(), at),
            None => heap.remove(id.index()),
        };
        set(&mut self.pending, offer.punctual.filter(|window| window.exec > now).map(|window| window.exec));
        set(&mut self.ready, offer.punctual.filter(|window| window.exec <= now).map(|window| window.rank));
        set(&mut self.overdue, offer.overdue_since);
    }

    /// The next match at `now`, if there is one. Answer with [`Matchmaker::take`] or [`Matchmaker::set_aside`].
    pub(crate) fn next_grant(&mut self, now: Time) -> Option<Grant> {
        while let Some((_, model)) = self.pending.peek().filter(|&(exec, _)| exec <= now) {
            self.arm(now, ModelId(model as u16));
        }
        let (_, device) = self.free.peek()?;
        let (model, class) = match (self.ready.peek(), self.overdue.peek()) {
            (Some((_, model)), _) => (model, Class::Punctual),
            (None, Some((_, model))) => (model, Class::Overdue { until: self.free_until() }),
            (None, None) => return None,
        };
        let percent = self.devices[device].percent;
        Some(Grant { model: ModelId(model as u16), device: DeviceId(device as u16), percent, class })
    }

    /// Until when overdue requests may occupy the free device without harm to a candidate: as long as they like while
    /// another device stays free, else up to the earliest latest moment of a candidate that waits for its exec.
    fn free_until(&self) -> Time {
        if self.free.len() > 1 {
            return Time::NEVER;
        }
        let latest = |model: usize| self.models[model].offer.punctual.map(|window| window.latest);
        self.pending.keys().filter_map(latest).min().unwrap_or(Time::NEVER)
    }

    /// The grant was used.
    pub(crate) fn take(&mut self, grant: &Grant) {
        self.free.remove(grant.device.index());
        self.devices[grant.device.index()].busy = true;
        self.models[grant.model.index()].in_flight += 1;
    }

    /// The grant was of no use: the device is too slow, or free for too short a time, for what the model has.
    pub(crate) fn set_aside(&mut self, grant: &Grant) {
        match grant.class {
            Class::Punctual => {
                self.free.remove(grant.device.index());
                self.slow_devices.push(grant.device);
            }
            Class::Overdue { .. } => {
                self.overdue.remove(grant.model.index());
                self.large_models.push(grant.model);
            }
        }
    }

    /// Ends a round of grants: brings back what was set aside in it.
    pub(crate) fn end_round(&mut self, now: Time) {
        while let Some(device) = self.slow_devices.pop() {
            self.set_free(now, device);
        }
        while let Some(model) = self.large_models.pop() {
            self.arm(now, model);
        }
    }

    /// The next exec, if a device is free to take it.
    pub(crate) fn next_wakeup(&self) -> Time {
        match self.free.is_empty() {
            true => Time::NEVER,
            false => self.pending.peek().map_or(Time::NEVER, |(exec, _)| exec),
        }
    }
}
