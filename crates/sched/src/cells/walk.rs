//! The walk of a request: its ready nodes, the results of its tasks, and its end.

use super::served::Stage;
use super::{CellRequestState, Cells, Groups, Walker};
use crate::estimate::cost;
use crate::{Action, Outcome, Request, TaskDone, Why};
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, Time};
use ripieno_model::{Extent, Onward, Position, StepReport, Steps};

/// Number of steps of an output that continues as padding until its group ends it: unbounded.
const ENDLESS: u32 = u32::MAX;

impl<G: Groups> Cells<G> {
    /// Adds a request that has arrived.
    pub fn arrive(&mut self, request: &Request) {
        self.models.of_newcomer(request);
        let before = self.walkers[request.slot.index()];
        assert!(
            before.state == CellRequestState::Over && before.in_flight == 0,
            "the slot of a live request was reused: {request:?}"
        );
        self.arrivals += 1;
        self.served_mut(request.model).live += 1;
        *self.walker(request.slot) = Walker::new(*request, self.arrivals);
        self.wait(request.slot);
    }

    /// Makes a request wait, at first or after its device was lost.
    fn wait(&mut self, slot: RequestSlot) {
        let request = self.walkers[slot.index()].request;
        let served = self.models.get(request.model);
        self.timers.arm(&request, served.drop, || cost::alone(&served.model, &request, 1));
        self.served_mut(request.model).waiting += 1;
        G::wait(self, slot);
    }

    /// Drops waiting requests that are too late; passes the model of each to `lost`.
    pub fn drop_late(&mut self, now: Time, mut lost: impl FnMut(ModelId)) {
        while let Some((slot, why)) = self.timers.late(now, |slot| self.walkers[slot.index()].request.deadline) {
            lost(self.walkers[slot.index()].request.model);
            self.end(slot, Action::Reject { request: slot, why });
        }
    }

    /// Withdraws a request because it was cancelled or its model was unloaded. A waiting request is
    /// rejected. A cancelled walk that unfolds ends even if it runs, since the rest may be long.
    /// Its queued steps are wasted, as after an early end.
    pub fn withdraw(&mut self, slot: RequestSlot, why: Why) {
        let Walker { state, request, .. } = self.walkers[slot.index()];
        let unfolds = || self.served(request.model).model.walk.is_unfolded();
        if state == CellRequestState::Waiting
            || (state == CellRequestState::Running && why == Why::Cancelled && unfolds())
        {
            self.end(slot, Action::Reject { request: slot, why });
        } else {
            self.walker(slot).unwanted |= why == Why::Cancelled;
        }
    }

    /// Unloads a model: waiting requests are rejected, running ones finish.
    pub fn retire(&mut self, model: ModelId) {
        self.served_mut(model).retired = true;
        for slot in (0..self.walkers.len() as u32).map(RequestSlot) {
            if self.walkers[slot.index()].request.model == model {
                self.withdraw(slot, Why::Unloaded);
            }
        }
    }

    /// Opens the next stage of a walk, or ends the walk.
    pub fn open_stage(&mut self, slot: RequestSlot) {
        let Walker { request, stage, going, .. } = self.walkers[slot.index()];
        match self.served(request.model).stages.get(stage).cloned() {
            None => G::walk_ended(self, slot),
            Some(Stage::Lines(blocks)) => {
                self.walker(slot).open = blocks.len() as u32;
                for block in blocks.map(BlockId) {
                    let kind = self.served(request.model).steps(block);
                    let steps = request.extent.steps(kind).max(1);
                    let total = match kind {
                        Steps::Length => steps.max(self.groups.padded(slot)),
                        Steps::UntilEnd if going => ENDLESS,
                        _ => steps,
                    };
                    let line = self.subgraphs.open_line(slot, block, steps, total, request.rows);
                    self.enqueue(line);
                }
            }
            Some(Stage::Graph(_)) => self.open_graph(slot),
        }
    }

    fn open_graph(&mut self, slot: RequestSlot) {
        let (mut open, mut next) = (0, self.subgraphs.first(slot));
        while let Some(id) = next {
            open += u32::from(self.subgraphs.at(id).is_graph);
            next = self.subgraphs.next(id);
        }
        assert!(open > 0, "a request of a model with graphs came without one: {slot:?}");
        self.walker(slot).open = open;
        let mut next = self.graphs.first(slot);
        while let Some(node) = next {
            let id = self.graphs.node(node).subgraph;
            let subgraph = self.subgraphs.at(id);
            if subgraph.waits == 0 && !subgraph.queued {
                self.enqueue(id);
            }
            next = self.graphs.next(node);
        }
    }

