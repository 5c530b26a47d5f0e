//! Text that looks the same everywhere: no tabs, no trailing space, a last line that ends, no paths
//! of one machine.

use super::Finding;
use super::source::Source;

/// First folders of paths that exist on one machine only.
const MACHINE: [&str; 4] = ["work", "root", "farm", "home"];

/// Checks all of these.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !source.is_generated()) {
        for (index, line) in source.text.split('\n').enumerate() {
            findings.extend(judge(line).map(|(rule, message)| source.finding(index + 1, rule, message)));
        }
        if !source.text.is_empty() && !source.text.ends_with('\n') {
            findings.push(source.finding(source.text.lines().count(), "last-line", "end it with a line break"));
        }
    }
    findings
}

fn judge(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let tab = line.contains('\t').then_some(("no-tabs", "indent with spaces"));
    let trailing = line.ends_with([' ', '\t', '\r']).then_some(("trailing-space", "remove the space at the end"));
    let machine = has_machine_path(line).then_some(("machine-path", "a path of one machine: make it relative"));
    [tab, trailing, machine].into_iter().flatten()
}

fn has_machine_path(line: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "_-.~}])*/".contains(c);
    line.match_indices('/').any(|(at, _)| {
        let starts_path = !line[..at].chars().next_back().is_some_and(inside);
        let rest = &line[at + 1..];
        let folder = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next().unwrap_or_default();
        starts_path && MACHINE.contains(&folder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<&'static str> {
        let source = Source::new("a.md", Some(text.into()));
        check(&[source]).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn white_space_is_found() {
        assert_eq!(rules("a\tb\n"), ["no-tabs"]);
        assert_eq!(rules("a \nb\n"), ["trailing-space"]);
        assert_eq!(rules("a\r\n"), ["trailing-space"]);
        assert_eq!(rules("a"), ["last-line"]);
        assert!(rules("a\n\n    b\n").is_empty());
    }

    #[test]
    fn machine_paths_are_found() {
        for folder in MACHINE {
            assert_eq!(rules(&format!("see /{folder}/x\n")), ["machine-path"]);
            assert_eq!(rules(&format!("at \"/{folder}\"\n")), ["machine-path"]);
        }
    }

    #[test]
    fn relative_paths_and_addresses_are_not() {
        assert!(rules("crates/work/x, https://a.org/home/x, ../home/x, /v2/home, /workers\n").is_empty());
    }
}
