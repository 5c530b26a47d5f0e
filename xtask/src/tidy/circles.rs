//! No import circles: files of one crate that need each other are one file in parts, and a reader
//! cannot begin with any.
//!
//! The files of a crate are its modules. One needs another if a path in its code, in a `use` or
//! not, leads there, through whatever re-exports stand between. Not counted are a module and its
//! own folder (`a` with `a/b`), which are one thing in two places; tests; and `pub use` itself.
//! Paths are read off the text: macros that make paths are not seen.

use super::Finding;
use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// A path of names, from the root of a crate or of a module.
type Path = Vec<String>;

/// A file as others see it.
struct Module<'a> {
    source: &'a Source,
    code: String,
    /// The names that its `use` bring in, and where from.
    names: Vec<(String, Path)>,
}

/// The modules of a crate, by their path.
type Modules<'a> = BTreeMap<Path, Module<'a>>;

/// Checks every crate.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    let code = sources.iter().filter(|source| source.is("rs") && !source.is_generated() && !source.is_test());
    for source in code {
        if let Some((folder, file)) = source.path.split_once("/src/") {
            crates.entry(folder).or_default().insert(module_path(file), Module::read(source));
        }
    }
    let finding = |circle: Vec<&Source>| {
        let paths: Vec<&str> = circle.iter().map(|source| source.path.as_str()).collect();
        let message = format!("these files need each other: {}; move what they share into one", paths.join(", "));
        circle[0].finding(1, "import-circle", message)
    };
    crates.values().flat_map(circles).map(finding).collect()
}

/// `a/b.rs` and `a/b/mod.rs` are a::b; the root of the crate is empty.
fn module_path(file: &str) -> Path {
    let mut path: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

impl Module<'_> {
    fn read(source: &Source) -> Module<'_> {
        let code = source.code_without_tests();
        let mut module = Module { source, code: String::with_capacity(code.len()), names: Vec::new() };
        let mut rest = code;
        // All but `pub use` stays; a re-export is no need of the file that makes it.
        while let Some((at, end)) = next_use(rest) {
            let before = rest[..at].trim_end();
            let public =
                before.rsplit(['\n', ';', '}']).next().is_some_and(|line| line.trim_start().starts_with("pub"));
            let tree = &rest[at + 4..end];
            expand(tree, &[], &mut module.names);
            module.code.push_str(&rest[..at]);
            if !public {
                let mut paths = Vec::new();
                expand(tree, &[], &mut paths);
                paths.iter().for_each(|(_, path)| module.code.push_str(&format!(" {} ;", path.join("::"))));
            }
            rest = &rest[end..];
        }
        module.code.push_str(rest);
        module
    }

    /// The paths in its code.
    fn paths(&self) -> BTreeSet<Path> {
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let paths = self.code.split(|c| !word(c)).filter(|path| path.contains("::"));
        paths.map(|path| path.split("::").map(str::to_owned).collect()).collect()
    }
}

/// Returns the place of the next `use`, and of the semicolon that ends it.
fn next_use(code: &str) -> Option<(usize, usize)> {
    let starts = code.match_indices("use ").map(|(at, _)| at);
    let mut starts = starts.filter(|&at| code[..at].chars().next_back().is_none_or(char::is_whitespace));
    let at = starts.next()?;
    Some((at, at + code[at..].find(';')?))
}

/// The names that a tree of imports brings in, with their whole paths.
fn expand(tree: &str, prefix: &[String], names: &mut Vec<(String, Path)>) {
    let tree = tree.trim();
    let split =
        |path: &str| path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if let Some((head, list)) = tree.split_once('{') {
        let path: Path = split(head);
        let prefix = [prefix, &path].concat();
        let list = list.trim_end().strip_suffix('}').unwrap_or(list);
        branches(list).into_iter().for_each(|branch| expand(branch, &prefix, names));
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let own: Path = split(path);
    let mut path = [prefix, &own].concat();
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = alias.map(str::to_owned).or_else(|| path.last().cloned());
    names.extend(name.map(|name| (name, path)));
}

/// Returns the parts between commas outside braces.
fn branches(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&list[start..]);
    found.retain(|branch| !branch.trim().is_empty());
    found
}

/// Returns a path in `module` as a path from the crate's root; `None` if it leads out of the crate.
fn absolute(modules: &Modules, module: &[String], path: &[String]) -> Option<Path> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
        first => {
            let child = [module, &[first.to_owned()]].concat();
            modules.contains_key(&child).then(|| [module, path].concat())
        }
    }
}

