//! The thread of a device takes the turn that follows the end of its own task, and the outcome does
//! not depend on the thread.

use crate::common::device::Doubling;
use crate::common::fifo::{Fifo, Told};
use crate::common::{Client, SAFETY, bytes, config, emulated, limits, served, setup, start};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_model::Profile;
use ripieno_runtime::{Engine, EngineConfig, Failure, HangBound, Job, JobResult};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(3_600);

fn job(model: ModelId, on_answer: Box<dyn FnOnce(JobResult) + Send>) -> Job {
    Job::new(model, bytes(1, 1), 1, on_answer)
}

/// The scheduler's thread may be in a turn when a task ends, but not each time.
#[test]
fn a_device_that_has_nothing_else_to_do_answers_itself() {
    let executor = Doubling::prompt();
    let engine = start(&executor, 1, limits(16), 1);
    let model = engine.load(served(1, LONG)).unwrap();
    let (sender, answered_by) = channel();
    let by_device = |_| {
        let sender = sender.clone();
        let on_answer = Box::new(move |_| drop(sender.send(std::thread::current().name().map(str::to_owned))));
        engine.submit(job(model, on_answer)).map(drop).unwrap();
        answered_by.recv_timeout(SAFETY).unwrap().is_none_or(|name| name != "ripieno-scheduler")
    };
    assert!((0..10_000).any(by_device), "the scheduler's thread was woken for each of 10,000 ends");
}

#[test]
fn a_device_that_has_nothing_to_do_is_woken_for_a_request() {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let setup = setup(1, limits(16));
    let (sender, decided_by) = channel();
    let note = move || sender.send(std::thread::current().name().map(str::to_owned)).unwrap();
    let scheduler = Box::new(Told(Fifo::new(&setup), note, || {}));
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)]);
    // A batch of 0.1 ms seems to hang on a machine that stalls for a moment.
    config.hang = HangBound { times: 1, least: Nanos::from_millis(3_600_000) };
    let engine = Engine::start(config).unwrap();
    let model = emulated(&executor, "m", Profile::linear(0.01, 0.1, 4).unwrap(), Nanos::from_millis(3_600_000));
    let client = Client::new(&engine, engine.load(model).unwrap());
    let by_device = |number| {
        client.submit(number, 1, None).unwrap();
        client.next().1.unwrap();
        decided_by.recv_timeout(SAFETY).unwrap().is_none_or(|name| name != "ripieno-scheduler")
    };
    assert!((0..10_000).any(by_device), "the scheduler's thread was woken for each of 10,000 requests");
}

#[test]
fn a_policy_that_panics_on_a_devices_thread_leaves_no_job_unanswered() {
    let (executor, gatekeeper) = Doubling::gated();
    let setup = setup(1, limits(16));
    let scheduler = Box::new(Told(Fifo::new(&setup), || {}, || panic!("the policy's own fault")));
    let mut config = EngineConfig::new(scheduler, setup, vec![executor]);
    // Otherwise the device would be considered hung, which the scheduler's own thread detects.
    config.hang = HangBound { times: 1, least: Nanos::from_millis(3_600_000) };
    let engine = Engine::start(config).unwrap();
    let gatekeeper = gatekeeper;
    let client = Client::new(&engine, engine.load(served(1, LONG)).unwrap());
    (0..6).for_each(|number| drop(client.submit(number, 1, None).unwrap()));
    gatekeeper.release.send(()).unwrap();
    (0..6).for_each(|_| assert_eq!(client.next_failure().1, Failure::ShuttingDown));
    let until = Instant::now() + SAFETY;
    while engine.is_alive() {
        assert!(Instant::now() < until, "the engine does not notice");
        std::thread::yield_now();
    }
    assert!(client.submit(6, 1, None).is_err());
}

/// The receiver of an answer holds the last handle, and drops it on the thread that must end.
#[test]
fn the_last_handle_may_go_on_a_devices_thread() {
    for _ in 0..50 {
        let executor = Doubling::prompt();
        let engine = Engine::start(config(&executor, 1, limits(16), 1)).unwrap();
        let model = engine.load(served(1, LONG)).unwrap();
        let (sender, dropped) = channel();
        let last = engine.clone();
        let (let_go, go) = channel();
        let on_answer = Box::new(move |_| {
            let () = go.recv_timeout(SAFETY).unwrap();
            drop(last);
            sender.send(()).unwrap();
        });
        engine.submit(job(model, on_answer)).map(drop).unwrap();
        drop(engine);
        let_go.send(()).unwrap();
        dropped.recv_timeout(SAFETY).expect("the handle goes without waiting for its own thread");
        // The devices end, and then their engine is free.
        let until = Instant::now() + SAFETY;
        while Arc::strong_count(&executor) > 1 {
            assert!(Instant::now() < until, "the devices do not end");
            std::thread::yield_now();
        }
    }
}
