//! The slack predictor: whether newcomers may join without a request missing its deadline.

use super::{Issue, LazyModel, LazyModelState};
use crate::parts::cost;
use crate::parts::devices::takes;
use crate::parts::play::{self, Play, steps_left};
use crate::{Limits, Request};
use ripieno_base::{ModelId, Nanos, RequestSlot};

/// How slack is reckoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimator {
    /// Equation 2: wait until first issue, and whole single-input times of all in the table.
    Equation,
    /// What has passed, and the single-input times that are left.
    Remaining,
    /// The stack is played to its end at the cost of the batches that would run.
    Oracle,
}

/// What a prediction looks at: the scheduler's fields at one instant. The stack is the table of one device.
pub(super) type LazyForecast<'a> = play::Forecast<'a, LazyModelState, ()>;

/// Predicts.
#[derive(Debug)]
pub(super) struct Predictor {
    estimator: Estimator,
    pub(super) play: Play,
}

impl Predictor {
    pub(super) fn new(estimator: Estimator, limits: &Limits) -> Predictor {
        Predictor { estimator, play: Play::new(limits) }
    }

    /// How many of the first of these requests, of one model, may be pushed onto the table.
    pub(super) fn admits<'a>(
        &mut self,
        scene: LazyForecast<'_>,
        issues: &[Issue],
        id: ModelId,
        newcomers: impl Iterator<Item = &'a Request> + Clone,
    ) -> usize {
        if self.estimator == Estimator::Oracle {
            // More newcomers delay everybody more, so what passes is a prefix.
            let (mut low, mut high) = (0, newcomers.clone().count());
            while low < high {
                let middle = (low + high).div_ceil(2);
                let slots = newcomers.clone().take(middle).map(|request| request.slot);
                let passes = self.play.all_punctual(scene, id, slots);
                if passes { low = middle } else { high = middle - 1 }
            }
            return low;
        }
        let (mut total, mut bound) = self.of_table(scene, issues);
        let passes = |request: &&Request| {
            total += takes(scene.percent, single(scene.models.get(id), request));
            bound = bound.min(request.deadline - scene.now);
            total <= bound
        };
        newcomers.take_while(passes).count()
    }

    /// Notes for the requests of the top sub-batch, which have just been issued, how long each is predicted to take.
    pub(super) fn note(&mut self, scene: LazyForecast<'_>, issues: &mut [Issue]) {
        if self.estimator != Estimator::Oracle {
            let (total, _) = self.of_table(scene, issues);
            let newcomers = scene.cohorts.members(*scene.stack.last().expect("a sub-batch was pushed"));
            newcomers.for_each(|slot| issues[slot.index()].predicted = total);
            return;
        }
        for &(slot, end) in self.play.ends(scene) {
            let issue = &mut issues[slot.index()];
            if issue.at == scene.now {
                issue.predicted = end - scene.now;
            }
        }
    }

    /// The times of all requests in the table, and the shortest span in which they must be over.
    fn of_table(&self, scene: LazyForecast<'_>, issues: &[Issue]) -> (Nanos, Nanos) {
        let (mut total, mut bound) = (Nanos::ZERO, Nanos::MAX);
        for &id in scene.stack {
            let served = scene.models.get(scene.cohorts.get(id).model);
            for slot in scene.cohorts.members(id) {
                let request = scene.requests.get(slot.0);
                let (span, time) = match self.estimator {
                    Estimator::Equation => (request.deadline - issues[slot.index()].at, single(served, request)),
                    Estimator::Remaining | Estimator::Oracle => {
                        (request.deadline - scene.now, remaining(scene, served, slot))
                    }
                };
                (total, bound) = (total + takes(scene.percent, time), bound.min(span));
            }
        }
        (total, bound)
    }
}

/// How long a request takes alone: Algorithm 1.
pub(super) fn single(served: &LazyModel, request: &Request) -> Nanos {
    cost::alone(&served.model, request, served.dec_timesteps)
}

/// How long a member would take alone from here on.
fn remaining(scene: LazyForecast<'_>, served: &LazyModel, slot: RequestSlot) -> Nanos {
    let (request, until_end) = (scene.requests.get(slot.0), served.dec_timesteps);
    let at = scene.cohorts.of(slot).map(|id| scene.cohorts.get(id).block).expect("it is in the table");
    let (block, later) = served.model.blocks[at.index()..].split_first().expect("a block of the model");
    let left = scene.cohorts.step(slot).map_or(0, |step| steps_left(block, request, until_end, step));
    let whole = |block| cost::of_step(block, request) * i64::from(cost::steps(block, request, until_end));
    cost::of_step(block, request) * i64::from(left) + later.iter().map(whole).sum()
}
