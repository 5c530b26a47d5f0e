//! A runtime, a repository and an HTTP and gRPC server, wired together: `serve` runs it for long
//! and `demo` for half a minute.

use crate::args::devices::DeviceArgs;
use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ripieno_base::Nanos;
use ripieno_policies::{build_shards, find};
use ripieno_repository::registry::ModelRegistry;
use ripieno_repository::{LiveRepository, LoadTarget, MeasureProgress, ModelControl};
use ripieno_runtime::{Engine, EngineConfig, FlightConfig, Recording};
use ripieno_sched::{DATA_US, Needs, Options, Setup};
use ripieno_server::{Addresses, BuildInfo, Server, ServerConfig};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;

/// The configuration of a service.
pub(crate) struct Service {
    pub(crate) repository: PathBuf,
    pub(crate) devices: DeviceArgs,
    pub(crate) policy: String,
    pub(crate) options: Options,
    /// Number of scheduler shards.
    pub(crate) shards: usize,
    /// Largest number of requests in flight, of all models.
    pub(crate) max_live: usize,
    /// Largest number of devices, if some are added while it runs.
    pub(crate) max_devices: Option<u16>,
    /// Path of the recording, if any.
    pub(crate) record: Option<PathBuf>,
    /// Flight recorder, if one is kept.
    pub(crate) flight: Option<FlightConfig>,
    /// Approximate time for the measurement of one model, instead of the default.
    pub(crate) measure_for: Option<Duration>,
    /// Latency target of all models, instead of their own.
    pub(crate) slo: Option<Nanos>,
    /// The model control mode.
    pub(crate) control: ModelControl,
    /// Whether links in the repository may lead out of it.
    pub(crate) allow_symlinks: bool,
    pub(crate) config: ServerConfig,
}

/// An engine with open devices, and a repository that loads models into it.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) repository: Arc<LiveRepository>,
    pub(crate) registry: Arc<ModelRegistry>,
    /// Name of the engine of most models.
    runs_with: &'static str,
}

/// Policies that form batches of like lengths. The others pad every request to the longest.
const GROUPS_LENGTHS: [&str; 3] = ["unified", "dva", "delay-batch"];

/// A running service.
pub(crate) struct Running {
    pub(crate) engine: Engine,
    pub(crate) repository: Arc<LiveRepository>,
    pub(crate) registry: Arc<ModelRegistry>,
    pub(crate) server: Server,
    pub(crate) addresses: Addresses,
}

impl Service {
    /// Opens devices. The caller loads the models with [`LiveRepository::load_all`].
    pub(crate) fn open(&self) -> anyhow::Result<Opened> {
        let mut target = LoadTarget { policy: Some(self.policy.clone()), ..self.devices.target()? };
        self.devices.log_engine(&target);
        target.measure_for = self.measure_for.unwrap_or(target.measure_for);
        target.slo = self.slo;
        target.allow_symlinks = self.allow_symlinks;
        target.groups_lengths = GROUPS_LENGTHS.contains(&&*self.policy);
        let (engine, runs_with) = (self.engine(&target)?, target.engine.name());
        let registry = Arc::new(ModelRegistry::default());
        let progress = progress_bars("measuring", "batch sizes");
        let host = Arc::new(engine.clone());
        let repository = LiveRepository::new(self.repository.clone(), target, registry.clone(), host, progress);
        let repository = repository.with_overrides(self.config.load_overrides).with_control(self.control.clone());
        Ok(Opened { engine, repository: Arc::new(repository), registry, runs_with })
    }

    /// Opens devices and ports. The caller loads the models with [`LiveRepository::load_all`].
    /// Connections are served on `runtimes`, of which the first runtime is the server's own; models
    /// are loaded on the caller's thread.
    pub(crate) async fn start(mut self, runtimes: &[Handle]) -> anyhow::Result<Running> {
        let Opened { engine, repository, registry, runs_with } = self.open()?;
        self.config.build = built_with(runs_with);
        self.config.loads_on = Some(Handle::current());
        self.config.connections_on = runtimes.to_vec();
        let server = Server::bind(self.config, Arc::new(engine.clone()), registry.clone(), repository.clone());
        let server = runtimes[0].spawn(server).await??;
        let addresses = server.addresses();
        Ok(Running { engine, repository, registry, server, addresses })
    }

    fn engine(&self, target: &LoadTarget) -> anyhow::Result<Engine> {
        let devices = target.devices;
        let policy = find(&self.policy)?;
        let most = self.max_devices.map_or(devices, usize::from);
        if most < devices {
            bail!("--max-devices {most} is below --devices {devices}");
        }
        let needs = policy.needs(&self.options);
        // While one batch computes on a GPU, the next one is gathered.
        let ahead = policy.has(DATA_US.name) && !target.engine.resources().1.is_empty();
        let depth = needs.depth.max(if ahead { 2 } else { 1 });
        let limits = Needs { depth, ..needs }.served(most, self.max_live);
        let setup = Setup { models: Vec::new(), devices, limits };
        let scheduler = build_shards(&self.policy, &setup, &self.options, self.shards)?;
        let mut config = EngineConfig::new(scheduler, setup, vec![target.engine.clone(); devices]);
        // One budget: the runtime may hold what the server has reserved.
        config.max_queued_bytes = self.config.max_bytes_in_flight;
        ripieno_executor::bound_kept_bytes(self.config.max_bytes_in_flight / 2);
        config.policy = Some(policy);
        config.flight = self.flight.clone();
        config.record = match &self.record {
            Some(path) => Some(Recording {
                path: path.clone(),
                policy: self.policy.clone(),
                options: serde_json::to_value(&self.options)?,
            }),
            None => None,
        };
        Engine::start(config).context("cannot start the runtime")
    }
}

/// Returns what this program was built from, with the engine that runs its models.
pub(crate) fn built_with(engine: &str) -> BuildInfo {
    BuildInfo { commit: env!("RIPIENO_BUILT_FROM").to_owned(), engine: engine.to_owned() }
}

/// Returns a progress bar for each model in the given units; nothing unless on a terminal.
pub(crate) fn progress_bars(what: &str, unit: &str) -> MeasureProgress {
    let all = MultiProgress::new();
    let bars: Mutex<HashMap<String, ProgressBar>> = Mutex::default();
    let style = ProgressStyle::with_template(&format!("  {what} {{msg}} [{{bar:30}}] {{pos}}/{{len}} {unit}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    Arc::new(move |model, done, sizes| {
        let Ok(mut bars) = bars.lock() else { return };
        let bar = bars.entry(model.to_owned()).or_insert_with(|| {
            let bar = all.add(ProgressBar::new(sizes as u64).with_style(style.clone()));
            bar.set_message(model.to_owned());
            bar
        });
        bar.set_length(sizes as u64);
        bar.set_position(done as u64);
        if done == sizes {
            bar.finish_and_clear();
        }
    })
}
