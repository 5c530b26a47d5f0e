//! Forms batches of waiting requests on a device that has room.

use super::devices::DeviceLanes;
use super::rules::{LaneRules, WHOLE};
use super::{Clusters, DvaBatch, DvaModel, DvaModelState};
use crate::fifo::Tables;
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_sched::Request;

impl DvaBatch {
    /// Forms batches of the model whose first request has waited longest, among those that may
    /// start one on a device. Returns whether it did.
    pub(super) fn form(&mut self, now: Time, device: DeviceId) -> bool {
        if self.has_formed(device) {
            return false;
        }
        let mut after = None;
        while let Some(key) = self.queues.fifo.next_model(after) {
            match self.may_form(now, device, key.1) {
                Some(0) => return false,
                Some(count) => {
                    self.commit(device, key.1, count);
                    return true;
                }
                None => after = Some(key),
            }
        }
        false
    }

    /// Returns whether a formed batch waits on a device; no other batch overtakes it.
    pub(super) fn has_formed(&self, device: DeviceId) -> bool {
        let formed = |served: &DvaModel| served.pipelines[device.index()].formed(&self.cohorts).is_some();
        self.queues.models.iter().any(|(_, served)| formed(served))
    }

    /// Returns the number of a model's oldest requests that may form batches on a device now. 0 if
    /// they, and all requests behind them, wait until the device has room; `None` if they wait for
    /// another reason.
    fn may_form(&mut self, now: Time, device: DeviceId, id: ModelId) -> Option<usize> {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, devices, window_ends, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get(id);
        let pipeline = &pipelines[device.index()];
        let present = pipeline.rows(cohorts);
        let in_use = pipelines.iter().filter(|pipeline| !pipeline.is_empty()).count();
        if pipeline.is_empty() && in_use >= model.instances.max(1) {
            return None;
        }
        if !pipeline.could_begin() {
            return None;
        }
        let head = fifo.head(id).expect("the model has a head");
        // A request that is wider than the limit runs alone.
        let alone = if pipeline.is_empty() { head.rows as usize } else { 0 };
        let (count, rows) = fifo.fitting(id, plan.max_batch.max(alone).saturating_sub(present));
        let full = fifo.waiting(id).nth(count).is_some() || rows + present >= plan.max_batch;
        let window_end = head.arrived + plan.windows[usize::from(!devices[device].is_idle())];
        if window_end > now && !full {
            *window_ends = (*window_ends).min(window_end);
            return None;
        }
        (count > 0).then(|| self.fitting_beside(now, device, id, count))
    }

    /// Returns the number of the first `count` requests of a model that fit beside the running
    /// batches; of several groups, the first must fit. The groups are left in
    /// [`DvaBatch::clusters`].
    fn fitting_beside(&mut self, now: Time, device: DeviceId, id: ModelId, count: usize) -> usize {
        if self.devices[device].shares() >= WHOLE {
            return 0;
        }
        let mut fits = |count: usize| {
            self.divide(id, count);
            let DvaModel { model, own: DvaModelState { plan, .. }, .. } = self.served(id);
            let (length, rows, _) = self.clusters.groups().next().expect("there is a request");
            self.devices[device].has_room(plan.share(model, 0, rows, length))
        };
        if fits(count) {
            return if self.devices[device].runs() && self.is_better_later(now, device, id, count) { 0 } else { count };
        }
        if !fits(1) {
            return 0;
        }
        let (mut low, mut high) = (1, count - 1);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        if self.is_better_later(now, device, id, low) { 0 } else { low }
    }

