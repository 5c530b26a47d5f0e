//! Steps of a model's cells on a lane of a device.

use super::place::PlaceError;
use super::placed::PlacedModel;
use super::plan::{CompiledCell, CompiledModel, CompiledOutput};
use super::store::{DeviceRows, UNUSED_ROW, ZERO_ROW};
use super::tensors;
use crate::ExecError;
use crate::run::cells::{DeviceOutputs, DeviceStep, HostCopies};
use crate::run::device_row::{DeviceRow, HeldRow, RowStore};
use crate::run::rows::{BatchTensor, RowPart};
use crate::run::runner::{BlockCall, CellCall, CellRunner, ProcessDown, Runner};
use ripieno_cuda::{CellLane, CudaError, STAGED, StepInputs, StepOutputs, UNIT};
use ripieno_model::{DataType, padded_size};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs cells on a lane.
pub(super) struct CudaRunner {
    model: Arc<CompiledModel>,
    placed: Arc<PlacedModel>,
    /// `None` while no process runs the model.
    open: Option<OpenLane>,
    /// Number of steps in flight.
    in_flight: usize,
    down: ProcessDown,
}

/// A lane, and the rows of its device.
struct OpenLane {
    rows: Arc<DeviceRows>,
    lane: Box<dyn CellLane>,
    /// Number of the lane in the process.
    number: u64,
}

impl OpenLane {
    fn open(placed: &PlacedModel) -> Result<OpenLane, PlaceError> {
        static LANES: AtomicU64 = AtomicU64::new(0);
        let rows = placed.rows()?;
        let lane = Arc::clone(&rows.model).lane();
        let lane = lane.map_err(|cause| PlaceError { lost: rows.loss(), ..PlaceError::from(cause) })?;
        Ok(OpenLane { rows, lane, number: LANES.fetch_add(1, Ordering::Relaxed) })
    }
}

impl CudaRunner {
    /// Opens a lane. Without a process, the first task looks for it.
    pub(super) fn new(
        model: Arc<CompiledModel>,
        placed: Arc<PlacedModel>,
        down: ProcessDown,
    ) -> Result<CudaRunner, ExecError> {
        let open = match OpenLane::open(&placed) {
            Ok(open) => Some(open),
            Err(PlaceError { lost: Some(_), .. }) => None,
            Err(failed) => return Err(failed.into_exec()),
        };
        Ok(CudaRunner { model, placed, open, in_flight: 0, down })
    }

    /// Returns the lane. Finds the model in another process, if the lane's process has ended.
    fn find_lane(&mut self) -> Result<&mut OpenLane, ExecError> {
        if let Some(open) = self.open.take_if(|open| open.rows.model.is_gone())
            && self.in_flight > 0
        {
            let cause = failed(&open.rows, &self.down, &CudaError::Broken);
            self.open = Some(open);
            return Err(cause);
        }
        if self.open.is_none() {
            let found = OpenLane::open(&self.placed).map_err(|failed| {
                failed.lost.into_iter().for_each(|lost| self.down.set(lost));
                failed.into_exec()
            });
            self.open = Some(found?);
        }
        self.open.as_mut().ok_or_else(|| ExecError("the model has no lane".to_owned()))
    }
}

impl Runner for CudaRunner {
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        Err(ExecError(format!("block {} is a cell of a GPU, whose state is not in the host's memory", call.block)))
    }

    fn on_device(&mut self) -> Option<&mut dyn CellRunner> {
        Some(self)
    }
}

