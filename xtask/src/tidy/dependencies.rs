//! Which crate may know which: a crate exists only where an edge must be forbidden, so here are the
//! allowed ones.

use super::Finding;
use super::source::{Source, lines_with};
use serde_json::Value;

/// A crate of the workspace, without the prefix `ripieno-`, and those it may depend on. Arrows only
/// point down.
const EDGES: [(&str, &[&str]); 24] = [
    ("base", &[]),
    ("model", &["base"]),
    ("calibration", &["base", "model"]),
    ("sched", &["base", "model"]),
    ("policies", &["base", "model", "sched"]),
    ("workload", &["base"]),
    ("report", &["base"]),
    ("sim", &["base", "model", "calibration", "sched", "policies", "workload", "report"]),
    ("onnx", &["base", "model"]),
    ("cuda", &[]),
    ("executor", &["base", "model", "onnx", "cuda"]),
    ("runtime", &["base", "model", "calibration", "sched", "policies", "executor", "report"]),
    ("wire", &["model"]),
    ("text", &["model"]),
    ("repository", &["base", "model", "onnx", "executor", "runtime", "wire", "text"]),
    ("server", &["base", "model", "executor", "runtime", "repository", "wire", "text", "report"]),
    ("planner", &["base", "model"]),
    ("cluster", &["base", "model", "executor", "runtime"]),
    ("bench", &["base", "model", "wire", "report", "workload"]),
    ("reproduce", &["base", "model", "sched", "policies", "workload", "report", "sim", "onnx", "planner"]),
    ("stress", &["base", "model", "sched", "policies", "report", "runtime"]),
    (
        "cli",
        &[
            "base",
            "model",
            "sched",
            "policies",
            "workload",
            "report",
            "sim",
            "onnx",
            "executor",
            "runtime",
            "repository",
            "server",
            "planner",
            "cluster",
            "bench",
            "reproduce",
            "stress",
        ],
    ),
    ("fuzz", &["base", "model", "onnx", "wire", "repository", "cluster", "text"]),
    ("xtask", &[]),
];

/// Further crates that tests may use. The two drivers of the core never see each other, not even
/// here.
const TEST_EDGES: [(&str, &[&str]); 8] = [
    ("base", &["workload"]),
    ("policies", &["workload"]),
    ("onnx", &["workload"]),
    ("executor", &["workload"]),
    ("runtime", &["workload"]),
    ("repository", &["sched", "policies"]),
    ("server", &["sched", "policies"]),
    ("cluster", &["sched", "policies", "workload"]),
];

/// Crates that use the standard library alone; serde as an option is the one exception.
const STD_ONLY: [&str; 5] = ["base", "model", "calibration", "sched", "policies"];
/// Libraries, by how their names begin, and the crates in which alone they may appear: async
/// runtimes, and what speaks HTTP.
const CONFINED: [(&[&str], &[&str]); 2] = [
    (&["tokio", "async-std", "smol"], &["server", "cluster", "bench", "cli"]),
    (&["hyper", "tonic"], &["wire", "server", "cluster", "bench", "cli"]),
];

/// Checks the manifests, as cargo reads them.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(check_package).collect()
}

/// Checks that each edge of the table is in a manifest, and that the map in ARCHITECTURE.md shows
/// the same edges.
pub(super) fn check_table(metadata: &Value, sources: &[Source]) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut findings = Vec::new();
    for package in packages {
        let name = short(package["name"].as_str().unwrap_or_default());
        let Some((_, allowed)) = EDGES.iter().find(|(row, _)| *row == name) else { continue };
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let normal = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        let used: Vec<&str> = normal.map(|dependency| short(dependency["name"].as_str().unwrap_or_default())).collect();
        let unused = allowed.iter().filter(|other| !used.contains(other));
        findings.extend(unused.map(|other| {
            let message = format!("the table of tidy allows {name} → {other}, which no manifest has: remove it");
            Finding { path: manifest(name), line: 1, rule: "dependency", message }
        }));
    }
    let Some(map) = sources.iter().find(|source| source.path == "ARCHITECTURE.md") else { return findings };
    for (name, allowed) in EDGES {
        let row = format!("| `{name}` |");
        let shown = map.text.lines().zip(1..).find(|(line, _)| line.starts_with(&row));
        let Some((line, number)) = shown else {
            findings.push(map.finding(1, "dependency", format!("the map has no row that begins with {row}")));
            continue;
        };
        let last = line.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
        let mut edges: Vec<&str> =
            last.split(',').map(str::trim).filter(|edge| !edge.is_empty() && *edge != "-").collect();
        let mut expected = allowed.to_vec();
        edges.sort_unstable();
        expected.sort_unstable();
        // Programs at the top use most crates; a list of them would tell nothing.
        if edges != expected && last.trim() != "most crates" {
            let message = format!("`{name}` depends on: {}", allowed.join(", "));
            findings.push(map.finding(number, "dependency", message));
        }
    }
    findings
}

