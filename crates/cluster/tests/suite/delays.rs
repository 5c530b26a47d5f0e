//! Delays that a test adds between the processes are measured, and count towards deadlines.

use crate::common::*;
use crate::hanging::Hanging;
use ripieno_base::Nanos;
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_cluster::{BackendDelays, DelayPercentiles};
use ripieno_runtime::{Failure, HangBound};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Delay that the tests add.
const ADDED: Duration = Duration::from_millis(40);

/// TCP whose bytes are read later, by this delay.
struct Slow(Duration);

struct SlowStream(Arc<dyn ByteStream>, Duration);

impl ByteStream for SlowStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        let read = self.0.read(into, silence)?;
        // Nothing comes on this channel.
        let (_open, delay) = channel::<()>();
        assert!(delay.recv_timeout(self.1).is_err());
        Ok(read)
    }
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
    fn close(&self) {
        self.0.close();
    }
    fn peer(&self) -> Option<SocketAddr> {
        self.0.peer()
    }
}

impl Transport for Slow {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        Ok(Arc::new(SlowStream(Tcp.connect(address, within)?, self.0)))
    }
    fn listen(&self, at: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Tcp.listen(at)
    }
}

fn patient() -> [Served; 1] {
    [Served { slo: Nanos::from_millis(60_000), ..whole() }]
}

/// Submits requests of one to four rows, one after the other.
fn drive(client: &Client, number: usize) {
    let model = client.model("whole");
    for request in 0..number {
        client.submit(request, model, rows(request, 1 + request % MAX_BATCH, 2)).unwrap();
        assert!(client.answers.recv_timeout(SAFETY).unwrap().1.is_ok());
    }
}

#[test]
fn the_delays_of_each_backend_are_measured_apart() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let at = vec![scheduler.address().to_string()];
    // It reads late whatever reaches it: orders and inputs.
    let slow = backend_over(Arc::new(Slow(ADDED)), at, &patient(), emulated());
    let client = client(scheduler.address());
    drive(client.ready(), 20);
    let measured = scheduler.delays();
    let [(0, _, BackendDelays { control: Some(control), data: Some(data), data_per_row: Some(row) })] = measured[..]
    else {
        panic!("{measured:?}");
    };
    // Only one of the two ways is slow, and a delay is half of both.
    assert!(control.p50 >= ADDED / 2 && data.p50 >= ADDED && row.p50 >= ADDED / MAX_BATCH as u32, "{measured:?}");
    assert!(control.p99 >= control.p50 && data.p99 >= row.p99, "{measured:?}");
    slow.abort();
    until("it has gone", || scheduler.delays().is_empty());
    let next = backend(scheduler.address(), &patient());
    until("another one serves", || scheduler.delays().len() == 1);
    assert_eq!(scheduler.delays()[0].2, BackendDelays::default(), "it has delays of its own");
    drive(client.ready(), 1);
    assert!(scheduler.delays()[0].2.control.is_some());
    next.abort();
    client.frontend.close();
}

/// The scheduler gives every request up before its rows are at the backend.
#[test]
fn the_delay_of_a_backend_whose_tasks_never_run_is_measured() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let at = vec![scheduler.address().to_string()];
    let strict = [Served { slo: Nanos::from_millis(20), answer_late: false, ..whole() }];
    let slow = backend_over(Arc::new(Slow(ADDED)), at, &strict, emulated());
    let client = client(scheduler.address());
    let model = client.ready().model("whole");
    client.submit(0, model, rows(0, 1, 2)).unwrap();
    let answer = client.answers.recv_timeout(SAFETY).unwrap().1;
    assert!(matches!(answer, Err(Failure::Expired)), "{answer:?}");
    until("its delay is measured", || scheduler.delays()[0].2.control.is_some_and(|control| control.p50 >= ADDED / 2));
    slow.abort();
    client.frontend.close();
}

#[test]
fn the_way_between_frontend_and_scheduler_is_measured() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let backend = backend(scheduler.address(), &patient());
    let client = client_over(Arc::new(Slow(ADDED)), vec![scheduler.address().to_string()], SAFETY);
    assert_eq!(client.ready().frontend.way(), None);
    drive(&client, 20);
    let DelayPercentiles { p50, p99 } = client.frontend.way().unwrap();
    assert!(p50 >= ADDED && p99 >= p50, "{p50:?} {p99:?}");
    backend.abort();
    client.frontend.close();
}

/// Once delays are measured, the next batch reaches the device while the last one runs.
#[test]
fn the_next_batch_is_at_the_device_when_the_last_one_ends() {
    const BATCHES: usize = 70;
    for (policy, permille) in [("unified", 500), ("deferred", 990)] {
        let hang = HangBound { times: 1_000_000, least: Nanos::from_millis(60_000) };
        let scheduler = scheduler_starting(anywhere(), starts_planning(policy, hang, Some(permille)));
        let (at, device) = (vec![scheduler.address().to_string()], Hanging::over(emulated()));
        let slow = backend_over(Arc::new(Slow(Duration::from_millis(4))), at, &patient(), device.clone());
        let client = client(scheduler.address());
        let model = client.ready().model("whole");
        let fill = |number: usize| assert!(client.submit(number, model, rows(number, MAX_BATCH, 2)).is_ok());
        let answer = || assert!(client.answers.recv_timeout(SAFETY).unwrap().1.is_ok());
        for number in 0..BATCHES {
            assert_eq!(device.given(), number, "none is sent ahead before delays are known");
            fill(number);
            answer();
        }
        until("delays are planned with", || scheduler.planned_delays().iter().any(Option::is_some));
        let planned = scheduler.planned_delays()[0].unwrap();
        assert!(planned.lead(1) >= Nanos::from_millis(4), "{planned:?}");
        device.set(true);
        (0..4).for_each(fill);
        until("one has run and does not end", || device.reached() > BATCHES);
        until("the next one is there", || device.given() > BATCHES + 1);
        assert_eq!((device.given(), device.reached()), (BATCHES + 2, BATCHES + 1), "one is held ahead");
        device.set(false);
        (0..4).for_each(|_| answer());
        slow.abort();
        client.frontend.close();
    }
}
