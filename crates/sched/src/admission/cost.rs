//! Estimates of the device time of requests, with corrections learnt from tasks.

use crate::{CostScale, Request};
use ripieno_base::{Nanos, Time};
use ripieno_model::{Block, Model, Steps};

/// Number of recent requests' work from which a factor is learnt.
const MEMORY: i64 = 256;
const ONE: i64 = 1024;
/// Weight of the prior, in requests.
const PRIOR: i64 = 16;
/// Upper bound on a learnt factor.
const MOST: i64 = 64;
/// Reciprocal of the part by which the learnt factor fades with each task that teaches nothing.
const FORGET: i64 = 512;
/// Scale of `Trial::late`: hundredths.
const LATE: u64 = 100;
/// Number of batches among 1,000 whose lateness counts as chance.
const LUCK: i64 = 10;
/// Upper bound on the margin, as a part of the SLO.
const MOST_MARGIN: (u64, u64) = (1, 2);
/// Reciprocal of the part of the SLO by which a late batch raises the margin.
const GAIN: i64 = 32;
/// Number of batches in a trial of the margin.
const TRIAL: u64 = 64;

/// The costs of a model.
#[derive(Debug)]
pub(crate) struct LearntCost {
    model: Box<Model>,
    /// Per block, the batch size in which its work is estimated.
    batches: Vec<usize>,
    /// Per number of rows up to the largest of these batches, the cost of a row in such a batch
    /// relative to the estimate, in parts of [`ONE`].
    scales: Vec<i64>,
    /// Measured device time of tasks, and their estimated work; only of tasks with enough rows to
    /// fill a batch, since those are as full as the policy makes them.
    used: i64,
    estimated: i64,
    /// Work that answered requests of a chain ran, and the work of all blocks: some leave early, or
    /// skip blocks.
    ran: i64,
    whole: i64,
    /// Steps of blocks that run until their end, and the number of requests that took them.
    steps: u64,
    requests: u64,
    /// Margin by which predictions are too early, and its current trial.
    margin: Nanos,
    trial: Trial,
}