fn check_package(package: &Value) -> Vec<Finding> {
    let name = short(package["name"].as_str().unwrap_or_default());
    let report = |message: String| Finding { path: manifest(name), line: 1, rule: "dependency", message };
    let Some((_, allowed)) = EDGES.iter().find(|(row, _)| *row == name) else {
        return vec![report(format!("{name} has no row in the dependency table of tidy; see ARCHITECTURE.md"))];
    };
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    dependencies.iter().filter_map(|dependency| breach(name, allowed, dependency)).map(report).collect()
}

/// Says what is wrong with one dependency, if anything is.
fn breach(name: &str, allowed: &[&str], dependency: &Value) -> Option<String> {
    let full = dependency["name"].as_str().unwrap_or_default();
    let other = short(full);
    let in_tests = dependency["kind"] == "dev";
    if EDGES.iter().any(|(row, _)| *row == other) {
        let for_tests = TEST_EDGES.iter().find(|(row, _)| *row == name).map_or(&[][..], |(_, others)| others);
        let fine = other == name || allowed.contains(&other) || in_tests && for_tests.contains(&other);
        let place = if in_tests { " (in tests)" } else { "" };
        return (!fine).then(|| format!("forbidden edge {name} → {other}{place}"));
    }
    if in_tests {
        return None;
    }
    let optional_serde = full == "serde" && dependency["optional"] == true;
    if STD_ONLY.contains(&name) && !optional_serde {
        return Some(format!("{name} uses the standard library only (serde if optional); it depends on {full}"));
    }
    let begins = |names: &[&str]| names.iter().any(|begin| full.starts_with(begin));
    let place = CONFINED.iter().find(|(names, crates)| begins(names) && !crates.contains(&name));
    place.map(|(_, crates)| format!("{full} may appear in {} only", crates.join(", ")))
}

/// Checks that what a manifest declares is used: by name in the crate's code, for tests in any of
/// its files; and what the workspace declares, in some manifest.
pub(super) fn check_use(metadata: &Value, sources: &[Source]) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let in_crates = packages.iter().flat_map(|package| unused(package, sources));
    in_crates.chain(unused_in_workspace(sources)).collect()
}

fn unused(package: &Value, sources: &[Source]) -> Vec<Finding> {
    let name = short(package["name"].as_str().unwrap_or_default());
    let path = manifest(name);
    let folder = path.trim_end_matches("Cargo.toml");
    let own: Vec<&Source> = sources.iter().filter(|source| source.path.starts_with(folder)).collect();
    let is_used = |dependency: &&Value| {
        let called =
            dependency["rename"].as_str().or(dependency["name"].as_str()).unwrap_or_default().replace('-', "_");
        let code = |source: &'_ Source| match dependency["kind"] == "dev" {
            true => lines_with(&source.code, &called).next().is_some(),
            false => lines_with(source.code_without_tests(), &called).next().is_some(),
        };
        dependency["optional"] == true || own.iter().any(|source| code(source))
    };
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let finding = |dependency: &Value| {
        let message = format!("{name} does not use {}: remove it", dependency["name"].as_str().unwrap_or_default());
        Finding { path: path.clone(), line: 1, rule: "unused-dependency", message }
    };
    dependencies.iter().filter(|dependency| !is_used(dependency)).map(finding).collect()
}

fn unused_in_workspace(sources: &[Source]) -> Vec<Finding> {
    let Some(root) = sources.iter().find(|source| source.path == "Cargo.toml") else { return Vec::new() };
    let table = root.text.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let table = table.split("\n[").next().unwrap_or_default();
    let declared = table.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim());
    let manifests: Vec<&Source> = sources.iter().filter(|source| source.path.ends_with("/Cargo.toml")).collect();
    let is_used = |name: &str| {
        let short = format!("{name}.workspace");
        let long = format!("{name} = {{ workspace");
        let uses = |line: &str| line.starts_with(&short) || line.starts_with(&long);
        manifests.iter().any(|manifest| manifest.text.lines().any(uses))
    };
    let unused = declared.filter(|name| !is_used(name));
    unused.map(|name| root.finding(1, "unused-dependency", format!("no crate uses {name}: remove it"))).collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("ripieno-").unwrap_or(name)
}

