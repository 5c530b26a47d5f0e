//! Holds `docs/reference/metrics.md` to the code: every metric that the server writes has its row,
//! and every row is a metric.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/reference/metrics.md");
const SOURCES: [&str; 2] = [include_str!("../src/metrics.rs"), include_str!("../src/metrics/process.rs")];

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
