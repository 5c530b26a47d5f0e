//! The health probes of a backend for an orchestrator, and the metrics of its devices.

use super::scheduler::ModelListing;
use crate::args::server_threads::ServerThreads;
use anyhow::Context;
use ripieno_base::{DeviceId, ModelId};
use ripieno_cluster::{DeviceUsage, StopSignal};
use ripieno_repository::registry::ModelRegistry;
use ripieno_runtime::{DeviceRefused, DeviceSnapshot, EngineProcesses, Failure, Job, ModelSnapshot, SchedulerSnapshot};
use ripieno_server::{Backend, DeviceChange, Server, ServerConfig, Withdraw};
use std::net::SocketAddr;
use std::sync::Arc;

/// Answers probes as long as it exists, on threads of its own: while models are loaded, and while a
/// device hangs.
pub(super) struct Probes {
    pub(super) address: Option<SocketAddr>,
    _threads: ServerThreads,
}

impl Probes {
    /// Answers on the metrics port for these devices, and for the models of the registry.
    pub(super) async fn start(
        config: ServerConfig,
        registry: &Arc<ModelRegistry>,
        devices: &[Arc<StopSignal>],
        usage: &[Arc<DeviceUsage>],
    ) -> anyhow::Result<Probes> {
        let threads = ServerThreads::start().context("cannot start the threads of the HTTP and gRPC server")?;
        let config = ServerConfig { http: None, grpc: None, ui: false, ..config };
        let told = Arc::new(ModelListing(Arc::clone(registry)));
        let backend = Arc::new(BackendDevices { stop: devices.to_vec(), usage: usage.to_vec() });
        let server = Server::bind(config, backend, Arc::clone(registry), told);
        let server = threads.runtimes()[0].spawn(server).await??;
        let address = server.addresses().metrics;
        threads.runtimes()[0].spawn(server.run(std::future::pending()));
        Ok(Probes { address, _threads: threads })
    }
}

/// The devices of this process; the scheduler counts their requests.
struct BackendDevices {
    stop: Vec<Arc<StopSignal>>,
    usage: Vec<Arc<DeviceUsage>>,
}

impl Backend for BackendDevices {
    fn submit(&self, _: Job) -> Result<Withdraw, Failure> {
        // Clients have no port here.
        Err(Failure::NotLoaded)
    }

    fn model(&self, _: ModelId) -> Option<ModelSnapshot> {
        None
    }

    fn processes(&self, _: ModelId) -> Option<EngineProcesses> {
        None
    }

    fn devices(&self) -> Vec<DeviceSnapshot> {
        (0..).zip(&self.usage).map(|(id, usage)| usage.snapshot(id)).collect()
    }

    fn serving_devices(&self) -> usize {
        self.stop.iter().filter(|device| device.is_connected()).count()
    }

    fn has_device(&self) -> bool {
        self.stop.iter().all(|device| device.is_connected())
    }

    fn waits_for(&self) -> Option<String> {
        let (scheduler, cause) = self.stop.iter().find_map(|device| device.waits_for())?;
        Some(format!("the connection to {scheduler} ended: {cause}"))
    }

    /// The scheduler decides.
    fn is_primary(&self) -> bool {
        false
    }

    fn change_devices(&self, _: DeviceChange) -> Result<DeviceId, DeviceRefused> {
        Err(DeviceRefused::Elsewhere)
    }

    fn scheduler(&self) -> SchedulerSnapshot {
        SchedulerSnapshot::default()
    }
}
