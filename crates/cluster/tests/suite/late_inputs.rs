//! A frontend that does not send the inputs of its requests costs the others little.

use crate::common::*;
use crate::hanging::Gate;
use ripieno_base::Nanos;
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_runtime::{Failure, HangBound, SlowLink};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// TCP on which nothing is received of one address while a gate is closed.
#[derive(Default)]
struct OneWay {
    silent: OnceLock<String>,
    gate: Gate,
    scheduler: String,
    /// Number of connections to the scheduler.
    joins: AtomicUsize,
}

struct OneWayStream {
    inner: Arc<dyn ByteStream>,
    address: String,
    transport: Arc<OneWay>,
}

impl ByteStream for OneWayStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        let read = self.inner.read(into, silence)?;
        if self.transport.silent.get() == Some(&self.address) {
            self.transport.gate.pass();
        }
        Ok(read)
    }
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)
    }
    fn close(&self) {
        self.inner.close();
    }
    fn peer(&self) -> Option<SocketAddr> {
        self.inner.peer()
    }
}

/// The transport of a backend.
struct Shared(Arc<OneWay>);

impl Transport for Shared {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let Shared(transport) = self;
        transport.joins.fetch_add(usize::from(address == transport.scheduler), Ordering::SeqCst);
        let (inner, address) = (Tcp.connect(address, within)?, address.to_owned());
        Ok(Arc::new(OneWayStream { inner, address, transport: Arc::clone(transport) }))
    }
    fn listen(&self, at: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Tcp.listen(at)
    }
}

#[test]
fn a_frontend_whose_inputs_do_not_come_costs_no_device_and_only_its_own_requests() {
    let hang = HangBound { times: 1, least: Nanos::from_millis(4_000) };
    for models in [vec![whole()], vec![Served { blocks: 3, walk: ripieno_model::Walk::Chain, ..whole() }]] {
        let scheduler = scheduler(1, anywhere(), "unified", hang);
        let transport = Arc::new(OneWay { scheduler: scheduler.address().to_string(), ..OneWay::default() });
        let over = Arc::new(Shared(Arc::clone(&transport)));
        let backend = backend_over(over, vec![scheduler.address().to_string()], &models, emulated());
        let (silent, other) = (client(scheduler.address()), client(scheduler.address()));
        let ids = [&silent, &other].map(|client| client.ready().model("whole"));
        transport.silent.set(silent.frontend.data_address().to_string()).unwrap();
        let ask = |client: &Client, id, number| client.submit(number, id, rows(number, 1, 2)).unwrap();
        let result = |client: &Client| client.answers.recv_timeout(SAFETY).unwrap().1;
        ask(&silent, ids[0], 0);
        assert!(result(&silent).is_ok());

        transport.gate.set(true);
        (0..8).for_each(|number| {
            ask(&silent, ids[0], number);
            ask(&other, ids[1], number);
        });
        (0..8).for_each(|_| assert!(result(&other).is_ok()));
        for _ in 0..8 {
            let failed = result(&silent).unwrap_err();
            assert!(matches!(failed, Failure::Outage { .. }), "{failed:?}");
        }
        // It is not waited for again.
        ask(&silent, ids[0], 9);
        ask(&other, ids[1], 9);
        assert!(result(&other).is_ok() && result(&silent).is_err());

        transport.gate.set(false);
        until("its requests are answered again", || {
            ask(&silent, ids[0], 10);
            result(&silent).is_ok()
        });
        assert_eq!(transport.joins.load(Ordering::SeqCst), 1, "the device was given up");
        backend.abort();
        [silent, other].iter().for_each(|client| client.frontend.close());
    }
}

/// A device waits for inputs no longer than until the deadline, and then not again until they come.
#[test]
fn inputs_that_come_after_the_deadline_hold_a_device_once() {
    let hang = HangBound { times: 1, least: Nanos::from_millis(600_000) };
    let strict = [Served { slo: Nanos::from_millis(1_000), answer_late: false, ..whole() }];
    let scheduler = scheduler(1, anywhere(), "unified", hang);
    let transport = Arc::new(OneWay { scheduler: scheduler.address().to_string(), ..OneWay::default() });
    let over = Arc::new(Shared(Arc::clone(&transport)));
    let backend = backend_over(over, vec![scheduler.address().to_string()], &strict, emulated());
    let (slow, other) = (client(scheduler.address()), client(scheduler.address()));
    let ids = [&slow, &other].map(|client| client.ready().model("whole"));
    transport.silent.set(slow.frontend.data_address().to_string()).unwrap();
    let ask = |client: &Client, id| {
        client.submit(0, id, rows(0, 1, 2)).unwrap();
        client.answers.recv_timeout(SAFETY).unwrap().1
    };
    assert!(ask(&slow, ids[0]).is_ok());

    transport.gate.set(true);
    assert_eq!(ask(&slow, ids[0]).err(), Some(Failure::Expired));
    assert!(ask(&other, ids[1]).is_ok(), "the device is free when the request has expired");
    for _ in 0..8 {
        slow.submit(1, ids[0], rows(1, 1, 2)).unwrap();
        assert!(ask(&other, ids[1]).is_ok());
        let failed = slow.answers.recv_timeout(SAFETY).unwrap().1;
        assert!(matches!(failed, Err(Failure::SlowLink { link: SlowLink::Inputs, .. })), "{failed:?}");
    }
    let says = slow.frontend.slow_links();
    assert!(
        says.len() == 1 && says[0].contains("requests of whole are refused") && says[0].contains("slo_ms"),
        "{says:?}"
    );
    assert!(other.frontend.slow_links().is_empty());

    transport.gate.set(false);
    until("its requests are answered again", || ask(&slow, ids[0]).is_ok());
    backend.abort();
    [slow, other].iter().for_each(|client| client.frontend.close());
}
