//! What a backend does under one claim: what the scheduler orders is done, what ends is told.
//!
//! The device's own threads end tasks, and frontends' threads bring rows. What they share is one table of tasks under one
//! lock, in which a task also goes to the device, so that the order of a lane is that of the table. Outputs go to the
//! frontends before the scheduler hears of the end. Once the session is over nothing begins; what the device has runs on.

use super::Backend;
use super::tasks::{Held, Inputs, Ready, Tasks};
use crate::handover::{Held as HeldRows, Process, RequestId, Stamp};
use crate::plane::{Ended, Garbled, Link, MemberEnd, Message, Run};
use parking_lot::Mutex;
use ripieno_base::{LaneId, ModelId, TaskId};
use ripieno_executor::{
    Device, Entry, ExecError, Loss, Origin, Payload, Progress, RequestError, Sink, TaskResult, Tensor,
};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What all sessions of a backend share.
pub(super) trait Shared: Send + Sync {
    fn backend(&self) -> &Backend;

    /// Asks a frontend for rows; false if that is not possible.
    fn pull(&self, tag: u64, from: Origin, rows: u32) -> bool;

    fn send_outputs(&self, to: Origin, rows: u32, outputs: Result<Vec<Tensor>, String>);

    /// A task of a session that is over has ended, and these rows of it not well: they are to be run again.
    fn on_earlier_end(&self, failed: &[HeldRows]);
}

/// A session.
pub(super) struct Session {
    own: Weak<Session>,
    sessions: Weak<dyn Shared>,
    /// The claim, and whose it is.
    claim: (Stamp, Process),
    pub(super) link: Arc<Link>,
    work: Mutex<Work>,
}

/// The device and its tasks.
struct Work {
    device: Option<Arc<dyn Device>>,
    /// Which of the models an id is.
    attached: HashMap<ModelId, usize>,
    tasks: Tasks,
    /// Another claim is obeyed.
    over: bool,
}

impl Session {
    /// The session of this number, under this claim.
    pub(super) fn new(
        sessions: Weak<dyn Shared>,
        claim: (Stamp, Process),
        number: u64,
        link: Arc<Link>,
    ) -> Arc<Session> {
        // Numbers of pulls are not those of any other session.
        let tasks = Tasks::new(0, number << 40);
        let work = Work { device: None, attached: HashMap::new(), tasks, over: false };
        Arc::new_cyclic(|own| Session { own: own.clone(), sessions, claim, link, work: Mutex::new(work) })
    }

    /// Does what the scheduler says.
    pub(super) fn obey(&self, order: Message) -> io::Result<()> {
        match order {
            Message::Open(lanes) => self.open(lanes)?,
            Message::Attach(id, at) => self.attach(id, at)?,
            Message::Detach(id) => self.detach(id),
            Message::Run(run) => self.run(run)?,
            Message::Cancel(task) => self.cancel(task),
            other => return Err(Garbled(format!("a scheduler does not say {other:?}")).into()),
        }
        Ok(())
    }

    /// Whether another claim is obeyed.
    pub(super) fn is_over(&self) -> bool {
        self.work.lock().over
    }

    /// Another claim is obeyed: nothing begins any more.
    pub(super) fn end(&self) {
        let mut work = self.work.lock();
        work.over = true;
        work.tasks.drop_waiting();
    }

    /// The rows that run, by their requests.
    pub(super) fn running(&self) -> Vec<(RequestId, u32)> {
        let work = self.work.lock();
        let held = work.tasks.all().flat_map(|held| held.running().filter_map(|at| held.origin(at)));
        held.map(|(origin, rows)| (request_of(origin), rows)).collect()
    }

    /// Ends the device, and waits for what runs on it.
    pub(super) fn close(&self) {
        let device = self.work.lock().device.take();
        drop(device);
    }

    /// An order is obeyed: the claim, or a batch under it.
    pub(super) fn tell_order(&self, claim: bool) {
        let sessions = self.sessions.upgrade();
        let hears = sessions.as_ref().and_then(|sessions| sessions.backend().on_order.as_ref());
        hears.into_iter().for_each(|hears| hears(self.claim.0, self.claim.1, claim));
    }

