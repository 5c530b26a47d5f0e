//! Failures of calls that could not be in time, and the shortest time of a call by its model's
//! profile, however idle the devices are.
//!
//! A call that needs longer than its limit is refused at every time, so its client must not be told
//! to send it again. The bound counts only what certainly runs: the first block, and full batches,
//! each of which holds rows of this call alone.

use crate::requests::jobs::JobPart;
use ripieno_base::Nanos;
use ripieno_model::{Model, Steps};
use ripieno_sched::CostScale;

/// Returns a lower bound on the time of a call of these parts on devices that run `concurrent`
/// batches side by side.
pub(crate) fn shortest_time(model: &Model, parts: &[JobPart], cost: CostScale, concurrent: usize) -> Nanos {
    let block = &model.blocks[0];
    let alone = |part: &JobPart| {
        let extent = part.entry.extent;
        let steps = if block.steps == Steps::Length { extent.length } else { 1 };
        cost.of(block.cost(part.rows.min(block.max_batch()), extent.length) * i64::from(steps))
    };
    let longest = parts.iter().map(alone).max().unwrap_or(Nanos::ZERO);
    let full = parts.iter().filter(|part| part.rows == model.max_batch);
    let (count, each) = (full.clone().count(), full.map(alone).min().unwrap_or(Nanos::ZERO));
    longest.max(each * count.div_ceil(concurrent.max(1)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;
    use ripieno_executor::{Payload, RequestEntry};
    use ripieno_model::Extent;

    #[test]
    fn a_call_needs_its_full_batches_in_turn_and_its_longest_part() {
        let model = served(8, 8).model;
        let part = |rows: &usize| JobPart::new(*rows, RequestEntry::new(Payload::Here([].into()), Extent::ONE));
        let bound = |rows: &[usize], concurrent| {
            let parts: Vec<JobPart> = rows.iter().map(part).collect();
            shortest_time(&model, &parts, CostScale::PROFILED, concurrent)
        };
        let ms = Nanos::from_millis;
        assert_eq!((bound(&[3], 1), bound(&[3], 4)), (ms(4), ms(4)));
        assert_eq!((bound(&[8; 5], 1), bound(&[8; 5], 2), bound(&[8; 5], 9)), (ms(45), ms(27), ms(9)));
        // The last part may share the batch of another call.
        assert_eq!(bound(&[8, 8, 3], 1), ms(18));
    }
}
