//! Supervision of a model's engine processes, with one thread per process.

use super::Isolation;
use super::connection::ProcessConnection;
use super::declaration::accept;
use super::environment::{diagnose_python, set_environment, set_threads};
use super::life::{Life, is_timeout};
use super::protocol::{Declaration, LoadRequest, RunReply, RunRequest, receive, send};
use super::transfer::offer;
use super::warm_up::ProcessWarmUp;
use crate::{LoadError, Outage};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// First pause before a restart. It doubles each time the process does not stay up.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Uptime after which the pause is reset to the first one.
const STABLE_AFTER: Duration = Duration::from_secs(20);
/// Longest time for a process to load its model.
pub(super) const LOAD_LIMIT: Duration = Duration::from_secs(600);
/// The processes of one model.
pub(super) struct ProcessPool {
    model: String,
    isolation: Isolation,
    load: LoadRequest,
    warm_up: Arc<ProcessWarmUp>,
    /// Blocks that the model's first process has declared, if it runs a Python file.
    declared: Arc<OnceLock<Declaration>>,
    state: Mutex<ProcessPoolState>,
    /// Notified when a process becomes idle or ends.
    changed: Condvar,
    /// Number of the next batch; warm-up batches have 0.
    batches: AtomicU64,
}

#[derive(Default)]
struct ProcessPoolState {
    /// Number of lanes that need a process.
    wanted: usize,
    supervisors: Vec<SyncSender<()>>,
    /// Number of supervisors that are starting.
    candidates: usize,
    /// Connections to idle processes.
    idle: Vec<ProcessConnection>,
    /// Number of running processes, both idle and busy.
    up: usize,
    restarts: u64,
    /// Description of the last end or failed start of a process.
    cause: String,
    /// Expected time of the next start, while a process is missing.
    back: Option<Instant>,
}

impl ProcessPool {
    pub(super) fn new(
        model: String,
        isolation: Isolation,
        load: LoadRequest,
        warm_up: Arc<ProcessWarmUp>,
    ) -> Arc<ProcessPool> {
        let (declared, state, batches) = (Arc::default(), Mutex::default(), AtomicU64::new(1));
        Arc::new(ProcessPool { model, isolation, load, warm_up, declared, state, changed: Condvar::new(), batches })
    }

    /// Returns the blocks that the model's first process has declared; `None` for ONNX models.
    pub(super) fn declared(&self) -> Option<&Declaration> {
        self.declared.get()
    }

    /// Returns the batches that a new process runs before it gets work.
    pub(super) fn warm_up(&self) -> &ProcessWarmUp {
        &self.warm_up
    }

    /// Starts supervisors until there are `count` of them. If the first process of a supervisor
    /// fails to start, its error is returned, and the supervisor ends.
    pub(super) fn provide(self: &Arc<Self>, count: usize) -> Result<(), LoadError> {
        while self.reserve_supervisor(count) {
            let hired = self.start_supervisor();
            let mut state = self.state.lock();
            state.candidates -= 1;
            state.supervisors.push(hired?);
        }
        Ok(())
    }

    fn reserve_supervisor(&self, count: usize) -> bool {
        let mut state = self.state.lock();
        let missing = state.supervisors.len() + state.candidates < count;
        state.candidates += usize::from(missing);
        missing
    }

    /// Starts a supervisor. Dropping the returned sender ends the supervisor, even during a pause.
    fn start_supervisor(self: &Arc<Self>) -> Result<SyncSender<()>, LoadError> {
        let failed = |cause: String| LoadError(format!("model '{}': {cause}", self.model));
        let (report, reported) = sync_channel(1);
        let (leave, leaving) = sync_channel(0);
        // The model owns the pool, so supervisors hold only weak references to it.
        let processes = Arc::downgrade(self);
        let (isolation, load) = (self.isolation.clone(), self.load.clone());
        let (warm_up, declared) = (Arc::clone(&self.warm_up), Arc::clone(&self.declared));
        let pause = FIRST_PAUSE;
        let body = move || {
            Supervisor { processes, isolation, load, warm_up, declared, leaving, pause }.run(&report);
        };
        let name = format!("engine-{}", self.model);
        thread::Builder::new().name(name).spawn(body).map_err(|cause| failed(format!("no thread: {cause}")))?;
        reported.recv().unwrap_or_else(|_| Err("its supervisor panicked".to_owned())).map_err(failed)?;
        Ok(leave)
    }

