//! The process's end: it owns the device, and runs each lane on a thread.

use super::super::protocol::{CellsCall, CellsReply, LoadCells, LoadRequest, RunReply, receive, send};
use super::super::shared::receive_files;
use super::wire::{CellLaneEnd, MAX_DEPTH, StepHeader, StepLayout, Woken, lane_depth};
use crate::engines::onnxruntime::find_gpus;
use ripieno_cuda::{
    CellLane, CellModelSpec, CudaError, CudaGpu, HostDevice, ModelOnDevice, STAGED, StepDevice, StepInputs, StepOutputs,
};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Loads a model's programs and runs their steps until the server ends.
pub(in super::super) fn serve_cells(mut socket: UnixStream, load: &LoadRequest, cells: &LoadCells) -> io::Result<()> {
    let (spec, model) = match open(load, cells) {
        Ok(loaded) => loaded,
        Err(cause) => return send(&mut socket, &RunReply { error: Some(cause), ..RunReply::default() }),
    };
    send(&mut socket, &RunReply::default())?;
    loop {
        let call: CellsCall = receive(&mut socket)?;
        let reply = match call.opens_lane {
            true => open_lane(&socket, &spec, &model).map(|depth| CellsReply { depth, ..CellsReply::default() }),
            false => read(&*model, &spec, &call),
        };
        let failed = |cause: String| CellsReply { error: Some(cause), ..CellsReply::default() };
        send(&mut socket, &reply.unwrap_or_else(failed))?;
    }
}

type ReadyCells = (Arc<CellModelSpec>, Arc<dyn ModelOnDevice>);

fn open(load: &LoadRequest, cells: &LoadCells) -> Result<ReadyCells, String> {
    let (words, rest) = cells.spec.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let spec = CellModelSpec::from_words(&words).filter(|_| rest.is_empty());
    let spec = Arc::new(spec.ok_or("these programs are none of this version")?);
    let device: Box<dyn StepDevice> = match load.gpu {
        Some(gpu) => {
            let (folders, _) = find_gpus(&[gpu.ordinal]).map_err(|cause| cause.to_string())?;
            Box::new(CudaGpu::open(&folders, gpu.ordinal).map_err(|cause| cause.to_string())?)
        }
        None => Box::new(HostDevice::new(cells.host_seed)),
    };
    let model = device.load(Arc::clone(&spec)).map_err(|cause| cause.to_string())?;
    Ok((spec, model))
}

/// Reads words of a row, of which the server asks for no more than there are.
fn read(model: &dyn ModelOnDevice, spec: &CellModelSpec, call: &CellsCall) -> Result<CellsReply, String> {
    let words = usize::try_from(call.words).unwrap_or(usize::MAX).min(spec.row_units * ripieno_cuda::UNIT);
    let mut words = vec![0; words];
    let unit = usize::try_from(call.unit).map_err(|cause| cause.to_string())?;
    model.read(unit, &mut words).map_err(|cause| cause.to_string())?;
    let data = words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
    Ok(CellsReply { data, ..CellsReply::default() })
}

/// Opens a lane whose socket the server passes. Returns its depth.
fn open_lane(socket: &UnixStream, spec: &Arc<CellModelSpec>, model: &Arc<dyn ModelOnDevice>) -> Result<u32, String> {
    let passed = receive_files(socket).map_err(|cause| cause.to_string())?.pop().ok_or("no socket of a lane")?;
    let lane = Arc::clone(model).lane().map_err(|cause| cause.to_string())?;
    let depth = lane_depth(lane.depth());
    let end = CellLaneEnd::accept(UnixStream::from(passed), StepLayout::new(spec), depth);
    let end = end.map_err(|cause| cause.to_string())?;
    let feeds = spec.programs.iter().map(|program| program.staged_feeds()).collect();
    let steps = [StepHeader::default(); MAX_DEPTH];
    let lane = WorkerLane { spec: Arc::clone(spec), feeds, lane, end, depth, steps, launched: 0, ended: 0 };
    let body = move || lane.run();
    std::thread::Builder::new().name("cells".to_owned()).spawn(body).map_err(|cause| cause.to_string())?;
    Ok(depth as u32)
}

