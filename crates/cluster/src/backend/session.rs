//! A session of a backend under one claim: applies the scheduler's orders and reports the ends of
//! tasks.
//!
//! The device's threads end tasks, and threads of frontends deliver rows. They share one table of
//! tasks under one lock; tasks are submitted to the device with the lock held, so that lanes run in
//! the order of the table. Outputs go to the frontends before the scheduler learns of the end. Once
//! the session is over it starts nothing; running tasks run to their end.

use super::Backend;
use super::models::AttachedModel;
use super::tasks::{HeldTask, MemberInputs, NextTask, SessionTasks};
use crate::handover::{ProcessId, RequestId, RunningRows as HeldRows, Stamp};
use crate::plane::{DecodeError, MemberEnd, Message, PeerLink, RunMember, RunTask, TaskEnd};
use parking_lot::Mutex;
use ripieno_base::{LaneId, ModelId, TaskId};
use ripieno_executor::{
    Device, ExecError, LoadedModel, Loss, MemberProgress, Payload, RemoteRows, RequestEntry, RequestError, Sink,
    TaskResult, Tensor,
};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The part of a backend that all its sessions share.
pub(super) trait SessionHost: Send + Sync {
    fn backend(&self) -> &Backend;

    /// Sends pulls to a frontend; returns false if that is not possible.
    fn pull(&self, frontend: u32, pulls: Vec<Message>) -> bool;

    /// Sends outputs to a frontend; without it, no client waits for them.
    fn push(&self, frontend: u32, outputs: Vec<Message>);

    /// Reports the end of a task of an earlier session; `failed` rows have to run again.
    fn on_earlier_end(&self, failed: &[HeldRows]);
}

/// A session of a scheduler.
pub(super) struct SchedulerSession {
    own: Weak<SchedulerSession>,
    sessions: Weak<dyn SessionHost>,
    /// The claim, and its scheduler.
    claim: (Stamp, ProcessId),
    pub(super) link: Arc<PeerLink>,
    work: Mutex<DeviceWork>,
}

/// The device and its tasks.
struct DeviceWork {
    device: Option<Arc<dyn Device>>,
    /// The model of each id.
    attached: HashMap<ModelId, AttachedModel>,
    tasks: SessionTasks,
    /// Time for which a task waits for its inputs; `None`: without a limit.
    inputs_within: Option<Duration>,
    /// True once a later claim is accepted.
    over: bool,
}

impl SchedulerSession {
    /// Returns the session of this number, under this claim.
    pub(super) fn new(
        sessions: Weak<dyn SessionHost>,
        claim: (Stamp, ProcessId),
        number: u64,
        link: Arc<PeerLink>,
    ) -> Arc<SchedulerSession> {
        // Numbers of pulls must differ from the numbers of every other session.
        let slots = sessions.upgrade().map(|sessions| sessions.backend().models.slots()).unwrap_or_default();
        let tasks = SessionTasks::new(0, number << 40, slots);
        let work = DeviceWork { device: None, attached: HashMap::new(), tasks, inputs_within: None, over: false };
        Arc::new_cyclic(|own| SchedulerSession { own: own.clone(), sessions, claim, link, work: Mutex::new(work) })
    }

    /// Applies an order of the scheduler.
    pub(super) fn apply(&self, order: Message) -> io::Result<()> {
        match order {
            Message::OpenDevice(lanes, wait_ns) => self.open(lanes, wait_ns)?,
            Message::Attach(id, at) => self.attach(id, at)?,
            Message::Detach(id) => self.detach(id),
            Message::RunTask(run) => self.run(run)?,
            Message::CancelTask(task) => self.cancel(task),
            other => return Err(DecodeError(format!("a scheduler does not say {other:?}")).into()),
        }
        Ok(())
    }

    /// Returns true once a later claim is accepted.
    pub(super) fn is_over(&self) -> bool {
        self.work.lock().over
    }

    /// Ends the session because of a later claim: no further task starts.
    pub(super) fn end(&self) {
        let mut work = self.work.lock();
        work.over = true;
        work.tasks.discard_waiting();
    }

    /// Returns the running rows, by request.
    pub(super) fn running(&self) -> Vec<(RequestId, u32)> {
        let work = self.work.lock();
        let held = work.tasks.all().flat_map(|held| held.running().filter_map(|at| held.origin(at)));
        held.map(|(origin, rows)| (request_of(origin), rows)).collect()
    }

    /// Closes the device, and waits for its running tasks.
    pub(super) fn close(&self) {
        let device = self.work.lock().device.take();
        drop(device);
        let attached = std::mem::take(&mut self.work.lock().attached);
        drop(attached);
    }

