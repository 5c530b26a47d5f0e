//! The prediction errors of a policy in a turn.

use ripieno_runtime::HistogramSnapshot;
use serde::Serialize;

/// Predicted against actual time from first start to end, by request, relative to the actual time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Predictions {
    requests: u64,
    /// Mean of |predicted - actual| / actual.
    mean_error: f64,
    /// 99th percentile of the error: the bound of its histogram class.
    p99_error: f64,
    /// Mean of (predicted - actual) / actual: above 0, predictions are too long, and the policy is
    /// conservative.
    bias: f64,
}

/// The runtime's counters of prediction errors so far, in thousandths of the actual time.
pub(super) struct Errors {
    /// |predicted - actual|, by request.
    pub(super) sizes: HistogramSnapshot,
    /// The sum of predicted - actual.
    pub(super) bias: i64,
}

impl Predictions {
    /// Returns the errors of the requests that ended between two readings; `None` if nothing was
    /// predicted.
    pub(super) fn between(before: &Errors, after: &Errors) -> Option<Predictions> {
        let requests = after.sizes.count - before.sizes.count;
        if requests == 0 {
            return None;
        }
        let over = |permille: i64| permille as f64 / 1e3 / requests as f64;
        let within = after.sizes.cumulative.iter().zip(&before.sizes.cumulative).map(|(after, before)| after - before);
        let enough = (requests as f64 * 0.99).ceil() as u64;
        let bounds = after.sizes.bounds;
        let class = within.zip(bounds).find(|(count, _)| *count >= enough).map(|(_, &bound)| bound);
        Some(Predictions {
            requests,
            mean_error: over(after.sizes.sum - before.sizes.sum),
            p99_error: class.or(bounds.last().copied()).unwrap_or(0) as f64 / 1e3,
            bias: over(after.bias - before.bias),
        })
    }

    /// Returns the means over several turns.
    pub(super) fn mean(turns: impl Iterator<Item = Predictions> + Clone) -> Option<Predictions> {
        let requests: u64 = turns.clone().map(|turn| turn.requests).sum();
        let mean = |value: fn(&Predictions) -> f64| {
            turns.clone().map(|turn| value(&turn) * turn.requests as f64).sum::<f64>() / requests as f64
        };
        (requests > 0).then(|| Predictions {
            requests,
            mean_error: mean(|turn| turn.mean_error),
            p99_error: mean(|turn| turn.p99_error),
            bias: mean(|turn| turn.bias),
        })
    }

    pub(super) fn show(self) -> String {
        let Predictions { mean_error, p99_error, bias, .. } = self;
        format!("{:.0} / {:.0} ({:+.0})", 100.0 * mean_error, 100.0 * p99_error, 100.0 * bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_by_their_requests() {
        let turn = |requests, mean_error| Predictions { requests, mean_error, p99_error: 1.0, bias: -0.5 };
        let mean = Predictions::mean([turn(10, 0.1), turn(30, 0.5)].into_iter()).unwrap();
        assert_eq!((mean.requests, mean.p99_error, mean.bias), (40, 1.0, -0.5));
        assert!((mean.mean_error - 0.4).abs() < 1e-12);
        assert_eq!(mean.show(), "40 / 100 (-50)");
        assert_eq!(Predictions::mean(std::iter::empty()), None);
    }
}
