//! What a request will take of a model's devices, and how far that has been wrong.

use crate::Request;
use ripieno_base::{Nanos, Time};
use ripieno_model::{Block, Model, Steps};

/// A factor is taken from about so many requests' worth of work.
const MEMORY: i64 = 256;
const ONE: i64 = 1024;
/// As if so many requests had cost just what the profile says.
const PRIOR: i64 = 16;
/// What is learnt may be off by so much at most.
const MOST: i64 = 64;
/// What was learnt fades by one part in so many with each task that teaches nothing.
const FORGET: i64 = 512;
/// Late answers are counted in hundredths.
const LATE: u64 = 100;
/// Of a thousand batches, so many are late by luck.
const LUCK: i64 = 10;
/// A margin takes this part of the latency target at most.
const MOST_MARGIN: (u64, u64) = (1, 2);
/// A late batch asks for this part of the latency target as margin.
const GAIN: i64 = 32;
/// Batches from which a margin is judged.
const TRIAL: u64 = 64;

/// The costs of a model.
#[derive(Debug)]
pub(crate) struct LearntCost {
    model: Box<Model>,
    /// For each block the batch in which its work is reckoned.
    batches: Vec<usize>,
    /// For each number of rows up to the largest of these batches, how much more a row takes in a batch of so many; in parts
    /// of [`ONE`].
    scales: Vec<i64>,
    /// Device time that tasks took, and what their work was thought to take: of tasks for which there was enough to fill a
    /// batch, since those are as full as the policy makes them.
    used: i64,
    thought: i64,
    /// Of requests of a chain that were answered, the work that they ran and that of all blocks: some leave early, or skip blocks.
    ran: i64,
    whole: i64,
    /// Steps of blocks that run until their end, and requests that took them.
    steps: u64,
    requests: u64,
    /// By how much predictions are too early, and what is seen of it.
    margin: Nanos,
    trial: Trial,
}

/// The outcomes of requests that were let in since the margin was set: earlier ones say nothing of it. Those of a batch are late
/// together, so batches are counted and not requests: one unlucky batch of many is one case.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    since: Time,
    batches: u64,
    /// Batches that were late; of those that were in part, the part. In hundredths.
    late: u64,
    /// The outcomes since the last task ended, and how many of them are late.
    last: (u64, u64),
}

