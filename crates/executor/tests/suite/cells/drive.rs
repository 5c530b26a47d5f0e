//! Runs requests in random batches on any number of devices: stricter than any real scheduler.

use super::models::{Random, Sent};
use crate::common::*;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::*;
use ripieno_model::{Graph, Steps, Walk};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// A model on some devices of one engine.
pub(crate) struct Bench {
    pub(crate) devices: Vec<(Box<dyn Device>, Receiver<TaskResult>)>,
    pub(crate) model: Arc<dyn LoadedModel>,
    pub(crate) source: ModelSource,
}

impl Bench {
    pub(crate) fn new(engine: &dyn Executor, source: ModelSource, devices: usize) -> Bench {
        let model = engine.load(&source).unwrap_or_else(|cause| panic!("{cause}"));
        Bench::of_model(engine, model, source, devices)
    }

    pub(crate) fn of_model(
        engine: &dyn Executor,
        model: Arc<dyn LoadedModel>,
        source: ModelSource,
        devices: usize,
    ) -> Bench {
        let open = |_| {
            let (sender, results) = channel();
            let device = engine.open(1, Arc::new(move |result| drop(sender.send(result)))).unwrap();
            device.attach(ModelId(0), Arc::clone(&model));
            (device, results)
        };
        Bench { devices: (0..devices).map(open).collect(), model, source }
    }

    pub(crate) fn entry(&self, inputs: Vec<Tensor>) -> Result<Arc<RequestEntry>, RequestError> {
        let (extent, graph) = self.model.describe(&inputs)?;
        Ok(Arc::new(RequestEntry { extent, graph: graph.map(Arc::new), ..RequestEntry::of(inputs.into()) }))
    }

    pub(crate) fn submit(&self, device: usize, block: usize, members: Vec<TaskMember>) {
        let task = Task {
            id: TaskId(0),
            model: ModelId(0),
            block: BlockId(block as u16),
            lane: LaneId(0),
            length: 1,
            members,
            not_before: None,
        };
        self.devices[device].0.submit(task).unwrap();
    }

    pub(crate) fn result(&self, device: usize) -> Result<Vec<MemberProgress>, ExecError> {
        self.devices[device].1.recv_timeout(PATIENCE).unwrap().outcome
    }

    pub(crate) fn run(&self, device: usize, block: usize, members: Vec<TaskMember>) -> Vec<MemberProgress> {
        self.submit(device, block, members);
        self.result(device).unwrap_or_else(|cause| panic!("{cause}"))
    }

    /// Returns all answers, in the order of the requests; up to `live` requests run concurrently,
    /// in random batches.
    pub(crate) fn answer_all(&self, requests: &[Vec<Tensor>], live: usize, random: &mut Random) -> Vec<Vec<Tensor>> {
        let mut answers = vec![Vec::new(); requests.len()];
        let mut next = requests.iter().enumerate();
        let mut seats: Vec<Option<Live>> = (0..live).map(|_| None).collect();
        loop {
            for seat in seats.iter_mut().filter(|seat| seat.is_none()) {
                *seat = next.next().map(|(number, inputs)| Live::new(self, number, inputs.clone()));
            }
            let ready: Vec<(usize, usize, u32)> = seats
                .iter()
                .enumerate()
                .flat_map(|(at, seat)| {
                    seat.iter().flat_map(move |live| live.ready.iter().map(move |&(b, n)| (at, b, n)))
                })
                .collect();
            let Some(&(_, block, _)) = ready.get(random.below(ready.len().max(1))) else { return answers };
            let mut batch: Vec<(usize, u32)> =
                ready.iter().filter(|of| of.1 == block).map(|&(at, _, node)| (at, node)).collect();
            if random.below(3) == 0 {
                (1..batch.len()).for_each(|at| batch.swap(at, random.below(at + 1)));
            }
            batch.truncate(1 + random.below(MAX_BATCH));
            let device = random.below(self.devices.len());
            let members =
                batch.iter().map(|&(at, node)| seats[at].as_mut().unwrap().member(at, node, device)).collect();
            for (&(at, node), progress) in batch.iter().zip(self.run(device, block, members)) {
                let seat = seats[at].as_mut().unwrap();
                if seat.advance(&self.source, block, node, progress.ended) {
                    assert!(progress.ended, "the last cell ends the walk");
                    answers[seat.number] = progress.outputs;
                    seats[at] = None;
                } else {
                    assert!(progress.outputs.is_empty());
                }
            }
        }
    }
}

/// A request in progress.
struct Live {
    number: usize,
    entry: Arc<RequestEntry>,
    known_on: BTreeSet<usize>,
    /// Block and node.
    ready: Vec<(usize, u32)>,
    done: BTreeSet<(usize, u32)>,
    over: bool,
}

impl Live {
    fn new(bench: &Bench, number: usize, inputs: Vec<Tensor>) -> Live {
        let entry = bench.entry(inputs).unwrap_or_else(|cause| panic!("{cause}"));
        let (known_on, done) = (BTreeSet::new(), BTreeSet::new());
        let mut live = Live { number, entry, known_on, ready: Vec::new(), done, over: false };
        live.find_ready(&bench.source);
        live
    }

    fn member(&mut self, slot: usize, node: u32, device: usize) -> TaskMember {
        let entry = self.known_on.insert(device).then(|| Arc::clone(&self.entry));
        TaskMember { node, ..TaskMember::new(RequestSlot(slot as u32), 1, entry) }
    }

    /// Advances a request; returns whether it is complete.
    fn advance(&mut self, source: &ModelSource, block: usize, node: u32, ended: bool) -> bool {
        self.done.insert((block, node));
        self.over |= ended && source.blocks[block].steps == Steps::UntilEnd;
        self.find_ready(source);
        self.ready.is_empty()
    }

    fn find_ready(&mut self, source: &ModelSource) {
        let length = self.entry.extent.length;
        let done = |block: usize| self.done.iter().filter(|done| done.0 == block).count() as u32;
        let complete = |block: usize| match source.blocks[block].steps {
            Steps::Once => done(block) == 1,
            Steps::Length => done(block) == length,
            Steps::UntilEnd => self.over,
            Steps::Nodes => {
                (0..source.blocks.len()).filter(|&at| source.blocks[at].steps == Steps::Nodes).map(done).sum::<u32>()
                    == length
            }
        };
        let mut ready = Vec::new();
        for (block, of) in source.blocks.iter().enumerate().filter(|&(block, _)| !complete(block)) {
            match of.steps {
                Steps::Nodes => ready.extend(self.ready_nodes(block).into_iter().map(|node| (block, node))),
                Steps::Length if source.walk == Walk::Stacked && block > 0 && done(block) >= done(block - 1) => {}
                Steps::Length => ready.push((block, done(block))),
                _ if (0..block).all(complete) => ready.push((block, done(block))),
                _ => {}
            }
        }
        self.ready = ready;
    }

    fn ready_nodes(&self, block: usize) -> Vec<u32> {
        let graph = self.entry.graph.as_ref().unwrap();
        let is_done = |node: u32| self.done.contains(&(graph.block(node).index(), node));
        let free = |&node: &u32| {
            graph.block(node).index() == block
                && !is_done(node)
                && graph.inputs(node).iter().all(|&input| input == Graph::NONE || is_done(input))
        };
        (0..graph.len() as u32).filter(free).collect()
    }
}

/// Requests of mixed lengths.
pub(crate) fn mixed(walk: Walk, count: usize, random: &mut Random) -> Vec<Sent> {
    (0..count).map(|_| Sent::random(walk, random, 24)).collect()
}
