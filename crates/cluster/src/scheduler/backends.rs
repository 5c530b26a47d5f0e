//! The backends as a scheduler sees them: each is a device from the message with its models until
//! its connection ends.

use super::device::{RemoteExecutor, RemoteState};
use super::{SchedulerShared, ServedModels, StartedEngine, unexpected};
use crate::description::{self, ModelDescription};
use crate::handover::ProcessId;
use crate::plane::{Message, MessageReader, PeerLink, Role, RunningReport};
use crate::random_id;
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
    /// Its device in the engine, once it has joined.
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
        let (depth, models) = loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::RegisterBackend { depth, models } => break (depth as usize, models),
                other => return Err(unexpected(&other)),
            }
        };
        if let Err(cause) = self.served_with(&models).and_then(|served| served.takes(depth)) {
            tracing::warn!("a backend is not taken: {cause}");
            link.send(&Message::Refused(cause.clone()));
            // The backend closes the connection when it has read the reason.
            while reader.read().is_ok() {}
            return Err(io::Error::other(cause));
        }
        let process = ProcessId(random_id());
        {
            let mut peers = self.peers.lock();
            let tell = |(id, address): (u32, String)| link.send(&Message::AddFrontend(id, address));
            peers.frontends.iter().for_each(|(&id, frontend)| tell((id, frontend.address.clone())));
            peers.backends.insert(process, BackendPeer { link: Arc::clone(link), depth, device: None });
        }
        self.update(|machine, now, out| machine.on_member(now, process, Role::Backend, out));
        let ended = self.listen_to_backend(process, link, reader);
        link.close();
        let gone = self.peers.lock().backends.remove(&process);
        gone.iter().filter_map(|backend| backend.device.as_ref()).for_each(|device| device.leave(true));
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

    /// Returns the served models, if a backend offers the same; the first backend determines them.
    fn served_with(&self, models: &str) -> Result<Arc<ServedModels>, String> {
        let models = description::parse_models(models)?;
        let mut peers = self.peers.lock();
        if let Some(served) = &peers.served {
            check_models(&served.models.iter().map(|(_, model)| model).collect::<Vec<_>>(), &models)?;
            return Ok(Arc::clone(served));
        }
        if models.is_empty() {
            return Err("it has no model that can be served".to_owned());
        }
        let StartedEngine { engine, depth } = (self.start)(&models)?;
        let load = |(at, model): (u32, ModelDescription)| {
            let id = engine.load(model.served(at)?).map_err(|error| format!("model {:?}: {error}", model.name))?;
            Ok((id, model))
        };
        let models = (0..).zip(models).map(load).collect::<Result<Vec<_>, String>>()?;
        (self.on_serving)(Some((&engine, &models)));
        let served = Arc::new(ServedModels { engine, depth, models });
        peers.served = Some(Arc::clone(&served));
        if let Some(message) = peers.models() {
            peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
        }
        Ok(served)
    }

    /// Makes a backend a device of the engine; nothing of earlier epochs runs on it.
    pub(super) fn join(&self, process: ProcessId) {
        let peers = self.peers.lock();
        let (Some(served), Some(backend)) = (peers.served.clone(), peers.backends.get(&process).cloned()) else {
            return;
        };
        drop(peers);
        let executor = RemoteExecutor::new(Arc::clone(&backend.link), backend.depth);
        match (served.engine.add_device_of(&executor), executor.opened()) {
            (Ok(id), Some(remote)) => {
                tracing::info!(device = id.0, "a backend serves");
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

/// Checks that a backend has the served models, in the same order; the error names the first that
/// differs.
fn check_models(served: &[&ModelDescription], offered: &[ModelDescription]) -> Result<(), String> {
    for model in served {
        if !offered.iter().any(|other| other.name == model.name) {
            return Err(format!("it has no model {:?}, which this scheduler serves", model.name));
        }
    }
    for (at, other) in offered.iter().enumerate() {
        match served.get(at) {
            Some(model) if model.is_compatible(other) => {}
            Some(model) if model.name == other.name => {
                return Err(format!(
                    "its model {:?} is another than the one that is served: version, tensors, walk and max_batch must \
                     be equal",
                    other.name
                ));
            }
            _ => {
                return Err(format!(
                    "its model {:?} is not among those that this scheduler serves; start the scheduler anew to serve it",
                    other.name
                ));
            }
        }
    }
    Ok(())
}
