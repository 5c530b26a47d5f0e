//! A request that comes while no backend is connected waits for one that connects again.

use crate::common::{SAFETY, anywhere, backend_over, client, emulated, rows, scheduler_config, starts, until, whole};
use crate::hanging::Gate;
use parking_lot::Mutex;
use ripieno_base::Nanos;
use ripieno_cluster::handover::Timing;
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_cluster::{ClusterScheduler, InitialPlan, SchedulerConfig};
use ripieno_runtime::HangBound;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// TCP to one scheduler. The test ends the connection, and says when there is another one.
struct Interrupted {
    scheduler: String,
    gate: Gate,
    stream: Mutex<Option<Arc<dyn ByteStream>>>,
}

impl Interrupted {
    fn interrupt(&self) {
        self.gate.set(true);
        self.stream.lock().take().unwrap().close();
    }

    fn resume(&self) {
        self.gate.set(false);
    }
}

/// The transport of a backend.
struct Shared(Arc<Interrupted>);

impl Transport for Shared {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let Shared(transport) = self;
        if address != transport.scheduler {
            return Tcp.connect(address, within);
        }
        transport.gate.pass();
        let stream = Tcp.connect(address, within)?;
        *transport.stream.lock() = Some(Arc::clone(&stream));
        Ok(stream)
    }
    fn listen(&self, at: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Tcp.listen(at)
    }
}

#[test]
fn a_request_waits_for_a_backend_that_connects_again() {
    let config = scheduler_config(1, anywhere(), starts("unified", HangBound::default()), InitialPlan::Whole);
    // So long that the test does not depend on the time that it takes.
    let timing = Timing { settle: Nanos::from_millis(60_000), ..Timing::SHARED_HOSTS };
    let scheduler = ClusterScheduler::start(Arc::new(Tcp), SchedulerConfig { timing, ..config }).unwrap();
    let (address, gate, stream) = (scheduler.address().to_string(), Gate::default(), Mutex::default());
    let transport = Arc::new(Interrupted { scheduler: address.clone(), gate, stream });
    let backend = backend_over(Arc::new(Shared(Arc::clone(&transport))), vec![address], &[whole()], emulated());
    let client = client(scheduler.address());
    let model = client.ready().model("whole");
    let ask = |number| client.submit(number, model, rows(number, 1, 2)).unwrap();
    let answer = || client.answers.recv_timeout(SAFETY).unwrap();
    ask(0);
    assert!(answer().1.is_ok());

    transport.interrupt();
    until("no device serves", || client.frontend.serving_devices() == 0);
    ask(1);
    // It is sent on the same connection, so the scheduler has handled the request when it answers.
    let refused = client.frontend.change_model("whole", false).unwrap_err();
    assert_eq!(refused, "no backend is there");
    transport.resume();
    let (number, answered) = answer();
    assert_eq!((number, &answered.unwrap().outputs[0].data), (1, &rows(1, 1, 2)[0].data));

    backend.abort();
    client.frontend.close();
}
