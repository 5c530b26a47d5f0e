use super::workload::{case, deferred_window, from_zoo, load, resnets, zoo};
use crate::case::{CaseLoad, CaseNetwork, ScenarioCase};
use std::path::Path;

/// Checks that a committed scenario file equals the experiment's, comments aside.
fn check(file: &str, expected: &ScenarioCase) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/symphony").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let body: String = text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    assert_eq!(body, expected.toml(), "{file}: it should hold the text on the right");
    expected.scenario().unwrap();
}

fn mixed(device: &str) -> Vec<CaseLoad> {
    zoo(device).unwrap().iter().map(from_zoo).collect()
}

fn at(rate: f64, case: ScenarioCase) -> ScenarioCase {
    ScenarioCase { rate, ..case }
}

#[test]
fn scenario_files_are_those_of_the_experiments() {
    let deferred = deferred_window();
    check("figure2.toml", &at(15_000.0, case(&deferred, 24, resnets(10, 100.0), 300_000)));
    let strong = (1..=10).map(|index| load(format!("m{index}"), 1.0, 15.0, 46.0)).collect();
    check("figure6a-strong.toml", &at(15_000.0, case(&deferred, 32, strong, 200_000)));
    check("figure9-1080ti.toml", &at(6_000.0, case(&deferred, 64, mixed("1080ti"), 200_000)));
    check("figure9-a100.toml", &at(15_000.0, case(&deferred, 64, mixed("a100"), 200_000)));
    let popular = |(index, load): (i32, CaseLoad)| load.share(f64::from(index).powf(-0.9)).shape(Some(0.05));
    let zipf = (1..).zip(resnets(20, 25.0)).map(popular).collect();
    let bursty = ScenarioCase { warmup: 0.25, ..case(&deferred, 32, zipf, 200_000) };
    check("figure11-zipf-bursty.toml", &at(14_000.0, bursty));
    let slow =
        ScenarioCase { network: Some(CaseNetwork::FixedUs(3034.0)), ..case(&deferred, 32, resnets(20, 25.0), 200_000) };
    check("figure14-tcp.toml", &at(15_000.0, slow));
}
