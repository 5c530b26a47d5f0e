//! The one answer of each accepted job.
//!
//! That every accepted job is answered exactly once is a promise to the clients, so it hangs on ownership rather than
//! on care: an [`Answerer`] can answer once, and if it is dropped before, by a shutdown, a bug or a panic, it says
//! that the server is going down.

use crate::{Answer, Failure, OnStep, Step};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Owes one answer.
pub(crate) struct Answerer {
    on_answer: Option<Box<dyn FnOnce(Answer) + Send>>,
    on_step: Option<OnStep>,
    _pass: Pass,
}

impl Answerer {
    pub(crate) fn new(on_answer: Box<dyn FnOnce(Answer) + Send>, on_step: Option<OnStep>, pass: Pass) -> Answerer {
        Answerer { on_answer: Some(on_answer), on_step, _pass: pass }
    }

    /// Passes a step on, if the client wants any. A receiver that panics gets no further ones.
    pub(crate) fn step(&mut self, step: Step) {
        if let Some(on_step) = &mut self.on_step
            && catch_unwind(AssertUnwindSafe(|| on_step(step))).is_err()
        {
            tracing::error!("the receiver of an answer's steps panicked");
            self.on_step = None;
        }
    }

    /// Answers. A panic in the receiver's code is its own fault and must not stop the thread that serves all others.
    pub(crate) fn answer(mut self, answer: Answer) {
        self.deliver(answer);
    }

    fn deliver(&mut self, answer: Answer) {
        // Whoever reads the steps sees their end before the answer.
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

/// Counts the jobs that await their answer and can be closed to further ones.
#[derive(Default)]
pub(crate) struct Gate {
    inside: AtomicUsize,
    closed: AtomicBool,
    lock: Mutex<()>,
    emptied: Condvar,
}

/// One job inside the gate.
pub(crate) struct Pass(Arc<Gate>);

impl Gate {
    /// Lets a job in, unless the gate is closed.
    ///
    /// It is counted before the look at `closed`: whoever closes the gate and then reads the count either sees this
    /// job or has made it turn round.
    pub(crate) fn enter(self: &Arc<Gate>) -> Option<Pass> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let pass = Pass(Arc::clone(self));
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

    /// Waits until nobody is inside a closed gate; false if `until` comes first.
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

impl Drop for Pass {
    fn drop(&mut self) {
        let gate = &self.0;
        if gate.inside.fetch_sub(1, Ordering::SeqCst) == 1 && gate.is_closed() {
            // Taking the lock orders this with a waiter between its look at the count and its wait.
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
        let gate = Arc::new(Gate::default());
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
    fn a_panicking_receiver_harms_nobody() {
        let gate = Arc::new(Gate::default());
        let panics = || panic!("the receiver's own fault");
        let mut answerer =
            Answerer::new(Box::new(move |_| panics()), Some(Box::new(move |_| panics())), gate.enter().unwrap());
        (0..2).for_each(|_| answerer.step(Step { outputs: Vec::new(), last: false }));
        answerer.answer(Err(Failure::Cancelled));
        assert_eq!(gate.inside(), 0);
    }

    #[test]
    fn a_closed_gate_waits_for_those_inside() {
        let gate = Arc::new(Gate::default());
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