    /// Calls back for an accepted order: the claim, or a task under it.
    pub(super) fn notify_order(&self, claim: bool) {
        let sessions = self.sessions.upgrade();
        let on_order = sessions.as_ref().and_then(|sessions| sessions.backend().on_order.as_ref());
        if let Some(on_order) = on_order {
            on_order(self.claim.0, self.claim.1, claim);
        }
    }

    fn open(&self, lanes: u32, wait_ns: u64) -> io::Result<()> {
        let own = self.own.clone();
        let sink: Sink = Arc::new(move |result| {
            if let Some(own) = own.upgrade() {
                own.on_end(&result);
            }
        });
        let sessions = self.sessions()?;
        let lanes = usize::try_from(lanes).ok().filter(|lanes| (1..=1024).contains(lanes));
        let lanes = lanes.ok_or_else(|| DecodeError("a device of no lanes, or too many".to_owned()))?;
        let device =
            sessions.backend().executor.open(lanes, sink).map_err(|error| io::Error::other(error.to_string()))?;
        let mut work = self.work.lock();
        if work.device.is_some() {
            return Err(DecodeError("a backend is one device".to_owned()).into());
        }
        let device: Arc<dyn Device> = device.into();
        sessions.backend().usage.on_open(&device);
        work.device = Some(device);
        work.inputs_within = Some(Duration::from_nanos(wait_ns)).filter(|within| !within.is_zero());
        work.tasks.open(lanes);
        Ok(())
    }

    fn attach(&self, id: ModelId, number: u32) -> io::Result<()> {
        let sessions = self.sessions()?;
        let model = sessions.backend().models.attach(number);
        let model = model.ok_or_else(|| DecodeError(format!("there is no model {number}")))?;
        let device = self.work.lock().device.clone();
        // Attaching may be slow, so the lock is not held.
        if let Some(device) = device {
            device.attach(id, Arc::clone(&model.loaded));
        }
        let earlier = self.work.lock().attached.insert(id, model);
        drop(earlier);
        Ok(())
    }

    fn detach(&self, id: ModelId) {
        let mut work = self.work.lock();
        let model = work.attached.remove(&id);
        if let Some(device) = work.device.as_ref().filter(|_| model.is_some()) {
            device.detach(id);
        }
        // It may be the last use of the model, which takes a while to free.
        drop(work);
        drop(model);
    }

    /// Inserts a task, and pulls the rows that it needs.
    fn run(&self, run: RunTask) -> io::Result<()> {
        let sessions = self.sessions()?;
        let (task, lane) = (run.task, run.lane);
        let pulls: Vec<_> = {
            let mut work = self.work.lock();
            if work.over {
                return Ok(());
            }
            let blocks = work.attached.get(&run.model).map(|model| model.loaded.blocks());
            let origins: Vec<_> = run.members.iter().map(|member| (member.origin, member.rows)).collect();
            if blocks.is_none_or(|blocks| run.block.index() >= blocks) || !work.tasks.insert(run) {
                return Err(DecodeError(format!("task {} is none of this device", task.0)).into());
            }
            let brought = origins.into_iter().enumerate();
            let brought = brought.filter_map(|(at, (origin, rows))| Some((at, origin?, rows)));
            let tagged = brought.filter_map(|(at, origin, rows)| Some((work.tasks.add_pull(task, at)?, origin, rows)));
            tagged.collect()
        };
        self.notify_order(false);
        let mut by_frontend = ByFrontend::default();
        for (tag, RemoteRows { frontend, request, first_row }, rows) in pulls {
            let of_frontend = by_frontend.of(frontend);
            of_frontend.tags.push(tag);
            of_frontend.messages.push(Message::Pull { tag, request, first_row, rows });
        }
        for FrontendMessages { frontend, tags, messages } in by_frontend.0 {
            if !sessions.pull(frontend, messages) {
                tags.into_iter().for_each(|tag| self.on_rows(tag, None));
            }
        }
        // Whether or not rows are pulled, the task may wait for none of them.
        self.submit_ready(&mut self.work.lock(), lane);
        Ok(())
    }

    fn sessions(&self) -> io::Result<Arc<dyn SessionHost>> {
        self.sessions.upgrade().ok_or_else(|| io::Error::other("the backend has ended"))
    }

    fn cancel(&self, task: TaskId) {
        let mut work = self.work.lock();
        if let Some(held) = work.tasks.withdraw(task) {
            let cause = Err("it was stopped before it began".to_owned());
            self.send_end(end_without_run(&held, cause));
            // Those behind it may have waited for its rows alone.
            return self.submit_ready(&mut work, held.run.lane);
        }
        if let Some(device) = &work.device {
            device.cancel(task);
        }
    }

