//! The backends as a scheduler sees them: each is a device from the message with its models until
//! its connection ends.

use super::device::{RemoteExecutor, RemoteState};
use super::refusals::NotAccepted;
use super::{SchedulerShared, ServedModels, StartedEngine, unexpected};
use crate::handover::ProcessId;
use crate::offer::{OfferedModel, decode_offers};
use crate::plane::{DecodeError, Message, MessageReader, PeerAddress, PeerLink, Role, RunningReport};
use crate::random_id;
use parking_lot::Mutex;
use ripieno_base::DeviceId;
use ripieno_runtime::DeviceRefused;
use std::io;
use std::sync::Arc;

/// A backend that is connected.
#[derive(Clone)]
pub(super) struct BackendPeer {
    pub(super) link: Arc<PeerLink>,
    /// Number of tasks that each of its lanes holds.
    depth: usize,
    /// The models that it offers, which its device looks up.
    pub(super) offers: Arc<Mutex<Vec<OfferedModel>>>,
    /// Device of the backend in the engine, once it has joined.
    device: Option<JoinedDevice>,
}

#[derive(Clone)]
struct JoinedDevice {
    served: Arc<ServedModels>,
    id: DeviceId,
    remote: Arc<RemoteState>,
}

impl JoinedDevice {
    /// Removes the device from the engine.
    fn leave(&self, lost: bool) {
        self.remote.while_attached(|| leave_engine(&self.served, self.id, lost));
    }
}

