//! The server's end: a model's programs on a device that another process owns.

use super::super::connection::ProcessConnection;
use super::super::life::Life;
use super::super::protocol::{CellsCall, CellsReply, LoadCells, LoadGpu, LoadRequest, fits};
use super::super::supervisor::{LOAD_LIMIT, ProcessPool};
use super::super::warm_up::ProcessWarmUp;
use super::wire::{CellLaneEnd, MAX_DEPTH, StepHeader, StepLayout, Woken, lane_depth};
use crate::{Isolation, LoadError, Loss, Outage};
use bytes::Bytes;
use parking_lot::Mutex;
use ripieno_cuda::{CellLane, CellModelSpec, CudaError, Matrix, ModelOnDevice, STAGED, StepInputs, StepOutputs};
use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest sleep of a lane that may be asked to launch a further step.
const NAP: Duration = Duration::from_micros(50);

/// The device of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellsOn {
    Gpu(u32),
    /// This machine's CPU, with the seed of its random times.
    Host(u64),
}

/// A model's programs, ready to be sent.
pub(crate) struct CellPrograms {
    spec: Arc<CellModelSpec>,
    words: Bytes,
    layout: StepLayout,
}

impl CellPrograms {
    /// Returns an error if they are too large for a process.
    pub(crate) fn new(model: &str, spec: Arc<CellModelSpec>) -> Result<CellPrograms, LoadError> {
        let words: Bytes = spec.to_words().into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
        let layout = StepLayout::new(&spec);
        let request =
            LoadRequest { cells: Some(LoadCells { spec: words.clone(), host_seed: 0 }), ..LoadRequest::default() };
        let fits = fits(&request).and_then(|()| layout.check());
        fits.map_err(|cause| {
            LoadError(format!("model '{model}': {cause}; lower max_batch, or remove isolation = \"process\""))
        })?;
        Ok(CellPrograms { spec, words, layout })
    }
}

/// The process of a model's cells on one device, and those that take its place.
pub(crate) struct CellProcesses {
    pool: Arc<ProcessPool>,
    spec: Arc<CellModelSpec>,
    layout: StepLayout,
    task_limit: Duration,
}

impl CellProcesses {
    pub(crate) fn new(model: &str, isolation: &Isolation, on: CellsOn, programs: &CellPrograms) -> CellProcesses {
        let (gpu, host_seed) = match on {
            CellsOn::Gpu(ordinal) => (Some(LoadGpu { ordinal, ..LoadGpu::default() }), 0),
            CellsOn::Host(seed) => (None, seed),
        };
        let cells = Some(LoadCells { spec: programs.words.clone(), host_seed });
        let load = LoadRequest { gpu, cells, memory_limit: isolation.memory_limit, ..LoadRequest::default() };
        let warm_up = Arc::new(ProcessWarmUp::new(0, &[]));
        let pool = ProcessPool::new(model.to_owned(), isolation.clone(), load, warm_up);
        let (spec, layout) = (Arc::clone(&programs.spec), programs.layout);
        CellProcesses { pool, spec, layout, task_limit: isolation.task_limit }
    }

    /// Starts the first process, unless it was started.
    pub(crate) fn start(&self) -> Result<(), LoadError> {
        self.pool.provide(1)
    }

    /// Returns the model in a process that runs.
    pub(crate) fn open_process(&self) -> Result<Arc<dyn ModelOnDevice>, Outage> {
        let connection = self.pool.acquire(None)?;
        Ok(Arc::new(ProcessModel {
            life: Arc::clone(connection.life()),
            connection: Mutex::new(Some(connection)),
            is_gone: AtomicBool::new(false),
            spec: Arc::clone(&self.spec),
            layout: self.layout,
            task_limit: self.task_limit,
        }))
    }

    pub(crate) fn process_outage(&self) -> Option<Outage> {
        self.pool.outage()
    }

    pub(crate) fn process_restarts(&self) -> u64 {
        self.pool.restarts()
    }

    /// Returns the loss of a request whose process has ended with it.
    pub(crate) fn process_loss(&self) -> Loss {
        Loss { retry_after: self.pool.back_in(), inside: true }
    }
}

