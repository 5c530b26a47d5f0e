//! What the front end needs of whoever executes: in one process the runtime's engine, in a cluster a scheduler elsewhere.

use ripieno_base::{DeviceId, ModelId};
use ripieno_runtime::{
    DeviceRefused, DeviceSnapshot, DeviceState, Engine, Job, ModelSnapshot, Processes, Refused, SchedulerSnapshot,
};

/// Withdraws a job; does nothing once it was answered.
pub type Withdraw = Box<dyn FnOnce() + Send>;

/// Takes jobs and counts what became of them.
pub trait Backend: Send + Sync {
    /// Accepts a job, which is then answered exactly once, or refuses it. Must not block.
    fn submit(&self, job: Job) -> Result<Withdraw, Refused>;

    /// The numbers of a model; none if it is not loaded.
    fn model(&self, id: ModelId) -> Option<ModelSnapshot>;

    /// How the processes of a model's engine are; none if it has none of its own, or is not loaded.
    fn processes(&self, id: ModelId) -> Option<Processes>;

    /// The numbers of all devices, in a fixed order.
    fn devices(&self) -> Vec<DeviceSnapshot>;

    /// Whether a device takes requests.
    fn has_device(&self) -> bool {
        self.devices().iter().any(|device| device.state == DeviceState::Serving)
    }

    /// Whether its devices are the server's; a spare scheduler has none, and does not know what the load needs.
    fn is_primary(&self) -> bool {
        true
    }

    /// Has a device come or go; which it is. May take as long as attaching all models does.
    fn change_devices(&self, change: DeviceChange) -> Result<DeviceId, DeviceRefused>;

    /// The numbers of whoever decides.
    fn scheduler(&self) -> SchedulerSnapshot;
}

/// What may be done to the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// One more.
    Add,
    /// This one leaves once it has ended what it holds.
    Remove(DeviceId),
    /// This one is given up with all that it holds.
    Lose(DeviceId),
}

impl Backend for Engine {
    fn submit(&self, job: Job) -> Result<Withdraw, Refused> {
        let ticket = Engine::submit(self, job)?;
        Ok(Box::new(move || ticket.cancel()))
    }

    fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.model_metrics(id)
    }

    fn processes(&self, id: ModelId) -> Option<Processes> {
        self.model_processes(id)
    }

    fn devices(&self) -> Vec<DeviceSnapshot> {
        self.device_metrics()
    }

    fn change_devices(&self, change: DeviceChange) -> Result<DeviceId, DeviceRefused> {
        match change {
            DeviceChange::Add => self.add_device(),
            DeviceChange::Remove(id) => self.remove_device(id).map(|()| id),
            DeviceChange::Lose(id) => self.lose_device(id).map(|()| id),
        }
    }

    fn scheduler(&self) -> SchedulerSnapshot {
        self.scheduler_metrics()
    }
}
