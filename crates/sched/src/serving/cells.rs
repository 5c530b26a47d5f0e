//! The former of models in cells: each cell type with ready rows is an offer of one step.

use super::UnifiedScheduler;
use super::arbiter::{OfferOutlook, OfferedTask, TaskOffer};
use super::devices::TaskInFlight;
use crate::{Action, Outbox};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Permille, Time};

/// Factor on the waste of small steps, in thousandths: rows that arrive join the next step, so
/// little of it is lost.
const WASTE_OF_STEPS: u64 = 200;

impl UnifiedScheduler {
    /// Adds an offer for each cell type of a model with ready rows, and drops requests that cannot
    /// be in time any more. [`UnifiedScheduler::look_out`] adds what only a choice between several
    /// offers needs.
    pub(super) fn offer_cells(&mut self, now: Time, device: DeviceId, id: ModelId) {
        let live = self.cells.find(id).filter(|served| served.live > 0);
        let Some(served) = live.filter(|served| served.may_run_on(device)) else { return };
        for block in 0..served.cells.len() {
            let UnifiedScheduler { cells, models, .. } = self;
            let served = models.get_mut(id);
            let step = served.model.blocks[block].profile.latency(cells.served(id).cells[block].next_rows(device));
            let dropped = cells.drop_hopeless(now, id, block, device, served.load.steps_like(step));
            served.own.load.on_lost(dropped);
        }
        let (of_cells, served) = (self.cells.served(id), self.models.get(id));
        for (block, cell) in of_cells.cells.iter().enumerate() {
            let rows = cell.ready(device).min(cell.max);
            if rows == 0 {
                continue;
            }
            let profile = &served.model.blocks[block].profile;
            let step = profile.latency(rows);
            let full = cell.max.min(served.load.sizes.steady_rows).max(rows);
            let (own, best) = (i128::from(step.0), i128::from(profile.latency(full).0));
            let used = best * rows as i128 * 1_000 / (own * full as i128).max(1);
            let span = self.devices[device].takes(served.load.steps_like(step)(step));
            let offer = TaskOffer {
                span,
                whole: span,
                rows,
                left: cell.ready(device) - rows,
                max_rows: cell.max,
                waste: Permille::from_parts((1_000 - used.clamp(0, 1_000) as u64) * WASTE_OF_STEPS / 1_000),
                ..self.offer(id, OfferedTask::Cell(BlockId(block as u16)), OfferOutlook::NONE)
            };
            self.offers.push(offer);
        }
    }

    /// Completes the offers of steps, which begin at `start`: the urgency of their members, and the
    /// time that these still run.
    pub(super) fn look_out(&mut self, start: Time, device: DeviceId) {
        for at in 0..self.offers.len() {
            let TaskOffer { model, task: OfferedTask::Cell(block), span, rows, .. } = self.offers[at] else { continue };
            let (served, state) = (self.models.get(model), &self.devices[device]);
            let step = served.model.blocks[block.index()].profile.latency(rows);
            let like = served.load.steps_like(step);
            let takes = |left: Nanos| state.takes(like(left));
            let mut outlook = OfferOutlook::NONE;
            let left = self.cells.outlook(self.cells.served(model), block.index(), device, |request, rows, left| {
                let latest_start = request.deadline - takes(left);
                let weight = UnifiedScheduler::weight(served, start - request.arrived, latest_start - start);
                outlook.add(start, (request.slot, rows), weight, latest_start);
            });
            let whole = takes(left).max(span);
            self.offers[at] = TaskOffer { outlook, whole, ..self.offers[at] };
        }
    }

    /// Starts a step of a cell type.
    pub(super) fn start_cell(&mut self, now: Time, device: DeviceId, id: ModelId, block: BlockId, out: &mut Outbox) {
        let cell = &self.cells.served(id).cells[block.index()];
        let rows = cell.ready(device).min(cell.max);
        let served = self.models.get(id);
        let profile = &served.model.blocks[block.index()].profile;
        let profiled = profile.latency(rows);
        let full = cell.max.min(served.load.sizes.steady_rows).max(rows);
        let best = served.load.costs.occupancy.mean(profile.latency(full)).scale(rows as u64, full as u64);
        let own = served.load.costs.occupancy.mean(profiled);
        let best_part = Permille::of(best, own).min(Permille::WHOLE);
        let waiting = self.cells.served(id).waiting;
        self.cells.batch(now, (id, block), device, 1, out);
        let begun = waiting - self.cells.served(id).waiting;
        if begun > 0 {
            self.models.get_mut(id).own.load.on_start(now, begun, own);
        }
        let Some(&Action::Start { task, .. }) = out.actions().last() else { unreachable!("a step starts") };
        let state = &mut self.devices[device].own;
        state.hold_task(TaskInFlight { task, cohort: None, model: id, started: now, profiled, best_part });
    }
}
