//! The backends as a scheduler sees them: each is a device of its sub-cluster's engine, from the
//! time when it has all models of the sub-cluster until its connection ends.

use super::device::{BackendDelays, RemoteExecutor, RemoteState};
use super::refusals::RegistrationError;
use super::sub_clusters::{SubClusterEngine, SubClusters};
use super::{BackendHolding, ConnectedPeers, SchedulerShared, unexpected};
use crate::handover::ProcessId;
use crate::offer::{BackendOffer, OfferList, decode_offer};
use crate::placement::PlacementPlan;
use crate::plane::{DecodeError, Message, PeerAddress, PeerLink, Role, RunningReport};
use crate::random_id;
use parking_lot::Mutex;
use ripieno_base::DeviceId;
use ripieno_runtime::NetworkDelay;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A backend that is connected.
pub(super) struct BackendPeer {
    pub(super) link: Arc<PeerLink>,
    /// Opens its device.
    executor: Arc<RemoteExecutor>,
    /// The models that it offers, which its device looks up.
    pub(super) offers: Arc<Mutex<OfferList>>,
    /// True if the backend loads and unloads models as the plan says.
    pub(super) follows: bool,
    /// The reason for which a planned model is not loaded; empty if all are.
    pub(super) fault: String,
    /// The sub-cluster that it said that it belongs to.
    pub(super) stated: Option<usize>,
    /// The models that it can load, with their sizes in bytes.
    available: BTreeMap<String, u64>,
    /// The sub-cluster that it belongs to, or moves to.
    pub(super) place: usize,
    /// The sub-cluster whose models it has all.
    pub(super) member_of: Option<usize>,
    /// True once nothing of earlier epochs runs on the backend.
    pub(super) ready: bool,
    /// True if the backend stops, and is needed until another one has its models.
    pub(super) stops: bool,
    /// Stage of its device.
    pub(super) stage: DeviceStage,
    /// Sub-cluster and models that it was last told to have.
    pub(super) told: Option<(usize, BTreeSet<String>)>,
}

/// Stage of a backend's device.
pub(super) enum DeviceStage {
    /// The engine does not have it.
    Absent,
    /// The engine opens it; the flag says that the backend leaves.
    Opening(bool),
    /// The engine has it.
    Joined(JoinedDevice),
    /// It takes no new tasks, and leaves once those that it has have ended.
    Leaving(JoinedDevice),
}

#[derive(Clone)]
pub(super) struct JoinedDevice {
    part: Arc<SubClusterEngine>,
    id: DeviceId,
    remote: Arc<RemoteState>,
}

impl JoinedDevice {
    /// Removes the device from the engine. One that is lost is removed without draining.
    pub(super) fn leave(&self, lost: bool) {
        let (engine, id) = (&self.part.engine, self.id);
        self.remote.while_attached(|| {
            let parted = if lost { engine.lose_device(id) } else { engine.remove_any_device(id) };
            // It may be leaving already.
            if let Err(refused) = parted {
                tracing::debug!(device = id.0, %refused, "a device");
            }
        });
    }

    /// Removes a device that has been leaving for this time, if the engine still has it.
    pub(super) fn give_up(&self, after: Duration) {
        if self.remote.is_attached() {
            tracing::warn!(device = self.id.0, "requests on a device that moves have not ended within {after:?}");
            self.leave(true);
        }
    }
}

impl BackendPeer {
    fn new(
        link: &Arc<PeerLink>,
        depth: usize,
        part: &SubClusterEngine,
        offer: BackendOffer,
        models: OfferList,
    ) -> Self {
        let BackendOffer { follows, fault, place: stated, available, .. } = offer;
        let (link, offers, place) = (Arc::clone(link), Arc::new(Mutex::new(models)), part.place);
        let executor = RemoteExecutor::new(Arc::clone(&link), depth, part.engine.least_hang(), Arc::clone(&offers));
        // One that follows no plan has the models already.
        let member_of = (!follows).then_some(place);
        let (stage, ready, stops, told) = (DeviceStage::Absent, false, false, None);
        BackendPeer {
            link,
            executor: Arc::new(executor),
            offers,
            follows,
            fault,
            stated,
            available,
            place,
            member_of,
            ready,
            stops,
            stage,
            told,
        }
    }

    pub(super) fn has_joined(&self) -> bool {
        matches!(self.stage, DeviceStage::Joined(_))
    }

