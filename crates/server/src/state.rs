//! State shared by all connections.

use crate::access::{Access, AccessError};
use crate::backend::Backend;
use crate::call::regions::Regions;
use crate::call::sequences::SequenceTable;
use crate::config::ServerConfig;
use crate::limits::budget::MemoryBudget;
use crate::limits::connection::ClientConnection;
use crate::limits::loads::{RepositoryChange, RepositoryChanges};
use crate::limits::peer_budgets::PeerBudgets;
use crate::observe::access_log::AccessLog;
use crate::observe::call_errors::CallErrors;
use crate::observe::recording::permits::Dumps;
use crate::observe::signals::LiveSignals;
use crate::observe::telemetry::calls::Telemetry;
use crate::problem::ErrorProfile;
use crate::problem::{Problem, ProblemKind};
use crate::ui::shared::Ui;
use ripieno_base::ModelId;
use ripieno_report::Reading;
use ripieno_repository::ensemble::EnsembleStep;
use ripieno_repository::registry::{LookupError, ModelRegistry, Repository, ServedEntry};
use ripieno_runtime::{Ending, ModelSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Semaphore, watch};

/// Larger inputs are parsed, ranked or copied by [`ServerState::run_cpu_bound`]. JSON of this size
/// takes 0.2 ms at about 200 MB/s, for which the thread's other connections wait; handing it over
/// takes a tenth of that.
pub(crate) const PARSE_INLINE_BYTES: usize = 32 << 10;

/// Phase of the server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// No new work is accepted; requests in flight finish.
    Draining,
    /// The drain timeout is over; remaining requests get an error.
    Dismissing,
}

pub(crate) struct ServerState {
    pub(crate) config: ServerConfig,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) registry: Arc<ModelRegistry>,
    pub(crate) signals: LiveSignals,
    pub(crate) call_errors: CallErrors,
    pub(crate) access: Access,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) shares: PeerBudgets,
    pub(crate) loads: RepositoryChanges,
    pub(crate) regions: Regions,
    pub(crate) sequences: Arc<SequenceTable>,
    pub(crate) dumps: Dumps,
    pub(crate) ui: Ui,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    phase: watch::Sender<Phase>,
    /// Whether the server has been ready: the loads of its start are over.
    has_started: AtomicBool,
    /// Permits for CPU-bound work: decompression, and decoding of large inputs.
    workers: Arc<Semaphore>,
}

impl ServerState {
    pub(crate) fn new(
        config: ServerConfig,
        backend: Arc<dyn Backend>,
        registry: Arc<ModelRegistry>,
        repository: Arc<dyn Repository>,
    ) -> Result<ServerState, AccessError> {
        let telemetry = config.telemetry.as_ref().map(Telemetry::new).transpose().map_err(AccessError)?;
        let telemetry = telemetry.map(Arc::new);
        let access = Access::open(config.access.clone())?;
        let access_log = config.access_log.as_ref().map(AccessLog::open).transpose();
        let access_log = access_log.map_err(|error| AccessError(format!("--access-log: {error}")))?;
        let budget = MemoryBudget::with_kept(config.max_bytes_in_flight, ripieno_executor::kept_bytes);
        let shares = PeerBudgets::new(budget.clone(), &config);
        let loads = RepositoryChanges::new(repository, config.max_loads, config.loads_on.clone());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (phase, workers) = (watch::Sender::new(Phase::Serving), Arc::new(Semaphore::new(cores)));
        let signals = LiveSignals::new();
        let (regions, sequences) = (Regions::default(), Arc::new(SequenceTable::default()));
        Ok(ServerState {
            config,
            backend,
            registry,
            signals,
            call_errors: CallErrors::default(),
            access,
            access_log,
            budget,
            shares,
            loads,
            regions,
            sequences,
            dumps: Dumps::default(),
            ui: Ui::default(),
            telemetry,
            phase,
            has_started: AtomicBool::new(false),
            workers,
        })
    }

    /// Returns the signals of the last seconds; `None` in the first one.
    pub(crate) fn reading(&self) -> Option<Reading> {
        let id = |id: u64| ModelId(u16::try_from(id).unwrap_or(u16::MAX));
        self.signals.reading(|model, rows_per_s| self.backend.busy_devices(id(model), rows_per_s))
    }

    /// Returns the memory budget of a connection's calls.
    pub(crate) fn budget_of<'a>(&'a self, connection: Option<&'a Arc<ClientConnection>>) -> &'a Arc<MemoryBudget> {
        connection.map_or(&self.budget, |connection| &connection.budget)
    }

