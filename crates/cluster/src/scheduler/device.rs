//! A device that is elsewhere, as the engine sees it: tasks go out as records, and their ends come back.
//!
//! What a backend says is checked here, for the engine trusts its devices: a task that it does not hold has not ended,
//! and one of three members has not ended for two. Nothing here waits for the network.

use crate::description::RemoteModel;
use crate::plane::{Ended, Garbled, Link, MemberEnd, Message, Run, RunMember};
use parking_lot::Mutex;
use ripieno_base::{ModelId, TaskId};
use ripieno_executor::{
    Again, Device, Engine as Executor, ExecError, LoadError, Loaded, Loss, Member, ModelSource, Payload, Progress,
    Sink, Task, TaskResult,
};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// When a request whose inputs could not be had may be sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Opens the one device of a backend that has connected.
pub(super) struct RemoteExecutor {
    link: Arc<Link>,
    depth: usize,
    opened: OnceLock<Arc<Remote>>,
}

/// What the device and the reader of its connection share.
pub(super) struct Remote {
    link: Arc<Link>,
    sink: Sink,
    /// How many members each task has that is there.
    flying: Mutex<HashMap<TaskId, usize>>,
    /// Whether the engine has it.
    there: Mutex<bool>,
}

impl RemoteExecutor {
    pub(super) fn new(link: Arc<Link>, depth: usize) -> RemoteExecutor {
        RemoteExecutor { link, depth, opened: OnceLock::new() }
    }

    pub(super) fn opened(&self) -> Option<Arc<Remote>> {
        self.opened.get().cloned()
    }
}

impl Executor for RemoteExecutor {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn device_key(&self) -> String {
        "remote".to_owned()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError> {
        Err(LoadError(format!("model '{}': models are loaded by backends", source.name)))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (link, depth) = (Arc::clone(&self.link), self.depth);
        let remote = Arc::new(Remote { link, sink, flying: Mutex::default(), there: Mutex::new(true) });
        if self.opened.set(Arc::clone(&remote)).is_err() {
            return Err(LoadError("a backend is one device".to_owned()));
        }
        self.link.send(&Message::Open(lanes as u32));
        Ok(Box::new(RemoteDevice { remote, lanes, depth }))
    }
}

struct RemoteDevice {
    remote: Arc<Remote>,
    lanes: usize,
    depth: usize,
}

impl Device for RemoteDevice {
    fn lanes(&self) -> usize {
        self.lanes
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>) {
        match model.as_any().downcast_ref::<RemoteModel>() {
            Some(model) => self.remote.link.send(&Message::Attach(id, model.at)),
            None => tracing::error!(model = id.0, "a model of this process cannot run elsewhere"),
        }
    }

    fn detach(&self, id: ModelId) {
        self.remote.link.send(&Message::Detach(id));
    }

    /// Of a backend that has gone, it is accepted: that it was lost is on its way.
    fn submit(&self, task: Task) -> Result<(), Task> {
        self.remote.flying.lock().insert(task.id, task.members.len());
        self.remote.link.send(&Message::Run(run(&task)));
        Ok(())
    }

    fn cancel(&self, id: TaskId) {
        self.remote.link.send(&Message::Cancel(id));
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        *self.remote.there.lock() = false;
        self.remote.link.close();
    }
}

fn run(task: &Task) -> Run {
    let now = Instant::now();
    let left = |until: Instant| nanos(until.saturating_duration_since(now));
    let member = |member: &Member| RunMember {
        slot: member.slot,
        rows: member.rows as u32,
        length: member.entry.as_ref().map_or(0, |entry| entry.extent.length),
        walk: member.walk,
        left_ns: member.until.map(left),
        origin: member.entry.as_ref().and_then(|entry| match entry.payload {
            Payload::Elsewhere(origin) => Some(origin),
            Payload::Here(_) => None,
        }),
    };
    Run {
        task: task.id,
        model: task.model,
        block: task.block,
        lane: task.lane,
        length: task.length,
        wait_ns: task.not_before.map_or(0, left),
        members: task.members.iter().map(member).collect(),
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Remote {
    /// Does something while the engine has the device; nothing once it has let go of it, and its id may be another's.
    pub(super) fn while_there(&self, act: impl FnOnce()) {
        let there = self.there.lock();
        if *there {
            act();
        }
    }

    /// A task has ended, as the backend says; whether it has told of further ones.
    pub(super) fn on_end(&self, ended: Ended, holds_next: bool) -> Result<(), Garbled> {
        let Ended { task, ago_ns, took_ns, again, lost, members } = ended;
        let held = self.flying.lock().remove(&task);
        let held = held.ok_or_else(|| Garbled(format!("task {} has ended, which was not there", task.0)))?;
        let outcome = match members {
            Ok(members) if members.len() != held => {
                return Err(Garbled(format!("task {} of {held} members has ended for {}", task.0, members.len())));
            }
            Ok(members) => Ok(members.into_iter().map(progress).collect()),
            Err(cause) => Err(ExecError(cause)),
        };
        let now = Instant::now();
        let finished = now.checked_sub(Duration::from_nanos(ago_ns)).unwrap_or(now);
        let started = finished.checked_sub(Duration::from_nanos(took_ns)).unwrap_or(finished);
        let cause = ExecError("its backend's log says why".to_owned());
        let again = (again > 0).then_some(Again { runs: again, cause });
        let lost = lost.map(|(after, inside)| Loss { retry_after: Duration::from_nanos(after), inside });
        (self.sink)(TaskResult { id: task, outcome, again, lost, started, finished, holds_next });
        Ok(())
    }
}

fn progress(member: MemberEnd) -> Progress {
    match member {
        MemberEnd::GoesOn(skip) => Progress { skip, ..Progress::default() },
        MemberEnd::Ended => Progress::ended(Vec::new()),
        MemberEnd::Failed(cause) => Progress::failed(ExecError(cause)),
        MemberEnd::Lost(cause) => {
            let lost = Some(Loss { retry_after: RETRY_AFTER, inside: false });
            Progress { lost, ..Progress::failed(ExecError(cause)) }
        }
    }
}
