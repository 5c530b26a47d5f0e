//! The load that a model's calls offer, beside what the devices can do.

use super::CallRecord;
use ripieno_base::{Nanos, Time};
use ripieno_model::bounds::{Bound, capacity};
use ripieno_model::{Block, Extent, Model, Steps};

/// The arrivals of one model, and what the devices can do of it.
#[derive(Clone, Debug)]
pub(super) struct OfferedLoad {
    /// Best operating point on all devices; `None` where requests of one model differ in cost.
    pub(super) capacity: Option<Bound>,
    /// Arrivals, ascending.
    arrivals: Vec<Time>,
    /// Number of rows that arrived before each.
    rows: Vec<u64>,
}

impl OfferedLoad {
    pub(super) fn new(model: &Model, devices: usize) -> OfferedLoad {
        OfferedLoad { capacity: capacity(model, devices), arrivals: Vec::new(), rows: vec![0] }
    }

    /// Adds a call; calls come in the order in which the scheduler received them.
    pub(super) fn add(&mut self, call: &CallRecord) {
        self.arrivals.push(call.admitted);
        self.rows.push(self.rows[self.rows.len() - 1] + u64::from(call.rows));
    }

    /// Returns the size of the batches that reach the capacity.
    pub(super) fn batch(&self, model: &Model) -> usize {
        self.capacity.map_or(model.max_batch, |bound| bound.batch)
    }

    /// Returns the rows that arrived in a span.
    pub(super) fn rows_between(&self, from: Time, to: Time) -> u64 {
        let place = |at: Time| self.arrivals.partition_point(|arrived| *arrived < at);
        self.rows[place(to.next())] - self.rows[place(from)]
    }
}

/// Number of times that a request runs a block, one after the other; once where that is unknown.
fn steps(block: &Block, extent: Extent) -> i64 {
    match block.steps {
        Steps::UntilEnd | Steps::Nodes => 1,
        steps => i64::from(extent.steps(steps).max(1)),
    }
}

/// Device time in nanoseconds of a request in batches of this size.
pub(super) fn work(model: &Model, call: &CallRecord, batch: usize) -> f64 {
    let extent = call.extent;
    let each = model.blocks.iter().map(|block| {
        let full = batch.min(block.max_batch()).max(1);
        call.cost.of(block.cost(full, extent.length)).0 as f64 / full as f64 * steps(block, extent) as f64
    });
    each.sum::<f64>() * f64::from(call.rows)
}

/// Duration of a request on an idle device.
pub(super) fn lone_run(model: &Model, call: &CallRecord) -> Nanos {
    let (rows, extent) = ((call.rows as usize).clamp(1, model.max_batch), call.extent);
    let each = model.blocks.iter().map(|block| {
        let rows = if model.walk.is_unfolded() { 1 } else { rows.min(block.max_batch()) };
        call.cost.of(block.cost(rows, extent.length)) * steps(block, extent)
    });
    each.sum()
}
