//! State of requests that unfold.

use super::EmulatedTask;
use ripieno_base::RequestSlot;
use ripieno_model::{Graph, Model, Steps};
use ripieno_sched::{Limits, Request, Setup};

/// Requests that unfold, by slot.
pub(super) struct Unfolded {
    /// The step at which a block that runs until its end will end.
    pub(super) output: Vec<u32>,
    /// Number of tasks that hold the request, once per node.
    pub(super) in_flight: Vec<u32>,
    /// Flags of the task that is being reported.
    ended: Vec<bool>,
    /// Remaining capacity for nodes and inputs of graphs, and the part of each request.
    room: usize,
    held: Vec<usize>,
}

impl Unfolded {
    pub(super) fn new(setup: &Setup) -> Option<Unfolded> {
        let (slots, room) = (setup.limits.requests, setup.limits.nodes);
        let ended = Vec::with_capacity(setup.limits.batch);
        let unfolds = setup.models.iter().any(|model| model.walk.is_unfolded());
        unfolds.then(|| Unfolded {
            output: vec![0; slots],
            in_flight: vec![0; slots],
            ended,
            room,
            held: vec![0; slots],
        })
    }

    pub(super) fn has_room(&self, graph: &Graph) -> bool {
        Limits::room(graph) <= self.room
    }

    pub(super) fn hold(&mut self, slot: RequestSlot, graph: &Graph) {
        let size = Limits::room(graph);
        self.room -= size;
        self.held[slot.index()] = size;
    }

    /// Frees the capacity of a request's graph.
    pub(super) fn release(&mut self, slot: RequestSlot) {
        self.room += std::mem::take(&mut self.held[slot.index()]);
    }

    /// Removes the members from an ended task and frees the slots of those that have been answered
    /// already. Returns per member whether its walk has ended in the task; empty if none has.
    pub(super) fn complete(
        &mut self,
        model: &Model,
        running: &EmulatedTask,
        live: &[Option<(u64, Request)>],
        free: &mut Vec<RequestSlot>,
    ) -> &[bool] {
        let until_end = model.blocks[running.block.index()].steps == Steps::UntilEnd;
        self.ended.clear();
        for (at, slot) in running.slots.iter().map(|slot| slot.index()).enumerate() {
            let step = running.nodes.get(at).map_or(1, |node| node + 1);
            self.ended.push(until_end && step == self.output[slot]);
            self.in_flight[slot] -= 1;
            if self.in_flight[slot] == 0 && live[slot].is_none() {
                self.release(RequestSlot(slot as u32));
                free.push(RequestSlot(slot as u32));
            }
        }
        if self.ended.contains(&true) { &self.ended } else { &[] }
    }
}
