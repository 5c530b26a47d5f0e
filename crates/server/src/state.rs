//! What all connections share.

use crate::access::{Access, AccessError};
use crate::backend::Backend;
use crate::bounds::budget::Budget;
use crate::bounds::connection::Connection;
use crate::bounds::loads::{Change, Loads};
use crate::bounds::shares::Shares;
use crate::config::{ErrorProfile, ServerConfig};
use crate::problem::{Kind, Problem};
use crate::regions::Regions;
use crate::sequences::Table;
use crate::signals::LiveSignals;
use ripieno_repository::ensemble::EnsembleStep;
use ripieno_repository::registry::{IndexRow, LookupError, Registry, Repository, ServedEntry, UNLOADED};
use ripieno_runtime::{Ending, ModelSnapshot};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// What is longer is parsed, ranked or copied by [`State::work`]: JSON, at some 200 MB/s, takes 0.2 ms for this many bytes, for which
/// all other connections of the thread wait. To hand it over takes a tenth of that.
pub(crate) const PARSE_INLINE_BYTES: usize = 32 << 10;

/// How far the server is on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Nothing new is taken; what is in flight ends.
    Draining,
    /// The time for that is over: what is left is answered with an error.
    Dismissing,
}

pub(crate) struct State {
    pub(crate) config: ServerConfig,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) signals: LiveSignals,
    pub(crate) access: Access,
    pub(crate) budget: Arc<Budget>,
    pub(crate) shares: Shares,
    pub(crate) loads: Loads,
    pub(crate) regions: Regions,
    pub(crate) sequences: Arc<Table>,
    phase: watch::Sender<Phase>,
    /// Turns at work that keeps a core busy: inflating, and decoding what is large.
    workers: Arc<Semaphore>,
}

impl State {
    pub(crate) fn new(
        config: ServerConfig,
        backend: Arc<dyn Backend>,
        registry: Arc<Registry>,
        repository: Arc<dyn Repository>,
    ) -> Result<State, AccessError> {
        let access = Access::open(config.access.clone())?;
        let budget = Budget::new(config.max_bytes_in_flight);
        let shares = Shares::new(budget.clone(), &config);
        let loads = Loads::new(repository, config.max_loads, config.loads_on.clone());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (phase, workers) = (watch::Sender::new(Phase::Serving), Arc::new(Semaphore::new(cores)));
        let signals = LiveSignals::new();
        let (regions, sequences) = (Regions::default(), Arc::new(Table::default()));
        Ok(State {
            config,
            backend,
            registry,
            signals,
            access,
            budget,
            shares,
            loads,
            regions,
            sequences,
            phase,
            workers,
        })
    }

    /// What the calls of a connection may hold.
    pub(crate) fn budget_of<'a>(&'a self, connection: Option<&'a Arc<Connection>>) -> &'a Arc<Budget> {
        connection.map_or(&self.budget, |connection| &connection.budget)
    }

    /// The server is ready while it is not going down, no model is still on its way and a device serves.
    pub(crate) fn is_ready(&self) -> bool {
        if self.is_draining() || self.registry.is_loading() || !self.backend.has_device() {
            return false;
        }
        // Who was unloaded is not meant to serve.
        let serves = |row: &IndexRow| row.state != "UNAVAILABLE" || row.reason == UNLOADED;
        !self.config.strict_readiness || self.registry.index().iter().all(serves)
    }

    /// What the backend has counted of a model, less the answers that no client got.
    pub(crate) fn numbers(&self, entry: &ServedEntry) -> Option<ModelSnapshot> {
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

    /// Whether a model can be asked; an error if nobody knows it.
    pub(crate) fn is_model_ready(&self, name: &str, version: &str) -> Result<bool, Problem> {
        match self.registry.get(name, version) {
            Ok(entry) => Ok(match &entry.ensemble {
                Some(ensemble) => ensemble.steps.iter().all(|step| self.is_step_ready(step)),
                None => self.answers(&entry),
            }),
            Err(LookupError::Loading(_) | LookupError::Unavailable { .. }) => Ok(false),
            Err(unknown) => Err(unknown.into()),
        }
    }

    /// Steps are models: one that has become an ensemble since is none.
    fn is_step_ready(&self, step: &EnsembleStep) -> bool {
        let member = self.registry.get(&step.model, &step.version);
        member.is_ok_and(|member| member.ensemble.is_none() && self.answers(&member))
    }

    /// Without a device, or a process for its engine, a model answers nothing but "retry".
    fn answers(&self, entry: &ServedEntry) -> bool {
        let processes = entry.id.and_then(|id| self.backend.processes(id));
        processes.is_none_or(|processes| processes.up) && self.backend.has_device()
    }

    /// The entries that a statistics call names: one, all versions of a model, or all.
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

    /// Unloads a model. To Triton a model that is not there is unloaded already.
    pub(crate) async fn unload(&self, name: String) -> Result<(), Problem> {
        match self.loads.change(name, Change::Unload).await? {
            Err(message) if self.config.error_profile == ErrorProfile::Ripieno => Err(Problem::invalid(message)),
            _ => Ok(()),
        }
    }

    /// Runs work that keeps a core busy where it holds up nobody, as many at once as there are cores.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.workers.clone().acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| Problem::new(Kind::Internal, format!("decoding failed: {error}")))
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

    /// Returns once the server goes down.
    pub(crate) async fn drained(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Returns once calls that are still open are to be ended, with what they are to be told.
    pub(crate) async fn dismissed(&self) -> Problem {
        self.reached(Phase::Dismissing).await;
        Problem::new(Kind::Unavailable, "the server is shutting down")
    }

    /// Returns once the server goes down and a body that is still on its way has had its time, with what its call is to be told.
    pub(crate) async fn bodies_given_up(&self) -> Problem {
        self.drained().await;
        tokio::time::sleep(self.config.last_bodies.min(self.config.drain_timeout / 2)).await;
        Problem::new(Kind::Unavailable, "the server is shutting down, and the request had not come whole")
    }

    async fn reached(&self, phase: Phase) {
        // The sender lives in self, so that waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}
