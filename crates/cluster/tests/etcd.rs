//! The epoch and the inventory in a real etcd of three nodes, processes on loopback, of which one
//! hangs and one dies.
//!
//! Skipped, with a message, where there is no program `etcd` (Debian: package etcd-server);
//! `RIPIENO_ETCD` names another. Conditions are polled; only one that never holds fails.

use ripieno_cluster::handover::store::{ClusterMember, EpochEntry, EpochStore, EtcdStore, Inventory, Swap};
use ripieno_cluster::handover::{Epoch, ProcessId, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(500);
/// A generous timeout, even on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE_SECONDS: u32 = 2;

struct Etcd {
    nodes: Vec<Child>,
    urls: Vec<String>,
    // Removed when the test ends.
    _data: tempfile::TempDir,
}

fn program() -> Option<String> {
    let name = std::env::var("RIPIENO_ETCD").unwrap_or_else(|_| "etcd".into());
    let run = Command::new(&name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match run {
        Ok(status) if status.success() => Some(name),
        Ok(status) => panic!("{name} --version ended with {status}"),
        Err(error) => {
            eprintln!("skipped: cannot start {name} ({error}); install etcd-server, or set RIPIENO_ETCD to an etcd");
            None
        }
    }
}

/// Returns ports that are free at this moment.
fn ports<const N: usize>() -> [u16; N] {
    let bound: [TcpListener; N] =
        std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has ports"));
    bound.each_ref().map(|listener| listener.local_addr().expect("it is bound").port())
}

impl Etcd {
    fn start(program: &str) -> Etcd {
        let data = tempfile::tempdir().expect("there is room for data");
        let ports: [u16; 6] = ports();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<_> = (0..3).map(|at| format!("n{at}={}", url(ports[3 + at]))).collect();
        let start = |at: usize| {
            let folder = data.path().join(format!("n{at}"));
            let mut command = Command::new(program);
            command.args(["--name", &format!("n{at}"), "--data-dir"]).arg(folder);
            command.args(["--listen-client-urls", &url(ports[at]), "--advertise-client-urls", &url(ports[at])]);
            command.args(["--listen-peer-urls", &url(ports[3 + at])]);
            command.args(["--initial-advertise-peer-urls", &url(ports[3 + at])]);
            command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
            command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd starts")
        };
        Etcd {
            nodes: (0..3).map(start).collect(),
            urls: ports[..3].iter().map(|&port| url(port)).collect(),
            _data: data,
        }
    }

    fn signal(&self, node: usize, signal: Signal) {
        let pid = Pid::from_child(&self.nodes[node]);
        kill_process(pid, signal).expect("the node is ours");
    }

    fn store(&self) -> EtcdStore {
        EtcdStore::new(&self.urls, "/ripieno/test", TIMEOUT).expect("the addresses are fine")
    }

    fn inventory(&self, own: &ClusterMember) -> Inventory {
        let inventory = Inventory::new(&self.urls, "/ripieno/test", TIMEOUT, own.clone(), LEASE_SECONDS);
        inventory.expect("the addresses are fine")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // A node that the test killed is gone already; one that it stopped dies as well.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// Polls until there is an answer; prints the number of calls and the time.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    for asked in 1_u64.. {
        if let Some(answer) = ask() {
            eprintln!("{what}: {:?}, asked {asked} times", begun.elapsed());
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::yield_now();
    }
    unreachable!("it is asked for ever")
}

fn entry(epoch: u64, holder: u64) -> EpochEntry {
    EpochEntry { epoch: Epoch(epoch), holder: ProcessId(holder) }
}

/// Makes the swap, with retries.
fn swap(store: &mut EtcdStore, what: &str, expected: EpochEntry, next: EpochEntry) {
    let swap = Swap { expected: Some(expected), next };
    assert_eq!(until(what, || store.swap(&swap).ok()), next, "{what}");
}

#[test]
fn the_epoch_and_the_inventory_live_in_etcd() {
    let Some(program) = program() else { return };
    let mut etcd = Etcd::start(&program);
    let mut store = etcd.store();
    assert_eq!(until("three nodes are ready", || store.read().ok()), None);
    one_of_two_gets_the_epoch(&etcd, &mut store);
    a_silent_node_holds_nothing_up(&etcd);
    members_are_listed_until_their_lease_ends(&etcd);

    let [second, third, fourth, fifth] = [entry(2, 8), entry(3, 7), entry(4, 8), entry(5, 7)];
    for (node, before, after) in [(0, entry(1, 7), second), (1, second, third), (2, third, fourth)] {
        etcd.signal(node, Signal::STOP);
        swap(&mut store, &format!("node {node} hangs"), before, after);
        etcd.signal(node, Signal::CONT);
    }
    etcd.nodes[0].kill().expect("it runs");
    swap(&mut store, "a node is dead", fourth, fifth);
    etcd.nodes[1].kill().expect("it runs");
    etcd.nodes[1].wait().expect("it ends");
    let alone = store.swap(&Swap { expected: Some(fifth), next: entry(6, 8) });
    assert!(alone.is_err(), "without a majority nothing is decided, and it said {alone:?}");
}

/// A socket that accepts connections and never answers stands for a hung node: no call waits for
/// it.
fn a_silent_node_holds_nothing_up(etcd: &Etcd) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let mut urls = vec![format!("http://{}", silent.local_addr().expect("it is bound"))];
    urls.extend_from_slice(&etcd.urls);
    // A call that waited for it would fail after the timeout.
    let mut store = EtcdStore::new(&urls, "/ripieno/silent", PATIENCE).expect("the addresses are fine");
    let begun = Instant::now();
    let swap = |last: u64| Swap { expected: (last > 0).then(|| entry(last, 7)), next: entry(last + 1, 7) };
    (0..20).for_each(|last| assert_eq!(store.swap(&swap(last)), Ok(entry(last + 1, 7))));
    eprintln!("twenty swaps beside a node that is silent: {:?}", begun.elapsed());
}

fn one_of_two_gets_the_epoch(etcd: &Etcd, store: &mut EtcdStore) {
    let (first, second) = (Swap { expected: None, next: entry(1, 7) }, Swap { expected: None, next: entry(1, 8) });
    assert_eq!(store.swap(&first), Ok(entry(1, 7)));
    let mut other = etcd.store();
    assert_eq!(until("another client asks", || other.swap(&second).ok()), entry(1, 7));
    assert_eq!(store.swap(&first), Ok(entry(1, 7)), "whose reply was lost hears that it has it");
    assert_eq!(other.read(), Ok(Some(entry(1, 7))));
    let outdated = Swap { expected: Some(entry(9, 9)), next: entry(10, 8) };
    assert_eq!(other.swap(&outdated), Ok(entry(1, 7)));
}

fn members_are_listed_until_their_lease_ends(etcd: &Etcd) {
    let member = |role, ordinal: u64, port| {
        let process = ProcessId(ordinal + 77);
        ClusterMember { role, process, address: format!("127.0.0.1:{port}") }
    };
    let (backend, frontend) = (member(Role::Backend, 3, 1_003), member(Role::Frontend, 4, 1_004));
    let (mut stays, mut goes) = (etcd.inventory(&backend), etcd.inventory(&frontend));
    until("a backend is entered", || stays.keep().ok());
    until("a frontend is entered", || goes.keep().ok());
    assert_eq!(stays.members(), Ok(vec![backend.clone(), frontend]));
    // Its lease ends while the other's is renewed.
    until("the frontend's lease ends", || {
        stays.keep().expect("etcd is well");
        (stays.members().expect("etcd is well") == [backend.clone()]).then_some(())
    });
    until("it comes back", || goes.keep().ok());
    assert_eq!(goes.members().map(|all| all.len()), Ok(2));
}
