//! The devices and the tasks that they hold.

use crate::jobs::{JobTable, Stage};
use crate::metrics::DeviceMetrics;
use crate::{Clock, admission::ModelEntry};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_executor::{Device, Member, Task, TaskResult};
use ripieno_model::Profile;
use ripieno_sched::{Limits, Outcome};
use std::collections::HashMap;
use std::sync::Arc;

/// What a scheduler decided to start.
pub(crate) struct Start<'a> {
    pub(crate) task: TaskId,
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    pub(crate) device: DeviceId,
    pub(crate) not_before: Time,
    pub(crate) members: &'a [RequestSlot],
    /// ℓ(b) of the block.
    pub(crate) profile: &'a Profile,
}

/// The open devices, shared with the threads that load models: attaching may be slow and must not hold up others.
pub(crate) type Devices = Arc<[Box<dyn Device>]>;

/// Dispatches tasks and takes in their results.
pub(crate) struct Fleet {
    clock: Clock,
    devices: Devices,
    metrics: Arc<[DeviceMetrics]>,
    flying: HashMap<TaskId, Flying>,
    /// Member lists of ended tasks, to be filled again.
    spare: Vec<Vec<RequestSlot>>,
    /// Per member of the task that ended last, whether its walk ended.
    ended: Vec<bool>,
}

struct Flying {
    model: ModelId,
    device: DeviceId,
    /// When it ends if it takes as long as its profile says.
    expected: Time,
    members: Vec<RequestSlot>,
    rows: usize,
    cancelled: bool,
}

/// A task that has ended, as the core is to be told.
pub(crate) struct Landed {
    pub(crate) task: TaskId,
    pub(crate) outcome: Outcome,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
    pub(crate) expected: Time,
}

impl Fleet {
    pub(crate) fn new(clock: Clock, devices: Devices, metrics: Arc<[DeviceMetrics]>, limits: &Limits) -> Fleet {
        Fleet {
            clock,
            devices,
            metrics,
            flying: HashMap::with_capacity(limits.tasks()),
            spare: Vec::with_capacity(limits.tasks()),
            ended: Vec::with_capacity(limits.batch),
        }
    }

    pub(crate) fn detach(&self, id: ModelId) {
        self.devices.iter().for_each(|device| device.detach(id));
    }

    /// Sends a batch to its device.
    pub(crate) fn start(&mut self, start: &Start<'_>, jobs: &mut JobTable) {
        let first = start.block == BlockId(0);
        let members: Vec<Member> = start.members.iter().map(|&slot| board(slot, first, jobs)).collect();
        let rows = members.iter().map(|member| member.rows).sum();
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(start.members);
        let expected = start.not_before + start.profile.latency(rows);
        let flying =
            Flying { model: start.model, device: start.device, expected, members: kept, rows, cancelled: false };
        let before = self.flying.insert(start.task, flying);
        assert!(before.is_none(), "task {} is in flight already", start.task.0);
        let not_before = self.clock.instant(start.not_before);
        let task = Task { id: start.task, model: start.model, block: start.block, members, not_before };
        let accepted = self.devices[start.device.index()].submit(task).is_ok();
        assert!(accepted, "a policy gave device {} more tasks than its depth", start.device.0);
    }

    /// Asks the device to stop a task, whose result is then discarded, whatever it is. A device that cannot stop reports
    /// the task when it is done.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        let flying = self.flying.get_mut(&id).expect("only a task in flight can be cancelled");
        assert!(!std::mem::replace(&mut flying.cancelled, true), "task {} was cancelled twice", id.0);
        self.devices[flying.device.index()].cancel(id);
    }

    /// Takes in a result: outputs or error go to the members, times to the metrics.
    pub(crate) fn land(&mut self, result: TaskResult, jobs: &mut JobTable) -> Landed {
        let flying = self.flying.remove(&result.id);
        let Flying { model, device, expected, members, rows, cancelled } =
            flying.expect("a device reports each task once");
        let (started, finished) = (self.clock.time(result.started), self.clock.time(result.finished));
        let times = Times { started, execution: finished - started, rows };
        self.metrics[device.index()].on_batch(times.execution);
        self.ended.clear();
        if cancelled {
            members.iter().for_each(|&slot| jobs.part(slot).stage = Stage::Between);
            return Landed { task: result.id, outcome: Outcome::Cancelled, members, model, expected };
        }
        let (_, call, _) = jobs.owner(members[0]);
        call.model.metrics.on_batch(rows, times.execution);
        let outcome = match result.outcome {
            Ok(progress) if progress.len() == members.len() => {
                for (&slot, progress) in members.iter().zip(progress) {
                    self.ended.push(progress.ended);
                    alight(slot, &times, progress.ended.then_some(Ok(progress.outputs)), jobs);
                }
                Outcome::Ok
            }
            other => {
                let miscounted = |n| format!("the engine reported {n} results for {} requests", members.len());
                let text = other.map_or_else(|error| error.to_string(), |progress| miscounted(progress.len()));
                members.iter().for_each(|&slot| alight(slot, &times, Some(Err(text.clone())), jobs));
                Outcome::Failed
            }
        };
        Landed { task: result.id, outcome, members, model, expected }
    }

    /// Per member of the task that landed last, whether its walk ended; empty if none did.
    pub(crate) fn ended(&self) -> &[bool] {
        if self.ended.contains(&true) { &self.ended } else { &[] }
    }

    /// Gives back a member list.
    pub(crate) fn recycle(&mut self, mut members: Vec<RequestSlot>) {
        members.clear();
        self.spare.push(members);
    }
}

/// When a task ran and how large it was.
struct Times {
    started: Time,
    execution: Nanos,
    rows: usize,
}

/// The member of a task for the part in `slot`.
fn board(slot: RequestSlot, first: bool, jobs: &mut JobTable) -> Member {
    let (_, call, part) = jobs.owner(slot);
    let part = &mut call.parts[part];
    assert!(
        matches!(part.stage, Stage::Waiting | Stage::Between),
        "a policy started a request that is {:?}",
        part.stage
    );
    if part.stage == Stage::Waiting {
        stop_waiting(&call.model);
    }
    part.stage = Stage::Running;
    Member { slot, rows: part.rows, inputs: first.then(|| Arc::clone(&part.inputs)) }
}

/// One part waits no longer.
pub(crate) fn stop_waiting(model: &ModelEntry) {
    model.metrics.waiting.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
}

/// Notes what a task did for the part in `slot`.
fn alight(
    slot: RequestSlot,
    times: &Times,
    result: Option<Result<Vec<ripieno_executor::Tensor>, String>>,
    jobs: &mut JobTable,
) {
    let (_, call, part) = jobs.owner(slot);
    let part = &mut call.parts[part];
    part.stage = Stage::Between;
    part.executed += times.execution;
    part.batch = times.rows;
    if part.started.is_none() {
        part.started = Some(times.started);
        call.model.metrics.on_first_start(times.started - call.arrived, call.deadline - times.started);
    }
    if matches!(result, Some(Ok(_))) {
        call.done += 1;
    }
    part.result = result;
}
