//! Who may come in: slots, queued bytes and each model's own bound.
//!
//! Taken by front-end threads before the request enters the mailbox, so that a flood is turned away without the
//! scheduler thread, and everything behind the door is bounded by the number of slots. A [`Permit`] holds all that was
//! taken and gives it back when it is dropped; there is no other way to give back.

use crate::metrics::{ModelMetrics, ModelSnapshot};
use crate::{Refused, ServedModel};
use crossbeam_queue::ArrayQueue;
use ripieno_base::{Nanos, RequestSlot};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const RETRY_MIN: Nanos = Nanos::from_millis(1);
const RETRY_MAX: Nanos = Nanos::from_millis(30_000);

/// The bounds of the whole server.
pub(crate) struct Admission {
    free: ArrayQueue<RequestSlot>,
    slots: usize,
    bytes: AtomicUsize,
    max_bytes: usize,
}

/// What front-end threads know of a model.
pub(crate) struct ModelEntry {
    pub(crate) name: String,
    pub(crate) slo: Nanos,
    pub(crate) max_batch: usize,
    pub(crate) blocks: usize,
    pub(crate) answer_late: bool,
    max_queue: usize,
    /// ℓ(B)/B for the largest batch B: what a queued row costs when batches are full.
    latency_per_row: Nanos,
    /// Live parts.
    live: AtomicUsize,
    pub(crate) metrics: ModelMetrics,
}

/// The right to be in the server: slots, bytes and places in the model's queue.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    model: Arc<ModelEntry>,
    /// One a part, in order.
    slots: Vec<RequestSlot>,
    places: usize,
    bytes: usize,
}

impl Admission {
    pub(crate) fn new(slots: usize, max_bytes: usize) -> Admission {
        let free = ArrayQueue::new(slots);
        for slot in 0..slots {
            free.push(RequestSlot(slot as u32)).expect("the queue holds every slot");
        }
        Admission { free, slots, bytes: AtomicUsize::new(0), max_bytes }
    }

    /// Takes `parts` slots, as many places in the model's queue, and `bytes`; all or nothing.
    pub(crate) fn enter(
        self: &Arc<Admission>,
        model: &Arc<ModelEntry>,
        parts: usize,
        bytes: usize,
    ) -> Result<Permit, Refused> {
        let mut permit =
            Permit { admission: Arc::clone(self), model: Arc::clone(model), slots: Vec::new(), places: 0, bytes: 0 };
        if !take(&model.live, parts, model.max_queue) {
            return Err(model.refusal(model.max_queue));
        }
        permit.places = parts;
        if !take(&self.bytes, bytes, self.max_bytes) {
            // In requests, the bound that bytes set is as many as have come in.
            return Err(model.refusal((self.slots - self.free.len()).max(1)));
        }
        permit.bytes = bytes;
        permit.slots.reserve_exact(parts.min(self.slots));
        for _ in 0..parts {
            permit.slots.push(self.free.pop().ok_or_else(|| model.refusal(self.slots))?);
        }
        Ok(permit)
    }

    #[cfg(test)]
    fn is_untouched(&self) -> bool {
        self.free.len() == self.slots && self.bytes.load(Relaxed) == 0
    }
}

/// Adds `amount` to `taken` unless that exceeds `bound`.
fn take(taken: &AtomicUsize, amount: usize, bound: usize) -> bool {
    let added = |now: usize| now.checked_add(amount).filter(|&sum| sum <= bound);
    taken.fetch_update(Relaxed, Relaxed, added).is_ok()
}

impl ModelEntry {
    pub(crate) fn new(served: &ServedModel) -> ModelEntry {
        let model = &served.model;
        let full_batch = model.profile().latency(model.max_batch.min(model.profile().max_batch()));
        ModelEntry {
            name: model.name.clone(),
            slo: model.slo,
            max_batch: model.max_batch,
            blocks: model.blocks.len(),
            answer_late: served.answer_late,
            max_queue: served.max_queue,
            latency_per_row: full_batch.scale(1, model.max_batch as u64),
            live: AtomicUsize::new(0),
            metrics: ModelMetrics::new(model.max_batch),
        }
    }

    pub(crate) fn snapshot(&self) -> ModelSnapshot {
        self.metrics.snapshot(self.live.load(Relaxed))
    }

    /// A retry may succeed once what waits now has run, in full batches on one device: an estimate that needs no
    /// look at any queue.
    fn refusal(&self, bound: usize) -> Refused {
        let waiting = self.metrics.waiting.load(Relaxed) as i64;
        let clear = (self.latency_per_row * waiting).clamp(RETRY_MIN, RETRY_MAX);
        self.metrics.on_refused();
        Refused::QueueFull { bound, retry_after: Duration::from_nanos(clear.0.cast_unsigned()) }
    }
}

impl Permit {
    pub(crate) fn slots(&self) -> &[RequestSlot] {
        &self.slots
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            self.admission.free.push(slot).expect("every slot came from the queue");
        }
        self.admission.bytes.fetch_sub(self.bytes, Relaxed);
        self.model.live.fetch_sub(self.places, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;

    fn bound_of(result: Result<Permit, Refused>) -> usize {
        match result {
            Err(Refused::QueueFull { bound, retry_after }) => {
                assert!(retry_after >= Duration::from_millis(1));
                bound
            }
            Err(other) => panic!("refused otherwise: {other}"),
            Ok(_) => panic!("not refused"),
        }
    }

    #[test]
    fn each_bound_refuses_and_gives_everything_back() {
        let admission = Arc::new(Admission::new(4, 100));
        let model = Arc::new(ModelEntry::new(&served(1, 8)));
        let narrow = Arc::new(ModelEntry::new(&served(1, 2)));
        let held = admission.enter(&model, 1, 60).unwrap();
        assert_eq!(bound_of(admission.enter(&narrow, 3, 1)), 2);
        assert_eq!(bound_of(admission.enter(&model, 1, 41)), 1);
        assert_eq!(bound_of(admission.enter(&model, 4, 1)), 4);
        assert_eq!(bound_of(admission.enter(&model, 8, 1)), 8);
        let rest = admission.enter(&model, 3, 40).unwrap();
        assert_eq!(rest.slots().len(), 3);
        drop((held, rest));
        assert!(admission.is_untouched());
        assert_eq!((model.live.load(Relaxed), narrow.live.load(Relaxed)), (0, 0));
    }

    #[test]
    fn retry_after_grows_with_the_queue() {
        let model = ModelEntry::new(&served(4, 8));
        model.metrics.waiting.store(80, Relaxed);
        let Refused::QueueFull { retry_after, .. } = model.refusal(8) else { panic!("another refusal") };
        assert_eq!(retry_after, Duration::from_millis(100));
    }
}
