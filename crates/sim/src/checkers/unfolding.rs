//! Checks that each node of a walk that unfolds runs once, after all of its inputs.
//!
//! A step may be started while the one before it is in flight, but only behind it on the same
//! device; all other inputs must be complete. Rows beyond the end of a sequence are padding: they
//! are allowed unless the policy promises none, and steps that were queued before an end was known
//! are always allowed. A request whose task was lost starts its walk again, once none of its nodes
//! is in flight. So may a request between two steps when a device that ran some of them leaves,
//! since their results may be lost with it. All nodes of a request of a pinned model run on one
//! device, until it starts again.

use crate::observer::{End, Observer, Run};
use ripieno_base::{BlockId, DeviceId, RequestSlot, Time};
use ripieno_model::{Block, Graph, Model, Steps};
use ripieno_sched::{Request, Setup};

/// The progress of each request that unfolds, node by node.
#[derive(Debug)]
pub struct UnfoldingChecker {
    models: Vec<Model>,
    walks: Vec<Option<CheckedWalk>>,
    /// Output length and graph of the request that is accepted next.
    announced: Option<(u32, Option<Graph>)>,
    forbids_padding: bool,
}

#[derive(Debug)]
struct CheckedWalk {
    request: Request,
    output: u32,
    graph: Option<Graph>,
    /// Per block, steps started and steps done.
    lines: Vec<(u32, u32)>,
    /// Progress by node of the graph.
    nodes: Vec<Progress>,
    /// Per block, the device of the latest step.
    device: Vec<DeviceId>,
    /// The device of all nodes so far, of a pinned model.
    home: Option<DeviceId>,
    in_flight: u32,
    lost: bool,
    /// Whether a device that ran steps of it has left: it may continue elsewhere, or start again.
    stranded: bool,
    /// Whether its nodes in flight may be the first of another start, of which some graphs show
    /// only later ones.
    may_repeat: bool,
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Untouched,
    InFlight(DeviceId),
    Done,
}

impl UnfoldingChecker {
    pub(crate) fn new(setup: &Setup) -> UnfoldingChecker {
        let unfolds = setup.models.iter().any(|model| model.walk.is_unfolded());
        let slots = if unfolds { setup.limits.requests } else { 0 };
        UnfoldingChecker {
            models: setup.models.clone(),
            walks: (0..slots).map(|_| None).collect(),
            announced: None,
            forbids_padding: false,
        }
    }

    /// Makes a step beyond the end of a sequence whose length is known an error.
    pub(crate) fn forbid_padding(&mut self) {
        self.forbids_padding = true;
    }

    fn check_size(&self, now: Time, run: &Run<'_>) {
        let model = &self.models[run.model.index()];
        let most = model.blocks[run.block.index()].max_batch().min(model.max_batch);
        assert!(run.rows <= most, "a batch of {} rows of {:?}, which allows {most}, at {now:?}", run.rows, run.block);
    }
}

impl CheckedWalk {
    /// Checks the start of a member.
    fn start(&mut self, model: &Model, run: &Run<'_>, node: u32, forbids_padding: bool) {
        let repeats = match model.blocks[run.block.index()].steps {
            Steps::Nodes => self.nodes[node as usize] == Progress::Done,
            _ => node == 0 && self.lines[run.block.index()].0 > 0,
        };
        let anew = repeats || self.home.is_some_and(|home| home != run.device);
        if self.in_flight == 0 {
            self.may_repeat = std::mem::take(&mut self.stranded);
        }
        if (self.lost && self.in_flight == 0) || (self.may_repeat && anew) {
            self.start_over();
        }
        if model.pinned {
            let home = *self.home.get_or_insert(run.device);
            assert_eq!(home, run.device, "a request of a pinned model moved: {run:?}");
        }
        assert!(!self.over && !self.lost, "a node was started after its request had ended or was lost: {run:?}");
        self.in_flight += 1;
        let (block, steps) = (run.block.index(), model.blocks[run.block.index()].steps);
        if steps == Steps::Nodes {
            self.start_node(run.block, node, run.device);
            return;
        }
        let (started, done) = self.lines[block];
        assert_eq!(node, started, "the next step of block {block} is {started}, not {node}: {run:?}");
        let behind = done == started || self.device[block] == run.device;
        assert!(behind, "step {node} of block {block} was started before the one before it was done: {run:?}");
        assert!(self.is_open(model, block), "block {block} was started before what comes before it was done: {run:?}");
        let padding = steps != Steps::UntilEnd && node >= self.request.extent.steps(steps);
        assert!(!(padding && forbids_padding), "step {node} of block {block} is padding: {run:?}");
        self.lines[block].0 += 1;
        self.device[block] = run.device;
    }

