//! Checks of the commands in the guides and the README: each line of a shell block that starts this
//! program is a command line that it accepts, and each folder of manifests that is applied exists.
//! What the commands do is for the tests of `tests/` and `tests/python`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages with commands.
fn pages() -> Vec<PathBuf> {
    let guides = fs::read_dir(root().join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = guides.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// Returns the lines of the page's shell blocks, with those joined that end in a backslash.
fn shell_lines(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Splits a line into words: quotes group, a word that begins with # ends the line.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut inside) = (Vec::new(), String::new(), None, false);
    for letter in line.chars().chain([' ']) {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            (letter, Some(_)) => word.push(letter),
            ('\'' | '"', None) => (quote, inside) = (Some(letter), true),
            ('#', None) if !inside => break,
            (' ' | '\t', None) if inside => {
                words.push(std::mem::take(&mut word));
                inside = false;
            }
            (' ' | '\t', None) => {}
            (letter, None) => {
                word.push(letter);
                inside = true;
            }
        }
    }
    words
}

/// Returns the command lines of this program in a line, with the page's variables in their places.
fn own_commands(words: &[String], variables: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let ends = |word: &&String| matches!(word.as_str(), "|" | "&" | "&&" | ";" | ">" | "2>&1" | "then" | "do");
    let starts = words.iter().enumerate().filter(|(at, word)| {
        let before = at.checked_sub(1).map(|before| words[before].as_str());
        let leads = before.is_none_or(|before| {
            before.ends_with('$') || before.contains('=') || matches!(before, "|" | "&" | "&&" | ";" | "then" | "do")
        });
        *word == "ripieno" && leads
    });
    let command = |at: usize| {
        let own = words[at..].iter().take_while(|word| !ends(word));
        own.map(|word| {
            variables.iter().fold(word.clone(), |word, (name, value)| word.replace(&format!("${name}"), value))
        })
    };
    starts.map(|(at, _)| command(at).collect()).collect()
}

/// Returns true for what stands for something that the reader fills in.
fn is_pattern(command: &[String]) -> bool {
    command.iter().any(|word| word.contains(['[', '<', '…', '|']) || word == "..." || word.ends_with("..."))
}

#[test]
fn commands_of_the_guides_are_those_of_the_program() {
    let mut checked = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let mut variables = BTreeMap::new();
        for line in shell_lines(&text) {
            let words = words(&line);
            if let [word] = words.as_slice()
                && let Some((name, value)) = word.split_once('=')
            {
                variables.insert(name.to_owned(), value.to_owned());
            }
            for command in own_commands(&words, &variables).into_iter().filter(|command| !is_pattern(command)) {
                let given = command.iter().map(std::ffi::OsString::from).collect();
                let parsed = crate::command().try_get_matches_from::<Vec<std::ffi::OsString>, _>(given);
                // Help and the version end early, too.
                if let Err(error) = parsed.map(drop)
                    && error.use_stderr()
                {
                    panic!("{}: {line}\n{error}", page.display());
                }
                checked += 1;
            }
        }
    }
    assert!(checked >= 30, "{checked} commands");
}

#[test]
fn manifests_that_the_guides_apply_are_there() {
    let mut applied = 0;
    for page in pages() {
        for line in shell_lines(&fs::read_to_string(&page).unwrap()) {
            let words = words(&line);
            let Some(at) = words.iter().position(|word| word == "-k") else { continue };
            let folder = &words[at + 1];
            // The reader's own copy of an overlay.
            if folder == "overlays/next" {
                continue;
            }
            let folder = folder.strip_prefix("deploy/kubernetes/").unwrap_or(folder);
            let file = root().join("deploy/kubernetes").join(folder).join("kustomization.yaml");
            assert!(file.is_file(), "{}: {line}: no {}", page.display(), file.display());
            applied += 1;
        }
    }
    assert!(applied >= 2, "{applied}");
}

#[test]
fn lines_are_split_as_a_shell_would() {
    let split = |line: &str| words(line);
    assert_eq!(split("a  'b c' \"d\"e # f"), ["a", "b c", "de"]);
    assert_eq!(split("x#y --flag=a#b"), ["x#y", "--flag=a#b"]);
    let known = BTreeMap::from([("all".to_owned(), "a:1,b:1".to_owned())]);
    let commands = own_commands(&split("gpu1$ ripieno backend /models --scheduler $all &"), &known);
    assert_eq!(commands, [["ripieno", "backend", "/models", "--scheduler", "a:1,b:1"]]);
    assert!(own_commands(&split("pip install ripieno"), &known).is_empty());
}