impl SchedulerShared {
    pub(super) fn serve_backend(
        self: &Arc<SchedulerShared>,
        link: &Arc<PeerLink>,
        reader: &mut MessageReader,
    ) -> io::Result<()> {
        let (depth, offers) = loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::RegisterBackend { depth, models } => break (depth as usize, decode_offers(&models)),
                other => return Err(unexpected(&other)),
            }
        };
        let process = ProcessId(random_id());
        let registered = offers.and_then(|offers| self.register_backend(process, link, depth, offers));
        if let Err(cause) = registered {
            if self.refusals.note(link.peer(), &cause, true) {
                tracing::warn!("the backend at {} is refused: {cause}", PeerAddress(link.peer()));
            }
            link.send(&Message::Refused(cause.clone()));
            // The backend closes the connection when it has read the reason.
            while reader.read().is_ok() {}
            return Err(NotAccepted::error(&cause));
        }
        self.update(|machine, now, out| machine.on_member(now, process, Role::Backend, out));
        let ended = self.listen_to_backend(process, link, reader);
        link.close();
        let mut peers = self.peers.lock();
        let gone = peers.backends.remove(&process);
        // What it alone lacked is served now.
        self.reconcile(&peers);
        drop(peers);
        for device in gone.iter().filter_map(|backend| backend.device.as_ref()) {
            let (address, device_id) = (PeerAddress(link.peer()), device.id.0);
            tracing::warn!(device = device_id, %address, "backend {address} has gone, and device {device_id} with it");
            device.leave(true);
        }
        self.drop_from_calls(process);
        self.update(|machine, now, out| machine.on_lost(now, process, out));
        self.broadcast_device_count();
        ended
    }

    /// Handles a backend's messages until its connection ends.
    fn listen_to_backend(&self, process: ProcessId, link: &PeerLink, reader: &mut MessageReader) -> io::Result<()> {
        let mut device: Option<JoinedDevice> = None;
        loop {
            match (reader.read()?, &device) {
                (Message::KeepAlive, _) => {}
                (Message::TaskEnd(ended), Some(device)) => device.remote.on_end(ended, reader.has_next())?,
                (Message::Leave, Some(device)) => device.leave(false),
                // It runs nothing for this scheduler.
                (Message::Leave, None) => link.close(),
                (Message::Offer(models), _) => self.on_offer(process, decode_offers(&models).map_err(DecodeError)?),
                (Message::LoadCallEnd(call, failure), _) => self.on_call_end(process, call, failure),
                (Message::Fenced(epoch), _) => self.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
                (Message::Report(RunningReport { stamp, revision, held }), _) => {
                    self.update(|machine, now, out| machine.on_report(now, process, stamp, revision, &held, out));
                    device = self.peers.lock().backends.get(&process).and_then(|backend| backend.device.clone());
                    self.broadcast_device_count();
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// Registers a backend that has the served models; the first one determines them. The error
    /// says why it is refused.
    fn register_backend(
        &self,
        process: ProcessId,
        link: &Arc<PeerLink>,
        depth: usize,
        offers: Vec<OfferedModel>,
    ) -> Result<(), String> {
        let mut peers = self.peers.lock();
        let is_first = peers.backends.is_empty();
        let served = match &peers.served {
            Some(served) => Arc::clone(served),
            None => self.start_engine(&offers)?,
        };
        // Without any other backend, this one's models replace what was served before.
        if !is_first {
            served.models.lock().check(&offers)?;
        }
        served.takes(depth)?;
        let known = peers.served.replace(Arc::clone(&served)).is_some();
        let tell = |(id, address): (u32, String)| link.send(&Message::AddFrontend(id, address));
        peers.frontends.iter().for_each(|(&id, frontend)| tell((id, frontend.address.clone())));
        let offers = Arc::new(Mutex::new(offers));
        peers.backends.insert(process, BackendPeer { link: Arc::clone(link), depth, offers, device: None });
        self.reconcile(&peers);
        let serves_nothing = served.models.lock().listed().is_empty();
        if is_first && serves_nothing {
            peers.backends.remove(&process);
            if !known {
                peers.served = None;
            }
            return Err(served.models.lock().fault());
        }
        Ok(())
    }

    fn start_engine(&self, offers: &[OfferedModel]) -> Result<Arc<ServedModels>, String> {
        if offers.is_empty() {
            return Err("it has no model that can be served".to_owned());
        }
        let StartedEngine { engine, depth } = (self.start)()?;
        Ok(Arc::new(ServedModels { engine, depth, models: Mutex::default() }))
    }

    /// Handles a change of a backend's models.
    fn on_offer(&self, process: ProcessId, offers: Vec<OfferedModel>) {
        let peers = self.peers.lock();
        if let Some(backend) = peers.backends.get(&process) {
            *backend.offers.lock() = offers;
            self.reconcile(&peers);
        }
    }

    /// Makes a backend a device of the engine; nothing of earlier epochs runs on it.
    pub(super) fn join(&self, process: ProcessId) {
        let peers = self.peers.lock();
        let (Some(served), Some(backend)) = (peers.served.clone(), peers.backends.get(&process).cloned()) else {
            return;
        };
        drop(peers);
        let executor = RemoteExecutor::new(Arc::clone(&backend.link), backend.depth, Arc::clone(&backend.offers));
        match (served.engine.add_device_of(&executor), executor.opened()) {
            (Ok(id), Some(remote)) => {
                let address = PeerAddress(backend.link.peer());
                tracing::info!(device = id.0, %address, "backend {address} serves as device {}", id.0);
                if let Some(backend) = self.peers.lock().backends.get_mut(&process) {
                    backend.device = Some(JoinedDevice { served, id, remote });
                }
            }
            (refused, _) => {
                let cause = refused.map_or_else(|refused| refused.to_string(), |_| "it was not opened".to_owned());
                tracing::warn!("a backend is not taken: {cause}");
                backend.link.send(&Message::Refused(cause));
            }
        }
    }
}

impl ServedModels {
    /// Checks that the lanes of a backend are deep enough for the policy.
    fn takes(&self, depth: usize) -> Result<(), String> {
        let needed = self.depth;
        if depth >= needed {
            return Ok(());
        }
        Err(format!("its lanes hold {depth} tasks, and the policy queues {needed} of them"))
    }
}

/// Removes a device from the engine. A device that is lost, or the last one, is removed without
/// draining.
fn leave_engine(served: &ServedModels, device: DeviceId, lost: bool) {
    let engine = &served.engine;
    let parted = if lost { engine.lose_device(device) } else { engine.remove_device(device) };
    let parted = match parted {
        Err(DeviceRefused::Last(_)) => engine.lose_device(device),
        parted => parted,
    };
    // It may be leaving already.
    if let Err(refused) = parted {
        tracing::debug!(device = device.0, %refused, "a device");
    }
}
