//! Files that one can read: a bound on their length that can only sink, and a module doc that says
//! why they exist.
//!
//! Functions are clippy's: `too_many_lines`, set to 70 in `clippy.toml`.

use super::Finding;
use super::source::Source;

/// No source file is longer.
const MOST_LINES: usize = 600;
/// Nor is it without the tests at its end.
const MOST_WITHOUT_TESTS: usize = 550;
/// Aim for the length of a file without tests.
const LONG_FILE: usize = 450;
/// Aim for the length of a function.
const LONG_FUNCTION: usize = 50;
/// A file above this needs a module doc, and so does every crate. Not `tests.rs`, which stands
/// beside what it tests.
const SMALL: usize = 50;
/// Files that are longer today, with their length. An entry may sink, never rise, and goes when the
/// file is split.
const RATCHET: [(&str, usize); 0] = [];

/// Checks lengths and module docs.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let code = sources.iter().filter(|source| (source.is("rs") || source.is("py")) && !source.is_generated());
    code.flat_map(|source| {
        let one = [length(source, &RATCHET), long_file(source), module_doc(source)];
        one.into_iter().flatten().chain(long_functions(source)).collect::<Vec<_>>()
    })
    .collect()
}

/// Finds a file that is longer than one can read in one go, tests apart. There are some: a ratchet
/// holds their number.
fn long_file(source: &Source) -> Option<Finding> {
    let lines = source.code_without_tests().lines().count();
    let message = format!("{lines} lines without its tests, {LONG_FILE} is the aim: split the file");
    (lines > LONG_FILE).then(|| source.finding(lines, "long-files", message))
}

/// Finds functions outside of tests that do not fit a screen. There are some: a ratchet holds their
/// number, and clippy a bound of 70.
fn long_functions(source: &Source) -> Vec<Finding> {
    let code = source.code_without_tests();
    let starts =
        code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
    let function = |at: usize| {
        let lines = body(&code[at..])?.lines().count();
        let number = code[..at].lines().count().max(1);
        let message = format!("a function of {lines} lines, {LONG_FUNCTION} is the aim: split it");
        (lines > LONG_FUNCTION).then(|| source.finding(number, "long-functions", message))
    };
    starts.filter_map(|(at, _)| function(at)).collect()
}

