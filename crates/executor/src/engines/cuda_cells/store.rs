//! Rows of state of a model on one device.

use super::place::CellPlace;
use super::plan::{CompiledModel, CompiledOutput};
use super::tensors;
use crate::run::device_row::{FetchedRow, HeldRow, OutputOfCell, RowStore};
use crate::{ExecError, Loss};
use parking_lot::Mutex;
use ripieno_cuda::{ModelOnDevice, UNIT};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Row that holds zeros.
pub(super) const ZERO_ROW: u32 = 0;
/// Row that receives what is stored for no member.
pub(super) const UNUSED_ROW: u32 = 1;

/// A model in a device's memory, with the rows that are free there.
pub(super) struct DeviceRows {
    pub(super) model: Arc<dyn ModelOnDevice>,
    place: Arc<dyn CellPlace>,
    compiled: Arc<CompiledModel>,
    row_units: usize,
    total: usize,
    free: Mutex<Vec<u32>>,
}

impl DeviceRows {
    pub(super) fn new(
        model: Arc<dyn ModelOnDevice>,
        place: Arc<dyn CellPlace>,
        compiled: Arc<CompiledModel>,
    ) -> DeviceRows {
        let spec = &compiled.spec;
        let free: Vec<u32> = (UNUSED_ROW + 1..spec.rows as u32).rev().collect();
        DeviceRows { model, place, row_units: spec.row_units, total: free.len(), free: Mutex::new(free), compiled }
    }

    /// Takes a row for each `true`, which a step of this lane will write. Takes none if there are
    /// too few.
    pub(super) fn take(
        self: &Arc<Self>,
        lane: u64,
        wanted: impl Iterator<Item = bool> + Clone,
    ) -> Result<Vec<Option<Arc<HeldRow>>>, ExecError> {
        let count = wanted.clone().filter(|&wanted| wanted).count();
        let mut free = self.free.lock();
        let Some(rest) = free.len().checked_sub(count) else {
            return Err(ExecError(format!(
                "the requests in progress hold all {} rows of state on the GPU; allow more by gpu_memory_limit_mb, or admit \
                 fewer requests",
                self.total
            )));
        };
        let mut taken = free.split_off(rest).into_iter();
        drop(free);
        let store = || Arc::clone(self) as Arc<dyn RowStore>;
        let hold = |row| Arc::new(HeldRow { store: store(), row, lane, is_written: AtomicBool::new(false) });
        Ok(wanted.map(|wanted| if wanted { taken.next().map(hold) } else { None }).collect())
    }

    /// Copies a row of another device into one that is taken here for it. `None` if the devices
    /// cannot, or no row is free.
    pub(super) fn adopt(self: &Arc<Self>, lane: u64, from: &HeldRow) -> Result<Option<Arc<HeldRow>>, ExecError> {
        let Some(other) = from.store.as_any().downcast_ref::<DeviceRows>() else { return Ok(None) };
        let Ok(taken) = self.take(lane, std::iter::once(true)) else { return Ok(None) };
        let Some(own) = taken.into_iter().flatten().next() else { return Ok(None) };
        let copied = self.model.copy_row(&*other.model, from.row, own.row);
        if !copied.map_err(|cause| ExecError(format!("CUDA: {cause}")))? {
            return Ok(None);
        }
        own.is_written.store(true, Ordering::Release);
        Ok(Some(own))
    }

    /// Returns the unit at which a row begins.
    pub(super) fn unit(&self, row: u32) -> u32 {
        row * self.row_units as u32
    }

    /// Whether the row is one of these.
    pub(super) fn holds(&self, row: &HeldRow) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&row.store), self)
    }

    /// Returns the numbers of free rows and of all rows.
    #[cfg(test)]
    pub(super) fn free(&self) -> (usize, usize) {
        (self.free.lock().len(), self.total)
    }
}

impl RowStore for DeviceRows {
    fn read(&self, row: u32, OutputOfCell { block, output }: OutputOfCell) -> Result<FetchedRow, ExecError> {
        let cell = &self.compiled.cells[usize::from(block)];
        let CompiledOutput { datatype, row_shape, width, .. } = &cell.outputs[usize::from(output)];
        // Outputs begin at whole units.
        let unit = self.unit(row) as usize + cell.offsets[usize::from(output)].unwrap_or(0) as usize / UNIT;
        let (mut words, mut bytes) = (vec![0; *width], Vec::new());
        self.model.read(unit, &mut words).map_err(|cause| ExecError(cause.to_string()))?;
        tensors::from_words(*datatype, &words, &mut bytes);
        Ok(FetchedRow { datatype: *datatype, shape: row_shape.clone(), bytes })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn loss(&self) -> Option<Loss> {
        if self.model.is_gone() { self.place.loss() } else { None }
    }

    fn release(&self, row: u32) {
        self.free.lock().push(row);
    }
}
