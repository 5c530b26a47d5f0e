//! What decides about a batch: the plan of a model, made from its profiles, and the rules of policies I, II and III.

use crate::Request;
use crate::catalogue::MAX_LANES;
use ripieno_base::{Nanos, Time};
use ripieno_model::{Model, Profile};

/// What of a model's requests is uneven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Diversity {
    /// Their lengths: policy I.
    Input,
    /// The batch sizes that its stages prefer: policies II and III.
    Operator,
    /// When they come: policy III.
    Load,
}

/// When newcomers may join a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// If all together wait less, by the profiles.
    Gain,
    /// Until the batch has been processed for a fixed time.
    CompWait,
    Never,
}

/// What the options say about one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) diversity: Option<Diversity>,
    pub(super) groups: usize,
    pub(super) splits: bool,
    pub(super) stretch: Stretch,
    pub(super) comp_wait: Option<Nanos>,
    pub(super) window: Option<Nanos>,
    pub(super) first_stage_window: bool,
    pub(super) max_batch: Option<usize>,
}

/// A share of a whole device.
pub(super) const WHOLE: u32 = 1_000_000;

/// How a model is served.
#[derive(Debug)]
pub(super) struct Plan {
    /// The most groups by length that waiting requests are divided into.
    pub(super) groups: usize,
    pub(super) splits: bool,
    pub(super) stretch: Stretch,
    pub(super) comp_wait: Nanos,
    /// The most rows in a batch, and of a model on a device.
    pub(super) max_batch: usize,
    /// How long the first request of a batch waits for others, on an idle device and on one that is busy.
    pub(super) windows: [Nanos; 2],
    /// Of a model without lengths, by stage and rows: the cost of this stage and all after it, and the share of this stage.
    remaining: Vec<Nanos>,
    shares: Vec<u32>,
    stride: usize,
}

