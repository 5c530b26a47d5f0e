//! `ripieno frontend`, `scheduler` and `backend` as processes: they answer as `serve` does, and
//! each request has one answer, whichever process is killed.

use crate::processes::{ANYWHERE, Folder, Process, SAFETY, backend, call, echo, fp32, frontend, infer, until_ready};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

fn scheduler(listen: &str) -> Process {
    Process::start(&["scheduler", "--listen", listen, "--metrics", ANYWHERE])
}

/// Ends a process as an operator does.
fn end(process: &mut Process) {
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
}

/// Waits until the second backend serves: a frontend is ready with one.
fn until_second_serves(scheduler: &Process) {
    until_serves(scheduler, 1);
}

/// Waits until the device of this number serves.
fn until_serves(scheduler: &Process, device: u16) {
    let (begun, serves) = (Instant::now(), format!("ripieno_device_serving{{device=\"{device}\"}} 1"));
    while !call(scheduler.address("metrics"), "GET /metrics", "").2.contains(&serves) {
        assert!(begun.elapsed() < SAFETY, "the second backend never serves");
    }
}

/// A server, and a cluster with two backends, that serve the same models.
struct SideBySide {
    serve: Process,
    scheduler: Process,
    backends: [Process; 2],
    front: Process,
}

impl SideBySide {
    /// Starts all processes; returns once both answer and each backend serves.
    fn start(models: &Folder) -> SideBySide {
        let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE];
        let serve = Process::start(&[&["serve", models.path()], &ports[..]].concat());
        let scheduler = scheduler(ANYWHERE);
        let backends = [(); 2].map(|()| backend(models, scheduler.address("listen"), "cpu"));
        let front = frontend(scheduler.address("listen"));
        [&serve, &front].into_iter().for_each(|process| until_ready(process.address("http"), true));
        until_second_serves(&scheduler);
        SideBySide { serve, scheduler, backends, front }
    }

    /// Asks both, and returns the answer, which must be the same.
    fn ask<T: PartialEq + Debug>(&self, ask: impl Fn(&str) -> T) -> T {
        let expected = ask(self.serve.address("http"));
        assert_eq!(ask(self.front.address("http")), expected);
        expected
    }

    fn end(mut self) {
        end(&mut self.front);
        self.backends.iter_mut().for_each(end);
        end(&mut self.scheduler);
        end(&mut self.serve);
    }
}

#[test]
fn what_a_cluster_answers_is_what_serve_answers() {
    let models = Folder::new("answers");
    let settings = "slo_ms = 60000\nmax_batch = 4\n";
    models.add("double", Some("double.onnx"), settings);
    models.add("pick_third", Some("pick_third.onnx"), settings);
    let both = SideBySide::start(&models);
    for at in 0..40_i64 {
        // Several widths, which share no batch, and more rows than a batch holds.
        let (rows, width) = (1 + at as usize % 9, 1 + at as usize % 3);
        let row: Vec<i64> = (0..(rows * width) as i64).map(|number| number + at).collect();
        assert_eq!(both.ask(|http| infer(http, "double", &fp32("x", &[rows, width], &row))).0, 200);
        // A value that the model's table does not have is found by the backend.
        both.ask(|http| infer(http, "pick_third", &fp32("g", &[1], &[at])));
    }
    let wrong = [
        ("double", fp32("y", &[1, 1], &[1])),
        ("double", fp32("x", &[1, 2], &[1])),
        ("double", fp32("x", &[1], &[1])),
        ("nothing", fp32("x", &[1, 1], &[1])),
    ];
    for (model, inputs) in wrong {
        let told = both.ask(|http| infer(http, model, &inputs));
        assert!(matches!(told.0, 400 | 404), "{told:?}");
    }
    both.ask(|http| call(http, "GET /v2/models/double", ""));
    assert_eq!(call(both.front.address("http"), "POST /v2/repository/models/missing/unload", "{}").0, 400);
    let numbers = call(both.scheduler.address("metrics"), "GET /metrics", "").2;
    assert!(numbers.contains("model=\"double\""), "{numbers}");
    both.end();
}

