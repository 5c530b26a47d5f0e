//! Models, and configurations, that load calls bring along.
//!
//! Engines read files, may read them again when a device or a process comes, and keep profiles beside them. So what is brought is
//! written into a folder of its own, looked at as a repository of one model is, and removed once the model is no longer served.
//! A caller chooses names of files: they are refused unless they are plain ones in a folder of a version. How much is kept is
//! bounded, and nothing is kept where nobody said that models may be brought.

use super::borders;
use super::found::Found;
use super::scan::{Candidate, scan, with_triton};
use super::triton::TRITON_FILE;
use crate::registry::Brought;
use ripieno_wire::pbtxt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tempfile::TempDir;

/// The longest configuration, in JSON.
const LONGEST_CONFIG: usize = 64 << 10;
/// The longest name of a model or file.
const LONGEST_NAME: usize = 255;

/// Where what is brought is kept.
pub(super) struct Store {
    bound: u64,
    held: Arc<AtomicU64>,
}

/// What was brought for one model; gone from the disk when this is dropped.
pub(super) struct Kept {
    folder: TempDir,
    bytes: u64,
    held: Arc<AtomicU64>,
}

impl Store {
    /// For so many bytes of files.
    pub(super) fn new(bound: u64) -> Store {
        Store { bound, held: Arc::default() }
    }

    /// Writes what was brought for a model. The error is for its caller.
    pub(super) fn keep(&self, name: &str, brought: &Brought) -> Result<Kept, String> {
        check_name(name).map_err(|cause| format!("the model's name {name:?} {cause}"))?;
        let config = brought.config.as_deref().map(text).transpose()?;
        let files = brought.files.iter().map(|(path, content)| Ok((in_version(path)?, content)));
        let files: Vec<_> = files.collect::<Result<_, String>>()?;
        let bytes = files.iter().map(|(_, content)| content.len() as u64).sum();
        let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= self.bound);
        if let Err(held) = self.held.fetch_update(Relaxed, Relaxed, fits) {
            return Err(format!(
                "the files have {bytes} bytes, and those of other models {held}, of {} (--load-overrides); unload some, or put the \
                 model into the repository",
                self.bound
            ));
        }
        let held = self.held.clone();
        let folder = tempfile::Builder::new().prefix("ripieno-model-").tempdir().map_err(|error| {
            held.fetch_sub(bytes, Relaxed);
            format!("no folder can be made for the files: {error}")
        })?;
        let kept = Kept { folder, bytes, held };
        kept.write(name, config, files).map_err(|error| format!("the files cannot be kept: {error}"))?;
        Ok(kept)
    }
}

impl Kept {
    fn write(
        &self,
        name: &str,
        config: Option<String>,
        files: Vec<(PathBuf, &bytes::Bytes)>,
    ) -> Result<(), std::io::Error> {
        let model = self.folder.path().join(name);
        fs::create_dir(&model)?;
        for (path, content) in files {
            let path = model.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&model))?;
            fs::write(path, content)?;
        }
        config.map_or(Ok(()), |config| fs::write(model.join(TRITON_FILE), config))
    }

    /// The model: of what was brought alone, or the repository's with the configuration that was.
    pub(super) fn candidate(&self, name: &str, brought: &Brought, own: Option<Candidate>) -> Result<Candidate, String> {
        if !brought.files.is_empty() {
            let mut candidates = scan(self.folder.path())?.into_iter();
            return candidates.next().ok_or_else(|| format!("the files of '{name}' are no model"));
        }
        let own = own.ok_or_else(|| {
            format!(
                "Request for unknown model: '{name}' is not found; bring its files along, or put it into the repository"
            )
        })?;
        let config = self.folder.path().join(name).join(TRITON_FILE);
        Ok(Candidate { found: own.found.and_then(|found: Found| with_triton(found, config)), name: own.name })
    }

    /// An error as clients may see it.
    pub(super) fn for_clients(&self, text: &str) -> String {
        borders::for_clients(self.folder.path(), text)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// The configuration as the text of a `config.pbtxt`.
fn text(json: &str) -> Result<String, String> {
    if json.len() > LONGEST_CONFIG {
        return Err(format!("the parameter config has {} bytes; it may have {LONGEST_CONFIG}", json.len()));
    }
    pbtxt::from_json(json)
        .map_err(|cause| format!("the parameter config is no configuration of a model in JSON: {cause}"))
}

/// Where a file goes below its model's folder.
fn in_version(path: &str) -> Result<PathBuf, String> {
    let refuse = |cause: &str| {
        format!("the parameter \"file:{path}\" {cause}; name it file:VERSION/NAME, as in file:1/model.onnx")
    };
    let (version, name) = path.split_once('/').ok_or_else(|| refuse("names no version"))?;
    if version.parse().ok().filter(|number: &u64| *number > 0).map(|number| number.to_string()).as_deref()
        != Some(version)
    {
        return Err(refuse("has no number of a version"));
    }
    check_name(name).map_err(|cause| refuse(&format!("names a file that {cause}")))?;
    Ok(Path::new(version).join(name))
}

/// Whether this is a plain name within a folder, and one that is not passed over.
fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("is empty"),
        _ if name.len() > LONGEST_NAME => Err("is too long"),
        _ if name.starts_with('.') => Err("begins with a dot"),
        _ if name.contains(['/', '\\']) || name.contains(char::is_control) => Err("is no plain name"),
        _ => Ok(()),
    }
}