    pub(super) fn holding(&self) -> BackendHolding {
        let loaded = self.offers.lock().iter().map(|offer| offer.description.name.clone()).collect();
        // One that has been moved states its new place when it connects again.
        let stated = self.told.as_ref().map(|(place, _)| *place).or(self.stated);
        BackendHolding { stated, loaded, available: self.available.clone() }
    }

    /// Returns its sub-cluster, its device there, and its delays.
    pub(super) fn delays(&self) -> Option<(usize, DeviceId, BackendDelays)> {
        self.device().map(|device| (device.part.place, device.id, device.remote.delays()))
    }

    /// Returns its sub-cluster's engine, and the time that a batch needs to reach it, if that is to
    /// be planned with.
    pub(super) fn planned_delay(&self) -> Option<(&Arc<SubClusterEngine>, NetworkDelay)> {
        let device = self.device()?;
        Some((&device.part, device.remote.network_delay(device.part.delay_permille?)?))
    }

    pub(super) fn offers_model(&self, name: &str) -> bool {
        self.offers.lock().iter().any(|offer| offer.description.name == name)
    }

    /// Makes its device take no new tasks; returns the device if the engine has it.
    pub(super) fn begin_leave(&mut self) -> Option<JoinedDevice> {
        match std::mem::replace(&mut self.stage, DeviceStage::Absent) {
            DeviceStage::Joined(device) => {
                self.stage = DeviceStage::Leaving(device.clone());
                Some(device)
            }
            DeviceStage::Opening(_) => {
                self.stage = DeviceStage::Opening(true);
                None
            }
            DeviceStage::Absent => {
                // It runs nothing for this scheduler.
                self.link.close();
                None
            }
            leaving @ DeviceStage::Leaving(_) => {
                self.stage = leaving;
                None
            }
        }
    }

    fn device(&self) -> Option<&JoinedDevice> {
        match &self.stage {
            DeviceStage::Joined(device) | DeviceStage::Leaving(device) => Some(device),
            DeviceStage::Absent | DeviceStage::Opening(_) => None,
        }
    }
}

/// The connection of a registered backend.
pub(super) struct BackendConnection {
    process: ProcessId,
    link: Arc<PeerLink>,
    executor: Arc<RemoteExecutor>,
}

impl BackendConnection {
    /// Handles a message that never waits; returns any other one.
    pub(super) fn try_handle(&mut self, message: Message, holds_next: bool) -> io::Result<Option<Message>> {
        match (message, self.executor.opened()) {
            (Message::TaskEnd(ended), Some(device)) => {
                device.on_end(ended, holds_next)?;
                Ok(None)
            }
            (other, _) => Ok(Some(other)),
        }
    }

    pub(super) fn handle(&mut self, shared: &SchedulerShared, message: Message, holds_next: bool) -> io::Result<()> {
        let process = self.process;
        match (message, self.executor.opened()) {
            (Message::TaskEnd(ended), Some(device)) => device.on_end(ended, holds_next)?,
            (Message::Leave, _) => shared.on_leave(process),
            (Message::Offer(models), _) => shared.on_offer(process, decode_offer(&models).map_err(DecodeError)?),
            (Message::LoadCallEnd(call, failure), _) => shared.on_call_end(process, call, failure),
            (Message::Fenced(epoch), _) => shared.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
            (Message::Report(RunningReport { stamp, revision, held }), _) => {
                let place = shared.peers.lock().backends.get(&process).map_or(0, |backend| backend.place);
                let from = (process, place);
                shared.update(|machine, now, out| machine.on_report(now, from, stamp, revision, &held, out));
                shared.broadcast_device_count();
            }
            (other, _) => {
                tracing::debug!(peer = ?self.link.peer(), "a message that a backend does not send now");
                return Err(unexpected(&other));
            }
        }
        Ok(())
    }