#[test]
fn the_page_and_the_recording_of_a_scheduler_have_all_its_sub_clusters() {
    let models = Folder::new("sub-clusters");
    let settings = "slo_ms = 60000\nmax_batch = 4\n";
    models.add("double", Some("double.onnx"), settings);
    models.add("pick_third", Some("pick_third.onnx"), settings);
    let mut scheduler =
        Process::start(&["scheduler", "--listen", ANYWHERE, "--metrics", ANYWHERE, "--sub-clusters", "2"]);
    let mut backends = [(); 2].map(|()| backend(&models, scheduler.address("listen"), "cpu"));
    let mut front = frontend(scheduler.address("listen"));
    let (http, metrics) = (front.address("http"), scheduler.address("metrics"));
    until_ready(http, true);
    let asks = [("double", fp32("x", &[1, 1], &[1])), ("pick_third", fp32("g", &[1], &[1]))];
    [0, 64].into_iter().for_each(|device| until_serves(&scheduler, device));
    for (model, inputs) in &asks {
        assert_eq!(infer(http, model, inputs).0, 200, "{model}");
    }
    let recording = call(metrics, "POST /v2/recording/dump", "").2;
    // The answer is chunked, so a length comes first.
    let first = recording.lines().find(|line| line.starts_with('{')).unwrap();
    let header: Value = serde_json::from_str(first).unwrap();
    assert_eq!((&header["sub_clusters"], &header["shards"]), (&json!(2), &json!(2)));
    let model = |name: &str| recording.contains(&format!("\"name\":\"{name}\""));
    assert!(asks.iter().all(|(name, _)| model(name)), "{recording}");
    let why = Command::new(env!("CARGO_BIN_EXE_ripieno")).args(["why", "--url", &format!("http://{metrics}")]).output();
    let told = String::from_utf8(why.unwrap().stdout).unwrap();
    assert!(told.contains("none of 2 requests"), "{told}");
    for (name, _) in &asks {
        let page = call(metrics, &format!("GET /ui/model?name={name}&version=1"), "").2;
        assert!(page.contains("Latency by batch size"), "{page}");
    }
    end(&mut front);
    backends.iter_mut().for_each(end);
    end(&mut scheduler);
}

/// Copies a folder of the demo models, since profiles are kept beside them.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        match path.is_dir() {
            true if !name.to_string_lossy().starts_with('.') => copy(&path, &to.join(name)),
            true => {}
            false => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

#[test]
fn a_cluster_serves_all_demo_models() {
    let (folder, demos) = (Folder::new("demos"), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models"));
    copy(&demos.join("repository"), &folder.0);
    for model in std::fs::read_dir(&folder.0).unwrap() {
        // A busy machine is late for the demo models' SLOs, so they have more time here.
        let (path, is_slo) = (model.unwrap().path().join("model.toml"), |line: &str| line.starts_with("slo_ms"));
        let toml = std::fs::read_to_string(&path).unwrap();
        assert_eq!(toml.lines().filter(|line| is_slo(line)).count(), 1, "{toml}");
        let lines: Vec<_> = toml.lines().map(|line| if is_slo(line) { "slo_ms = 60000" } else { line }).collect();
        std::fs::write(path, lines.join("\n")).unwrap();
    }
    let both = SideBySide::start(&folder);
    both.ask(|http| -> Value {
        let models: Value = serde_json::from_str(&call(http, "POST /v2/repository/index", "").2).unwrap();
        models.as_array().unwrap().iter().map(|model| model["name"].clone()).collect()
    });
    for name in ["arithmetic", "dates", "digits", "sentiment", "shapes", "shapes-exits"] {
        both.ask(|http| call(http, &format!("GET /v2/models/{name}"), ""));
    }
    for name in ["arithmetic", "dates", "sentiment"] {
        let samples = std::fs::read_to_string(demos.join(format!("samples/{name}.json"))).unwrap();
        let samples: Value = serde_json::from_str(&samples).unwrap();
        for sample in samples["rows"].as_array().unwrap() {
            let (status, _, body) = both.ask(|http| infer(http, name, &sample["inputs"]));
            assert_eq!(status, 200, "{name}: {body}");
        }
    }
    both.end();
}

/// No retryable answers.
const NONE: Vec<String> = Vec::new();

/// The answers so far: the number of right ones, and the bodies of retryable ones.
#[derive(Default)]
struct Counts {
    right: AtomicUsize,
    again: Mutex<Vec<String>>,
    over: AtomicBool,
}

/// Sends requests repeatedly: each has one answer, right or retryable.
fn drive(http: &str, first: i64, counts: &Counts) {
    for number in first.. {
        if counts.over.load(Ordering::Relaxed) {
            return;
        }
        let (status, retry, body) = infer(http, "m", &fp32("x", &[1, 1], &[number]));
        match (status, retry) {
            (200, _) => {
                let answer: Value = serde_json::from_str(&body).unwrap();
                assert_eq!(answer["outputs"][0]["data"][0].as_f64(), Some(number as f64), "{body}");
                counts.right.fetch_add(1, Ordering::Relaxed);
            }
            (503, true) => counts.again.lock().unwrap().push(body),
            _ => panic!("{status}: {body}"),
        }
    }
}

/// Runs `act` under load, once there have been some answers, and waits for as many after it.
/// Returns the bodies of retryable answers.
fn during(http: &str, act: impl FnOnce()) -> Vec<String> {
    const SOME: usize = 100;
    let counts = Counts::default();
    let answers = || counts.right.load(Ordering::Relaxed) + counts.again.lock().unwrap().len();
    let wait = |most: usize| {
        let begun = Instant::now();
        while answers() < most && begun.elapsed() < SAFETY {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|thread| {
            drop(scope.spawn({
                let counts = &counts;
                move || drive(http, thread * 1_000_000, counts)
            }))
        });
        wait(SOME);
        act();
        wait(answers() + SOME);
        counts.over.store(true, Ordering::Relaxed);
    });
    assert!(counts.right.load(Ordering::Relaxed) > 0 && answers() >= 2 * SOME);
    counts.again.into_inner().unwrap()
}