/// A lane of the device, and the server's end of it.
struct WorkerLane {
    spec: Arc<CellModelSpec>,
    feeds: Vec<Vec<(usize, ripieno_cuda::Matrix)>>,
    lane: Box<dyn CellLane>,
    end: CellLaneEnd,
    depth: usize,
    /// Each step in flight.
    steps: [StepHeader; MAX_DEPTH],
    /// Number of steps launched on the device.
    launched: u32,
    ended: u32,
}

impl WorkerLane {
    /// Runs steps until the server gives the lane up. A step that fails ends the process: no row
    /// of the device is to be trusted.
    fn run(mut self) {
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(cause) => {
                    let _ = self.end.write_exit_reason(&cause);
                    // Without handlers, which other lanes' steps would run beside.
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                    #[expect(clippy::disallowed_methods, reason = "other lanes read rows of the same device")]
                    std::process::exit(1);
                }
            }
        }
    }

    /// Launches what has come, and waits for the next event. Returns false once the lane is given
    /// up.
    fn turn(&mut self) -> Result<bool, String> {
        let lost = |cause: io::Error| format!("a lane of cells failed: {cause}");
        let asked = self.end.count().map_err(lost)?;
        let waiting = asked.wrapping_sub(self.launched) as usize;
        let in_flight = self.launched.wrapping_sub(self.ended) as usize;
        if waiting + in_flight > self.depth {
            return Err("the server launched more steps than a lane holds".to_owned());
        }
        if waiting > 0 {
            self.launch()?;
            return Ok(true);
        }
        if in_flight == 0 {
            return Ok(self.end.wait(asked, None, &|| false).map_err(lost)? != Woken::Closed);
        }
        let (lane, end) = (&mut self.lane, parking_lot::Mutex::new(&mut self.end));
        let has_news = || end.lock().count().map_or(true, |count| count != asked);
        match lane.wait(&has_news) {
            true => self.settle(),
            false => Ok(true),
        }
    }

    fn launch(&mut self) -> Result<(), String> {
        let number = self.launched;
        let read = |cause: io::Error| format!("a step cannot be read: {cause}");
        let StepHeader { cell, rows } = self.end.read_step(number).map_err(read)?;
        if cell >= self.spec.programs.len() || self.spec.sizes.binary_search(&rows).is_err() {
            return Err(CudaError::InvalidProgram.to_string());
        }
        let width = self.spec.entry_words(cell);
        let StepInputs { entries, staged } = self.lane.inputs(cell).map_err(|cause| cause.to_string())?;
        let entries = &mut entries[..rows * width];
        self.end.read_entries(number, entries).map_err(read)?;
        for (row, entry) in entries.chunks_exact(width).enumerate() {
            for (_, matrix) in self.feeds[cell].iter().filter(|(feed, _)| entry[*feed] == STAGED) {
                let at = matrix.base + row * matrix.stride;
                self.end.read_staged(number, at, &mut staged[at..at + matrix.stride]).map_err(read)?;
            }
        }
        self.lane.launch(cell, rows).map_err(|cause| cause.to_string())?;
        self.steps[number as usize % self.depth] = StepHeader { cell, rows };
        self.launched = number.wrapping_add(1);
        Ok(())
    }

    /// Publishes the end of the oldest step. Returns false if the server has given the lane up.
    fn settle(&mut self) -> Result<bool, String> {
        let number = self.ended;
        let StepHeader { cell, rows } = self.steps[number as usize % self.depth];
        let StepOutputs { results, faults } = self.lane.settle().map_err(|cause| cause.to_string())?;
        let results = &results[..rows * self.spec.programs[cell].results];
        let written = self.end.write_outputs(number, results, &faults[..rows]);
        self.ended = number.wrapping_add(1);
        Ok(written.and_then(|()| self.end.publish(self.ended)).is_ok())
    }
}