    pub(super) fn on_end(self, shared: &SchedulerShared) {
        let BackendConnection { process, link, .. } = self;
        let mut peers = shared.peers.lock();
        let gone = peers.backends.remove(&process);
        if let Some(device) = gone.as_ref().and_then(BackendPeer::device) {
            device.part.devices.fetch_sub(1, Ordering::Release);
        }
        // What it alone lacked is served now.
        let changes = shared.reconcile(&mut peers);
        drop(peers);
        // A scheduler that closes keeps its requests: the next primary receives them from the
        // frontends, which must not be told that they were lost with their device.
        let lost = gone.as_ref().and_then(BackendPeer::device).filter(|_| !shared.closed.load(Ordering::SeqCst));
        if let Some(device) = lost {
            let (address, device_id) = (PeerAddress(link.peer()), device.id.0);
            if device.remote.is_attached() {
                tracing::warn!(device = device_id, %address, "backend {address} has gone, and device {device_id} with it");
            } else {
                tracing::info!(device = device_id, %address, "backend {address} has left, and device {device_id} with it");
            }
            device.leave(true);
        }
        shared.carry_out(changes);
        shared.placing.note_change();
        shared.drop_from_calls(process);
        shared.update(|machine, now, out| machine.on_lost(now, process, out));
        shared.broadcast_device_count();
    }
}

impl SchedulerShared {
    pub(super) fn connect_backend(
        &self,
        link: &Arc<PeerLink>,
        depth: usize,
        models: &[u8],
    ) -> Result<BackendConnection, RegistrationError> {
        let process = ProcessId(random_id());
        let registered = decode_offer(models).and_then(|offer| self.register_backend(process, link, depth, offer));
        let executor = registered.map_err(|cause| {
            if self.refusals.note(link.peer(), &cause, true) {
                tracing::warn!("the backend at {} is refused: {cause}", PeerAddress(link.peer()));
            }
            RegistrationError::Refused(cause)
        })?;
        self.update(|machine, now, out| machine.on_member(now, process, Role::Backend, out));
        Ok(BackendConnection { process, link: Arc::clone(link), executor })
    }

    fn on_leave(&self, process: ProcessId) {
        let mut peers = self.peers.lock();
        let is_needed = peers.is_last_of_its_place(process);
        let Some(backend) = peers.backends.get_mut(&process) else { return };
        backend.stops = true;
        let device = if is_needed { None } else { backend.begin_leave() };
        drop(peers);
        if let Some(device) = device {
            device.leave(false);
        }
        self.placing.note_change();
    }

    /// Registers a backend. Without a plan it must have the served models, and the first one
    /// determines them; with a plan it learns later what to load. The error says why it is refused.
    fn register_backend(
        &self,
        process: ProcessId,
        link: &Arc<PeerLink>,
        depth: usize,
        offer: BackendOffer,
    ) -> Result<Arc<RemoteExecutor>, String> {
        let mut peers = self.peers.lock();
        let follows = peers.takes(&offer)?;
        let known = peers.sub_clusters.clone();
        let number = peers.effective.as_ref().map_or(1, |plan| plan.sub_clusters.len());
        let sub_clusters = self.start_engines(&known, number)?;
        let place = peers.place_for(&offer);
        let Some(part) = sub_clusters.get(place).cloned() else { return Err("it has no place".to_owned()) };
        // Without any other backend, this one's models replace what was served before.
        let is_first = !peers.has_members(place);
        if !follows && !is_first {
            part.models.lock().check(&offer.models)?;
        }
        part.takes(depth)?;
        peers.sub_clusters = sub_clusters;
        let tell = |(id, address): (u32, String)| link.send(&Message::AddFrontend(id, address));
        peers.frontends.iter().for_each(|(&id, frontend)| tell((id, frontend.address.clone())));
        let models = peers.shared(&offer.models);
        let backend = BackendPeer::new(link, depth, &part, offer, models);
        let executor = Arc::clone(&backend.executor);
        peers.backends.insert(process, backend);
        peers.undo_merges();
        let changes = self.reconcile(&mut peers);
        if is_first && !follows && part.listed().is_empty() {
            peers.backends.remove(&process);
            if known.is_empty() {
                peers.sub_clusters = SubClusters::default();
            }
            return Err(part.models.lock().fault());
        }
        drop(peers);
        self.carry_out(changes);
        self.placing.note_change();
        Ok(executor)
    }

    /// Handles a change of a backend's models.
    fn on_offer(&self, process: ProcessId, offer: BackendOffer) {
        let mut peers = self.peers.lock();
        let models = peers.shared(&offer.models);
        let Some(backend) = peers.backends.get_mut(&process) else { return };
        *backend.offers.lock() = models;
        let has_failed = !offer.fault.is_empty() && backend.fault != offer.fault;
        backend.fault = offer.fault;
        // A place from this scheduler outweighs the offer, which may have been on its way before.
        if backend.told.is_none() && offer.place.is_some() {
            backend.stated = offer.place;
        }
        let changes = self.reconcile(&mut peers);
        drop(peers);
        self.carry_out(changes);
        if has_failed {
            self.placing.note_change();
        }
    }