#[test]
fn a_process_that_stands_still_counts_as_gone_until_it_goes_on() {
    let models = echo("stands-still");
    let scheduler = scheduler(ANYWHERE);
    let address = scheduler.address("listen");
    let (_stays, stops) = (backend(&models, address, "emulated"), backend(&models, address, "emulated"));
    let front = frontend(address);
    let http = front.address("http");
    until_ready(http, true);
    until_second_serves(&scheduler);
    assert_eq!(during(http, || stops.signal("-STOP")), NONE, "its requests run elsewhere");
    stops.signal("-CONT");
    during(http, || {
        scheduler.signal("-STOP");
        until_ready(http, false);
    });
    scheduler.signal("-CONT");
    until_ready(http, true);
    // Each backend notices the pause, and connects again, at a time of its own.
    let begun = Instant::now();
    while !during(http, || {}).is_empty() {
        assert!(begun.elapsed() < SAFETY, "some requests are still to be sent again");
    }
}

#[test]
fn whichever_process_is_killed_each_request_has_one_answer() {
    let models = echo("faults");
    let mut first = scheduler(ANYWHERE);
    let address = first.address("listen").to_owned();
    let stays = backend(&models, &address, "emulated");
    let mut dies = backend(&models, &address, "emulated");
    let (front, mut other) = (frontend(&address), frontend(&address));
    let http = front.address("http");
    [http, other.address("http")].into_iter().for_each(|http| until_ready(http, true));

    during(http, || dies.kill());
    until_ready(http, true);

    let again = during(http, || other.kill());
    assert_eq!(again, NONE, "what another frontend does is nothing to this one");

    assert!(!during(http, || first.kill()).is_empty());
    until_ready(http, false);

    let _second = scheduler(&address);
    until_ready(http, true);
    assert_eq!(during(http, || {}), NONE);
    drop(stays);
    until_ready(http, false);
}

#[test]
fn probes_tell_who_may_be_counted_on() {
    let models = echo("probes");
    let epoch = format!("file:{}", models.0.join("epoch").display());
    // A backend waits for its schedulers; it is alive, and not ready.
    // Below the ports that the system assigns: other tests cannot be given it meanwhile.
    let mut below = (20_000 + std::process::id() % 10_000..).map(|port| format!("127.0.0.1:{port}"));
    let unused = below.find(|address| std::net::TcpListener::bind(address).is_ok()).unwrap();
    let device = ["--device", "emulated", "--metrics", ANYWHERE];
    let backend = Process::start(&[&["backend", models.path(), "--scheduler", &unused], &device[..]].concat());
    let probed = backend.address("metrics");
    assert_eq!(call(probed, "GET /v2/health/live", "").0, 200);
    assert_eq!(call(probed, "GET /v2/health/ready", "").0, 503);

    let start = |listen: &str| {
        let ports = ["--listen", listen, "--metrics", ANYWHERE];
        Process::start(&[&["scheduler", "--epoch", &epoch, "--schedulers", &unused], &ports[..]].concat())
    };
    let first = start(&unused);
    until_ready(first.address("metrics"), true);
    until_ready(probed, true);
    // A spare is ready too, although it has no device: otherwise it would count as missing.
    let spare = start(ANYWHERE);
    until_ready(spare.address("metrics"), true);
    let serving = |of: &Process| call(of.address("metrics"), "GET /metrics", "").2.contains("ripieno_device_serving{");
    let begun = Instant::now();
    while !serving(&first) {
        assert!(begun.elapsed() < SAFETY, "the backend never serves");
    }
    assert!(!serving(&spare) && !serving(&backend), "the primary counts the devices");
    let front = frontend(&unused);
    until_ready(front.address("http"), true);
    assert_eq!(infer(front.address("http"), "m", &fp32("x", &[1, 1], &[7])).0, 200);
    let metrics = call(probed, "GET /metrics", "").2;
    let counted = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        value.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse::<f64>().unwrap()
    };
    assert_eq!(counted("ripieno_device_batches_total{device=\"0\"}"), 1.0);
    // Emulated batches end 2.1 ms after they could begin; on a busy machine they begin later.
    assert!(counted("ripieno_device_busy_seconds_total{device=\"0\"}") > 0.0);
    drop(first);
    until_ready(probed, false);
}