impl LearntCost {
    pub(crate) fn new(model: Box<Model>, devices: usize) -> LearntCost {
        let (margin, trial) = (first_margin(&model), Trial::default());
        let mut cost = LearntCost {
            model,
            batches: Vec::new(),
            scales: Vec::new(),
            used: 0,
            thought: 0,
            ran: 0,
            whole: 0,
            steps: 0,
            requests: 0,
            margin,
            trial,
        };
        cost.reckon(devices);
        cost
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Derives what follows from profiles, after a change of them. Batches of a chain are as large as staggered execution
    /// allows within the SLO; cells as large as pays, since requests join and leave between them.
    pub(crate) fn reckon(&mut self, devices: usize) {
        let model = &self.model;
        let within = |block: &Block| model.max_batch.min(block.profile.max_batch());
        self.batches = if model.walk.is_unfolded() {
            model.blocks.iter().map(|block| block.profile.preferred().min(block.max_batch())).collect()
        } else {
            let span = model.slo.scale(devices as u64, devices as u64 + 1);
            let most = model.profile().largest_within(span).max(1);
            model.blocks.iter().map(|block| most.min(within(block))).collect()
        };
        let most = self.batches.iter().copied().max().unwrap_or(1);
        self.scales = (1..=most).map(|rows| self.scale_of(rows)).collect();
        let prior = self.each_ns().max(1) * PRIOR;
        (self.ran, self.whole) = (prior, prior);
        self.unlearn();
    }

    /// Forgets how far profiles were wrong.
    pub(crate) fn unlearn(&mut self) {
        let prior = self.each_ns().max(1) * PRIOR;
        (self.used, self.thought) = (prior, prior);
    }

    /// A profile has changed: what was learnt was the old one's error.
    pub(crate) fn renew(&mut self, now: Time, devices: usize) {
        self.reckon(devices);
        (self.margin, self.trial) = (first_margin(&self.model), Trial { since: now, ..Trial::default() });
    }

    /// How often a request runs a block.
    fn steps(&self, block: &Block, request: &Request) -> i64 {
        let graphs = self.model.blocks.iter().filter(|block| block.steps == Steps::Nodes).count() as i64;
        match block.steps {
            Steps::Once => 1,
            Steps::Length => i64::from(request.extent.length),
            Steps::Nodes => i64::from(request.extent.length).div_euclid(graphs).max(1),
            Steps::UntilEnd => self.steps_until_end(request.extent.limit),
        }
    }

    /// How often a request runs a block of which nobody knows when it ends: as often as others did, at first half its limit.
    fn steps_until_end(&self, limit: u32) -> i64 {
        let (steps, requests) = (self.steps + u64::from(limit).div_ceil(2), self.requests + 1);
        (steps / requests).clamp(1, u64::from(limit.max(1))) as i64
    }

    /// What a row of the longest requests takes, by the profile.
    fn each_ns(&self) -> i64 {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        blocks.map(|(block, &batch)| block.profile.latency(batch).0 / batch as i64).sum()
    }

    fn scale_of(&self, rows: usize) -> i64 {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        let small = blocks.map(|(block, &batch)| block.profile.latency(rows.min(batch)).0 / rows.min(batch) as i64);
        let each = i128::from(self.each_ns().max(1));
        (i128::from(small.sum::<i64>()) * i128::from(ONE) / each).clamp(i128::from(ONE), i128::from(ONE << 20)) as i64
    }

    /// What work takes if it is done in batches of so many rows, instead of those in which it is reckoned.
    pub(crate) fn in_batches_of(&self, work: i64, rows: usize) -> i64 {
        let scale = self.scales[rows.clamp(1, self.scales.len()) - 1];
        (i128::from(work) * i128::from(scale) / i128::from(ONE)).min(i128::from(i64::MAX)) as i64
    }

    /// The device time that a request takes in batches of the size reckoned with, as the profile has it.
    pub(crate) fn work(&self, request: &Request) -> i64 {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        let each = blocks.map(|(block, &batch)| {
            (block.cost(batch, request.extent.length).0 / batch as i64).saturating_mul(self.steps(block, request))
        });
        let whole = each.fold(0_i64, i64::saturating_add).saturating_mul(i64::from(request.rows));
        ((i128::from(whole) * i128::from(self.ran) / i128::from(self.whole)) as i64).max(1)
    }

    /// The same corrected by what was learnt.
    pub(crate) fn corrected(&self, work: i64) -> i64 {
        (i128::from(work) * i128::from(self.used) / i128::from(self.thought)).clamp(0, i128::from(i64::MAX)) as i64
    }

    /// How long a request takes from its start if nothing else runs and `rows` rows of its model, its own among them, go
    /// together. Nodes of a graph are taken for a balanced tree.
    pub(crate) fn alone(&self, request: &Request, rows: usize) -> Nanos {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        let each = blocks.map(|(block, &batch)| {
            let batch = rows.min(batch).max(request.rows as usize).min(block.profile.max_batch());
            let steps = match block.steps {
                Steps::Nodes => i64::from(request.extent.length.ilog2()) + 1,
                _ => self.steps(block, request),
            };
            block.cost(batch, request.extent.length) * steps
        });
        each.fold(Nanos::ZERO, |sum, span| Nanos(sum.0.saturating_add(span.0)))
    }

    /// How often a device must turn to a request, if it takes so many steps at a time.
    pub(crate) fn turns(&self, request: &Request, steps: usize) -> i64 {
        let steps = steps.max(1) as i64;
        self.model.blocks.iter().map(|block| (self.steps(block, request) + steps - 1) / steps).sum()
    }

    /// How long a device is taken that turns to this model, of which it has so many rows and takes so many steps at a time. Requests
    /// may be at every cell type, each of which has its turn.
    pub(crate) fn turn(&self, rows: usize, steps: usize) -> Nanos {
        let rows = rows.max(1);
        let step = |block: &Block| block.profile.latency(rows.min(block.max_batch()));
        if !self.model.walk.is_unfolded() {
            return Nanos(self.corrected(self.model.profile().latency(rows.min(self.model.max_batch)).0));
        }
        let blocks = self.model.blocks.len();
        let each = self.model.blocks.iter().map(step).sum::<Nanos>();
        Nanos(self.corrected(each.0 / blocks as i64 * rows.min(blocks) as i64 * steps as i64))
    }

    /// How long a batch that begins a block is going to keep its lane: to the end of the chain, or of the block where requests join and
    /// leave between cells.
    pub(crate) fn takes(&self, block: usize, rows: usize, length: u32) -> Nanos {
        let end = if self.model.walk.is_unfolded() { block + 1 } else { self.model.blocks.len() };
        let time = self.model.blocks[block..end].iter().map(|block| block.cost(rows, length)).sum::<Nanos>();
        Nanos(self.corrected(time.0))
    }

    /// The rows of the largest batch in which work is reckoned.
    pub(crate) fn largest(&self) -> usize {
        self.scales.len()
    }

    /// The rows of a batch of a block in which its work is reckoned.
    pub(crate) fn batch(&self, block: usize) -> usize {
        self.batches[block]
    }

    /// The device time that a row of a block takes, as the profile has it.
    pub(crate) fn row(&self, block: usize, length: u32) -> i64 {
        let batch = self.batches[block];
        self.model.blocks[block].cost(batch, length).0 / batch as i64
    }

    /// A task has started `members` steps of a block.
    pub(crate) fn on_start(&mut self, block: usize, members: usize) {
        if self.model.blocks[block].steps == Steps::UntilEnd {
            self.steps += members as u64;
        }
    }

    /// A task was small because little was there: it says nothing of full ones, and what was learnt of them grows old.
    pub(crate) fn forget(&mut self) {
        self.used += (self.thought - self.used) / FORGET;
    }

    /// A task for which there was enough to fill a batch took so much device time, where the profile had `thought` so much.
    pub(crate) fn on_task(&mut self, thought: i64, used: Nanos) {
        self.thought = self.thought.saturating_add(thought);
        self.used = self.used.saturating_add(used.0).clamp(self.thought / MOST, self.thought.saturating_mul(MOST));
        if self.thought > self.each_ns().saturating_mul(MEMORY).max(2) {
            (self.used, self.thought) = ((self.used / 2).max(1), (self.thought / 2).max(1));
        }
    }

    /// A request has been answered. If its model does not go on in steps, it ran `ran` of the work of its blocks; counted now and not
    /// when its tasks start, since of many in flight more are in early blocks than will be seen in late ones.
    pub(crate) fn on_finish(&mut self, ran: i64, length: u32, rows: u32) {
        if !self.model.walk.is_unfolded() {
            let whole = (0..self.batches.len()).map(|block| self.row(block, length)).sum::<i64>();
            let whole = whole.saturating_mul(i64::from(rows));
            self.ran = self.ran.saturating_add(ran.min(whole));
            self.whole = self.whole.saturating_add(whole);
            if self.whole > self.each_ns().max(1).saturating_mul(MEMORY) {
                (self.ran, self.whole) = ((self.ran / 2).max(1), (self.whole / 2).max(1));
            }
        }
        self.requests += 1;
        if self.requests >= MEMORY as u64 {
            (self.steps, self.requests) = (self.steps / 2, self.requests / 2);
        }
    }

    /// A request that was let in at `entered` has been answered or given up.
    pub(crate) fn on_outcome(&mut self, entered: Time, late: bool) {
        let counts = u64::from(entered >= self.trial.since);
        self.trial.last.0 += counts;
        self.trial.last.1 += counts * u64::from(late);
    }

    /// A task has ended: what has come since the one before is a batch's outcomes.
    pub(crate) fn on_batch(&mut self, now: Time) {
        let (outcomes, late) = std::mem::take(&mut self.trial.last);
        if outcomes == 0 {
            return;
        }
        self.trial.batches += 1;
        self.trial.late += late * LATE / outcomes;
        let Trial { since, batches, late, .. } = self.trial;
        let slo = self.model.slo;
        let enough = batches >= TRIAL || late >= LATE * TRIAL / 16 || (batches >= TRIAL / 4 && now - since > slo);
        if !enough {
            return;
        }
        let excess = late as i64 * 1000 / LATE as i64 - batches as i64 * self.tolerated();
        // A margin that proves too large goes slowly.
        let step = (slo.0 / GAIN * excess / 1000).max(-slo.0 / 128);
        self.margin =
            (self.margin + Nanos(step.min(slo.0 / 8))).clamp(Nanos::ZERO, slo.scale(MOST_MARGIN.0, MOST_MARGIN.1));
        self.trial = Trial { since: now, ..Trial::default() };
    }

    /// Of a thousand batches, how many may be late and ask for no larger margin. The larger it is, the more: it makes batches smaller,
    /// which in the end costs more answers than it saves. The square of its part of the latency target is our choice.
    fn tolerated(&self) -> i64 {
        let part = 1000 * self.margin.0 / self.model.slo.0.max(1);
        LUCK + part * part / 1000
    }

    /// By how much predictions are too early.
    pub(crate) fn margin(&self) -> Nanos {
        self.margin
    }

    /// The last moment at which an answer is thought to come in time.
    pub(crate) fn due(&self, request: &Request) -> Time {
        request.deadline - self.margin
    }
}

/// Before anything is known.
fn first_margin(model: &Model) -> Nanos {
    Nanos(model.slo.0 / 8)
}
