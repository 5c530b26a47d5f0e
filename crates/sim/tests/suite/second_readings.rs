//! Second implementations of two published algorithms, straight from their text and as simple as
//! possible, compared with the policies task by task over random cases: Algorithm 1 of "Low Latency
//! RNN Inference with Cellular Batching" on encoders and decoders, and "LazyBatching: An SLA-aware
//! Batching System for Cloud Machine Learning Inference" (section IV, with the slack of Equation 2)
//! on chains.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Block, Extent, Model, Profile, Steps, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, Request, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Run, World};
use ripieno_workload::{stream, unit};
use std::collections::VecDeque;

const CASES: u64 = 300;

/// A task: start, end, device, block, and members.
type Row = (Time, Time, u16, u16, Vec<usize>);

/// The tasks, and the end of each request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    tasks: Vec<Row>,
    answers: Vec<(usize, Time)>,
}

impl Log {
    fn task(&mut self, (start, end): (Time, Time), (device, block): (usize, usize), mut of: Vec<usize>) {
        of.sort_unstable();
        self.tasks.push((start, end, device as u16, block as u16, of));
    }

    fn sorted(mut self) -> Log {
        self.tasks.sort();
        self.answers.sort_unstable();
        self
    }
}

impl Observer for Log {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let of = run.ids.iter().map(|&id| id as usize - 1).collect();
        self.task((run.start, run.end), (run.device.index(), run.block.index()), of);
    }

    fn ended(&mut self, now: Time, id: u64, _request: &Request, end: End) {
        assert_eq!(end, End::Finished);
        self.answers.push((id as usize - 1, now));
    }
}

/// A random case.
struct Case {
    model: Model,
    devices: usize,
    max_tasks: usize,
    arrivals: Vec<Arrival>,
}

impl Case {
    fn simulated(&self, policy: &str, knobs: &str) -> Log {
        let (requests, devices) = (self.arrivals.len(), self.devices);
        let limits = Limits { requests, devices, depth: 5, batch: self.model.max_batch, ..Limits::ONE };
        let setup = Setup { models: vec![self.model.clone()], devices, limits };
        let mut scheduler = build(policy, &setup, &options(knobs)).unwrap();
        let (mut log, mut checkers) = (Log::default(), Checkers::new(&setup));
        World::new(scheduler.as_mut(), &setup).run(self.arrivals.iter().copied(), [], &mut [&mut checkers, &mut log]);
        checkers.finish();
        log.sorted()
    }

    fn latency(&self, block: usize, rows: usize) -> Nanos {
        self.model.blocks[block].profile.latency(rows)
    }
}

/// Whole numbers below a bound, and times, from one stream.
struct Random(ripieno_workload::SeededRng);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        (unit(&mut self.0) * bound as f64) as usize
    }

    fn nanos(&mut self, from: f64, to: f64) -> Nanos {
        Nanos((1e6 * (from + (to - from) * unit(&mut self.0))) as i64)
    }

    /// A batch never takes less time than a smaller one.
    fn block(&mut self, name: &str, steps: Steps, priority: u32, max_batch: usize) -> Block {
        let mut latency = self.nanos(0.5, 3.0);
        let mut table = vec![latency];
        for _ in 1..max_batch {
            latency += self.nanos(0.0, 0.3);
            table.push(latency);
        }
        Block { steps, priority, ..Block::new(name, Profile::from_table(&table).unwrap()) }
    }
}

fn model(walk: Walk, blocks: Vec<Block>, slo: Nanos) -> Model {
    let max_batch = blocks.iter().map(Block::max_batch).max().unwrap();
    let (name, instances) = ("m".to_owned(), usize::MAX);
    Model {
        name,
        blocks,
        walk,
        slo,
        max_batch,
        instances,
        drop: None,
        weight: 1,
        dec_timesteps: None,
        in_arrival_order: false,
        pinned: false,
    }
}

/// Cells of an encoder and a decoder on one to three workers. In every third case the ends of
/// decoders are not known in advance; there one task at a time is submitted, since steps queued
/// beyond an unknown end are wasted.
fn cells(seed: u64) -> Case {
    let mut random = Random(stream(seed, 0));
    let is_hidden = seed.is_multiple_of(3);
    let sizes = [1 + random.below(6), 1 + random.below(6)];
    let blocks = vec![
        random.block("encoder", Steps::Length, 0, sizes[0]),
        random.block("decoder", Steps::UntilEnd, 1, sizes[1]),
    ];
    let gap = 2.0 + random.below(30) as f64;
    let mut at = Time::ORIGIN;
    let arrivals = (0..20 + random.below(30)).map(|_| {
        at = at + random.nanos(0.0, gap);
        let (length, output) = (1 + random.below(12) as u32, 1 + random.below(12) as u32);
        let extent = Extent { length, limit: output + if is_hidden { random.below(8) as u32 } else { 0 } };
        Arrival { extent, output, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(100_000)) }
    });
    let arrivals = arrivals.collect();
    let (devices, max_tasks) = (1 + random.below(3), if is_hidden { 1 } else { 1 + random.below(5) });
    Case { model: model(Walk::EncodeDecode, blocks, Nanos::from_millis(100_000)), devices, max_tasks, arrivals }
}

