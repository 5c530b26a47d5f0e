//! Rows of state in a device's memory.
//!
//! A row holds all outputs of one step that later cells read. It is given back when the last walk,
//! or task in flight, that refers to it lets it go. So no end, failure or cancellation needs code
//! of its own to free it, and no two walks share one.

use crate::{ExecError, Loss};
use ripieno_model::DataType;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of a device that holds rows.
pub(crate) trait RowStore: Send + Sync {
    /// Copies an output of a cell to the host, from a row.
    fn read(&self, row: u32, output: OutputOfCell) -> Result<FetchedRow, ExecError>;

    /// Returns the store as what it is, so that another store of its engine may know it.
    fn as_any(&self) -> &dyn Any;

    /// Returns the loss of all rows, if the process that held them has ended.
    fn loss(&self) -> Option<Loss>;

    /// Takes a row back.
    fn release(&self, row: u32);
}

/// A row in use; it is given back on drop.
pub(crate) struct HeldRow {
    pub(crate) store: Arc<dyn RowStore>,
    pub(crate) row: u32,
    /// Number of the lane whose step writes the row. Later steps of this lane may read it before
    /// that step has ended.
    pub(crate) lane: u64,
    /// Whether the step that writes the row has ended.
    pub(crate) is_written: AtomicBool,
}

impl HeldRow {
    /// Checks that anyone may read the row.
    pub(crate) fn check_written(&self) -> Result<(), ExecError> {
        match self.is_written.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(ExecError("the step that computes the request's state still runs on another lane".to_owned())),
        }
    }
}

impl Drop for HeldRow {
    fn drop(&mut self) {
        self.store.release(self.row);
    }
}

impl fmt::Debug for HeldRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}", self.row)
    }
}

/// An output of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputOfCell {
    pub(crate) block: u16,
    pub(crate) output: u16,
}

/// An output of a row on a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceRow {
    pub(crate) held: Arc<HeldRow>,
    /// First word of the output in its row.
    pub(crate) offset: u32,
    pub(crate) output: OutputOfCell,
}

/// A copy of one output of a row.
pub(crate) struct FetchedRow {
    pub(crate) datatype: DataType,
    /// Shape of the row.
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}