/// A model in the memory of one process.
struct ProcessModel {
    connection: Mutex<Option<ProcessConnection>>,
    life: Arc<Life>,
    /// Whether the process was found to be of no use any more.
    is_gone: AtomicBool,
    spec: Arc<CellModelSpec>,
    layout: StepLayout,
    task_limit: Duration,
}

impl ProcessModel {
    /// Calls the process, which is killed if it does not answer within the limit.
    fn ask(&self, call: &CellsCall, socket: Option<BorrowedFd<'_>>, limit: Duration) -> Result<CellsReply, CudaError> {
        let mut place = self.connection.lock();
        let connection = place.as_mut().ok_or_else(ended)?;
        match connection.ask(call, socket, limit) {
            Ok(CellsReply { error: Some(cause), .. }) => Err(CudaError::Process(cause)),
            Ok(reply) => Ok(reply),
            Err(cause) => {
                self.is_gone.store(true, Ordering::Release);
                let end = place.take().map(|connection| connection.give_up(&cause)).unwrap_or_default();
                Err(CudaError::Process(format!("the process of the cells ended: {end}")))
            }
        }
    }
}

impl ModelOnDevice for ProcessModel {
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError> {
        let (socket, theirs) = UnixStream::pair().map_err(no_lane)?;
        socket.set_write_timeout(Some(self.task_limit)).map_err(no_lane)?;
        let mut end = CellLaneEnd::offer(socket, self.layout).map_err(no_lane)?;
        let call = CellsCall { opens_lane: true, ..CellsCall::default() };
        // A lane records its graphs first, as when the model is loaded.
        let reply = self.ask(&call, Some(theirs.as_fd()), LOAD_LIMIT)?;
        let depth = lane_depth(reply.depth as usize);
        end.set_depth(depth);
        let StepLayout { entries, staged, results, rows } = self.layout;
        Ok(Box::new(ProcessLane {
            entries: vec![0; entries],
            staged: vec![0; staged],
            results: vec![0; results],
            faults: vec![0; rows],
            feeds: self.spec.programs.iter().map(|program| program.staged_feeds()).collect(),
            launched: 0,
            settled: 0,
            steps: [(StepHeader::default(), Instant::now()); MAX_DEPTH],
            last_end: Instant::now(),
            failure: None,
            end,
            depth,
            model: self,
        }))
    }

    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError> {
        let call = CellsCall { unit: unit as u64, words: words.len() as u64, opens_lane: false };
        let CellsReply { data, .. } = self.ask(&call, None, self.task_limit)?;
        let (read, rest) = data.as_chunks::<4>();
        if read.len() != words.len() || !rest.is_empty() {
            return Err(CudaError::Process("the process of the cells read another row".to_owned()));
        }
        words.iter_mut().zip(read).for_each(|(word, &read)| *word = u32::from_le_bytes(read));
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire) || self.life.is_over()
    }
}

fn no_lane(cause: io::Error) -> CudaError {
    CudaError::Process(format!("no lane to the process of the cells: {cause}"))
}

fn ended() -> CudaError {
    CudaError::Process("the process of the cells has ended".to_owned())
}

/// A lane whose steps another process runs.
struct ProcessLane {
    end: CellLaneEnd,
    model: Arc<ProcessModel>,
    depth: usize,
    /// The next step's memory here.
    entries: Vec<u32>,
    staged: Vec<u32>,
    results: Vec<u32>,
    faults: Vec<u32>,
    /// Staged feeds of each cell.
    feeds: Vec<Vec<(usize, Matrix)>>,
    launched: u32,
    settled: u32,
    /// Each step in flight, and the time of its launch.
    steps: [(StepHeader, Instant); MAX_DEPTH],
    /// Time at which a step was last found to have ended.
    last_end: Instant,
    /// Error of an earlier step: the process is of no use.
    failure: Option<CudaError>,
}

impl ProcessLane {
    fn in_flight(&self) -> usize {
        self.launched.wrapping_sub(self.settled) as usize
    }

    fn place(&self, number: u32) -> usize {
        number as usize % self.depth
    }