    fn open(&self, lanes: u32) -> io::Result<()> {
        let own = self.own.clone();
        let sink: Sink = Arc::new(move |result| own.upgrade().iter().for_each(|own| own.on_end(&result)));
        let sessions = self.sessions()?;
        let lanes = usize::try_from(lanes).ok().filter(|lanes| (1..=1024).contains(lanes));
        let lanes = lanes.ok_or_else(|| Garbled("a device of no lanes, or too many".to_owned()))?;
        let device =
            sessions.backend().executor.open(lanes, sink).map_err(|error| io::Error::other(error.to_string()))?;
        let mut work = self.work.lock();
        if work.device.is_some() {
            return Err(Garbled("a backend is one device".to_owned()).into());
        }
        work.device = Some(device.into());
        work.tasks.open(lanes);
        Ok(())
    }

    fn attach(&self, id: ModelId, at: u32) -> io::Result<()> {
        let sessions = self.sessions()?;
        let model =
            sessions.backend().models.get(at as usize).ok_or_else(|| Garbled(format!("there is no model {at}")))?;
        let device = self.work.lock().device.clone();
        // It may be slow, so the lock is not held.
        device.iter().for_each(|device| device.attach(id, Arc::clone(&model.loaded)));
        self.work.lock().attached.insert(id, at as usize);
        Ok(())
    }

    fn detach(&self, id: ModelId) {
        let mut work = self.work.lock();
        if work.attached.remove(&id).is_some() {
            work.device.iter().for_each(|device| device.detach(id));
        }
    }

    /// Takes a task, and asks for the rows that it needs.
    fn run(&self, run: Run) -> io::Result<()> {
        let sessions = self.sessions()?;
        let pulls = {
            let mut work = self.work.lock();
            if work.over {
                return Ok(());
            }
            let blocks = work.attached.get(&run.model).map(|&at| sessions.backend().models[at].loaded.blocks());
            let (task, lane) = (run.task, run.lane);
            let origins: Vec<_> = run.members.iter().map(|member| (member.origin, member.rows)).collect();
            if blocks.is_none_or(|blocks| run.block.index() >= blocks) || !work.tasks.take(run) {
                return Err(Garbled(format!("task {} is none of this device", task.0)).into());
            }
            let tagged = origins.into_iter().enumerate();
            let tagged = tagged.filter_map(|(at, (origin, rows))| Some((at, origin?, rows)));
            let pulls: Vec<_> = tagged.map(|(at, origin, rows)| (work.tasks.tag(task, at), origin, rows)).collect();
            if pulls.is_empty() {
                self.begin(&mut work, lane);
            }
            pulls
        };
        self.tell_order(false);
        for (tag, origin, rows) in pulls {
            if !sessions.pull(tag, origin, rows) {
                self.on_rows(tag, None);
            }
        }
        Ok(())
    }

    fn sessions(&self) -> io::Result<Arc<dyn Shared>> {
        self.sessions.upgrade().ok_or_else(|| io::Error::other("the backend has ended"))
    }

    fn cancel(&self, task: TaskId) {
        let mut work = self.work.lock();
        if work.tasks.withdraw(task).is_some() {
            drop(work);
            let cause = Err("it was stopped before it began".to_owned());
            return self.tell(Ended { task, ago_ns: 0, took_ns: 0, again: 0, lost: None, members: cause });
        }
        work.device.iter().for_each(|device| device.cancel(task));
    }

    /// Has the device begin what may begin on a lane.
    fn begin(&self, work: &mut Work, lane: LaneId) {
        while let Some(ready) = work.tasks.next(lane) {
            let refused = match (ready, &work.device) {
                (Ready::Submit(task), Some(device)) => device.submit(task).err().map(|task| task.id),
                (Ready::Submit(task), None) => Some(task.id),
                (Ready::Over(task), _) => {
                    let ends = work.tasks.end(task).map(|held| held.ends(&[])).unwrap_or_default();
                    self.tell(Ended { task, ago_ns: 0, took_ns: 0, again: 0, lost: None, members: Ok(ends) });
                    None
                }
            };
            if let Some(task) = refused {
                work.tasks.end(task);
                let cause = Err("the device holds as many tasks as it can".to_owned());
                self.tell(Ended { task, ago_ns: 0, took_ns: 0, again: 0, lost: None, members: cause });
            }
        }
    }

