//! The Python virtual environments of the tests: made once under the target directory, kept while
//! the requirements stay the same. There are two, because PyTorch, which only the exporter's tests
//! need, fills gigabytes.

use crate::steps::{build_alike, cargo, output, root, step};
use anyhow::{Context, Result, bail};
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages of an environment, and its folder under the target directory.
pub(crate) struct Packages {
    folder: &'static str,
    requirements: &'static [&'static str],
}

/// The environment of the tests with stock clients; it has the onnxruntime library of the Rust
/// tests.
pub(crate) const CLIENTS: Packages =
    Packages { folder: "python-venv", requirements: &["tests/python/requirements.txt"] };
/// The same and PyTorch.
pub(crate) const EXPORT: Packages = Packages {
    folder: "python-export-venv",
    requirements: &["tests/python/requirements.txt", "tests/export/requirements.txt"],
};
/// Holds the packages that the required ones bring along.
const CONSTRAINTS: &str = "tests/python/constraints.txt";
/// The interpreters that the pinned packages install on, as minor versions of Python 3.
const SUPPORTED: std::ops::RangeInclusive<u32> = 10..=13;
/// Interpreters to try, in order.
const CANDIDATES: [&str; 5] = ["python3", "python3.13", "python3.12", "python3.11", "python3.10"];

/// A ready environment.
pub(crate) struct Environment {
    folder: PathBuf,
    target: PathBuf,
}

impl Environment {
    /// Finds the environment, or makes it.
    pub(crate) fn prepare(packages: &Packages) -> Result<Environment> {
        let target = target_directory()?;
        let environment = Environment { folder: target.join(packages.folder), target };
        let stamp = environment.folder.join("requirements.stamp");
        let wanted = fingerprint(packages)?;
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            eprintln!("=== Python environment: {} is up to date", environment.folder.display());
            return Ok(environment);
        }
        environment.make(packages)?;
        fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(environment)
    }

    /// The onnxruntime library inside its wheel.
    pub(crate) fn onnxruntime(&self) -> Result<PathBuf> {
        let ask = "import onnxruntime, pathlib; print(pathlib.Path(onnxruntime.__file__).parent / 'capi')";
        let folder = PathBuf::from(output(Command::new(self.python()).args(["-c", ask]))?.trim());
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let found = entries.flatten().map(|entry| entry.path()).find(|path| is_onnxruntime(path));
        found.with_context(|| {
            format!("no onnxruntime library in {}; remove the environment and try again", folder.display())
        })
    }

    /// A pytest run over some paths, from the root of the repository.
    pub(crate) fn pytest(&self, paths: &[&str]) -> Result<Command> {
        let mut command = self.script("-m")?;
        command.args(["pytest", "-p", "no:cacheprovider"]).args(paths);
        Ok(command)
    }

    /// A Python program, or package with a `__main__`, run from the root of the repository.
    pub(crate) fn script(&self, path: &str) -> Result<Command> {
        let mut command = Command::new(self.python());
        command.arg(path).current_dir(root()).env("ORT_DYLIB_PATH", self.onnxruntime()?);
        command.env("RIPIENO_TARGET", &self.target).env("PYTHONDONTWRITEBYTECODE", "1");
        build_alike(&mut command);
        Ok(command)
    }

    /// The folder of cargo's build products.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Prints the library's path alone, so that a shell can take it.
    pub(crate) fn print(&self) -> Result<()> {
        println!("{}", self.onnxruntime()?.display());
        Ok(())
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin").join("python")
    }

    fn make(&self, packages: &Packages) -> Result<()> {
        let python = interpreter()?;
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).with_context(|| format!("cannot remove {}", self.folder.display()))?;
        }
        let mut venv = Command::new(python);
        venv.args(["-m", "venv"]).arg(&self.folder);
        step("Python environment", &mut venv)
            .context("python3 -m venv failed; on Debian: apt-get install python3-venv")?;
        let mut install = Command::new(self.python());
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]);
        install.args(packages.requirements.iter().flat_map(|file| ["--requirement", file]));
        install.args(["--constraint", CONSTRAINTS]).current_dir(root());
        step("Python packages (once)", &mut install)
    }
}

pub(crate) fn target_directory() -> Result<PathBuf> {
    let text = output(&mut cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?.into())
}

/// Changes with any byte of the requirements and with the place: an environment does not survive
/// being moved.
fn fingerprint(packages: &Packages) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    root().hash(&mut hasher);
    for file in packages.requirements.iter().chain([&CONSTRAINTS]) {
        fs::read(root().join(file)).with_context(|| format!("cannot read {file}"))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn interpreter() -> Result<&'static str> {
    let ask = "import sys, ensurepip, venv; print(sys.version_info.minor if sys.version_info.major == 3 else 0)";
    for candidate in CANDIDATES {
        let minor = output(Command::new(candidate).args(["-c", ask])).ok().and_then(|text| text.trim().parse().ok());
        if minor.is_some_and(|minor: u32| SUPPORTED.contains(&minor)) {
            return Ok(candidate);
        }
    }
    bail!(
        "no Python 3.{} to 3.{} with the modules venv and ensurepip among {}; on Debian: apt-get install python3-venv",
        SUPPORTED.start(),
        SUPPORTED.end(),
        CANDIDATES.join(", ")
    )
}

fn is_onnxruntime(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("libonnxruntime.") && !name.contains("providers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_its_neighbours() {
        assert!(is_onnxruntime(Path::new("capi/libonnxruntime.so.1.31.1")));
        assert!(is_onnxruntime(Path::new("capi/libonnxruntime.1.31.1.dylib")));
        assert!(!is_onnxruntime(Path::new("capi/libonnxruntime_providers_shared.so")));
        assert!(!is_onnxruntime(Path::new("capi/onnxruntime_pybind11_state.so")));
    }

    #[test]
    fn the_fingerprint_is_stable_and_tells_environments_apart() {
        assert_eq!(fingerprint(&CLIENTS).unwrap(), fingerprint(&CLIENTS).unwrap());
        assert_ne!(fingerprint(&CLIENTS).unwrap(), fingerprint(&EXPORT).unwrap());
    }
}
