//! The tasks in flight of a scheduler, as they were started.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::Steps;
use std::collections::HashMap;

/// All tasks in flight. Emptied lists of members and nodes are kept and used again.
pub(crate) struct TasksInFlight {
    /// Each task with the number of its start.
    tasks: HashMap<TaskId, (u64, InFlight)>,
    /// Number of tasks started.
    starts: u64,
    spare_members: Vec<Vec<RequestSlot>>,
    spare_nodes: Vec<Vec<u32>>,
}

/// A task in flight.
pub(crate) struct InFlight {
    pub(crate) model: ModelId,
    pub(crate) block: BlockId,
    pub(crate) steps: Steps,
    pub(crate) device: DeviceId,
    pub(crate) lane: LaneId,
    pub(crate) not_before: Time,
    /// Execution time on this device that the profile predicts.
    pub(crate) latency: Nanos,
    pub(crate) members: Vec<RequestSlot>,
    /// The node that each member runs; empty if every member runs its first step.
    pub(crate) nodes: Vec<u32>,
    pub(crate) rows: usize,
    /// Length to which its members are padded; 1 if requests do not differ in length.
    pub(crate) length: u32,
    pub(crate) cancelled: bool,
}

/// A task lost with its device, to be reported to the core.
pub(crate) struct LostTask {
    pub(crate) task: TaskId,
    pub(crate) members: Vec<RequestSlot>,
    pub(crate) model: ModelId,
}

impl TasksInFlight {
    /// Creates a table of at most `tasks` tasks.
    pub(crate) fn new(tasks: usize) -> TasksInFlight {
        TasksInFlight {
            tasks: HashMap::with_capacity(tasks),
            starts: 0,
            spare_members: Vec::with_capacity(tasks),
            spare_nodes: Vec::with_capacity(tasks),
        }
    }

    /// Returns lists of the members and nodes for a new task.
    pub(crate) fn lists(&mut self, members: &[RequestSlot], nodes: &[u32]) -> (Vec<RequestSlot>, Vec<u32>) {
        (filled(&mut self.spare_members, members), filled(&mut self.spare_nodes, nodes))
    }

    pub(crate) fn start(&mut self, id: TaskId, task: InFlight) {
        self.starts += 1;
        let before = self.tasks.insert(id, (self.starts, task));
        assert!(before.is_none(), "task {} is in flight already", id.0);
    }

    /// Marks a task as cancelled, and returns its device.
    pub(crate) fn cancel(&mut self, id: TaskId) -> DeviceId {
        let (_, task) = self.tasks.get_mut(&id).expect("only a task in flight can be cancelled");
        assert!(!std::mem::replace(&mut task.cancelled, true), "task {} was cancelled twice", id.0);
        task.device
    }

    /// Removes a task that a device reports as ended.
    pub(crate) fn end(&mut self, id: TaskId, from: DeviceId) -> InFlight {
        let (_, task) = self.tasks.remove(&id).expect("a device reports each task once");
        assert_eq!(task.device, from, "a device reports its own tasks");
        task
    }

    /// Whether another lane of the device has a task in flight.
    pub(crate) fn any_beside(&self, device: DeviceId, lane: LaneId) -> bool {
        self.tasks.values().any(|(_, task)| task.device == device && task.lane != lane)
    }

    /// Removes and returns the lost tasks in the order of their starts.
    pub(crate) fn take_lost(&mut self, is_lost: impl Fn(TaskId, &InFlight) -> bool) -> Vec<LostTask> {
        let mut lost: Vec<_> = self.tasks.extract_if(|&id, (_, task)| is_lost(id, task)).collect();
        lost.sort_unstable_by_key(|(_, (start, _))| *start);
        let lost = lost.into_iter();
        lost.map(|(task, (_, InFlight { members, model, .. }))| LostTask { task, members, model }).collect()
    }

    /// Stores an unused list of members.
    pub(crate) fn recycle_members(&mut self, mut members: Vec<RequestSlot>) {
        members.clear();
        self.spare_members.push(members);
    }

    /// Stores an unused list of nodes.
    pub(crate) fn recycle_nodes(&mut self, mut nodes: Vec<u32>) {
        nodes.clear();
        self.spare_nodes.push(nodes);
    }
}

fn filled<T: Copy>(spare: &mut Vec<Vec<T>>, with: &[T]) -> Vec<T> {
    let mut list = spare.pop().unwrap_or_default();
    list.extend_from_slice(with);
    list
}
