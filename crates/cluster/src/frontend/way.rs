//! The way of a request: the time that passes neither in the scheduler nor on a device.

use crate::plane::RequestHeader;
use ripieno_base::Nanos;
use ripieno_runtime::DelayEstimate;
use ripieno_runtime::JobOutput;
use std::time::{Duration, Instant};

/// Share of the requests whose way is at most the estimate, in thousandths.
const WAY_PERMILLE: u32 = 900;

/// Returns the estimate as a header has it.
pub(super) fn estimate(ways: &DelayEstimate) -> u16 {
    ways.quantile(WAY_PERMILLE).map_or(0, RequestHeader::way_of)
}

/// Returns the way of a request that arrived at `came` and has this answer; `None` if the scheduler
/// did not report its times.
pub(super) fn measured(came: Instant, answered: &JobOutput) -> Option<Duration> {
    let inside = Duration::from_nanos((answered.queued + answered.executed).0.unsigned_abs());
    (answered.executed > Nanos::ZERO).then(|| came.elapsed().saturating_sub(inside))
}
