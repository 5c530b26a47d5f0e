//! Fixtures shared by unit tests of several modules.

use crate::ServedModel;
use ripieno_base::Nanos;
use ripieno_executor::LoadedModel;
use ripieno_model::{Model, Profile, TensorSpec};
use std::any::Any;
use std::sync::Arc;

struct Nothing;

impl LoadedModel for Nothing {
    fn inputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn outputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn blocks(&self) -> usize {
        1
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A model with ℓ(b) = b + 1 ms.
pub(crate) fn served(max_batch: usize, max_queue: usize) -> ServedModel {
    let profile = Profile::linear(1.0, 1.0, max_batch).unwrap();
    let model = Model::whole("m", profile, Nanos::from_millis(100));
    ServedModel {
        model,
        loaded: Arc::new(Nothing),
        max_queue: Some(max_queue),
        max_queued_work: None,
        answer_late: false,
    }
}
