//! Bounds on the live requests per model, as in a server.

use ripieno_base::ModelId;

/// Number of live requests per model.
pub(super) struct QueueBounds<'a> {
    bounds: &'a [Option<usize>],
    live: Vec<usize>,
}

impl QueueBounds<'_> {
    /// Returns none if no model is bounded.
    pub(super) fn new(bounds: &[Option<usize>]) -> Option<QueueBounds<'_>> {
        bounds.iter().any(Option::is_some).then(|| QueueBounds { bounds, live: vec![0; bounds.len()] })
    }

    pub(super) fn has_room(&self, model: ModelId) -> bool {
        self.bounds[model.index()].is_none_or(|bound| self.live[model.index()] < bound)
    }

    pub(super) fn enter(&mut self, model: ModelId) {
        self.live[model.index()] += 1;
    }

    pub(super) fn leave(&mut self, model: ModelId) {
        self.live[model.index()] -= 1;
    }
}