    fn start_node(&mut self, block: BlockId, node: u32, device: DeviceId) {
        let graph = self.graph.as_ref().expect("a request of this model brings a graph");
        assert_eq!(graph.block(node), block, "node {node} is of another block");
        assert_eq!(self.nodes[node as usize], Progress::Untouched, "node {node} was started twice");
        for &input in graph.inputs(node).iter().filter(|&&input| input != Graph::NONE) {
            let met = match self.nodes[input as usize] {
                Progress::Untouched => false,
                Progress::InFlight(other) => other == device && graph.block(input) == block,
                Progress::Done => true,
            };
            assert!(met, "node {node} was started before its input {input}");
        }
        self.nodes[node as usize] = Progress::InFlight(device);
    }

    /// Returns whether all blocks before this one are done, except parallel ones.
    fn is_open(&self, model: &Model, block: usize) -> bool {
        let first = (0..=block).rev().find(|&at| !model.blocks[at].beside).unwrap_or(0);
        (0..first).all(|before| self.is_done(&model.blocks[before], before))
    }

    fn is_done(&self, block: &Block, at: usize) -> bool {
        match block.steps {
            Steps::Nodes => self.nodes.iter().all(|node| *node == Progress::Done),
            steps => self.lines[at].1 >= self.steps(steps),
        }
    }

    /// Returns the true number of steps of the request.
    fn steps(&self, steps: Steps) -> u32 {
        match (steps, self.output) {
            (Steps::UntilEnd, output) if output > 0 => output.min(self.request.extent.limit),
            _ => self.request.extent.steps(steps),
        }
    }

    fn complete(&mut self, run: &Run<'_>, steps: Steps, node: u32, lost: bool) {
        self.in_flight -= 1;
        self.may_repeat = false;
        self.lost |= lost && !self.over;
        match steps {
            Steps::Nodes => self.nodes[node as usize] = Progress::Done,
            _ => self.lines[run.block.index()].1 += 1,
        }
    }

    fn start_over(&mut self) {
        (self.lost, self.home, self.may_repeat) = (false, None, false);
        self.lines.fill((0, 0));
        let done = self.nodes.iter_mut().filter(|node| **node == Progress::Done);
        done.for_each(|node| *node = Progress::Untouched);
    }
}

impl Observer for UnfoldingChecker {
    fn unfolds(&mut self, _slot: RequestSlot, output: u32, graph: Option<&Graph>) {
        self.announced = Some((output, graph.cloned()));
    }

    fn accepted(&mut self, _id: u64, request: &Request) {
        let model = &self.models[request.model.index()];
        if !model.walk.is_unfolded() {
            return;
        }
        let (output, graph) = self.announced.take().expect("the world tells of what unfolds");
        let blocks = model.blocks.len();
        let nodes = vec![Progress::Untouched; graph.as_ref().map_or(0, Graph::len)];
        let before = self.walks[request.slot.index()].replace(CheckedWalk {
            request: *request,
            output,
            graph,
            lines: vec![(0, 0); blocks],
            nodes,
            device: vec![DeviceId(0); blocks],
            home: None,
            in_flight: 0,
            lost: false,
            stranded: false,
            may_repeat: false,
            over: false,
        });
        assert!(before.is_none_or(|walk| walk.over && walk.in_flight == 0), "a slot was reused while tasks name it");
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        let model = &self.models[run.model.index()];
        if !model.walk.is_unfolded() {
            return;
        }
        self.check_size(now, run);
        assert_eq!(run.nodes.len(), run.slots.len(), "every member of a walk that unfolds has a node: {run:?}");
        for (slot, &node) in run.slots.iter().zip(run.nodes) {
            let walk = self.walks[slot.index()].as_mut().expect("members were accepted");
            walk.start(model, run, node, self.forbids_padding);
        }
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let model = &self.models[run.model.index()];
        if !model.walk.is_unfolded() {
            return;
        }
        let steps = model.blocks[run.block.index()].steps;
        for (slot, &node) in run.slots.iter().zip(run.nodes) {
            let walk = self.walks[slot.index()].as_mut().expect("members were accepted");
            // Only lost tasks end early.
            walk.complete(run, steps, node, now < run.end);
        }
    }

    fn left(&mut self, device: DeviceId) {
        for walk in self.walks.iter_mut().flatten() {
            let ran = walk.lines.iter().zip(&walk.device).any(|(line, last)| line.0 > 0 && *last == device);
            walk.stranded |= walk.home == Some(device) || (walk.graph.is_none() && ran);
        }
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        let model = &self.models[request.model.index()];
        let Some(walk) = self.walks.get_mut(request.slot.index()).and_then(Option::as_mut) else { return };
        if !model.walk.is_unfolded() {
            return;
        }
        walk.over = true;
        let complete = model.blocks.iter().enumerate().all(|(at, block)| walk.is_done(block, at));
        assert!(end != End::Finished || complete, "request {id} was answered at {now:?} before its walk was complete");
    }
}
