//! A cluster on machines of its own, between which links are cut, and whose processes are killed
//! and hang: each request of a client that waits has one answer, right or retryable.
//!
//! The machines are network namespaces ([`links::enter`]); without them the test says so and ends.
//! `RIPIENO_TEST_LINKS=10000` makes all faults and goes on until that many requests are
//! answered.

use crate::links::{self, Cluster, Fault, Load};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// Clients at a time.
const CLIENTS: usize = 8;

/// Makes these faults in turn under load, until there are this many answers.
fn survives(cluster: &mut Cluster, faults: &[Fault], least: usize) {
    let load = Arc::new(Load::new(cluster.http(), cluster.samples()));
    let start = |client: usize| {
        let load = Arc::clone(&load);
        thread::spawn(move || load.send(client))
    };
    let clients: Vec<_> = (0..CLIENTS).map(start).collect();
    for fault in faults {
        cluster.make(*fault, &load);
        load.check();
    }
    cluster.until_answers(&load, least.saturating_sub(load.answers()));
    load.over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    load.check();
    let (again, broken) = (load.again.load(Ordering::Relaxed), load.broken.load(Ordering::Relaxed));
    println!("{} answers, {again} of them to try again; {broken} to a killed frontend", load.answers());
    cluster.check_orders();
}

#[test]
fn a_cut_link_loses_no_request_and_is_worked_around() {
    if !links::enter("cluster_links::a_cut_link_loses_no_request_and_is_worked_around") {
        return;
    }
    let least = std::env::var("RIPIENO_TEST_LINKS").map(|least| least.parse().unwrap());
    let faults = if least.is_ok() { &Fault::ALL[..] } else { &Fault::SOME };
    survives(&mut Cluster::start(), faults, least.unwrap_or(500));
}
