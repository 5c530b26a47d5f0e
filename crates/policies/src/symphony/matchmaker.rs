//! The half that owns devices: it matches models that may start batches with free devices.
//!
//! Symphony's Algorithm 1 has a timer per model, at the candidate's exec, and one per device, at
//! the end of its batch. Both timers ask whether there is a candidate within its window and a free
//! device, so one function answers both: candidates wait in a heap by exec until their exec, then
//! in a heap by urgency until a device is free. Each step costs O(log models + log devices).
//!
//! The lead is the time that a batch takes to reach its device. With a lead, a batch may be sent to
//! a busy device that will be free when the batch arrives; the device then holds two tasks. Without
//! a lead no batch is sent ahead.

use super::grants::{Candidates, Grant, GrantClass, Loaded, Offer, Release, Sent, Standing, ToMatchmaker};
use super::grants::{DeviceToken, GrantNumber};
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Nanos, Time};
use ripieno_sched::Limits;
use ripieno_sched::tables::devices::Devices;

/// The order of preference among free devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The smallest id: load gathers on the first devices, the last stay idle and can be released.
    SmallestId,
    /// The one that has been free for longest: load spreads evenly.
    EarliestFree,
}

/// Devices, and the times at which models may start batches.
#[derive(Debug)]
pub struct Matchmaker {
    /// The rule that prefers one free device to another.
    choice: DeviceChoice,
    /// The devices.
    devices: Devices<GrantedDevice>,
    /// Upper bound on the tasks of a device.
    depth: usize,
    /// Grants of each device, `depth` entries per device.
    granted: Vec<Option<Granted>>,
    /// Number of the last grant.
    last: GrantNumber,
    /// Number of shards.
    shards: usize,
    /// Latency percentage that each shard reports of each device, `shards` entries per device.
    standings: Vec<Option<u32>>,
    /// Free devices, by preference.
    free: IndexedHeap<Time>,
    /// Devices with one task and room for another, by the predicted end of that task.
    ending: IndexedHeap<Time>,
    /// Free devices whose last grant was returned unused, by the time at which they are granted
    /// again.
    set_aside: IndexedHeap<Time>,
    /// The models.
    models: Vec<MatchedModel>,
    /// Models whose candidate's exec lies ahead, by exec.
    pending: IndexedHeap<Time>,
    /// Models whose candidate may start, by rank.
    ready: IndexedHeap<Time>,
    /// Models with overdue requests, by the arrival of the first.
    overdue: IndexedHeap<Time>,
}

/// State of a device.
#[derive(Clone, Copy, Debug)]
struct GrantedDevice {
    /// Number of tasks that the device holds.
    held: usize,
    /// Predicted end of the last of the tasks.
    ends: Time,
    /// True once the last block of that task was sent, so that `ends` is known.
    ends_known: bool,
}

/// A token that a shard holds.
#[derive(Clone, Copy, Debug)]
struct Granted {
    number: GrantNumber,
    /// Whether the last block of its batch has been sent.
    sent: bool,
}

#[derive(Clone, Copy, Debug)]
struct MatchedModel {
    /// The candidates that the model's shard offers.
    candidates: Candidates,
    /// Number of grants; offers that do not include the latest are out of date.
    grants: u64,
    /// Number of the model's grants in flight.
    in_flight: usize,
    /// Largest number of devices that may run the model together.
    instances: usize,
}

/// Pause of a device after a grant that was returned unused, unless another task of the device ends
/// before. A model whose waiting requests are all too slow there would be granted it without end.
const SET_ASIDE: Nanos = Nanos::from_millis(1);

impl Matchmaker {
    /// Creates a matchmaker for `shards` shards.
    pub(crate) fn new(limits: &Limits, choice: DeviceChoice, shards: usize) -> Matchmaker {
        let (models, devices) = (limits.models, limits.devices);
        let idle = || GrantedDevice { held: 0, ends: Time::ORIGIN, ends_known: false };
        Matchmaker {
            choice,
            devices: Devices::new(limits, 0, idle),
            depth: limits.depth,
            granted: vec![None; devices * limits.depth],
            last: GrantNumber::default(),
            shards,
            standings: vec![None; devices * shards],
            free: IndexedHeap::new(devices),
            ending: IndexedHeap::new(devices),
            set_aside: IndexedHeap::new(devices),
            models: vec![
                MatchedModel {
                    candidates: Candidates::default(),
                    grants: 0,
                    in_flight: 0,
                    instances: usize::MAX
                };
                models
            ],
            pending: IndexedHeap::new(models),
            ready: IndexedHeap::new(models),
            overdue: IndexedHeap::new(models),
        }
    }