    /// Submits the tasks of all lanes that may start.
    fn submit_all_ready(&self, work: &mut DeviceWork) {
        for lane in 0..work.tasks.lanes() {
            self.submit_ready(work, LaneId(lane as u16));
        }
    }

    /// Submits the tasks of a lane that may start.
    fn submit_ready(&self, work: &mut DeviceWork, lane: LaneId) {
        // Without a device, the session ends, and the scheduler learns that with its tasks.
        let Some(device) = work.device.clone() else { return };
        while let Some(ready) = work.tasks.next(lane) {
            match ready {
                NextTask::Submit(task) => {
                    if let Err(task) = device.submit(task) {
                        work.tasks.refuse(task.id, "the device holds as many tasks as it can");
                    }
                }
                NextTask::Empty(task) => {
                    let held = work.tasks.remove(task);
                    held.iter().for_each(|held| self.send_end(end_without_run(held, Ok(held.ends(&[])))));
                }
            }
        }
    }

    fn send_end(&self, ended: TaskEnd) {
        self.link.send(&Message::TaskEnd(ended));
    }

    /// Handles the end of a task on the device.
    fn on_end(&self, result: &TaskResult) {
        let mut work = self.work.lock();
        let Some(held) = work.tasks.remove(result.id) else { return };
        let over = work.over;
        drop(work);
        let Some(sessions) = self.sessions.upgrade() else { return };
        let took_ns = nanos(result.finished.saturating_duration_since(result.started));
        sessions.backend().usage.on_batch(took_ns);
        if let Ok(progress) = &result.outcome {
            push_outputs(&*sessions, &held, progress);
        }
        if over {
            return sessions.on_earlier_end(&failed(&held, result));
        }
        if let Some(again) = &result.rerun {
            tracing::debug!(runs = again.runs, cause = %again.cause, "a batch failed and was run again in parts");
        }
        self.send_end(TaskEnd {
            task: result.id,
            ago_ns: nanos(result.finished.elapsed()),
            took_ns,
            // At least 1, since 0 stands for an unknown time.
            held_ns: nanos(held.until(result.started)).max(1),
            // All of it may happen while another batch computes.
            fetched_ns: held.fetched.map_or(0, |fetched| nanos(held.until(fetched) + result.host_time)),
            reruns: result.rerun.as_ref().map_or(0, |again| again.runs),
            lost: result.lost.map(|Loss { retry_after, inside }| (nanos(retry_after), inside)),
            members: match &result.outcome {
                Ok(progress) => Ok(held.ends(progress)),
                Err(ExecError(cause)) => Err(cause.clone()),
            },
        });
        let (lane, mut work) = (held.run.lane, self.work.lock());
        work.tasks.end_sent(lane);
        self.submit_ready(&mut work, lane);
    }

    /// Checks a member's inputs. Invalid values are answered to the client directly.
    fn check_inputs(
        &self,
        model: &dyn LoadedModel,
        (origin, member): (RemoteRows, RunMember),
        (inputs, took): (Vec<Tensor>, Duration),
    ) -> MemberInputs {
        let Some(sessions) = self.sessions.upgrade() else { return MemberInputs::lost() };
        let RunMember { rows, length, stream, .. } = member;
        match model.describe(&inputs) {
            Ok((extent, graph)) if extent.length == length => {
                let entry = RequestEntry::new(Payload::Here(inputs.into()), extent);
                let entry = RequestEntry { graph: graph.map(Arc::new), stream, ..entry };
                MemberInputs::Here(Arc::new(entry), took)
            }
            Ok((extent, _)) => {
                let cause = format!("its length is {}, and its frontend said {length}", extent.length);
                MemberInputs::Excluded(MemberEnd::Failed(cause))
            }
            // Its walk would go on without it, so the scheduler must know.
            Err(RequestError(cause)) if model.walk_shape().is_some() => {
                MemberInputs::Excluded(MemberEnd::Refused(cause))
            }
            Err(RequestError(cause)) => {
                sessions.push(origin.frontend, vec![outputs_of(origin, rows, Some(took), Err(cause))]);
                MemberInputs::Excluded(MemberEnd::Ended)
            }
        }
    }

    /// Gives up the inputs that were waited for too long. Returns the time for which a task waits.
    pub(super) fn give_up_inputs(&self, now: Instant) -> Option<Duration> {
        let mut work = self.work.lock();
        let within = work.inputs_within?;
        let overdue = work.tasks.exclude_overdue(now);
        let silent = work.tasks.give_up_inputs(now, within);
        if overdue || !silent.is_empty() {
            self.submit_all_ready(&mut work);
        }
        drop(work);
        for frontend in silent {
            let ms = within.as_millis();
            tracing::warn!(
                frontend,
                "a frontend has not sent inputs within {ms} ms; until it sends them, its requests are left out"
            );
        }
        Some(within)
    }

