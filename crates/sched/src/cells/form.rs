//! Tasks: selection of ready nodes, and the state changes on submission and on completion.

use super::{CellRequestState, Cells, Groups, Walker};
use crate::estimate::cost;
use crate::{Outbox, TaskDone};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, TaskId, Time};

impl<G: Groups> Cells<G> {
    /// "Batch" of Algorithm 1: submits up to `most` tasks of one cell type to an idle device, which
    /// begin at `start` or later. Each of them may take what the previous one makes ready. After
    /// the first, only tasks of at least the smallest supported batch are submitted.
    pub fn batch(
        &mut self,
        start: Time,
        (model, block): (ModelId, BlockId),
        device: DeviceId,
        most: usize,
        out: &mut Outbox,
    ) {
        self.choices += 1;
        let choices = self.choices;
        self.served_mut(model).cells[block.index()].chosen = choices;
        for tasks in 0..most {
            let cell = &self.served(model).cells[block.index()];
            let size = cell.ready(device).min(cell.max);
            if size == 0 || (tasks > 0 && size < cell.min) {
                break;
            }
            let task = self.submit(model, block, device);
            out.push(self.tasks.start(task, start));
        }
    }

    /// "FormBatchedTask" and "SubmitBatchedTask".
    fn submit(&mut self, model: ModelId, block: BlockId, device: DeviceId) -> TaskId {
        let task = self.tasks.open(model, block, device, LaneId(0));
        self.fill(task, model, block, device);
        self.pad(task);
        G::filled(self, task);
        for at in 0..self.tasks.members(task).len() {
            self.advance_node(task, at);
        }
        self.served_mut(model).cells[block.index()].running += 1;
        self.served_mut(model).hold(device);
        self.devices[device].held += 1;
        task
    }

    /// Takes ready nodes from the front of the queue, of subgraphs that are pinned to no other
    /// device.
    fn fill(&mut self, task: TaskId, model: ModelId, block: BlockId, device: DeviceId) {
        let cell = &self.served(model).cells[block.index()];
        let (max, mut next) = (cell.max, cell.queue.front());
        let pads = self.served(model).pads;
        let (mut rows, mut length) = (0, 0);
        while let Some(id) = next.filter(|_| rows < max && self.served(model).cells[block.index()].ready(device) > 0) {
            next = self.subgraphs.links.next(id);
            if !self.served(model).cells[block.index()].may_take(self.subgraphs.at(id).pinned, device) {
                continue;
            }
            if pads {
                let Some(padded) = self.padded_with(id, rows, length) else {
                    continue;
                };
                length = padded;
            }
            while rows < max && self.subgraphs.at(id).ready > 0 {
                let more = self.walkers[self.subgraphs.at(id).slot.index()].request.rows as usize;
                if rows > 0 && rows + more > max {
                    // A request at the front is not overtaken.
                    return;
                }
                self.take(task, id, more as u32, device);
                rows += more;
            }
        }
    }

    /// Returns the padded length of a batch of `rows` rows, padded to `length`, with one more
    /// request; `None` if they do not match. In a first block they match if one batch ends the walk
    /// sooner than two. In later blocks they match only if both have the same padded length, since
    /// data between blocks cannot be padded.
    fn padded_with(&self, id: u32, rows: usize, length: u32) -> Option<u32> {
        let subgraph = self.subgraphs.at(id);
        let Walker { request, length: own, .. } = self.walkers[subgraph.slot.index()];
        if subgraph.block != BlockId(0) {
            return (rows == 0 || own == length).then_some(own);
        }
        let more = request.rows as usize;
        if rows == 0 {
            return Some(own);
        }
        let served = self.served(request.model);
        let cost = |rows: usize, length: u32| cost::of_blocks(&served.model, subgraph.block, rows, length);
        let separate = cost(rows, length) + cost(more, own);
        let longest = length.max(own);
        (rows + more <= served.cells[0].max && cost(rows + more, longest) <= separate).then_some(longest)
    }

    /// Pads the members of a first task to the longest of them, for the rest of their walk.
    fn pad(&mut self, task: TaskId) {
        let Cells { tasks, walkers, .. } = self;
        let length = tasks.get(task).length;
        if length > 1 {
            tasks.members(task).iter().for_each(|slot| walkers[slot.index()].length = length);
        }
    }

    /// Moves one ready node into a task.
    fn take(&mut self, task: TaskId, id: u32, rows: u32, device: DeviceId) {
        self.pin(id, Some(device));
        let subgraph = self.subgraphs.at_mut(id);
        let (slot, block) = (subgraph.slot, subgraph.block);
        let (node, place) = match subgraph.is_graph {
            false => (subgraph.submitted, 0),
            true => {
                let place = subgraph.first_ready;
                let node = *self.graphs.node(place);
                subgraph.first_ready = node.next_ready;
                if subgraph.first_ready == super::subgraphs::NONE {
                    subgraph.last_ready = super::subgraphs::NONE;
                }
                (node.number, place)
            }
        };
        subgraph.submitted += 1;
        subgraph.in_flight += 1;
        subgraph.ready -= rows;
        self.places[task.index() * self.stride + self.tasks.members(task).len()] = (id, place);
        let walker = &mut self.walkers[slot.index()];
        walker.in_flight += 1;
        if walker.state == CellRequestState::Waiting {
            walker.state = CellRequestState::Running;
            self.timers.disarm(slot);
            self.models.get_mut(walker.request.model).own.waiting -= 1;
        }
        let (model, length) = (walker.request.model, walker.length);
        let served = self.models.get_mut(model);
        let (unfolds, pinned) = (served.model.walk.is_unfolded(), served.model.pinned);
        *served.cells[block.index()].count(Some(device)) -= rows;
        if !unfolds {
            self.tasks.push(task, slot, length);
            if self.walker(slot).held_by.replace(device).is_none() {
                self.devices[device].walks += 1;
            }
            return;
        }
        self.tasks.push_node(task, slot, node);
        if pinned && self.walkers[slot.index()].held_by.is_none() {
            self.bind_walk(slot, device);
        }
    }

    /// "UpdateNodesDependency": marks the nodes of the subgraph that a submitted node makes ready.
    fn advance_node(&mut self, task: TaskId, at: usize) {
        let (slot, (id, place)) = (self.tasks.members(task)[at], self.place(task, at));
        let Walker { request, .. } = self.walkers[slot.index()];
        let subgraph = self.subgraphs.at_mut(id);
        let (block, pinned) = (subgraph.block, subgraph.pinned);
        let ready = match subgraph.is_graph {
            true => self.graphs.submitted(place, &mut self.subgraphs),
            false if subgraph.submitted < subgraph.total => {
                subgraph.ready += request.rows;
                request.rows
            }
            false => 0,
        };
        *self.served_mut(request.model).cells[block.index()].count(pinned) += ready;
        let subgraph = self.subgraphs.at(id);
        if subgraph.submitted == subgraph.total {
            self.dequeue(id);
        }
    }

    /// Completes a task.
    pub fn task_done(&mut self, done: &TaskDone<'_>) {
        let task = self.tasks.get(done.task);
        let members = self.tasks.members(done.task).len();
        assert!(done.ended.is_empty() || done.ended.len() == members, "one flag a member: {done:?}");
        (0..members).for_each(|at| self.complete_member(done, at));
        self.tasks.close(done.task);
        let served = self.served_mut(task.model);
        served.cells[task.block.index()].running -= 1;
        served.release(task.device);
        self.devices[task.device].held -= 1;
        self.release_device(task.device);
    }
}