/// Chains of two to six blocks on one device, with SLOs from hardly to easily met.
fn chain(seed: u64) -> Case {
    let mut random = Random(stream(seed, 1));
    let (count, max_batch) = (2 + random.below(5), 1 + random.below(8));
    let blocks: Vec<Block> = (0..count).map(|at| random.block(&format!("b{at}"), Steps::Once, 0, max_batch)).collect();
    let alone: Nanos = blocks.iter().map(|block| block.profile.latency(1)).sum();
    let slo = Nanos(alone.0 * (1 + random.below(12)) as i64) + random.nanos(0.0, 1.0);
    let gap = alone.as_millis_f64() * (0.2 + 2.0 * unit(&mut random.0));
    let mut at = Time::ORIGIN;
    let arrivals = (0..20 + random.below(40)).map(|_| {
        at = at + random.nanos(0.0, gap);
        Arrival::new(at, ModelId(0), at + slo)
    });
    let arrivals = arrivals.collect();
    Case { model: model(Walk::Chain, blocks, slo), devices: 1, max_tasks: 1, arrivals }
}

/// The encoder's or the decoder's steps of one request.
#[derive(Clone)]
struct Subgraph {
    steps: u32,
    submitted: u32,
    done: u32,
    released: bool,
    /// The worker that runs tasks of it, and their number.
    pinned: Option<usize>,
    flying: u32,
}

impl Subgraph {
    /// Steps follow each other, so at most one is ready: the previous one counts as done once it is
    /// submitted.
    fn is_ready(&self, worker: usize) -> bool {
        self.released && self.submitted < self.steps && self.pinned.is_none_or(|pinned| pinned == worker)
    }
}

struct Submitted {
    cell: usize,
    end: Time,
    of: Vec<usize>,
}

/// BatchMaker: per cell type the subgraphs in the order of arrival, per worker its tasks.
struct BatchMaker<'a> {
    case: &'a Case,
    subgraphs: [Vec<Subgraph>; 2],
    workers: Vec<VecDeque<Submitted>>,
    log: Log,
}

impl BatchMaker<'_> {
    fn ready(&self, cell: usize, worker: usize) -> Vec<usize> {
        let all = self.subgraphs[cell].iter().enumerate();
        all.filter(|(_, subgraph)| subgraph.is_ready(worker)).map(|(of, _)| of).collect()
    }

    fn schedule(&mut self, now: Time, worker: usize) {
        let most = |cell: usize| self.case.model.blocks[cell].max_batch();
        let running = |cell: usize| self.workers.iter().flatten().filter(|task| task.cell == cell).count();
        let ready = |cell: usize| self.ready(cell, worker).len();
        // The decoder has the higher priority.
        let highest = |eligible: &dyn Fn(usize) -> bool| [1, 0].into_iter().find(|&cell| eligible(cell));
        let full = highest(&|cell| ready(cell) >= most(cell));
        let chosen = full
            .or_else(|| highest(&|cell| running(cell) == 0 && ready(cell) > 0))
            .or_else(|| highest(&|cell| ready(cell) > 0));
        let Some(cell) = chosen else { return };
        let most = most(cell);
        for _ in 0..self.case.max_tasks {
            let mut of = self.ready(cell, worker);
            of.truncate(most);
            if of.is_empty() {
                break;
            }
            for &request in &of {
                let subgraph = &mut self.subgraphs[cell][request];
                subgraph.submitted += 1;
                subgraph.flying += 1;
                subgraph.pinned = Some(worker);
            }
            let start = self.workers[worker].back().map_or(now, |before| before.end);
            let end = start + self.case.latency(cell, of.len());
            self.log.task((start, end), (worker, cell), of.clone());
            self.workers[worker].push_back(Submitted { cell, end, of });
        }
    }

    fn complete(&mut self, now: Time, worker: usize) {
        let task = self.workers[worker].pop_front().unwrap();
        for request in task.of {
            let subgraph = &mut self.subgraphs[task.cell][request];
            subgraph.done += 1;
            subgraph.flying -= 1;
            if subgraph.flying == 0 {
                subgraph.pinned = None;
            }
            if subgraph.done == subgraph.steps {
                match task.cell {
                    0 => self.subgraphs[1][request].released = true,
                    _ => self.log.answers.push((request, now)),
                }
            }
        }
    }

    fn run(case: &Case) -> Log {
        let new = |steps: u32| Subgraph { steps, submitted: 0, done: 0, released: false, pinned: None, flying: 0 };
        let of = |steps: fn(&Arrival) -> u32| case.arrivals.iter().map(|arrival| new(steps(arrival))).collect();
        let subgraphs = [of(|arrival| arrival.extent.length), of(|arrival| arrival.output)];
        let workers = (0..case.devices).map(|_| VecDeque::new()).collect();
        let mut maker = BatchMaker { case, subgraphs, workers, log: Log::default() };
        let mut arrived = 0;
        loop {
            let ends = maker.workers.iter().filter_map(|tasks| Some(tasks.front()?.end));
            let arrival = case.arrivals.get(arrived).map(|arrival| arrival.at);
            let Some(now) = ends.chain(arrival).min() else { return maker.log.sorted() };
            for worker in 0..case.devices {
                while maker.workers[worker].front().is_some_and(|task| task.end == now) {
                    maker.complete(now, worker);
                }
            }
            while case.arrivals.get(arrived).is_some_and(|arrival| arrival.at == now) {
                maker.subgraphs[0][arrived].released = true;
                arrived += 1;
            }
            for worker in 0..case.devices {
                if maker.workers[worker].is_empty() {
                    maker.schedule(now, worker);
                }
            }
        }
    }
}

