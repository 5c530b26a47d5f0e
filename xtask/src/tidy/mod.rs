//! `cargo xtask tidy`: the rules of the house, as tests.
//!
//! A rule lives here if a compiler cannot hold it and a reviewer would have to remember it. Each
//! one is a pure function from the repository's text to findings, with a test that sees it fail: a
//! rule that cannot fail is worthless.
//!
//! Two rules are left to clippy, since it reads code better than we do: functions above 70 lines
//! (`too_many_lines`) and calls that are wrong everywhere (`disallowed_methods`), both set in
//! `clippy.toml`. The ban on clocks is *not* there: `clippy.toml` holds for the whole workspace and
//! files of single crates would replace it, not add to it, while half of our crates may read the
//! clock. So [`purity`] searches the text of the others.

mod catalogue;
mod circles;
mod dependencies;
mod identifiers;
mod links;
mod markers;
mod names;
mod prose;
mod purity;
mod ratchets;
mod sentences;
mod sizes;
mod source;
mod text;
mod vocabulary;
mod words;

use crate::steps::{cargo, output, root};
use anyhow::{Context, Result, bail};
use source::Source;
use std::fmt;
use std::fs;
use std::process::Command;

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.message, self.rule)
    }
}

/// A rule over the text of all files.
type Rule = fn(&[Source]) -> Vec<Finding>;

const RULES: [Rule; 11] = [
    purity::check,
    sizes::check,
    markers::check,
    text::check,
    links::check,
    catalogue::check,
    circles::check,
    words::check,
    sentences::check,
    identifiers::check,
    names::check,
];

/// Checks the whole repository; an error if there are findings.
pub(crate) fn run() -> Result<()> {
    let sources = read_repository()?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&sources)).collect();
    let metadata = metadata()?;
    findings.extend(dependencies::check(&metadata));
    findings.extend(dependencies::check_use(&metadata, &sources));
    findings.extend(dependencies::check_table(&metadata, &sources));
    let mut findings = ratchets::hold(findings);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings in {} files", findings.len(), sources.len());
    }
    println!("tidy: no findings in {} files", sources.len());
    Ok(())
}

/// Reads the files that git tracks or would track: the rules are seen before the commit.
fn read_repository() -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root());
    let listed = output(&mut git).context("tidy reads the list of files from git")?;
    let mut sources = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        // A tracked file may have been deleted or be no text; neither is for these rules.
        if let Ok(bytes) = fs::read(root().join(path)) {
            sources.push(Source::new(path, String::from_utf8(bytes).ok()));
        }
    }
    Ok(sources)
}

fn metadata() -> Result<serde_json::Value> {
    let text = output(&mut cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("cargo metadata is not JSON")
}