impl CellRunner for CudaRunner {
    fn depth(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.lane.depth())
    }

    fn launch(&mut self, call: &CellCall<'_>) -> Result<DeviceStep, ExecError> {
        let (model, down) = (Arc::clone(&self.model), self.down.clone());
        let open = self.find_lane()?;
        let cell = &model.cells[call.block];
        let writes = cell.offsets.iter().any(Option::is_some);
        let rows = Arc::clone(&open.rows);
        let held = rows.take(open.number, call.wanted.iter().map(|wanted| writes && wanted.is_some()))?;
        let mut reads = StepReads::new(Arc::clone(&rows), open.number, call)?;
        let spec = &model.spec;
        let width = spec.entry_words(call.block);
        let inputs = open.lane.inputs(call.block);
        let StepInputs { entries, staged } = match inputs {
            Ok(inputs) => inputs,
            Err(cause) => return Err(failed(&rows, &down, &cause)),
        };
        let size = padded_size(&spec.sizes, call.wanted.len());
        for (row, entry) in entries.chunks_exact_mut(width).take(size).enumerate() {
            let (feeds, ends) = entry.split_at_mut(width - 2);
            let member = call.wanted.get(row).copied().flatten();
            let written = held.get(row).and_then(Option::as_ref).map_or(UNUSED_ROW, |held| held.row);
            ends.copy_from_slice(&[rows.unit(written), member.unwrap_or(0)]);
            if member.is_none() {
                feeds.fill(rows.unit(ZERO_ROW));
                continue;
            }
            for ((place, parts), feed) in feeds.iter_mut().zip(call.inputs).zip(&cell.feeds) {
                let begin = feed.staged.base + row * feed.staged.stride;
                let words = &mut staged[begin..begin + feed.width];
                match &parts[row] {
                    RowPart::Rows(rows) if feed.is_immediate => {
                        tensors::to_words(feed.datatype, rows.bytes(), std::slice::from_mut(place));
                    }
                    part => *place = reads.place(part, feed.datatype, words)?,
                }
            }
        }
        open.lane.launch(call.block, size).map_err(|cause| failed(&rows, &down, &cause))?;
        self.in_flight += 1;
        Ok(DeviceStep {
            block: call.block as u16,
            held,
            offsets: Arc::clone(&cell.offsets),
            reads: reads.held,
            rows_moved: reads.moved,
        })
    }

    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool {
        self.open.as_mut().is_none_or(|open| open.lane.wait(stop))
    }

    fn settle(&mut self, mut step: DeviceStep, wanted: &[Option<u32>]) -> Result<DeviceOutputs, ExecError> {
        let block = usize::from(step.block);
        let CompiledCell { outputs, .. } = &self.model.cells[block];
        let width = self.model.spec.programs[block].results;
        self.in_flight -= 1;
        let open = self.open.as_mut().ok_or_else(|| ExecError("the model has no lane".to_owned()))?;
        let settled = open.lane.settle();
        let StepOutputs { results, faults } = settled.map_err(|cause| failed(&open.rows, &self.down, &cause))?;
        let written = |held: &Arc<HeldRow>| held.is_written.store(true, Ordering::Release);
        step.held.iter().flatten().for_each(written);
        step.reads.clear();
        let copies = outputs.iter().enumerate();
        let copies = copies.map(|(bit, output)| copies_of(results, width, output, bit, wanted));
        let copies = copies.collect::<Result<_, _>>().map_err(ExecError)?;
        let failed = faults.iter().take(wanted.len()).map(|&fault| fault != 0).collect();
        Ok(DeviceOutputs { step, copies, failed })
    }
}

/// Rows that a step reads.
struct StepReads {
    rows: Arc<DeviceRows>,
    /// Number of the step's lane.
    lane: u64,
    held: Vec<Arc<HeldRow>>,
    /// Rows of other devices, by their address, and their copies here.
    copies: HashMap<*const HeldRow, Arc<HeldRow>>,
    /// Number of rows that came from another device.
    moved: usize,
}

