//! The row of one cell's output that belongs to one request: in a batch in the host's memory, on a
//! device, or both.

use crate::ExecError;
use crate::run::device_row::{DeviceRow, FetchedRow, HeldRow, OutputOfCell};
use crate::run::rows::{BatchTensor, Rows};
use std::sync::Arc;

/// One request's row of an output.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellRow {
    pub(crate) host: Option<Rows>,
    pub(crate) device: Option<DeviceRow>,
}

impl CellRow {
    /// Returns the row in the host's memory. Copies it from the device if it is only there.
    pub(crate) fn to_host(&self) -> Result<Rows, ExecError> {
        match (&self.host, &self.device) {
            (Some(rows), _) => Ok(rows.clone()),
            (None, Some(row)) => {
                row.held.check_written()?;
                let FetchedRow { datatype, mut shape, bytes } = row.held.store.read(row.held.row, row.output)?;
                shape.insert(0, 1);
                let batch = BatchTensor::new(datatype, shape, bytes.into()).map_err(ExecError)?;
                Ok(Rows::of_batch(&Arc::new(batch), 0..1))
            }
            (None, None) => Err(ExecError("a step did not keep an output".to_owned())),
        }
    }
}

/// Outputs of one batch of a cell.
pub(crate) enum CellOutputs {
    /// In the host's memory: a batch for each output.
    Host(Vec<Arc<BatchTensor>>),
    /// On a device.
    Device(DeviceOutputs),
}

/// A step that a device runs, or has run.
#[derive(Debug)]
pub(crate) struct DeviceStep {
    pub(crate) block: u16,
    /// Row that each member's outputs are written to; `None` if no later cell reads an output, or
    /// for padding.
    pub(crate) held: Vec<Option<Arc<HeldRow>>>,
    /// First word of each output in its row; `None` if no later cell reads it.
    pub(crate) offsets: Arc<[Option<u32>]>,
    /// Rows that the step reads. No other step may write them before this one has ended.
    pub(crate) reads: Vec<Arc<HeldRow>>,
    /// Number of rows that came from another device.
    pub(crate) rows_moved: usize,
}

/// Outputs of one batch of a cell on a device.
pub(crate) struct DeviceOutputs {
    pub(crate) step: DeviceStep,
    /// Copies of each output that the host wants.
    pub(crate) copies: Vec<HostCopies>,
    /// Whether the step failed for a member.
    pub(crate) failed: Vec<bool>,
}

/// Copies of one output in the host's memory, for some of the members.
#[derive(Default)]
pub(crate) struct HostCopies {
    pub(crate) batch: Option<Arc<BatchTensor>>,
    /// Number of the copy of each member.
    pub(crate) copy_of: Vec<Option<u32>>,
}

impl CellOutputs {
    /// Returns the error of the member in row `row` of the batch, if the step failed for it alone.
    pub(crate) fn failure(&self, row: usize) -> Option<ExecError> {
        let CellOutputs::Device(outputs) = self else { return None };
        let failed = outputs.failed.get(row).copied().unwrap_or(false);
        failed.then(|| ExecError("an id is outside of the table that it is looked up in".to_owned()))
    }

    /// Returns the row of an output that belongs to the member in row `row` of the batch.
    pub(crate) fn row(&self, output: usize, row: usize) -> CellRow {
        match self {
            CellOutputs::Host(batches) => {
                CellRow { host: Some(Rows::of_batch(&batches[output], row..row + 1)), device: None }
            }
            CellOutputs::Device(outputs) => outputs.row(output, row),
        }
    }
}

impl DeviceStep {
    /// Returns the row of an output that the member in row `row` of the batch will have.
    pub(crate) fn row(&self, output: usize, row: usize) -> CellRow {
        let device = self.held[row].as_ref().zip(self.offsets[output]);
        let output = OutputOfCell { block: self.block, output: output as u16 };
        let device = device.map(|(held, offset)| DeviceRow { held: Arc::clone(held), offset, output });
        CellRow { host: None, device }
    }
}

impl DeviceOutputs {
    fn row(&self, output: usize, row: usize) -> CellRow {
        let HostCopies { batch, copy_of } = &self.copies[output];
        let copy = batch.as_ref().zip(copy_of.get(row).copied().flatten());
        let host = copy.map(|(batch, copy)| Rows::of_batch(batch, copy as usize..copy as usize + 1));
        CellRow { host, ..self.step.row(output, row) }
    }
}
