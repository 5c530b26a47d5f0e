//! Names that mean one thing: type names defined more than once, as a number that only falls, and
//! no parameter that is a tuple of more than two.

use super::Finding;
use super::source::Source;
use std::collections::BTreeMap;

/// Type names that are defined more than once outside tests. Lower it when there are fewer; never
/// raise it.
const SHARED_NAMES: usize = 10;
const KINDS: [&str; 4] = ["struct ", "enum ", "trait ", "union "];

/// Checks both.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let code = || sources.iter().filter(|source| source.is("rs") && !source.is_generated() && !is_example(source));
    let tuples = code().flat_map(wide_tuples);
    tuples.chain(shared_names(code().filter(|source| !is_stand_in(source)), SHARED_NAMES)).collect()
}

fn is_example(source: &Source) -> bool {
    source.path.contains("/examples/")
}

/// Returns true for a module that stands for another one in a build without its feature, and so has
/// its names.
fn is_stand_in(source: &Source) -> bool {
    source.path.contains("/no_") || source.path.contains("/not_built/")
}

fn shared_names<'a>(sources: impl Iterator<Item = &'a Source>, allowed: usize) -> Vec<Finding> {
    let mut defined: BTreeMap<&str, Vec<(&Source, usize)>> = BTreeMap::new();
    for source in sources {
        for (line, number) in source.code_without_tests().lines().zip(1..) {
            if let Some(name) = type_defined(line) {
                defined.entry(name).or_default().push((source, number));
            }
        }
    }
    defined.retain(|_, places| places.len() > 1);
    if defined.len() == allowed {
        return Vec::new();
    }
    let Some((source, number)) = defined.values().map(|places| places[0]).next() else {
        return Vec::new();
    };
    if defined.len() < allowed {
        let message = format!("{} type names are defined more than once: lower SHARED_NAMES to that", defined.len());
        return vec![source.finding(number, "shared-names", message)];
    }
    let over = format!("{} names are defined more than once, {allowed} is the most", defined.len());
    let finding = |(name, places): (&&str, &Vec<(&Source, usize)>)| {
        let (source, number) = places[places.len() - 1];
        let first = &places[0].0.path;
        source.finding(number, "shared-names", format!("`{name}` is defined in {first}, too: qualify one ({over})"))
    };
    defined.iter().map(finding).collect()
}

/// The name of the type that a line defines.
fn type_defined(line: &str) -> Option<&str> {
    let indent = line.len() - line.trim_start().len();
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let alias = line.strip_prefix("type ").filter(|_| indent == 0);
    let rest = KINDS.iter().find_map(|kind| line.strip_prefix(kind)).or(alias)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// Parameters of functions that are tuples of more than two.
fn wide_tuples(source: &Source) -> Vec<Finding> {
    let code = source.code_without_tests();
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(list) = Some(&code[at..]).filter(|_| starts_word).and_then(parameters) else { continue };
        for parameter in split_at_depth(list, ',') {
            let Some((_, given)) = parameter.split_once(": ") else { continue };
            let tuple = given.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            let members =
                tuple.map_or(0, |tuple| split_at_depth(tuple, ',').filter(|part| !part.trim().is_empty()).count());
            if members > 2 {
                let line = code[..at].lines().count().max(1);
                let message = format!("a parameter is a tuple of {members}: give it a struct with named fields");
                findings.push(source.finding(line, "tuple-parameter", message));
            }
        }
    }
    findings
}

/// The text between the parentheses of a function's parameters.
fn parameters(function: &str) -> Option<&str> {
    let line_end = function.find(['{', ';']).unwrap_or(function.len());
    // Generics may hold parentheses, as `F: Fn(u8)` does; the list follows the name or the closing
    // `>`.
    let name_end = function.find(['(', '<'])?;
    let open = if function.as_bytes()[name_end] == b'(' {
        name_end
    } else {
        name_end + after_generics(&function[name_end..])?
    };
    if open > line_end {
        return None;
    }
    let mut depth = 0;
    for (at, c) in function[open..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&function[open + 1..open + at]);
        }
    }
    None
}

/// The place of the parenthesis behind a list of generics that `text` begins with.
fn after_generics(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            _ => {}
        }
        before = c;
        if depth == 0 {
            return text[at + 1..].find('(').map(|open| at + 1 + open);
        }
    }
    None
}

/// The parts of a text between separators that stand in no bracket.
fn split_at_depth(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut depth, mut start, mut parts, mut before) = (0_i32, 0, Vec::new(), ' ');
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ if c == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
        before = c;
    }
    parts.push(&text[start..]);
    parts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path, Some(text.into()))
    }

    fn tuples(text: &str) -> usize {
        wide_tuples(&source("crates/a/src/b.rs", text)).len()
    }

    #[test]
    fn shared_names_are_counted_and_the_number_only_falls() {
        let files = [
            source("crates/a/src/a.rs", "struct State;\npub(crate) enum Kind {}\ntype Row = u8;\n"),
            source("crates/a/src/b.rs", "    pub struct State<T>(T);\npub trait Kind {}\n    type Row = u8;\n"),
            source("crates/a/src/c.rs", "#[cfg(test)]\nmod tests {\n    struct Row;\n}\n"),
        ];
        let found = |allowed: usize| -> Vec<String> {
            shared_names(files.iter(), allowed).into_iter().map(|finding| finding.message).collect()
        };
        assert!(found(2).is_empty());
        assert_eq!(found(1).len(), 2, "each of the two is named");
        assert!(found(1)[1].contains("`State` is defined in crates/a/src/a.rs, too"));
        assert!(found(3)[0].contains("lower SHARED_NAMES"));
    }

    #[test]
    fn a_stand_in_has_the_names_of_its_module() {
        let file = |path: &str| source(path, "enum Tokenizer {}\n");
        let found = |path: &str| check(&[file("crates/a/src/tokenizer.rs"), file(path)]).len();
        assert_eq!(found("crates/a/src/other.rs"), 1, "a number that only falls");
        assert_eq!([found("crates/a/src/no_tokenizer.rs"), found("crates/a/src/not_built/a.rs")], [0, 0]);
    }

    #[test]
    fn tuples_of_more_than_two_are_found() {
        assert_eq!(tuples("fn f(a: u8, (b, c, d): (u8, Vec<u8>, [u8; 2])) {}\n"), 1);
        assert_eq!(tuples("fn f<F: Fn(u8) -> u8>(\n    place: (u8, u8, u8),\n) {}\n"), 1);
        assert_eq!(tuples("fn f(a: (u8, u8), b: &[(u8, u8, u8)]) -> (u8, u8, u8) {}\n"), 0);
        assert_eq!(tuples("fn f(act: impl Fn(u8, u8, u8)) {}\n"), 0);
    }
}
