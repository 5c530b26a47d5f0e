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
use ripieno_base::{DeviceId, RequestSlot, Time};
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
    /// Possible pasts: more than one where the walk may continue or have started again, until a
    /// node tells which.
    histories: Vec<WalkHistory>,
    in_flight: u32,
    lost: bool,
    /// Whether a device that ran steps of it has left: it may continue elsewhere, or start again.
    stranded: bool,
    over: bool,
}

/// The nodes of a walk since it started.
#[derive(Clone, Debug)]
struct WalkHistory {
    /// Per block, steps started and steps done.
    lines: Vec<(u32, u32)>,
    /// Progress by node of the graph.
    nodes: Vec<Progress>,
    /// Per block, the device of the latest step.
    device: Vec<DeviceId>,
    /// The device of all nodes so far, of a pinned model.
    home: Option<DeviceId>,
}

/// A node of a walk that a task runs.
#[derive(Clone, Copy)]
struct Started<'a> {
    model: &'a Model,
    run: &'a Run<'a>,
    node: u32,
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
    fn start(&mut self, started: Started<'_>, forbids_padding: bool) {
        let Started { model, run, node } = started;
        self.start_again(model.blocks.len());
        assert!(!self.over && !self.lost, "a node was started after its request had ended or was lost: {run:?}");
        let padding = pads(&self.request, started);
        assert!(!(padding && forbids_padding), "step {node} of block {:?} is padding: {run:?}", run.block);
        let CheckedWalk { request, output, graph, histories, .. } = self;
        let steps = |steps| true_steps(request, *output, steps);
        let mut why = None;
        histories.retain_mut(|history| match history.start(started, graph.as_ref(), &steps) {
            Ok(()) => true,
            Err(error) => {
                why.get_or_insert(error);
                false
            }
        });
        assert!(!histories.is_empty(), "{}: {run:?}", why.unwrap_or_default());
        self.in_flight += 1;
    }

    /// Adds a fresh start, once no node is in flight: a lost walk has no other past, a stranded
    /// one may have.
    fn start_again(&mut self, blocks: usize) {
        if self.in_flight > 0 || self.over {
            return;
        }
        let stranded = std::mem::take(&mut self.stranded);
        if std::mem::take(&mut self.lost) {
            self.histories.clear();
        } else if !stranded {
            return;
        }
        self.histories.push(WalkHistory::new(blocks, self.graph.as_ref()));
    }

    fn complete(&mut self, run: &Run<'_>, steps: Steps, node: u32, lost: bool) {
        self.in_flight -= 1;
        self.lost |= lost && !self.over;
        for history in &mut self.histories {
            match steps {
                Steps::Nodes => history.nodes[node as usize] = Progress::Done,
                _ => history.lines[run.block.index()].1 += 1,
            }
        }
    }

    fn ran_on(&self, device: DeviceId) -> bool {
        let lines = self.graph.is_none();
        self.histories.iter().any(|history| {
            let mut steps = history.lines.iter().zip(&history.device);
            history.home == Some(device) || (lines && steps.any(|(line, last)| line.0 > 0 && *last == device))
        })
    }

    fn is_complete(&self, model: &Model) -> bool {
        let steps = |steps| true_steps(&self.request, self.output, steps);
        let mut histories = self.histories.iter();
        histories.any(|history| (0..model.blocks.len()).all(|at| history.is_done(&model.blocks[at], at, &steps)))
    }
}

/// Returns the true number of steps of a request.
fn true_steps(request: &Request, output: u32, steps: Steps) -> u32 {
    match (steps, output) {
        (Steps::UntilEnd, output) if output > 0 => output.min(request.extent.limit),
        _ => request.extent.steps(steps),
    }
}

/// Returns whether a step lies beyond the end of a sequence whose length is known.
fn pads(request: &Request, Started { model, run, node }: Started<'_>) -> bool {
    let steps = model.blocks[run.block.index()].steps;
    !matches!(steps, Steps::UntilEnd | Steps::Nodes) && node >= request.extent.steps(steps)
}

impl WalkHistory {
    fn new(blocks: usize, graph: Option<&Graph>) -> WalkHistory {
        WalkHistory {
            lines: vec![(0, 0); blocks],
            nodes: vec![Progress::Untouched; graph.map_or(0, Graph::len)],
            device: vec![DeviceId(0); blocks],
            home: None,
        }
    }

    /// Adds a node, or says why it cannot be the next one.
    fn start(
        &mut self,
        Started { model, run, node }: Started<'_>,
        graph: Option<&Graph>,
        steps: &impl Fn(Steps) -> u32,
    ) -> Result<(), String> {
        if model.pinned && *self.home.get_or_insert(run.device) != run.device {
            return Err("a request of a pinned model moved".to_owned());
        }
        let block = run.block.index();
        if model.blocks[block].steps == Steps::Nodes {
            return self.start_node(graph.expect("a request of this model brings a graph"), run, node);
        }
        let (started, done) = self.lines[block];
        if node != started {
            return Err(format!("the next step of block {block} is {started}, not {node}"));
        }
        if done != started && self.device[block] != run.device {
            return Err(format!("step {node} of block {block} was started before the one before it was done"));
        }
        if !self.is_open(model, block, steps) {
            return Err(format!("block {block} was started before what comes before it was done"));
        }
        self.lines[block].0 += 1;
        self.device[block] = run.device;
        Ok(())
    }

    fn start_node(&mut self, graph: &Graph, run: &Run<'_>, node: u32) -> Result<(), String> {
        if graph.block(node) != run.block {
            return Err(format!("node {node} is of another block"));
        }
        if self.nodes[node as usize] != Progress::Untouched {
            return Err(format!("node {node} was started twice"));
        }
        for &input in graph.inputs(node).iter().filter(|&&input| input != Graph::NONE) {
            let met = match self.nodes[input as usize] {
                Progress::Untouched => false,
                Progress::InFlight(other) => other == run.device && graph.block(input) == run.block,
                Progress::Done => true,
            };
            if !met {
                return Err(format!("node {node} was started before its input {input}"));
            }
        }
        self.nodes[node as usize] = Progress::InFlight(run.device);
        Ok(())
    }

    /// Returns whether all blocks before this one are done, except parallel ones.
    fn is_open(&self, model: &Model, block: usize, steps: &impl Fn(Steps) -> u32) -> bool {
        let first = (0..=block).rev().find(|&at| !model.blocks[at].beside).unwrap_or(0);
        (0..first).all(|before| self.is_done(&model.blocks[before], before, steps))
    }

    fn is_done(&self, block: &Block, at: usize, steps: &impl Fn(Steps) -> u32) -> bool {
        match block.steps {
            Steps::Nodes => self.nodes.iter().all(|node| *node == Progress::Done),
            kind => self.lines[at].1 >= steps(kind),
        }
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
        let histories = vec![WalkHistory::new(model.blocks.len(), graph.as_ref())];
        let before = self.walks[request.slot.index()].replace(CheckedWalk {
            request: *request,
            output,
            graph,
            histories,
            in_flight: 0,
            lost: false,
            stranded: false,
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
            walk.start(Started { model, run, node }, self.forbids_padding);
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
            walk.stranded |= walk.ran_on(device);
        }
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        let model = &self.models[request.model.index()];
        let Some(walk) = self.walks.get_mut(request.slot.index()).and_then(Option::as_mut) else { return };
        if !model.walk.is_unfolded() {
            return;
        }
        walk.over = true;
        assert!(
            end != End::Finished || walk.is_complete(model),
            "request {id} was answered at {now:?} before its walk was complete"
        );
    }
}
