//! The answer of each accepted job.
//!
//! Ownership guarantees that every accepted job is answered exactly once. An [`Answerer`] can
//! answer once. If it is dropped without an answer, by a shutdown, a bug or a panic, it answers
//! that the server is shutting down.

use crate::{Failure, JobResult, OnStep, StreamedStep};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Obligation to answer one job.
pub(crate) struct Answerer {
    on_answer: Option<Box<dyn FnOnce(JobResult) + Send>>,
    on_step: Option<OnStep>,
    _pass: DrainPass,
}

impl Answerer {
    pub(crate) fn new(
        on_answer: Box<dyn FnOnce(JobResult) + Send>,
        on_step: Option<OnStep>,
        pass: DrainPass,
    ) -> Answerer {
        Answerer { on_answer: Some(on_answer), on_step, _pass: pass }
    }

    /// Delivers a step, if the client wants steps. If the callback panics, it gets no further
    /// steps.
    pub(crate) fn step(&mut self, step: StreamedStep) {
        if let Some(on_step) = &mut self.on_step
            && catch_unwind(AssertUnwindSafe(|| on_step(step))).is_err()
        {
            tracing::error!("the receiver of an answer's steps panicked");
            self.on_step = None;
        }
    }

    /// Delivers the answer. A panic of the callback is caught, because it would stop a thread that
    /// serves all clients.
    pub(crate) fn answer(mut self, answer: JobResult) {
        self.deliver(answer);
    }

    fn deliver(&mut self, answer: JobResult) {
        // The step callback is dropped first, so that its reader sees the end of the steps before
        // the answer.
        self.on_step = None;
        if let Some(on_answer) = self.on_answer.take()
            && catch_unwind(AssertUnwindSafe(|| on_answer(answer))).is_err()
        {
            tracing::error!("the receiver of an answer panicked");
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.deliver(Err(Failure::ShuttingDown));
    }
}

/// Counts unanswered jobs, and can be closed to new ones. A drain closes it and waits until the
/// count is zero.
#[derive(Default)]
pub(crate) struct DrainGate {
    inside: AtomicUsize,
    closed: AtomicBool,
    lock: Mutex<()>,
    emptied: Condvar,
}

/// Registration of one job; dropping it ends the registration.
pub(crate) struct DrainPass(Arc<DrainGate>);

impl DrainGate {
    /// Registers a job; `None` if the gate is closed.
    ///
    /// The job is counted before `closed` is read. So a thread that closes the gate and then reads
    /// the count sees every job that was registered.
    pub(crate) fn enter(self: &Arc<DrainGate>) -> Option<DrainPass> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let pass = DrainPass(Arc::clone(self));
        (!self.closed.load(Ordering::SeqCst)).then_some(pass)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// Waits until a closed gate has no jobs left. Returns false if `until` passes first.
    pub(crate) fn wait_until_empty(&self, until: Instant) -> bool {
        let mut guard = self.lock.lock();
        while self.inside() > 0 {
            if self.emptied.wait_until(&mut guard, until).timed_out() {
                return self.inside() == 0;
            }
        }
        true
    }
}

impl Drop for DrainPass {
    fn drop(&mut self) {
        let gate = &self.0;
        if gate.inside.fetch_sub(1, Ordering::SeqCst) == 1 && gate.is_closed() {
            // A waiter checks the count and starts to wait under this lock. Taking the lock
            // prevents a notification between these two steps, which the waiter would miss.
            drop(gate.lock.lock());
            gate.emptied.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn an_answerer_that_is_dropped_still_answers() {
        let gate = Arc::new(DrainGate::default());
        let (send, receive) = mpsc::channel();
        for answered in [true, false] {
            let send = send.clone();
            let on_answer = Box::new(move |answer| send.send(answer).unwrap());
            let answerer = Answerer::new(on_answer, None, gate.enter().unwrap());
            if answered {
                answerer.answer(Err(Failure::Expired));
            }
        }
        drop(send);
        let answers: Vec<_> = receive.iter().map(|answer| answer.unwrap_err()).collect();
        assert_eq!(answers, [Failure::Expired, Failure::ShuttingDown]);
        assert_eq!(gate.inside(), 0);
    }

    #[test]
    fn a_panicking_receiver_is_contained() {
        let gate = Arc::new(DrainGate::default());
        let panics = || panic!("the receiver's own fault");
        let mut answerer =
            Answerer::new(Box::new(move |_| panics()), Some(Box::new(move |_| panics())), gate.enter().unwrap());
        (0..2).for_each(|_| answerer.step(StreamedStep { outputs: Vec::new(), last: false }));
        answerer.answer(Err(Failure::Cancelled));
        assert_eq!(gate.inside(), 0);
    }

    #[test]
    fn a_closed_gate_waits_for_those_inside() {
        let gate = Arc::new(DrainGate::default());
        let pass = gate.enter().unwrap();
        gate.close();
        assert!(gate.enter().is_none());
        assert!(!gate.wait_until_empty(Instant::now()));
        let waiter = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.wait_until_empty(Instant::now() + Duration::from_secs(60)))
        };
        drop(pass);
        assert!(waiter.join().unwrap());
    }
}
