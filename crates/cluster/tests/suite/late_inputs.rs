//! A frontend that does not send the inputs of its requests costs the others little.

use crate::common::*;
use crate::hanging::Gate;
use ripieno_base::Nanos;
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_runtime::{Failure, HangBound};
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
