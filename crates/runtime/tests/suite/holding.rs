//! A device that has left stays as long as its policy holds it, whether a task is in flight there
//! or not.

use crate::common::device::Doubling;
use crate::common::fifo::Fifo;
use crate::common::{Client, SAFETY, data, limits, served, setup};
use ripieno_base::{DeviceId, Time};
use ripieno_executor::Executor;
use ripieno_runtime::{DeviceState, Engine, EngineConfig, Failure};
use ripieno_sched::{Control, NetworkDelay, Outbox, Scheduler, SchedulerLayer, TaskDone};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

const HELD: DeviceId = DeviceId(0);

/// First in, first out. While a device is held, the scheduler starts nothing.
struct Holding {
    fifo: Fifo,
    seen: Arc<Seen>,
}

/// The state of the scheduler that a test reads and sets.
#[derive(Default)]
struct Seen {
    holds: AtomicBool,
    /// Number of tasks that have ended.
    ended: AtomicUsize,
    /// Number of times that the device has left.
    left: AtomicUsize,
}

impl SchedulerLayer for Holding {
    fn inner(&self) -> &dyn Scheduler {
        &self.fifo
    }
    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        &mut self.fifo
    }
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.fifo.on_task_done(now, done);
        self.seen.ended.fetch_add(1, Ordering::SeqCst);
    }
    fn on_control(&mut self, now: Time, control: Control) {
        self.seen.left.fetch_add(usize::from(control == Control::DeviceLeft(HELD)), Ordering::SeqCst);
        self.fifo.on_control(now, control);
    }
    fn settle(&mut self, now: Time, out: &mut Outbox) {
        if !self.seen.holds.load(Ordering::SeqCst) {
            self.fifo.settle(now, out);
        }
    }
    fn holds(&self, device: DeviceId) -> bool {
        device == HELD && self.seen.holds.load(Ordering::SeqCst)
    }
}

fn start(executor: &Arc<dyn Executor>, devices: usize) -> (Engine, Arc<Seen>) {
    let (setup, seen) = (setup(devices, limits(16)), Arc::<Seen>::default());
    let scheduler = Box::new(Holding { fifo: Fifo::new(&setup), seen: Arc::clone(&seen) });
    let config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor); devices]);
    (Engine::start(config).unwrap(), seen)
}

/// Waits until the turn that is in progress has ended, and another one has begun.
fn await_turn(engine: &Engine) {
    engine.set_network_delay(NetworkDelay::default());
}

fn state(engine: &Engine) -> Option<DeviceState> {
    engine.device_metrics().iter().find(|device| device.id == HELD.0).map(|device| device.state)
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < SAFETY, "never {what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_loss_of_a_held_device_is_announced() {
    let (engine, seen) = start(&Doubling::prompt(), 2);
    seen.holds.store(true, Ordering::SeqCst);
    engine.remove_device(HELD).unwrap();
    await_turn(&engine);
    assert_eq!(seen.left.load(Ordering::SeqCst), 1);
    engine.lose_device(HELD).unwrap();
    await_turn(&engine);
    assert_eq!(seen.left.load(Ordering::SeqCst), 2, "it left a second time");
    until("is gone", || state(&engine).is_none());
}

#[test]
fn a_request_goes_on_on_the_last_device_while_it_is_held_and_one_that_waits_fails() {
    let (executor, gatekeeper) = Doubling::gated();
    let (engine, seen) = start(&executor, 1);
    let client = Client::new(&engine, engine.load(served(2, SAFETY)).unwrap());
    client.submit(3, 1, None).unwrap();
    gatekeeper.begun.recv_timeout(SAFETY).unwrap();
    seen.holds.store(true, Ordering::SeqCst);
    client.submit(4, 1, None).unwrap();
    gatekeeper.release.send(()).unwrap();
    until("its first block has run", || seen.ended.load(Ordering::SeqCst) == 1);
    engine.remove_any_device(HELD).unwrap();
    let (failed, failure) = client.next_failure();
    assert!(failed == 4 && matches!(failure, Failure::Outage { .. }), "{failed}: {failure}");
    await_turn(&engine);
    // It has no task, and would be gone.
    assert_eq!(state(&engine), Some(DeviceState::Leaving));
    seen.holds.store(false, Ordering::SeqCst);
    drop(gatekeeper.release);
    await_turn(&engine);
    let (number, answer) = client.next();
    assert_eq!((number, data(answer)), (3, vec![12]));
    until("is gone", || state(&engine).is_none());
}
