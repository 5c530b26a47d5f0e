//! The rules of a policy per model, as plain data, so that every shard has its own copy.

use super::{Gather, Rule, StartRule, Ways};
use ripieno_base::Nanos;
use ripieno_model::Model;
use ripieno_sched::tables::models::{BatchOptions, PerModel};

/// The rules of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) start: PerModel<StartBy>,
    pub(crate) options: BatchOptions,
    pub(crate) gather: Gather,
    pub(crate) drops_passed: bool,
    pub(crate) single: bool,
    pub(crate) ways: Ways,
}

/// The rule for the earliest start of a candidate, which may depend on the model's SLO.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartBy {
    Rule(StartRule),
    /// After this share of the SLO, in millionths.
    SloMillionths(u64),
}

impl Rules {
    /// Returns the rule for a model.
    pub(crate) fn of(&self, model: &Model) -> Rule {
        Rule {
            start: match self.start.of(model) {
                StartBy::Rule(start) => start,
                StartBy::SloMillionths(share) => StartRule::After(model.slo.scale(share, 1_000_000)),
            },
            gather: self.gather,
            drops_passed: self.drops_passed,
            single: self.single,
            ways: self.ways,
        }
    }
}

impl StartBy {
    /// Returns the rule to start this long after the first request.
    pub(crate) fn after(span: Nanos) -> StartBy {
        StartBy::Rule(StartRule::After(span))
    }
}
