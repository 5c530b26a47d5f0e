//! The table of tasks in flight and their members.

use crate::{Limits, Outcome, TaskDone};
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId};

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    pub(crate) device: DeviceId,
    members: u32,
}

/// All tasks in flight, with room for as many as the devices hold; members stand in one slice with a fixed stride.
#[derive(Debug)]
pub(crate) struct Tasks {
    stride: usize,
    table: Vec<Option<Task>>,
    free: Vec<TaskId>,
    members: Vec<RequestSlot>,
    ended: Vec<bool>,
    /// Tasks reported done since the last settle.
    done: Vec<(TaskId, Outcome)>,
}

impl Tasks {
    pub(crate) fn new(limits: &Limits) -> Tasks {
        let tasks = limits.tasks();
        Tasks {
            stride: limits.batch,
            table: vec![None; tasks],
            free: (0..tasks as u32).rev().map(TaskId).collect(),
            members: vec![RequestSlot(0); tasks * limits.batch],
            ended: vec![false; tasks * limits.batch],
            done: Vec::with_capacity(tasks),
        }
    }

    /// Opens a task without members.
    pub(crate) fn open(&mut self, model: ModelId, device: DeviceId) -> TaskId {
        let id = self.free.pop().expect("no more tasks than the devices hold");
        self.table[id.index()] = Some(Task { model, block: BlockId(0), device, members: 0 });
        id
    }

    pub(crate) fn push(&mut self, id: TaskId, member: RequestSlot) {
        let start = id.index() * self.stride;
        let task = self.table[id.index()].as_mut().expect("the task is open");
        self.members[start + task.members as usize] = member;
        task.members += 1;
    }

    pub(crate) fn get(&self, id: TaskId) -> Task {
        self.table[id.index()].expect("the task is open")
    }

    pub(crate) fn members(&self, id: TaskId) -> &[RequestSlot] {
        let len = self.table[id.index()].map_or(0, |task| task.members as usize);
        &self.members[id.index() * self.stride..][..len]
    }

    /// Notes that the driver reported a task done; it is acted upon in the next settle.
    pub(crate) fn report(&mut self, done: &TaskDone<'_>) {
        let members = self.members(done.task).len();
        assert!(members > 0, "the driver reported a task that is not in flight: {done:?}");
        assert!(done.ended.is_empty() || done.ended.len() == members, "one flag a member: {done:?}");
        let ended = &mut self.ended[done.task.index() * self.stride..][..members];
        ended.fill(false);
        ended[..done.ended.len()].copy_from_slice(done.ended);
        self.done.push((done.task, done.outcome));
    }

    /// The next reported task, in the order of the reports.
    pub(crate) fn take_done(&mut self, at: usize) -> Option<(TaskId, Outcome)> {
        let next = self.done.get(at).copied();
        if next.is_none() {
            self.done.clear();
        }
        next
    }

    /// Moves on to the next block with the members whose walk goes on; `gone` is told of the others.
    pub(crate) fn advance(&mut self, id: TaskId, last: bool, mut gone: impl FnMut(RequestSlot)) -> usize {
        let start = id.index() * self.stride;
        let task = self.table[id.index()].as_mut().expect("the task is open");
        let mut kept = 0;
        for at in 0..task.members as usize {
            let member = self.members[start + at];
            if last || self.ended[start + at] {
                gone(member);
            } else {
                self.members[start + kept] = member;
                kept += 1;
            }
        }
        (task.members, task.block) = (kept as u32, BlockId(task.block.0 + 1));
        kept
    }

    pub(crate) fn close(&mut self, id: TaskId) {
        self.table[id.index()] = None;
        self.free.push(id);
    }
}