impl Plan {
    pub(super) fn new(model: &Model, terms: &Terms) -> Plan {
        let diversity = if model.has_lengths() {
            // Batches of different lengths cannot be merged: what is left of the other policies is one group and no stretch.
            terms.diversity.filter(|&asked| asked != Diversity::Operator).unwrap_or(Diversity::Input)
        } else {
            let preferred = model.blocks.iter().map(|block| block.profile.truncated(model.max_batch).preferred());
            let differ = Profile::prefer_differently(preferred);
            terms.diversity.unwrap_or(if differ { Diversity::Operator } else { Diversity::Load })
        };
        let max_batch = terms.max_batch.unwrap_or(usize::MAX).min(model.max_batch).min(usize::from(u16::MAX) - 1);
        let first_stage = terms.first_stage_window && diversity == Diversity::Input;
        let busy = if first_stage { model.blocks[0].profile.latency(max_batch) } else { Nanos::ZERO };
        let eight = max_batch.min(8);
        let half =
            |model: &Model| Nanos(model.blocks.iter().map(|block| block.profile.latency(eight).0).sum::<i64>() / 2);
        let mut plan = Plan {
            groups: if diversity == Diversity::Input { terms.groups } else { 1 },
            splits: terms.splits && diversity == Diversity::Operator,
            stretch: if model.has_lengths() || diversity == Diversity::Input { Stretch::Never } else { terms.stretch },
            comp_wait: terms.comp_wait.unwrap_or_else(|| half(model)),
            max_batch,
            windows: [terms.window.unwrap_or(Nanos::ZERO), terms.window.unwrap_or(busy)],
            remaining: Vec::new(),
            shares: Vec::new(),
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
        for (stage, block) in model.blocks.iter().enumerate().rev() {
            for rows in 1..=stride {
                let after = self.remaining[(stage + 1) * stride + rows - 1];
                self.remaining[stage * stride + rows - 1] = block.profile.latency(rows) + after;
                self.shares[stage * stride + rows - 1] = block.profile.share(rows);
            }
        }
    }

    /// How long a batch of so many rows takes from `stage` on.
    pub(super) fn remaining(&self, model: &Model, stage: usize, rows: usize, length: u32) -> Nanos {
        match self.remaining.get(stage * self.stride + rows - 1) {
            Some(&remaining) => remaining,
            None => model.blocks[stage..].iter().map(|block| block.cost(rows, length)).sum(),
        }
    }

    /// How much of its device a batch can use at a stage, in millionths.
    pub(super) fn share(&self, model: &Model, stage: usize, rows: usize, length: u32) -> u32 {
        let known = self.shares.get(stage * self.stride + rows - 1);
        known.copied().unwrap_or_else(|| model.blocks[stage].share(rows, length))
    }

    /// How long a request takes alone.
    pub(super) fn alone(&self, model: &Model, request: &Request) -> Nanos {
        self.remaining(model, 0, request.rows as usize, request.extent.length)
    }

    /// Policy I: what waiting it means to run these groups in their order on so many lanes while `others` wait behind them. A
    /// group begins once a lane is free and it fits beside what runs. Beside those who are known to wait we reckon with as
    /// many to come as there are in the groups.
    pub(super) fn wait(
        &self,
        model: &Model,
        groups: impl Iterator<Item = (u32, usize)>,
        lanes: usize,
        others: usize,
    ) -> u128 {
        let mut running = [(Nanos::ZERO, 0); MAX_LANES];
        let (mut now, mut last) = (Nanos::ZERO, Nanos::ZERO);
        let (mut waits, mut members) = (0, 0);
        for (length, rows) in groups {
            let share = self.share(model, 0, rows, length);
            let lane = loop {
                let ends = running[..lanes].iter().filter(|lane| lane.0 > now);
                let (busy, used) = ends.clone().fold((0, 0), |(busy, used), lane| (busy + 1, used + lane.1));
                if busy == 0 || (busy < lanes && used + share <= WHOLE) {
                    break running.iter().position(|lane| lane.0 <= now).expect("fewer are busy than there are");
                }
                now = ends.map(|lane| lane.0).min().expect("one is busy");
            };
            let end = now + self.remaining(model, 0, rows, length);
            running[lane] = (end, share);
            last = last.max(end);
            waits += u128::from(end.0.unsigned_abs()) * rows as u128;
            members += rows;
        }
        waits + u128::from(last.0.unsigned_abs()) * (members + others) as u128
    }

    /// Whether requests of which a full batch waits had better wait until the device is free than start in parts beside what
    /// runs: because what such parts leave unused, as long as the queue lasts, is more than what would lie idle until then.
    pub(super) fn suits_later(
        &self,
        model: &Model,
        (length, rows): (u32, usize),
        (used, rest): (u32, Nanos),
        waiting: usize,
    ) -> bool {
        let share = self.share(model, 0, rows, length);
        let (whole, idle, unused) = (u128::from(WHOLE), WHOLE.saturating_sub(used), WHOLE.saturating_sub(used + share));
        let nanos = |span: Nanos| u128::from(span.0.unsigned_abs());
        let work = nanos(self.remaining(model, 0, rows, length)) * u128::from(share);
        waiting as u128 * u128::from(unused) * work > u128::from(idle) * nanos(rest) * rows as u128 * whole
    }

    /// Policy II: whether a batch before `stage` had better go on as two, one after the other.
    pub(super) fn splits(&self, model: &Model, stage: usize, (first, second): (usize, usize), length: u32) -> bool {
        let remaining = |rows: usize| self.remaining(model, stage, rows, length);
        self.splits && remaining(first + second) >= remaining(first) + remaining(second)
    }

    /// Whether a split awaits a batch of so many rows at `stage` or later.
    pub(super) fn will_split(&self, model: &Model, stage: usize, rows: usize, length: u32) -> bool {
        let halves = (rows.div_ceil(2), rows / 2);
        rows > 1 && (stage.max(1)..model.blocks.len()).any(|stage| self.splits(model, stage, halves, length))
    }

    /// Policy III: whether `newcomers` may join a batch that has begun at `begun` and stands before a stage.
    pub(super) fn stretches(&self, model: &Model, now: Time, begun: Time, join: &Join) -> bool {
        match self.stretch {
            Stretch::Gain => self.gains(model, join),
            Stretch::CompWait => now - begun <= self.comp_wait,
            Stretch::Never => false,
        }
    }

    /// How long a batch lasts that newcomers join, and how long without them.
    pub(super) fn lasts(&self, model: &Model, join: &Join) -> [Nanos; 2] {
        let catch_up = self.catch_up(model, join);
        let merged = self.remaining(model, join.stage, join.rows + join.new_rows, 1);
        [catch_up + merged, self.remaining(model, join.stage, join.rows, 1)]
    }

    fn catch_up(&self, model: &Model, join: &Join) -> Nanos {
        self.remaining(model, 0, join.new_rows, 1) - self.remaining(model, join.stage, join.new_rows, 1)
    }

    /// Whether all wait less in sum. Who stands there waits for the newcomers to catch up, and for what the larger batch
    /// takes longer; the newcomers need not wait for a lane, nor run what is left by themselves.
    fn gains(&self, model: &Model, join: &Join) -> bool {
        let left = |rows: usize| self.remaining(model, join.stage, rows, 1);
        let together = self.catch_up(model, join) + left(join.rows + join.new_rows);
        let (before, lane) = (left(join.rows), left(join.rows).min(join.other_lane));
        let loss = (together - before) * join.members as i64;
        let gain = (lane + self.remaining(model, 0, join.new_rows, 1) - together) * join.newcomers as i64;
        gain > loss
    }
}

/// Newcomers and the batch that they might join: how many they are and how many rows they have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    /// Before which the batch stands.
    pub(super) stage: usize,
    pub(super) members: usize,
    pub(super) rows: usize,
    pub(super) newcomers: usize,
    pub(super) new_rows: usize,
    /// When another lane is going to be free.
    pub(super) other_lane: Nanos,
}
