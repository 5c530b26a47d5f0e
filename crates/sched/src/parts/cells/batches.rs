//! Tasks in flight: their members, the node that each runs, and what a device holds.

use crate::Limits;
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId};

/// All tasks in flight; members stand in one slice with a fixed stride.
#[derive(Debug)]
pub(super) struct Batches {
    stride: usize,
    table: Vec<Option<Batch>>,
    free: Vec<TaskId>,
    members: Vec<RequestSlot>,
    nodes: Vec<u32>,
    /// Beside each member its subgraph, and the node's place among the graphs.
    places: Vec<(u32, u32)>,
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) model: ModelId,
    pub(super) block: BlockId,
    pub(super) device: DeviceId,
    pub(super) members: usize,
    /// Whether nodes are told to the driver.
    unfolds: bool,
}

impl Batches {
    pub(super) fn new(limits: &Limits) -> Batches {
        let (tasks, stride) = (limits.tasks(), limits.batch);
        Batches {
            stride,
            table: vec![None; tasks],
            free: (0..tasks as u32).rev().map(TaskId).collect(),
            members: vec![RequestSlot(0); tasks * stride],
            nodes: vec![0; tasks * stride],
            places: vec![(0, 0); tasks * stride],
        }
    }

    pub(super) fn open(&mut self, model: ModelId, block: BlockId, device: DeviceId, unfolds: bool) -> TaskId {
        let id = self.free.pop().expect("no more tasks than the devices hold");
        self.table[id.index()] = Some(Batch { model, block, device, members: 0, unfolds });
        id
    }

    pub(super) fn push(&mut self, id: TaskId, member: RequestSlot, node: u32, place: (u32, u32)) {
        let batch = self.table[id.index()].as_mut().expect("the task is open");
        let at = id.index() * self.stride + batch.members;
        (self.members[at], self.nodes[at], self.places[at]) = (member, node, place);
        batch.members += 1;
    }

    pub(super) fn get(&self, id: TaskId) -> Batch {
        self.table[id.index()].unwrap_or_else(|| panic!("{id:?} is not in flight"))
    }

    /// A member, the node that it runs, its subgraph and the node's place.
    pub(super) fn member(&self, id: TaskId, at: usize) -> (RequestSlot, u32, (u32, u32)) {
        let at = id.index() * self.stride + at;
        (self.members[at], self.nodes[at], self.places[at])
    }

    pub(super) fn members(&self, id: TaskId) -> &[RequestSlot] {
        let count = self.table[id.index()].map_or(0, |batch| batch.members);
        &self.members[id.index() * self.stride..][..count]
    }

    /// Empty where every member runs its first.
    pub(super) fn nodes(&self, id: TaskId) -> &[u32] {
        let count = self.table[id.index()].filter(|batch| batch.unfolds).map_or(0, |batch| batch.members);
        &self.nodes[id.index() * self.stride..][..count]
    }

    pub(super) fn close(&mut self, id: TaskId) {
        self.table[id.index()] = None;
        self.free.push(id);
    }
}