#[test]
fn versions_serve_side_by_side_and_new_files_are_noticed() {
    let models = Folder::new("versions");
    models.add("double", Some("double.onnx"), "");
    let version = |number: u32| {
        let folder = models.0.join(format!("double/{number}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(models.0.join("double/1/model.onnx"), folder.join("model.onnx")).unwrap();
    };
    version(2);
    std::fs::remove_file(models.0.join("double/model.toml")).unwrap();
    let policy = "max_batch_size: 4 version_policy { latest { num_versions: 2 } }";
    std::fs::write(models.0.join("double/config.pbtxt"), policy).unwrap();
    let scheduler = scheduler(ANYWHERE);
    let words = ["backend", models.path(), "--scheduler", scheduler.address("listen"), "--device", "cpu"];
    let polling = || Process::start(&[&words[..], &["--poll-s", "1"]].concat());
    let _backends = [polling(), polling()];
    let front = frontend(scheduler.address("listen"));
    let http = front.address("http");
    until_ready(http, true);
    assert_eq!(serving_versions(http, "double"), ["1", "2"]);
    let answered_by = |path: &str| {
        let body = json!({ "inputs": fp32("x", &[1, 2], &[3, 4]) }).to_string();
        let (status, _, text) = call(http, &format!("POST /v2/models/double{path}/infer"), &body);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(status != 200 || answer["outputs"][0]["data"] == json!([6.0, 8.0]), "{text}");
        (status, answer["model_version"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(answered_by("/versions/1"), (200, "1".to_owned()));
    assert_eq!(answered_by("/versions/2"), (200, "2".to_owned()));
    assert_eq!(answered_by(""), (200, "2".to_owned()));
    version(3);
    let begun = Instant::now();
    while serving_versions(http, "double") != ["2", "3"] {
        assert!(begun.elapsed() < SAFETY, "never noticed: {:?}", serving_versions(http, "double"));
        assert_eq!(answered_by("").0, 200);
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    assert_eq!(answered_by(""), (200, "3".to_owned()));
    assert_eq!(answered_by("/versions/1").0, 404);
}

/// Returns the versions of a model that serve.
fn serving_versions(http: &str, model: &str) -> Vec<String> {
    let rows: Value = serde_json::from_str(&call(http, "POST /v2/repository/index", "").2).unwrap();
    let of = |row: &&Value| row["name"] == model && row["state"] == "READY";
    let rows = rows.as_array().unwrap().iter().filter(of);
    rows.map(|row| row["version"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn models_are_released_through_a_frontend_and_clients_notice_nothing() {
    let models = echo("releases");
    let scheduler = scheduler(ANYWHERE);
    let address = scheduler.address("listen");
    let (_first, _second) = (backend(&models, address, "emulated"), backend(&models, address, "emulated"));
    let (front, other) = (frontend(address), frontend(address));
    let http = front.address("http");
    [http, other.address("http")].into_iter().for_each(|http| until_ready(http, true));
    let load = |model: &str| call(http, &format!("POST /v2/repository/models/{model}/load"), "");
    let metrics = |of: &Process| call(of.address("metrics"), "GET /metrics", "").2;
    let released = |what: &str| {
        let again = during(http, || {
            let (status, _, text) = load("m");
            assert_eq!(status, 200, "{what}: {text}");
        });
        assert_eq!(again, NONE, "{what}: requests were refused");
    };

    std::fs::create_dir_all(models.0.join("m/2")).unwrap();
    released("a version");
    assert_eq!(serving_versions(http, "m"), ["2"]);
    let settings = std::fs::read_to_string(models.0.join("m/model.toml")).unwrap();
    std::fs::write(models.0.join("m/model.toml"), settings.replace("slo_ms = 5000", "slo_ms = 4000")).unwrap();
    released("settings");
    assert!(metrics(&front).contains("ripieno_slo_seconds{model=\"m\",version=\"2\"} 4\n"));
    assert_eq!(serving_versions(other.address("http"), "m"), ["2"]);

    std::fs::write(models.0.join("m/model.toml"), "slo_ms = \"soon\"\n").unwrap();
    let (status, _, text) = load("m");
    assert!(status == 400 && text.contains("2 of 2 backends") && text.contains("slo_ms"), "{status} {text}");
    assert_eq!(during(http, || {}), NONE, "what serves goes on");
    let (status, _, text) = load("missing");
    assert!(status == 400 && text.contains("missing"), "{status} {text}");
    assert_eq!(call(http, "POST /v2/repository/models/m/unload", "").0, 200);
    until_ready(http, false);

    assert!(metrics(&scheduler).contains("ripieno_leading 1\n"));
    let said = metrics(&front);
    assert!(
        said.contains("ripieno_leading 0\n") && !said.contains("ripieno_desired_devices"),
        "advice is the leader's"
    );
}

/// Returns the words of a container of the manifests, with a folder of models and free ports.
fn words_of_manifest(file: &str, models: &Folder) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/base").join(file);
    let objects = serde_saphyr::from_multiple::<Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
    let containers = objects.iter().filter_map(|object| object["spec"]["template"]["spec"]["containers"].as_array());
    let args = containers.flatten().find_map(|container| container["args"].as_array()).unwrap();
    let word = |arg: &Value| match arg.as_str().unwrap() {
        "/models" => models.path().to_owned(),
        "$(POD_IP):8011" => String::new(),
        port if port.starts_with(':') => ANYWHERE.to_owned(),
        other => other.to_owned(),
    };
    let words: Vec<String> = args.iter().map(word).collect();
    // A pod's address is known after its port.
    let at = words.iter().position(|word| word == "--advertise");
    let kept = words.iter().enumerate().filter(|(index, _)| at.is_none_or(|at| *index != at && *index != at + 1));
    kept.map(|(_, word)| word.clone()).collect()
}

#[test]
fn a_model_is_released_on_kubernetes_as_documented() {
    let models = echo("kubernetes");
    let epoch = format!("file:{}", models.0.join("epoch").display());
    let start = |file: &str, more: &[&str]| {
        let words = words_of_manifest(file, &models);
        Process::start(&[&words.iter().map(String::as_str).collect::<Vec<_>>()[..], more].concat())
    };
    let scheduler = start("scheduler.yaml", &["--epoch", &epoch]);
    let address = scheduler.address("listen");
    let backend = || start("backend.yaml", &["--scheduler", address, "--device", "emulated"]);
    let (mut first, _second) = (backend(), backend());
    let front = start("frontend.yaml", &["--scheduler", address]);
    let http = front.address("http");
    until_ready(http, true);
    until_second_serves(&scheduler);

    // Change the volume: each backend notices it.
    let mut noticed = false;
    let again = during(http, || {
        std::fs::create_dir_all(models.0.join("m/2")).unwrap();
        std::fs::write(models.0.join("m/2/notes.txt"), "a release is a change of files").unwrap();
        let begun = Instant::now();
        while !noticed && begun.elapsed() < SAFETY {
            noticed = serving_versions(http, "m") == ["2"];
        }
    });
    assert!(noticed, "{:?} serves", serving_versions(http, "m"));
    assert_eq!(again, NONE, "clients noticed the release");

    // A pod that is replaced finds the same files.
    let again = during(http, || end(&mut first));
    assert_eq!(again, NONE, "clients noticed that a backend left");
    let _first = backend();
    let begun = Instant::now();
    while !call(scheduler.address("metrics"), "GET /metrics", "").2.contains("ripieno_serving_devices 2\n") {
        assert!(begun.elapsed() < SAFETY, "the new backend never serves");
    }
}

#[test]
fn a_scheduler_with_an_option_that_its_policy_lacks_ends() {
    let words = ["scheduler", "--listen", ANYWHERE, "--policy", "nexus", "--option", "control_us=5"];
    let output = Command::new(env!("CARGO_BIN_EXE_ripieno")).args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("has no option \"control_us\""), "{error}");
}
