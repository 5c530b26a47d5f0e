//! Corrections of latency profiles that measured batches contradict.

use super::SchedulerLoop;
use crate::event_loop::live_models::DroppedPart;
use ripieno_base::{BlockId, ModelId, RequestSlot, Time};
use ripieno_model::Profile;
use ripieno_sched::Control;

impl SchedulerLoop {
    /// Replaces the profile of a block by measured latencies.
    pub(super) fn correct_profile(&mut self, id: ModelId, block: BlockId, profile: Profile) {
        let known = self.models.of(id);
        if known.is_leaving() {
            return;
        }
        let (rows, right, wrong) = largest_change(&known.model().blocks[block.index()].profile, &profile);
        tracing::warn!(
            model = known.entry().name,
            block = block.0,
            "batches take otherwise than profiled: {rows} rows {right:.3} ms instead of {wrong:.3}; the profile is replaced"
        );
        known.entry().metrics.on_correction();
        known.entry().replace_profile(block, profile.clone());
        known.replace_profile(block, profile.clone());
        self.speeds.forget();
        self.core.control(Control::ProfileReplaced { model: id, block, profile });
    }

    /// Notes a request that was dropped before it ran. The profile may be too high, and if nothing
    /// runs, no measurement can correct it.
    pub(super) fn suspect_profile(&mut self, now: Time, slot: RequestSlot) {
        let (_, call, part) = self.jobs.owner(slot);
        let (extent, allowed) = (call.parts[part].entry.extent, call.deadline - call.arrived);
        let (id, dropped) = (call.id, DroppedPart { extent, allowed, shape: call.class.shape });
        let idle = self.models.are_idle();
        if let Some(alone) = self.models.of(id).on_hopeless(now, &dropped, idle) {
            self.models.add_suspect(id, alone);
        }
    }

    /// Lowers suspect profiles, so that the scheduler runs a request and measures it. This happens
    /// in the next turn, because the outbox may be half performed when a profile becomes suspect.
    pub(super) fn test_suspect_profiles(&mut self) {
        while let Some((id, known, alone)) = self.models.pop_suspect() {
            tracing::warn!(
                model = known.entry().name,
                "by its profile a lone request takes {:.3} ms and nothing of it runs: that is put to the test",
                alone.as_millis_f64()
            );
            self.speeds.forget();
            for (block, profile) in known.lower_profile(alone) {
                self.core.control(Control::ProfileReplaced { model: id, block, profile });
            }
        }
    }
}

/// Returns the batch size whose latency changes most, with the new and the old latency in
/// milliseconds.
fn largest_change(old: &Profile, new: &Profile) -> (usize, f64, f64) {
    let latencies = |rows: usize| (rows, new.latency(rows).as_millis_f64(), old.latency(rows).as_millis_f64());
    let factor = |(_, new, old): &(usize, f64, f64)| (new.max(1e-6) / old.max(1e-6)).ln().abs();
    let sizes = (1..=old.max_batch().min(new.max_batch())).map(latencies);
    sizes.max_by(|a, b| factor(a).total_cmp(&factor(b))).unwrap_or_else(|| latencies(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_changes_most_is_named() {
        let (old, new) = (Profile::linear(1.0, 1.0, 4).unwrap(), Profile::linear(2.0, 0.0, 4).unwrap());
        assert_eq!(largest_change(&old, &new), (4, 8.0, 5.0));
        let slower = Profile::linear(1.0, 9.0, 4).unwrap();
        assert_eq!(largest_change(&old, &slower), (1, 10.0, 2.0));
    }
}
