//! Keeps the processes of a model running: one thread for each.

use super::Isolation;
use super::life::{Connection, Life, is_timeout};
use super::protocol::{Done, Load, receive, send};
use crate::{LoadError, Outage};
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Before a process is started again; twice as long each time that it does not live long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that lived so long was well.
const WELL: Duration = Duration::from_secs(20);
/// The longest that a process may take to load its model.
const LOAD_LIMIT: Duration = Duration::from_secs(600);
/// What a process gets of the server's environment: secrets are no business of a model.
const PASSED_ON: [&str; 8] =
    ["PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "ORT_DYLIB_PATH", "VIRTUAL_ENV", "RUST_BACKTRACE"];

/// The processes of one model.
pub(super) struct Processes {
    model: String,
    isolation: Isolation,
    load: Load,
    state: Mutex<State>,
    /// A process is idle, or gone.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Lanes that are to have a process.
    wanted: usize,
    supervisors: Vec<SyncSender<()>>,
    /// Being hired.
    candidates: usize,
    /// To processes that have nothing to do.
    idle: Vec<Connection>,
    /// Processes that are there, in use or not.
    up: usize,
    restarts: u64,
    /// How the last one ended, or why it could not be started.
    cause: String,
    /// When the next one may be there; known while one is missing.
    back: Option<Instant>,
}

impl Processes {
    pub(super) fn new(model: String, isolation: Isolation, load: Load) -> Arc<Processes> {
        Arc::new(Processes { model, isolation, load, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Starts supervisors until there are so many. An error of a first process is returned, and its supervisor is none.
    pub(super) fn provide(self: &Arc<Self>, count: usize) -> Result<(), LoadError> {
        while self.hires(count) {
            let hired = self.start_keeper();
            let mut state = self.state.lock();
            state.candidates -= 1;
            state.supervisors.push(hired?);
        }
        Ok(())
    }

    fn hires(&self, count: usize) -> bool {
        let mut state = self.state.lock();
        let missing = state.supervisors.len() + state.candidates < count;
        state.candidates += usize::from(missing);
        missing
    }

    /// The supervisor ends, be it in the midst of a pause, when what is returned is dropped.
    fn start_keeper(self: &Arc<Self>) -> Result<SyncSender<()>, LoadError> {
        let failed = |cause: String| LoadError(format!("model '{}': {cause}", self.model));
        let (tell, told) = sync_channel(1);
        let (leave, leaving) = sync_channel(0);
        // Whoever uses the model holds it; a supervisor only looks after it.
        let processes = Arc::downgrade(self);
        let (isolation, load) = (self.isolation.clone(), self.load.clone());
        let body = move || Supervisor { processes, isolation, load, leaving, pause: FIRST_PAUSE }.run(&tell);
        let name = format!("engine-{}", self.model);
        thread::Builder::new().name(name).spawn(body).map_err(|cause| failed(format!("no thread: {cause}")))?;
        told.recv().unwrap_or_else(|_| Err("its supervisor panicked".to_owned())).map_err(failed)?;
        Ok(leave)
    }

    /// A lane is to have a process.
    pub(super) fn attach(self: &Arc<Self>) -> Result<(), LoadError> {
        let wanted = {
            let mut state = self.state.lock();
            state.wanted += 1;
            state.wanted
        };
        self.provide(wanted)
    }

    /// A lane needs no process any more.
    pub(super) fn detach(&self) {
        self.state.lock().wanted -= 1;
    }

    /// A process that has nothing to do. While some are gone, their lanes share those that are left: one that failed at once
    /// would draw all the work.
    pub(super) fn take(&self) -> Result<Connection, Outage> {
        let until = Instant::now() + self.isolation.task_limit;
        let mut state = self.state.lock();
        loop {
            match state.idle.pop() {
                Some(connection) if connection.is_open() => return Ok(connection),
                Some(_) => {}
                None if state.up > 0 && !self.changed.wait_until(&mut state, until).timed_out() => {}
                None => return Err(state.outage()),
            }
        }
    }

    /// It is idle again.
    pub(super) fn put_back(&self, connection: Connection) {
        self.state.lock().idle.push(connection);
        self.changed.notify_one();
    }

    /// If no process is there: why, and in how long there may be one.
    pub(super) fn outage(&self) -> Option<Outage> {
        let state = self.state.lock();
        (state.up == 0).then(|| state.outage())
    }

    /// When a process that has just ended may be back.
    pub(super) fn back_in(&self) -> Duration {
        self.state.lock().back_in()
    }

    pub(super) fn restarts(&self) -> u64 {
        self.state.lock().restarts
    }
}

impl State {
    fn outage(&self) -> Outage {
        Outage { cause: self.cause.clone(), retry_after: self.back_in() }
    }

    fn back_in(&self) -> Duration {
        let back = self.back.map(|back| back.saturating_duration_since(Instant::now()));
        back.unwrap_or_default().max(FIRST_PAUSE)
    }
}

/// Looks after one process. When the model is gone, so are the connections to its processes, which end then, and so does this.
struct Supervisor {
    processes: Weak<Processes>,
    isolation: Isolation,
    load: Load,
    /// Disconnected when the model is gone.
    leaving: Receiver<()>,
    pause: Duration,
}

/// A process that has loaded the model.
struct Started {
    child: Child,
    life: Arc<Life>,
    connection: Connection,
}

impl Supervisor {
    /// Tells of the first process, then goes on as long as the model is there.
    fn run(&mut self, tell: &SyncSender<Result<(), String>>) {
        let mut started = match self.start() {
            Ok(started) => started,
            Err(cause) => return drop(tell.send(Err(cause))),
        };
        let mut tell = Some(tell);
        loop {
            let (begun, first) = (Instant::now(), tell.is_some());
            let Started { mut child, life, connection } = started;
            // Without anybody to use it, the connection is dropped and the process killed.
            self.is_up(connection, first);
            if let Some(tell) = tell.take() {
                let _ = tell.send(Ok(()));
            }
            let end = life.outlive(&mut child);
            if begun.elapsed() > WELL {
                self.pause = FIRST_PAUSE;
            }
            self.is_down(&end);
            life.announce(end);
            started = match self.start_again() {
                Some(started) => started,
                None => return,
            };
        }
    }

    /// After a pause, which doubles as long as that fails; none if the model has gone.
    fn start_again(&mut self) -> Option<Started> {
        loop {
            if self.leaving.recv_timeout(self.pause) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            match self.start() {
                Ok(started) => return Some(started),
                Err(cause) => self.tell(&format!("could not be started again: {cause}"), |_| {}),
            }
        }
    }

    fn is_up(&self, connection: Connection, first: bool) {
        let Some(processes) = self.processes.upgrade() else { return };
        let mut state = processes.state.lock();
        state.up += 1;
        state.restarts += u64::from(!first);
        state.idle.retain(Connection::is_open);
        state.idle.push(connection);
        processes.changed.notify_one();
    }

    fn is_down(&self, end: &str) {
        self.tell(&format!("ended: {end}"), |state| state.up -= 1);
    }

    fn tell(&self, what: &str, change: impl FnOnce(&mut State)) {
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

    /// Starts a process and has it load the model.
    fn start(&self) -> Result<Started, String> {
        let (mut socket, theirs) = UnixStream::pair().map_err(|cause| format!("no socket: {cause}"))?;
        socket.set_read_timeout(Some(LOAD_LIMIT)).map_err(|cause| format!("no time limit: {cause}"))?;
        let program = &self.isolation.program;
        let mut command = Command::new(program);
        command.args(&self.isolation.args).env_clear();
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // A signal to the server's group, as from a terminal, is for the server, which ends its processes when it has drained.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(|cause| format!("{} cannot be started: {cause}", program.display()))?;
        drop(command);
        let life = Life::of(&child);
        let loaded = send(&mut socket, &self.load).and_then(|()| receive::<Done>(&mut socket));
        let connection = Connection::new(socket, Arc::clone(&life), self.isolation.task_limit);
        let cause = match (loaded, connection) {
            (Ok(Done { error: None, .. }), Ok(connection)) => return Ok(Started { child, life, connection }),
            (Ok(Done { error: Some(cause), .. }), _) => Some(cause),
            (Ok(_), Err(cause)) => Some(format!("no time limit: {cause}")),
            (Err(cause), _) if is_timeout(&cause) => Some(format!("it did not load the model within {LOAD_LIMIT:?}")),
            (Err(_), _) => None,
        };
        life.kill(None);
        let end = life.outlive(&mut child);
        Err(cause.unwrap_or_else(|| format!("the process of its engine ended while it loaded the model: {end}")))
    }
}
