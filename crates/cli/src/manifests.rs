//! Checks of the manifests under `deploy/` against the program that they start: each flag and
//! variable exists, each port is listened on, and no container has more rights than needed.
//! `tests/python/test_manifests.py`, which has the schemas, checks that Kubernetes knows their
//! fields.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The commands of containers: the roles of a cluster, and a server alone.
const ROLES: [&str; 4] = ["scheduler", "backend", "frontend", "serve"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Returns all objects of all files.
fn objects() -> Vec<Value> {
    let (mut folders, mut found) = (vec![deploy().join("kubernetes")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = fs::read_to_string(&path).unwrap();
                let read = serde_saphyr::from_multiple::<Value>(&text);
                found.extend(read.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
            }
        }
    }
    assert!(found.len() > 20, "{} objects", found.len());
    found
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = of_kind(objects, kind).into_iter().find(|object| object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Returns the pod templates, by the kind of their owner.
fn pods(objects: &[Value]) -> Vec<(&str, &Value)> {
    objects
        .iter()
        .filter_map(|object| match text(&object["kind"]) {
            "StatefulSet" | "Deployment" => {
                Some((text(&object["metadata"]["name"]), &object["spec"]["template"]["spec"]))
            }
            "ClusterServingRuntime" => Some(("kserve", &object["spec"])),
            _ => None,
        })
        .collect()
}

/// Returns the containers of our image.
fn containers(objects: &[Value]) -> Vec<(&str, &Value)> {
    let all =
        pods(objects).into_iter().flat_map(|(name, pod)| list(&pod["containers"]).iter().map(move |one| (name, one)));
    all.filter(|(_, container)| container["image"] == "ripieno").collect()
}

/// Returns its arguments, with an address where Kubernetes would substitute one.
fn words(container: &Value) -> Vec<String> {
    list(&container["args"]).iter().map(|word| text(word).replace("$(POD_IP)", "10.0.0.7")).collect()
}

/// Returns the variables that all roles share.
fn shared(objects: &[Value]) -> Vec<(&str, &str)> {
    let all = [of_kind(objects, "Kustomization"), of_kind(objects, "Component")].concat();
    let generators = all.into_iter().flat_map(|one| list(&one["configMapGenerator"]));
    let literals: Vec<_> = generators.flat_map(|one| list(&one["literals"])).map(text).collect();
    literals.into_iter().map(|literal| literal.split_once('=').unwrap()).collect()
}

fn after<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

#[test]
fn every_command_is_one_of_the_program() {
    let objects = objects();
    let variables = shared(&objects);
    let mut roles = BTreeSet::new();
    let mut known = BTreeSet::new();
    for (name, container) in containers(&objects) {
        let mut words = words(container);
        let role = words[0].clone();
        let command = crate::command();
        let command = command.find_subcommand(&role).unwrap_or_else(|| panic!("{name}: no command {role}"));
        if !list(&container["envFrom"]).is_empty() {
            for (variable, value) in &variables {
                let flag = command.get_arguments().find(|arg| arg.get_env().is_some_and(|env| env == *variable));
                if let Some(flag) = flag.and_then(|arg| arg.get_long()) {
                    known.insert(*variable);
                    words.extend([format!("--{flag}"), (*value).to_owned()]);
                }
            }
        }
        let whole = [vec!["ripieno".to_owned()], words.clone()].concat();
        crate::command().try_get_matches_from(&whole).unwrap_or_else(|error| panic!("{name}: {error}"));
        roles.insert(role);
    }
    assert_eq!(roles, ROLES.map(str::to_owned).into());
    assert_eq!(known, variables.iter().map(|(name, _)| *name).collect(), "a variable that is no flag");
}

#[test]
fn the_schedulers_that_are_named_are_those_that_run() {
    let objects = objects();
    let set = named(&objects, "StatefulSet", "ripieno-scheduler");
    let service = text(&set["spec"]["serviceName"]);
    assert_eq!(named(&objects, "Service", service)["spec"]["clusterIP"], "None", "names of pods");
    let port = after(&words(&set["spec"]["template"]["spec"]["containers"][0]), "--listen").unwrap().to_owned();
    let replicas = set["spec"]["replicas"].as_u64().unwrap();
    let expected: Vec<String> = (0..replicas).map(|at| format!("ripieno-scheduler-{at}.{service}{port}")).collect();
    for (variable, value) in shared(&objects) {
        if ["RIPIENO_SCHEDULER", "RIPIENO_SCHEDULERS"].contains(&variable) {
            assert_eq!(value, expected.join(","), "{variable}");
        }
    }
    let metrics = after(&words(&set["spec"]["template"]["spec"]["containers"][0]), "--metrics").unwrap().to_owned();
    let scaler = named(&objects, "ScaledObject", "ripieno-backend");
    let asked = list(&scaler["spec"]["triggers"]).iter().map(|trigger| text(&trigger["metadata"]["scalerAddress"]));
    let pods = expected.iter().map(|one| one.replace(&port, &format!(".ripieno{metrics}")));
    assert_eq!(asked.collect::<Vec<_>>(), pods.collect::<Vec<_>>(), "each scheduler is asked");
    let runtime = named(&objects, "ClusterServingRuntime", "ripieno");
    let elsewhere = words(&runtime["spec"]["containers"][0]);
    let expected: Vec<String> = expected.iter().map(|one| one.replace(&port, &format!(".ripieno{port}"))).collect();
    assert_eq!(after(&elsewhere, "--scheduler"), Some(expected.join(",").as_str()), "from other namespaces");
}

#[test]
fn ports_have_a_listener_and_may_be_reached() {
    let objects = objects();
    for (name, container) in containers(&objects) {
        let words = words(container);
        let flags = ["--http", "--grpc", "--metrics", "--data", "--listen"];
        let listens: BTreeSet<u64> = flags
            .iter()
            .filter_map(|flag| after(&words, flag))
            .map(|address| address.trim_start_matches(':').parse().unwrap())
            .collect();
        let ports = list(&container["ports"]);
        let declared: BTreeSet<u64> = ports.iter().map(|port| port["containerPort"].as_u64().unwrap()).collect();
        // KServe supports one port per container, and frontends are reachable at the others all the
        // same.
        let kserve = name == "kserve";
        assert!(if kserve { declared.is_subset(&listens) } else { declared == listens }, "{name}: {declared:?}");
        for (probe, path) in [("startupProbe", "live"), ("readinessProbe", "ready"), ("livenessProbe", "live")] {
            if kserve && container[probe].is_null() {
                continue;
            }
            assert_eq!(container[probe]["httpGet"]["path"], format!("/v2/health/{path}"), "{name}: {probe}");
            let port = &container[probe]["httpGet"]["port"];
            let number = ports.iter().find(|one| &one["name"] == port).map_or(port, |one| &one["containerPort"]);
            let metrics = after(&words, "--metrics").unwrap();
            assert_eq!(format!(":{number}"), metrics, "{name}: {probe}");
        }
        if !kserve {
            let allowed: BTreeSet<u64> =
                list(&named(&objects, "NetworkPolicy", &format!("ripieno-{}", words[0]))["spec"]["ingress"])
                    .iter()
                    .flat_map(|rule| list(&rule["ports"]))
                    .map(|port| port["port"].as_u64().unwrap())
                    .collect();
            assert_eq!(allowed, listens, "{name}: network policy");
        }
    }
}

/// The paths of probes and of Prometheus are those that the server answers.
#[test]
fn paths_are_those_of_the_server() {
    let source = include_str!("../../server/src/protocol/http/path.rs");
    for word in ["live", "ready"] {
        let known = format!("\"health\", \"{word}\"");
        assert!(source.contains(&known), "/v2/health/{word} is no path of the server: {known}");
    }
    let objects = objects();
    let monitors = [("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")];
    for (kind, endpoints) in monitors {
        for endpoint in of_kind(&objects, kind).iter().flat_map(|monitor| list(&monitor["spec"][endpoints])) {
            assert_eq!((&endpoint["path"], &endpoint["port"]), (&"/metrics".into(), &"metrics".into()), "{kind}");
        }
    }
}

/// A file or folder that a flag or variable names is on a volume of its pod.
#[test]
fn files_that_are_named_are_mounted() {
    let objects = objects();
    for (name, container) in containers(&objects).into_iter().filter(|(name, _)| *name != "kserve") {
        let mounts: Vec<&str> =
            list(&container["volumeMounts"]).iter().map(|mount| text(&mount["mountPath"])).collect();
        let own = list(&container["env"]).iter().filter_map(|variable| variable["value"].as_str()).map(str::to_owned);
        for path in words(container).into_iter().chain(own).filter(|word| word.starts_with('/')) {
            assert!(mounts.iter().any(|mount| path.starts_with(mount)), "{name}: nothing is mounted at {path}");
        }
    }
    // The component for TLS between roles mounts what its variables name.
    let patched =
        of_kind(&objects, "Component").into_iter().find(|one| one["configMapGenerator"][0]["behavior"] == "merge");
    let patched = patched.expect("there is a component with variables of its own");
    let files = list(&patched["configMapGenerator"][0]["literals"]);
    for (variable, file) in files.iter().map(|literal| text(literal).split_once('=').unwrap()) {
        assert!(file.starts_with("/peer/"), "{variable}");
    }
    let mounted = list(&patched["patches"]).iter().map(|patch| text(&patch["patch"]));
    assert_eq!(mounted.filter(|patch| patch.contains("mountPath: /peer,")).count(), 3, "each role");
}

#[test]
fn kserve_finds_its_ports_and_its_folder() {
    let objects = objects();
    let runtime = named(&objects, "ClusterServingRuntime", "ripieno-serve");
    let words = words(&runtime["spec"]["containers"][0]);
    assert_eq!(words[..2], ["serve", "/mnt/models"]);
    assert_eq!((after(&words, "--http"), after(&words, "--grpc")), (Some(":8080"), Some(":9000")));
}

#[test]
fn no_pod_has_rights_that_it_does_not_need() {
    let objects = objects();
    for (name, pod) in pods(&objects) {
        for container in list(&pod["containers"]) {
            let own = &container["securityContext"];
            let either = |field: &str| if own[field].is_null() { &pod["securityContext"][field] } else { &own[field] };
            assert_eq!(either("runAsNonRoot"), true, "{name}");
            assert!(either("runAsUser").as_u64().is_some_and(|user| user > 0), "{name}");
            assert_eq!(either("seccompProfile")["type"], "RuntimeDefault", "{name}");
            assert_eq!(own["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(own["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(own["capabilities"]["drop"][0], "ALL", "{name}");
            assert!(!container["resources"]["limits"]["memory"].is_null(), "{name}: memory is not bounded");
        }
        if name != "kserve" {
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            assert_eq!(pod["enableServiceLinks"], false, "{name}: variables of services begin with RIPIENO_, too");
        }
    }
}

#[test]
fn a_pod_has_time_to_drain() {
    let objects = objects();
    for (name, pod) in pods(&objects).into_iter().filter(|(name, _)| *name != "kserve" && *name != "ripieno-etcd") {
        let container = &pod["containers"][0];
        let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
        // The default of the flag.
        let drain = after(&words(container), "--drain-timeout-s").map_or(30, |span| span.parse().unwrap());
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace > pause + drain + 2, "{name}: {grace} s for {pause} s and {drain} s");
    }
}

#[test]
fn whatever_runs_has_a_disruption_budget() {
    let objects = objects();
    for (name, _) in pods(&objects).into_iter().filter(|(name, _)| *name != "kserve") {
        let budget = &named(&objects, "PodDisruptionBudget", name)["spec"];
        assert_eq!(budget["selector"]["matchLabels"]["app.kubernetes.io/name"], name);
    }
}

#[test]
fn rules_name_metrics_that_there_are() {
    let source = include_str!("../../server/src/observe/metrics.rs");
    let objects = objects();
    let rules = of_kind(&objects, "PrometheusRule");
    let rules = rules.iter().flat_map(|one| list(&one["spec"]["groups"])).flat_map(|group| list(&group["rules"]));
    let mut metrics: BTreeSet<&str> = BTreeSet::new();
    for rule in rules {
        let expression = text(&rule["expr"]);
        let words = expression.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        metrics.extend(words.filter(|word| word.starts_with("ripieno_") && *word != "ripieno_dev_role"));
    }
    assert!(metrics.len() >= 5, "{metrics:?}");
    for autoscaler in of_kind(&objects, "HorizontalPodAutoscaler") {
        metrics.extend(
            list(&autoscaler["spec"]["metrics"]).iter().filter_map(|it| it["external"]["metric"]["name"].as_str()),
        );
    }
    for metric in metrics {
        assert!(source.contains(&format!("\"{metric}\"")), "{metric} is no metric");
    }
}

#[test]
fn images_run_the_program_with_onnx_runtime_and_without_root() {
    for file in ["Containerfile", "Containerfile.cuda"] {
        let text = fs::read_to_string(deploy().join(file)).unwrap();
        assert!(text.contains("\nENTRYPOINT [\"/usr/local/bin/ripieno\"]\n"), "args are words of the program");
        assert!(text.contains("\nUSER 65532:65532\n"));
        let library = text.lines().find_map(|line| line.strip_prefix("ENV ORT_DYLIB_PATH=")).unwrap();
        let copied = text.lines().find(|line| line.starts_with("COPY --from=onnxruntime ")).unwrap();
        assert!(library.starts_with(copied.rsplit(' ').next().unwrap()), "{file}: {library} is not copied");
        for word in ["CMD", "HEALTHCHECK"] {
            let line = text.lines().find(|line| line.starts_with(&format!("{word} "))).unwrap();
            let words: Vec<String> = serde_json::from_str(&line[line.find('[').unwrap()..]).unwrap();
            let own = words.into_iter().filter(|word| word != "/usr/local/bin/ripieno");
            let whole: Vec<String> = ["ripieno".to_owned()].into_iter().chain(own).collect();
            crate::command().try_get_matches_from(&whole).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
        let rust = text.lines().find_map(|line| line.strip_prefix("FROM docker.io/library/rust:")).unwrap();
        let version = env!("CARGO_PKG_RUST_VERSION");
        assert!(rust.starts_with(&format!("{version}-")), "the toolchain of the manifest is {version}");
    }
}

/// A backend with a GPU has the image for it, the resource, and the flag.
#[test]
fn a_gpu_is_asked_for_and_used() {
    let objects = objects();
    let overlay = of_kind(&objects, "Kustomization").into_iter().find(|one| !one["patches"].is_null()).unwrap();
    let patch = text(&list(&overlay["patches"])[0]["patch"]);
    for part in ["ripieno-cuda", "--device=cuda:0", "nvidia.com~1gpu"] {
        assert!(patch.contains(part), "{part}: {patch}");
    }
    let names = list(&overlay["images"]).iter().map(|image| text(&image["name"]));
    assert_eq!(names.collect::<Vec<_>>(), ["ripieno", "ripieno-cuda"]);
    let words = ["ripieno", "backend", "/models", "--device=cuda:0"];
    crate::command().try_get_matches_from(words).unwrap();
}

/// The threads of an engine follow the pod's request, by a variable of the program.
#[test]
fn engines_have_as_many_threads_as_the_pod_has_processors() {
    let objects = objects();
    for (name, container) in containers(&objects) {
        let words = words(container);
        if !["serve", "backend"].contains(&words[0].as_str()) {
            continue;
        }
        let threads = list(&container["env"]).iter().find(|variable| variable["name"] == "RIPIENO_THREADS");
        assert_eq!(threads.unwrap()["valueFrom"]["resourceFieldRef"]["resource"], "requests.cpu", "{name}");
        let command = crate::command();
        let mut flags = command.find_subcommand(&words[0]).unwrap().get_arguments();
        assert!(flags.any(|flag| flag.get_env().is_some_and(|env| env == "RIPIENO_THREADS")), "{name}");
    }
}
