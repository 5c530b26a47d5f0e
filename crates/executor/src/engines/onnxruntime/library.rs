//! Locates and loads the ONNX Runtime library, once per process.
//!
//! A path from an option or environment variable is used, and an error if it does not work. Without
//! a path, the system's library and then the Python package onnxruntime are tried, because `pip
//! install onnxruntime` is the easiest installation. The Python interpreter in this program's
//! folder is tried first, because a virtual environment with our wheel may not be on the `PATH`.

use crate::LoadError;
use ort::environment::Environment;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The loaded library.
pub(crate) struct Library {
    pub(crate) environment: Environment,
    /// Identifies the build, in the key of cached profiles.
    pub(crate) version: String,
    path: PathBuf,
}

const VARIABLE: &str = "ORT_DYLIB_PATH";
const FIX: &str = "install it with `pip install onnxruntime`, or name its file with --onnxruntime PATH";

#[cfg(target_os = "macos")]
pub(super) const SYSTEM_NAMES: [&str; 1] = ["libonnxruntime.dylib"];
#[cfg(target_os = "windows")]
pub(super) const SYSTEM_NAMES: [&str; 1] = ["onnxruntime.dll"];
#[cfg(not(any(target_os = "macos", target_os = "windows")))]
pub(super) const SYSTEM_NAMES: [&str; 2] = ["libonnxruntime.so", "libonnxruntime.so.1"];

/// Loads the library from `explicit`, or else from the first place that has it.
pub(crate) fn load(explicit: Option<&Path>) -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADING.lock();
    if LIBRARY.get().is_none() {
        let found = find(explicit)?;
        return Ok(LIBRARY.get_or_init(|| found));
    }
    match (LIBRARY.get(), explicit) {
        (Some(library), Some(path)) if path != library.path => Err(LoadError(format!(
            "cannot load ONNX Runtime from {}: this process has loaded {} already, and can hold only one",
            path.display(),
            library.path.display()
        ))),
        (Some(library), _) => Ok(library),
        (None, _) => Err(LoadError(format!("ONNX Runtime was not loaded: {FIX}"))),
    }
}

/// Returns the file that the environment variable names.
pub(super) fn named_by_variable() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn find(explicit: Option<&Path>) -> Result<Library, LoadError> {
    let named = explicit.map(|path| ("--onnxruntime", path.to_path_buf()));
    if let Some((by, path)) = named.or_else(|| Some((VARIABLE, named_by_variable()?))) {
        return open(&path).map_err(|cause| {
            LoadError(format!("cannot load ONNX Runtime, as named by {by}: {cause}; correct the path, or {FIX}"))
        });
    }
    let mut tried = Vec::new();
    let system = SYSTEM_NAMES.iter().map(|name| Ok(PathBuf::from(name)));
    for candidate in system.chain([python_package()]) {
        match candidate.and_then(|path| open(&path)) {
            Ok(library) => return Ok(library),
            Err(cause) => tried.push(cause),
        }
    }
    let tried = tried.join("; ");
    Err(LoadError(format!("cannot find ONNX Runtime: {VARIABLE} is not set; {tried}. To fix it, {FIX}")))
}

fn open(path: &Path) -> Result<Library, String> {
    let builder = ort::init_from(path).map_err(|cause| cause.to_string())?;
    let environment = builder.with_name("ripieno").with_telemetry(false).build().map_err(|cause| cause.to_string())?;
    Ok(Library { environment, version: version(path, ort::info()), path: path.to_path_buf() })
}

/// Returns the commit of the library's build, or else the name of its file.
fn version(path: &Path, build_info: &str) -> String {
    let commit = build_info.split([',', ' ']).find_map(|part| part.strip_prefix("git-commit-id="));
    let file = || path.file_name().map_or("unknown".into(), |name| name.to_string_lossy().into_owned());
    commit.filter(|commit| !commit.is_empty()).map_or_else(file, str::to_owned)
}

/// Returns the library inside the Python package, without importing the package.
pub(super) fn python_package() -> Result<PathBuf, String> {
    let folder = python_folders("onnxruntime")?.remove(0).join("capi");
    let files = std::fs::read_dir(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let library = files.flatten().map(|file| file.path()).find(|path| is_library(path));
    library.ok_or_else(|| format!("{} holds no libonnxruntime", folder.display()))
}

/// Returns the folders of a Python package, at least one, without importing the package.
pub(super) fn python_folders(package: &str) -> Result<Vec<PathBuf>, String> {
    const FIND: &str = "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); \
                        print('\\n'.join(s.submodule_search_locations or []) if s else '')";
    let run = Command::new(python()).args(["-c", FIND, package]).output();
    let run = run.map_err(|cause| format!("python3 cannot be asked for its package {package}: {cause}"))?;
    let folders: Vec<PathBuf> = String::from_utf8_lossy(&run.stdout).lines().map(PathBuf::from).collect();
    if folders.iter().all(|folder| folder.as_os_str().is_empty()) {
        return Err(format!("python3 has no package {package}"));
    }
    Ok(folders)
}

/// Returns the interpreter in this program's folder, or else the first one on the `PATH`.
fn python() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python3"));
    beside.filter(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let linux = name.starts_with("libonnxruntime.so");
    let mac = name.starts_with("libonnxruntime.") && name.ends_with(".dylib");
    linux || mac || name == "onnxruntime.dll"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_in_the_package_is_distinguished_from_its_neighbours() {
        let is = |name: &str| is_library(&Path::new("capi").join(name));
        assert!(is("libonnxruntime.so.1.31.1") && is("libonnxruntime.1.31.1.dylib") && is("onnxruntime.dll"));
        assert!(!is("libonnxruntime_providers_shared.so") && !is("onnxruntime_pybind11_state.so"));
    }

    #[test]
    fn folders_of_python_packages_are_found_and_missing_ones_named() {
        let [folder] = &python_folders("json").unwrap()[..] else { panic!("it has one folder") };
        assert!(folder.join("__init__.py").is_file());
        assert_eq!(python_folders("no_such_package"), Err("python3 has no package no_such_package".to_owned()));
    }

    #[test]
    fn builds_are_distinguished_by_their_commit() {
        let info = "ORT Build Info: git-branch=HEAD, git-commit-id=26250ae, build type=Release";
        assert_eq!(version(Path::new("lib/libonnxruntime.so.1"), info), "26250ae");
        assert_eq!(version(Path::new("lib/libonnxruntime.so.1"), "unknown"), "libonnxruntime.so.1");
    }
}
