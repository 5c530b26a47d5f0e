//! A cluster whose roles run on machines of their own, and its faults.

use super::clients::{HttpClient, Load, Sample, meaning};
use super::network::Network;
use crate::processes::{Folder, Process, SAFETY, call};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SCHEDULERS: [&str; 2] = ["scheduler-1", "scheduler-2"];
const BACKENDS: [&str; 2] = ["backend-1", "backend-2"];
const FRONTENDS: [&str; 2] = ["frontend-1", "frontend-2"];
const STORE: &str = "store";

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The primary and the backends do not reach each other.
    PrimaryWithoutBackends,
    /// The primary and the frontends do not reach each other.
    PrimaryWithoutFrontends,
    /// The primary reaches only the spare.
    PrimaryWithSpareOnly,
    /// The primary's link is cut.
    PrimaryCut,
    /// A backend's link is cut.
    BackendCut,
    /// A frontend's link to the cluster is cut; its clients still reach it.
    FrontendCut,
    /// The primary's messages to backends are lost.
    PrimaryUnheard,
    /// The backends' messages to the primary are lost.
    BackendsUnheard,
    /// The primary's messages to the spare are lost.
    HeartbeatsLost,
    /// A backend and a frontend do not reach each other.
    InputsLost,
    /// A backend's messages to a frontend are lost.
    OutputsLost,
    /// The store of the epoch is cut.
    StoreCut,
    /// A backend's link loses packets.
    BackendLossy,
    /// A process is killed and started again.
    PrimaryKilled,
    BackendKilled,
    FrontendKilled,
    /// The primary is killed while a backend is cut.
    PrimaryKilledBackendCut,
    /// A process stands still for a while.
    PrimaryHangs,
    BackendHangs,
    FrontendHangs,
}

impl Fault {
    pub(crate) const ALL: [Fault; 20] = [
        Fault::PrimaryWithoutBackends,
        Fault::PrimaryWithoutFrontends,
        Fault::PrimaryWithSpareOnly,
        Fault::PrimaryCut,
        Fault::BackendCut,
        Fault::FrontendCut,
        Fault::PrimaryUnheard,
        Fault::BackendsUnheard,
        Fault::HeartbeatsLost,
        Fault::InputsLost,
        Fault::OutputsLost,
        Fault::StoreCut,
        Fault::BackendLossy,
        Fault::PrimaryKilled,
        Fault::BackendKilled,
        Fault::FrontendKilled,
        Fault::PrimaryKilledBackendCut,
        Fault::PrimaryHangs,
        Fault::BackendHangs,
        Fault::FrontendHangs,
    ];

    /// Enough for each build: half a minute.
    pub(crate) const SOME: [Fault; 4] =
        [Fault::PrimaryWithoutFrontends, Fault::PrimaryCut, Fault::BackendsUnheard, Fault::FrontendCut];

    /// Returns the ways, each from one machine to another one, on which all is lost.
    fn lost_ways<'a>(self, primary: &'a str, spare: &'a str) -> Vec<(&'a str, &'a str)> {
        let backend = BACKENDS[0];
        match self {
            Fault::PrimaryWithoutBackends => between(primary, &BACKENDS),
            Fault::PrimaryWithoutFrontends => between(primary, &FRONTENDS),
            Fault::PrimaryWithSpareOnly => [between(primary, &BACKENDS), between(primary, &FRONTENDS)].concat(),
            Fault::PrimaryUnheard => BACKENDS.map(|backend| (primary, backend)).to_vec(),
            Fault::BackendsUnheard => BACKENDS.map(|backend| (backend, primary)).to_vec(),
            Fault::HeartbeatsLost => vec![(primary, spare)],
            Fault::InputsLost => between(backend, &[FRONTENDS[0]]),
            Fault::OutputsLost => vec![(backend, FRONTENDS[0])],
            _ => Vec::new(),
        }
    }
}

/// Returns both ways between a machine and other ones.
fn between<'a>(one: &'a str, others: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    others.iter().flat_map(|&other| [(one, other), (other, one)]).collect()
}

