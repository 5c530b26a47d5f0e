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
fn a_policy_is_as_good_as_itself_and_a_loser_is_reported() {
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
    let expected =
        ["all_as_served", "contests", "judgement", "lanes", "loads", "objective", "seed", "skipped", "summary"];
    assert_eq!(sorted(keys(&comparison)), expected);
    let contest = &comparison["contests"][0];
    let expected = ["contestants", "kind", "refused", "results", "scenario", "served_policy", "unable", "world"];
    assert_eq!(sorted(keys(contest)), expected);
    assert_eq!(contest["served_policy"], "unified objective=latency");
    let expected = ["best", "best_policy", "load", "measure", "offered_rps", "ratio", "served"];
    assert_eq!(sorted(keys(&contest["results"][0])), expected);
    let expected =
        ["at_least_098", "at_least_100", "geometric_mean", "load", "measure", "minimum", "minimum_at", "scenarios"];
    assert_eq!(sorted(keys(&comparison["summary"][0])), expected);
    let expected = ["at_least_098", "geometric_mean", "kind", "minimum", "minimum_at", "p99", "points", "world"];
    assert_eq!(sorted(keys(&comparison["judgement"][0])), expected);
    assert!(comparison["seed"].is_null(), "nothing was drawn");
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

/// A short judgement of random workloads, exact and late, and of recordings.
const JUDGED: &[&str] = &[
    "--random",
    "whole,cells",
    "--worlds",
    "exact,late",
    "tests/recordings",
    "--seed",
    "100",
    "--cases",
    "2",
    "--requests",
    "2000",
    "--against",
    "eager",
    "--against",
    "cellular",
    "--measure",
    "in-time",
    "--loads",
    "110",
    "--floor",
    "0.6",
];

#[test]
fn the_judge_has_a_line_for_each_kind_and_world() {
    let judged = compared(JUDGED);
    let line = |line: &Value| (line["kind"].as_str().unwrap().to_owned(), line["world"].as_str().unwrap().to_owned());
    let lines: Vec<_> = judged["judgement"].as_array().unwrap().iter().map(line).collect();
    let expected = [
        ("cells", "replayed"),
        ("padded", "replayed"),
        ("whole", "replayed"),
        ("whole", "exact"),
        ("whole", "late"),
        ("cells", "exact"),
        ("cells", "late"),
    ];
    assert_eq!(lines, expected.map(|(kind, world)| (kind.to_owned(), world.to_owned())));
    assert_eq!(judged["seed"], 100);
    let names: Vec<_> = judged["contests"].as_array().unwrap().iter().skip(3).map(|it| &it["scenario"]).collect();
    assert_eq!(names[..4], ["whole-100", "whole-101", "whole-100-late", "whole-101-late"]);
    // A line is the geometric mean of its own ratios.
    let whole = |it: &&Value| it["kind"] == "whole" && it["world"] == "late";
    let ratios = judged["contests"].as_array().unwrap().iter().filter(whole);
    let ratios = ratios.flat_map(|it| it["results"].as_array().unwrap()).map(|row| row["ratio"].as_f64().unwrap());
    let ratios: Vec<_> = ratios.collect();
    let mean = (ratios.iter().map(|ratio| ratio.max(0.05).ln()).sum::<f64>() / ratios.len() as f64).exp();
    assert_eq!(close(mean), close(judged["judgement"][4]["geometric_mean"].as_f64().unwrap()));
}

#[test]
fn a_bad_policy_is_below_the_floor() {
    let output = compare(&[JUDGED, &["--policy", "serial"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let said = error.lines().last().unwrap();
    assert!(said.contains("below the floor of 0.6") && said.contains("whole (exact) 0."), "{said}");
    assert!(error.contains("random workloads from seed 100; --seed 100 repeats them"), "{error}");
}

#[test]
fn seeds_are_fresh_unless_one_is_given() {
    let words = ["--random", "whole", "--cases", "1", "--requests", "300", "--against", "serial", "--measure", "mean"];
    let drawn = compared(&words);
    let seed = drawn["seed"].as_u64().unwrap().to_string();
    assert_eq!(drawn, compared(&[&words[..], &["--seed", &seed]].concat()));
    assert!(seed.parse::<u64>().unwrap() > 1_000, "{seed}: of the clock");
}