    /// Returns the number of model ids.
    pub fn models(&self) -> usize {
        self.models.len()
    }

    /// Handles a message from a shard.
    pub fn on_mail(&mut self, now: Time, mail: ToMatchmaker) {
        match mail {
            ToMatchmaker::Offer(offer) => self.store_offer(now, offer),
            ToMatchmaker::Sent(sent) => self.expect_end(sent),
            ToMatchmaker::Release(release) => self.release(now, release),
            ToMatchmaker::Standing(standing) => self.set_standing(now, standing),
            ToMatchmaker::Loaded(loaded) => self.load_model(loaded),
        }
    }

    /// Returns the grant of a device with this number; for no number, an empty entry.
    fn granted(&mut self, id: DeviceId, number: Option<GrantNumber>) -> Option<&mut Option<Granted>> {
        let slots = &mut self.granted[id.index() * self.depth..][..self.depth];
        slots.iter_mut().find(|slot| slot.map(|granted| granted.number) == number)
    }

    fn take(&mut self, id: DeviceId, number: GrantNumber) {
        let slot = self.granted(id, None).expect("no more is granted of a device than it holds");
        *slot = Some(Granted { number, sent: false });
        let state = &mut self.devices[id];
        (state.held, state.ends_known) = (state.held + 1, false);
    }

    /// Sets the instances of a model. The number of grants is kept, so that an offer of the model
    /// that had the id before stays out of date. The batches in flight are kept, too, since the end
    /// of the last one may still be on the link. The former model's offer was withdrawn when it was
    /// unloaded.
    fn load_model(&mut self, Loaded { model, instances }: Loaded) {
        self.models[model.index()].instances = instances;
    }

    /// Updates a device: it is present if all shards report it, and as slow as the slowest report.
    fn set_standing(&mut self, now: Time, Standing { shard, device: id, percent }: Standing) {
        let standings = &mut self.standings[id.index() * self.shards..][..self.shards];
        standings[usize::from(shard)] = percent;
        let all = standings.iter().copied().try_fold(0, |slowest, percent| Some(percent?.max(slowest)));
        match (all, self.devices[id].present) {
            (Some(percent), true) => self.devices.slow(id, percent),
            (Some(percent), false) => {
                self.devices.join(id);
                self.devices.slow(id, percent);
                self.set_free(now, id);
            }
            (None, true) => self.leave(id),
            (None, false) => {}
        }
    }

    fn leave(&mut self, id: DeviceId) {
        self.devices.leave(id);
        self.free.remove(id.index());
        self.ending.remove(id.index());
        self.set_aside.remove(id.index());
    }

    fn release(&mut self, now: Time, release: Release) {
        let Release { model, token: DeviceToken { device: id, number }, unused } = release;
        let Some(slot) = self.granted(id, Some(number)) else { return };
        *slot = None;
        self.devices[id].held -= 1;
        self.ending.remove(id.index());
        self.models[model.index()].in_flight -= 1;
        if unused.is_some() && self.devices[id].present {
            self.set_aside.set(id.index(), now + SET_ASIDE);
        } else {
            self.set_free(now, id);
            self.set_ending(id);
        }
        self.queue_model(now, model);
    }

    /// Predicts the end of a batch whose last block has been sent to a device: it arrives after the
    /// lead and takes its profiled cost. The prediction only decides whether a further batch may be
    /// sent ahead.
    fn expect_end(&mut self, sent: Sent) {
        let Some(Some(granted)) = self.granted(sent.device, Some(sent.number)) else { return };
        if std::mem::replace(&mut granted.sent, true) {
            return;
        }
        let device = &mut self.devices[sent.device];
        let arrives = sent.at + sent.lead;
        let begins = if device.held > 1 { device.ends.max(arrives) } else { arrives };
        device.ends = begins + device.takes(sent.cost);
        device.ends_known = true;
        self.set_ending(sent.device);
    }

    fn set_ending(&mut self, id: DeviceId) {
        let device = &self.devices[id];
        if device.present && device.ends_known && device.held > 0 && device.held < self.depth {
            self.ending.set(id.index(), device.ends);
        }
    }

    fn set_free(&mut self, now: Time, id: DeviceId) {
        let device = &self.devices[id];
        if device.present && device.held == 0 {
            let preference = match self.choice {
                DeviceChoice::SmallestId => Time::ORIGIN,
                DeviceChoice::EarliestFree => now,
            };
            self.free.set(id.index(), preference);
        }
    }

