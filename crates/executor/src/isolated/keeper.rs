//! Keeps the processes of a model running: one thread for each.

use super::Isolation;
use super::protocol::{Done, Load, receive, send};
use crate::LoadError;
use parking_lot::Mutex;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Before a process is started again; twice as long each time that it does not live long.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that lived so long was well.
const WELL: Duration = Duration::from_secs(20);
/// What a process gets of the server's environment: secrets are no business of a model.
const PASSED_ON: [&str; 8] =
    ["PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "ORT_DYLIB_PATH", "VIRTUAL_ENV", "RUST_BACKTRACE"];

/// The processes of one model.
pub(super) struct Processes {
    model: String,
    isolation: Isolation,
    load: Load,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lanes that are to have a process.
    wanted: usize,
    keepers: usize,
    /// To processes that nobody uses.
    idle: Vec<Connection>,
    /// Processes that are there, in use or not.
    up: usize,
    /// When the next one may be there; known while one is missing.
    back: Option<Instant>,
}

/// To a process.
pub(super) struct Connection {
    pub(super) socket: UnixStream,
    /// Until the process ends.
    open: Arc<AtomicBool>,
}

impl Connection {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
}

impl Processes {
    pub(super) fn new(model: String, isolation: Isolation, load: Load) -> Arc<Processes> {
        Arc::new(Processes { model, isolation, load, state: Mutex::default() })
    }

    /// Starts keepers until there are so many. An error of a first process is returned, and its keeper is none.
    pub(super) fn provide(self: &Arc<Self>, count: usize) -> Result<(), LoadError> {
        while self.hire(count) {
            let outcome = self.start_keeper();
            if outcome.is_err() {
                self.state.lock().keepers -= 1;
            }
            outcome?;
        }
        Ok(())
    }

    fn hire(&self, count: usize) -> bool {
        let mut state = self.state.lock();
        let missing = state.keepers < count;
        state.keepers += usize::from(missing);
        missing
    }

    fn start_keeper(self: &Arc<Self>) -> Result<(), LoadError> {
        let failed = |cause: String| LoadError(format!("model '{}': {cause}", self.model));
        let (tell, told) = sync_channel(1);
        // Whoever uses the model holds it; a keeper only looks after it.
        let processes = Arc::downgrade(self);
        let (isolation, load) = (self.isolation.clone(), self.load.clone());
        let body = move || {
            let mut keeper = Keeper { processes, isolation, load, pause: FIRST_PAUSE };
            keeper.run(&tell);
        };
        let name = format!("keeper-{}", self.model);
        thread::Builder::new().name(name).spawn(body).map_err(|cause| failed(format!("no thread: {cause}")))?;
        told.recv().unwrap_or_else(|_| Err("its keeper panicked".to_owned())).map_err(failed)
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

    /// A lane needs its process no more.
    pub(super) fn leave(&self, connection: Option<Connection>) {
        let mut state = self.state.lock();
        state.wanted -= 1;
        state.idle.extend(connection.filter(Connection::is_open));
    }

    /// A process that nobody uses.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut state = self.state.lock();
        state.idle.retain(Connection::is_open);
        state.idle.pop()
    }

    /// If no process is there: in how long there may be one.
    pub(super) fn outage(&self) -> Option<Duration> {
        let state = self.state.lock();
        let back = || state.back.map_or(FIRST_PAUSE, |back| back.saturating_duration_since(Instant::now()));
        (state.up == 0).then(|| back().max(FIRST_PAUSE))
    }
}

/// Looks after one process. When the model is gone, so are the connections to its processes, which end then, and so does this,
/// after a pause at the latest.
struct Keeper {
    processes: std::sync::Weak<Processes>,
    isolation: Isolation,
    load: Load,
    pause: Duration,
}

impl Keeper {
    /// Tells of the first process, then goes on as long as the model is there.
    fn run(&mut self, tell: &SyncSender<Result<(), String>>) {
        let mut process = match self.start() {
            Ok(process) => process,
            Err(cause) => return drop(tell.send(Err(cause))),
        };
        let mut first = Some(tell);
        loop {
            let (begun, open) = (Instant::now(), Arc::new(AtomicBool::new(true)));
            let (mut child, socket) = process;
            {
                let Some(processes) = self.processes.upgrade() else { return reap(child, socket) };
                let mut state = processes.state.lock();
                state.up += 1;
                state.idle.push(Connection { socket, open: Arc::clone(&open) });
            }
            if let Some(tell) = first.take() {
                let _ = tell.send(Ok(()));
            }
            let status = child.wait();
            open.store(false, Ordering::Release);
            if begun.elapsed() > WELL {
                self.pause = FIRST_PAUSE;
            }
            if !self.is_down(&format!("ended: {}", describe(status))) {
                return;
            }
            process = loop {
                thread::sleep(self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                match self.start() {
                    Ok(process) => break process,
                    Err(cause) if self.is_retried(&cause) => {}
                    Err(_) => return,
                }
            };
        }
    }

    /// A process is gone; whether anybody is interested.
    fn is_down(&self, what: &str) -> bool {
        let Some(processes) = self.processes.upgrade() else { return false };
        processes.state.lock().up -= 1;
        self.tell(&processes, what);
        true
    }

    fn is_retried(&self, cause: &str) -> bool {
        let Some(processes) = self.processes.upgrade() else { return false };
        self.tell(&processes, &format!("could not be started: {cause}"));
        true
    }

    fn tell(&self, processes: &Processes, what: &str) {
        processes.state.lock().back = Some(Instant::now() + self.pause);
        tracing::warn!(
            model = processes.model,
            "the process of its engine {what}; it is started again in {:?}",
            self.pause
        );
    }

    /// Starts a process and has it load the model.
    fn start(&self) -> Result<(Child, UnixStream), String> {
        let (ours, theirs) = UnixStream::pair().map_err(|cause| format!("no socket: {cause}"))?;
        let program = &self.isolation.program;
        let mut command = Command::new(program);
        command.args(&self.isolation.args).env_clear();
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // A signal to the server's group, as from a terminal, is for the server, which ends its processes when it has drained.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(|cause| format!("{} cannot be started: {cause}", program.display()))?;
        drop(command);
        let mut socket = ours;
        let loaded = send(&mut socket, &self.load).and_then(|()| receive::<Done>(&mut socket));
        match loaded {
            Ok(Done { error: None, .. }) => Ok((child, socket)),
            Ok(Done { error: Some(cause), .. }) => {
                reap(child, socket);
                Err(cause)
            }
            Err(_) => {
                drop(socket);
                Err(format!("the process of its engine ended while it loaded the model: {}", describe(child.wait())))
            }
        }
    }
}

/// Lets a process end that nobody needs.
fn reap(mut child: Child, socket: UnixStream) {
    drop(socket);
    let _ = child.wait();
}

fn describe(status: io::Result<std::process::ExitStatus>) -> String {
    status.map_or_else(|cause| cause.to_string(), |status| status.to_string())
}