impl StepReads {
    /// Copies rows of other devices, which the members' steps read, to this one. Rows for which
    /// that is not possible go through the host's memory.
    fn new(rows: Arc<DeviceRows>, lane: u64, call: &CellCall<'_>) -> Result<StepReads, ExecError> {
        let mut copies = HashMap::new();
        for part in call.inputs.iter().flatten() {
            let RowPart::Device(DeviceRow { held, .. }) = part else { continue };
            if rows.holds(held) || copies.contains_key(&Arc::as_ptr(held)) {
                continue;
            }
            held.check_written()?;
            if let Some(own) = rows.adopt(lane, held)? {
                copies.insert(Arc::as_ptr(held), own);
            }
        }
        let (held, moved) = (Vec::with_capacity(call.wanted.len()), copies.len());
        Ok(StepReads { rows, lane, held, copies, moved })
    }

    /// Returns the place of an input's row as an entry names it. Stages the row in `words` if it is
    /// not on this device.
    fn place(&mut self, part: &RowPart<'_>, datatype: DataType, words: &mut [u32]) -> Result<u32, ExecError> {
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        match part {
            RowPart::Device(row) => {
                let is_here = self.rows.holds(&row.held);
                let own = if is_here { Some(&row.held) } else { self.copies.get(&Arc::as_ptr(&row.held)) };
                let Some(own) = own else {
                    self.moved += 1;
                    return stage(part, datatype, words).map(|()| STAGED);
                };
                if own.lane != self.lane {
                    own.check_written()?;
                }
                if self.held.last().is_none_or(|last| !Arc::ptr_eq(last, own)) {
                    self.held.push(Arc::clone(own));
                }
                Ok(self.rows.unit(own.row) + row.offset / UNIT as u32)
            }
            RowPart::Fill(bytes) if is_zero(bytes) => Ok(self.rows.unit(ZERO_ROW)),
            RowPart::Any => Ok(self.rows.unit(ZERO_ROW)),
            part => stage(part, datatype, words).map(|()| STAGED),
        }
    }
}

/// Returns the error of a step. If the process has ended, its requests are lost with it.
fn failed(rows: &DeviceRows, down: &ProcessDown, cause: &CudaError) -> ExecError {
    rows.loss().into_iter().for_each(|lost| down.set(lost));
    ExecError(format!("CUDA: {cause}"))
}

/// Copies a row into the host's memory that a step reads.
fn stage(part: &RowPart<'_>, datatype: DataType, words: &mut [u32]) -> Result<(), ExecError> {
    match part {
        RowPart::Rows(rows) => tensors::to_words(datatype, rows.bytes(), words),
        RowPart::Fill(bytes) => tensors::to_words(datatype, bytes, words),
        RowPart::Device(part) => {
            part.held.check_written()?;
            let fetched = part.held.store.read(part.held.row, part.output)?;
            tensors::to_words(datatype, &fetched.bytes, words);
        }
        RowPart::Any => {}
    }
    Ok(())
}

/// Copies one output of the members that want it.
fn copies_of(
    results: &[u32],
    width: usize,
    output: &CompiledOutput,
    bit: usize,
    wanted: &[Option<u32>],
) -> Result<HostCopies, String> {
    let wants = |wanted: &Option<u32>| wanted.is_some_and(|outputs| outputs >> bit & 1 != 0);
    let count = wanted.iter().filter(|wanted| wants(wanted)).count();
    if count == 0 {
        return Ok(HostCopies::default());
    }
    let mut bytes = Vec::with_capacity(count * output.width * output.datatype.size().unwrap_or(4));
    let (mut copy_of, mut copies) = (Vec::with_capacity(wanted.len()), 0);
    for (row, wanted) in results.chunks_exact(width.max(1)).zip(wanted) {
        copy_of.push(wants(wanted).then_some(copies));
        if wants(wanted) {
            tensors::from_words(output.datatype, &row[output.column..output.column + output.width], &mut bytes);
            copies += 1;
        }
    }
    let batch = tensors::batch(output.datatype, &output.row_shape, count, bytes)?;
    Ok(HostCopies { batch: Some(Arc::new(batch)), copy_of })
}
