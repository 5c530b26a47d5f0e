//! The places where a model's programs run: a device of this process, or of a process of their own.

use crate::{ExecError, LoadError, Loss, Outage};
use ripieno_cuda::{CellModelSpec, CudaError, ModelOnDevice, StepDevice};
use std::sync::Arc;

/// A device for one model.
pub(super) trait CellPlace: Send + Sync {
    /// Returns the model in the device's memory: a new one each time.
    fn open(&self) -> Result<Arc<dyn ModelOnDevice>, PlaceError>;

    /// See [`LoadedModel::outage`](crate::LoadedModel::outage).
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// See [`LoadedModel::restarts`](crate::LoadedModel::restarts).
    fn restarts(&self) -> Option<u64> {
        None
    }

    /// Returns the loss of a request whose rows are gone with the process that had them.
    fn loss(&self) -> Option<Loss> {
        None
    }
}

/// The reason for which a place does not run the model.
#[derive(Debug)]
pub(super) struct PlaceError {
    pub(super) cause: String,
    /// Set if a process is missing or has just ended.
    pub(super) lost: Option<Loss>,
}

impl From<CudaError> for PlaceError {
    fn from(cause: CudaError) -> PlaceError {
        PlaceError { cause: format!("CUDA: {cause}"), lost: None }
    }
}

/// A device of this process.
pub(super) struct OwnDevice {
    pub(super) device: Arc<dyn StepDevice>,
    pub(super) spec: Arc<CellModelSpec>,
}

impl CellPlace for OwnDevice {
    fn open(&self) -> Result<Arc<dyn ModelOnDevice>, PlaceError> {
        Ok(self.device.load(Arc::clone(&self.spec))?)
    }
}

#[cfg(target_os = "linux")]
impl CellPlace for crate::engines::isolated::CellProcesses {
    fn open(&self) -> Result<Arc<dyn ModelOnDevice>, PlaceError> {
        self.start().map_err(|LoadError(cause)| PlaceError { cause, lost: None })?;
        self.open_process().map_err(|Outage { cause, retry_after }| PlaceError {
            cause: format!("{cause}; it is being started again"),
            lost: Some(Loss { retry_after, inside: false }),
        })
    }

    fn outage(&self) -> Option<Outage> {
        self.process_outage()
    }

    fn restarts(&self) -> Option<u64> {
        Some(self.process_restarts())
    }

    fn loss(&self) -> Option<Loss> {
        Some(self.process_loss())
    }
}

impl PlaceError {
    pub(super) fn into_exec(self) -> ExecError {
        ExecError(self.cause)
    }
}
