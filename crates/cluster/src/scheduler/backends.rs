//! Backends: each is a device from when it has told its models until its connection ends.

use super::device::{Remote, RemoteExecutor};
use super::{Served, Shared, Started, unexpected};
use crate::description::{self, Description};
use crate::plane::{Link, Message, Reader};
use ripieno_base::DeviceId;
use ripieno_runtime::DeviceRefused;
use std::io;
use std::sync::Arc;

impl Shared {
    pub(super) fn serve_backend(self: &Arc<Shared>, id: u32, link: &Arc<Link>, reader: &mut Reader) -> io::Result<()> {
        let (depth, models) = loop {
            match reader.read()? {
                Message::Here => {}
                Message::Offer { depth, models } => break (depth, models),
                other => return Err(unexpected(&other)),
            }
        };
        let joined = self.served_with(&models).and_then(|served| self.join(id, link, depth as usize, &served));
        let (served, device, remote) = match joined {
            Ok(joined) => joined,
            Err(cause) => {
                tracing::warn!(backend = id, "a backend is not taken: {cause}");
                link.send(&Message::Refused(cause.clone()));
                // It closes when it has read why.
                while reader.read().is_ok() {}
                return Err(io::Error::other(cause));
            }
        };
        tracing::info!(backend = id, device = device.0, "a backend serves");
        self.count_devices();
        let ended = listen(reader, &remote, &served, device);
        link.close();
        self.peers.lock().backends.remove(&id);
        remote.while_there(|| part_with(&served, device, true));
        self.count_devices();
        ended
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
        (self.on_serving)(&engine, &models);
        let served = Arc::new(Served { engine, depth, models });
        peers.served = Some(Arc::clone(&served));
        let message = peers.models();
        peers.frontends.values().for_each(|frontend| message.iter().for_each(|message| frontend.link.send(message)));
        Ok(served)
    }

    /// Makes it a device.
    fn join(
        &self,
        id: u32,
        link: &Arc<Link>,
        depth: usize,
        served: &Arc<Served>,
    ) -> Result<(Arc<Served>, DeviceId, Arc<Remote>), String> {
        if depth < served.depth {
            let needed = served.depth;
            return Err(format!("its lanes hold {depth} tasks, and the policy queues {needed} of them"));
        }
        let mut peers = self.peers.lock();
        peers.frontends.iter().for_each(|(id, frontend)| link.send(&Message::Frontend(*id, frontend.address.clone())));
        peers.backends.insert(id, Arc::clone(link));
        drop(peers);
        let executor = RemoteExecutor::new(Arc::clone(link), depth);
        let device = served.engine.add_device_of(&executor).map_err(|refused| refused.to_string());
        match (device, executor.opened()) {
            (Ok(device), Some(remote)) => Ok((Arc::clone(served), device, remote)),
            (device, _) => {
                self.peers.lock().backends.remove(&id);
                Err(device.err().unwrap_or_else(|| "its device was not opened".to_owned()))
            }
        }
    }
}

/// Takes in what a backend says until its connection ends.
fn listen(reader: &mut Reader, remote: &Remote, served: &Served, device: DeviceId) -> io::Result<()> {
    loop {
        match reader.read()? {
            Message::Here => {}
            Message::Ended(ended) => remote.on_end(ended, reader.has_next())?,
            Message::Leave => remote.while_there(|| part_with(served, device, false)),
            other => return Err(unexpected(&other)),
        }
    }
}

/// A device leaves or, if it is lost or the last one, is given up.
fn part_with(served: &Served, device: DeviceId, lost: bool) {
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
