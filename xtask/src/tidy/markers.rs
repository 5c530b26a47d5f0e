//! Nothing half done: no notes to self, no stubs, no tests that do not run, that sleep, or that
//! forget the seed with which they failed.

use super::Finding;
use super::source::{Source, lines_with};

/// Notes to self, in any source. Written in two halves, so that this file does not find itself.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Macros and attributes of unfinished work, in code.
const STUBS: [&str; 4] = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];
/// A test that sleeps is slow when it passes and flaky when it does not.
const SLEEPS: [&str; 3] = ["thread::sleep(", "time::sleep(", "sleep_until("];

/// Settings of a property test: failing seeds are not kept, and the seed is always the same.
const FORGOTTEN: &str = "failure_persistence: None";
const FIXED: &str = "RngSeed::Fixed";

/// Checks all of these.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let checked = sources.iter().filter(|source| !source.is("md") && !source.is("txt") && !source.is_generated());
    let of = |source| notes(source).chain(stubs(source)).chain(sleeps(source)).chain(forgotten_seeds(source));
    checked.flat_map(|source| of(source).collect::<Vec<_>>()).collect()
}

fn notes(source: &Source) -> impl Iterator<Item = Finding> + '_ {
    let found = NOTES.iter().flat_map(|word| lines_with(&source.text, word).map(move |line| (line, word)));
    found.map(|(line, word)| source.finding(line, "no-notes", format!("{word}: do it now, or open an issue")))
}

fn stubs(source: &Source) -> impl Iterator<Item = Finding> + '_ {
    let found = STUBS.iter().flat_map(|word| lines_with(&source.code, word).map(move |line| (line, word)));
    found.map(|(line, word)| source.finding(line, "no-stubs", format!("`{word}`: finish it or leave it out")))
}

fn sleeps(source: &Source) -> impl Iterator<Item = Finding> + '_ {
    let tests_begin = source.code_without_tests().lines().count();
    let found = SLEEPS.iter().flat_map(|word| lines_with(&source.code, word));
    let in_tests = found.filter(move |line| *line > tests_begin);
    in_tests.map(|line| source.finding(line, "no-sleep", "a test must not sleep: wait for the event itself"))
}

/// Finds property tests with random seeds that are not kept when they fail.
fn forgotten_seeds(source: &Source) -> impl Iterator<Item = Finding> + '_ {
    let lines = source.code.lines().zip(1..).filter(|(line, _)| line.contains(FORGOTTEN) && !line.contains(FIXED));
    let message = "a failing seed is lost: keep it in proptest-regressions/, or fix the seed";
    lines.map(move |(_, line)| source.finding(line, "no-lost-seeds", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let source = Source::new(path, Some(text.into()));
        check(&[source]).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn notes_are_found_in_comments_too() {
        assert_eq!(rules("a.rs", &format!("// {}: later\n", NOTES[0])), ["no-notes"]);
        assert_eq!(rules("a.py", &format!("# {}\n", NOTES[1])), ["no-notes"]);
        assert!(rules("a.md", &format!("No {} here.\n", NOTES[0])).is_empty());
    }

    #[test]
    fn stubs_are_found_in_code_only() {
        for stub in STUBS {
            assert_eq!(rules("a.rs", &format!("fn f() {{}} {stub}\n")), ["no-stubs"]);
            assert!(rules("a.rs", &format!("// never {stub}\n")).is_empty());
        }
    }

    #[test]
    fn property_tests_keep_their_seeds() {
        let config = |more: &str| format!("ProptestConfig {{ {FORGOTTEN}, {more}..ProptestConfig::default() }}\n");
        assert_eq!(rules("crates/a/src/tests.rs", &config("")), ["no-lost-seeds"]);
        assert!(rules("crates/a/src/tests.rs", &config("rng_seed: RngSeed::Fixed(1), ")).is_empty());
    }

    #[test]
    fn sleeping_is_found_in_tests_only() {
        assert_eq!(rules("crates/a/tests/b.rs", "thread::sleep(x);\n"), ["no-sleep"]);
        assert_eq!(
            rules("crates/a/src/b.rs", "f();\n#[cfg(test)]\nmod tests {\nstd::thread::sleep(x);\n}\n"),
            ["no-sleep"]
        );
        assert!(rules("crates/a/src/b.rs", "thread::sleep(x);\n").is_empty());
    }
}
