use super::*;
use clap::Parser;
use serde_json::{Value, json};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PlanArgs,
}

fn scenarios() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/plan").to_owned()
}

fn outcome_of(file: &str, more: &[&str]) -> anyhow::Result<PlanOutcome> {
    let path = format!("{}/{file}", scenarios());
    outcome(&Line::parse_from(["plan", path.as_str()].iter().chain(more)).args)
}

fn json_of(outcome: &PlanOutcome) -> Value {
    serde_json::to_value(print::report(outcome)).unwrap()
}

#[test]
fn table_2_of_the_paper_needs_its_eight_devices() {
    let report = json_of(&outcome_of("resnet50.toml", &[]).unwrap());
    let devices = &report["devices"];
    assert_eq!((&devices["bound"], &devices["simulated"], &devices["too_few"]), (&json!(7), &json!(8), &json!(7)));
    assert_eq!(report["sub_clusters"][0]["devices"], report["devices"]);
    assert_eq!((&report["moves"], &report["impossible"]), (&json!([]), &json!([])));
}

#[test]
fn an_impossible_model_is_named_and_the_rest_is_planned() {
    let outcome = outcome_of("impossible.toml", &[]).unwrap();
    let report = json_of(&outcome);
    assert_eq!(report["impossible"], json!([{ "model": "slow", "slo_ms": 5.0, "fastest_ms": 6.0 }]));
    assert_eq!(report["devices"]["simulated"], 3);
    assert!(print::impossible(&outcome).unwrap().starts_with("model \"slow\": slo_ms = 5, "));
}

#[test]
fn the_zoo_is_divided_by_memory_and_only_what_is_amiss_moves() {
    let first = json_of(&outcome_of("zoo-1080ti.toml", &["--bound-only"]).unwrap());
    assert_eq!((first["sub_clusters"].as_array().unwrap().len(), &first["devices"]["simulated"]), (3, &Value::Null));
    let current = std::env::temp_dir().join(format!("ripieno-plan-{}.json", std::process::id()));
    std::fs::write(&current, first.to_string()).unwrap();
    let file = current.to_str().unwrap();
    let again = json_of(&outcome_of("zoo-1080ti.toml", &["--bound-only", "--current", file]).unwrap());
    assert_eq!((&again["moves"], &again["sub_clusters"]), (&json!([]), &first["sub_clusters"]));
    // One model moved by hand.
    let mut other = first.clone();
    let model = other["sub_clusters"][0]["models"].as_array_mut().unwrap().pop().unwrap();
    other["sub_clusters"][1]["models"].as_array_mut().unwrap().push(model.clone());
    std::fs::write(&current, other.to_string()).unwrap();
    let mended = json_of(&outcome_of("zoo-1080ti.toml", &["--bound-only", "--current", file]).unwrap());
    assert_eq!(mended["moves"], json!([{ "model": model, "from": 1, "to": 0, "cost": 2 }]));
    std::fs::remove_file(&current).unwrap();
}

#[test]
fn mistakes_name_the_file_and_the_key() {
    let error = |more: &[&str]| format!("{:#}", outcome_of("zoo-1080ti.toml", more).err().unwrap());
    assert!(error(&["--sub-clusters", "2"]).contains("zoo-1080ti.toml: no plan: 2 sub-clusters hold at most 4400 MB"));
    assert!(error(&["--rate=-1"]).starts_with("--rate = -1; it must be"));
    assert!(error(&["--max-rate", "NaN"]).contains("max_rate = NaN"));
    assert!(error(&["--current", "/absent.json"]).contains("/absent.json: cannot be read"));
    let bounded = outcome_of("resnet50.toml", &["--memory-mb-per-device", "100"]).err().unwrap();
    assert!(format!("{bounded:#}").contains("model \"ResNet50\": memory_mb is missing"));
}