/// Returns inputs of a demo model.
fn samples_of(model: &str, demos: &Path) -> Vec<Value> {
    let file = if model == "shapes-exits" { "shapes" } else { model };
    let text = fs::read_to_string(demos.join(format!("samples/{file}.json"))).unwrap();
    let samples: Value = serde_json::from_str(&text).unwrap();
    let inputs = |row: &Value| match row.get("inputs") {
        Some(inputs) => inputs.clone(),
        None => {
            let scale = samples["scale"].as_f64().unwrap();
            let data: Vec<f64> =
                row["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() * scale).collect();
            let shape = [&[json!(1)], &samples["shape"].as_array().unwrap()[..]].concat();
            json!([{ "name": samples["input"], "datatype": "FP32", "shape": shape, "data": data }])
        }
    };
    samples["rows"].as_array().unwrap().iter().take(8).map(inputs).collect()
}

/// Texts of several lengths for a model whose inputs are padded.
fn texts() -> Vec<Value> {
    let text = |length: i64| {
        let tensor = |name: &str, data: Vec<i64>| json!({ "name": name, "datatype": "INT64", "shape": [1, length], "data": data });
        json!([
            tensor("ids", (0..length).map(|at| (at * 7 + length) % 50).collect()),
            tensor("mask", vec![1; length as usize])
        ])
    };
    (1..9).map(|at| text(at * 5)).collect()
}

struct Role {
    words: Vec<String>,
    log: std::path::PathBuf,
    process: Option<Process>,
}

impl Role {
    fn start(&mut self) {
        let mut command = Command::new(&self.words[0]);
        let log = fs::File::options().create(true).append(true).open(&self.log).unwrap();
        command.args(&self.words[1..]).stderr(log);
        // A role takes variables of this name for flags, and complains.
        std::env::vars().filter(|(name, _)| name.starts_with("RIPIENO_TEST_")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        self.process = Some(Process::spawn(command));
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn signal(&self, signal: &str) {
        self.process.as_ref().unwrap().signal(signal);
    }
}

pub(crate) struct Cluster {
    // Ends before the network and the folder.
    roles: BTreeMap<&'static str, Role>,
    network: Network,
    requests: Vec<(String, Value)>,
    orders: Vec<std::path::PathBuf>,
    folder: Folder,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let demos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let folder = Folder::new("links");
        let mut requests = Vec::new();
        for model in ["arithmetic", "dates", "digits", "sentiment", "shapes-exits"] {
            let (from, to) = (demos.join("repository").join(model), folder.0.join("models").join(model));
            fs::create_dir_all(to.join("1")).unwrap();
            for file in fs::read_dir(from.join("1")).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
                fs::copy(file.path(), to.join("1").join(file.file_name())).unwrap();
            }
            let settings = fs::read_to_string(from.join("model.toml")).unwrap();
            let settings =
                settings.lines().filter(|line| !line.starts_with("slo_ms") && !line.starts_with("max_batch"));
            let settings = ["slo_ms = 60000", "max_batch = 4"].into_iter().chain(settings);
            fs::write(to.join("model.toml"), settings.collect::<Vec<_>>().join("\n")).unwrap();
            requests.extend(samples_of(model, &demos).into_iter().map(|inputs| (model.to_owned(), inputs)));
        }
        folder.add("models/texts", Some("masked_mean.onnx"), "slo_ms = 60000\nmax_batch = 4\n");
        requests.extend(texts().into_iter().map(|inputs| ("texts".to_owned(), inputs)));

        let machines = [&SCHEDULERS[..], &BACKENDS, &FRONTENDS, &[STORE]].concat();
        let network = Network::new(&machines);
        let mut cluster = Cluster { roles: BTreeMap::new(), network, requests, orders: Vec::new(), folder };
        let epoch = cluster.start_store();
        let all = SCHEDULERS.map(|name| cluster.network.inner(name) + ":8010").join(",");
        for name in SCHEDULERS {
            let (listen, metrics) = (cluster.network.inner(name) + ":8010", cluster.network.outer(name) + ":8002");
            let words = ["--listen", &listen, "--metrics", &metrics, "--epoch", &epoch, "--schedulers", &all];
            cluster.start_role(name, &[&["scheduler"], &words[..]].concat());
        }
        for name in BACKENDS {
            let (models, metrics) = (cluster.folder.0.join("models"), cluster.network.outer(name) + ":8004");
            let orders = cluster.folder.0.join(format!("{name}.orders"));
            let files = [models.to_str().unwrap().to_owned(), orders.to_str().unwrap().to_owned()];
            let words =
                ["--scheduler", &all, "--epoch", &epoch, "--orders", &files[1], "--device", "cpu", "--threads", "1"];
            cluster.orders.push(orders);
            cluster.start_role(name, &[&["backend", &files[0], "--metrics", &metrics], &words[..]].concat());
        }
        for name in FRONTENDS {
            let (inner, outer) = (cluster.network.inner(name), cluster.network.outer(name));
            let addresses = [inner + ":8011", outer.clone() + ":8000", outer.clone() + ":8001", outer + ":8003"];
            let [data, http, grpc, metrics] = addresses.each_ref().map(String::as_str);
            let words = ["--scheduler", &all, "--http", http, "--grpc", grpc, "--metrics", metrics, "--data", data];
            cluster.start_role(name, &[&["frontend"], &words[..]].concat());
        }
        cluster.until_whole();
        cluster
    }

    /// Starts an etcd, if there is one, and returns the place of the epoch.
    fn start_store(&mut self) -> String {
        let etcd = std::env::var("RIPIENO_ETCD").unwrap_or_else(|_| "etcd".to_owned());
        if Command::new(&etcd).arg("--version").output().is_err() {
            println!("the epoch is in a file, since there is no etcd: its link is not cut");
            return format!("file:{}", self.folder.0.join("epoch").display());
        }
        let (url, probed) = (format!("http://{}:2379", self.network.inner(STORE)), self.network.outer(STORE) + ":2379");
        let listen = format!("{url},http://{probed}");
        let folder = self.folder.0.join("etcd");
        let mut words = self.network.on(STORE);
        words.push(etcd);
        let settings = ["--listen-client-urls", &listen, "--advertise-client-urls", &url, "--data-dir"];
        words.extend(settings.map(str::to_owned));
        words.push(folder.to_str().unwrap().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process { child: command.spawn().unwrap(), ready: Value::Null };
        self.roles.insert(STORE, Role { words, log: folder, process: Some(process) });
        self.until("etcd answers", || TcpStream::connect(&probed).is_ok());
        format!("etcd:{url}")
    }

    fn start_role(&mut self, name: &'static str, words: &[&str]) {
        let mut whole = self.network.on(name);
        whole.push(env!("CARGO_BIN_EXE_ripieno").to_owned());
        whole.extend(words.iter().map(|&word| word.to_owned()));
        let log = self.folder.0.join(format!("{name}.log"));
        let mut role = Role { words: whole, log, process: None };
        role.start();
        self.roles.insert(name, role);
    }

    fn role(&mut self, name: &str) -> &mut Role {
        self.roles.get_mut(name).unwrap_or_else(|| panic!("no role {name}"))
    }

    fn metrics(&self, name: &str) -> String {
        call(&format!("{}:8002", self.network.outer(name)), "GET /metrics", "").2
    }

    /// Returns the scheduler that is the primary.
    fn primary(&self) -> Option<&'static str> {
        let leads = |name: &&&str| self.metrics(name).contains("ripieno_leading 1\n");
        SCHEDULERS.iter().find(leads).copied()
    }

    /// Waits until a condition holds.
    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            if begun.elapsed() > SAFETY {
                self.print_logs();
                panic!("it does not happen: {what}");
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    fn print_logs(&self) {
        for (name, role) in &self.roles {
            let log = fs::read_to_string(&role.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            println!("{name}:\n  {}", lines[lines.len().saturating_sub(12)..].join("\n  "));
        }
    }

    /// Waits until each frontend serves, and the primary has all backends.
    fn until_whole(&self) {
        let leads = |name: &&&str| self.metrics(name).contains("ripieno_leading 1\n");
        self.until("one scheduler leads", || SCHEDULERS.iter().filter(leads).count() == 1);
        self.until_serving(BACKENDS.len());
        for http in self.http() {
            self.until("a frontend serves", || call(&http, "GET /v2/health/ready", "").0 == 200);
        }
    }

    /// Returns the addresses of the frontends for clients.
    pub(crate) fn http(&self) -> Vec<String> {
        FRONTENDS.map(|name| self.network.outer(name) + ":8000").to_vec()
    }

    /// Returns requests with their right answers, as a cluster without faults gives them.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let mut client = HttpClient::connect(&self.http()[0]).unwrap();
        let mut answered = |(model, inputs): &(String, Value)| {
            let mut sample = Sample { model: model.clone(), inputs: inputs.clone(), right: Vec::new() };
            let answer = client.infer("first", &sample).unwrap();
            assert_eq!(answer.status, 200, "{model}: {}", answer.body);
            sample.right = meaning(&answer.body);
            sample
        };
        let mut samples: Vec<Sample> = self.requests.iter().map(&mut answered).collect();
        // Requests of all models are near each other.
        samples.sort_by_cached_key(|sample| sample.right.iter().map(Value::to_string).collect::<String>());
        samples
    }

    /// Waits for this many further right answers of every frontend.
    fn until_right(&self, load: &Load, frontends: &[usize], more: usize) {
        for &at in frontends {
            let least = load.right[at].load(Ordering::Relaxed) + more;
            self.until("right answers", || {
                load.check();
                load.right[at].load(Ordering::Relaxed) >= least
            });
        }
    }

    /// Waits for this many further answers.
    pub(crate) fn until_answers(&self, load: &Load, more: usize) {
        let mut done = load.answers();
        let least = done + more;
        while done < least {
            self.until("answers", || load.answers() > done);
            done = load.answers();
        }
    }

    fn until_leads(&self, scheduler: &str) {
        self.until("the spare leads", || self.metrics(scheduler).contains("ripieno_leading 1\n"));
    }

    /// Waits until a primary has this number of devices.
    fn until_serving(&self, devices: usize) {
        let serving = format!("ripieno_serving_devices {devices}\n");
        let serves = || self.primary().is_some_and(|name| self.metrics(name).contains(&serving));
        self.until("the primary has this number of devices", serves);
    }

    /// Makes a fault under load, waits until it is worked around, and ends it.
    pub(crate) fn make(&mut self, fault: Fault, load: &Load) {
        let (begun, again) = (Instant::now(), load.again.load(Ordering::Relaxed));
        self.until("there is a primary", || self.primary().is_some());
        let primary = self.primary().unwrap();
        let spare = SCHEDULERS.into_iter().find(|&name| name != primary).unwrap();
        let ways = fault.lost_ways(primary, spare);
        if ways.is_empty() {
            self.cut_link(fault, load, (primary, spare));
            self.stop(fault, load, (primary, spare));
        } else {
            ways.iter().for_each(|(from, to)| self.network.set_way(from, to, false));
            if ways.iter().any(|&(from, to)| from == primary || to == primary) {
                self.until_leads(spare);
                self.until_right(load, &[0, 1], 20);
            } else {
                let ended = load.again.load(Ordering::Relaxed);
                self.until("requests end", || load.again.load(Ordering::Relaxed) > ended);
                self.until_right(load, &[1], 20);
            }
            ways.iter().for_each(|(from, to)| self.network.set_way(from, to, true));
        }
        let around = begun.elapsed();
        self.until_whole();
        self.until_right(load, &[0, 1], 20);
        let (again, ended) = (load.again.load(Ordering::Relaxed) - again, begun.elapsed());
        println!("{fault:?}: worked around after {around:.1?}, ended after {ended:.1?}; {again} told to try again");
    }

    /// Makes a fault of a whole link, if this is one.
    fn cut_link(&mut self, fault: Fault, load: &Load, (primary, spare): (&str, &str)) {
        match fault {
            Fault::PrimaryCut => {
                self.network.set_link(primary, false);
                self.until_leads(spare);
                self.until_right(load, &[0, 1], 20);
                self.network.set_link(primary, true);
            }
            Fault::BackendCut => {
                self.network.set_link(BACKENDS[0], false);
                self.until_serving(1);
                self.until_right(load, &[0, 1], 20);
                self.network.set_link(BACKENDS[0], true);
            }
            Fault::FrontendCut => {
                self.network.set_link(FRONTENDS[0], false);
                let http = &self.http()[0];
                self.until("the frontend notices", || call(http, "GET /v2/health/ready", "").0 == 503);
                self.until_right(load, &[1], 20);
                self.network.set_link(FRONTENDS[0], true);
            }
            Fault::StoreCut if self.roles.contains_key(STORE) => {
                self.network.set_link(STORE, false);
                self.until_right(load, &[0, 1], 200);
                self.network.set_link(STORE, true);
            }
            Fault::BackendLossy => match self.network.set_lossy(BACKENDS[0], true) {
                Some(how) => {
                    println!("a link that loses packets: {how}");
                    self.until_right(load, &[0, 1], 200);
                    self.network.set_lossy(BACKENDS[0], false);
                }
                None => println!("no link loses packets: the kernel has neither netem nor tbf"),
            },
            _ => {}
        }
    }

    /// Makes a fault of a process, if this is one.
    fn stop(&mut self, fault: Fault, load: &Load, (primary, spare): (&'static str, &str)) {
        match fault {
            Fault::PrimaryKilled | Fault::PrimaryKilledBackendCut => {
                self.network.set_link(BACKENDS[1], fault == Fault::PrimaryKilled);
                self.role(primary).kill();
                self.until_leads(spare);
                self.until_right(load, &[0, 1], 20);
                self.role(primary).start();
                self.network.set_link(BACKENDS[1], true);
            }
            Fault::BackendKilled => {
                self.role(BACKENDS[1]).kill();
                self.until_serving(1);
                self.until_right(load, &[0, 1], 20);
                self.role(BACKENDS[1]).start();
            }
            Fault::FrontendKilled => {
                load.frontends[1].killed.fetch_add(1, Ordering::SeqCst);
                self.role(FRONTENDS[1]).kill();
                self.until_right(load, &[0], 20);
                self.role(FRONTENDS[1]).start();
                load.frontends[1].killed.fetch_add(1, Ordering::SeqCst);
            }
            Fault::PrimaryHangs => {
                self.role(primary).signal("-STOP");
                self.until_leads(spare);
                self.until_right(load, &[0, 1], 20);
                self.role(primary).signal("-CONT");
            }
            Fault::BackendHangs => {
                self.role(BACKENDS[0]).signal("-STOP");
                self.until_serving(1);
                self.until_right(load, &[0, 1], 20);
                self.role(BACKENDS[0]).signal("-CONT");
            }
            Fault::FrontendHangs => {
                self.role(FRONTENDS[0]).signal("-STOP");
                self.until_right(load, &[1], 200);
                self.role(FRONTENDS[0]).signal("-CONT");
            }
            _ => {}
        }
    }

    /// Checks that no backend went back to an earlier claim.
    pub(crate) fn check_orders(&self) {
        let mut holders: BTreeMap<u64, String> = BTreeMap::new();
        for file in &self.orders {
            let mut last = (0, 0);
            for line in fs::read_to_string(file).unwrap().lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let claim: (u64, u64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
                assert!(claim >= last, "{}: {line} after {last:?}", file.display());
                last = claim;
                let holder = holders.entry(claim.0).or_insert_with(|| words[4].to_owned());
                assert_eq!(holder, words[4], "epoch {} has two holders", claim.0);
            }
        }
        assert!(holders.len() > 1, "no spare has taken over");
    }
}
