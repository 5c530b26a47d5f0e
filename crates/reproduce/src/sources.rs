//! The source of the policies that an item runs, by content: a result is older than its policies if
//! their hash is another one.
//!
//! Comments, empty lines and tests do not count. What the policies share with the server, and the
//! simulator, are held by the worked examples, which tests hold to the numbers of the papers.

use sha2::{Digest as _, Sha256};

/// A source file of the policies: its path in their crate, and its text.
type PolicySource = (&'static str, &'static str);

macro_rules! policy_sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../policies/src/", $path)))),*]
    };
}

const SYMPHONY: &[PolicySource] = policy_sources![
    "baselines/clockwork.rs",
    "baselines/nexus.rs",
    "baselines/parts/central.rs",
    "baselines/parts/frontends.rs",
    "baselines/parts/placement.rs",
    "baselines/parts/pool.rs",
    "baselines/parts/squishy.rs",
    "baselines/shepherd.rs",
    "baselines/timeout.rs",
    "chain_tasks.rs",
    "faithful.rs",
    "options.rs",
    "symphony/deferred.rs",
    "symphony/fused.rs",
    "symphony/grants.rs",
    "symphony/linked.rs",
    "symphony/matchmaker.rs",
    "symphony/mod.rs",
    "symphony/model_queue.rs",
    "symphony/model_shard.rs",
    "symphony/queues.rs",
    "symphony/rules.rs",
];

const CELLS: &[PolicySource] = policy_sources![
    "baselines/bucketed.rs",
    "baselines/graph_merge.rs",
    "cell_scheduler/mod.rs",
    "cell_scheduler/rules.rs",
    "cell_scheduler/sets.rs",
    "cellular_batching.rs",
    "fifo.rs",
    "late_batching.rs",
];

const LAZY_BATCHING: &[PolicySource] = policy_sources![
    "baselines/bucketed.rs",
    "baselines/serial.rs",
    "baselines/timeout.rs",
    "cell_scheduler/mod.rs",
    "cell_scheduler/rules.rs",
    "cell_scheduler/sets.rs",
    "fifo.rs",
    "lazy_batching/mod.rs",
    "lazy_batching/slack.rs",
];

const DVABATCH: &[PolicySource] = policy_sources![
    "baselines/delay_batch.rs",
    "dvabatch/clusters.rs",
    "dvabatch/devices.rs",
    "dvabatch/forming.rs",
    "dvabatch/mod.rs",
    "dvabatch/options.rs",
    "dvabatch/pipeline.rs",
    "dvabatch/rules.rs",
    "dvabatch/stage_executors.rs",
    "fifo.rs",
];

/// Second readings, which are no policies.
const RANK: &[PolicySource] = &[
    ("symphony/second/rank.rs", include_str!("symphony/second/rank.rs")),
    ("symphony/second/rate.rs", include_str!("symphony/second/rate.rs")),
];
const LEGO: &[PolicySource] = &[("dvabatch/second/lego.rs", include_str!("dvabatch/second/lego.rs"))];

/// Returns the source files that the items of a paper depend on.
fn of_item(id: &str) -> &'static [PolicySource] {
    match id.split('/').next() {
        Some("symphony") => SYMPHONY,
        Some("batchmaker" | "late-batching") => CELLS,
        Some("lazybatching") => LAZY_BATCHING,
        Some("dvabatch") => DVABATCH,
        _ => &[],
    }
}

/// Returns the hash of the policies of an item.
pub(super) fn hash(id: &str) -> String {
    let mut hash = Sha256::new();
    let own = match id {
        "symphony/second-reading" => RANK,
        "dvabatch/second-reading" => LEGO,
        _ => &[],
    };
    for (path, text) in of_item(id).iter().chain(own) {
        hash.update(path.as_bytes());
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
        let lines = code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        lines.for_each(|line| hash.update(line.as_bytes()));
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Files without a rule of a policy.
    const OTHERS: [&str; 7] = [
        "lib.rs",
        "catalogue.rs",
        "policy.rs",
        "choice.rs",
        "unified.rs",
        "baselines/mod.rs",
        "baselines/parts/mod.rs",
    ];

    fn add(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(root, &path, found);
            } else if path.file_name().is_none_or(|name| name != "tests.rs") {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_policy_counts_for_some_item() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/src");
        let mut files = Vec::new();
        add(&root, &root, &mut files);
        assert!(files.len() > 30, "{files:?}");
        let counted = [SYMPHONY, CELLS, LAZY_BATCHING, DVABATCH].concat();
        files.retain(|file| !OTHERS.contains(&&**file) && !counted.iter().any(|(path, _)| path == file));
        assert!(files.is_empty(), "name {files:?} in this file");
    }

    #[test]
    fn each_paper_has_policies_of_its_own() {
        let ids = ["symphony/x", "batchmaker/x", "lazybatching/x", "dvabatch/x"];
        let hashes: std::collections::BTreeSet<_> = ids.into_iter().map(hash).collect();
        assert_eq!(hashes.len(), ids.len());
        assert_eq!(hash("batchmaker/x"), hash("late-batching/y"));
        assert_ne!(hash("symphony/second-reading"), hash("symphony/x"));
    }
}
