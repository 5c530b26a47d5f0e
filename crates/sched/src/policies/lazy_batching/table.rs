//! The BatchTable of a device: a stack of sub-batches, each at one node.

use super::Member;
use crate::{Limits, TaskDone};
use ripieno_base::{BlockId, Links, List, ModelId, RequestSlot};
use ripieno_model::{Model, Steps};

/// Requests of one model that run together, and the node that they run next.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubBatch {
    pub(super) model: ModelId,
    pub(super) block: BlockId,
    pub(super) members: List,
}

/// Whether the device is at a node border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is: nothing runs.
    Idle,
    /// The top sub-batch runs its node.
    Running,
}

/// The stack and the node that runs.
#[derive(Debug)]
pub(super) struct Table {
    stack: Vec<SubBatch>,
    pub(super) step: Step,
    /// Members of the node that runs, in batch order, and the step that each takes.
    running: Vec<RequestSlot>,
    nodes: Vec<u32>,
    /// Rows in the table, by model.
    rows: Vec<usize>,
}

impl Table {
    pub(super) fn new(limits: &Limits) -> Table {
        // Each sub-batch has a member, and no model has more rows here than one batch.
        let depth = limits.requests.min(limits.models * limits.batch);
        Table {
            stack: Vec::with_capacity(depth),
            step: Step::Idle,
            running: Vec::with_capacity(limits.batch),
            nodes: Vec::with_capacity(limits.batch),
            rows: vec![0; limits.models],
        }
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

    pub(super) fn running(&self) -> &[RequestSlot] {
        &self.running
    }

    pub(super) fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Pushes an empty sub-batch at the first node.
    pub(super) fn open(&mut self, model: ModelId) {
        self.stack.push(SubBatch { model, block: BlockId(0), members: List::default() });
    }

    /// Adds a request to the top sub-batch.
    pub(super) fn add(&mut self, links: &mut Links, members: &[Member], slot: RequestSlot) {
        let request = &members[slot.index()].request;
        self.rows[request.model.index()] += request.rows as usize;
        self.stack.last_mut().expect("a sub-batch was opened").members.push_back(links, slot.0);
    }

    /// Makes the two topmost sub-batches one as long as they are at the same node: the same layer, at any timestep.
    pub(super) fn settle_top(&mut self, links: &mut Links, members: &[Member]) {
        while let [.., below, top] = self.stack.as_mut_slice()
            && (below.model, below.block) == (top.model, top.block)
        {
            while let Some(slot) = top.members.pop_front(links) {
                below.members.push_back(links, slot);
            }
            self.stack.pop();
        }
        debug_assert!(self.stack.iter().all(|entry| !entry.members.is_empty()));
        debug_assert!(members.len() >= self.running.len());
    }

    /// Starts the node of the top sub-batch with those who do not rest. `unfolds`: whether steps are to be told.
    pub(super) fn run(&mut self, links: &Links, members: &[Member], unfolds: bool) {
        self.step = Step::Running;
        self.running.clear();
        self.nodes.clear();
        let mut next = self.top().members.front();
        while let Some(slot) = next {
            let member = &members[slot as usize];
            if !member.rests {
                self.running.push(RequestSlot(slot));
                self.nodes.extend(unfolds.then_some(member.step));
            }
            next = links.next(slot);
        }
    }

    /// The node has run: each of its members takes a step, and leaves if its walk is over.
    pub(super) fn end_node(
        &mut self,
        model: &Model,
        members: &mut [Member],
        links: &mut Links,
        done: &TaskDone<'_>,
        mut finish: impl FnMut(RequestSlot),
    ) {
        let top = self.stack.last_mut().expect("a node ran");
        let (steps, after) = (model.blocks[top.block.index()].steps, BlockId(top.block.0 + 1));
        for (at, &slot) in self.running.iter().enumerate() {
            let member = &mut members[slot.index()];
            let ended = done.ended.get(at).copied().unwrap_or(false);
            member.step += 1;
            member.rests = member.step >= member.request.extent.steps(steps) || ended;
            member.next = done.skips.get(at).copied().unwrap_or(after);
            // An early exit ends the walk wherever it shows; the end of a decoder that something follows does not.
            if member.rests && (member.next.index() == model.blocks.len() || (ended && steps != Steps::UntilEnd)) {
                top.members.remove(links, slot.0);
                self.rows[top.model.index()] -= member.request.rows as usize;
                finish(slot);
            }
        }
        self.move_on(members, links);
    }

    /// Moves the top sub-batch to the next node that a member wants once all have done with this one.
    pub(super) fn move_on(&mut self, members: &mut [Member], links: &Links) {
        self.step = Step::Idle;
        self.running.clear();
        let top = self.stack.last_mut().expect("a node ran");
        if top.members.is_empty() {
            self.stack.pop();
            return;
        }
        let slots = |list: &List| std::iter::successors(list.front(), |&slot| links.next(slot));
        if slots(&top.members).all(|slot| members[slot as usize].rests) {
            let next = slots(&top.members).map(|slot| members[slot as usize].next).min();
            top.block = next.expect("the sub-batch is not empty");
            for slot in slots(&top.members) {
                let member = &mut members[slot as usize];
                (member.step, member.rests) = (0, member.next != top.block);
            }
        }
    }

    /// Takes the members of the node that ran out of the table.
    pub(super) fn drop_running(&mut self, links: &mut Links, members: &[Member], mut gone: impl FnMut(RequestSlot)) {
        let top = self.stack.last_mut().expect("a node ran");
        for &slot in &self.running {
            top.members.remove(links, slot.0);
            self.rows[top.model.index()] -= members[slot.index()].request.rows as usize;
            gone(slot);
        }
    }

    /// Takes any request out of the table; none once it is empty.
    pub(super) fn pop_member(&mut self, links: &mut Links, members: &[Member]) -> Option<RequestSlot> {
        let top = self.stack.last_mut()?;
        let slot = RequestSlot(top.members.pop_front(links).expect("no sub-batch is empty"));
        self.rows[top.model.index()] -= members[slot.index()].request.rows as usize;
        if top.members.is_empty() {
            self.stack.pop();
        }
        Some(slot)
    }
}
