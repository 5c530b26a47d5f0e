//! A backend that leaves sends what its frontends still have to receive.

use crate::common::*;
use crate::hanging::{Gate, Hanging};
use ripieno_base::Nanos;
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_runtime::HangBound;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// More than a backend takes together.
const REQUESTS: usize = 40;

/// TCP whose connections to frontends can be held up.
struct HeldUp {
    scheduler: String,
    gate: Arc<Gate>,
}

struct HeldUpStream(Arc<dyn ByteStream>, Arc<Gate>);

impl ByteStream for HeldUpStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        self.0.read(into, silence)
    }
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.1.pass();
        self.0.write_all(bytes)
    }
    fn close(&self) {
        self.0.close();
    }
    fn peer(&self) -> Option<SocketAddr> {
        self.0.peer()
    }
}

impl Transport for HeldUp {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let stream = Tcp.connect(address, within)?;
        if address == self.scheduler {
            return Ok(stream);
        }
        Ok(Arc::new(HeldUpStream(stream, Arc::clone(&self.gate))))
    }
    fn listen(&self, at: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Tcp.listen(at)
    }
}

#[test]
fn the_last_outputs_of_a_backend_that_leaves_are_sent() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let (address, outputs, device) =
        (scheduler.address().to_string(), Arc::<Gate>::default(), Hanging::over(emulated()));
    let transport = Arc::new(HeldUp { scheduler: address.clone(), gate: Arc::clone(&outputs) });
    let models = [Served { slo: Nanos::from_millis(60_000), ..whole() }];
    let leaves = backend_over(transport, vec![address], &models, device.clone());
    let stays = backend(scheduler.address(), &models);
    let client = client(scheduler.address());
    let model = client.ready().model("whole");
    let engine = scheduler.engine().unwrap();
    until("both serve", || engine.device_metrics().len() == 2);
    device.set(true);
    let submit = |number| client.submit(number, model, rows(number, 1, 2)).is_ok();
    assert!((0..REQUESTS).all(submit));
    until("it runs a batch", || device.reached() > 0);
    // It has its inputs, so only outputs are held up.
    outputs.set(true);
    leaves.stop.leave();
    device.set(false);
    until("it has left", || engine.device_metrics().len() == 1);
    outputs.set(false);
    (0..REQUESTS).for_each(|_| drop(client.answers.recv_timeout(SAFETY).unwrap().1.unwrap()));
    leaves.thread.join().unwrap();
    stays.abort();
    client.frontend.close();
}
