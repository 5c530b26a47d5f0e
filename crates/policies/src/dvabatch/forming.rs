//! *new* and *stretch*: batches of waiting requests, formed once the executor of the first stage is
//! free.

use super::pipeline::PipelineBatch;
use super::{DvaBatch, DvaModel, DvaModelState};
use crate::fifo::Tables;
use ripieno_base::{DeviceId, ModelId, Time};
use ripieno_sched::Request;
use ripieno_sched::tables::cohorts::Cohort;

impl DvaBatch {
    /// *new*: forms batches on a device for the model whose first request has waited longest, among
    /// those that may begin one. Returns whether it did.
    pub(super) fn form(&mut self, now: Time, device: DeviceId) -> bool {
        let mut after = None;
        while let Some(key) = self.queues.fifo.next_model(after) {
            let count = self.may_form(now, device, key.1);
            if count > 0 {
                self.commit(device, key.1, count);
                return true;
            }
            after = Some(key);
        }
        false
    }

    /// Returns the number of a model's oldest requests that may form batches on a device now.
    fn may_form(&mut self, now: Time, device: DeviceId, id: ModelId) -> usize {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, window_ends, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get(id);
        let pipeline = &pipelines[device.index()];
        let in_use = pipelines.iter().filter(|pipeline| !pipeline.is_empty()).count();
        let has_instance = !pipeline.is_empty() || in_use < model.instances.max(1);
        if !has_instance || pipeline.formed(cohorts).is_some() || pipeline.entry(None).is_none() {
            return 0;
        }
        let head = fifo.head(id).expect("the model has a head");
        let present = if plan.bounds_pipeline { pipeline.rows(cohorts) } else { 0 };
        // A request that is wider than the limit runs alone.
        let alone = if present == 0 { head.rows as usize } else { 0 };
        let (count, rows) = fifo.fitting(id, plan.max_batch.max(alone).saturating_sub(present));
        let full = fifo.waiting(id).nth(count).is_some() || rows + present >= plan.max_batch;
        let window_end = plan.window_end(model, head);
        if window_end > now && !full {
            *window_ends = (*window_ends).min(window_end);
            return 0;
        }
        count
    }

    /// Forms batches of the oldest requests of a model: policy I by length, the others one batch.
    fn commit(&mut self, device: DeviceId, id: ModelId, count: usize) {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, clusters, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let member = |request: &Request| (request.extent.length, request.rows, request.slot);
        clusters.divide(fifo.waiting(id).take(count).map(member), plan.groups);
        for (length, rows, members) in clusters.groups() {
            let batch = pipelines[device.index()].open(cohorts, id, plan.will_split(model, 1, rows, length));
            for &(_, _, slot) in members {
                fifo.set_apart(slot);
                cohorts.push(batch, fifo.request(slot));
            }
        }
    }

    /// *stretch*, by policy III: lets newcomers catch up with the latest batch of a model.
    pub(super) fn stretch(&mut self, now: Time, device: DeviceId, id: ModelId) {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let pipeline = &mut pipelines[device.index()];
        let Some(batch) = pipeline.stretchable(cohorts).filter(|_| plan.stretches) else {
            return;
        };
        let &Cohort { block, runs, rows, own: PipelineBatch { begun, .. }, .. } = cohorts.get(batch);
        let (newcomers, new_rows) = fifo.fitting(id, plan.max_batch.saturating_sub(rows));
        if newcomers == 0 || now - begun > plan.comp_wait {
            return;
        }
        let border = block.index() + usize::from(runs);
        let joining = pipeline.stretch(cohorts, batch, plan.will_split(model, border, rows + new_rows, 1));
        for _ in 0..newcomers {
            let slot = fifo.pop(id).expect("enough requests wait");
            cohorts.push(joining, fifo.request(slot));
        }
    }
}
