//! The BatchTable of a device: a stack of sub-batches, each at one node.

use super::Member;
use crate::parts::fifo::Fifo;
use crate::parts::requests::Requests;
use crate::parts::tasks::Tasks;
use crate::{Limits, Request, TaskDone, Why};
use ripieno_base::{BlockId, DeviceId, LaneId, Links, List, ModelId, RequestSlot, TaskId};
use ripieno_model::{Model, Onward, Position};

/// Requests of one model that run together, and the node that they run next.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubBatch {
    pub(super) model: ModelId,
    pub(super) block: BlockId,
    pub(super) members: List,
}

/// The stack, and the node that runs.
#[derive(Debug)]
pub(super) struct Table {
    stack: Vec<SubBatch>,
    /// The task of the top sub-batch's node; none at a node border.
    pub(super) running: Option<TaskId>,
    /// Rows in the table, by model.
    rows: Vec<usize>,
}

impl Table {
    pub(super) fn new(limits: &Limits) -> Table {
        // Each sub-batch has a member, and no model has more rows here than one batch.
        let depth = limits.requests.min(limits.models * limits.batch);
        Table { stack: Vec::with_capacity(depth), running: None, rows: vec![0; limits.models] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stack.is_empty()
    }

    /// The sub-batches, the top one last.
    pub(super) fn stack(&self) -> &[SubBatch] {
        &self.stack
    }

    pub(super) fn top(&self) -> SubBatch {
        *self.stack.last().expect("the table is not empty")
    }

    /// Rows of a model here.
    pub(super) fn rows(&self, model: ModelId) -> usize {
        self.rows[model.index()]
    }

    pub(super) fn holds(&self, model: ModelId) -> bool {
        self.rows(model) > 0
    }

    /// Pushes an empty sub-batch at the first node.
    pub(super) fn open(&mut self, model: ModelId) {
        self.stack.push(SubBatch { model, block: BlockId(0), members: List::default() });
    }

    /// Adds a request to the top sub-batch.
    pub(super) fn add(&mut self, requests: &mut Requests, slot: RequestSlot) {
        let Request { model, rows, .. } = *requests.get(slot.0);
        self.rows[model.index()] += rows as usize;
        self.stack.last_mut().expect("a sub-batch was opened").members.push_back(&mut requests.links, slot.0);
    }

    /// Makes the two topmost sub-batches one as long as they are at the same node: the same layer, at any timestep.
    pub(super) fn settle_top(&mut self, links: &mut Links) {
        while let [.., below, top] = self.stack.as_mut_slice()
            && (below.model, below.block) == (top.model, top.block)
        {
            while let Some(slot) = top.members.pop_front(links) {
                below.members.push_back(links, slot);
            }
            self.stack.pop();
        }
        debug_assert!(self.stack.iter().all(|entry| !entry.members.is_empty()));
    }

    /// Forms the task of the top sub-batch's node, of those who do not rest. `unfolds`: whether steps are to be told.
    pub(super) fn run(
        &mut self,
        links: &Links,
        members: &[Member],
        tasks: &mut Tasks,
        device: DeviceId,
        unfolds: bool,
    ) -> TaskId {
        let SubBatch { model, block, members: list } = self.top();
        let task = tasks.open(model, block, device, LaneId(0));
        for slot in list.iter(links).filter(|&slot| !members[slot as usize].rests) {
            match unfolds {
                true => tasks.push_node(task, RequestSlot(slot), members[slot as usize].step),
                false => tasks.push(task, RequestSlot(slot)),
            }
        }
        self.running = Some(task);
        task
    }

    /// The node has run: each of its members takes a step, and leaves if its walk is over.
    pub(super) fn end_node(
        &mut self,
        model: &Model,
        members: &mut [Member],
        fifo: &mut Fifo,
        ran: &[RequestSlot],
        done: &TaskDone<'_>,
    ) {
        for (at, &slot) in ran.iter().enumerate() {
            let member = &mut members[slot.index()];
            let position = Position { block: self.top().block, step: member.step };
            match model.advance(position, fifo.request(slot).extent, done.report_of(at)) {
                Onward::Step => member.step += 1,
                Onward::Block(next) => (member.rests, member.next) = (true, next),
                Onward::End => {
                    self.remove(&mut fifo.requests, slot);
                    fifo.finish(slot);
                }
            }
        }
    }

    /// The node has failed: its members leave.
    pub(super) fn fail_node(&mut self, fifo: &mut Fifo, ran: &[RequestSlot]) {
        for &slot in ran {
            self.remove(&mut fifo.requests, slot);
            fifo.reject(slot, Why::Failed);
        }
    }

    /// Takes a member of the top sub-batch out.
    fn remove(&mut self, requests: &mut Requests, slot: RequestSlot) {
        let Request { model, rows, .. } = *requests.get(slot.0);
        self.stack.last_mut().expect("a node ran").members.remove(&mut requests.links, slot.0);
        self.rows[model.index()] -= rows as usize;
    }

    /// Moves the top sub-batch to the next node that a member wants once all have done with this one.
    pub(super) fn move_on(&mut self, members: &mut [Member], links: &Links) {
        self.running = None;
        let top = self.stack.last_mut().expect("a node ran");
        if top.members.is_empty() {
            self.stack.pop();
            return;
        }
        let slots = || top.members.iter(links).map(|slot| slot as usize);
        if slots().all(|slot| members[slot].rests) {
            top.block = slots().map(|slot| members[slot].next).min().expect("the sub-batch is not empty");
            for slot in top.members.iter(links) {
                let member = &mut members[slot as usize];
                (member.step, member.rests) = (0, member.next != top.block);
            }
        }
    }

    /// Takes any request out of the table; none once it is empty.
    pub(super) fn pop_member(&mut self, requests: &mut Requests) -> Option<RequestSlot> {
        let slot = RequestSlot(self.stack.last()?.members.front().expect("no sub-batch is empty"));
        self.remove(requests, slot);
        if self.top().members.is_empty() {
            self.stack.pop();
        }
        Some(slot)
    }
}
