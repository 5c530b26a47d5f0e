//! Devices that join and leave while the engine runs.
//!
//! A joining device must have every model attached before it gets tasks. So no model is loaded
//! while a device is being opened. Several models can be loaded at the same time; they wait only
//! for a joining device.

use super::{Engine, StartError};
use crate::devices::{DeviceRefused, DeviceState, SharedDevice};
use crate::event_loop::mailbox::EngineCommand;
use crate::event_loop::schedulers::{Schedulers, Stopped};
use ripieno_base::DeviceId;
use ripieno_executor::{Executor, Sink};
use ripieno_policies::shard_of;
use ripieno_sched::{Limits, NetworkDelay};
use std::sync::Arc;

impl Engine {
    /// Adds a device with all models attached and returns its id. The executor of the first device
    /// opens it, and it gets the smallest free id. Waits for models that are being loaded. If no id
    /// is free, waits up to a second for an ending device.
    pub fn add_device(&self) -> Result<DeviceId, DeviceRefused> {
        let executor = self.0.executor.as_ref().ok_or(DeviceRefused::TooMany(0))?;
        self.add_device_of(&**executor)
    }

    /// Adds a device that `executor` opens.
    pub fn add_device_of(&self, executor: &dyn Executor) -> Result<DeviceId, DeviceRefused> {
        let id = self.0.devices.reserve()?;
        self.open_device(id, executor).map(|()| id)
    }

    /// Removes a device: it begins no further request, and ends its tasks and the requests that
    /// only it can continue. Returns immediately, before they have ended. The last serving device
    /// cannot be removed.
    pub fn remove_device(&self, id: DeviceId) -> Result<(), DeviceRefused> {
        match self.0.devices.state(id) {
            Some(DeviceState::Serving) if self.0.devices.serving() == 1 => Err(DeviceRefused::Last(id.0)),
            _ => self.remove(id, false),
        }
    }

    /// Removes a device like [`Engine::remove_device`], even the last one. Requests that have not
    /// begun then fail.
    pub fn remove_any_device(&self, id: DeviceId) -> Result<(), DeviceRefused> {
        self.remove(id, false)
    }

    /// Gives a device up as lost, immediately. A request whose state was on the device restarts on
    /// another device, once, if its deadline allows. Otherwise its answer is
    /// [`Failure::Outage`](crate::Failure::Outage). Later results of the device are ignored.
    pub fn lose_device(&self, id: DeviceId) -> Result<(), DeviceRefused> {
        self.remove(id, true)
    }

    /// Sets the time that batches are expected to need to reach their devices, which are in other
    /// processes. The policy plans with it if it has options for it.
    pub fn set_network_delay(&self, delay: NetworkDelay) {
        let _one_at_a_time = self.0.orders.lock();
        // An engine that has stopped starts no batch.
        let _ = self.0.schedulers.command_all(|_| EngineCommand::Delay(delay));
    }

    fn remove(&self, id: DeviceId, lost: bool) -> Result<(), DeviceRefused> {
        let _one_at_a_time = self.0.orders.lock();
        match self.0.devices.state(id) {
            Some(state) if state == DeviceState::Serving || (lost && state == DeviceState::Leaving) => self
                .0
                .schedulers
                .command_all(|_| EngineCommand::Leave { id, lost })
                .map_err(|Stopped| DeviceRefused::Stopped),
            _ => Err(DeviceRefused::NotServing(id.0)),
        }
    }

    /// Reopens a lost device whose hung task has ended after all. The device keeps its id.
    ///
    /// An engine that started without devices cannot open one. Its devices join on their own, so
    /// this only frees the id.
    pub(super) fn reopen(&self, id: DeviceId) {
        let Some(executor) = &self.0.executor else { return self.0.devices.free(id) };
        match self.open_device(id, &**executor) {
            Ok(()) => tracing::info!(device = id.0, "a device that was lost has ended its task and serves again"),
            Err(DeviceRefused::Stopped) => {}
            Err(refused) => tracing::error!(device = id.0, %refused, "a device that was lost does not come again"),
        }
    }

    /// Opens a device under a reserved id, and frees the id on failure.
    fn open_device(&self, id: DeviceId, executor: &dyn Executor) -> Result<(), DeviceRefused> {
        let inner = &self.0;
        let _nothing_is_loaded = inner.attaching.write();
        let opened = open(executor, id, &inner.schedulers, &inner.limits)
            .map_err(|error| DeviceRefused::Unopened(error.to_string()))
            .and_then(|device| self.add_opened(id, device));
        if opened.is_err() {
            inner.devices.free(id);
        }
        opened
    }

    fn add_opened(&self, id: DeviceId, device: SharedDevice) -> Result<(), DeviceRefused> {
        let attached = self.0.model_ids.running();
        attached.iter().for_each(|(model, entry)| device.attach(*model, Arc::clone(&entry.loaded)));
        let _one_at_a_time = self.0.orders.lock();
        let shards = self.0.schedulers.len();
        let of = |shard| attached.iter().filter(move |(model, _)| shard_of(*model, shards) == shard).cloned().collect();
        let join = |shard| EngineCommand::Join { id, device: Arc::clone(&device), attached: of(shard) };
        self.0.schedulers.command_all(join).map_err(|Stopped| DeviceRefused::Stopped)
    }
}

/// Opens one device per executor.
pub(super) fn open_all(
    executors: &[Arc<dyn Executor>],
    schedulers: &Arc<Schedulers>,
    limits: &Limits,
) -> Result<Vec<SharedDevice>, StartError> {
    (0..).map(DeviceId).zip(executors).map(|(id, executor)| open(&**executor, id, schedulers, limits)).collect()
}

fn open(
    executor: &dyn Executor,
    id: DeviceId,
    schedulers: &Arc<Schedulers>,
    limits: &Limits,
) -> Result<SharedDevice, StartError> {
    let schedulers = Arc::clone(schedulers);
    let sink: Sink = Arc::new(move |result| schedulers.for_task(result.id).on_end(id, result));
    let at = id.index();
    let device = executor.open(limits.lanes, sink).map_err(|error| StartError::Device { device: at, error })?;
    if device.depth() < limits.depth || device.lanes() < limits.lanes {
        let (held, lanes, name) = (device.depth(), device.lanes(), executor.name());
        return Err(StartError::Config(format!(
            "device {at} ({name}) has {lanes} lanes of {held} tasks, but the scheduler is built for {} of {}; lower the \
             lanes or the depth",
            limits.lanes, limits.depth
        )));
    }
    Ok(device.into())
}
