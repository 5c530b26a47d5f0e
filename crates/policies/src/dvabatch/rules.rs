//! The plan of a model, derived from its profiles, and the rules of policies I, II and III.

use ripieno_base::Nanos;
use ripieno_model::{Model, Profile};
use ripieno_sched::Request;

/// Upper bound on the lanes of a device.
pub(super) const MAX_LANES: usize = 16;

/// The property in which a model's requests or stages differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Diversity {
    /// Lengths of requests: policy I.
    Input,
    /// Preferred batch sizes of stages: policies II and III.
    Operator,
    /// Arrival times: policy III.
    Load,
}

/// The executors of a model's stages on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executors {
    /// Lanes: each runs all stages of one batch after the other.
    Lanes(usize),
    /// One executor per stage, and this number of buffer pairs between them.
    Stages(usize),
}

impl Executors {
    /// Returns the number of batches of a model with `stages` stages that can run in parallel.
    pub(super) fn beside(self, stages: usize) -> usize {
        match self {
            Executors::Lanes(lanes) => lanes,
            Executors::Stages(1) => 1,
            Executors::Stages(_) => stages.min(MAX_LANES),
        }
    }
}

/// The options for one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitTerms {
    /// Kind of diversity of the model's requests; `None` to read it from the model.
    pub(super) diversity: Option<Diversity>,
    /// Upper bound on the groups by length that waiting requests are divided into.
    pub(super) groups: usize,
    /// True if batches may be split before stages that prefer smaller ones.
    pub(super) splits: bool,
    /// True if newcomers may catch up with a running batch.
    pub(super) stretches: bool,
    /// Time since the start of a batch after which no newcomer joins it; `None` for half of what a
    /// batch of 8 takes.
    pub(super) comp_wait: Option<Nanos>,
    /// Longest wait of the first request of a batch; `None` for the policy's rule.
    pub(super) window: Option<Nanos>,
    /// True if a batch that waits on a busy device waits for the duration of the first stage.
    pub(super) first_stage_window: bool,
}

/// The share of a whole device.
pub(super) const WHOLE: u32 = 1_000_000;

/// The plan by which a model is served.
#[derive(Debug)]
pub(super) struct SplitPlan {
    /// Upper bound on the groups by length that waiting requests are divided into.
    pub(super) groups: usize,
    /// True if batches are split before stages that prefer smaller ones.
    pub(super) splits: bool,
    /// True if newcomers may catch up with a running batch.
    pub(super) stretches: bool,
    /// Time since the start of a batch after which no newcomer joins it.
    pub(super) comp_wait: Nanos,
    /// Largest number of rows in a batch, and of a model on a device.
    pub(super) max_batch: usize,
    /// Longest wait of the first request of a batch for others, on an idle and on a busy device.
    pub(super) windows: [Nanos; 2],
    /// Cost of a stage and all later ones, by stage and rows, for a model without lengths.
    remaining: Vec<Nanos>,
    /// Share of a stage, by stage and rows.
    shares: Vec<u32>,
    /// Mean share of a stage and all later ones, by stage and rows.
    mean_shares: Vec<u32>,
    /// Length of the part of these tables of one stage.
    stride: usize,
}

impl SplitPlan {
    pub(super) fn new(model: &Model, max_batch: usize, terms: &SplitTerms) -> SplitPlan {
        let diversity = if model.has_lengths() {
            // Batches of different lengths cannot be merged: of the other policies, one group and
            // no stretch remain.
            terms.diversity.filter(|&given| given != Diversity::Operator).unwrap_or(Diversity::Input)
        } else {
            let preferred = model.blocks.iter().map(|block| block.profile.truncated(model.max_batch).preferred());
            let differ = Profile::prefer_differently(preferred);
            terms.diversity.unwrap_or(if differ { Diversity::Operator } else { Diversity::Load })
        };
        let max_batch = max_batch.min(usize::from(u16::MAX) - 1);
        let first_stage = terms.first_stage_window && diversity == Diversity::Input;
        let busy = if first_stage { model.blocks[0].profile.latency(max_batch) } else { Nanos::ZERO };
        let eight = max_batch.min(8);
        let half =
            |model: &Model| Nanos(model.blocks.iter().map(|block| block.profile.latency(eight).0).sum::<i64>() / 2);
        let mut plan = SplitPlan {
            groups: if diversity == Diversity::Input { terms.groups } else { 1 },
            splits: terms.splits && diversity == Diversity::Operator,
            stretches: terms.stretches && !model.has_lengths() && diversity != Diversity::Input,
            comp_wait: terms.comp_wait.unwrap_or_else(|| half(model)),
            max_batch,
            windows: [terms.window.unwrap_or(Nanos::ZERO), terms.window.unwrap_or(busy)],
            remaining: Vec::new(),
            shares: Vec::new(),
            mean_shares: Vec::new(),
            stride: model.max_batch,
        };
        if !model.has_lengths() {
            plan.tabulate(model);
        }
        plan
    }

