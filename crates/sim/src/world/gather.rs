//! What it costs that the members of a task differ from those of the task before it on its device.

use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot};

/// What each row costs, and who ran last.
pub(super) struct GatherCosts<'a> {
    /// A row, by model and block.
    per_row: &'a [Vec<Nanos>],
    /// By device, the members of its latest task.
    latest: Vec<Vec<RequestSlot>>,
}

impl GatherCosts<'_> {
    /// None where it costs nothing.
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
