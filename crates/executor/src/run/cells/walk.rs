//! State of a slot between two cells of its request.
//!
//! A device may be given a step while an earlier one of the same request still runs there. So
//! progress is counted twice. It is *planned* when a step is launched: the next step may then
//! follow, and reads rows that the device is about to write. It is *settled* when the step's end is
//! known: only then does the walk end or go on to another block, and only then do answers grow. A
//! step that was planned beyond the end of the walk settles as padding.

mod answers;

use super::row::CellRow;
use super::wiring::{AnswerFrom, AnswerOutput, FeedSource, Seed, Wiring};
use crate::run::rows::{RowPart, Rows};
use crate::{AnswerSteps, ExecError, Loss, MemberProgress, RequestEntry, TaskMember};
use parking_lot::{Mutex, RwLock};
use ripieno_base::BlockId;
use ripieno_model::{Extent, Graph, Onward, Position, StepReport, Steps};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The states of a model's requests by slot, shared by all devices.
///
/// It grows to the highest slot ever used, and each slot reuses its tables for its next request.
/// Each slot has its own lock. A thread waits for a lock only if two devices run cells of one
/// request at the same time.
#[derive(Debug, Default)]
pub(crate) struct WalkArena {
    slots: RwLock<Vec<Arc<Mutex<CellWalk>>>>,
}

impl WalkArena {
    /// Returns the states of several slots.
    pub(crate) fn slots(&self, slots: impl Iterator<Item = usize> + Clone) -> Vec<Arc<Mutex<CellWalk>>> {
        let known = self.slots.read();
        let held: Option<Vec<_>> = slots.clone().map(|slot| known.get(slot).cloned()).collect();
        drop(known);
        held.unwrap_or_else(|| slots.map(|slot| self.slot(slot)).collect())
    }

    pub(crate) fn slot(&self, slot: usize) -> Arc<Mutex<CellWalk>> {
        if let Some(held) = self.slots.read().get(slot) {
            return Arc::clone(held);
        }
        let mut slots = self.slots.write();
        let grown = slots.len().max(slot + 1);
        slots.resize_with(grown, Arc::default);
        Arc::clone(&slots[slot])
    }
}

/// State of a request that runs cell by cell.
#[derive(Debug, Default)]
pub(crate) struct CellWalk {
    /// The request's entry, which is only compared by identity.
    entry: Weak<RequestEntry>,
    /// Number of the walk in the whole process; 0 if the caller does not number walks.
    number: u64,
    /// Number of the walk in this slot.
    pub(crate) generation: u64,
    /// Whether the walk has ended or never begun.
    ended: bool,
    extent: Option<Extent>,
    graph: Option<Arc<Graph>>,
    stream: bool,
    inputs: Vec<Rows>,
    blocks: Vec<BlockTrack>,
    nodes: Vec<NodeState>,
    nodes_left: u32,
    /// Outputs of all steps so far, for each answer that contains every step.
    every: Vec<answers::StackedOutput>,
}

/// Progress of a request in one block.
#[derive(Debug, Default)]
struct BlockTrack {
    /// Number of planned steps.
    planned: u32,
    /// Outputs of the last planned step, for the next one.
    previous: Vec<Option<CellRow>>,
    /// Planned steps that later layers have not consumed yet, for each output.
    ahead: Vec<Ahead>,
    /// Whether the request has completed the block: its last step is settled.
    over: bool,
    /// Outputs of the last step of the completed block.
    last: Vec<Option<CellRow>>,
}

#[derive(Debug, Default)]
struct Ahead {
    /// Number of the step in the first entry.
    begins: u32,
    steps: VecDeque<CellRow>,
}

#[derive(Debug, Default)]
struct NodeState {
    outputs: Vec<Option<CellRow>>,
    /// Number of inputs of other nodes that still need the output.
    users: u32,
    planned: bool,
    settled: bool,
}