    /// Stores a model's offer; the latest wins.
    fn store_offer(&mut self, now: Time, offer: Offer) {
        let model = &mut self.models[offer.model.index()];
        if offer.seen == model.grants {
            model.candidates = offer.candidates;
            self.queue_model(now, offer.model);
        }
    }

    /// Puts a model into the heaps that match its offer; into none if all its instances are busy.
    fn queue_model(&mut self, now: Time, id: ModelId) {
        let state = &self.models[id.index()];
        let Candidates { punctual, overdue_since } =
            if state.in_flight < state.instances { state.candidates } else { Candidates::default() };
        let (pending, ready) = match punctual {
            Some(window) if window.exec > now => (Some(window.exec), None),
            Some(window) => (None, Some(window.rank)),
            None => (None, None),
        };
        let set = |heap: &mut IndexedHeap<Time>, at: Option<Time>| match at {
            Some(at) => heap.set(id.index(), at),
            None => heap.remove(id.index()),
        };
        set(&mut self.pending, pending);
        set(&mut self.ready, ready);
        set(&mut self.overdue, overdue_since);
    }

    /// Returns the next match at `now`, if there is one. Takes the device and the model's
    /// candidates.
    pub fn next_grant(&mut self, now: Time) -> Option<Grant> {
        while let Some((_, device)) = self.set_aside.peek().filter(|&(until, _)| until <= now) {
            self.set_aside.remove(device);
            self.set_free(now, DeviceId(device as u16));
            self.set_ending(DeviceId(device as u16));
        }
        while let Some((_, model)) = self.pending.peek().filter(|&(exec, _)| exec <= now) {
            self.queue_model(now, ModelId(model as u16));
        }
        let (model, class) = match (self.ready.peek(), self.overdue.peek()) {
            (Some((_, model)), _) => (model, GrantClass::Punctual),
            (None, Some((_, model))) => (model, GrantClass::Overdue { until: self.free_until() }),
            (None, None) => return None,
        };
        let device = match self.free.peek() {
            Some((_, device)) => device,
            None if class == GrantClass::Punctual => self.send_ahead_to(model).filter(|&(from, _)| from <= now)?.1,
            None => return None,
        };
        Some(self.grant(now, ModelId(model as u16), DeviceId(device as u16), class))
    }

    /// Returns the busy device that ends first and the time from which the model's batch may be
    /// sent to it. `None` if batches reach a device without delay.
    fn send_ahead_to(&self, model: usize) -> Option<(Time, usize)> {
        let lead = self.models[model].candidates.punctual?.lead;
        let (ends, device) = self.ending.peek().filter(|_| lead > Nanos::ZERO)?;
        Some((ends - lead, device))
    }

    /// Returns the time until which overdue requests may occupy the free device without making a
    /// candidate late: unlimited if another device stays free, else the earliest `latest` of a
    /// candidate that waits for its exec.
    fn free_until(&self) -> Time {
        if self.free.len() > 1 {
            return Time::NEVER;
        }
        let latest = |model: usize| self.models[model].candidates.punctual.map(|window| window.latest);
        self.pending.keys().filter_map(latest).min().unwrap_or(Time::NEVER)
    }

    fn grant(&mut self, now: Time, id: ModelId, device: DeviceId, class: GrantClass) -> Grant {
        self.free.remove(device.index());
        self.ending.remove(device.index());
        self.last = self.last.next();
        let token = DeviceToken { device, number: self.last };
        self.take(device, self.last);
        let percent = self.devices[device].percent;
        let model = &mut self.models[id.index()];
        (model.in_flight, model.grants, model.candidates) =
            (model.in_flight + 1, model.grants + 1, Candidates::default());
        self.queue_model(now, id);
        Grant { model: id, token, percent, class }
    }

    /// Returns the time of the next grant if no message comes before: the next exec if a device is
    /// free, else the time from which the most urgent candidate may be sent ahead.
    pub fn next_wakeup(&self) -> Time {
        let exec = || self.pending.peek().map_or(Time::NEVER, |(exec, _)| exec);
        let send_ahead = || self.ready.peek().and_then(|(_, model)| self.send_ahead_to(model)).map(|(from, _)| from);
        let matched = match (self.free.is_empty(), self.ending.is_empty()) {
            (false, _) => exec(),
            (true, false) => send_ahead().unwrap_or(Time::NEVER).min(exec()),
            (true, true) => Time::NEVER,
        };
        matched.min(self.set_aside.peek().map_or(Time::NEVER, |(until, _)| until))
    }
}
