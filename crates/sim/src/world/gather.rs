//! The cost of a task whose members differ from the previous task's on its device.

use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot};

/// Cost per row, and the members of the latest tasks.
pub(super) struct GatherCosts<'a> {
    /// Cost per row, by model and block.
    per_row: &'a [Vec<Nanos>],
    /// Per device, the members of its latest task.
    latest: Vec<Vec<RequestSlot>>,
}

impl GatherCosts<'_> {
    /// Returns none if all costs are zero.
    pub(super) fn new(per_row: &[Vec<Nanos>], devices: usize) -> Option<GatherCosts<'_>> {
        let costs = per_row.iter().flatten().any(|&cost| cost > Nanos::ZERO);
        costs.then(|| GatherCosts { per_row, latest: vec![Vec::new(); devices] })
    }

    pub(super) fn cost(
        &mut self,
        model: ModelId,
        block: BlockId,
        device: DeviceId,
        slots: &[RequestSlot],
        rows: usize,
    ) -> Nanos {
        let latest = &mut self.latest[device.index()];
        if latest == slots {
            return Nanos::ZERO;
        }
        latest.clear();
        latest.extend_from_slice(slots);
        self.per_row[model.index()][block.index()] * rows as i64
    }
}
