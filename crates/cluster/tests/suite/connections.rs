//! Connections of a scheduler: under TLS, many of them, and while a handler waits.

use crate::common::*;
use crate::hanging::Gate;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ripieno_cluster::handover::store::AloneStore;
use ripieno_cluster::handover::{Epoch, Timing};
use ripieno_cluster::plane::{
    Handshake, LinkBounds, Message, MessageReader, MutualTls, PeerFiles, PeerLink, Role, Transport, connect_handshake,
};
use ripieno_cluster::{ClusterScheduler, InitialPlan, SchedulerConfig};
use ripieno_runtime::HangBound;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const REQUESTS: usize = 200;

/// Returns TLS whose files are in this folder.
fn tls(folder: &Path) -> Arc<dyn Transport> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["ripieno".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let write = |file: &str, text: String| {
        fs::write(folder.join(file), text).unwrap();
        folder.join(file)
    };
    let files = PeerFiles {
        certificate: write("tls.crt", certificate.pem()),
        key: write("tls.key", key.serialize_pem()),
        authority: write("ca.crt", authority.pem()),
        name: "ripieno".to_owned(),
    };
    Arc::new(MutualTls::open(files).unwrap())
}

/// Starts a scheduler that waits at the gate before it serves something else.
fn scheduler_over(transport: &Arc<dyn Transport>, gate: &Arc<Gate>) -> ClusterScheduler {
    let gate = Arc::clone(gate);
    let config = SchedulerConfig {
        listen: anywhere(),
        schedulers: Vec::new(),
        store: Box::new(AloneStore { epoch: Epoch(1) }),
        timing: Timing::SHARED_HOSTS,
        plan: InitialPlan::Whole,
        drain_timeout: SAFETY,
        start: starts("unified", HangBound::default()),
        on_serving: Box::new(move |_| gate.pass()),
    };
    ClusterScheduler::start(Arc::clone(transport), config).unwrap()
}

/// Connects as a frontend that sends nothing but keep-alives.
pub(crate) fn bare_frontend(
    transport: &dyn Transport,
    scheduler: &ClusterScheduler,
    id: u32,
) -> (Arc<PeerLink>, MessageReader) {
    let stream = transport.connect(&scheduler.address().to_string(), SAFETY).unwrap();
    connect_handshake(&*stream, Handshake::new(Role::Frontend, 0), Role::Scheduler).unwrap();
    let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
    link.send(&Message::RegisterFrontend(id, format!("127.0.0.1:{id}")));
    (link, MessageReader::new(stream, SAFETY))
}

#[test]
fn many_peers_are_served_under_tls_and_a_handler_that_waits_stops_no_keep_alive() {
    let folder = tempfile::tempdir().unwrap();
    let (transport, gate) = (tls(folder.path()), Arc::new(Gate::default()));
    let scheduler = scheduler_over(&transport, &gate);
    let at = || vec![scheduler.address().to_string()];
    let mut peers: Vec<_> = (1..=20).map(|id| bare_frontend(&*transport, &scheduler, id)).collect();
    // Each has registered once it knows of the number of devices.
    for (_, reader) in &mut peers {
        while !matches!(reader.read().unwrap(), Message::Devices(0)) {}
    }
    gate.set(true);
    let backends: Vec<_> = (0..3).map(|_| backend_over(Arc::clone(&transport), at(), &[whole()], emulated())).collect();
    until("a handler waits", || gate.has_been_reached());
    for (_, reader) in &mut peers {
        for _ in 0..2 {
            while !matches!(reader.read().unwrap(), Message::KeepAlive) {}
        }
    }
    gate.set(false);
    let client = client_over(Arc::clone(&transport), at(), SAFETY);
    let model = client.ready().model("whole");
    for number in 0..REQUESTS {
        client.submit(number, model, rows(number, 1, 2)).unwrap();
    }
    for _ in 0..REQUESTS {
        let (number, answer) = client.answers.recv_timeout(SAFETY).unwrap();
        assert_eq!(answer.unwrap().outputs[0].data, rows(number, 1, 2)[0].data);
    }
    peers.iter().for_each(|(link, _)| link.close());
    client.frontend.close();
    backends.into_iter().for_each(RunningBackend::abort);
}

#[test]
fn a_frontend_whose_number_another_one_has_learns_why_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let transport = tls(folder.path());
    let scheduler = scheduler_over(&transport, &Arc::default());
    let (_first, mut reader) = bare_frontend(&*transport, &scheduler, 7);
    while !matches!(reader.read().unwrap(), Message::Devices(0)) {}
    let stream = transport.connect(&scheduler.address().to_string(), SAFETY).unwrap();
    connect_handshake(&*stream, Handshake::new(Role::Frontend, 0), Role::Scheduler).unwrap();
    let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
    link.send(&Message::RegisterFrontend(7, "127.0.0.1:8".to_owned()));
    let mut reader = MessageReader::new(stream, SAFETY);
    let cause = loop {
        match reader.read().unwrap() {
            Message::KeepAlive => {}
            Message::Refused(cause) => break cause,
            other => panic!("{other:?}"),
        }
    };
    assert!(cause.contains("another frontend has its number"), "{cause}");
    link.close();
}
