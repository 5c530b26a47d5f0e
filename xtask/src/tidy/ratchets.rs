//! Ratchets: findings that there still are, as numbers that only fall.
//!
//! A rule that the tree does not meet yet would be no rule, or would stop all work. So
//! `ratchets.txt` holds, for a rule and a crate (or `*`, the whole tree), how many findings there
//! are. One more is an error that shows all of them. One fewer is an error, too, until the number
//! is lowered: what was gained is not lost again. A rule without an entry allows none.

use super::Finding;
use std::collections::BTreeMap;

const FILE: &str = "xtask/src/tidy/ratchets.txt";
const LIST: &str = include_str!("ratchets.txt");
const WHOLE_TREE: &str = "*";

/// The allowed number of findings by rule and place.
type Allowed<'a> = BTreeMap<(&'a str, &'a str), usize>;

/// Returns the findings that break their ratchet, and one for each number that is to be lowered.
pub(super) fn hold(findings: Vec<Finding>) -> Vec<Finding> {
    held(findings, &parse(LIST))
}

fn parse(list: &str) -> Allowed<'_> {
    let lines = list.lines().zip(1..).filter(|(line, _)| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|(line, number)| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let entry = if let [rule, place, count] = cells[..] { Some((rule, place, count)) } else { None };
            let entry = entry.and_then(|(rule, place, count)| Some(((rule, place), count.parse().ok()?)));
            entry.unwrap_or_else(|| panic!("{FILE}:{number}: not 'rule | place | number': {line}"))
        })
        .collect()
}

fn held(findings: Vec<Finding>, allowed: &Allowed) -> Vec<Finding> {
    let mut groups: BTreeMap<(&str, String), Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        let whole = allowed.contains_key(&(finding.rule, WHOLE_TREE));
        let place = if whole { WHOLE_TREE } else { place_of(&finding.path) };
        groups.entry((finding.rule, place.to_owned())).or_default().push(finding);
    }
    let mut broken = Vec::new();
    for (&(rule, place), &number) in allowed {
        let count = groups.get(&(rule, place.to_owned())).map_or(0, Vec::len);
        if count < number {
            let message = format!("{rule} of {place}: {count} are left; lower the number from {number}");
            broken.push(Finding { path: FILE.to_owned(), line: 1, rule: "ratchet", message });
        }
    }
    for ((rule, place), group) in groups {
        let number = allowed.get(&(rule, place.as_str())).copied().unwrap_or(0);
        if group.len() > number {
            if number > 0 {
                let message = format!("{rule} of {place}: {} where {number} were; mend the new ones", group.len());
                broken.push(Finding { path: FILE.to_owned(), line: 1, rule: "ratchet", message });
            }
            broken.extend(group);
        }
    }
    broken
}

/// Returns the crate of a file, or the first folder.
fn place_of(path: &str) -> &str {
    let folders = if path.starts_with("crates/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(folders - 1).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &str, paths: &[&str]) -> Vec<String> {
        let finding =
            |path: &&str| Finding { path: (*path).to_owned(), line: 3, rule: "long", message: "too long".to_owned() };
        let broken = held(paths.iter().map(finding).collect(), &parse(list));
        broken.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn as_many_as_there_were_pass_and_one_more_shows_all() {
        let two = ["crates/a/src/x.rs", "crates/a/src/y.rs"];
        assert!(found("# rule | place | number\nlong | crates/a | 2\n", &two).is_empty());
        let more = found("long | crates/a | 1\n", &two);
        assert_eq!(more, ["long of crates/a: 2 where 1 were; mend the new ones", "too long", "too long"]);
        assert_eq!(found("", &two), ["too long", "too long"]);
    }

    #[test]
    fn fewer_are_an_error_until_the_number_is_lowered() {
        assert_eq!(
            found("long | xtask | 2\n", &["xtask/a.rs"]),
            ["long of xtask: 1 are left; lower the number from 2"]
        );
        assert_eq!(found("long | docs | 1\n", &[]).len(), 1);
    }

    #[test]
    fn a_number_may_hold_for_the_whole_tree() {
        assert!(found("long | * | 2\n", &["crates/a/x.rs", "README.md"]).is_empty());
        assert_eq!(found("long | * | 1\n", &["crates/a/x.rs", "README.md"]).len(), 3);
    }

    #[test]
    fn the_list_is_well_formed() {
        assert!(parse(LIST).values().all(|&number| number > 0), "remove a rule that is met");
    }
}
