//! What the world keeps of requests that unfold.

use super::EmulatedTask;
use ripieno_base::RequestSlot;
use ripieno_model::{Graph, Model, Steps};
use ripieno_sched::{Limits, Request, Setup};

/// Of requests that unfold, by slot.
pub(super) struct Unfolded {
    /// At which step of a block that runs until its end it ends.
    pub(super) output: Vec<u32>,
    /// In how many tasks it stands, once for each of its nodes.
    pub(super) in_flight: Vec<u32>,
    /// The flags of the task that is being reported.
    ended: Vec<bool>,
    /// Room for nodes and inputs of graphs, and what is left of it.
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

    /// Takes back the room of a request's graph.
    pub(super) fn release(&mut self, slot: RequestSlot) {
        self.room += std::mem::take(&mut self.held[slot.index()]);
    }

    /// Notes that the members of a task are in it no more, frees the slots of those that have been answered before, and
    /// says whose walk has ended in it: empty if nobody's has.
    pub(super) fn land(
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