    /// Handles that nothing of earlier epochs runs on a backend: it may be a device of an engine.
    pub(super) fn join(&self, process: ProcessId) {
        let mut peers = self.peers.lock();
        if let Some(backend) = peers.backends.get_mut(&process) {
            backend.ready = true;
        }
        let changes = self.reconcile(&mut peers);
        drop(peers);
        self.carry_out(changes);
    }

    /// Makes a backend a device of its engine, whose stage is `Opening`.
    pub(super) fn open_device(&self, process: ProcessId) {
        let peers = self.peers.lock();
        let Some((backend, part)) = peers.backends.get(&process).and_then(|backend| {
            let part = peers.sub_clusters.get(backend.member_of?)?;
            Some((backend, Arc::clone(part)))
        }) else {
            return;
        };
        let (executor, link) = (Arc::clone(&backend.executor), Arc::clone(&backend.link));
        drop(peers);
        let (id, remote) = match (part.engine.add_device_of(&*executor), executor.opened()) {
            (Ok(id), Some(remote)) => (id, remote),
            (refused, _) => {
                let cause = refused.map_or_else(|refused| refused.to_string(), |_| "it was not opened".to_owned());
                tracing::warn!("a backend is not taken: {cause}");
                return link.send(&Message::Refused(cause));
            }
        };
        let address = PeerAddress(link.peer());
        tracing::info!(device = id.0, sub_cluster = part.place, %address, "backend {address} serves as device {}", id.0);
        let device = JoinedDevice { part, id, remote };
        let leaves = self.on_opened(process, &device);
        if let Some(lost) = leaves {
            device.leave(lost);
        }
        self.broadcast_device_count();
    }

    /// Notes an opened device. Returns whether it leaves again, and whether it is lost.
    fn on_opened(&self, process: ProcessId, device: &JoinedDevice) -> Option<bool> {
        let mut peers = self.peers.lock();
        let Some(backend) = peers.backends.get_mut(&process) else { return Some(true) };
        let leaves = matches!(backend.stage, DeviceStage::Opening(true));
        let stage = if leaves { DeviceStage::Leaving } else { DeviceStage::Joined };
        backend.stage = stage(device.clone());
        device.part.devices.fetch_add(1, Ordering::Release);
        leaves.then_some(false)
    }
}

impl ConnectedPeers {
    /// Checks that a backend can be used; returns whether it follows the plan.
    fn takes(&self, offer: &BackendOffer) -> Result<bool, String> {
        if offer.follows && self.plan.is_none() && !self.awaits_plan {
            return Err("it waits for a plan, and this scheduler has none; start the scheduler with --plan, or the \
                        backend without --planned"
                .to_owned());
        }
        if !offer.follows && offer.models.is_empty() {
            return Err("it has no model that can be served".to_owned());
        }
        Ok(offer.follows)
    }

    /// Returns the sub-cluster of a backend that has come.
    fn place_for(&self, offer: &BackendOffer) -> usize {
        let holds = |name: &str| offer.models.iter().any(|model| model.description.name == name);
        let place = |plan: &PlacementPlan| plan.place_for(&self.present(), offer.place, holds);
        self.plan.as_ref().map_or(0, place)
    }

    /// Returns true if a backend is the only device of its sub-cluster, and another backend could
    /// take its place.
    fn is_last_of_its_place(&self, process: ProcessId) -> bool {
        let Some(backend) = self.backends.get(&process).filter(|backend| backend.has_joined()) else { return false };
        let others = || self.backends.iter().filter(|(other, _)| **other != process).map(|(_, other)| other);
        self.effective.is_some()
            && others().any(|other| !other.stops)
            && !others().any(|other| other.member_of == backend.member_of && other.has_joined())
    }

    /// Returns the number of backends of each sub-cluster, without those that stop.
    pub(super) fn present(&self) -> Vec<usize> {
        let places = self.effective.as_ref().map_or(1, |plan| plan.sub_clusters.len());
        let mut present = vec![0; places.max(self.sub_clusters.len())];
        let stay = self.backends.values().filter(|backend| !backend.stops);
        stay.for_each(|backend| present[backend.place] += 1);
        present
    }
}