    /// Counts a lane that needs a process, and starts a process if too few run.
    pub(super) fn attach(self: &Arc<Self>) -> Result<(), LoadError> {
        let wanted = {
            let mut state = self.state.lock();
            state.wanted += 1;
            state.wanted
        };
        self.provide(wanted)
    }

    /// Whether a lane needs a process.
    pub(super) fn is_attached(&self) -> bool {
        self.state.lock().wanted > 0
    }

    /// Counts one lane fewer.
    pub(super) fn detach(&self) {
        self.state.lock().wanted -= 1;
    }

    /// Returns the number of a further batch.
    pub(super) fn next_number(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for an idle process, preferably the one that this batch was sent to. While some
    /// processes are missing, the lanes share the others. If a lane without a process failed its
    /// tasks immediately, the scheduler would send it most of the work.
    pub(super) fn acquire(&self, sent: Option<u64>) -> Result<ProcessConnection, Outage> {
        let until = Instant::now() + self.isolation.task_limit;
        let mut state = self.state.lock();
        loop {
            let has =
                |connection: &ProcessConnection| sent.is_some_and(|number| connection.sending().lock().has(number));
            let at = state.idle.iter().position(has);
            match at.map(|at| state.idle.swap_remove(at)).or_else(|| state.idle.pop()) {
                Some(connection) if connection.is_open() => return Ok(connection),
                Some(_) => {}
                None if state.up > 0 && !self.changed.wait_until(&mut state, until).timed_out() => {}
                None => return Err(state.outage()),
            }
        }
    }

    /// Returns a process to the idle processes.
    pub(super) fn release(&self, connection: ProcessConnection) {
        self.state.lock().idle.push(connection);
        self.changed.notify_one();
    }

    /// Calls `act` for each process that runs no batch.
    pub(super) fn each_idle(&self, act: impl FnMut(&mut ProcessConnection)) {
        self.state.lock().idle.iter_mut().for_each(act);
    }

    /// Returns the outage, if no process runs.
    pub(super) fn outage(&self) -> Option<Outage> {
        let state = self.state.lock();
        (state.up == 0).then(|| state.outage())
    }

    /// Returns the time after which a process that has just ended may run again.
    pub(super) fn back_in(&self) -> Duration {
        self.state.lock().back_in()
    }

    pub(super) fn restarts(&self) -> u64 {
        self.state.lock().restarts
    }
}

impl ProcessPoolState {
    fn outage(&self) -> Outage {
        Outage { cause: self.cause.clone(), retry_after: self.back_in() }
    }

    fn back_in(&self) -> Duration {
        let back = self.back.map(|back| back.saturating_duration_since(Instant::now()));
        back.unwrap_or_default().max(FIRST_PAUSE)
    }
}

/// Supervises one process at a time. Dropping the model drops the connections to its processes.
/// Then the processes end, and so does the supervisor.
struct Supervisor {
    processes: Weak<ProcessPool>,
    isolation: Isolation,
    load: LoadRequest,
    warm_up: Arc<ProcessWarmUp>,
    declared: Arc<OnceLock<Declaration>>,
    /// Disconnected when the model is dropped.
    leaving: Receiver<()>,
    pause: Duration,
}

/// A process that has loaded the model.
struct StartedProcess {
    child: Child,
    life: Arc<Life>,
    connection: ProcessConnection,
}

impl Supervisor {
    /// Reports the start of the first process. Then restarts the process whenever it ends, until
    /// the model is dropped.
    fn run(&mut self, report: &SyncSender<Result<(), String>>) {
        let mut started = match self.start() {
            Ok(started) => started,
            Err(cause) => return drop(report.send(Err(cause))),
        };
        let mut report_down = Some(report);
        loop {
            let (begun, first) = (Instant::now(), report_down.is_some());
            let StartedProcess { mut child, life, connection } = started;
            // If the model was dropped, this drops the connection, which kills the process.
            self.mark_up(connection, first);
            if let Some(report) = report_down.take() {
                let _ = report.send(Ok(()));
            }
            let end = life.wait(&mut child);
            if begun.elapsed() > STABLE_AFTER {
                self.pause = FIRST_PAUSE;
            }
            self.mark_down(&end);
            life.announce(end);
            started = match self.start_again() {
                Some(started) => started,
                None => return,
            };
        }
    }

    /// Starts a process after a pause that doubles with every failure. `None` if the model was
    /// dropped.
    fn start_again(&mut self) -> Option<StartedProcess> {
        loop {
            if self.leaving.recv_timeout(self.pause) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            match self.start() {
                Ok(started) => return Some(started),
                Err(cause) => self.report(&format!("could not be started again: {cause}"), |_| {}),
            }
        }
    }