impl CellWalk {
    /// Begins a new walk if the member has an entry or walk number that the slot does not hold.
    pub(crate) fn enter(&mut self, wiring: &Wiring, member: &TaskMember) -> Result<(), ExecError> {
        if self.is_newer_than(member) {
            return Err(ExecError(format!("the walk in slot {} was given up and has begun anew", member.slot.0)));
        }
        let holds = self.extent.is_some() && self.number == member.walk;
        match &member.entry {
            Some(entry) if holds && std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry)) => Ok(()),
            Some(entry) => {
                self.number = member.walk;
                self.begin(wiring, entry)
            }
            None if holds => Ok(()),
            None => Err(ExecError(format!("slot {} holds no walk: its first task must bring an entry", member.slot.0))),
        }
    }

    /// Returns true if the slot holds a newer walk than the member's: another request's, or the
    /// same request's after a restart.
    fn is_newer_than(&self, member: &TaskMember) -> bool {
        self.number > member.walk
    }

    fn begin(&mut self, wiring: &Wiring, entry: &Arc<RequestEntry>) -> Result<(), ExecError> {
        self.clear();
        self.extent = None;
        self.inputs = wiring.rows(entry.inputs(), entry.extent).map_err(|cause| ExecError(cause.0))?;
        self.blocks.resize_with(wiring.cells.len(), BlockTrack::default);
        for (track, cell) in self.blocks.iter_mut().zip(&wiring.cells) {
            track.previous.resize_with(cell.keeps.len(), || None);
            track.last.resize_with(cell.keeps.len(), || None);
            track.ahead.resize_with(cell.keeps.len(), Ahead::default);
        }
        self.every.resize_with(wiring.answers.len(), answers::StackedOutput::default);
        if wiring.shape.walk.brings_graph() {
            let graph = entry.graph.clone();
            let graph = graph.ok_or_else(|| ExecError("the request's entry brings no graph".to_owned()))?;
            self.nodes.resize_with(graph.len(), NodeState::default);
            for node in 0..graph.len() as u32 {
                for &input in graph.inputs(node).iter().filter(|&&input| input != Graph::NONE) {
                    self.nodes[input as usize].users += 1;
                }
            }
            // The answer needs the root as well.
            self.nodes[root(wiring, &graph) as usize].users += 1;
            self.nodes_left = graph.len() as u32;
            self.graph = Some(graph);
        }
        let mut extent = entry.extent;
        if wiring.emulated {
            extent.limit = wiring.emulated_steps(entry.inputs(), extent);
        }
        self.extent = Some(extent);
        (self.entry, self.stream, self.ended) = (Arc::downgrade(entry), entry.stream, false);
        self.generation += 1;
        Ok(())
    }

    /// Ends the walk after the engine failed on this member. Queued steps of the walk become
    /// padding.
    pub(crate) fn abandon(&mut self, member: &TaskMember) {
        if self.is_newer_than(member) {
            return;
        }
        self.clear();
        self.generation += 1;
        if let Some(entry) = &member.entry {
            (self.entry, self.extent) = (Arc::downgrade(entry), Some(entry.extent));
        }
    }

    /// Returns the loss of a member's state, if the process that had it has ended.
    pub(crate) fn loss(&self, member: &TaskMember) -> Option<Loss> {
        if self.is_newer_than(member) {
            return None;
        }
        let tracks = self.blocks.iter().flat_map(|track| {
            let kept = track.previous.iter().chain(&track.last).flatten();
            kept.chain(track.ahead.iter().flat_map(|ahead| &ahead.steps))
        });
        let nodes = self.nodes.iter().flat_map(|node| node.outputs.iter().flatten());
        tracks.chain(nodes).find_map(|row| row.device.as_ref()?.held.store.loss())
    }

    /// Drops all outputs of the walk but keeps the tables for reuse.
    fn clear(&mut self) {
        self.ended = true;
        self.graph = None;
        self.inputs.clear();
        self.nodes.clear();
        for track in &mut self.blocks {
            (track.planned, track.over) = (0, false);
            track.previous.iter_mut().chain(&mut track.last).for_each(|row| *row = None);
            for ahead in &mut track.ahead {
                ahead.begins = 0;
                ahead.steps.clear();
            }
        }
        self.every.iter_mut().for_each(|every| *every = answers::StackedOutput::default());
    }

    /// Whether the request does not run this step or node, so that it is padding.
    pub(crate) fn is_padding(&self, wiring: &Wiring, block: usize, node: u32) -> bool {
        let Some(extent) = self.extent.filter(|_| !self.ended) else { return true };
        let track = &self.blocks[block];
        extent.skips_step(wiring.cells[block].steps, node, track.over)
    }

    /// Checks that the step or node is the next one to be planned.
    pub(crate) fn check(&self, wiring: &Wiring, block: usize, node: u32) -> Result<(), ExecError> {
        let cell = &wiring.cells[block];
        if let (Steps::Nodes, Some(graph)) = (cell.steps, &self.graph) {
            let runs = graph.block(node).index();
            return match runs == block {
                true => Ok(()),
                false => Err(ExecError(format!("node {node} runs block {runs}, not '{}'", cell.name))),
            };
        }
        let planned = self.blocks[block].planned;
        match node == planned || node == 0 {
            true => Ok(()),
            false => Err(ExecError(format!(
                "step {node} of '{}' cannot follow step {planned}: steps run in order",
                cell.name
            ))),
        }
    }

    /// Returns this member's row of one input of a cell.
    pub(crate) fn part<'w>(
        &self,
        wiring: &'w Wiring,
        block: usize,
        input: usize,
        node: u32,
    ) -> Result<RowPart<'w>, ExecError> {
        let cell = &wiring.cells[block];
        let feed = &cell.feeds[input];
        let missing = || ExecError(format!("'{}' takes '{}', which nothing before it has left", cell.name, feed.name));
        let rows = match &feed.from {
            FeedSource::Element(tensor) => {
                return Ok(RowPart::Rows(self.inputs[*tensor].at(self.element(wiring, block, node))));
            }
            FeedSource::Request(tensor) => return Ok(RowPart::Rows(self.inputs[*tensor].clone())),
            FeedSource::Previous(_) if node == 0 => match &feed.seed {
                Seed::Fill(row) => return Ok(RowPart::Fill(row)),
                Seed::Last(block, output) => self.blocks[*block].last[*output].clone(),
            },
            FeedSource::Previous(output) => self.blocks[block].previous[*output].clone(),
            FeedSource::Step(block, output) => self.blocks[*block].ahead[*output].at(node),
            FeedSource::Last(block, output) => self.blocks[*block].last[*output].clone(),
            FeedSource::Child(child, outputs) => {
                let graph = self.graph.as_ref().ok_or_else(missing)?;
                match graph.inputs(node).get(*child) {
                    Some(&child) if child != Graph::NONE => self.of_node(graph, child, outputs),
                    _ => match &feed.seed {
                        Seed::Fill(row) => return Ok(RowPart::Fill(row)),
                        Seed::Last(..) => None,
                    },
                }
            }
            FeedSource::Root(outputs) => {
                let graph = self.graph.as_ref().ok_or_else(missing)?;
                self.of_node(graph, root(wiring, graph), outputs)
            }
        };
        match rows.ok_or_else(missing)? {
            CellRow { device: Some(row), .. } => Ok(RowPart::Device(row)),
            row => row.to_host().map(RowPart::Rows),
        }
    }

    /// Returns the outputs of a step or node that the host needs, as bits: parts of the answer, and
    /// whether the request has ended.
    pub(crate) fn wanted(&self, wiring: &Wiring, block: usize, node: u32) -> u32 {
        let cell = &wiring.cells[block];
        let last = match (cell.steps, &self.graph, self.extent) {
            (Steps::Nodes, Some(graph), _) => node == root(wiring, graph),
            (Steps::Length, _, Some(extent)) => node + 1 == extent.length,
            _ => true,
        };
        let of_answer = |answer: &AnswerOutput| match &answer.from {
            AnswerFrom::Block(from, output) if *from == block => {
                (last || answer.take == AnswerSteps::Every).then_some(*output)
            }
            AnswerFrom::Block(..) => None,
            AnswerFrom::Root(outputs) => outputs[block].filter(|_| last),
        };
        let outputs = wiring.answers.iter().filter_map(of_answer).chain(cell.end);
        outputs.fold(0, |bits, output| bits | 1u32.checked_shl(output as u32).unwrap_or(0))
    }

    fn of_node(&self, graph: &Graph, node: u32, outputs: &[Option<usize>]) -> Option<CellRow> {
        let output = outputs[graph.block(node).index()]?;
        self.nodes[node as usize].outputs.get(output)?.clone()
    }

    /// Returns the index of the request's element that a step or node takes.
    fn element(&self, wiring: &Wiring, block: usize, node: u32) -> usize {
        match (&self.graph, self.extent) {
            (Some(graph), _) => graph.element(node),
            (None, Some(extent)) if wiring.cells[block].backward => (extent.length - 1 - node) as usize,
            _ => node as usize,
        }
    }

    /// Plans a step whose outputs are in the rows that `of` returns, or will be.
    pub(crate) fn plan(&mut self, wiring: &Wiring, block: usize, node: u32, of: &dyn Fn(usize) -> CellRow) {
        let cell = &wiring.cells[block];
        if cell.steps == Steps::Nodes {
            return self.plan_node(wiring, block, node, of);
        }
        let track = &mut self.blocks[block];
        for (output, keep) in cell.keeps.iter().enumerate() {
            if keep.held {
                track.previous[output] = Some(of(output));
            }
            if node == 0 {
                (track.over, track.ahead[output]) = (false, Ahead::default());
            }
            if !keep.stepped_by.is_empty() {
                track.ahead[output].put(node, of(output));
            }
        }
        track.planned = node + 1;
        self.release_taken(wiring, block);
    }

    fn plan_node(&mut self, wiring: &Wiring, block: usize, node: u32, of: &dyn Fn(usize) -> CellRow) {
        self.keep_of_node(wiring, block, node, of);
        let first = !std::mem::replace(&mut self.nodes[node as usize].planned, true);
        let Some(graph) = self.graph.as_ref().filter(|_| first) else { return };
        for &input in graph.inputs(node).iter().filter(|&&input| input != Graph::NONE) {
            let input = &mut self.nodes[input as usize];
            input.users = input.users.saturating_sub(1);
            if input.users == 0 {
                input.outputs.clear();
            }
        }
    }

    fn keep_of_node(&mut self, wiring: &Wiring, block: usize, node: u32, of: &dyn Fn(usize) -> CellRow) {
        let keeps = wiring.cells[block].keeps.iter().enumerate();
        let held = &mut self.nodes[node as usize];
        if held.users > 0 {
            held.outputs = keeps.map(|(output, keep)| keep.held.then(|| of(output))).collect();
        }
    }

    /// Settles a planned step, whose outputs are in the rows that `of` returns. A step beyond the
    /// end of the walk or of its block changes nothing.
    pub(crate) fn settle(
        &mut self,
        wiring: &Wiring,
        block: usize,
        node: u32,
        of: &dyn Fn(usize) -> CellRow,
    ) -> Result<MemberProgress, ExecError> {
        let mut progress = MemberProgress::default();
        let Some(extent) = self.extent.filter(|_| !self.is_padding(wiring, block, node)) else { return Ok(progress) };
        let cell = &wiring.cells[block];
        self.collect(wiring, block, node, of, &mut progress)?;
        if cell.steps == Steps::Nodes {
            // The host's copies are in these rows only.
            self.keep_of_node(wiring, block, node, of);
            self.nodes_left -= u32::from(!std::mem::replace(&mut self.nodes[node as usize].settled, true));
        } else {
            let at = Position { block: BlockId(block as u16), step: node };
            let ends = cell.end.filter(|_| cell.steps.ends_by_report());
            let end = ends.map(|end| of(end).to_host()).transpose()?;
            let ended = end.is_some_and(|end| end.bytes().iter().any(|&byte| byte != 0));
            let report = StepReport { ended, skip: None };
            let over = at.advance(cell.steps, wiring.cells.len(), extent, report) != Onward::Step;
            if over {
                let track = &mut self.blocks[block];
                track.over = true;
                track.previous.iter_mut().for_each(|row| *row = None);
                let keeps = cell.keeps.iter().enumerate();
                track.last = keeps.map(|(output, keep)| keep.held.then(|| of(output))).collect();
            }
            progress.ended = over && cell.steps.ends_by_report();
        }
        if self.is_complete(wiring) {
            progress.ended = true;
            progress.outputs = self.answer(wiring)?;
            self.clear();
        }
        Ok(progress)
    }

    /// Drops the steps of lower layers that all consumers have used.
    fn release_taken(&mut self, wiring: &Wiring, block: usize) {
        for feed in &wiring.cells[block].feeds {
            let FeedSource::Step(below, output) = feed.from else { continue };
            let users = &wiring.cells[below].keeps[output].stepped_by;
            let taken = users.iter().map(|&user| self.blocks[user].planned).min().unwrap_or(0);
            let ahead = &mut self.blocks[below].ahead[output];
            while ahead.begins < taken && ahead.steps.pop_front().is_some() {
                ahead.begins += 1;
            }
        }
    }
}

impl Ahead {
    fn at(&self, step: u32) -> Option<CellRow> {
        self.steps.get(step.checked_sub(self.begins)? as usize).cloned()
    }

    /// Keeps the row of a step, which follows the last one or replaces it.
    fn put(&mut self, step: u32, row: CellRow) {
        self.steps.truncate(step.saturating_sub(self.begins) as usize);
        self.steps.push_back(row);
    }
}

/// Returns the node whose output is the answer. For a tree, it is the root, which comes last; for a
/// graph, the last node in the client's table.
fn root(wiring: &Wiring, graph: &Graph) -> u32 {
    let last = graph.len() as u32 - 1;
    match wiring.shape.walk {
        ripieno_model::Walk::Graph => {
            (0..=last).rev().find(|&node| graph.origin(node) == last as usize).unwrap_or(last)
        }
        _ => last,
    }
}