/// Outcomes of requests that were admitted since the margin was set. Requests of a batch are late
/// together, so batches are counted instead of requests: one unlucky large batch is one case.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    since: Time,
    batches: u64,
    /// Number of batches that were late; a batch counts by its late part. In hundredths.
    late: u64,
    /// Outcomes since the last task ended, and how many of them were late.
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
            estimated: 0,
            ran: 0,
            whole: 0,
            steps: 0,
            requests: 0,
            margin,
            trial,
        };
        cost.estimate(devices);
        cost
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Derives values from the profiles, after a change of them. Batches of a chain are as large as
    /// staggered execution allows within the SLO; those of cells as large as pays, since requests
    /// join and leave between them.
    pub(crate) fn estimate(&mut self, devices: usize) {
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

    /// Resets the learnt factor.
    pub(crate) fn unlearn(&mut self) {
        let prior = self.each_ns().max(1) * PRIOR;
        (self.used, self.estimated) = (prior, prior);
    }

    /// Resets all learnt values after a change of a profile.
    pub(crate) fn renew(&mut self, now: Time, devices: usize) {
        self.estimate(devices);
        (self.margin, self.trial) = (first_margin(&self.model), Trial { since: now, ..Trial::default() });
    }

    /// Returns the number of times that a request runs a block.
    fn steps(&self, block: &Block, request: &Request) -> i64 {
        let graphs = self.model.blocks.iter().filter(|block| block.steps == Steps::Nodes).count() as i64;
        match block.steps {
            Steps::Once => 1,
            Steps::Length => i64::from(request.extent.length),
            Steps::Nodes => i64::from(request.extent.length).div_euclid(graphs).max(1),
            Steps::UntilEnd => self.steps_until_end(request.extent.limit),
        }
    }

    /// Returns the number of times that a request runs a block with an unknown end: the mean of
    /// earlier requests, at first half its limit.
    fn steps_until_end(&self, limit: u32) -> i64 {
        let (steps, requests) = (self.steps + u64::from(limit).div_ceil(2), self.requests + 1);
        (steps / requests).clamp(1, u64::from(limit.max(1))) as i64
    }

    /// Returns the profiled cost of a row of the longest requests.
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

    /// Returns the work in batches of `rows` rows, instead of those in which it is estimated.
    pub(crate) fn in_batches_of(&self, work: i64, rows: usize) -> i64 {
        let scale = self.scales[rows.clamp(1, self.scales.len()) - 1];
        (i128::from(work) * i128::from(scale) / i128::from(ONE)).min(i128::from(i64::MAX)) as i64
    }

    /// Returns the profiled device time of a request in batches of the estimated size.
    pub(crate) fn work(&self, request: &Request) -> i64 {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        let each = blocks.map(|(block, &batch)| {
            (block.cost(batch, request.extent.length).0 / batch as i64).saturating_mul(self.steps(block, request))
        });
        let whole = each.fold(0_i64, i64::saturating_add).saturating_mul(i64::from(request.rows));
        let whole = request.class.cost.of(Nanos(whole)).0;
        ((i128::from(whole) * i128::from(self.ran) / i128::from(self.whole)) as i64).max(1)
    }

    /// Returns the work corrected by the learnt factor.
    pub(crate) fn corrected(&self, work: i64) -> i64 {
        (i128::from(work) * i128::from(self.used) / i128::from(self.estimated)).clamp(0, i128::from(i64::MAX)) as i64
    }

    /// Returns the latency of a request from its start if nothing else runs and `rows` rows of its
    /// model, including its own, run together. Nodes of a graph count as a balanced tree.
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
        request.class.cost.of(each.sum())
    }

    /// Returns the number of turns of a device for a request, at `steps` steps per turn.
    pub(crate) fn turns(&self, request: &Request, steps: usize) -> i64 {
        let steps = steps.max(1) as i64;
        self.model.blocks.iter().map(|block| (self.steps(block, request) + steps - 1) / steps).sum()
    }

    /// Returns the duration of a turn of this model on a device with `rows` rows of it, at `steps`
    /// steps. Requests may be at every cell type, each of which has its turn.
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

    /// Returns the time for which a batch that begins a block keeps its lane: to the end of the
    /// chain, or of the block where requests join and leave between cells.
    pub(crate) fn takes(&self, block: usize, rows: usize, length: u32, scale: CostScale) -> Nanos {
        let end = if self.model.walk.is_unfolded() { block + 1 } else { self.model.blocks.len() };
        let time = self.model.blocks[block..end].iter().map(|block| block.cost(rows, length)).sum::<Nanos>();
        Nanos(self.corrected(scale.of(time).0))
    }

    /// Returns the largest batch size, in rows, for which the work of a request is estimated.
    pub(crate) fn largest(&self) -> usize {
        self.scales.len()
    }

    /// Returns the batch size, in rows, for which the work of a block is estimated.
    pub(crate) fn batch(&self, block: usize) -> usize {
        self.batches[block]
    }

    /// Returns the profiled device time of one row of a block.
    pub(crate) fn row(&self, block: usize, length: u32, scale: CostScale) -> i64 {
        let batch = self.batches[block];
        scale.of(self.model.blocks[block].cost(batch, length)).0 / batch as i64
    }

    /// Records a task that has started `members` steps of a block.
    pub(crate) fn on_start(&mut self, block: usize, members: usize) {
        if self.model.blocks[block].steps == Steps::UntilEnd {
            self.steps += members as u64;
        }
    }

    /// Records a task that was small for lack of requests: it teaches nothing about full ones, so
    /// the learnt factor fades.
    pub(crate) fn forget(&mut self) {
        self.used += (self.estimated - self.used) / FORGET;
    }

    /// Records the device time of a task with enough rows to fill a batch, and its estimate.
    pub(crate) fn on_task(&mut self, estimated: i64, used: Nanos) {
        self.estimated = self.estimated.saturating_add(estimated);
        self.used = self.used.saturating_add(used.0).clamp(self.estimated / MOST, self.estimated.saturating_mul(MOST));
        if self.estimated > self.each_ns().saturating_mul(MEMORY).max(2) {
            (self.used, self.estimated) = ((self.used / 2).max(1), (self.estimated / 2).max(1));
        }
    }

    /// Records an answered request that ran `ran` of the work of its blocks. It is counted here
    /// instead of at its tasks' starts, since more of the requests in flight are in early blocks.
    pub(crate) fn on_finish(&mut self, ran: i64, length: u32, rows: u32, scale: CostScale) {
        if !self.model.walk.is_unfolded() {
            let whole = (0..self.batches.len()).map(|block| self.row(block, length, scale)).sum::<i64>();
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

    /// Records the outcome of a request that was admitted at `entered`.
    pub(crate) fn on_outcome(&mut self, entered: Time, late: bool) {
        let counts = u64::from(entered >= self.trial.since);
        self.trial.last.0 += counts;
        self.trial.last.1 += counts * u64::from(late);
    }

    /// Records the end of a task: the outcomes since the previous one are those of a batch.
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
        // A margin that proves too large falls slowly.
        let step = (slo.0 / GAIN * excess / 1000).max(-slo.0 / 128);
        self.margin =
            (self.margin + Nanos(step.min(slo.0 / 8))).clamp(Nanos::ZERO, slo.scale(MOST_MARGIN.0, MOST_MARGIN.1));
        self.trial = Trial { since: now, ..Trial::default() };
    }

    /// Returns the number of batches among 1,000 that may be late without raising the margin. It
    /// grows with the square of the margin's part of the SLO (our choice): a larger margin makes
    /// batches smaller, which in the end costs more answers than it saves.
    fn tolerated(&self) -> i64 {
        let part = 1000 * self.margin.0 / self.model.slo.0.max(1);
        LUCK + part * part / 1000
    }

    /// Returns the margin by which predictions are too early.
    pub(crate) fn margin(&self) -> Nanos {
        self.margin
    }

    /// Returns the latest predicted end that counts as in time.
    pub(crate) fn due(&self, request: &Request) -> Time {
        request.deadline - self.margin
    }
}

/// Returns the initial margin.
fn first_margin(model: &Model) -> Nanos {
    Nanos(model.slo.0 / 8)
}
