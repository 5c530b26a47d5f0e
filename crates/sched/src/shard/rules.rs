//! Which rule holds for which model, as plain data, so that every shard has its own copy.

use super::{Gather, Network, Rule, Start};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model};
use std::collections::BTreeMap;

/// The rules of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) start: PerModel<StartBy>,
    pub(crate) max_batch: PerModel<Option<usize>>,
    pub(crate) gather: Gather,
    /// For models that bring no rule of their own.
    pub(crate) drop: DropRule,
    pub(crate) single: bool,
    pub(crate) network: Network,
}

/// When a candidate may start, where it may depend on the model's SLO.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartBy {
    Rule(Start),
    /// After this share of the SLO, in millionths.
    SloMillionths(u64),
}

/// A value that may differ by model: one for the models that have their own, one for the others.
#[derive(Clone, Debug)]
pub(crate) struct PerModel<T> {
    own: BTreeMap<String, T>,
    others: T,
}

impl Rules {
    /// The rule for a model.
    pub(crate) fn of(&self, model: &Model) -> Rule {
        Rule {
            start: match self.start.of(model) {
                StartBy::Rule(start) => start,
                StartBy::SloMillionths(share) => Start::After(model.slo.scale(share, 1_000_000)),
            },
            gather: self.gather,
            drop: model.drop.unwrap_or(self.drop),
            max_batch: self.max_batch.of(model).unwrap_or(usize::MAX).min(model.max_batch),
            single: self.single,
            network: self.network,
        }
    }
}

impl StartBy {
    /// So long after the first request.
    pub(crate) fn after(span: Nanos) -> StartBy {
        StartBy::Rule(Start::After(span))
    }
}

impl<T: Copy> PerModel<T> {
    /// The same for all.
    pub(crate) fn all(value: T) -> PerModel<T> {
        PerModel { own: BTreeMap::new(), others: value }
    }

    /// What `read` says for each model, and for models that are loaded later.
    pub(crate) fn read<E>(models: &[Model], read: impl Fn(Option<&str>) -> Result<T, E>) -> Result<PerModel<T>, E> {
        let own = models.iter().map(|model| Ok((model.name.clone(), read(Some(&model.name))?)));
        Ok(PerModel { own: own.collect::<Result<_, _>>()?, others: read(None)? })
    }

    /// The value for a model.
    pub(crate) fn of(&self, model: &Model) -> T {
        self.own.get(&model.name).copied().unwrap_or(self.others)
    }
}
