//! Models whose live requests are bounded apart from those of the others, as a server bounds them.

use ripieno_base::ModelId;

/// How many requests of each model live.
pub(super) struct QueueBounds<'a> {
    bounds: &'a [Option<usize>],
    live: Vec<usize>,
}

impl QueueBounds<'_> {
    /// None where no model is bounded.
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