    fn mark_up(&self, connection: ProcessConnection, first: bool) {
        let Some(processes) = self.processes.upgrade() else { return };
        let mut state = processes.state.lock();
        state.up += 1;
        state.restarts += u64::from(!first);
        state.idle.retain(ProcessConnection::is_open);
        state.idle.push(connection);
        processes.changed.notify_one();
    }

    fn mark_down(&self, end: &str) {
        self.report(&format!("ended: {end}"), |state| state.up -= 1);
    }

    fn report(&self, what: &str, change: impl FnOnce(&mut ProcessPoolState)) {
        let Some(processes) = self.processes.upgrade() else { return };
        let mut state = processes.state.lock();
        change(&mut state);
        state.back = Some(Instant::now() + self.pause);
        state.cause = format!("the process of the model's engine {what}");
        drop(state);
        processes.changed.notify_all();
        let (model, again) = (&processes.model, self.pause);
        tracing::warn!(model, "the process of its engine {what}; it is started again in {again:?}");
    }

    /// Starts a process and lets it load the model.
    fn start(&self) -> Result<StartedProcess, String> {
        let (socket, theirs) = UnixStream::pair().map_err(|cause| format!("no socket: {cause}"))?;
        socket.set_read_timeout(Some(LOAD_LIMIT)).map_err(|cause| format!("no time limit: {cause}"))?;
        let mut child = self.spawn(theirs)?;
        let life = Life::of(&child);
        let cause = match self.load(socket, &life) {
            Ok(connection) => return Ok(StartedProcess { child, life, connection }),
            Err(cause) => cause,
        };
        life.kill(None);
        let end = life.wait(&mut child);
        let ended = || format!("the process of its engine ended while it loaded the model: {end}");
        let python = || diagnose_python(&self.isolation.program).filter(|_| self.load.python.is_some());
        Err(cause.or_else(python).unwrap_or_else(ended))
    }

    /// Starts a process that has the socket as its standard input.
    fn spawn(&self, theirs: UnixStream) -> Result<Child, String> {
        let program = &self.isolation.program;
        let mut command = Command::new(program);
        command.args(&self.isolation.args);
        set_environment(&mut command);
        if self.load.python.is_some() {
            set_threads(&mut command, self.load.threads);
        }
        // In a group of its own, the process gets no signals from the terminal. Only the server
        // gets them, drains, and then ends its processes.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
        command.spawn().map_err(|cause| format!("{} cannot be started: {cause}", program.display()))
    }

    /// Lets a process load the model. Returns an error without a cause if the process ended, whose
    /// end is the cause.
    fn load(&self, mut socket: UnixStream, life: &Arc<Life>) -> Result<ProcessConnection, Option<String>> {
        let failed =
            |cause: io::Error| is_timeout(&cause).then(|| format!("it did not load the model within {LOAD_LIMIT:?}"));
        let transfer = offer(&socket).map_err(failed)?;
        send(&mut socket, &self.load).map_err(failed)?;
        let reply: RunReply = receive(&mut socket).map_err(failed)?;
        if reply.error.is_some() {
            return Err(reply.error);
        }
        if self.load.python.is_some() {
            accept(reply.declared, &self.declared, self.load.unbatched).map_err(Some)?;
        }
        let closes = self.load.python.is_some();
        let connection = ProcessConnection::new(socket, transfer, Arc::clone(life), self.isolation.task_limit, closes);
        let mut connection = connection.map_err(|cause| Some(format!("no time limit: {cause}")))?;
        let warmed = self.warm(&mut connection);
        warmed.map_err(|cause| Some(format!("it ended with a warm-up batch: {cause}")))?;
        Ok(connection)
    }

    /// Runs the warm-up batches in a process that has loaded the model. An engine's error is no
    /// failure: requests will show it.
    fn warm(&self, connection: &mut ProcessConnection) -> io::Result<()> {
        self.warm_up.run(&mut |block, rows, inputs| {
            let inputs = connection.sending().lock().pack(0, inputs).map_err(io::Error::other)?.unwrap_or_default();
            let (block, rows) = (block as u32, rows as u64);
            let batch = RunRequest { block, rows, inputs, kept_bound: u64::MAX, ..RunRequest::default() };
            connection.run(&batch, |_| ()).map(drop)
        })
    }
}
