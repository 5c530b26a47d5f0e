//! Every relative link in a Markdown file leads to a file or folder of the repository.

use super::Finding;
use super::source::Source;
use std::collections::BTreeSet;

/// Checks all Markdown files.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let places = places(sources);
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is("md")) {
        for (line, target) in links(&source.text) {
            let resolved = resolve(&source.path, target);
            if !resolved.as_ref().is_some_and(|path| places.contains(path.as_str())) {
                findings.push(source.finding(line, "dead-link", format!("{target} leads nowhere")));
            }
        }
    }
    findings
}

/// All files, and all folders that hold one.
fn places(sources: &[Source]) -> BTreeSet<&str> {
    let mut places = BTreeSet::from([""]);
    for source in sources {
        let folders = source.path.match_indices('/').map(|(at, _)| &source.path[..at]);
        places.extend(folders.chain([source.path.as_str()]));
    }
    places
}

/// The relative targets of inline links and pictures outside code, with their lines; fragments are
/// cut off.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if !in_code {
            found.extend(inline_links(line).map(|target| (index + 1, target)));
        }
    }
    found
}

fn inline_links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let relative = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    relative.filter_map(|target| target.split('#').next()).filter(|target| !target.is_empty())
}

/// Returns the path from the root to which a link in `from` leads; `None` if that is outside.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> usize {
        let page = Source::new("docs/page.md", Some(text.into()));
        let others = ["README.md", "docs/adr/0001.md", "crates/base/src/lib.rs"].map(|path| Source::new(path, None));
        check(&others.into_iter().chain([page]).collect::<Vec<_>>()).len()
    }

    #[test]
    fn a_dead_link_is_found() {
        assert_eq!(dead("[a](no.md)\n"), 1);
        assert_eq!(dead("[a](../../outside.md), [b](adr/0001.md)\n"), 1);
        assert_eq!(dead("![picture](picture.svg)\n"), 1);
    }

    #[test]
    fn live_links_are_not() {
        assert_eq!(dead("[a](../README.md#top) [b](adr/) [c](../crates/base) [d](#here) [e](../)\n"), 0);
        assert_eq!(dead("[a](https://a.org/b.md) [b](mailto:a@b.org)\n```\n[c](no.md)\n```\n"), 0);
    }
}
