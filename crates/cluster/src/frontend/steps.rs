//! The receiver of a streamed answer's steps.

use parking_lot::Mutex;
use ripieno_runtime::{OnStep, StreamedStep};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The client's callback for steps, until the answer.
pub(super) struct StepReceiver(Mutex<Option<OnStep>>);

impl StepReceiver {
    pub(super) fn new(on_step: OnStep) -> Arc<StepReceiver> {
        Arc::new(StepReceiver(Mutex::new(Some(on_step))))
    }

    /// Passes a step on. After a panic of the callback, and after the answer, steps are ignored.
    pub(super) fn receive(&self, step: StreamedStep) {
        let mut on_step = self.0.lock();
        if let Some(receive) = &mut *on_step
            && catch_unwind(AssertUnwindSafe(|| receive(step))).is_err()
        {
            tracing::error!("the receiver of an answer's steps panicked");
            *on_step = None;
        }
    }

    /// Ends the steps, before the answer.
    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}
