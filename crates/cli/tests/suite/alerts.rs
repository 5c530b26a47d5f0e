//! The alerts under `deploy/` fire on the fault that each names, and are silent while all is well.
//!
//! Real roles run and are broken; their pages are scraped and the expressions are evaluated here.
//! Where `promtool` is installed, it checks the files, too.

use crate::processes::{ANYWHERE, Folder, Process, SAFETY, backend, call, echo, fp32, frontend, infer, until_ready};
use crate::promql::{Scrapes, Vector, page};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time for which a process is stopped.
const STANDSTILL: Duration = Duration::from_millis(300);
/// Interval that is assumed between two scrapes, in seconds.
const INTERVAL_S: f64 = 5.0;

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

/// The rules of a file, and the processes that Prometheus would scrape.
struct Watched {
    rules: Vec<Value>,
    /// Role and address of each process.
    targets: Vec<(&'static str, String)>,
    earlier: Vector,
}

impl Watched {
    fn new(file: &str) -> Watched {
        let read: Value = serde_saphyr::from_str(&fs::read_to_string(deploy(file)).unwrap()).unwrap();
        let root = if read["spec"].is_null() { &read } else { &read["spec"] };
        let rules = root["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        Watched { rules: rules.cloned().collect(), targets: Vec::new(), earlier: Vector::new() }
    }

    fn add(&mut self, role: &'static str, process: &Process) {
        self.targets.push((role, process.address("metrics").to_owned()));
    }

    /// Stops scraping a process, as Prometheus does of one that is gone.
    fn remove(&mut self, process: &Process) {
        let gone = process.address("metrics");
        self.targets.retain(|(_, address)| address != gone);
    }

    fn scrape(&self) -> Vector {
        let each = self.targets.iter().flat_map(|(role, address)| {
            let (status, _, text) = call(address, "GET /metrics", "");
            assert_eq!(status, 200);
            page(&text, &[("namespace", "here"), ("instance", address), ("ripieno_dev_role", role)])
        });
        each.collect()
    }

    /// Returns the alerts whose expression has a result.
    fn firing(&mut self) -> BTreeSet<String> {
        let now = self.scrape();
        let mut scrapes =
            Scrapes { earlier: std::mem::replace(&mut self.earlier, now.clone()), now, interval_s: INTERVAL_S };
        fired(&self.rules, &mut scrapes)
    }

    /// Waits until all of these alerts fire together.
    fn until_firing(&mut self, alerts: &[&str]) {
        let begun = Instant::now();
        loop {
            let firing = self.firing();
            if alerts.iter().all(|alert| firing.contains(*alert)) {
                return;
            }
            assert!(begun.elapsed() < SAFETY, "only these fire instead of {alerts:?}: {firing:?}");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    }

    /// Waits until no alert fires.
    fn until_silent(&mut self) {
        let begun = Instant::now();
        while !self.firing().is_empty() {
            assert!(begun.elapsed() < SAFETY, "still firing: {:?}", self.firing());
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    }
}

fn fired(rules: &[Value], scrapes: &mut Scrapes) -> BTreeSet<String> {
    let mut fired = BTreeSet::new();
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        match (rule["record"].as_str(), rule["alert"].as_str()) {
            (Some(name), None) => scrapes.record(name, expression),
            (None, Some(name)) if !scrapes.eval(expression).is_empty() => drop(fired.insert(name.to_owned())),
            _ => {}
        }
    }
    fired
}

/// Returns whether `ripieno why` explains a server, and what it prints.
fn why(address: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    let output = command.args(["why", "--url", &format!("http://{address}")]).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Sends requests, and returns the status of the last.
fn ask(front: &Process, times: usize) -> u16 {
    let one = |at: usize| infer(front.address("http"), "m", &fp32("x", &[1, 1], &[at as i64])).0;
    (1..times).for_each(|at| {
        one(at);
    });
    one(0)
}

#[test]
fn alerts_of_a_cluster_fire_when_backends_and_schedulers_are_gone() {
    let models = echo("alerts");
    let epoch = format!("file:{}", models.0.join("epoch").display());
    let spare_words = ["scheduler", "--epoch", &epoch, "--listen", ANYWHERE, "--metrics", ANYWHERE];
    let mut first = Process::start(&spare_words);
    let words = [&spare_words[..], &["--schedulers", first.address("listen")]].concat();
    let mut second = Process::start(&words);
    let both = format!("{},{}", first.address("listen"), second.address("listen"));
    let mut device = backend(&models, &both, "emulated");
    let mut front = frontend(&both);
    let mut watched = Watched::new("kubernetes/components/monitoring/rules.yaml");
    [("scheduler", &first), ("scheduler", &second), ("frontend", &front)]
        .into_iter()
        .for_each(|(role, process)| watched.add(role, process));
    until_ready(front.address("http"), true);
    assert_eq!(ask(&front, 10), 200);
    watched.until_silent();

    // Calls that a client gets wrong.
    (0..40).for_each(|_| assert_eq!(call(front.address("http"), "GET /v2/models/unknown", "").0, 404));
    assert!(watched.firing().contains("RipienoCallErrors"));
    watched.until_silent();

    device.kill();
    until_ready(front.address("http"), false);
    assert_eq!(ask(&front, 10), 503);
    watched.until_firing(&["RipienoNoDevice", "RipienoBadRate", "RipienoWantsDevices", "RipienoFrontendsNotReady"]);
    let leads =
        |process: &Process| call(process.address("metrics"), "GET /metrics", "").2.contains("ripieno_leading 1");
    let primary = if leads(&first) { &first } else { &second };
    let begun = Instant::now();
    let told = [
        (primary.address("metrics"), true, "No device serves"),
        (front.address("http"), false, "no scheduler with a device"),
    ];
    for (address, has_recorder, words) in told {
        while !why(address).1.contains(words) {
            assert!(begun.elapsed() < SAFETY, "{words}: {:?}", why(address));
        }
        assert_eq!(why(address).0, has_recorder);
    }
    let _device = backend(&models, &both, "emulated");
    until_ready(front.address("http"), true);
    watched.until_silent();

    second.kill();
    watched.remove(&second);
    watched.until_firing(&["RipienoNoSpare"]);
    first.kill();
    watched.remove(&first);
    until_ready(front.address("http"), false);
    assert_eq!(ask(&front, 10), 503);
    watched.until_firing(&["RipienoNoPrimary", "RipienoNoDevice", "RipienoBadRate", "RipienoFrontendsNotReady"]);
    front.kill();
    watched.remove(&front);
    watched.until_firing(&["RipienoNoPrimary", "RipienoNoDevice", "RipienoFrontendsNotReady"]);
}

#[test]
fn the_alert_of_a_lead_that_flaps_fires_by_pauses_of_schedulers() {
    let folder = Folder::new("flaps");
    let epoch = format!("file:{}", folder.0.join("epoch").display());
    let words = ["scheduler", "--epoch", &epoch, "--listen", ANYWHERE, "--metrics", ANYWHERE];
    let first = Process::start(&words);
    let second = Process::start(&[&words[..], &["--schedulers", first.address("listen")]].concat());
    let mut watched = Watched::new("kubernetes/components/monitoring/rules.yaml");
    [&first, &second].into_iter().for_each(|process| watched.add("scheduler", process));
    let leads =
        |process: &Process| call(process.address("metrics"), "GET /metrics", "").2.contains("ripieno_leading 1");
    let begun = Instant::now();
    while !leads(&first) && !leads(&second) {
        assert!(begun.elapsed() < SAFETY, "a scheduler leads");
    }
    watched.firing();
    let (mut primary, mut spare) = if leads(&first) { (&first, &second) } else { (&second, &first) };
    for pause in 0..4 {
        primary.signal("-STOP");
        while !leads(spare) {
            assert!(begun.elapsed() < SAFETY, "pause {pause}: the spare takes over");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        primary.signal("-CONT");
        while leads(primary) {
            assert!(begun.elapsed() < SAFETY, "pause {pause}: the deposed one follows");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        std::mem::swap(&mut primary, &mut spare);
    }
    assert!(watched.firing().contains("RipienoLeaderFlaps"));
}

#[test]
fn alerts_of_a_server_fire_when_its_device_is_lost() {
    let models = Folder::new("server-alerts");
    models.add("m", Some("double.onnx"), "slo_ms = 5000\nmax_batch = 4\n");
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
    let serve = Process::start(&[&["serve", models.path()], &ports[..]].concat());
    let http = serve.address("http");
    let mut watched = Watched::new("prometheus/rules.yaml");
    watched.add("serve", &serve);
    until_ready(http, true);
    assert_eq!(ask(&serve, 10), 200);
    watched.until_silent();

    // Stands still for a third of the time, as a throttled container does.
    let begun = Instant::now();
    while !watched.firing().contains("RipienoStarved") {
        assert!(begun.elapsed() < SAFETY, "{:?}", watched.firing());
        serve.signal("-STOP");
        let stopped = Instant::now();
        while stopped.elapsed() < STANDSTILL {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        serve.signal("-CONT");
    }
    let page = call(serve.address("metrics"), "GET /ui", "").2;
    assert!(page.contains("The process got no processor"), "{page}");
    watched.until_silent();

    models.add("m", None, "slo_ms = \"soon\"\n");
    assert_ne!(call(http, "POST /v2/repository/models/m/load", "{}").0, 200);
    assert!(watched.firing().contains("RipienoLoadFails"));
    let begun = Instant::now();
    while !why(http).1.contains("not healthy: m serves as it was loaded before") {
        assert!(begun.elapsed() < SAFETY, "{:?}", why(http));
    }
    models.add("m", None, "slo_ms = 5000\nmax_batch = 4\n");
    assert_eq!(call(http, "POST /v2/repository/models/m/load", "{}").0, 200);
    watched.until_silent();

    assert_eq!(call(http, "POST /v2/devices/0/lose", "").0, 200);
    assert_eq!(ask(&serve, 10), 503);
    assert!(watched.firing().contains("RipienoDeviceGone"));
    watched.until_firing(&["RipienoNotReady", "RipienoNoDevice"]);
    assert_eq!(ask(&serve, 10), 503);
    assert!(watched.firing().contains("RipienoLate"), "an outage is bad");
    let page = call(serve.address("metrics"), "GET /ui", "").2;
    assert!(page.contains("No device serves: each request is answered with 503."), "{page}");
    let begun = Instant::now();
    while !watched.scrape().iter().any(|(labels, value)| labels["__name__"] == "ripieno_bad_ratio" && *value > 0.1) {
        assert!(begun.elapsed() < SAFETY, "an outage is bad");
        assert_eq!(ask(&serve, 10), 503);
    }
}

#[test]
fn the_alert_of_a_certificate_fires_when_it_has_expired() {
    let (models, files) = (Folder::new("certificate-alerts"), Folder::new("certificates"));
    models.add("m", Some("double.onnx"), "slo_ms = 5000\nmax_batch = 4\n");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| files.0.join(name).display().to_string());
    let write = |year: i32| {
        let pair = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        fs::write(&key, pair.serialize_pem()).unwrap();
        fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    };
    write(2090);
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-plain-metrics"];
    let serve = Process::start(&[&["serve", models.path()], &ports[..], &tls[..]].concat());
    let mut watched = Watched::new("prometheus/rules.yaml");
    watched.add("serve", &serve);
    watched.until_silent();
    write(2021);
    watched.until_firing(&["RipienoCertificateExpires"]);
    let begun = Instant::now();
    let told = || call(serve.address("metrics"), "GET /v2/health/status", "").2;
    while !told().contains("The TLS certificate has expired") {
        assert!(begun.elapsed() < SAFETY, "{}", told());
    }
}

#[test]
fn the_alert_of_a_release_fires_when_a_backend_finds_no_model_in_new_files() {
    let models = echo("release-alerts");
    let scheduler = Process::start(&["scheduler", "--listen", ANYWHERE, "--metrics", ANYWHERE]);
    let at = scheduler.address("listen");
    let words = ["--scheduler", at, "--device", "emulated", "--poll-s", "1", "--metrics", ANYWHERE];
    let device = Process::start(&[&["backend", models.path()], &words[..]].concat());
    let front = frontend(at);
    let mut watched = Watched::new("kubernetes/components/monitoring/rules.yaml");
    [("scheduler", &scheduler), ("frontend", &front), ("backend", &device)]
        .into_iter()
        .for_each(|(role, process)| watched.add(role, process));
    until_ready(front.address("http"), true);
    assert!(!watched.firing().contains("RipienoLoadFails"));
    let status = || call(device.address("metrics"), "GET /v2/health/status", "").2;
    let told = |words: &str, is: bool| {
        let begun = Instant::now();
        while status().contains(words) != is {
            assert!(begun.elapsed() < SAFETY, "{words} {is}: {}", status());
        }
    };
    fs::create_dir(models.0.join("empty")).unwrap();
    watched.until_firing(&["RipienoLoadFails"]);
    told("empty cannot be served", true);
    assert_eq!(ask(&front, 10), 200, "what serves is not touched");
    fs::remove_dir(models.0.join("empty")).unwrap();
    told("empty cannot be served", false);

    // A backend that begins with other files is not taken, and both sides say so.
    let others = Folder::new("release-others");
    others.add("m", None, &fs::read_to_string(models.0.join("m/model.toml")).unwrap().replace("= 5000", "= 4000"));
    let words = ["--scheduler", at, "--device", "emulated", "--metrics", ANYWHERE];
    let other = Process::start(&[&["backend", others.path()], &words[..]].concat());
    for (process, words) in [(&scheduler, "is refused: its model"), (&other, "No scheduler has this backend")] {
        let begun = Instant::now();
        while !call(process.address("metrics"), "GET /v2/health/status", "").2.contains(words) {
            assert!(begun.elapsed() < SAFETY, "{words}");
        }
    }
}

#[test]
fn the_alert_of_memory_fires_while_slow_clients_hold_it() {
    let models = Folder::new("memory-alerts");
    models.add("m", Some("double.onnx"), "slo_ms = 5000\nmax_batch = 4\n");
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
    let serve = Process::start(&[&["serve", models.path(), "--max-held-mib", "8"], &ports[..]].concat());
    let mut watched = Watched::new("prometheus/rules.yaml");
    watched.add("serve", &serve);
    until_ready(serve.address("http"), true);
    watched.until_silent();
    let half = vec![b' '; 520_000];
    let slow: Vec<TcpStream> = (0..15)
        .map(|_| {
            let mut stream = TcpStream::connect(serve.address("http")).unwrap();
            let head =
                format!("POST /v2/models/m/infer HTTP/1.1\r\nHost: m\r\nContent-Length: {}\r\n\r\n", half.len() + 1);
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&half)).unwrap();
            stream
        })
        .collect();
    watched.until_firing(&["RipienoMemoryFull"]);
    drop(slow);
    watched.until_silent();
}

#[test]
fn the_alert_of_an_engine_fires_when_requests_fail_their_batches() {
    let models = Folder::new("engine-alerts");
    models.add("m", Some("pick_third.onnx"), "slo_ms = 5000\nmax_batch = 8\nlate = \"answer\"\n");
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
    // Requests that come together share a batch, however long this machine takes to send them.
    let waits = ["--policy", "timeout", "--option", "timeout_ms=1000"];
    let serve = Process::start(&[&["serve", models.path()], &waits[..], &ports[..]].concat());
    let http = serve.address("http");
    let mut watched = Watched::new("prometheus/rules.yaml");
    watched.add("serve", &serve);
    until_ready(http, true);
    let config = call(http, "GET /v2/models/m", "").2;
    let config: Value = serde_json::from_str(&config).unwrap();
    let (name, datatype) =
        (config["inputs"][0]["name"].as_str().unwrap(), config["inputs"][0]["datatype"].as_str().unwrap());
    let width =
        config["inputs"][0]["shape"].as_array().unwrap().iter().skip(1).map(|d| d.as_i64().unwrap()).product::<i64>();
    let shape: Vec<i64> =
        config["inputs"][0]["shape"].as_array().unwrap().iter().map(|d| d.as_i64().unwrap().abs()).collect();
    let one = |value: i64| {
        let data = vec![value; usize::try_from(width).unwrap()];
        let inputs = serde_json::json!([{ "name": name, "datatype": datatype, "shape": shape, "data": data }]);
        infer(http, "m", &inputs).0
    };
    watched.firing();
    let begun = Instant::now();
    while !watched.firing().contains("RipienoEngineFails") {
        assert!(begun.elapsed() < SAFETY, "{}", call(serve.address("metrics"), "GET /metrics", "").2);
        std::thread::scope(|scope| {
            for at in 0..12 {
                scope.spawn(move || one(if at % 6 == 5 { 1 << 30 } else { 0 }));
            }
        });
    }
}

/// Python with NumPy, for a model whose speed a file decides.
fn has_python() -> bool {
    let found = Command::new("python3").args(["-c", "import numpy"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: python3 has no numpy");
    }
    found
}

#[test]
fn the_alert_of_a_profile_fires_when_a_model_changes_its_speed() {
    if !has_python() {
        return;
    }
    let models = Folder::new("profile-alerts");
    models.add("m", None, "slo_ms = 5000\nmax_batch = 2\nlate = \"answer\"\n");
    let version = models.0.join("m/1");
    let pace = |seconds: &str| fs::write(version.join("pace"), seconds).unwrap();
    pace("0.002");
    let text = "import pathlib, time\nimport ripieno\nPACE = pathlib.Path(__file__).with_name(\"pace\")\n\
                @ripieno.model(inputs={\"x\": ripieno.f32(1)}, outputs={\"y\": ripieno.f32(1)})\n\
                def serve(x):\n    time.sleep(float(PACE.read_text()))\n    return x * 2\n";
    fs::write(version.join("model.py"), text).unwrap();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
    let variables = [("PYTHONPATH", client.to_str().unwrap())];
    let serve = Process::start_with(&[&["serve", models.path()], &ports[..]].concat(), &variables);
    let mut watched = Watched::new("prometheus/rules.yaml");
    watched.add("serve", &serve);
    until_ready(serve.address("http"), true);
    watched.until_silent();
    let corrections = || {
        let scraped = watched.scrape();
        let counted = scraped.iter().filter(|(labels, _)| labels["__name__"] == "ripieno_profile_corrections_total");
        counted.map(|(_, value)| *value).sum::<f64>()
    };
    let begun = Instant::now();
    for (at, seconds) in ["0.02", "0.002", "0.02"].into_iter().enumerate() {
        pace(seconds);
        while corrections() < (at + 1) as f64 {
            assert!(begun.elapsed() < 2 * SAFETY, "corrected {} times", corrections());
            assert_eq!(infer(serve.address("http"), "m", &fp32("x", &[1, 1], &[1])).0, 200);
        }
    }
    assert!(watched.firing().contains("RipienoProfileOff"));
}

/// A fault that a test cannot cause, as the metric that it shows.
#[test]
fn the_alert_of_a_busy_scheduler_fires_on_the_metric_of_its_fault() {
    let (alert, series) = ("RipienoSchedulerBusy", "ripieno_scheduler_busy_seconds_total");
    let at = |value: f64| page(&format!("{series} {value}\n"), &[("instance", "a"), ("namespace", "here")]);
    let rules = Watched::new("kubernetes/components/monitoring/rules.yaml").rules;
    let fires = |value: f64| {
        fired(&rules, &mut Scrapes { earlier: at(0.0), now: at(value), interval_s: INTERVAL_S }).contains(alert)
    };
    assert!(fires(4.5) && !fires(2.0));
}

#[test]
fn promtool_takes_the_rules() {
    if Command::new("promtool").arg("--version").output().is_err() {
        return;
    }
    for file in ["kubernetes/components/monitoring/rules.yaml", "prometheus/rules.yaml"] {
        let groups = serde_json::json!({ "groups": [{ "name": "ripieno", "rules": Watched::new(file).rules }] });
        let written = Folder::new("promtool");
        let path = written.0.join("rules.json");
        fs::write(&path, groups.to_string()).unwrap();
        let checked = Command::new("promtool").args(["check", "rules"]).arg(&path).output().unwrap();
        assert!(checked.status.success(), "{file}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}
