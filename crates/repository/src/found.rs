//! What is known of a model before anything of it is read.

use std::path::PathBuf;

/// A model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The folder that its cached profiles are kept in, under `.ripieno`.
    pub folder: PathBuf,
    /// Its `model.toml`, where there is one.
    pub config: Option<PathBuf>,
    /// Its `config.pbtxt`, where there is one.
    pub triton: Option<PathBuf>,
    /// The versions that are there, ascending, whichever are served.
    pub versions: Vec<u64>,
    /// Those that are served, ascending: the last is `version`.
    pub served: Vec<u64>,
    /// Whether it is an ensemble of other models, by its `config.pbtxt`.
    pub is_ensemble: bool,
    /// The folder that a `[[block]]`'s file is looked up in; none if the model has a configuration only.
    pub version_folder: Option<PathBuf>,
    /// The ONNX file of a model of one block; whether it exists is checked at load.
    pub model: PathBuf,
    /// The folder that all of it must lie in.
    pub root: PathBuf,
    /// A file that may lie where it likes: the one that whoever started the server named, or a configuration that a load call brought.
    pub named: Option<PathBuf>,
}

impl Found {
    /// The same model, once for each version that is served, the oldest first.
    pub fn each_version(&self) -> impl Iterator<Item = Found> {
        self.served.iter().map(|version| self.at(*version))
    }

    fn at(&self, version: u64) -> Found {
        let version = version.to_string();
        if version == self.version {
            return self.clone();
        }
        let folder = self.folder.join(&version);
        let file = self.model.file_name().unwrap_or_default();
        Found { model: folder.join(file), version_folder: Some(folder), version, ..self.clone() }
    }
}