    /// Returns true if the server answers: it is not shutting down, a device and a model serve, and
    /// the loads of its start are over. Later loads change nothing while the models that serve go
    /// on.
    ///
    /// With strict readiness, each model must have a version that serves. A failed load beside a
    /// version that serves does not count.
    ///
    /// A server without a port for clients answers the probes of a process whose models serve
    /// elsewhere, and needs no model.
    pub(crate) fn is_ready(&self) -> bool {
        if self.is_draining() || !self.backend.has_device() {
            return false;
        }
        if !self.has_started.load(Ordering::Relaxed) && self.registry.is_loading() {
            return false;
        }
        if self.has_clients() && !self.registry.has_ready() {
            return false;
        }
        let is_ready = !self.config.strict_readiness || self.registry.failed().is_empty();
        if is_ready {
            self.has_started.store(true, Ordering::Relaxed);
        }
        is_ready
    }

    /// Returns true if the server has a port for clients.
    pub(crate) fn has_clients(&self) -> bool {
        self.config.http.is_some() || self.config.grpc.is_some()
    }

    /// Returns the backend's metrics of a model, corrected for answers that reached no client.
    pub(crate) fn model_metrics(&self, entry: &ServedEntry) -> Option<ModelSnapshot> {
        let mut model = match &entry.ensemble {
            Some(ensemble) => ensemble.metrics.snapshot(ensemble.live()),
            None => self.backend.model(entry.id?)?,
        };
        let (in_time, late) = entry.stats.undelivered.counts();
        for (ending, count) in &mut model.requests {
            match ending {
                Ending::Ok => *count = count.saturating_sub(in_time),
                Ending::Late => *count = count.saturating_sub(late),
                _ => {}
            }
        }
        model.success.count = model.success.count.saturating_sub(in_time + late);
        model.fail.count += in_time + late;
        Some(model)
    }

    /// Returns true if a model is ready; an error if it is unknown.
    pub(crate) fn is_model_ready(&self, name: &str, version: &str) -> Result<bool, Problem> {
        match self.registry.get(name, version) {
            Ok(entry) => Ok(match &entry.ensemble {
                Some(ensemble) => ensemble.steps.iter().all(|step| self.is_step_ready(step)),
                None => self.can_answer(&entry),
            }),
            Err(LookupError::Loading(_) | LookupError::Unlisted(_) | LookupError::Unavailable { .. }) => Ok(false),
            Err(unknown) => Err(unknown.into()),
        }
    }

    /// Returns true if a step's model is ready. A model that has since become an ensemble is not a
    /// valid step.
    fn is_step_ready(&self, step: &EnsembleStep) -> bool {
        let member = self.registry.get(&step.model, &step.version);
        member.is_ok_and(|member| member.ensemble.is_none() && self.can_answer(&member))
    }

    /// Returns true if the model can answer: a device serves, and its engine process, if any, is
    /// up.
    fn can_answer(&self, entry: &ServedEntry) -> bool {
        let processes = entry.id.and_then(|id| self.backend.processes(id));
        processes.is_none_or(|processes| processes.up) && self.backend.has_device()
    }

    /// Returns the entries of a statistics call: one version, all versions of a model, or all
    /// models.
    pub(crate) fn entries(&self, name: &str, version: &str) -> Result<Vec<Arc<ServedEntry>>, Problem> {
        if name.is_empty() {
            return Ok(self.registry.ready_entries());
        }
        if version.is_empty() {
            self.registry.get(name, "")?;
            let versions = self.registry.versions(name);
            return Ok(versions.iter().filter_map(|version| self.registry.get(name, version).ok()).collect());
        }
        Ok(vec![self.registry.get(name, version)?])
    }

    /// Unloads a model. In Triton's error profile, unloading an unknown model succeeds.
    pub(crate) async fn unload(&self, name: String) -> Result<(), Problem> {
        match self.loads.apply(name, RepositoryChange::Unload).await? {
            Err(message) if self.config.error_profile == ErrorProfile::Ripieno => Err(Problem::invalid(message)),
            _ => Ok(()),
        }
    }

    /// Runs CPU-bound work on a blocking thread, concurrently up to the number of cores.
    pub(crate) async fn run_cpu_bound<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.workers.clone().acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| Problem::new(ProblemKind::Internal, format!("decoding failed: {error}")))
    }

    pub(crate) fn begin_draining(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    pub(crate) fn begin_dismissing(&self) {
        self.phase.send_replace(Phase::Dismissing);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Completes when the shutdown begins.
    pub(crate) async fn until_draining(&self) {
        self.until_phase(Phase::Draining).await;
    }

    /// Completes when open calls must end; returns their error.
    pub(crate) async fn until_dismissing(&self) -> Problem {
        self.until_phase(Phase::Dismissing).await;
        Problem::new(ProblemKind::Unavailable, "the server is shutting down")
    }

    /// Completes when bodies that are still arriving have had their time after the shutdown began;
    /// returns the error of their calls.
    pub(crate) async fn until_bodies_overdue(&self) -> Problem {
        self.until_draining().await;
        tokio::time::sleep(self.config.last_bodies.min(self.config.drain_timeout / 2)).await;
        Problem::new(ProblemKind::Unavailable, "the server is shutting down, and the request had not come whole")
    }

    async fn until_phase(&self, phase: Phase) {
        // The sender lives in self, so that waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}
