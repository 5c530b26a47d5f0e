//! The plan of a model, derived from its profiles, and the rules of policies I, II and III.

use ripieno_base::{Nanos, Time};
use ripieno_model::Model;
use ripieno_sched::Request;

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
    /// `T_comp_wait`; `None` for the longest time without violations by the profiles.
    pub(super) comp_wait: Option<Nanos>,
    /// Longest wait of the first request of a batch; `None` for the paper's.
    pub(super) window: Option<Nanos>,
}

/// The plan by which a model is served.
#[derive(Debug)]
pub(super) struct SplitPlan {
    /// Upper bound on the groups by length that waiting requests are divided into.
    pub(super) groups: usize,
    /// True if batches are split before stages that prefer smaller ones.
    pub(super) splits: bool,
    /// True if newcomers may catch up with a running batch.
    pub(super) stretches: bool,
    /// `T_comp_wait`: time since the start of a batch after which no newcomer joins it.
    pub(super) comp_wait: Nanos,
    /// Largest number of rows in a batch.
    pub(super) max_batch: usize,
    /// True if `max_batch` also bounds the rows of all batches on a device.
    pub(super) bounds_pipeline: bool,
    /// Longest wait of the first request of a batch; `None` for the duration of the first stage.
    window: Option<Nanos>,
    /// Cost of a stage and all later ones, by stage and rows, for a model without lengths.
    remaining: Vec<Nanos>,
    /// Length of the part of this table of one stage.
    stride: usize,
}

impl SplitPlan {
    pub(super) fn new(model: &Model, max_batch: usize, terms: &SplitTerms) -> SplitPlan {
        let diversity = if model.has_lengths() {
            // Batches of different lengths cannot be merged: of the other policies, one group and
            // no stretch remain.
            terms.diversity.filter(|&given| given != Diversity::Operator).unwrap_or(Diversity::Input)
        } else {
            let found = if prefers_differently(model) { Diversity::Operator } else { Diversity::Load };
            terms.diversity.unwrap_or(found)
        };
        let (is_input, max_batch) = (diversity == Diversity::Input, max_batch.min(usize::from(u16::MAX) - 1));
        let whole: Nanos = model.blocks.iter().map(|block| block.profile.latency(max_batch)).sum();
        let in_time = (model.slo - whole).max(Nanos::ZERO);
        let mut plan = SplitPlan {
            groups: if is_input { terms.groups } else { 1 },
            splits: terms.splits && diversity == Diversity::Operator,
            stretches: terms.stretches && !model.has_lengths() && !is_input,
            comp_wait: terms.comp_wait.unwrap_or(in_time),
            max_batch,
            bounds_pipeline: is_input,
            window: terms.window.or((!is_input).then_some(Nanos::ZERO)),
            remaining: Vec::new(),
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
        for (stage, block) in model.blocks.iter().enumerate().rev() {
            for rows in 1..=stride {
                let at = stage * stride + rows - 1;
                self.remaining[at] = block.profile.latency(rows) + self.remaining[at + stride];
            }
        }
    }

    /// Returns the duration of a batch from `stage` on.
    fn remaining(&self, model: &Model, stage: usize, rows: usize, length: u32) -> Nanos {
        match self.remaining.get(stage * self.stride + rows - 1) {
            Some(&remaining) => remaining,
            None => model.blocks[stage..].iter().map(|block| block.cost(rows, length)).sum(),
        }
    }

    /// Returns the latency of a request alone.
    pub(super) fn alone(&self, model: &Model, request: &Request) -> Nanos {
        self.remaining(model, 0, request.rows as usize, request.extent.length)
    }

    /// Returns the end of the window that the oldest waiting request opened.
    pub(super) fn window_end(&self, model: &Model, oldest: &Request) -> Time {
        let first_stage = || model.blocks[0].cost(self.max_batch, oldest.extent.length);
        oldest.arrived + self.window.unwrap_or_else(first_stage)
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

/// Returns whether the stages of a model prefer different batch sizes among those that the paper
/// profiles: 1, 2, 4 and so on.
fn prefers_differently(model: &Model) -> bool {
    let sizes = model.blocks.iter().map(|block| block.profile.truncated(model.max_batch).preferred());
    let mut profiled = sizes.map(usize::next_power_of_two);
    let first = profiled.next();
    profiled.any(|size| Some(size) != first)
}
