//! Location of a model's files, known before any of them is read.

use std::path::{Path, PathBuf};

/// Configuration file in a model folder.
pub const CONFIG_FILE: &str = "model.toml";

/// ONNX file in a version folder.
pub const MODEL_FILE: &str = "model.onnx";
/// Python file in a version folder, served if there is no ONNX file.
pub const PYTHON_FILE: &str = "model.py";

/// A model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// Model name.
    pub name: String,
    /// Model version.
    pub version: String,
    /// Folder whose `.ripieno` caches the profiles.
    pub folder: PathBuf,
    /// Path of `model.toml`, if present.
    pub config: Option<PathBuf>,
    /// Path of `config.pbtxt`, if present.
    pub triton: Option<PathBuf>,
    /// Existing versions, ascending, whether served or not.
    pub versions: Vec<u64>,
    /// Served versions, ascending; the last is `version`.
    pub served: Vec<u64>,
    /// Whether the `config.pbtxt` describes an ensemble.
    pub is_ensemble: bool,
    /// Folder in which a `[[block]]`'s file is looked up; `None` if the model has only a
    /// configuration.
    pub version_folder: Option<PathBuf>,
    /// ONNX or Python file of a model of one block; its existence is checked at load.
    pub model: PathBuf,
    /// Folder that must contain all files.
    pub root: PathBuf,
    /// File that may lie outside of `root`: the one that the operator named, or an uploaded
    /// configuration.
    pub named: Option<PathBuf>,
}

impl ModelFiles {
    /// Returns true if the model is written in Python.
    pub fn is_python(&self) -> bool {
        self.model.extension().is_some_and(|extension| extension == "py")
    }

    /// Returns the path at which settings of the model are read: `NAME.toml` beside a `NAME.onnx`,
    /// and otherwise `model.toml` in its folder.
    pub fn settings(&self) -> PathBuf {
        // The folder of `model.onnx` in the working directory is empty, or a dot.
        let plain = |folder: &Path| if folder == Path::new(".") { PathBuf::new() } else { folder.to_owned() };
        let lies_alone = self.model.parent().is_some_and(|parent| plain(parent) == plain(&self.folder))
            && self.model.file_stem().is_some_and(|stem| stem == self.name.as_str());
        match &self.config {
            Some(config) => config.clone(),
            None if lies_alone => self.model.with_extension("toml"),
            None => self.folder.join(CONFIG_FILE),
        }
    }

    /// Returns one instance for each served version, oldest first.
    pub fn each_version(&self) -> impl Iterator<Item = ModelFiles> {
        self.served.iter().map(|version| self.at(*version))
    }

    fn at(&self, version: u64) -> ModelFiles {
        let version = version.to_string();
        if version == self.version {
            return self.clone();
        }
        let folder = self.folder.join(&version);
        let model = match self.model.file_name().and_then(|name| name.to_str()) {
            Some(MODEL_FILE | PYTHON_FILE) | None => file_in(&folder),
            Some(named) => folder.join(named),
        };
        ModelFiles { model, version_folder: Some(folder), version, ..self.clone() }
    }
}

/// Returns the file that is served of a version folder: the ONNX file, or the Python file if there
/// is only that.
pub(super) fn file_in(folder: &Path) -> PathBuf {
    let (onnx, python) = (folder.join(MODEL_FILE), folder.join(PYTHON_FILE));
    if !onnx.is_file() && python.is_file() { python } else { onnx }
}