    fn tabulate(&mut self, model: &Model) {
        let (stages, stride) = (model.blocks.len(), self.stride);
        self.remaining = vec![Nanos::ZERO; (stages + 1) * stride];
        self.shares = vec![0; stages * stride];
        self.mean_shares = vec![0; stages * stride];
        let mut used = vec![0; stride];
        for (stage, block) in model.blocks.iter().enumerate().rev() {
            for rows in 1..=stride {
                let (at, cost) = (stage * stride + rows - 1, block.profile.latency(rows));
                self.remaining[at] = cost + self.remaining[at + stride];
                self.shares[at] = block.profile.share(rows);
                used[rows - 1] += work(cost, self.shares[at]);
                self.mean_shares[at] = mean(used[rows - 1], self.remaining[at]);
            }
        }
    }

    /// Returns the duration of a batch from `stage` on.
    pub(super) fn remaining(&self, model: &Model, stage: usize, rows: usize, length: u32) -> Nanos {
        match self.remaining.get(stage * self.stride + rows - 1) {
            Some(&remaining) => remaining,
            None => model.blocks[stage..].iter().map(|block| block.cost(rows, length)).sum(),
        }
    }

    /// Returns the share of its device that a batch can use at a stage, in millionths.
    pub(super) fn share(&self, model: &Model, stage: usize, rows: usize, length: u32) -> u32 {
        let known = self.shares.get(stage * self.stride + rows - 1);
        known.copied().unwrap_or_else(|| model.blocks[stage].share(rows, length))
    }

    /// Returns the latency of a request alone.
    pub(super) fn alone(&self, model: &Model, request: &Request) -> Nanos {
        self.remaining(model, 0, request.rows as usize, request.extent.length)
    }

    /// Returns the mean share of its device that a batch uses from a stage on, in millionths.
    pub(super) fn mean_share(&self, model: &Model, stage: usize, rows: usize, length: u32) -> u32 {
        if let Some(&known) = self.mean_shares.get(stage * self.stride + rows - 1) {
            return known;
        }
        let blocks = model.blocks[stage..].iter();
        let used = blocks.map(|block| work(block.cost(rows, length), block.share(rows, length))).sum();
        mean(used, self.remaining(model, stage, rows, length))
    }

    /// Returns the share by which a batch and others that use `used` exceed the device, on average
    /// over its stages: a batch with a mean share of one half may use the whole device in one
    /// stage, and little in the others.
    fn excess(&self, model: &Model, rows: usize, length: u32, used: u32) -> u32 {
        let beyond = |stage: usize| {
            let beyond = (self.share(model, stage, rows, length) + used).saturating_sub(WHOLE);
            work(model.blocks[stage].cost(rows, length), beyond)
        };
        mean((0..model.blocks.len()).map(beyond).sum(), self.remaining(model, 0, rows, length))
    }

    /// Policy I: returns the total wait of these groups in their order on `lanes` lanes while
    /// `others` requests wait behind them.
    pub(super) fn wait(
        &self,
        model: &Model,
        groups: impl Iterator<Item = (u32, usize)>,
        lanes: usize,
        others: usize,
    ) -> u128 {
        let mut play = LaneRules::new(lanes);
        groups.for_each(|(length, rows)| play.run(self, model, length, rows));
        play.waits(others)
    }

    /// Policy II: returns whether a batch before `stage` should continue as two, one after the
    /// other.
    pub(super) fn splits(&self, model: &Model, stage: usize, (first, second): (usize, usize), length: u32) -> bool {
        let remaining = |rows: usize| self.remaining(model, stage, rows, length);
        self.splits && remaining(first + second) >= remaining(first) + remaining(second)
    }

