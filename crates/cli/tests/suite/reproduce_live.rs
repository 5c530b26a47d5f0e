//! `ripieno reproduce --live` in its quick form: what an item says of a cluster of processes, and
//! which items have a live form. Values depend on the machine and are not judged.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn live(words: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.arg("reproduce").args(words).args(["--live", "--quick", "--out"]).arg(folder.path());
    command.stdin(Stdio::null()).output().unwrap()
}

fn rows(item: &str) -> Vec<Value> {
    let output = live(&[item, "--format", "json"]);
    assert!(output.status.success(), "{item}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["item"].as_str(), report["live"].as_bool()), (Some(item), Some(true)));
    report["rows"].as_array().unwrap().clone()
}

#[test]
fn a_goodput_is_found_live_beside_the_simulation_with_measured_delays() {
    let rows = rows("symphony/table2");
    let [row] = &rows[..] else { panic!("a quick call serves one system: {rows:?}") };
    assert_eq!(row["paper"].as_f64(), Some(5264.0));
    let (simulated, live) = (row["ours"].as_f64().unwrap(), row["measured"].as_f64().unwrap());
    // A machine that is too busy may carry nothing.
    assert!(simulated >= 0.0 && (0.0..=1.06 * simulated).contains(&live), "{row}");
    assert!(row["note"].as_str().unwrap().contains("Delays measured first"), "{row}");
}

#[test]
fn backends_follow_the_load_of_a_live_figure() {
    let rows = rows("symphony/figure15");
    let value = |name: &str, key: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {rows:?}"));
        row[key].as_f64().unwrap()
    };
    let offered = "offered, highest";
    let (simulated, live) = (value(offered, "ours"), value(offered, "measured"));
    assert!((live / simulated - 1.0).abs() < 0.05, "the same requests, and {live} of {simulated}");
    assert!(value("devices, most", "measured") >= 1.0);
}

#[test]
fn reads_through_the_data_plane_are_timed() {
    let rows = rows("symphony/figure17");
    let lowest = rows.iter().find(|row| row["name"] == "TCP: lowest").unwrap();
    assert!(lowest["measured"].as_f64().unwrap() > 0.0, "{lowest}");
}

#[test]
fn an_item_without_a_live_form_is_refused_with_those_that_have_one() {
    for item in ["symphony/figure7", "batchmaker/figure7a"] {
        let output = live(&[item]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(&format!("{item} has no live form")), "{error}");
        for known in ["symphony/table2", "symphony/figure9", "symphony/figure10", "symphony/figure15"] {
            assert!(error.contains(known), "{error}");
        }
    }
}
