//! The peaks of the results file hold for runs of twice the length, within 2 %: two of them here,
//! all of them by `ripieno reproduce ITEM --double`.

use super::workload::{CellsCase, CellsModel, EUROPARL, bucketed, cellular_lstm, padded_lstm};
use crate::case::Contender;
use crate::docs::results;
use crate::peak::sustains;
use ripieno_report::plot::Look;
use ripieno_sim::Scenario;

/// Returns the rate of a row, and the number of requests of the run that settled it.
fn published(item: &str, row: &str) -> (f64, u64) {
    let results = results();
    let row = results[item].iter().find(|found| found["name"] == row).unwrap();
    let requests = row["note"].as_str().unwrap().split(" requests").next().unwrap().replace(',', "");
    (row["ours"].as_f64().unwrap(), requests.parse().unwrap())
}

fn holds(item: &str, row: &str, contender: Contender, model: CellsModel) {
    let (rps, requests) = published(item, row);
    let case = CellsCase { contender, model, devices: 1, requests, decision_us: 0.0 };
    let scenario = Scenario::parse(&case.toml(rps), "a peak").unwrap();
    let carried = |share: f64| sustains(&scenario, share * rps, 2 * requests).unwrap().is_some();
    assert!(carried(0.98), "{item}, {row}: 98 % of {rps} are not sustained over {} requests", 2 * requests);
    assert!(!carried(1.02), "{item}, {row}: 102 % of {rps} are sustained over {} requests", 2 * requests);
}

#[test]
fn twice_the_length_changes_no_peak_by_more_than_2_percent() {
    let buckets = bucketed("", 10, Look::solid(0));
    holds("batchmaker/figure8", "bucketed, width 10: sustained", buckets, padded_lstm(512, EUROPARL));
    let late = Contender::new("", "cellular", &[("max_tasks", "1"), ("early_start", "false")], Look::solid(0));
    holds("late-batching/figure5", "without early start: sustained", late, cellular_lstm(512, EUROPARL));
}