    /// Returns whether a batch of `rows` rows will be split at `stage` or later.
    pub(super) fn will_split(&self, model: &Model, stage: usize, rows: usize, length: u32) -> bool {
        let halves = (rows.div_ceil(2), rows / 2);
        rows > 1 && (stage.max(1)..model.blocks.len()).any(|stage| self.splits(model, stage, halves, length))
    }
}

/// Returns the work of a share of a device over a time.
fn work(cost: Nanos, share: u32) -> u128 {
    u128::from(cost.0.unsigned_abs()) * u128::from(share)
}

/// Returns the share with which this work takes `time`.
fn mean(work: u128, time: Nanos) -> u32 {
    (work / u128::from(time.0.unsigned_abs()).max(1)) as u32
}

/// A busy lane in a forecast.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    /// Remaining time of the batch.
    pub(super) left: Nanos,
    /// Share of the device that the batch can use in its first stage.
    pub(super) share: u32,
    /// Mean share of the batch over its stages.
    pub(super) mean_share: u32,
    /// Rows of the batch.
    pub(super) rows: usize,
}

/// A forecast of batches on the lanes of a device, by the profiles.
#[derive(Debug)]
pub(super) struct LaneRules {
    lanes: [Busy; MAX_LANES],
    count: usize,
    now: Nanos,
    last: Nanos,
    waits: u128,
    rows: usize,
}

impl LaneRules {
    /// Starts a forecast on a free device.
    pub(super) fn new(lanes: usize) -> LaneRules {
        let (now, last) = (Nanos::ZERO, Nanos::ZERO);
        LaneRules { lanes: [Busy::default(); MAX_LANES], count: lanes, now, last, waits: 0, rows: 0 }
    }

    /// Starts a forecast on a device with these running batches, the free lanes last.
    pub(super) fn beside(lanes: usize, busy: impl Iterator<Item = Busy>) -> LaneRules {
        let mut play = LaneRules::new(lanes);
        play.lanes.iter_mut().zip(busy).for_each(|(lane, busy)| *lane = busy);
        play
    }

    /// Returns the forecast with a start after `rest`.
    pub(super) fn after(mut self, rest: Nanos) -> LaneRules {
        self.now = rest;
        self
    }

    /// Runs a batch once a lane is free and it fits beside the running ones. Any share beyond the
    /// whole device prolongs all of them.
    pub(super) fn run(&mut self, plan: &SplitPlan, model: &Model, length: u32, rows: usize) {
        let LaneRules { lanes, count, now, .. } = self;
        let share = plan.share(model, 0, rows, length);
        let (lane, used) = loop {
            let busy = lanes[..*count].iter().filter(|lane| lane.left > *now);
            let first = busy
                .clone()
                .fold((0, 0, 0), |(busy, share, used), lane| (busy + 1, share + lane.share, used + lane.mean_share));
            if first.0 == 0 || (first.0 < *count && first.1 + share <= WHOLE) {
                let free = lanes[..*count].iter().position(|lane| lane.left <= *now);
                break (free.expect("fewer are busy than there are"), first.2);
            }
            *now = busy.map(|lane| lane.left).min().expect("one is busy");
        };
        let mean_share = plan.mean_share(model, 0, rows, length);
        let alone = plan.remaining(model, 0, rows, length);
        let excess = plan.excess(model, rows, length, used);
        let mut left = *now + alone;
        for other in lanes[..*count].iter_mut().filter(|other| other.left > *now) {
            let longer = alone.min(other.left - *now).scale(excess.into(), WHOLE.into());
            left = left.max(*now + alone + longer);
            other.left += longer;
            self.last = self.last.max(other.left);
            self.waits += u128::from(longer.0.unsigned_abs()) * other.rows as u128;
        }
        lanes[lane] = Busy { left, share, mean_share, rows };
        self.last = self.last.max(left);
        self.waits += u128::from(left.0.unsigned_abs()) * rows as u128;
        self.rows += rows;
    }

    /// Returns the end of the last batch.
    pub(super) fn end(&self) -> Nanos {
        self.last
    }

    /// Returns the total wait of all rows. `others` wait behind them until all have run; expected
    /// arrivals count as many as there are rows.
    pub(super) fn waits(&self, others: usize) -> u128 {
        self.waits + u128::from(self.last.0.unsigned_abs()) * (self.rows + others) as u128
    }
}