fn manifest(name: &str) -> String {
    match name {
        "fuzz" | "xtask" => format!("{name}/Cargo.toml"),
        _ => format!("crates/{name}/Cargo.toml"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(name: &str, dependency: Value) -> Vec<String> {
        let metadata = json!({ "packages": [{ "name": name, "dependencies": [dependency] }] });
        check(&metadata).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_forbidden_edge_is_named() {
        let found = messages("ripieno-sim", json!({ "name": "ripieno-runtime", "kind": null }));
        assert_eq!(found, ["forbidden edge sim → runtime"]);
        let found = messages("ripieno-runtime", json!({ "name": "ripieno-sim", "kind": "dev" }));
        assert_eq!(found, ["forbidden edge runtime → sim (in tests)"]);
        assert!(!messages("ripieno-executor", json!({ "name": "ripieno-sched", "kind": null })).is_empty());
    }

    #[test]
    fn an_allowed_edge_is_not() {
        assert!(messages("ripieno-sim", json!({ "name": "ripieno-sched", "kind": null })).is_empty());
        assert!(messages("ripieno-server", json!({ "name": "ripieno-sched", "kind": "dev" })).is_empty());
        assert!(!messages("ripieno-server", json!({ "name": "ripieno-sched", "kind": null })).is_empty());
    }

    #[test]
    fn the_core_uses_std_only() {
        assert!(!messages("ripieno-sched", json!({ "name": "rand", "kind": null })).is_empty());
        assert!(!messages("ripieno-base", json!({ "name": "serde", "kind": null, "optional": false })).is_empty());
        assert!(messages("ripieno-base", json!({ "name": "serde", "kind": null, "optional": true })).is_empty());
        assert!(messages("ripieno-sched", json!({ "name": "proptest", "kind": "dev" })).is_empty());
    }

    #[test]
    fn async_stays_at_the_edge() {
        assert!(!messages("ripieno-runtime", json!({ "name": "tokio", "kind": null })).is_empty());
        assert!(!messages("ripieno-wire", json!({ "name": "tokio-stream", "kind": null })).is_empty());
        assert!(messages("ripieno-server", json!({ "name": "tokio", "kind": null })).is_empty());
        assert!(!messages("ripieno-repository", json!({ "name": "hyper-util", "kind": null })).is_empty());
        assert!(messages("ripieno-wire", json!({ "name": "tonic", "kind": null })).is_empty());
    }

    #[test]
    fn a_dependency_that_no_code_names_is_found() {
        let found = |kind: Value, code: &str| {
            let dependency = json!({ "name": "rand-core", "kind": kind });
            let metadata = json!({ "packages": [{ "name": "ripieno-sim", "dependencies": [dependency] }] });
            check_use(&metadata, &[Source::new("crates/sim/src/a.rs", Some(code.into()))]).len()
        };
        let in_tests = "#[cfg(test)]\nmod tests {\n    use rand_core::Rng;\n}\n";
        assert_eq!((found(json!(null), "use rand_core::Rng;\n"), found(json!(null), "// rand_core\n")), (0, 1));
        assert_eq!((found(json!(null), in_tests), found(json!("dev"), in_tests)), (1, 0));
    }

    #[test]
    fn what_only_the_workspace_declares_is_found() {
        let root = "[workspace.dependencies]\naxum = \"1\"\nrand = { version = \"1\" }\nserde = \"1\"\n\n[profile.dev]\nopt-level = 1\n";
        let own = "[dependencies]\nrand.workspace = true\nserde = { workspace = true, optional = true }\n";
        let sources = [("Cargo.toml", root), ("crates/a/Cargo.toml", own)]
            .map(|(path, text)| Source::new(path, Some(text.into())));
        let found: Vec<_> = unused_in_workspace(&sources).into_iter().map(|finding| finding.message).collect();
        assert_eq!(found, ["no crate uses axum: remove it"]);
    }

    #[test]
    fn edges_that_do_not_exist_and_a_map_that_differs_are_found() {
        let found = |dependencies: &[&str], map: &str| {
            let dependencies: Vec<_> =
                dependencies.iter().map(|name| json!({ "name": format!("ripieno-{name}"), "kind": null })).collect();
            let metadata = json!({ "packages": [{ "name": "ripieno-sched", "dependencies": dependencies }] });
            let findings = check_table(&metadata, &[Source::new("ARCHITECTURE.md", Some(map.into()))]);
            findings.into_iter().filter(|finding| finding.message.contains("sched")).count()
        };
        let map = "| `sched` | the policies | base, model |\n| `cli` | the binary | most crates |\n";
        let others = found(&["base", "model"], map);
        assert_eq!(found(&["base"], map), others + 1);
        assert_eq!(found(&["base", "model"], "| `sched` | the policies | base |\n"), others + 1);
    }

    #[test]
    fn an_unknown_crate_needs_a_row() {
        assert!(messages("ripieno-novel", json!({ "name": "serde", "kind": null }))[0].contains("no row"));
    }

    #[test]
    fn the_table_has_no_cycles_and_keeps_the_drivers_apart() {
        let row = |name: &str| EDGES.iter().find(|(row, _)| *row == name).unwrap().1;
        for (position, (name, below)) in EDGES.iter().enumerate() {
            let first = |other: &str| EDGES.iter().position(|(row, _)| *row == other).unwrap();
            assert!(below.iter().all(|other| first(other) < position), "{name} points up");
        }
        assert!(!row("sim").contains(&"runtime") && !row("runtime").contains(&"sim"));
    }
}