    /// Divides the first `count` requests of a model by length.
    fn divide(&mut self, id: ModelId, count: usize) {
        let DvaBatch { queues: Tables { models, fifo, .. }, options, clusters, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, .. }, .. } = models.get(id);
        let beside = options.executors.beside(model.blocks.len());
        let member = |request: &Request| (request.extent.length, request.rows, request.slot);
        let others = fifo.len(id) - count;
        let wait = |clusters: &Clusters| {
            let groups = clusters.groups().map(|(length, rows, _)| (length, rows));
            plan.wait(model, groups, beside, others)
        };
        clusters.divide(fifo.waiting(id).take(count).map(member), plan.groups, wait);
    }

    /// Returns true if it is better that all waiting requests begin together once the device is
    /// free. The alternative is that `part` of them begin now and the others in such parts beside
    /// the running ones. The smaller total wait, including running requests, decides. If the parts
    /// win, the parts are left in [`DvaBatch::clusters`]. The forecast is checked. If requests that
    /// waited then still wait when all should have ended, parallel tasks take longer than profiled.
    /// Starting parts would then go on forever while the queue grew.
    fn is_better_later(&mut self, now: Time, device: DeviceId, id: ModelId, part: usize) -> bool {
        let oldest = self.queues.fifo.head(id).expect("a request waits").arrived;
        let forecast_of_parts = &mut self.queues.models.get_mut(id).own.forecast_of_parts;
        *forecast_of_parts = forecast_of_parts.filter(|&(latest, _)| oldest <= latest);
        if forecast_of_parts.is_some_and(|(_, by)| by < now) {
            return true;
        }
        let (all, _) = self.queues.fifo.fitting(id, self.served(id).plan.max_batch);
        let stages = self.served(id).model.blocks.len();
        let (lanes, others) = (self.options.executors.beside(stages), self.queues.fifo.len(id) - all);
        let mut together = LaneRules::new(lanes).after(self.devices[device].rest(now));
        self.divide(id, all);
        let DvaModel { model, own: DvaModelState { plan, .. }, .. } = self.served(id);
        self.clusters.groups().for_each(|(length, rows, _)| together.run(plan, model, length, rows));
        let (together, end) = (together.waits(others), together.end());
        self.divide(id, part);
        let DvaModel { model, own: DvaModelState { plan, .. }, .. } = self.served(id);
        let mut apart = LaneRules::beside(lanes, self.devices[device].busy(now));
        let mut left = all;
        while left > 0 && apart.waits(others) <= together {
            for (length, rows, members) in self.clusters.groups() {
                let taken = members.len().min(left);
                apart.run(plan, model, length, rows * taken / members.len());
                left -= taken;
                if left == 0 {
                    break;
                }
            }
        }
        let later =
            apart.waits(others) > together || self.arrivals_exceed_parts(now, id, all, (apart.end(), end), device);
        if !later {
            let latest = self.queues.fifo.waiting(id).nth(all - 1).map_or(oldest, |latest| latest.arrived);
            let by = now + self.devices[device].takes(apart.end());
            self.queues.models.get_mut(id).own.forecast_of_parts.get_or_insert((latest, by));
        }
        later
    }

    /// Returns whether rows arrive faster than parallel parts carry them while all together would
    /// be done sooner. Parts are then better for the waiting requests but worse for later ones, for
    /// as long as the load lasts.
    fn arrivals_exceed_parts(
        &self,
        now: Time,
        id: ModelId,
        all: usize,
        (apart, together): (Nanos, Nanos),
        device: DeviceId,
    ) -> bool {
        let span = self.devices[device].takes(apart);
        let come = self.served(id).own.meter.rate(now).map_or(0, |rate| rate.rows_in(span));
        let present = self.devices.iter().filter(|(_, device)| device.present).count();
        together < apart && come.saturating_mul(9) > 8 * (all * present) as u64
    }

    /// Forms batches of the oldest requests of a model, by the groups into which they were divided.
    fn commit(&mut self, device: DeviceId, id: ModelId, count: usize) {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, clusters, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let pipeline = &mut pipelines[device.index()];
        let mut taken = 0;
        for (length, rows, members) in clusters.groups() {
            let batch = pipeline.open(cohorts, id, plan.will_split(model, 1, rows, length));
            for &(_, _, slot) in members {
                fifo.set_apart(slot);
                cohorts.push(batch, fifo.request(slot));
                taken += 1;
            }
        }
        assert_eq!(taken, count, "the groups are those of the requests that were chosen");
    }
}
