//! `ripieno compare` as a user calls it, on the smallest scenario of the repository.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const EXAMPLE: &str = "../../scenarios/symphony/example.toml";

fn compare(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).arg("compare").args(words).output().unwrap()
}

/// Returns the JSON of a successful run.
fn compared(words: &[&str]) -> Value {
    let output = compare(&[words, &["--format", "json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the error of a failing run.
fn error(words: &[&str]) -> String {
    let output = compare(words);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the measure and its ratio, by row.
fn ratios(comparison: &Value) -> Vec<(String, f64)> {
    let rows = comparison["contests"][0]["results"].as_array().unwrap();
    rows.iter().map(|row| (row["measure"].as_str().unwrap().to_owned(), row["ratio"].as_f64().unwrap())).collect()
}

/// Rounds a ratio to the precision of JSON.
fn close(ratio: f64) -> i64 {
    (ratio * 1e9).round() as i64
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Returns a folder of this test alone.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_policy_is_as_good_as_itself_and_a_loser_is_told() {
    let alone =
        compared(&[EXAMPLE, "--requests", "200", "--policy", "serial", "--against", "serial", "--all-as-served"]);
    let measures: Vec<_> = ratios(&alone).into_iter().map(|(measure, ratio)| (measure, ratio == 1.0)).collect();
    let named = ["goodput", "mean", "mean", "mean", "p99", "p99", "p99", "in-time"];
    assert_eq!(measures, named.map(|measure| (measure.to_owned(), true)));

    // Alone, a request takes 6 of its 12 ms on one of three devices, 500/s; in batches of four they
    // carry twice as many.
    let words = [EXAMPLE, "--requests", "200", "--policy", "serial", "--against", "eager", "--loads", "40,90,150"];
    let loser = compared(&words);
    let contest = &loser["contests"][0];
    assert_eq!((&contest["served_policy"], &contest["contestants"]), (&Value::from("serial"), &Value::from(3)));
    let [(_, goodput), (_, mean), (_, overloaded), .., (_, in_time)] = ratios(&loser)[..] else { panic!("{loser}") };
    let row = &contest["results"][0];
    assert_eq!(close(goodput), close(row["served"].as_f64().unwrap() / row["best"].as_f64().unwrap()));
    assert!(goodput < 0.7 && in_time < 0.7, "{loser}");
    let row = &contest["results"][1];
    assert_eq!(close(mean), close(row["best"].as_f64().unwrap() / row["served"].as_f64().unwrap()));
    assert!(mean > 0.5 && overloaded == 0.0 && contest["results"][2]["served"].is_null(), "{loser}");
    let total = &loser["summary"][2];
    assert!(
        (total["geometric_mean"].as_f64().unwrap() - 0.05).abs() < 1e-9,
        "what failed counts as a twentieth: {total}"
    );
    assert_eq!((&total["minimum"], &total["at_least_098"]), (&Value::from(0.0), &Value::from(0.0)));
}

#[test]
fn the_json_has_the_promised_keys_whatever_the_threads() {
    let words = [EXAMPLE, "--requests", "200", "--against", "timeout", "--against", "cellular", "--loads", "50"];
    let comparison = compared(&[&words[..], &["--jobs", "1"]].concat());
    assert_eq!(comparison, compared(&[&words[..], &["--jobs", "3"]].concat()));
    let expected = ["all_as_served", "contests", "lanes", "loads", "objective", "skipped", "summary"];
    assert_eq!(sorted(keys(&comparison)), expected);
    let contest = &comparison["contests"][0];
    let expected = ["contestants", "refused", "results", "scenario", "served_policy", "unable"];
    assert_eq!(sorted(keys(contest)), expected);
    assert_eq!(contest["served_policy"], "unified objective=latency");
    let expected = ["best", "best_policy", "load", "measure", "offered_rps", "ratio", "served"];
    assert_eq!(sorted(keys(&contest["results"][0])), expected);
    let expected =
        ["at_least_098", "at_least_100", "geometric_mean", "load", "measure", "minimum", "minimum_at", "scenarios"];
    assert_eq!(sorted(keys(&comparison["summary"][0])), expected);
}

fn sorted(mut keys: Vec<&str>) -> Vec<&str> {
    keys.sort_unstable();
    keys
}

#[test]
fn who_cannot_serve_and_what_cannot_be_compared_is_said() {
    let folder = folder("compare-policies");
    let model = "[[model]]\nname = \"m\"\nslo_ms = 20\nalpha_ms = 1\nbeta_ms = 5\n";
    let cells = "[[model]]\nname = \"t\"\nslo_ms = 60\nwalk = \"repeat\"\nlengths = { kind = \"fixed\", value = 3 }\n\
                 [[model.block]]\nname = \"cell\"\nalpha_ms = 0.1\nbeta_ms = 1\n";
    let files = [
        ("cells.toml", format!("rate = 1\nrequests = 300\n{cells}")),
        ("impossible.toml", format!("rate = 1\n{}", model.replace("= 20", "= 3"))),
        ("no-rate.toml", model.to_owned()),
        ("phases.toml", format!("[[phase]]\nduration_s = 1\nrate = 5\n{model}")),
        ("plan.toml", format!("rate = 1\n[plan]\nsub_clusters = 2\n{model}")),
        ("listed.toml", format!("requests_file = \"listed.csv\"\n{model}")),
    ];
    for (name, text) in &files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::write(folder.join("listed.csv"), "arrival_ms,model\n0,m\n").unwrap();
    let of = |name: &str| folder.join(name).display().to_string();
    let words = [&of(""), "--against", "eager", "--against", "cellular", "--measure", "goodput"];
    let comparison = compared(&words);
    let unable = &comparison["contests"][0]["unable"];
    assert_eq!((unable.as_array().unwrap().len(), &unable[0]["policy"]), (1, &Value::from("eager")), "{comparison}");
    let skipped = comparison["skipped"].as_array().unwrap();
    let why = |name: &str| {
        let of = |skipped: &&Value| skipped["scenario"].as_str().unwrap().ends_with(name);
        skipped.iter().find(of).unwrap()["why"].as_str().unwrap()
    };
    assert!(why("impossible.toml").starts_with("model \"m\": slo_ms = 3, but one request alone takes 6 ms"));
    assert!(why("no-rate.toml").starts_with("rate is missing; give"));
    assert!(why("phases.toml").contains("its load changes over the run; give"));
    assert!(why("plan.toml").contains("use ripieno plan"));
    assert!(why("listed.toml").contains("give rate instead"));

    assert!(error(&[&of("phases.toml")]).contains("nothing to compare"));
    assert!(error(&[&of("no-rate.toml")]).contains("no-rate.toml: rate is missing; give"), "a file that was named");
    assert!(error(&[&of("nowhere")]).contains("nowhere: cannot be read"));
    assert!(error(&[EXAMPLE, "--option", "gather=fifo"]).contains("--policy"));
    assert_eq!(compare(&[]).status.code(), Some(2));
    assert_eq!(compare(&[EXAMPLE, "--loads", "0"]).status.code(), Some(2));
}

#[test]
fn random_workloads_are_kept_as_scenario_files() {
    let folder = folder("compare-policies-kept");
    let kept = folder.display().to_string();
    let words = ["--random", "chain", "--seed", "7", "--cases", "1", "--requests", "300", "--against", "eager"];
    let drawn = compared(&[&words[..], &["--measure", "goodput", "--keep", &kept]].concat());
    let file = folder.join("chain-7.toml").display().to_string();
    let read = compared(&[&file, "--requests", "300", "--against", "eager", "--measure", "goodput"]);
    assert_eq!(
        (&drawn["contests"][0]["scenario"], &drawn["summary"][0]["ratio"]),
        (&Value::from("chain-7"), &read["summary"][0]["ratio"])
    );
    assert_eq!(drawn["contests"][0]["results"], read["contests"][0]["results"]);
}
