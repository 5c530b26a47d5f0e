//! Early refusal: the time at which a newcomer would be answered.
//!
//! A newcomer waits for a device, and for the requests of its model that go before it. The next
//! batch has as many of these as its head's deadline allows. The others run in full batches, at the
//! speed of the devices that other models leave to the model. In cells, a newcomer waits for the
//! requests beyond a full step of each device. Then it runs, with the requests that join its batch
//! until the start.
//!
//! If the run ends after its deadline on average, it is refused immediately instead of shortly
//! before the deadline.
//!
//! Rejected: forecasts by promised instead of mean times. With them nearly all refusals would be
//! early, also on devices that are late by chance. But a twentieth of the useful answers would be
//! lost on a recording of a real engine, and up to a seventh in simulation.
//!
//! While a model loses few requests, its forecast is kept low, since errors would cost more than a
//! few late refusals. It leaves out the wait for a device, the size of the next batch and the
//! requests that join. In cells it leaves out the wait for a place in a step.

use super::former::Former;
use super::{UnifiedEntry, UnifiedScheduler};
use crate::{Prediction, Reason, Request};
use ripieno_base::{ModelId, Nanos, Permille, Time};
use ripieno_model::DropRule;

impl UnifiedScheduler {
    /// Refuses a newcomer that would be late; returns whether it did.
    pub(super) fn refuses(&mut self, now: Time, request: &Request) -> bool {
        let drops = self.models.get(request.model).drop == DropRule::Hopeless;
        let end = if drops { self.forecast(now, request) } else { now };
        let refused = drops && end > request.deadline;
        self.forecasts[request.slot.index()] = refused.then_some(Prediction { made: now, remaining: end - now });
        if !refused {
            return false;
        }
        self.pending.explain(Reason::Refused { request: request.slot, end });
        let rows = request.rows as usize;
        self.models.get_mut(request.model).own.load.on_lost(rows);
        self.load.observe(rows, true);
        true
    }

    /// Returns the time by which a newcomer is expected to be answered; `now` if that is left to
    /// its former.
    fn forecast(&self, now: Time, request: &Request) -> Time {
        let served = self.models.get(request.model);
        let losing = served.load.is_losing();
        if served.load.former == Former::Cells {
            return self.forecast_of_cells(now, request);
        }
        let before = served.queue.rows_before(&self.requests, request.deadline) as usize;
        if before == 0 && !losing {
            return now;
        }
        let free = self.devices.frees_in(now, None);
        if free == Nanos::MAX {
            return now;
        }
        // The newcomer is in the last batch, behind full ones. A newcomer at the head of the queue
        // must fit into the batch that its former wants, since it is passed over otherwise.
        let full = if before == 0 {
            served.load.wanted_batch()
        } else {
            served.load.full_batch(served.model.slo, request.extent.length)
        };
        // Returns the rows of the last of several batches, and the time that the full ones take.
        let in_full = |rows: usize| {
            let last = (rows - 1) % full + 1;
            (last, (served.load.demand.work * (rows - last) as i64).scale(1_000, self.room(request.model)))
        };
        let ahead = before + request.rows as usize;
        if !losing {
            let (last, queued) = in_full(ahead);
            return now + queued + served.load.of_batch(last, request.extent.length);
        }
        let next = if before > 0 { self.next_rows(now + free, served).min(full) } else { 0 };
        let (first, behind) = match ahead > next && next > 0 {
            true => (Nanos(served.load.mean(next).0 / self.devices_of(served) as i64), ahead - next),
            false => (Nanos::ZERO, ahead),
        };
        let (last, queued) = in_full(behind);
        let begin = free + first + queued;
        let joining = served.load.arrivals.rate.rate(now).map_or(0, |rate| rate.rows_in(begin)) as usize;
        now + begin + served.load.of_batch((last + joining).min(full), request.extent.length)
    }

    /// Returns the time by which a newcomer in cells is expected to be answered; `now` if it joins
    /// the next step.
    fn forecast_of_cells(&self, now: Time, request: &Request) -> Time {
        let (served, of_cells) = (self.models.get(request.model), self.cells.served(request.model));
        let (most, devices) = (of_cells.cells[0].max, self.devices_of(served));
        let newcomer = self.cells.newcomer(request, devices);
        // Live requests beyond the next full steps wait for a place in one.
        let ahead = of_cells.live.saturating_sub(most * devices / newcomer.rows);
        if ahead == 0 {
            return now;
        }
        let like = served.load.steps_like(served.model.blocks[0].profile.latency(most));
        let before = like(served.load.demand.work * ahead as i64);
        // The places of a full step become free together, so a newcomer waits up to a walk for
        // one.
        let walk = like(newcomer.own);
        now + before.scale(1_000, self.room(request.model)) + walk * (1 + i64::from(served.load.is_losing()))
    }

    /// Returns the rows that the next batch may have if it starts at `start`, since its head must
    /// be in time. Padded requests have no common head: 0.
    fn next_rows(&self, start: Time, served: &UnifiedEntry) -> usize {
        let head = served.queue.head().filter(|_| served.groups.is_none());
        head.map_or(0, |head| served.load.largest_within(self.requests.get(head).deadline - start))
    }

    /// Returns the number of devices that can run a model at the same time.
    pub(super) fn devices_of(&self, served: &UnifiedEntry) -> usize {
        self.devices.present().clamp(1, served.model.instances.max(1))
    }

    /// Returns the devices that a model can have, in thousandths: all that the best batches of
    /// other models did not need recently. It is at least the model's share by weight, and at most
    /// the devices on which the model may run.
    fn room(&self, id: ModelId) -> u64 {
        let all = 1_000 * self.devices.present().max(1) as u64;
        let weight = |id: ModelId| u64::from(self.models.get(id).model.weight.max(1));
        let active = self.models.iter().filter(|(other, of)| *other == id || of.load.demand.need > Permille::ZERO);
        let weights: u64 = active.map(|(other, _)| weight(other)).sum();
        let others = self.models.iter().filter(|(other, _)| *other != id);
        let others: Permille = others.map(|(_, of)| of.load.demand.need).sum();
        let most = 1_000 * self.devices_of(self.models.get(id)) as u64;
        all.saturating_sub(others.parts()).max(all * weight(id) / weights.max(1)).clamp(1, most)
    }
}