    /// Puts a subgraph into the queue of its cell type, in the order in which requests arrived.
    /// Where outputs are padded, rows that have ended and continue only for their group come last.
    fn enqueue(&mut self, id: u32) {
        let bound = self.bound(self.subgraphs.at(id).slot);
        let Cells { models, walkers, subgraphs, .. } = self;
        let request = walkers[subgraphs.at(id).slot.index()].request;
        let subgraph = subgraphs.at_mut(id);
        (subgraph.queued, subgraph.pinned) = (true, bound);
        let cell = &mut models.get_mut(request.model).cells[subgraph.block.index()];
        *cell.count(bound) += subgraph.ready;
        let (links, slot_of) = subgraphs.split();
        cell.queue.insert_by_key(links, id, |id| {
            let walker = &walkers[slot_of(id).index()];
            (!walker.going, walker.number)
        });
    }

    /// Removes a subgraph from its queue, if it is there.
    pub(super) fn dequeue(&mut self, id: u32) {
        let subgraph = self.subgraphs.at_mut(id);
        if !std::mem::take(&mut subgraph.queued) {
            return;
        }
        let (slot, block, ready, pinned) = (subgraph.slot, subgraph.block, subgraph.ready, subgraph.pinned);
        let model = self.walkers[slot.index()].request.model;
        let cell = &mut self.models.get_mut(model).cells[block.index()];
        *cell.count(pinned) -= ready;
        cell.queue.remove(&mut self.subgraphs.links, id);
    }

    /// Pins a subgraph to a device, or frees it.
    pub(super) fn pin(&mut self, id: u32, device: Option<DeviceId>) {
        let subgraph = self.subgraphs.at_mut(id);
        let before = std::mem::replace(&mut subgraph.pinned, device);
        if before == device || !subgraph.queued {
            return;
        }
        let (slot, block, ready) = (subgraph.slot, subgraph.block, subgraph.ready);
        let model = self.walkers[slot.index()].request.model;
        let cell = &mut self.served_mut(model).cells[block.index()];
        *cell.count(before) -= ready;
        *cell.count(device) += ready;
    }