    pub(super) fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>) {
        let mut work = self.work.lock();
        let Some((task, member)) = work.tasks.take_pull(tag) else { return };
        let Some(held) = work.tasks.get(task) else { return };
        let (lane, of_member, brought) = (held.run.lane, held.run.members[member], held.origin(member));
        let took = held.until(Instant::now());
        let model = work.attached.get(&held.run.model).map(|model| Arc::clone(&model.loaded));
        drop(work);
        let inputs = match (inputs, model, brought) {
            (Some(inputs), Some(model), Some((origin, _))) => {
                self.check_inputs(&*model, (origin, of_member), (inputs, took))
            }
            _ => MemberInputs::lost(),
        };
        work = self.work.lock();
        work.tasks.set_inputs(task, member, inputs);
        self.submit_ready(&mut work, lane);
    }

    pub(super) fn on_lost(&self, frontend: u32) {
        let mut work = self.work.lock();
        work.tasks.on_frontend_lost(frontend);
        self.submit_all_ready(&mut work);
    }
}

/// Returns the end of a task that does not run.
fn end_without_run(held: &HeldTask, members: Result<Vec<MemberEnd>, String>) -> TaskEnd {
    // At least 1, since 0 stands for an unknown time.
    let held_ns = nanos(held.until(Instant::now())).max(1);
    TaskEnd { held_ns, ..TaskEnd::without_run(held.run.task, members) }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn request_of(origin: RemoteRows) -> RequestId {
    RequestId { frontend: ProcessId(u64::from(origin.frontend)), number: origin.request }
}

/// Sends the members' steps to their frontends, and the outputs of those whose walks have ended.
fn push_outputs(sessions: &dyn SessionHost, held: &HeldTask, progress: &[MemberProgress]) {
    let mut by_frontend = ByFrontend::default();
    for (at, progress) in held.running().zip(progress) {
        let Some((origin, rows)) = held.origin(at) else { continue };
        let messages = &mut by_frontend.of(origin.frontend).messages;
        if !progress.step.is_empty() {
            let (last, outputs) = (progress.ended, progress.step.clone());
            messages.push(Message::Step { request: origin.request, last, outputs });
        }
        if has_outputs(progress) {
            messages.push(outputs_of(origin, rows, held.pulled(at), Ok(progress.outputs.clone())));
        }
    }
    by_frontend.0.into_iter().for_each(|of_frontend| sessions.push(of_frontend.frontend, of_frontend.messages));
}

fn outputs_of(
    origin: RemoteRows,
    rows: u32,
    pulled: Option<Duration>,
    outputs: Result<Vec<Tensor>, String>,
) -> Message {
    let RemoteRows { request, first_row, .. } = origin;
    let pulled_us = pulled.map_or(0, |pulled| u32::try_from(pulled.as_micros()).unwrap_or(u32::MAX));
    Message::Outputs { request, first_row, rows, pulled_us, outputs }
}

/// Messages of a task to its frontends, of which there are few.
#[derive(Default)]
struct ByFrontend(Vec<FrontendMessages>);

struct FrontendMessages {
    frontend: u32,
    /// Numbers of the pulls among the messages.
    tags: Vec<u64>,
    messages: Vec<Message>,
}

impl ByFrontend {
    fn of(&mut self, frontend: u32) -> &mut FrontendMessages {
        let at = self.0.iter().position(|other| other.frontend == frontend).unwrap_or_else(|| {
            self.0.push(FrontendMessages { frontend, tags: Vec::new(), messages: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// Returns true if a member's walk has ended well. A block that runs until its end also ends, but
/// without outputs if others follow.
fn has_outputs(progress: &MemberProgress) -> bool {
    progress.ended && progress.failed.is_none() && !progress.outputs.is_empty()
}

/// Returns the rows of a task that ran and failed.
fn failed(held: &HeldTask, result: &TaskResult) -> Vec<HeldRows> {
    let well = |nth: usize| {
        let progress = result.outcome.as_ref().ok().and_then(|all| all.get(nth));
        progress.is_some_and(has_outputs)
    };
    let ran = held.running().enumerate().filter(|(nth, _)| !well(*nth)).filter_map(|(_, at)| held.origin(at));
    ran.map(|(origin, rows)| HeldRows { request: request_of(origin), rows, failed: true }).collect()
}