/// Returns a function from its name to the end of its body; `None` without a body.
fn body(function: &str) -> Option<&str> {
    let (mut braces, mut brackets) = (0, 0);
    for (at, c) in function.char_indices() {
        match c {
            '{' => braces += 1,
            '}' if braces == 1 => return Some(&function[..=at]),
            '}' => braces -= 1,
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            // The semicolon of an array's type is none of the function.
            ';' if braces == 0 && brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

fn length(source: &Source, ratchet: &[(&str, usize)]) -> Option<Finding> {
    let lines = source.text.lines().count();
    let code = source.text.split("#[cfg(test)]\nmod tests {").next().map_or(0, |code| code.lines().count());
    let allowed = ratchet.iter().find(|(path, _)| source.path == *path).map(|(_, allowed)| *allowed);
    let message = match allowed {
        None if lines > MOST_LINES => format!("{lines} lines; split the file, {MOST_LINES} is the most"),
        None if code > MOST_WITHOUT_TESTS && source.path.contains("/src/") && !source.path.contains("/tests") => {
            format!("{code} lines without its tests; split the file, {MOST_WITHOUT_TESTS} is the most")
        }
        Some(allowed) if lines > allowed => format!("{lines} lines; it was to shrink from {allowed}"),
        Some(_) if lines <= MOST_LINES => "short enough now: remove it from the ratchet".into(),
        Some(allowed) if lines < allowed => format!("{lines} lines: lower its entry in the ratchet from {allowed}"),
        _ => return None,
    };
    Some(source.finding(lines, "file-size", message))
}

fn module_doc(source: &Source) -> Option<Finding> {
    let crate_root = source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs");
    let beside_its_subject = source.path.ends_with("/tests.rs");
    let needed = crate_root || source.text.lines().count() > SMALL && !beside_its_subject;
    if !needed || has_module_doc(source) {
        return None;
    }
    Some(source.finding(1, "module-doc", "say first what this file is and why it is so"))
}

fn has_module_doc(source: &Source) -> bool {
    let markers: &[&str] = if source.is("rs") { &["//!"] } else { &["\"\"\"", "r\"\"\"", "# "] };
    let preamble = |line: &&str| line.is_empty() || line.starts_with("#!");
    let first = source.text.lines().find(|line| !preamble(line)).unwrap_or_default();
    markers.iter().any(|marker| first.starts_with(marker))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, first: &str, lines: usize) -> Source {
        Source::new(path, Some(format!("{first}\n{}", "x();\n".repeat(lines - 1))))
    }

    fn rules(path: &str, first: &str, lines: usize) -> Vec<&'static str> {
        let found = check(&[source(path, first, lines)]).into_iter().map(|finding| finding.rule);
        found.filter(|rule| *rule != "long-files").collect()
    }

    #[test]
    fn files_and_functions_above_the_aim_are_found() {
        let rules = |text: String| -> Vec<&str> {
            let found = check(&[Source::new("crates/a/src/b.rs", Some(text))]);
            found.into_iter().map(|finding| finding.rule).collect()
        };
        assert_eq!(rules(format!("//! Doc.\n{}", "x();\n".repeat(450))), ["long-files"]);
        let function = |lines: usize| format!("//! Doc.\nfn f(a: [u8; 2]) {{\n{}}}\n", "x();\n".repeat(lines));
        assert!(rules(function(48)).is_empty());
        assert_eq!(rules(function(49)), ["long-functions"]);
        let tests = format!("//! Doc.\n#[cfg(test)]\nmod tests {{\n{}}}\n", function(60));
        assert!(rules(tests).is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(rules("crates/a/src/b.rs", "//! Doc.", 601), ["file-size"]);
        assert!(rules("crates/a/src/b/tests.rs", "//! Doc.", 600).is_empty());
        assert_eq!(rules("crates/a/src/b.rs", "//! Doc.", 551), ["file-size"]);
        assert!(rules("crates/a/src/b.rs", "//! Doc.", 550).is_empty());
    }

    #[test]
    fn tests_at_the_end_are_not_counted() {
        let text =
            format!("//! Doc.\n{}#[cfg(test)]\nmod tests {{\n{}}}\n", "x();\n".repeat(440), "y();\n".repeat(150));
        assert!(check(&[Source::new("crates/a/src/b.rs", Some(text))]).is_empty());
    }

    #[test]
    fn generated_code_is_exempt() {
        assert!(rules("crates/wire/src/generated/inference.rs", "x", 5000).is_empty());
    }

    #[test]
    fn the_ratchet_only_sinks() {
        let ratchet = [("a.rs", 700)];
        let judged = |lines| length(&source("a.rs", "//! Doc.", lines), &ratchet).map(|finding| finding.message);
        assert!(judged(701).unwrap().contains("shrink"));
        assert_eq!(judged(700), None);
        assert!(judged(650).unwrap().contains("lower"));
        assert!(judged(600).unwrap().contains("remove"));
    }

    #[test]
    fn a_missing_module_doc_is_found() {
        assert_eq!(rules("crates/a/src/b.rs", "use x;", 51), ["module-doc"]);
        assert!(rules("crates/a/src/b.rs", "use x;", 50).is_empty());
        assert!(rules("crates/a/src/b/tests.rs", "use x;", 51).is_empty());
        assert_eq!(rules("crates/a/src/lib.rs", "mod x;", 1), ["module-doc"]);
        assert!(rules("crates/a/src/lib.rs", "#![allow(x)]\n\n//! Doc.", 1).is_empty());
        assert_eq!(rules("tests/python/a.py", "import x", 51), ["module-doc"]);
        assert!(rules("tests/python/a.py", "\"\"\"Doc.\"\"\"", 51).is_empty());
    }
}
