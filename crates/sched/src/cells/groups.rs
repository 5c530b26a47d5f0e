//! Requests that a policy ties together: they begin, are padded, or are answered in groups.
//!
//! A policy implements [`Groups`] and keeps the groups; `()` has none. The hooks tell it what
//! happens to requests, and the methods of [`Cells`] below are what it may do with a member.

use super::{CellRequestState, Cells};
use crate::{Action, Request};
use ripieno_base::{DeviceId, RequestSlot, TaskId};
use ripieno_model::Steps;

/// The rules of a policy for requests that go together. By default none do: a request joins the
/// next step, and leaves at its own end.
pub trait Groups: Sized {
    /// Receives a request that has arrived, or starts over. [`Cells::open_stage`] makes its first
    /// cells ready.
    fn wait(cells: &mut Cells<Self>, slot: RequestSlot) {
        cells.open_stage(slot);
    }

    /// Returns the device that runs the request's group, if only that device may.
    fn device(&self, _slot: RequestSlot) -> Option<DeviceId> {
        None
    }

    /// Returns the least number of steps of a request's sequences; 0 without padding.
    fn padded(&self, _slot: RequestSlot) -> u32 {
        0
    }

    /// Receives a task with its members, before it makes their next steps ready.
    fn filled(_cells: &mut Cells<Self>, _task: TaskId) {}

    /// Receives the end of an output that continues as padding.
    fn output_ended(_cells: &mut Cells<Self>, _slot: RequestSlot) {}

    /// Receives a request whose walk is complete, to be finished or held.
    fn walk_ended(cells: &mut Cells<Self>, slot: RequestSlot) {
        cells.finish(slot);
    }

    /// Receives a request that has ended or starts over.
    fn left(_cells: &mut Cells<Self>, _slot: RequestSlot, _left: Left) {}

    /// Receives a device that was removed and holds no task.
    fn device_left(_cells: &mut Cells<Self>, _device: DeviceId) {}
}

impl Groups for () {}

/// State of a request when it left its group.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// True if the request had not begun.
    pub waiting: bool,
    /// True if the request's walk was complete.
    pub held: bool,
    /// True if the request's output was to continue as padding after its end, which it had not
    /// reached.
    pub going: bool,
}

impl<G: Groups> Cells<G> {
    /// Returns a live request.
    pub fn request(&self, slot: RequestSlot) -> &Request {
        &self.walkers[slot.index()].request
    }

    /// Returns the arrival number of a live request: earlier requests are served first.
    pub fn number(&self, slot: RequestSlot) -> u64 {
        self.walkers[slot.index()].number
    }

    /// Returns the number of nodes in the graph of a request.
    pub fn graph_len(&self, slot: RequestSlot) -> u32 {
        self.graphs.len(slot)
    }

    /// Begins a request; with `going` its output continues as padding after its end.
    pub fn begin(&mut self, slot: RequestSlot, going: bool) {
        self.timers.disarm(slot);
        let walker = &mut self.walkers[slot.index()];
        let waited = walker.state == CellRequestState::Waiting;
        (walker.state, walker.going) = (CellRequestState::Running, going);
        self.models.get_mut(walker.request.model).own.waiting -= usize::from(waited);
    }

    /// Pads the open sequences of known length to this number of steps.
    pub fn pad_steps(&mut self, slot: RequestSlot, steps: u32) {
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let known = self.served(self.request(slot).model).steps(self.subgraphs.at(id).block) == Steps::Length;
            let subgraph = self.subgraphs.at_mut(id);
            subgraph.total = if known { subgraph.total.max(steps) } else { subgraph.total };
        }
    }

    /// Ends the padding of a request's output: the walk continues.
    pub fn end_output(&mut self, slot: RequestSlot) {
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let subgraph = self.subgraphs.at(id);
            if !subgraph.over && self.served(self.request(slot).model).steps(subgraph.block) == Steps::UntilEnd {
                self.complete(id);
                return self.tidy(slot, id);
            }
        }
    }

    /// Withholds the answer of a request whose walk is complete.
    pub fn hold(&mut self, slot: RequestSlot) {
        self.walkers[slot.index()].state = CellRequestState::Held;
    }

    /// Answers a request.
    pub fn finish(&mut self, slot: RequestSlot) {
        self.end(slot, Action::Finish { request: slot });
    }

    /// Lets any device continue a request.
    pub fn unpin(&mut self, slot: RequestSlot) {
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            self.pin(id, None);
            next = self.subgraphs.next(id);
        }
    }

    /// Returns the device on which a request must continue, if there is one: its group's, or the
    /// one on which its chain has begun.
    pub(super) fn bound(&self, slot: RequestSlot) -> Option<DeviceId> {
        self.groups.device(slot).or(self.walkers[slot.index()].held_by)
    }

    /// Removes a request from its group.
    pub(super) fn leave_group(&mut self, slot: RequestSlot, state: CellRequestState) {
        let going = std::mem::take(&mut self.walker(slot).going);
        let (waiting, held) = (state == CellRequestState::Waiting, state == CellRequestState::Held);
        G::left(self, slot, Left { waiting, held, going });
    }

    /// Releases the work of a device that has left and holds no task: the rest of its group may run
    /// anywhere, and what has begun there starts over, unless it goes on there.
    pub(super) fn release_device(&mut self, device: DeviceId) {
        let goes_on = self.drains(device) && self.has_walks(device);
        if self.devices[device].present || self.devices[device].held > 0 || goes_on {
            return;
        }
        for slot in (0..self.walkers.len() as u32).map(RequestSlot) {
            let super::Walker { state, held_by, .. } = self.walkers[slot.index()];
            if state == CellRequestState::Running && held_by == Some(device) {
                self.stop(slot);
                self.start_over(slot);
            }
        }
        G::device_left(self, device);
    }
}
