//! Devices that come and go while the engine runs.
//!
//! A device that comes must know every model that it may be given tasks of. So while it is opened and attached to, no model is
//! loaded; and those that are loaded meanwhile wait for no other, only for a device that comes.

use super::{Engine, StartError};
use crate::devices::{DeviceRefused, DeviceState, Shared};
use crate::mailbox::Order;
use crate::schedulers::{Schedulers, Stopped};
use ripieno_base::DeviceId;
use ripieno_executor::{Engine as Executor, Sink};
use ripieno_sched::{Limits, shard_of};
use std::sync::Arc;

impl Engine {
    /// Serves on one more device, opened by the executor of the first one, with all models; its id, the smallest that is free.
    /// Waits for models that are being loaded and, for a second at most, for a device whose place it needs.
    pub fn add_device(&self) -> Result<DeviceId, DeviceRefused> {
        let executor = self.0.executor.as_ref().ok_or(DeviceRefused::TooMany(0))?;
        self.add_device_of(&**executor)
    }

    /// The same, opened by this executor.
    pub fn add_device_of(&self, executor: &dyn Executor) -> Result<DeviceId, DeviceRefused> {
        let id = self.0.devices.reserve()?;
        self.open_device(id, executor).map(|()| id)
    }

    /// Serves on a device no more: it begins nothing new, ends what it holds, and is gone then. Returns at once. Refused of
    /// the last device that serves.
    pub fn remove_device(&self, id: DeviceId) -> Result<(), DeviceRefused> {
        self.part_with(id, false)
    }

    /// Gives a device up at once: whose walk went with it begins anew elsewhere, once, if its deadline allows, or gets
    /// [`Failure::Outage`](crate::Failure::Outage). What the device still does is not heard.
    pub fn lose_device(&self, id: DeviceId) -> Result<(), DeviceRefused> {
        self.part_with(id, true)
    }

    fn part_with(&self, id: DeviceId, lost: bool) -> Result<(), DeviceRefused> {
        let _one_at_a_time = self.0.orders.lock();
        match self.0.devices.state(id) {
            Some(DeviceState::Serving) if !lost && self.0.devices.serving() == 1 => Err(DeviceRefused::Last(id.0)),
            Some(state) if state == DeviceState::Serving || (lost && state == DeviceState::Leaving) => {
                self.0.schedulers.order_all(|_| Order::Leave { id, lost }).map_err(|Stopped| DeviceRefused::Stopped)
            }
            _ => Err(DeviceRefused::NotServing(id.0)),
        }
    }

    /// A device that hung has ended after all: another is opened in its place, which nobody has taken.
    ///
    /// Where no device was there to begin with, those who come do so by themselves, and so they do again.
    pub(super) fn reopen(&self, id: DeviceId) {
        let Some(executor) = &self.0.executor else { return self.0.devices.free(id) };
        match self.open_device(id, &**executor) {
            Ok(()) => tracing::info!(device = id.0, "a device that was lost has ended its task and serves again"),
            Err(DeviceRefused::Stopped) => {}
            Err(refused) => tracing::error!(device = id.0, %refused, "a device that was lost does not come again"),
        }
    }

    /// Opens a device under an id that is taken for it; if that fails, the id is free again.
    fn open_device(&self, id: DeviceId, executor: &dyn Executor) -> Result<(), DeviceRefused> {
        let inner = &self.0;
        let _nothing_is_loaded = inner.attaching.write();
        let opened = open(executor, id, &inner.schedulers, &inner.limits)
            .map_err(|error| DeviceRefused::Unopened(error.to_string()))
            .and_then(|device| self.serve_on(id, device));
        if opened.is_err() {
            inner.devices.free(id);
        }
        opened
    }

    fn serve_on(&self, id: DeviceId, device: Shared) -> Result<(), DeviceRefused> {
        let attached = self.0.registry.running();
        attached.iter().for_each(|(model, entry)| device.attach(*model, Arc::clone(&entry.loaded)));
        let _one_at_a_time = self.0.orders.lock();
        let shards = self.0.schedulers.len();
        let of = |shard| attached.iter().filter(move |(model, _)| shard_of(*model, shards) == shard).cloned().collect();
        let join = |shard| Order::Join { id, device: Arc::clone(&device), attached: of(shard) };
        self.0.schedulers.order_all(join).map_err(|Stopped| DeviceRefused::Stopped)
    }
}

/// Opens a device with each of these.
pub(super) fn open_all(
    executors: &[Arc<dyn Executor>],
    schedulers: &Arc<Schedulers>,
    limits: &Limits,
) -> Result<Vec<Shared>, StartError> {
    (0..).map(DeviceId).zip(executors).map(|(id, executor)| open(&**executor, id, schedulers, limits)).collect()
}

fn open(
    executor: &dyn Executor,
    id: DeviceId,
    schedulers: &Arc<Schedulers>,
    limits: &Limits,
) -> Result<Shared, StartError> {
    let schedulers = Arc::clone(schedulers);
    let sink: Sink = Arc::new(move |result| schedulers.of_task(result.id).on_end(id, result));
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