/// The module in which the thing at this path stands.
fn home(modules: &Modules, path: &[String], steps: usize) -> Option<Path> {
    let inside = (0..=path.len()).rev().find(|&length| modules.contains_key(&path[..length]))?;
    let (module, rest) = path.split_at(inside);
    let name = rest.first();
    let source = modules[module].names.iter().find(|(known, _)| Some(known) == name);
    let further = source.and_then(|(_, path)| absolute(modules, module, path)).filter(|path| path[..] != *module);
    match further {
        Some(path) if steps > 0 => home(modules, &[&path, &rest[1..]].concat(), steps - 1),
        _ => Some(module.to_vec()),
    }
}

/// The sets of files that all reach each other.
fn circles<'a>(modules: &Modules<'a>) -> Vec<Vec<&'a Source>> {
    /// More re-exports in a row lead nowhere.
    const STEPS: usize = 8;
    let mut reach: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for (own, module) in modules {
        let homes = module.paths().into_iter().filter_map(|path| home(modules, &absolute(modules, own, &path)?, STEPS));
        let others = homes.filter(|other| !other.starts_with(own) && !own.starts_with(other));
        reach.insert(own, others.filter_map(|other| modules.get_key_value(&other)).map(|(path, _)| path).collect());
    }
    // Whatever is reached reaches on, until nothing is new: crates have some fifty files.
    loop {
        let mut grown = false;
        for own in modules.keys() {
            let further: BTreeSet<&Path> = reach[own].iter().flat_map(|other| &reach[*other]).copied().collect();
            let known = reach.entry(own).or_default();
            let before = known.len();
            known.extend(further);
            grown |= known.len() > before;
        }
        if !grown {
            break;
        }
    }
    let mut found: BTreeSet<Vec<&Path>> = BTreeSet::new();
    for (own, others) in &reach {
        let circle: Vec<&Path> = others.iter().copied().filter(|other| reach[*other].contains(*own)).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().map(|circle| circle.into_iter().map(|path| modules[path].source).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(&format!("crates/a/src/{path}"), Some((*text).into())))
            .collect();
        check(&sources).into_iter().map(|finding| finding.message).collect()
    }

    fn is_circle(files: &[(&str, &str)]) -> bool {
        !found(files).is_empty()
    }

    #[test]
    fn two_files_that_import_each_other_are_found() {
        let circle = [("lib.rs", "mod b;\nmod c;\n"), ("b.rs", "use crate::c::C;\n"), ("c.rs", "use super::b::B;\n")];
        let message = &found(&circle)[0];
        assert!(message.contains("crates/a/src/b.rs, crates/a/src/c.rs"), "{message}");
        assert!(!is_circle(&[("lib.rs", "mod b;\nmod c;\n"), ("b.rs", "use crate::c::C;\n"), ("c.rs", "struct C;\n")]));
    }

    #[test]
    fn a_longer_way_round_is_found() {
        let (b, c) = (("b.rs", "use crate::c::{self, d::E, C};\n"), ("c.rs", "fn f() { crate::e::g(); }\n"));
        assert!(is_circle(&[("lib.rs", ""), b, c, ("e.rs", "use super::b;\n")]));
        assert!(!is_circle(&[("lib.rs", ""), b, c, ("e.rs", "use std::fmt;\n")]));
    }

    #[test]
    fn re_exports_lead_on_and_are_no_needs() {
        let root = ("lib.rs", "mod b;\nmod c;\npub use b::B;\npub use c::C as Other;\n");
        assert!(is_circle(&[root, ("b.rs", "use crate::Other;\n"), ("c.rs", "use crate::{B};\n")]));
        assert!(!is_circle(&[root, ("b.rs", "use crate::Other;\n"), ("c.rs", "struct C;\n")]));
    }

    #[test]
    fn a_module_and_its_folder_are_one_thing_and_tests_do_not_count() {
        let folder = [("b/mod.rs", "mod c;\nuse c::C;\nstruct B;\n"), ("b/c.rs", "use super::B;\n")];
        assert!(!is_circle(&folder));
        let tested = "struct C;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        assert!(!is_circle(&[("b.rs", "use crate::c::C;\n"), ("c.rs", tested)]));
        assert!(!is_circle(&[("b.rs", "use crate::c::C;\n"), ("c.rs", "// use crate::b::B;\n")]));
    }
}
