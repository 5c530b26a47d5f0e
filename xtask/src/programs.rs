//! The Rust tests, two programs at a time: some compute for minutes, others wait for clocks and
//! sockets most of theirs.
//!
//! Cargo runs one after the other. What each prints is shown if it fails.

use crate::steps::{cargo, output};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

const SIDE_BY_SIDE: usize = 2;
/// Crates whose tests take the longest: they run first, beside all others.
const LONGEST: &str = "ripieno-sim";
/// Random tests draw the same cases at each run, so that a commit passes or fails always. They are
/// fewer than proptest's 256: a hunt with other seeds and more of them is CONTRIBUTING's.
const RANDOM: [(&str, &str); 2] = [("PROPTEST_RNG_SEED", "1"), ("PROPTEST_CASES", "128")];

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    package: String,
    target: String,
    file: PathBuf,
    /// Folder in which cargo would run it.
    folder: PathBuf,
}

/// Runs all programs; an error names those that failed. `library` is the library of ONNX Runtime.
pub(crate) fn run(library: &Path) -> Result<()> {
    let listed = output(&mut cargo(&["test", "--workspace", "--no-run", "--message-format", "json"]))?;
    let mut programs = listed.lines().map(read).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
    programs.sort_by_key(|program| program.package != LONGEST);
    if programs.is_empty() {
        bail!("cargo lists no tests");
    }
    let (queue, failed) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || queue.lock().expect("no thread panics with the queue").pop_front();
    let work = || {
        while let Some(program) = next() {
            if let Err(error) = program.run(library) {
                eprintln!("{error:#}");
                failed.lock().expect("no thread panics with the list").push(program.name());
            }
        }
    };
    std::thread::scope(|scope| (0..SIDE_BY_SIDE).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().expect("no thread panics with the list");
    if failed.is_empty() { Ok(()) } else { bail!("tests failed: {}", failed.join(", ")) }
}

/// The program of tests that a line of cargo's tells of, if it does.
fn read(line: &str) -> Result<Option<Program>> {
    let told: Value = serde_json::from_str(line).with_context(|| format!("cargo printed {line:?}"))?;
    let (Some(file), Some(true)) = (told["executable"].as_str(), told["profile"]["test"].as_bool()) else {
        return Ok(None);
    };
    let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("an unexpected form: {line}"));
    let manifest = PathBuf::from(text(&told["manifest_path"])?);
    let folder = manifest.parent().context("a manifest lies in a folder")?.to_path_buf();
    let identity = text(&told["package_id"])?;
    let package = identity.rsplit(['/', '#']).find(|part| !part.starts_with(|first: char| first.is_ascii_digit()));
    let package = package.unwrap_or(&identity).split('@').next().unwrap_or_default().to_owned();
    Ok(Some(Program { package, target: text(&told["target"]["name"])?, file: file.into(), folder }))
}

impl Program {
    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    fn run(&self, library: &Path) -> Result<()> {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).env("ORT_DYLIB_PATH", library);
        command.envs(RANDOM.iter().filter(|(name, _)| std::env::var_os(name).is_none()).copied());
        let begun = Instant::now();
        let done = command.output().with_context(|| format!("cannot start {}", self.file.display()))?;
        let printed = String::from_utf8_lossy(&done.stdout);
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            bail!("=== {} ended with {}\n{printed}\n{said}", self.name(), done.status);
        }
        let result = printed.lines().rfind(|line| line.starts_with("test result")).unwrap_or("no test result");
        eprintln!("{:<36} {:6.1} s  {result}", self.name(), begun.elapsed().as_secs_f64());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_tests_is_read_from_what_cargo_says() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason": "compiler-artifact", "package_id": "path+file:///w/crates/sim#ripieno-sim@0.1.0",
                "manifest_path": "/w/crates/sim/Cargo.toml", "target": {{"name": "suite"}}, "profile": {{"test": {test}}},
                "executable": {executable}}}"#
            )
        };
        let program = read(&line(true, "\"/w/target/debug/deps/suite-1\"")).unwrap().unwrap();
        assert_eq!(program.name(), "ripieno-sim suite");
        assert_eq!((program.file, program.folder), ("/w/target/debug/deps/suite-1".into(), "/w/crates/sim".into()));
        assert!(read(&line(false, "\"/w/target/debug/ripieno\"")).unwrap().is_none());
        assert!(read(&line(true, "null")).unwrap().is_none());
        assert_eq!(
            read(&line(true, "\"/x\"").replace("crates/sim#ripieno-sim@", "xtask#")).unwrap().unwrap().package,
            "xtask"
        );
        assert!(read("no JSON").is_err());
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_what_it_printed() {
        let program = |file: &str| Program {
            package: "p".to_owned(),
            target: "t".to_owned(),
            file: file.into(),
            folder: std::env::temp_dir(),
        };
        assert!(program("true").run(Path::new("")).is_ok());
        assert!(program("false").run(Path::new("")).unwrap_err().to_string().contains("p t ended with"));
        assert!(program("no-such-program").run(Path::new("")).is_err());
    }
}
