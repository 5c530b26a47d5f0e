//! Every policy has its row in `docs/internals/policies.md`: source, rule, state, knobs, what it
//! ignores, where we deviate.

use super::Finding;
use super::source::Source;

/// The longer path first: it begins with the other one.
const FOLDERS: [&str; 2] = ["crates/policies/src/baselines/", "crates/policies/src/"];
/// Files beside the policies that are none.
const SHARED: [&str; 10] = [
    "lib.rs",
    "catalogue.rs",
    "cell_scheduler/mod.rs",
    "chain_tasks.rs",
    "choice.rs",
    "faithful.rs",
    "fifo.rs",
    "options.rs",
    "policy.rs",
    "unified.rs",
];
const PAGE: &str = "docs/internals/policies.md";

/// Checks that the page names each policy's file.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let page = sources.iter().find(|source| source.path == PAGE).map_or("", |source| source.text.as_str());
    let policies = sources.iter().filter(|source| is_policy(source));
    let missing = policies.filter(|source| !page.contains(file_name(source)));
    missing
        .map(|source| source.finding(1, "policy-row", format!("{PAGE} has no row that names {}", file_name(source))))
        .collect()
}

/// Returns the path within a folder of policies.
fn place(source: &Source) -> Option<&str> {
    FOLDERS.iter().find_map(|folder| source.path.strip_prefix(folder))
}

/// A file directly in a folder, or the head of a policy that has a folder of its own.
fn is_policy(source: &Source) -> bool {
    let Some(name) = place(source) else { return false };
    let own_folder = name.ends_with("/mod.rs") && name.matches('/').count() == 1;
    if SHARED.contains(&name) || ["parts/mod.rs", "baselines/mod.rs"].contains(&name) {
        return false;
    }
    own_folder || source.is("rs") && !name.contains('/') && name != "mod.rs" && !name.ends_with("tests.rs")
}

/// The text that the page must contain: `timeout.rs`, or `unified/`.
fn file_name(source: &Source) -> &str {
    let name = place(source).unwrap_or(&source.path);
    name.strip_suffix("mod.rs").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(page: &str) -> Vec<String> {
        let files = ["mod.rs", "serial.rs", "timeout.rs", "tests.rs", "unified/mod.rs", "unified/cost.rs"];
        let policies = files.map(|name| Source::new(&format!("{}{name}", FOLDERS[0]), None));
        let page = Source::new(PAGE, Some(page.into()));
        let findings = check(&policies.into_iter().chain([page]).collect::<Vec<_>>());
        findings.into_iter().map(|finding| finding.path.replace(FOLDERS[0], "")).collect()
    }

    #[test]
    fn a_policy_without_a_row_is_found() {
        assert_eq!(missing("`serial.rs`\n"), ["timeout.rs", "unified/mod.rs"]);
        assert_eq!(missing("").len(), 3);
    }

    #[test]
    fn a_full_page_is_fine() {
        assert!(missing("`serial.rs` `timeout.rs` `unified/`\n").is_empty());
    }
}