    /// Makes a device the only one that continues a request of a pinned model.
    pub(super) fn bind_walk(&mut self, slot: RequestSlot, device: DeviceId) {
        let model = self.walkers[slot.index()].request.model;
        self.walker(slot).held_by = Some(device);
        self.devices[device].walks += 1;
        self.served_mut(model).hold(device);
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            self.pin(id, Some(device));
            next = self.subgraphs.next(id);
        }
    }

    /// Forgets the device of a request that ends or starts over.
    fn unbind_walk(&mut self, slot: RequestSlot) {
        let Walker { request, held_by, .. } = self.walkers[slot.index()];
        self.walker(slot).held_by = None;
        let Some(device) = held_by else { return };
        self.devices[device].walks -= 1;
        if self.served(request.model).is_pinned() {
            self.served_mut(request.model).release(device);
        }
    }

    /// Completes a member of a task.
    pub(super) fn complete_member(&mut self, done: &TaskDone<'_>, at: usize) {
        let (slot, (id, place)) = (self.tasks.members(done.task)[at], self.place(done.task, at));
        let walker = self.walker(slot);
        walker.in_flight -= 1;
        if walker.state == CellRequestState::Over {
            return self.forget(slot);
        }
        let lost = walker.lost;
        self.subgraphs.at_mut(id).in_flight -= 1;
        match done.outcome {
            Outcome::Ok if lost => {}
            Outcome::Ok => self.step(id, place, done.report_of(at)),
            Outcome::Failed => self.end(slot, Action::Reject { request: slot, why: Why::Failed }),
            Outcome::DeviceLost | Outcome::Cancelled => self.on_lost(slot),
        }
        self.tidy(slot, id);
    }

    /// Completes a node.
    fn step(&mut self, id: u32, place: u32, report: StepReport) {
        let subgraph = self.subgraphs.at_mut(id);
        if subgraph.over {
            return;
        }
        let at = Position { block: subgraph.block, step: subgraph.done };
        subgraph.done += 1;
        let slot = subgraph.slot;
        self.walkers[slot.index()].done += 1;
        let subgraph = self.subgraphs.at(id);
        // Padded steps count as steps, except for an output, which has its own end.
        let extent = Extent { length: subgraph.total, limit: subgraph.steps };
        let served = self.served(self.walkers[slot.index()].request.model);
        let steps = served.steps(at.block);
        // Completing the block leads to the stage after this one.
        let stage = match served.model.advance(at, extent, report) {
            Onward::Step => None,
            Onward::Block(next) => Some(served.stage_of[next.index()] - 1),
            Onward::End => Some(served.stages.len() - 1),
        };
        if steps == Steps::UntilEnd {
            let model = self.walkers[slot.index()].request.model;
            self.served_mut(model).note_step(stage.is_some());
        }
        if steps == Steps::Nodes {
            self.release_users(place);
        }
        match stage {
            None => {}
            Some(_) if steps == Steps::UntilEnd => self.end_of_output(slot, id),
            Some(stage) => {
                self.walker(slot).stage = stage;
                self.complete(id);
            }
        }
    }

    /// Enqueues subgraphs whose last missing input was this node.
    fn release_users(&mut self, node: u32) {
        let own = self.graphs.node(node).subgraph;
        let mut edge = self.graphs.node(node).users;
        while let Some((id, next)) = self.graphs.user(edge) {
            edge = next;
            if id == own {
                continue;
            }
            let subgraph = self.subgraphs.at_mut(id);
            subgraph.waits -= 1;
            if subgraph.waits == 0 {
                self.enqueue(id);
            }
        }
    }

    /// Handles the end of a block that runs until its end. An output that continues as padding is
    /// kept behind the rows that are still needed.
    fn end_of_output(&mut self, slot: RequestSlot, id: u32) {
        if self.subgraphs.at(id).total != ENDLESS {
            return self.complete(id);
        }
        if std::mem::take(&mut self.walker(slot).going) {
            self.send_back(slot, id);
            G::output_ended(self, slot);
        }
    }

    fn send_back(&mut self, slot: RequestSlot, id: u32) {
        let (model, block) = (self.walkers[slot.index()].request.model, self.subgraphs.at(id).block);
        if self.subgraphs.at(id).queued {
            let cell = &mut self.models.get_mut(model).cells[block.index()];
            cell.queue.remove(&mut self.subgraphs.links, id);
            cell.queue.push_back(&mut self.subgraphs.links, id);
        }
    }

    /// Completes the part of a walk that is this subgraph.
    pub(super) fn complete(&mut self, id: u32) {
        self.dequeue(id);
        let subgraph = self.subgraphs.at_mut(id);
        subgraph.over = true;
        let slot = subgraph.slot;
        let walker = self.walker(slot);
        walker.open -= 1;
        if walker.open == 0 {
            walker.stage += 1;
            self.open_stage(slot);
        }
    }

    /// Submits nothing more of a request.
    pub(super) fn stop(&mut self, slot: RequestSlot) {
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            self.dequeue(id);
            self.subgraphs.at_mut(id).over = true;
            next = self.subgraphs.next(id);
        }
    }

    /// Refuses a request that has just arrived.
    pub fn refuse(&mut self, request: &Request, why: Why) {
        self.arrive(request);
        self.end(request.slot, Action::Reject { request: request.slot, why });
    }

    /// Ends a request.
    pub(super) fn end(&mut self, slot: RequestSlot, action: Action) {
        let Walker { state, request, .. } = self.walkers[slot.index()];
        self.timers.disarm(slot);
        self.served_mut(request.model).live -= 1;
        if state == CellRequestState::Waiting {
            self.served_mut(request.model).waiting -= 1;
        }
        self.stop(slot);
        self.unbind_walk(slot);
        self.walker(slot).state = CellRequestState::Over;
        self.pending.push(action);
        self.leave_group(slot, state);
        self.forget(slot);
    }

    /// Frees the memory of an ended request, once none of its nodes is in flight.
    fn forget(&mut self, slot: RequestSlot) {
        if self.walkers[slot.index()].in_flight == 0 {
            self.subgraphs.close_all(slot);
            self.graphs.remove(slot);
        }
    }

    /// Handles the loss of a request's work, unless it is complete: it starts over once none of its
    /// nodes is in flight.
    fn on_lost(&mut self, slot: RequestSlot) {
        let walker = self.walker(slot);
        if walker.state == CellRequestState::Held || walker.lost {
            return;
        }
        walker.lost = true;
        self.stop(slot);
    }

    /// Frees or closes a subgraph without tasks in flight, or starts its request over.
    pub(super) fn tidy(&mut self, slot: RequestSlot, id: u32) {
        let Walker { state, lost, in_flight, .. } = self.walkers[slot.index()];
        if state == CellRequestState::Over {
            return;
        }
        if lost {
            if in_flight == 0 {
                self.start_over(slot);
            }
            return;
        }
        let subgraph = self.subgraphs.at(id);
        if subgraph.closed || subgraph.slot != slot {
            // The last member of a set that reaches its end lets all of them continue, including
            // itself.
            return;
        }
        match (subgraph.in_flight, subgraph.over, subgraph.is_graph) {
            (0, true, false) => self.subgraphs.close(id),
            (0, false, _) => self.pin(id, self.bound(slot)),
            _ => {}
        }
    }

    pub(super) fn start_over(&mut self, slot: RequestSlot) {
        self.leave_group(slot, CellRequestState::Running);
        self.unbind_walk(slot);
        self.subgraphs.start_over(slot);
        self.graphs.start_over(slot, &mut self.subgraphs);
        let walker = self.walker(slot);
        (walker.state, walker.stage, walker.lost) = (CellRequestState::Waiting, 0, false);
        walker.done = 0;
        walker.length = walker.request.extent.length;
        let (model, unwanted) = (walker.request.model, walker.unwanted);
        let why = if unwanted { Some(Why::Cancelled) } else { self.served(model).retired.then_some(Why::Unloaded) };
        match why {
            // None of its subgraphs is in a queue or bucket yet.
            Some(why) => {
                self.walker(slot).state = CellRequestState::Running;
                self.end(slot, Action::Reject { request: slot, why });
            }
            None => self.wait(slot),
        }
    }
}
