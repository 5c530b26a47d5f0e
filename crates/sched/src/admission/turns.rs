//! Prediction of answers where models take turns.
//!
//! If models take turns, no request waits for all the work of others: between two turns of a model
//! each other one has one turn, or as much of one as it has work for.

use super::Admission;
use super::served::AdmittedModel;
use crate::Request;
use ripieno_base::{ModelId, Nanos, Time};

impl Admission {
    /// Returns whether models take turns now: cells beside other models.
    pub(super) fn take_turns(&self, request: &Request) -> bool {
        let unfolds = |served: &AdmittedModel| served.cost.model().walk.is_unfolded();
        self.needs.turns
            && (unfolds(self.served(request.model))
                || self.models.iter().flatten().any(|served| served.rows > 0 && unfolds(served)))
    }

    /// Returns the predicted answer time of a request that costs `alone` with those that it shares
    /// batches with.
    pub(super) fn end_in_turns(&self, now: Time, request: &Request, work: i64, alone: Nanos) -> Time {
        let (served, devices) = (self.served(request.model), self.devices.present().max(1));
        let rows = request.rows as usize;
        let own = served.estimate(devices, rows, work);
        if served.cost.model().walk.is_unfolded() {
            let beyond = served.beyond(devices, rows, work);
            // If its batches are not full, no other model has a turn that would make it late.
            let turns = if beyond > 0 { served.cost.turns(request, self.depth) } else { 1 };
            let others = self.devices.together(self.between(request.model, turns, devices as i64));
            let together = self.devices.at_best(alone).0.max(self.devices.together(own));
            return now + self.devices.begun_after(now, beyond) + Nanos(together + others);
        }
        let others = self.between(request.model, batches(served, rows), 1);
        let before = served.not_started(rows, work).saturating_sub(alone.0).max(0).saturating_add(others);
        now + self.devices.begun_after(now, before) + self.devices.at_best(alone)
    }

    /// Returns the device time of other models between `turns` turns of one. Before the first turn,
    /// a free device serves it at the latest when another model's turn would make it late.
    fn between(&self, model: ModelId, turns: i64, ways: i64) -> i64 {
        let devices = self.devices.present().max(1);
        let others = self.models.iter().zip(0..).filter(|(_, id)| ModelId(*id) != model);
        let each = others.filter_map(|(served, _)| served.as_ref()).filter(|served| served.rows > 0).map(|served| {
            let rows = match served.cost.model().walk.is_unfolded() {
                true => served.rows.div_ceil(devices),
                false => served.waiting_rows.div_ceil(devices),
            };
            let turn = if rows == 0 { 0 } else { served.cost.turn(rows, self.depth).0 };
            served.backlog.min(turn.saturating_mul(turns - 1).saturating_mul(ways))
        });
        each.fold(0, i64::saturating_add)
    }
}

/// Returns the number of batches in which a whole model runs its waiting rows and `rows` more.
fn batches(served: &AdmittedModel, rows: usize) -> i64 {
    (served.waiting_rows + rows).div_ceil(served.cost.model().max_batch.max(1)) as i64
}
