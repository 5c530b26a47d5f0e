//! The engines of a scheduler towards its metrics, probes and page: one for each sub-cluster, shown
//! as one server.

use ripieno_base::{DeviceId, ModelId};
use ripieno_cluster::{BackendDelays, ClusterScheduler, DelayPercentiles, ServedCluster};
use ripieno_runtime::{
    DeviceRefused, DeviceSnapshot, Engine, EngineProcesses, Failure, FlightRecorder, Job, ModelSnapshot,
    SchedulerSnapshot,
};
use ripieno_server::{Backend, DeviceChange, DeviceDelays, Withdraw};
use std::sync::{Arc, Mutex, PoisonError};

/// The engines of a scheduler, which may be a spare or may not have any yet.
pub(super) struct ClusterEngines {
    pub(super) cluster: Arc<Mutex<Option<ServedCluster>>>,
    pub(super) scheduler: Arc<ClusterScheduler>,
    /// The largest number of devices of each sub-cluster.
    pub(super) max_devices: u16,
}

impl ClusterEngines {
    fn cluster(&self) -> Option<ServedCluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the id of a device among all. Each sub-cluster numbers its devices from 0.
    fn device_id(&self, place: usize, device: u16) -> u16 {
        let first = u16::try_from(place * usize::from(self.max_devices)).unwrap_or(u16::MAX);
        first.saturating_add(device)
    }

    /// Returns the result of `ask` for each engine.
    fn each<T>(&self, ask: impl Fn(&Engine) -> T) -> Vec<T> {
        self.cluster().map(|cluster| cluster.engines().iter().map(ask).collect()).unwrap_or_default()
    }
}

impl Backend for ClusterEngines {
    fn submit(&self, _: Job) -> Result<Withdraw, Failure> {
        // Clients have no port here.
        Err(Failure::NotLoaded)
    }

    fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        let cluster = self.cluster()?;
        let (engine, id) = cluster.engine_of(id)?;
        engine.model_metrics(id)
    }

    fn processes(&self, _: ModelId) -> Option<EngineProcesses> {
        None
    }

    fn capacity(&self, id: ModelId) -> Option<f64> {
        let cluster = self.cluster()?;
        let (engine, id) = cluster.engine_of(id)?;
        engine.model_capacity(id)
    }

    fn busy_devices(&self, id: ModelId, rows_per_s: f64) -> Option<f64> {
        let cluster = self.cluster()?;
        let (engine, id) = cluster.engine_of(id)?;
        engine.busy_devices(id, rows_per_s)
    }

    fn devices(&self) -> Vec<DeviceSnapshot> {
        let renumber = |(place, devices): (usize, Vec<DeviceSnapshot>)| {
            devices.into_iter().map(move |device| DeviceSnapshot { id: self.device_id(place, device.id), ..device })
        };
        self.each(Engine::device_metrics).into_iter().enumerate().flat_map(renumber).collect()
    }

    fn delays(&self) -> Vec<DeviceDelays> {
        let percentiles = |of: DelayPercentiles| [("0.5", of.p50), ("0.99", of.p99)];
        let each = |(place, device, delays): (usize, DeviceId, BackendDelays)| {
            let BackendDelays { control, data, data_per_row } = delays;
            let names = [DeviceDelays::CONTROL, DeviceDelays::DATA, DeviceDelays::DATA_PER_ROW];
            let measured = names.into_iter().zip([control, data, data_per_row]);
            let delays = measured.filter_map(|(name, delay)| Some((name, percentiles(delay?)))).collect();
            DeviceDelays { device: self.device_id(place, device.0), delays }
        };
        self.scheduler.delays().into_iter().map(each).collect()
    }

    /// Returns true if it is the primary or a spare that knows one; frontends report whether
    /// devices serve. An orchestrator that waits for readiness may stop the next scheduler then.
    fn has_device(&self) -> bool {
        self.scheduler.knows_primary()
    }

    fn is_primary(&self) -> bool {
        self.scheduler.is_primary()
    }

    fn elections(&self) -> Option<u64> {
        Some(self.scheduler.elections())
    }

    fn spares(&self) -> Option<usize> {
        self.scheduler.spares()
    }

    fn refused(&self) -> Vec<String> {
        self.scheduler.refused()
    }

    fn flight(&self) -> Option<FlightRecorder> {
        let sub_clusters: Option<Vec<FlightRecorder>> = self.each(Engine::flight).into_iter().collect();
        FlightRecorder::joined(&sub_clusters?, self.max_devices)
    }

    fn change_devices(&self, _: DeviceChange) -> Result<DeviceId, DeviceRefused> {
        Err(DeviceRefused::Elsewhere)
    }

    fn scheduler(&self) -> SchedulerSnapshot {
        let sum = |sum: SchedulerSnapshot, each: SchedulerSnapshot| SchedulerSnapshot {
            turns: sum.turns + each.turns,
            busy_ns: sum.busy_ns + each.busy_ns,
        };
        self.each(Engine::scheduler_metrics).into_iter().fold(SchedulerSnapshot::default(), sum)
    }
}