/// LazyBatching on one device: the queue, the stack of sub-batches, and the first issue of each
/// request.
fn lazy_batching(case: &Case) -> Log {
    let blocks = case.model.blocks.len();
    let single: Nanos = (0..blocks).map(|block| case.latency(block, 1)).sum();
    let (mut queue, mut stack, mut log) = (VecDeque::new(), Vec::<(usize, Vec<usize>)>::new(), Log::default());
    let mut issued = vec![Time::ORIGIN; case.arrivals.len()];
    let (mut arrived, mut now) = (0, Time::ORIGIN);
    while log.answers.len() < case.arrivals.len() {
        if queue.is_empty() && stack.is_empty() {
            now = now.max(case.arrivals[arrived].at);
        }
        while case.arrivals.get(arrived).is_some_and(|arrival| arrival.at <= now) {
            queue.push_back(arrived);
            arrived += 1;
        }
        let held: Vec<usize> = stack.iter().flat_map(|(_, of)| of).copied().collect();
        let room = case.model.max_batch - held.len();
        let mut joining = 0;
        // Equation 2 for each request: the SLA less its wait until it was issued, less the single
        // times of all.
        let slack = |request: usize, since: Time, count: usize| {
            case.model.slo - (since - case.arrivals[request].at) - single * count as i64
        };
        for count in 1..=room.min(queue.len()) {
            let together = held.len() + count;
            let no_request_is_late = held.iter().all(|&request| slack(request, issued[request], together).0 >= 0)
                && queue.iter().take(count).all(|&request| slack(request, now, together).0 >= 0);
            if !held.is_empty() && !no_request_is_late {
                break;
            }
            joining = count;
        }
        if joining > 0 {
            let newcomers: Vec<usize> = queue.drain(..joining).collect();
            newcomers.iter().for_each(|&request| issued[request] = now);
            stack.push((0, newcomers));
        }
        merge(&mut stack);
        let (block, of) = stack.last_mut().unwrap();
        let end = now + case.latency(*block, of.len());
        log.task((now, end), (0, *block), of.clone());
        now = end;
        *block += 1;
        if *block == blocks {
            log.answers.extend(of.iter().map(|&request| (request, end)));
            stack.pop();
        }
        merge(&mut stack);
    }
    log.sorted()
}

/// The two topmost sub-batches at one node become one.
fn merge(stack: &mut Vec<(usize, Vec<usize>)>) {
    while let [.., (below, _), (top, _)] = stack.as_slice()
        && below == top
    {
        let (_, of) = stack.pop().unwrap();
        stack.last_mut().unwrap().1.extend(of);
    }
}

#[test]
fn algorithm_1_of_batchmaker_task_by_task() {
    let mut joined = 0;
    for seed in 0..CASES {
        let case = cells(seed);
        let simulated = case.simulated("cellular", &format!("max_tasks={}", case.max_tasks));
        assert_eq!(simulated, BatchMaker::run(&case), "seed {seed}");
        joined += simulated.tasks.iter().filter(|task| task.4.len() > 1).count();
    }
    assert!(joined > 1000, "{joined} tasks of several requests");
}

#[test]
fn lazy_batching_task_by_task() {
    let (mut preempted, mut joined) = (0, 0);
    for seed in 0..CASES {
        let case = chain(seed);
        let simulated = case.simulated("lazy", "");
        assert_eq!(simulated, lazy_batching(&case), "seed {seed}");
        let blocks: Vec<u16> = simulated.tasks.iter().map(|task| task.3).collect();
        preempted +=
            blocks.windows(2).filter(|pair| pair[1] == 0 && usize::from(pair[0]) + 1 < case.model.blocks.len()).count();
        joined += simulated.tasks.iter().filter(|task| task.4.len() > 1).count();
    }
    assert!(preempted > 300 && joined > 1000, "{preempted} preempted, {joined} tasks of several requests");
}
