//! One connection to a scheduler: what it orders is done, what ends is told.
//!
//! Threads: one reads what the scheduler says; for each front end one reads rows; the device's own threads end tasks.
//! What they share is one table of tasks under one lock, in which a task also goes to the device, so that the order of
//! a lane is that of the table. Outputs go to the frontends before the scheduler hears of the end.

use super::source::{Receiver, Source};
use super::tasks::{Held, Inputs, Ready, Tasks};
use super::{Backend, BackendModel};
use crate::plane::{Ended, Garbled, Link, MemberEnd, Message, Reader, Run, Transport};
use parking_lot::Mutex;
use ripieno_base::{LaneId, ModelId, TaskId};
use ripieno_executor::{
    Device, Engine as Executor, Entry, ExecError, Loss, Origin, Payload, Progress, RequestError, Sink, TaskResult,
    Tensor,
};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A session.
pub(super) struct Session(Arc<Shared>);

pub(super) struct Shared {
    own: Weak<Shared>,
    transport: Arc<dyn Transport>,
    executor: Arc<dyn Executor>,
    models: Arc<[BackendModel]>,
    epoch: u64,
    link: Arc<Link>,
    work: Mutex<Work>,
    sources: Mutex<HashMap<u32, Arc<Source>>>,
}

/// The device and its tasks.
struct Work {
    device: Option<Arc<dyn Device>>,
    /// Which of the models an id is.
    attached: HashMap<ModelId, usize>,
    tasks: Tasks,
}

impl Session {
    pub(super) fn new(backend: &Backend, epoch: u64, link: Arc<Link>) -> Session {
        let work = Work { device: None, attached: HashMap::new(), tasks: Tasks::new(0) };
        Session(Arc::new_cyclic(|own| Shared {
            own: own.clone(),
            transport: Arc::clone(&backend.transport),
            executor: Arc::clone(&backend.executor),
            models: Arc::clone(&backend.models),
            epoch,
            link,
            work: Mutex::new(work),
            sources: Mutex::default(),
        }))
    }

    /// Does what the scheduler says until the connection ends.
    pub(super) fn follow(&self, reader: &mut Reader) -> io::Result<()> {
        let shared = &self.0;
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Open(lanes) => shared.open(lanes)?,
                Message::Attach(id, at) => shared.attach(id, at)?,
                Message::Detach(id) => shared.detach(id),
                Message::Frontend(id, address) => shared.meet(id, address),
                Message::FrontendGone(id) => shared.part(id),
                Message::Run(run) => shared.run(run)?,
                Message::Cancel(task) => shared.cancel(task),
                Message::Refused(cause) => return Err(io::Error::other(format!("the scheduler refuses: {cause}"))),
                other => return Err(Garbled(format!("a scheduler does not say {other:?}")).into()),
            }
        }
    }

    /// Ends all that is left; whether there was a device. Waits for what runs on it.
    pub(super) fn close(self) -> bool {
        let sources: Vec<_> = self.0.sources.lock().drain().collect();
        sources.iter().for_each(|(_, source)| source.close());
        let device = self.0.work.lock().device.take();
        let had = device.is_some();
        drop(device);
        had
    }
}

impl Shared {
    fn open(&self, lanes: u32) -> io::Result<()> {
        let own = self.own.clone();
        let sink: Sink = Arc::new(move |result| own.upgrade().iter().for_each(|own| own.on_end(&result)));
        let lanes = usize::try_from(lanes).ok().filter(|lanes| (1..=1024).contains(lanes));
        let lanes = lanes.ok_or_else(|| Garbled("a device of no lanes, or too many".to_owned()))?;
        let device = self.executor.open(lanes, sink).map_err(|error| io::Error::other(error.to_string()))?;
        let mut work = self.work.lock();
        if work.device.is_some() {
            return Err(Garbled("a backend is one device".to_owned()).into());
        }
        (work.device, work.tasks) = (Some(device.into()), Tasks::new(lanes));
        Ok(())
    }

    fn attach(&self, id: ModelId, at: u32) -> io::Result<()> {
        let model = self.models.get(at as usize).ok_or_else(|| Garbled(format!("there is no model {at}")))?;
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

    fn meet(&self, id: u32, address: String) {
        let Some(own) = self.own.upgrade() else { return };
        let source = Source::connect(Arc::clone(&self.transport), (id, address), self.epoch, own);
        self.sources.lock().insert(id, source);
    }

    fn part(&self, id: u32) {
        let source = self.sources.lock().remove(&id);
        source.iter().for_each(|source| source.close());
    }

    /// Takes a task, and asks for the rows that it needs.
    fn run(&self, run: Run) -> io::Result<()> {
        let pulls = {
            let mut work = self.work.lock();
            let blocks = work.attached.get(&run.model).map(|&at| self.models[at].loaded.blocks());
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
        for (tag, origin, rows) in pulls {
            if !self.pull(tag, origin, rows) {
                self.on_rows(tag, None);
            }
        }
        Ok(())
    }

    fn pull(&self, tag: u64, Origin { frontend, request, first_row }: Origin, rows: u32) -> bool {
        let source = self.sources.lock().get(&frontend).cloned();
        source.is_some_and(|source| source.send(Message::Pull { tag, request, first_row, rows }))
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
        let Some(held) = self.work.lock().tasks.end(result.id) else { return };
        if let Ok(progress) = &result.outcome {
            held.running().zip(progress).for_each(|(at, progress)| self.push(&held, at, progress));
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

    /// Sends a member's outputs to its front end, if its walk has ended.
    fn push(&self, held: &Held, at: usize, progress: &Progress) {
        if progress.ended
            && progress.failed.is_none()
            && let Some((origin, rows)) = held.origin(at)
        {
            self.send_outputs(origin, rows, Ok(progress.outputs.clone()));
        }
    }

    fn send_outputs(&self, origin: Origin, rows: u32, outputs: Result<Vec<Tensor>, String>) {
        let Origin { frontend, request, first_row } = origin;
        let source = self.sources.lock().get(&frontend).cloned();
        // Without its front end nobody waits for them.
        source.iter().for_each(|source| {
            source.send(Message::Outputs { request, first_row, rows, outputs: outputs.clone() });
        });
    }

    /// What is to become of a member with these inputs. What is wrong with them goes straight to the client.
    fn judge(&self, model: usize, (origin, rows): (Origin, u32), length: u32, inputs: Vec<Tensor>) -> Inputs {
        match self.models[model].loaded.describe(&inputs) {
            Ok((extent, _)) if extent.length == length => {
                Inputs::Here(Arc::new(Entry::new(Payload::Here(inputs.into()), extent)))
            }
            Ok((extent, _)) => {
                let cause = format!("its length is {}, and its frontend said {length}", extent.length);
                Inputs::Out(MemberEnd::Failed(cause))
            }
            Err(RequestError(cause)) => {
                self.send_outputs(origin, rows, Err(cause));
                Inputs::Out(MemberEnd::Ended)
            }
        }
    }
}

impl Receiver for Shared {
    fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>) {
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

    fn on_lost(&self, frontend: u32) {
        let mut work = self.work.lock();
        work.tasks.lose(frontend);
        for lane in 0..work.tasks.lanes() {
            self.begin(&mut work, LaneId(lane as u16));
        }
    }
}
