//! Requests that were passed over: they run where no other request needs the device.

use super::arbiter::{OfferOutlook, OfferedTask, TaskOffer};
use super::batches::{alone, room};
use super::{UnifiedEntry, UnifiedScheduler};
use crate::Request;
use crate::tables::cohorts::CohortId;
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::DropRule;

impl UnifiedScheduler {
    /// Returns the offer of overdue requests whose model keeps them. Their waiting counts as for
    /// any other request, their deadlines do not.
    pub(super) fn late_offer(&self, now: Time, device: DeviceId, id: ModelId) -> Option<TaskOffer> {
        let served = self.models.get(id);
        let first = served.queue.overdue().filter(|_| served.drop == DropRule::Never)?;
        let rows = self.overdue_rows(served, first, late_batch(served));
        let offer = self.batch_offer(now, device, id, (first, rows), OfferedTask::Overdue);
        Some(TaskOffer { outlook: OfferOutlook { savable: 0, ..offer.outlook }, ..offer })
    }

    /// Returns the offer of requests that were passed over, for a device with nothing else to do.
    pub(super) fn offer_overdue(&self, now: Time, device: DeviceId, idle: usize) -> Option<TaskOffer> {
        if !self.devices[device].held.is_empty() || !self.devices[device].present {
            return None;
        }
        let ids = (0..self.models.capacity() as u16).map(ModelId).filter(|&id| self.models.find(id).is_some());
        let mut runnable = ids.filter(|&id| self.runs_overdue(now, device, id, idle));
        runnable.next().map(|id| self.offer(id, OfferedTask::Overdue, OfferOutlook::NONE))
    }

    /// Returns whether requests of a model that were passed over are worth the time of an idle
    /// device. They are not if a batch that still waits needs the last one.
    fn runs_overdue(&self, now: Time, device: DeviceId, id: ModelId, idle: usize) -> bool {
        let served = self.models.get(id);
        let Some(first) = served.queue.overdue() else { return false };
        if served.devices >= served.model.instances.max(1) {
            return false;
        }
        if served.drop != DropRule::Hopeless {
            return true;
        }
        let (request, state) = (self.requests.get(first), &self.devices[device]);
        let takes = state.takes(alone(served, request.rows, request.extent.length));
        now + takes <= request.deadline && (idle > 1 || self.wakeup >= now + takes)
    }

    /// Returns the rows of a batch of overdue requests, at most `most`.
    fn overdue_rows(&self, served: &UnifiedEntry, first: u32, most: usize) -> usize {
        let (mut rows, mut next) = (0, Some(first));
        while let Some(slot) = next {
            let more = self.requests.get(slot).rows as usize;
            if rows > 0 && rows + more > most {
                break;
            }
            rows += more;
            next = self.requests.links.next(slot);
        }
        rows.min(served.model.max_batch)
    }

    /// Opens a batch of requests that were passed over.
    pub(super) fn open_overdue(&mut self, now: Time, device: DeviceId, id: ModelId) -> CohortId {
        let UnifiedScheduler { models, requests, cohorts, load, devices, .. } = self;
        let served = models.get_mut(id);
        let first = requests.get(served.queue.overdue().expect("requests were passed over"));
        let wide = first.rows as usize;
        let fits = room(served, first, devices[device].by_profile(first.deadline - now), served.load.sizes.max_batch);
        let room = match (served.groups.is_some(), fits >= wide) {
            (true, _) => wide,
            (false, true) => fits,
            (false, false) => late_batch(served).max(wide),
        };
        let cohort = cohorts.open(id, ());
        let member = |request: &Request| cohorts.push(cohort, request);
        let rows = match served.model.in_arrival_order && served.drop == DropRule::Never {
            true => served.own.queue.take_oldest(requests, room, member),
            false => served.own.queue.take_overdue(requests, room, member),
        };
        let cost = served.load.mean(rows);
        served.own.load.on_start(now, rows, cost);
        load.on_start(now);
        self.hold(device, id, cohort);
        cohort
    }
}

/// Returns the largest batch of requests that are late anyway. It takes at most half of the SLO, so
/// that a punctual request behind it keeps the other half.
fn late_batch(served: &UnifiedEntry) -> usize {
    served.load.largest_within(Nanos(served.model.slo.0 / 2)).max(1)
}
