//! Holds `docs/reference/metrics.md` to the code: every metric that the server writes has its row,
//! and every row is a metric.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/reference/metrics.md");
const SOURCES: [&str; 4] = [
    include_str!("../src/backend.rs"),
    include_str!("../src/observe/metrics.rs"),
    include_str!("../src/observe/metrics/distributions.rs"),
    include_str!("../src/observe/metrics/process.rs"),
];

/// Returns the words of a text that are names of metrics, where `quote` encloses them.
fn names(text: &str, quote: char) -> BTreeSet<&str> {
    let is_metric = |word: &&str| ["ripieno_", "nv_", "process_"].iter().any(|prefix| word.starts_with(prefix));
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    text.split(quote).filter(is_metric).filter(is_name).collect()
}

#[test]
fn the_page_has_every_metric_of_the_server() {
    let written: BTreeSet<&str> = SOURCES.iter().flat_map(|source| names(source, '"')).collect();
    let told = names(PAGE, '`');
    assert!(written.len() > 50, "{written:?}");
    assert_eq!(told, written);
}

/// Rules and dashboards that name metrics.
const DEPLOYED: [(&str, &str); 3] = [
    ("grafana", include_str!("../../../deploy/grafana/ripieno.json")),
    ("prometheus", include_str!("../../../deploy/prometheus/rules.yaml")),
    ("kubernetes", include_str!("../../../deploy/kubernetes/components/monitoring/rules.yaml")),
];

#[test]
fn dashboards_and_alerts_name_metrics_that_there_are() {
    let written: BTreeSet<&str> = SOURCES.iter().flat_map(|source| names(source, '"')).collect();
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    for (file, text) in DEPLOYED {
        let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("ripieno_"));
        // A label of the cluster's pods, and no metric.
        let named: BTreeSet<&str> = words.filter(|word| *word != "ripieno_dev_role").collect();
        assert!(named.len() > 5, "{file}: {named:?}");
        for name in named {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let known = written.contains(name) || family.is_some_and(|family| written.contains(family));
            assert!(known, "{file} names {name}, which the server does not write");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(DEPLOYED[0].1).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}
