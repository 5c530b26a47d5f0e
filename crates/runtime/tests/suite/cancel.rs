//! A scheduler that cancels a running task. The result is discarded, the members run again, and
//! every client is answered once.

use crate::common::device::{Doubling, Gatekeeper};
use crate::common::fifo::Fifo;
use crate::common::{Client, SAFETY, config, data, limits, served, setup};
use ripieno_base::{RequestSlot, TaskId, Time};
use ripieno_executor::Executor;
use ripieno_runtime::Engine;
use ripieno_sched::{Action, Control, Outbox, Outcome, Request, Scheduler, TaskDone};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// First in, first out, but the second request makes the scheduler cancel the first one's batch.
struct Fickle {
    inner: Fifo,
    arrived: usize,
    /// Notified when it has decided to cancel.
    decided: Sender<()>,
    cancelled: Arc<AtomicUsize>,
}

impl Scheduler for Fickle {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.arrived += 1;
        self.inner.on_request(now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        if done.outcome == Outcome::Cancelled {
            assert!(done.ended.is_empty());
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        self.inner.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.inner.settle(now, out);
        if self.arrived == 2 {
            self.arrived += 1;
            out.push(Action::Cancel { task: TaskId(0) });
            // The test may have ended already.
            let _ = self.decided.send(());
        }
    }

    fn next_wakeup(&self) -> Time {
        self.inner.next_wakeup()
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.inner.members(task)
    }
}

#[test]
fn a_cancelled_batch_runs_again_and_each_client_is_answered_once() {
    let (executor, gatekeeper): (Arc<dyn Executor>, Gatekeeper) = Doubling::gated();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let (decided, decisions) = channel();
    let inner = Fifo::new(&setup(1, limits(16)));
    let scheduler = Fickle { inner, arrived: 0, decided, cancelled: Arc::clone(&cancelled) };
    let mut config = config(&executor, 1, limits(16), 1);
    config.scheduler = Box::new(scheduler).into();
    let engine = Engine::start(config).unwrap();
    let client = Client::new(&engine, engine.load(served(1, Duration::from_secs(600))).unwrap());
    // The gatekeeper is dropped before the engine, which waits for its device. So a failing test
    // does not hang.
    let gatekeeper = gatekeeper;
    client.submit(3, 1, None).unwrap();
    gatekeeper.begun.recv_timeout(SAFETY).unwrap();
    client.submit(5, 1, None).unwrap();
    decisions.recv_timeout(SAFETY).unwrap();
    // First the batch of the first request ends, then the batch of both.
    gatekeeper.release.send(()).unwrap();
    gatekeeper.begun.recv_timeout(SAFETY).unwrap();
    assert!(client.answers.try_recv().is_err());
    assert_eq!(cancelled.load(Ordering::Relaxed), 1);
    drop(gatekeeper.release);
    let mut answers = [client.next(), client.next()].map(|(number, answer)| (number, data(answer)));
    answers.sort();
    assert_eq!(answers, [(3, vec![6]), (5, vec![10])]);
    assert!(engine.drain(SAFETY));
    assert_eq!(engine.model_metrics(client.model).unwrap().success.count, 2);
}
