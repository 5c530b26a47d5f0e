//! Models and configurations that clients upload in load calls.
//!
//! Engines read files, may read them again when a device or process is added, and cache profiles
//! beside them. An upload is therefore written to a temporary folder, scanned as a repository of
//! one model, and removed when the model is unloaded. Clients choose file names: only plain names
//! in a version folder are accepted. The total size is bounded, and uploads are refused unless the
//! operator allows them.

use super::containment;
use super::model_files::ModelFiles;
use super::scan::{ModelCandidate, scan, with_triton};
use super::triton::TRITON_FILE;
use crate::registry::Upload;
use ripieno_wire::pbtxt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tempfile::TempDir;

/// Maximum size of a JSON configuration.
const MAX_CONFIG_BYTES: usize = 64 << 10;
/// Maximum length of a model or file name.
const MAX_NAME_BYTES: usize = 255;

/// Bounded storage for uploads.
pub(super) struct UploadStore {
    max_bytes: u64,
    held_bytes: Arc<AtomicU64>,
}

/// The files uploaded for one model; removed from the disk on drop.
pub(super) struct UploadedModel {
    folder: TempDir,
    bytes: u64,
    held_bytes: Arc<AtomicU64>,
}

impl UploadStore {
    /// Creates a store for at most `max_bytes` bytes of files.
    pub(super) fn new(bound: u64) -> UploadStore {
        UploadStore { max_bytes: bound, held_bytes: Arc::default() }
    }

    /// Writes an upload to a temporary folder. The error is shown to the client.
    pub(super) fn save(&self, name: &str, upload: &Upload) -> Result<UploadedModel, String> {
        check_name(name).map_err(|cause| format!("the model's name {name:?} {cause}"))?;
        let config = upload.config.as_deref().map(config_text).transpose()?;
        let files = upload.files.iter().map(|(path, content)| Ok((version_path(path)?, content)));
        let files: Vec<_> = files.collect::<Result<_, String>>()?;
        let bytes = files.iter().map(|(_, content)| content.len() as u64).sum();
        let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= self.max_bytes);
        if let Err(held) = self.held_bytes.fetch_update(Relaxed, Relaxed, fits) {
            return Err(format!(
                "the files have {bytes} bytes, and those of other models {held}, of {} (--load-overrides); unload some, or put the \
                 model into the repository",
                self.max_bytes
            ));
        }
        let held = self.held_bytes.clone();
        let folder = tempfile::Builder::new().prefix("ripieno-model-").tempdir().map_err(|error| {
            held.fetch_sub(bytes, Relaxed);
            format!("no folder can be made for the files: {error}")
        })?;
        let uploaded = UploadedModel { folder, bytes, held_bytes: held };
        uploaded.write(name, config, files).map_err(|error| format!("the files cannot be kept: {error}"))?;
        Ok(uploaded)
    }
}

impl UploadedModel {
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

    /// Returns the model candidate: the uploaded files, or the repository's model with the uploaded
    /// configuration.
    pub(super) fn candidate(
        &self,
        name: &str,
        brought: &Upload,
        own: Option<ModelCandidate>,
    ) -> Result<ModelCandidate, String> {
        if !brought.files.is_empty() {
            let mut candidates = scan(self.folder.path())?.into_iter();
            let candidate = candidates.next().ok_or_else(|| format!("the files of '{name}' are no model"))?;
            return refuse_python(candidate);
        }
        let own = own.ok_or_else(|| {
            format!(
                "Request for unknown model: '{name}' is not found; bring its files along, or put it into the repository"
            )
        })?;
        let config = self.folder.path().join(name).join(TRITON_FILE);
        let found = own.found.and_then(|found: ModelFiles| with_triton(found, config));
        refuse_python(ModelCandidate { found, name: own.name })
    }

    /// Returns the error without the server's folders.
    pub(super) fn for_clients(&self, text: &str) -> String {
        containment::error_for_clients(self.folder.path(), text)
    }
}

/// Refuses a model in Python: a client must not choose the code that the server runs.
fn refuse_python(candidate: ModelCandidate) -> Result<ModelCandidate, String> {
    match &candidate.found {
        Ok(found) if found.is_python() => Err(format!(
            "'{}' is written in Python, and load calls bring no code; put it into the repository",
            candidate.name
        )),
        _ => Ok(candidate),
    }
}

impl Drop for UploadedModel {
    fn drop(&mut self) {
        self.held_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Converts the JSON configuration into the text of a `config.pbtxt`.
fn config_text(json: &str) -> Result<String, String> {
    if json.len() > MAX_CONFIG_BYTES {
        return Err(format!("the parameter config has {} bytes; it may have {MAX_CONFIG_BYTES}", json.len()));
    }
    pbtxt::from_json(json)
        .map_err(|cause| format!("the parameter config is no configuration of a model in JSON: {cause}"))
}

/// Returns the path of an uploaded file relative to its model's folder.
fn version_path(path: &str) -> Result<PathBuf, String> {
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

/// Checks that a name is a plain file name that the scan does not skip.
fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("is empty"),
        _ if name.len() > MAX_NAME_BYTES => Err("is too long"),
        _ if name.starts_with('.') => Err("begins with a dot"),
        _ if name.contains(['/', '\\']) || name.contains(char::is_control) => Err("is no plain name"),
        _ => Ok(()),
    }
}
