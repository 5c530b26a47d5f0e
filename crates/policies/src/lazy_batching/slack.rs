//! The slack predictor: whether newcomers may join without a request missing its deadline.

use super::{Issue, LazyModel, LazyModelState};
use ripieno_base::{ModelId, Nanos};
use ripieno_sched::estimate::cost;
use ripieno_sched::estimate::play::{self, Play};
use ripieno_sched::tables::devices::takes;
use ripieno_sched::{Limits, Request};

/// The estimate of slack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimator {
    /// Equation 2: the wait, and whole single-input times of all requests in the table.
    Equation(Waited),
    /// A forecast of the stack to its end, with the cost of the batches that would run.
    Oracle,
}

/// The readings of T_wait in Equation 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The time until a request was first issued.
    UntilIssue,
    /// The time since a request arrived, in the table or not.
    SinceArrival,
}

/// The input of a prediction: the scheduler's fields at one instant. The stack is the table of one
/// device.
pub(super) type LazyForecast<'a> = play::Forecast<'a, LazyModelState, ()>;

/// The slack predictor.
#[derive(Debug)]
pub(super) struct Predictor {
    estimator: Estimator,
    play: Play,
}

impl Predictor {
    pub(super) fn new(estimator: Estimator, limits: &Limits) -> Predictor {
        Predictor { estimator, play: Play::new(limits) }
    }

    /// Returns the number of these requests, of one model, that may be pushed onto the table; a
    /// prefix.
    pub(super) fn admits<'a>(
        &mut self,
        forecast: LazyForecast<'_>,
        issues: &[Issue],
        id: ModelId,
        newcomers: impl Iterator<Item = &'a Request> + Clone,
    ) -> usize {
        let Estimator::Equation(waited) = self.estimator else {
            // More newcomers delay all requests more, so the admissible ones are a prefix.
            let (mut low, mut high) = (0, newcomers.clone().count());
            while low < high {
                let middle = (low + high).div_ceil(2);
                let slots = newcomers.clone().take(middle).map(|request| request.slot);
                let passes = self.play.all_in_time(forecast, id, slots);
                if passes { low = middle } else { high = middle - 1 }
            }
            return low;
        };
        let (mut total, mut bound) = of_table(forecast, issues, waited);
        let passes = |request: &&Request| {
            total += takes(forecast.percent, single(forecast.models.get(id), request));
            bound = bound.min(request.deadline - forecast.now);
            total <= bound
        };
        newcomers.take_while(passes).count()
    }

    /// Stores the predicted latency of the requests of the top sub-batch, which have just been
    /// issued.
    pub(super) fn note(&mut self, forecast: LazyForecast<'_>, issues: &mut [Issue]) {
        if let Estimator::Equation(waited) = self.estimator {
            let (total, _) = of_table(forecast, issues, waited);
            let newcomers = forecast.cohorts.members(*forecast.stack.last().expect("a sub-batch was pushed"));
            newcomers.for_each(|slot| issues[slot.index()].predicted = total);
            return;
        }
        for &(slot, end) in self.play.ends(forecast) {
            let issue = &mut issues[slot.index()];
            if issue.at == forecast.now {
                issue.predicted = end - forecast.now;
            }
        }
    }
}

/// Returns the latency of a request alone: Algorithm 1.
pub(super) fn single(served: &LazyModel, request: &Request) -> Nanos {
    cost::alone(&served.model, request, served.dec_timesteps)
}

/// Returns the total time of all requests in the table, and the shortest span in which they
/// must complete.
fn of_table(forecast: LazyForecast<'_>, issues: &[Issue], waited: Waited) -> (Nanos, Nanos) {
    let (mut total, mut bound) = (Nanos::ZERO, Nanos::MAX);
    for &id in forecast.stack {
        let served = forecast.models.get(forecast.cohorts.get(id).model);
        for slot in forecast.cohorts.members(id) {
            let request = forecast.requests.get(slot.0);
            total += takes(forecast.percent, single(served, request));
            let until = match waited {
                Waited::UntilIssue => issues[slot.index()].at,
                Waited::SinceArrival => forecast.now,
            };
            bound = bound.min(request.deadline - until);
        }
    }
    (total, bound)
}
