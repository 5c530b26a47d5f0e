//! The table of tasks in flight and their members.

use crate::{Action, Limits};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The model.
    pub model: ModelId,
    /// The block that runs.
    pub block: BlockId,
    /// The device.
    pub device: DeviceId,
    /// The lane of the device.
    pub lane: LaneId,
    /// Padded length of the members.
    pub length: u32,
    /// Number of members.
    members: u32,
    /// True if the members have nodes.
    unfolds: bool,
}

/// All tasks in flight, with capacity for as many as the devices hold. The members of a task are
/// one slice with a fixed stride.
#[derive(Debug)]
pub struct Tasks {
    /// Length of a task's part of `members`.
    stride: usize,
    /// Tasks by id; `None` for a free id.
    table: Vec<Option<Task>>,
    /// Free ids, if any device may have any of them.
    free: Vec<TaskId>,
    /// Number of ids of each device, if devices have their own.
    a_device: Option<usize>,
    /// Members of all tasks, each task's at a fixed offset.
    members: Vec<RequestSlot>,
    /// The node that each member runs, at the front of its task's part; unused where all run their
    /// first step.
    nodes: Vec<u32>,
}

impl Tasks {
    /// Creates a table without tasks.
    pub fn new(limits: &Limits) -> Tasks {
        let tasks = limits.tasks();
        Tasks {
            stride: limits.batch,
            table: vec![None; tasks],
            free: (0..tasks as u32).rev().map(TaskId).collect(),
            a_device: None,
            members: vec![RequestSlot(0); tasks * limits.batch],
            nodes: vec![0; tasks * limits.batch],
        }
    }

    /// Creates a table without tasks in which each device has its own ids, `a_device` of them. A
    /// task takes the device's first free one.
    pub fn by_device(limits: &Limits, a_device: usize) -> Tasks {
        Tasks { free: Vec::new(), a_device: Some(a_device), ..Tasks::new(limits) }
    }

    /// Opens a task without members.
    pub fn open(&mut self, model: ModelId, block: BlockId, device: DeviceId, lane: LaneId) -> TaskId {
        let of_device = |ids: usize| (device.index() * ids..(device.index() + 1) * ids).map(|id| TaskId(id as u32));
        let free = match self.a_device {
            None => self.free.pop(),
            Some(ids) => of_device(ids).find(|id| self.table[id.index()].is_none()),
        };
        let id = free.expect("no more tasks than the devices hold");
        self.table[id.index()] = Some(Task { model, block, device, lane, length: 1, members: 0, unfolds: false });
        id
    }

    /// Returns the start of a task.
    pub fn start(&self, id: TaskId, not_before: Time) -> Action {
        let Task { model, block, device, lane, length, .. } = self.get(id);
        Action::Start { task: id, model, block, device, lane, length, not_before }
    }

    /// Adds a member of this length: its own before the first block, its padded one later.
    pub fn push(&mut self, id: TaskId, member: RequestSlot, length: u32) {
        let start = id.index() * self.stride;
        let task = self.table[id.index()].as_mut().expect("the task is open");
        self.members[start + task.members as usize] = member;
        task.members += 1;
        task.length = task.length.max(length);
    }

    /// Adds a member of a walk that unfolds, which runs this node.
    pub fn push_node(&mut self, id: TaskId, member: RequestSlot, node: u32) {
        self.push(id, member, 1);
        let task = self.table[id.index()].as_mut().expect("the task is open");
        task.unfolds = true;
        self.nodes[id.index() * self.stride + task.members as usize - 1] = node;
    }

    /// Returns a task, which must be open.
    pub fn get(&self, id: TaskId) -> Task {
        self.table[id.index()].unwrap_or_else(|| panic!("{id:?} is not in flight"))
    }

    /// Returns the node that each member runs; empty if each runs its first.
    pub fn nodes(&self, id: TaskId) -> &[u32] {
        let len = self.table[id.index()].filter(|task| task.unfolds).map_or(0, |task| task.members as usize);
        &self.nodes[id.index() * self.stride..][..len]
    }

    /// Returns the members of a task, in batch order.
    pub fn members(&self, id: TaskId) -> &[RequestSlot] {
        let len = self.table[id.index()].map_or(0, |task| task.members as usize);
        &self.members[id.index() * self.stride..][..len]
    }

    /// Moves a task to another block without its members; it stays as it was padded.
    pub fn restart(&mut self, id: TaskId, block: BlockId) {
        let task = self.table[id.index()].as_mut().expect("the task is open");
        (task.block, task.members) = (block, 0);
    }

    /// Closes a task; its id may be used again.
    pub fn close(&mut self, id: TaskId) {
        self.table[id.index()] = None;
        if self.a_device.is_none() {
            self.free.push(id);
        }
    }
}
