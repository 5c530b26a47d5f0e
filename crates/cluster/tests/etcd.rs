//! The epoch in a real etcd of three nodes, processes on loopback, of which one hangs and one dies;
//! and in one over TLS that wants a user.
//!
//! Skipped, with a message, where there is no program `etcd` (Debian: package etcd-server);
//! `RIPIENO_ETCD` names another. Conditions are polled; only one that never holds fails.

#![cfg(feature = "etcd")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ripieno_cluster::handover::store::{
    EpochEntry, EpochStore, EtcdAccess, EtcdStore, EtcdText, EtcdTls, EtcdUser, Swap,
};
use ripieno_cluster::handover::{Epoch, ProcessId};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(500);
/// A generous timeout, even on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

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
        EtcdStore::new(plain(&self.urls, TIMEOUT), "/ripieno/test").expect("the addresses are fine")
    }
}

fn plain(urls: &[String], timeout: Duration) -> EtcdAccess {
    EtcdAccess { nodes: urls.to_vec(), tls: None, user: None, timeout }
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
        std::thread::park_timeout(std::time::Duration::from_millis(1));
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
fn the_epoch_lives_in_etcd() {
    let Some(program) = program() else { return };
    let mut etcd = Etcd::start(&program);
    let mut store = etcd.store();
    assert_eq!(until("three nodes are ready", || store.read().ok()), None);
    one_of_two_gets_the_epoch(&etcd, &mut store);
    a_silent_node_holds_nothing_up(&etcd);
    clusters_with_other_prefixes_do_not_meet(&etcd);
    a_text_is_replaced(&etcd);

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
    let mut store = EtcdStore::new(plain(&urls, PATIENCE), "/ripieno/silent").expect("the addresses are fine");
    let begun = Instant::now();
    let swap = |last: u64| Swap { expected: (last > 0).then(|| entry(last, 7)), next: entry(last + 1, 7) };
    (0..20).for_each(|last| assert_eq!(store.swap(&swap(last)), Ok(entry(last + 1, 7))));
    eprintln!("twenty swaps beside a node that is silent: {:?}", begun.elapsed());
}

fn a_text_is_replaced(etcd: &Etcd) {
    let text = |name: &str| EtcdText::new(plain(&etcd.urls, TIMEOUT), "/ripieno/test", name).expect("fine addresses");
    let (plan, other) = (text("plan"), text("other"));
    assert_eq!(plan.read(), Ok(None));
    for written in ["{}", "{\"sub_clusters\": []}"] {
        plan.write(written).expect("etcd answers");
        assert_eq!(text("plan").read(), Ok(Some(written.to_owned())));
    }
    assert_eq!(other.read(), Ok(None));
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

fn clusters_with_other_prefixes_do_not_meet(etcd: &Etcd) {
    let mut other = EtcdStore::new(plain(&etcd.urls, TIMEOUT), "/elsewhere").expect("the addresses are fine");
    assert_eq!(until("another cluster asks", || other.read().ok()), None);
    let first = Swap { expected: None, next: entry(1, 9) };
    assert_eq!(until("it begins at one", || other.swap(&first).ok()), entry(1, 9));
    let mut store = etcd.store();
    assert_eq!(until("the first cluster asks", || store.read().ok()), Some(entry(1, 7)));
}

/// An etcd of one node over TLS with client certificates, whose users have passwords.
struct Guarded {
    node: Child,
    url: String,
    tls: EtcdTls,
    program: String,
    _data: tempfile::TempDir,
}

impl Guarded {
    fn start(program: &str) -> Guarded {
        let data = tempfile::tempdir().expect("there is room for data");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let write = |name: &str, text: String| {
            let path = data.path().join(name);
            std::fs::write(&path, text).expect("there is room for a certificate");
            path
        };
        let (ca, certificate) = (write("ca.pem", authority.pem()), write("own.pem", own.pem()));
        let key = write("own.key", key.serialize_pem());
        let [client, peer]: [u16; 2] = ports();
        let (url, peer) = (format!("https://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new(program);
        command.args(["--name", "n0", "--data-dir"]).arg(data.path().join("n0"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("n0={peer}"), "--bcrypt-cost", "4", "--client-cert-auth"]);
        command.arg("--cert-file").arg(&certificate).arg("--key-file").arg(&key).arg("--trusted-ca-file").arg(&ca);
        let node = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd starts");
        let tls = EtcdTls { authority: ca, certificate: Some((certificate, key)) };
        Guarded { node, url, tls, program: program.to_owned(), _data: data }
    }

    fn store(&self, tls: bool, user: Option<(&str, &str)>) -> EtcdStore {
        let user = user.map(|(name, password)| EtcdUser { name: name.to_owned(), password: password.to_owned() });
        let tls = EtcdTls { certificate: self.tls.certificate.clone().filter(|_| tls), ..self.tls.clone() };
        let access = EtcdAccess { nodes: vec![self.url.clone()], tls: Some(tls), user, timeout: TIMEOUT };
        EtcdStore::new(access, "/guarded").expect("the files are fine")
    }

    /// Runs etcd's own client; false where it is not installed.
    fn control(&self, words: &[&str]) -> bool {
        let (certificate, key) = self.tls.certificate.as_ref().expect("it has one");
        let program = self.program.strip_suffix("etcd").map(|folder| format!("{folder}etcdctl")).unwrap_or_default();
        let mut command = Command::new(program);
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.url).arg("--cacert").arg(&self.tls.authority);
        command.arg("--cert").arg(certificate).arg("--key").arg(key).args(words);
        match command.stdout(Stdio::null()).status() {
            Ok(status) => {
                assert!(status.success(), "etcdctl {words:?} ended with {status}");
                true
            }
            Err(error) => {
                eprintln!("no users are tried: cannot start etcdctl ({error}); install etcd-client");
                false
            }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

#[test]
fn an_etcd_over_tls_wants_a_certificate_and_a_user() {
    let Some(program) = program() else { return };
    let etcd = Guarded::start(&program);
    assert_eq!(until("it is ready", || etcd.store(true, None).read().ok()), None);
    let refused = etcd.store(false, None).read().expect_err("a client without a certificate");
    eprintln!("without a certificate: {refused}");
    let without = EtcdAccess { nodes: vec![etcd.url.clone()], tls: None, user: None, timeout: TIMEOUT };
    assert!(EtcdStore::new(without, "/guarded").unwrap_err().0.contains("--etcd-ca"));
    let users: [&[&str]; 4] = [
        &["user", "add", "root:first"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
        &["--user", "root:first", "user", "list"],
    ];
    if !users.iter().all(|words| etcd.control(words)) {
        return;
    }
    let anonymous = etcd.store(true, None).read().expect_err("a call without a user");
    assert!(["user name", "permission denied"].iter().any(|cause| anonymous.0.contains(cause)), "{anonymous}");
    let wrong = etcd.store(true, Some(("root", "wrong"))).read().expect_err("a wrong password");
    assert!(wrong.0.contains("--etcd-user") && !wrong.0.contains("\"wrong\""), "{wrong}");
    let mut store = etcd.store(true, Some(("root", "first")));
    let first = Swap { expected: None, next: entry(1, 7) };
    assert_eq!(store.swap(&first), Ok(entry(1, 7)));
    // Users that change make every token outdated.
    assert!(etcd.control(&["--user", "root:first", "user", "add", "other:one"]));
    assert_eq!(store.read(), Ok(Some(entry(1, 7))));
}
