//! What all connections share.

use crate::access::{Access, AccessError};
use crate::backend::Backend;
use crate::config::ServerConfig;
use crate::problem::{Kind, Problem};
use crate::registry::{LookupError, Registry, Repository, ServedEntry};
use crate::signals::LiveSignals;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The budget counts in units of this many bytes, because a semaphore's permits are 32-bit numbers in one acquisition.
const UNIT_BYTES: usize = 1024;

pub(crate) struct State {
    pub(crate) config: ServerConfig,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) repository: Arc<dyn Repository>,
    pub(crate) signals: LiveSignals,
    pub(crate) access: Access,
    draining: watch::Sender<bool>,
    bytes: Arc<Semaphore>,
}

impl State {
    pub(crate) fn new(
        config: ServerConfig,
        backend: Arc<dyn Backend>,
        registry: Arc<Registry>,
        repository: Arc<dyn Repository>,
    ) -> Result<State, AccessError> {
        let access = Access::open(config.access.clone())?;
        let units = (config.max_bytes_in_flight / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let (draining, bytes) = (watch::Sender::new(false), Arc::new(Semaphore::new(units)));
        Ok(State { config, backend, registry, repository, signals: LiveSignals::new(), access, draining, bytes })
    }

    /// The server is ready while it is not going down and no model is still on its way.
    pub(crate) fn is_ready(&self) -> bool {
        if *self.draining.borrow() || self.registry.is_loading() {
            return false;
        }
        !self.config.strict_readiness || self.registry.index().iter().all(|row| row.state != "UNAVAILABLE")
    }

    /// Whether a model can be asked; an error if nobody knows it.
    pub(crate) fn is_model_ready(&self, name: &str, version: &str) -> Result<bool, Problem> {
        match self.registry.get(name, version) {
            Ok(_) => Ok(true),
            Err(LookupError::Loading(_) | LookupError::Unavailable { .. }) => Ok(false),
            Err(unknown) => Err(unknown.into()),
        }
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

    /// Runs repository work where it may block, for as long as it takes.
    pub(crate) async fn with_repository<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Repository) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let repository = self.repository.clone();
        let done = tokio::task::spawn_blocking(move || work(repository.as_ref())).await;
        done.map_err(|error| Problem::new(Kind::Internal, format!("the model repository failed: {error}")))
    }

    /// Sets bytes of a request aside until the permit is dropped.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok();
        units.and_then(|units| self.bytes.clone().try_acquire_many_owned(units).ok()).ok_or_else(|| Problem {
            retry_after: Some(Duration::from_secs(1)),
            ..Problem::new(
                Kind::Overloaded,
                format!("the server holds requests of {} bytes already; retry later", self.config.max_bytes_in_flight),
            )
        })
    }

    pub(crate) fn begin_draining(&self) {
        self.draining.send_replace(true);
    }

    /// Returns once the server goes down.
    pub(crate) async fn drained(&self) {
        // The sender lives in self, so that waiting cannot fail.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }
}
