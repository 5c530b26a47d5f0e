//! Any process may die at any time: each waiting request has exactly one answer, the right one or
//! one that permits a retry.

use crate::common::{
    Client, DEPTH, SAFETY, Served, anywhere, backend, backend_on, client, rows, scheduler, until, whole,
};
use crate::hanging::Hanging;
use ripieno_base::Nanos;
use ripieno_cluster::plane::{
    Handshake, LinkBounds, Message, MessageReader, PeerLink, Role, Tcp, Transport, connect_handshake,
};
use ripieno_executor::{EmulatedEngine, EmulatedOptions};
use ripieno_model::Walk;
use ripieno_runtime::{Failure, HangBound, JobResult};
use std::collections::BTreeMap;
use std::sync::Arc;

const REQUESTS: usize = 400;

/// Submits requests, some of them of two rows, and runs `then` when half of them are in flight and
/// some are answered. Returns the number accepted.
fn drive(client: &Client, model: &str, then: impl FnOnce()) -> usize {
    let (id, mut then, mut taken) = (client.model(model), Some(then), 0);
    let answered = || client.frontend.model(id).map_or(0, |numbers| numbers.success.count);
    let before = answered();
    for number in 0..REQUESTS {
        if number == REQUESTS / 2 {
            until("some are answered", || answered() > before + REQUESTS as u64 / 8);
            then.take().into_iter().for_each(|then| then());
        }
        match client.submit(number, id, rows(number, 1 + number % 2, 2)) {
            Ok(_) => taken += 1,
            Err(Failure::Outage { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    taken
}

/// Waits for one answer of each request; successful ones have the right outputs. Returns the
/// numbers of successes and of retryable failures.
fn count(client: &Client, taken: usize) -> (usize, usize) {
    let mut seen: BTreeMap<usize, JobResult> = BTreeMap::new();
    for _ in 0..taken {
        let (number, answer) = client.answers.recv_timeout(SAFETY).expect("each has an answer");
        assert!(seen.insert(number, answer).is_none(), "request {number} was answered twice");
    }
    assert!(client.answers.try_recv().is_err(), "more answers than requests");
    let (mut ok, mut again) = (0, 0);
    for (number, answer) in seen {
        match answer {
            Ok(answered) => {
                assert_eq!(answered.outputs[0].data, rows(number, 1 + number % 2, 2)[0].data, "of request {number}");
                ok += 1;
            }
            Err(Failure::Outage { .. }) => again += 1,
            Err(other) => panic!("request {number}: {other}"),
        }
    }
    assert_eq!(client.frontend.model(client.model("m")).unwrap().live, 0);
    (ok, again)
}

fn served(blocks: usize) -> [Served; 1] {
    let walk = if blocks == 1 { Walk::Whole } else { Walk::Chain };
    [Served { name: "m", walk, blocks, ..whole() }]
}

#[test]
fn requests_of_a_backend_that_dies_run_elsewhere() {
    for blocks in [1, 3] {
        let models = served(blocks);
        let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
        let (stays, dies) = (backend(scheduler.address(), &models), backend(scheduler.address(), &models));
        let client = client(scheduler.address());
        client.ready();
        until("both serve", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
        let taken = drive(&client, "m", || dies.stop.abort());
        let (ok, again) = count(&client, taken);
        assert_eq!((taken, ok + again), (REQUESTS, REQUESTS));
        assert!(ok > REQUESTS / 2, "{ok} were answered");
        dies.thread.join().unwrap();
        stays.abort();
        client.frontend.close();
    }
}

#[test]
fn a_backend_that_leaves_loses_nothing() {
    let models = served(3);
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let (stays, leaves) = (backend(scheduler.address(), &models), backend(scheduler.address(), &models));
    let client = client(scheduler.address());
    client.ready();
    until("both serve", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
    let taken = drive(&client, "m", || leaves.stop.leave());
    assert_eq!(count(&client, taken), (REQUESTS, 0));
    leaves.thread.join().unwrap();
    stays.abort();
    client.frontend.close();
}

#[test]
fn requests_of_a_backend_that_hangs_run_elsewhere_and_it_comes_again() {
    let models = served(1);
    let hang = HangBound { times: 1, least: Nanos::from_millis(100) };
    let scheduler = scheduler(1, anywhere(), "deferred", hang);
    let engine = Hanging::over(Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH)));
    let (stays, hangs) =
        (backend(scheduler.address(), &models), backend_on(scheduler.address(), &models, engine.clone()));
    let client = client(scheduler.address());
    client.ready();
    until("both serve", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
    let taken = drive(&client, "m", || engine.set(true));
    let (ok, again) = count(&client, taken);
    assert_eq!((taken, ok + again), (REQUESTS, REQUESTS));
    assert!(ok > REQUESTS / 2, "{ok} were answered");
    engine.set(false);
    until("it has come again", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
    for backend in [stays, hangs] {
        backend.abort();
    }
    client.frontend.close();
}

#[test]
fn without_any_backend_requests_are_refused_with_a_retry() {
    let models = served(1);
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let dies = backend(scheduler.address(), &models);
    let client = client(scheduler.address());
    client.ready();
    let taken = drive(&client, "m", || dies.stop.abort());
    let (_, again) = count(&client, taken);
    assert!(taken == REQUESTS && again > 0);
    dies.thread.join().unwrap();
    until("no device serves", || client.frontend.serving_devices() == 0);
    let comes = backend(scheduler.address(), &models);
    client.ready();
    let taken = drive(&client, "m", || {});
    assert_eq!(count(&client, taken), (REQUESTS, 0));
    comes.abort();
    client.frontend.close();
}

#[test]
fn requests_of_a_frontend_that_dies_are_dropped_and_those_of_another_go_on() {
    let models = served(3);
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let backend = backend(scheduler.address(), &models);
    let (stays, dies) = (client(scheduler.address()), client(scheduler.address()));
    stays.ready();
    let id = dies.ready().model("m");
    let taken = drive(&stays, "m", || {
        let all = (0..REQUESTS).filter(|&number| dies.submit(number, id, rows(number, 1 + number % 2, 2)).is_ok());
        assert_eq!(all.count(), REQUESTS);
        dies.frontend.close();
    });
    let (ok, again) = count(&stays, taken);
    assert_eq!((ok, again), (REQUESTS, 0));
    let (ok, again) = count(&dies, REQUESTS);
    assert!(again > 0 && ok + again == REQUESTS);
    let engine = scheduler.engine().unwrap();
    until("nothing is left of them", || engine.unanswered() == 0);
    assert!(engine.device_metrics().len() == 1, "the backend has nothing to do with it");
    backend.abort();
    stays.frontend.close();
}

#[test]
fn without_a_scheduler_requests_are_retryable_and_a_later_one_is_followed() {
    let models = served(1);
    let first = scheduler(7, anywhere(), "deferred", HangBound::default());
    let address = first.address();
    let backend = backend(address, &models);
    let client = client(address);
    client.ready();
    let mut first = Some(first);
    let taken = drive(&client, "m", || drop(first.take()));
    let (ok, again) = count(&client, taken);
    assert!(ok > 0 && again > 0, "{ok} and {again}");
    assert!(matches!(client.submit(0, client.model("m"), rows(0, 1, 2)), Err(Failure::Outage { .. })));
    let earlier = scheduler(6, address, "deferred", HangBound::default());
    // It learns of the later epoch from connecting processes.
    until("it has tried and given up", || earlier.engine().is_some() && !earlier.is_primary());
    assert!(client.frontend.serving_devices() == 0, "no backend follows an earlier one");
    drop(earlier);
    let _later = scheduler(8, address, "deferred", HangBound::default());
    client.ready();
    let taken = drive(&client, "m", || {});
    assert_eq!(count(&client, taken), (REQUESTS, 0));
    backend.abort();
    client.frontend.close();
}

#[test]
fn a_backend_with_other_models_is_refused_by_name() {
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let first = backend(scheduler.address(), &served(1));
    let client = client(scheduler.address());
    client.ready();
    let other = [Served { name: "other", ..whole() }];
    let longer = [Served { name: "m", longest: Some(4), ..whole() }];
    for (models, told) in [(other, "no model \"m\""), (longer, "model \"m\" is another")] {
        let stream = Tcp.connect(&scheduler.address().to_string(), SAFETY).unwrap();
        connect_handshake(&*stream, Handshake::new(Role::Backend, 0), Role::Scheduler).unwrap();
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
        link.send(&Message::RegisterBackend { depth: 64, models: models[0].offered() });
        let mut reader = MessageReader::new(stream, SAFETY);
        let refused = loop {
            match reader.read().unwrap() {
                Message::Refused(cause) => break cause,
                Message::KeepAlive => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(refused.contains(told), "{refused}");
        link.close();
    }
    assert_eq!(scheduler.engine().unwrap().device_metrics().len(), 1);
    first.abort();
    client.frontend.close();
}
