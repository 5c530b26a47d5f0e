//! Backends: each is a device from when it has told its models until its connection ends.

use super::device::{Remote, RemoteExecutor};
use super::{Served, Shared, Started, unexpected};
use crate::description::{self, Description};
use crate::fresh;
use crate::handover::Process;
use crate::plane::{Link, Message, Reader, Report, Role};
use ripieno_base::DeviceId;
use ripieno_runtime::DeviceRefused;
use std::io;
use std::sync::Arc;

/// A backend that is connected.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) link: Arc<Link>,
    /// Tasks that each of its lanes holds.
    depth: usize,
    /// What it is to the engine, once it has joined.
    device: Option<Joined>,
}

#[derive(Clone)]
struct Joined {
    served: Arc<Served>,
    id: DeviceId,
    remote: Arc<Remote>,
}

impl Joined {
    /// It leaves the engine, or is lost.
    fn leave(&self, lost: bool) {
        self.remote.while_there(|| leave_engine(&self.served, self.id, lost));
    }
}

impl Shared {
    pub(super) fn serve_backend(self: &Arc<Shared>, link: &Arc<Link>, reader: &mut Reader) -> io::Result<()> {
        let (depth, models) = loop {
            match reader.read()? {
                Message::Here => {}
                Message::Offer { depth, models } => break (depth as usize, models),
                other => return Err(unexpected(&other)),
            }
        };
        if let Err(cause) = self.served_with(&models).and_then(|served| served.takes(depth)) {
            tracing::warn!("a backend is not taken: {cause}");
            link.send(&Message::Refused(cause.clone()));
            // It closes when it has read why.
            while reader.read().is_ok() {}
            return Err(io::Error::other(cause));
        }
        let process = Process(fresh());
        {
            let mut peers = self.peers.lock();
            let tell = |(id, address): (u32, String)| link.send(&Message::Frontend(id, address));
            peers.frontends.iter().for_each(|(&id, frontend)| tell((id, frontend.address.clone())));
            peers.backends.insert(process, Backend { link: Arc::clone(link), depth, device: None });
        }
        self.tell(|machine, now, out| machine.on_member(now, process, Role::Backend, out));
        let ended = self.listen_to_backend(process, link, reader);
        link.close();
        let gone = self.peers.lock().backends.remove(&process);
        gone.iter().filter_map(|backend| backend.device.as_ref()).for_each(|device| device.leave(true));
        self.tell(|machine, now, out| machine.on_lost(now, process, out));
        self.count_devices();
        ended
    }

    /// Takes in what a backend says until its connection ends.
    fn listen_to_backend(&self, process: Process, link: &Link, reader: &mut Reader) -> io::Result<()> {
        let mut device: Option<Joined> = None;
        loop {
            match (reader.read()?, &device) {
                (Message::Here, _) => {}
                (Message::Ended(ended), Some(device)) => device.remote.on_end(ended, reader.has_next())?,
                (Message::Leave, Some(device)) => device.leave(false),
                // It runs nothing for this scheduler.
                (Message::Leave, None) => link.close(),
                (Message::Fenced(epoch), _) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                (Message::Report(Report { stamp, revision, held }), _) => {
                    let report = (stamp.epoch, stamp.number, revision);
                    self.tell(|machine, now, out| machine.on_report(now, process, report, &held, out));
                    device = self.peers.lock().backends.get(&process).and_then(|backend| backend.device.clone());
                    self.count_devices();
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// What is served, if these are its models; the first ones say what is.
    fn served_with(&self, models: &str) -> Result<Arc<Served>, String> {
        let models = description::read(models)?;
        let mut peers = self.peers.lock();
        if let Some(served) = &peers.served {
            compare(&served.models.iter().map(|(_, model)| model).collect::<Vec<_>>(), &models)?;
            return Ok(Arc::clone(served));
        }
        if models.is_empty() {
            return Err("it has no model that can be served".to_owned());
        }
        let Started { engine, depth } = (self.start)(&models)?;
        let load = |(at, model): (u32, Description)| {
            let id = engine.load(model.served(at)?).map_err(|error| format!("model {:?}: {error}", model.name))?;
            Ok((id, model))
        };
        let models = (0..).zip(models).map(load).collect::<Result<Vec<_>, String>>()?;
        (self.on_serving)(Some((&engine, &models)));
        let served = Arc::new(Served { engine, depth, models });
        peers.served = Some(Arc::clone(&served));
        let message = peers.models();
        peers.frontends.values().for_each(|frontend| message.iter().for_each(|message| frontend.link.send(message)));
        Ok(served)
    }

    /// Makes a backend a device of the engine: it runs nothing else.
    pub(super) fn join(&self, process: Process) {
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
                    backend.device = Some(Joined { served, id, remote });
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

impl Served {
    /// Whether lanes of a backend hold enough.
    fn takes(&self, depth: usize) -> Result<(), String> {
        let needed = self.depth;
        if depth >= needed {
            return Ok(());
        }
        Err(format!("its lanes hold {depth} tasks, and the policy queues {needed} of them"))
    }
}

/// A device leaves or, if it is lost or the last one, is given up.
fn leave_engine(served: &Served, device: DeviceId, lost: bool) {
    let engine = &served.engine;
    let parted = if lost { engine.lose_device(device) } else { engine.remove_device(device) };
    let parted = match parted {
        Err(DeviceRefused::Last(_)) => engine.lose_device(device),
        parted => parted,
    };
    // It may be on its way out already.
    if let Err(refused) = parted {
        tracing::debug!(device = device.0, %refused, "a device");
    }
}

/// Whether a backend has the models that are served, in the same order; which are not.
fn compare(served: &[&Description], offered: &[Description]) -> Result<(), String> {
    for model in served {
        if !offered.iter().any(|other| other.name == model.name) {
            return Err(format!("it has no model {:?}, which this scheduler serves", model.name));
        }
    }
    for (at, other) in offered.iter().enumerate() {
        match served.get(at) {
            Some(model) if model.is_like(other) => {}
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
