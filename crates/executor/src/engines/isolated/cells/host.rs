//! The server's end: a model's programs on a device that another process owns.

use super::super::life::{Life, ProcessConnection};
use super::super::protocol::{CellsCall, CellsReply, LoadCells, LoadGpu, LoadRequest};
use super::super::shared::send_files;
use super::super::supervisor::ProcessPool;
use super::super::warm_up::ProcessWarmUp;
use super::wire::{CellLaneEnd, MAX_DEPTH, StepLayout, Woken};
use crate::{Isolation, LoadError, Loss, Outage};
use parking_lot::Mutex;
use ripieno_cuda::{CellLane, CellModelSpec, CudaError, Matrix, ModelOnDevice, STAGED, StepInputs, StepOutputs};
use std::any::Any;
use std::io;
use std::os::fd::AsFd;
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

/// The process of a model's cells on one device, and those that take its place.
pub(crate) struct CellProcesses {
    pool: Arc<ProcessPool>,
    spec: Arc<CellModelSpec>,
    task_limit: Duration,
}

impl CellProcesses {
    pub(crate) fn new(model: &str, isolation: &Isolation, on: CellsOn, spec: Arc<CellModelSpec>) -> CellProcesses {
        let bytes = spec.to_words().into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let (gpu, host_seed) = match on {
            CellsOn::Gpu(ordinal) => (Some(LoadGpu { ordinal, ..LoadGpu::default() }), 0),
            CellsOn::Host(seed) => (None, seed),
        };
        let cells = Some(LoadCells { spec: bytes.into(), host_seed });
        let load = LoadRequest { gpu, cells, memory_limit: isolation.memory_limit, ..LoadRequest::default() };
        let warm_up = Arc::new(ProcessWarmUp::new(0, &[]));
        let pool = ProcessPool::new(model.to_owned(), isolation.clone(), load, warm_up);
        CellProcesses { pool, spec, task_limit: isolation.task_limit }
    }

    /// Starts the first process, unless it was started.
    pub(crate) fn start(&self) -> Result<(), LoadError> {
        self.pool.provide(1)
    }

    /// Returns the model in a process that runs.
    pub(crate) fn open_process(&self) -> Result<Arc<dyn ModelOnDevice>, Outage> {
        let connection = self.pool.acquire()?;
        Ok(Arc::new(ProcessModel {
            life: Arc::clone(connection.life()),
            connection: Mutex::new(Some(connection)),
            is_gone: Arc::default(),
            spec: Arc::clone(&self.spec),
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
    is_gone: Arc<AtomicBool>,
    spec: Arc<CellModelSpec>,
    task_limit: Duration,
}

impl ProcessModel {
    /// Asks the process, which is killed if it gives no answer.
    fn ask(
        &self,
        call: &CellsCall,
        act: impl FnOnce(&mut ProcessConnection) -> io::Result<()>,
    ) -> Result<CellsReply, CudaError> {
        let mut place = self.connection.lock();
        let connection = place.as_mut().ok_or_else(ended)?;
        let asked = connection.send(call).and_then(|()| act(connection)).and_then(|()| connection.receive());
        match asked {
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
        let mut end = CellLaneEnd::offer(socket, StepLayout::new(&self.spec)).map_err(no_lane)?;
        let reply = self.ask(&CellsCall { opens_lane: true, ..CellsCall::default() }, |connection| {
            send_files(connection.socket(), &[theirs.as_fd()])
        })?;
        let depth = (reply.depth as usize).clamp(1, MAX_DEPTH);
        end.set_depth(depth);
        let most = |words: fn(&ripieno_cuda::StepProgram) -> usize| self.spec.programs.iter().map(words).max();
        let rows = self.spec.max_rows();
        Ok(Box::new(ProcessLane {
            entries: vec![0; rows * (most(|program| program.feeds).unwrap_or(0) + 2)],
            staged: vec![0; most(|program| program.staged).unwrap_or(0)],
            results: vec![0; rows * most(|program| program.results).unwrap_or(0)],
            faults: vec![0; rows],
            feeds: self.spec.programs.iter().map(|program| program.staged_feeds()).collect(),
            launched: 0,
            settled: 0,
            steps: [([0; 2], None); MAX_DEPTH],
            failure: None,
            end,
            depth,
            model: self,
        }))
    }

    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError> {
        let call = CellsCall { unit: unit as u64, words: words.len() as u64, opens_lane: false };
        let CellsReply { data, .. } = self.ask(&call, |_| Ok(()))?;
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
    /// Cell and rows of each step in flight, and its launch.
    steps: [([usize; 2], Option<Instant>); MAX_DEPTH],
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

    fn fail(&mut self, cause: &io::Error) -> CudaError {
        self.give_up(format!("the process of the cells ended: {cause}"))
    }

    /// Gives the process up, for a reason of this side unless it has left one.
    fn give_up(&mut self, cause: String) -> CudaError {
        let cause = self.end.last_words().unwrap_or(cause);
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
            if launched.is_some_and(|launched| launched.elapsed() > limit) {
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
        let width = self.model.spec.entry_words(cell);
        let entries = &self.entries[..rows * width];
        let (feeds, staged) = (&self.feeds[cell], &self.staged);
        let of_row = |(row, entry): (usize, &'_ [u32])| -> Vec<(usize, usize)> {
            let read = feeds.iter().filter(|(feed, _)| entry[*feed] == STAGED);
            read.map(|(_, matrix)| (matrix.base + row * matrix.stride, matrix.stride)).collect()
        };
        let places = entries.chunks_exact(width).enumerate().flat_map(of_row);
        let words = places.map(|(at, count)| (at, &staged[at..at + count]));
        let written = self.end.write_step(self.launched, [cell, rows], entries, words);
        let launched = written.and_then(|()| self.end.publish(self.launched.wrapping_add(1)));
        launched.map_err(|cause| self.fail(&cause))?;
        let place = self.place(self.launched);
        self.steps[place] = ([cell, rows], Some(Instant::now()));
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
        let ([cell, rows], _) = self.steps[self.place(number)];
        let results = rows * self.model.spec.programs[cell].results;
        let (results, faults) = (&mut self.results[..results], &mut self.faults[..rows]);
        self.end.read_outputs(number, results, faults).map_err(no_lane)?;
        Ok(StepOutputs { results: &self.results, faults: &self.faults })
    }
}
