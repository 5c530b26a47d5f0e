//! Bounds on the live requests per model, as in a server.

use ripieno_base::ModelId;
use ripieno_model::{DropRule, Model};
use ripieno_sched::Limits;

/// Bound on the live requests of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// None.
    Unbounded,
    /// A number of requests.
    Requests(usize),
    /// The default of a server, by the number of devices and of free slots.
    Served,
}

/// Number of live requests per model.
pub(super) struct QueueBounds<'a> {
    bounds: &'a [QueueBound],
    live: Vec<usize>,
}

impl QueueBounds<'_> {
    /// Returns none if no model is bounded.
    pub(super) fn new(bounds: &[QueueBound]) -> Option<QueueBounds<'_>> {
        let bounded = bounds.iter().any(|&bound| bound != QueueBound::Unbounded);
        bounded.then(|| QueueBounds { bounds, live: vec![0; bounds.len()] })
    }

    /// Returns whether a model may have one more request while `free` slots have none, on `devices`
    /// devices.
    pub(super) fn has_room(&self, id: ModelId, model: &Model, free: usize, devices: impl FnOnce() -> usize) -> bool {
        let live = self.live[id.index()];
        match self.bounds[id.index()] {
            QueueBound::Unbounded => true,
            QueueBound::Requests(bound) => live < bound,
            QueueBound::Served => {
                let refuses_late = !matches!(model.drop, Some(DropRule::Never | DropRule::Expired));
                live < Limits::SERVED_QUEUE
                    || live < Limits::served_queue(model.max_batch, devices())
                    || refuses_late && live < free
            }
        }
    }

    pub(super) fn enter(&mut self, model: ModelId) {
        self.live[model.index()] += 1;
    }

    pub(super) fn leave(&mut self, model: ModelId) {
        self.live[model.index()] -= 1;
    }
}