    fn tell(&self, ended: Ended) {
        self.link.send(&Message::Ended(ended));
    }

    /// The device has ended a task.
    fn on_end(&self, result: &TaskResult) {
        let mut work = self.work.lock();
        let Some(held) = work.tasks.end(result.id) else { return };
        let over = work.over;
        drop(work);
        let Some(sessions) = self.sessions.upgrade() else { return };
        if let Ok(progress) = &result.outcome {
            held.running().zip(progress).for_each(|(at, progress)| push(&*sessions, &held, at, progress));
        }
        if over {
            return sessions.on_earlier_end(&failed(&held, result));
        }
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Some(again) = &result.again {
            tracing::debug!(runs = again.runs, cause = %again.cause, "a batch failed and was run again in parts");
        }
        self.tell(Ended {
            task: result.id,
            ago_ns: nanos(result.finished.elapsed()),
            took_ns: nanos(result.finished.saturating_duration_since(result.started)),
            again: result.again.as_ref().map_or(0, |again| again.runs),
            lost: result.lost.map(|Loss { retry_after, inside }| (nanos(retry_after), inside)),
            members: match &result.outcome {
                Ok(progress) => Ok(held.ends(progress)),
                Err(ExecError(cause)) => Err(cause.clone()),
            },
        });
    }

    /// What is to become of a member with these inputs. What is wrong with them goes straight to the client.
    fn judge(&self, model: usize, (origin, rows): (Origin, u32), length: u32, inputs: Vec<Tensor>) -> Inputs {
        let Some(sessions) = self.sessions.upgrade() else { return Inputs::lost() };
        match sessions.backend().models[model].loaded.describe(&inputs) {
            Ok((extent, _)) if extent.length == length => {
                Inputs::Here(Arc::new(Entry::new(Payload::Here(inputs.into()), extent)))
            }
            Ok((extent, _)) => {
                let cause = format!("its length is {}, and its frontend said {length}", extent.length);
                Inputs::Out(MemberEnd::Failed(cause))
            }
            Err(RequestError(cause)) => {
                sessions.send_outputs(origin, rows, Err(cause));
                Inputs::Out(MemberEnd::Ended)
            }
        }
    }

    pub(super) fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>) {
        let mut work = self.work.lock();
        let Some((task, member)) = work.tasks.pulled(tag) else { return };
        let Some(held) = work.tasks.get(task) else { return };
        let (lane, length, brought) = (held.run.lane, held.run.members[member].length, held.origin(member));
        let model = work.attached.get(&held.run.model).copied();
        drop(work);
        let inputs = match (inputs, model, brought) {
            (Some(inputs), Some(model), Some(origin)) => self.judge(model, origin, length, inputs),
            _ => Inputs::lost(),
        };
        work = self.work.lock();
        work.tasks.settle(task, member, inputs);
        self.begin(&mut work, lane);
    }

    pub(super) fn on_lost(&self, frontend: u32) {
        let mut work = self.work.lock();
        work.tasks.lose(frontend);
        for lane in 0..work.tasks.lanes() {
            self.begin(&mut work, LaneId(lane as u16));
        }
    }
}

fn request_of(origin: Origin) -> RequestId {
    RequestId { frontend: Process(u64::from(origin.frontend)), number: origin.request }
}

/// Sends a member's outputs to its front end, if its walk has ended.
fn push(sessions: &dyn Shared, held: &Held, at: usize, progress: &Progress) {
    if progress.ended
        && progress.failed.is_none()
        && let Some((origin, rows)) = held.origin(at)
    {
        sessions.send_outputs(origin, rows, Ok(progress.outputs.clone()));
    }
}

/// The rows of a task that ran and have not ended well.
fn failed(held: &Held, result: &TaskResult) -> Vec<HeldRows> {
    let well = |nth: usize| {
        let progress = result.outcome.as_ref().ok().and_then(|all| all.get(nth));
        progress.is_some_and(|progress| progress.ended && progress.failed.is_none())
    };
    let ran = held.running().enumerate().filter(|(nth, _)| !well(*nth)).filter_map(|(_, at)| held.origin(at));
    ran.map(|(origin, rows)| HeldRows { request: request_of(origin), rows, failed: true }).collect()
}
