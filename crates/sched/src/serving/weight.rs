//! The costs of waiting and of being late, in the arbiter's unit.

use super::arbiter::ONE;
use super::{UnifiedEntry, UnifiedScheduler};
use ripieno_base::Nanos;

/// Cost of a request that is late, as a multiple of the cost of waiting for one SLO: a lost request
/// outweighs nearly any wait. At 3, goodput is 1 % lower; beyond 100 nothing changes.
const LATE_COST: i128 = 100;
/// Factor on the share of lost rows in the cost of the next one, so that losses are shared among
/// models.
const LOSS_WEIGHT: i128 = 100;
/// Upper bound on the factor by which little slack raises the weight of a request.
const SLACK_WEIGHT: i64 = 100;
/// Weight of an age of one SLO, relative to the weight of a new request with all of its slack.
const AGE_WEIGHT: i64 = 2;

impl UnifiedScheduler {
    /// Returns the cost of one row that waits for `age` already and can still wait for `slack`, per
    /// nanosecond: the less slack, and the more age, the higher.
    pub(super) fn weight(served: &UnifiedEntry, age: Nanos, slack: Nanos) -> i128 {
        let (one, slo) = (ONE as i64, served.model.slo.0.max(1));
        let by_slack = match slack >= Nanos::ZERO {
            true => one / slack.0.max(slo / SLACK_WEIGHT).max(1),
            false => one / slo,
        };
        let by_age = (one * AGE_WEIGHT / slo).saturating_mul(age.0) / slo;
        i128::from(by_slack) + i128::from(by_age)
    }

    /// Returns the cost of a late row of a model: higher where many were lost recently.
    pub(super) fn late_cost(served: &UnifiedEntry) -> i128 {
        ONE * LATE_COST * (1_000 + i128::from(served.load.losses.lost.permille().parts()) * LOSS_WEIGHT) / 1_000
    }
}
