//! Interface of the server to the executor: the runtime's engine in one process, or a remote
//! scheduler in a cluster.

use ripieno_base::{DeviceId, ModelId};
use ripieno_runtime::{
    BatchFindings, DeviceRefused, DeviceSnapshot, DeviceState, Engine, EngineProcesses, Failure, FlightRecorder, Job,
    ModelSnapshot, SchedulerSnapshot,
};
use std::time::Duration;

/// Withdraws a job; no effect once it has been answered.
pub type Withdraw = Box<dyn FnOnce() + Send>;

/// Executes jobs and counts their outcomes.
pub trait Backend: Send + Sync {
    /// Accepts a job, which is then answered exactly once, or refuses it. Must not block.
    fn submit(&self, job: Job) -> Result<Withdraw, Failure>;

    /// Accepts or refuses a job, like [`Backend::submit`]. A flight recorder finds it by its tag.
    fn submit_tagged(&self, job: Job, _tag: u64) -> Result<Withdraw, Failure> {
        self.submit(job)
    }

    /// Returns the flight recorder, if one is kept.
    fn flight(&self) -> Option<FlightRecorder> {
        None
    }

    /// Returns the metrics of a model; `None` if it is not loaded.
    fn model(&self, id: ModelId) -> Option<ModelSnapshot>;

    /// Returns the state of a model's engine processes; `None` if it has none, or is not loaded.
    fn processes(&self, id: ModelId) -> Option<EngineProcesses>;

    /// Returns what a model's answers have shown about its rows. By default nothing: only a process
    /// that runs models sees answers.
    fn batch_findings(&self, _id: ModelId) -> BatchFindings {
        BatchFindings::default()
    }

    /// Returns the metrics of all devices, in a fixed order.
    fn devices(&self) -> Vec<DeviceSnapshot>;

    /// Returns the measured delays of devices in other processes; empty for devices of this one.
    fn delays(&self) -> Vec<DeviceDelays> {
        Vec::new()
    }

    /// Returns the number of devices that accept requests, as far as this process knows.
    fn serving_devices(&self) -> usize {
        self.devices().iter().filter(|device| device.state == DeviceState::Serving).count()
    }

    /// Returns true if a device accepts requests.
    fn has_device(&self) -> bool {
        self.serving_devices() > 0
    }

    /// Returns the largest rate at which the devices answer a model's rows by their deadlines, in
    /// rows per second, without other load; `None` if it is unknown.
    fn capacity(&self, _id: ModelId) -> Option<f64> {
        None
    }

    /// Returns the number of devices that a rate in rows per second keeps busy in the model's best
    /// batches within its SLO; `None` if it is unknown.
    fn busy_devices(&self, _id: ModelId, _rows_per_s: f64) -> Option<f64> {
        None
    }

    /// Returns true if this process decides which requests run: it alone knows the load of the
    /// devices. A spare scheduler, a frontend and a backend do not.
    fn is_primary(&self) -> bool {
        true
    }

    /// Returns the number of times that this scheduler of a cluster took the lead; `None` if it is
    /// not one.
    fn elections(&self) -> Option<u64> {
        None
    }

    /// Returns the number of spare schedulers that hear this one, if there ever was one; `None`
    /// otherwise.
    fn spares(&self) -> Option<usize> {
        None
    }

    /// Returns the backends that this scheduler refuses, each with the reason.
    fn refused(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns a sentence for each model whose requests are refused because a link of this frontend
    /// is too slow.
    fn slow_links(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns why this backend has no scheduler, if it knows; `None` for all other processes.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Adds or removes a device and returns its id. May take as long as attaching all models does.
    fn change_devices(&self, change: DeviceChange) -> Result<DeviceId, DeviceRefused>;

    /// Returns the metrics of the scheduler.
    fn scheduler(&self) -> SchedulerSnapshot;

    /// Learns from the time that the server spent on an answered request before and after the
    /// executor. The default implementation ignores it.
    fn observe_server_delay(&self, _delay: Duration) {}
}

/// Percentiles of the delays of a device in another process. A delay that has not been measured is
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceDelays {
    /// Id of the device.
    pub device: u16,
    /// Each delay by the name of its metric, with its percentiles.
    pub delays: Vec<(&'static str, [(&'static str, Duration); 2])>,
}

impl DeviceDelays {
    /// Name of the delay of a message.
    pub const CONTROL: &'static str = "ripieno_device_control_delay_seconds";
    /// Name of the time in which the inputs of a batch come.
    pub const DATA: &'static str = "ripieno_device_data_delay_seconds";
    /// Name of the same time for each row.
    pub const DATA_PER_ROW: &'static str = "ripieno_device_data_delay_per_row_seconds";
}

/// A change of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// Adds a device.
    Add,
    /// Removes this device after it has finished its tasks.
    Remove(DeviceId),
    /// Drops this device with all its tasks.
    Lose(DeviceId),
}

impl Backend for Engine {
    fn submit(&self, job: Job) -> Result<Withdraw, Failure> {
        Backend::submit_tagged(self, job, 0)
    }

    fn submit_tagged(&self, job: Job, tag: u64) -> Result<Withdraw, Failure> {
        let ticket = Engine::submit_tagged(self, job, tag)?;
        Ok(Box::new(move || ticket.cancel()))
    }

    fn flight(&self) -> Option<FlightRecorder> {
        Engine::flight(self)
    }

    fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.model_metrics(id)
    }

    fn processes(&self, id: ModelId) -> Option<EngineProcesses> {
        self.model_processes(id)
    }

    fn capacity(&self, id: ModelId) -> Option<f64> {
        self.model_capacity(id)
    }

    fn busy_devices(&self, id: ModelId, rows_per_s: f64) -> Option<f64> {
        Engine::busy_devices(self, id, rows_per_s)
    }

    fn batch_findings(&self, id: ModelId) -> BatchFindings {
        Engine::batch_findings(self, id).unwrap_or_default()
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

    fn observe_server_delay(&self, delay: Duration) {
        Engine::observe_server_delay(self, delay);
    }
}
