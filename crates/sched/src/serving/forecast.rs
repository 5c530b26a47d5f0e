//! Early refusal: the time at which a newcomer would be answered.
//!
//! A newcomer waits for the requests of its model that go before it, at the speed of the devices
//! that other models leave to it, and then runs. If that ends after its deadline, it is refused
//! immediately instead of shortly before the deadline.

use super::UnifiedScheduler;
use crate::{Request, Why};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::DropRule;

impl UnifiedScheduler {
    /// Refuses a newcomer that would be late; returns whether it did.
    pub(super) fn refuses(&mut self, now: Time, request: &Request) -> bool {
        let served = self.models.get(request.model);
        if served.drop != DropRule::Hopeless || self.forecast(now, request) <= request.deadline {
            return false;
        }
        let rows = request.rows as usize;
        self.models.get_mut(request.model).own.load.on_lost(rows);
        self.load.observe(rows, true);
        true
    }

    /// Returns the time at which a newcomer is expected to be answered. While nothing of its model
    /// waits, that is now: its former decides.
    fn forecast(&self, now: Time, request: &Request) -> Time {
        let served = self.models.get(request.model);
        let (before, own) = match served.model.walk.is_unfolded() {
            true => {
                let full = served.model.blocks[0].profile.latency(self.cells.served(request.model).cells[0].max);
                let waiting = self.cells.served(request.model).waiting as i64;
                let own = self.cells.newcomer(request).own;
                (served.load.of_steps(served.load.work * waiting, full), served.load.of_steps(own, full))
            }
            false => {
                let rows = served.queue.rows_before(&self.requests, request.deadline);
                (served.load.work * rows.cast_signed(), Nanos::ZERO)
            }
        };
        if before == Nanos::ZERO {
            return now;
        }
        now + before.scale(1_000, self.room(request.model)) + own
    }

    /// Returns the thousandths of a device that a model can have: those that others would not have
    /// needed recently in their best batches, at least its share by weight.
    fn room(&self, id: ModelId) -> u64 {
        let all = 1_000 * self.present().max(1) as u64;
        let weight = |id: ModelId| u64::from(self.models.get(id).model.weight.max(1));
        let active = self.models.iter().filter(|(other, of)| *other == id || of.load.need > 0);
        let weights: u64 = active.map(|(other, _)| weight(other)).sum();
        let others: u64 = self.models.iter().filter(|(other, _)| *other != id).map(|(_, of)| of.load.need).sum();
        all.saturating_sub(others).max(all * weight(id) / weights.max(1)).max(1)
    }

    /// Ends a refused newcomer.
    pub(super) fn refuse(&mut self, request: &Request) {
        if self.models.get(request.model).model.walk.is_unfolded() {
            self.cells.refuse(request, Why::Hopeless);
        } else {
            self.requests.insert(request);
            self.requests.reject(request.slot.0, Why::Hopeless, &mut self.pending);
        }
    }
}