    /// Writes a step where the process reads it.
    fn write(&mut self, number: u32, step: StepHeader) -> io::Result<()> {
        let width = self.model.spec.entry_words(step.cell);
        let entries = &self.entries[..step.rows * width];
        self.end.write_step(number, step, entries)?;
        for (row, entry) in entries.chunks_exact(width).enumerate() {
            for (_, matrix) in self.feeds[step.cell].iter().filter(|(feed, _)| entry[*feed] == STAGED) {
                let at = matrix.base + row * matrix.stride;
                self.end.write_staged(number, at, &self.staged[at..at + matrix.stride])?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, cause: &io::Error) -> CudaError {
        self.give_up(format!("the process of the cells ended: {cause}"))
    }

    /// Gives the process up, for a reason of this side unless it has left one.
    fn give_up(&mut self, cause: String) -> CudaError {
        let cause = self.end.exit_reason().unwrap_or(cause);
        self.model.is_gone.store(true, Ordering::Release);
        self.model.life.kill(Some(cause.clone()));
        let cause = CudaError::Process(cause);
        self.failure = Some(cause.clone());
        cause
    }

    /// Waits for the end of the oldest step in flight. Returns whether it has ended.
    fn watch(&mut self, stop: &dyn Fn() -> bool) -> Result<bool, CudaError> {
        loop {
            let ended = self.end.count().map_err(|cause| self.fail(&cause))?;
            let beyond = ended.wrapping_sub(self.settled) as usize;
            if beyond > self.in_flight() {
                return Err(self.give_up("the process of the cells ended a step that was not launched".to_owned()));
            }
            if beyond > 0 {
                return Ok(true);
            }
            match self.end.wait(ended, Some(NAP), stop).map_err(|cause| self.fail(&cause))? {
                Woken::Closed => return Err(self.give_up("the process of the cells has ended".to_owned())),
                Woken::Stopped if stop() => return Ok(false),
                Woken::News | Woken::Stopped => {}
            }
            let (_, launched) = self.steps[self.place(self.settled)];
            let limit = self.model.task_limit;
            if launched.max(self.last_end).elapsed() > limit {
                return Err(self.give_up(format!("a step did not end within {limit:?} (task_limit_s)")));
            }
        }
    }
}

impl CellLane for ProcessLane {
    fn depth(&self) -> usize {
        self.depth
    }

    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError> {
        if let Some(cause) = &self.failure {
            return Err(cause.clone());
        }
        let (entries, staged) =
            (self.model.spec.max_rows() * self.model.spec.entry_words(cell), self.model.spec.programs[cell].staged);
        Ok(StepInputs { entries: &mut self.entries[..entries], staged: &mut self.staged[..staged] })
    }

    fn launch(&mut self, cell: usize, rows: usize) -> Result<(), CudaError> {
        assert!(self.in_flight() < self.depth, "{} steps are in flight", self.depth);
        let (number, step) = (self.launched, StepHeader { cell, rows });
        let written = self.write(number, step).and_then(|()| self.end.publish(number.wrapping_add(1)));
        written.map_err(|cause| self.fail(&cause))?;
        let place = self.place(number);
        self.steps[place] = (step, Instant::now());
        self.launched = self.launched.wrapping_add(1);
        Ok(())
    }

    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool {
        self.failure.is_some() || self.watch(stop).unwrap_or(true)
    }

    fn settle(&mut self) -> Result<StepOutputs<'_>, CudaError> {
        assert!(self.in_flight() > 0, "a step is in flight");
        let ended = match &self.failure {
            Some(cause) => Err(cause.clone()),
            None => self.watch(&|| false).map(drop),
        };
        let number = self.settled;
        self.settled = self.settled.wrapping_add(1);
        ended?;
        self.last_end = Instant::now();
        let (StepHeader { cell, rows }, _) = self.steps[self.place(number)];
        let results = rows * self.model.spec.programs[cell].results;
        let (results, faults) = (&mut self.results[..results], &mut self.faults[..rows]);
        self.end.read_outputs(number, results, faults).map_err(no_lane)?;
        Ok(StepOutputs { results: &self.results, faults: &self.faults })
    }
}
