//! Migration of `config.pbtxt` files to `model.toml`. Model files are read and compared with what
//! is declared of their tensors, but not loaded by an engine.

use super::{FieldFinding, TritonConfig};
use crate::model_files::ModelFiles;
use crate::scan::{CONFIG_FILE, scan};
use ripieno_onnx::{Declared, OnnxFile};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Migration of one model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Migration {
    /// Model name.
    pub model: String,
    /// Path of its `config.pbtxt`; `None` if there is nothing to migrate.
    pub file: Option<String>,
    /// Outcome of each field, in the order of the file.
    pub fields: Vec<FieldFinding>,
    /// Text of the equivalent `model.toml`.
    pub model_toml: Option<String>,
    /// Path of that `model.toml`.
    #[serde(skip)]
    pub target: PathBuf,
    /// Reason for which the model is not served: file, line, field and fix.
    pub error: Option<String>,
}

/// Migrates every model at `path`. Fails if the path itself cannot be read.
pub fn migrate(path: &Path) -> Result<Vec<Migration>, String> {
    let one = |candidate: crate::scan::ModelCandidate| {
        let model = candidate.name;
        let none = |error| Migration {
            model: model.clone(),
            file: None,
            fields: Vec::new(),
            model_toml: None,
            target: PathBuf::new(),
            error,
        };
        let found = match candidate.found {
            Ok(found) => found,
            Err(error) => return none(Some(error)),
        };
        let target = found.folder.join(CONFIG_FILE);
        let Some(file) = &found.triton else { return Migration { target, ..none(None) } };
        let shown = Some(file.display().to_string());
        match TritonConfig::read(file, &found.name, &found.versions) {
            Err(error) => Migration { file: shown, target, ..none(Some(error)) },
            Ok(read) => {
                let error = read.check().and_then(|()| check_file(&read, &found)).err();
                // An ensemble is configured by its config.pbtxt and has no model.toml.
                let text = (error.is_none() && read.steps.is_empty()).then(|| written(&read));
                Migration { file: shown, target, fields: read.findings, model_toml: text, ..none(error) }
            }
        }
    };
    Ok(scan(path)?.into_iter().map(one).collect())
}

/// Reads the model's file and compares its tensors with the declared ones.
fn check_file(read: &TritonConfig, found: &ModelFiles) -> Result<(), String> {
    if !read.steps.is_empty() || found.is_python() {
        return Ok(());
    }
    let file = OnnxFile::read(&found.model).map_err(|error| error.to_string())?;
    let declared = Declared::of(&file).map_err(|error| error.to_string())?;
    read.check_tensors(&declared.inputs, &declared.outputs)
}

fn written(read: &TritonConfig) -> String {
    let settings = read.settings.to_toml(read.model_file.as_deref());
    format!("# Written by ripieno migrate. It goes before the config.pbtxt beside it.\n{settings}")
}

fn ignore_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

impl Migration {
    /// Writes the `model.toml`; replaces an existing one only if `replace` is set.
    pub fn write(&self, replace: bool) -> Result<(), String> {
        let Some(text) = &self.model_toml else { return Ok(()) };
        let shown = self.target.display();
        let unwritable = |error: io::Error| match error.kind() {
            ErrorKind::AlreadyExists => {
                format!("{shown}: is there already, and goes before config.pbtxt; --force replaces it")
            }
            _ => format!("{shown}: cannot be written: {error}"),
        };
        if replace {
            fs::remove_file(&self.target).or_else(ignore_absent).map_err(unwritable)?;
        }
        // Never writes through a symbolic link, which could lead anywhere.
        let mut file = OpenOptions::new().write(true).create_new(true).open(&self.target).map_err(unwritable)?;
        file.write_all(text.as_bytes()).map_err(unwritable)
    }
}

#[cfg(test)]
mod tests {
    use super::super::FieldOutcome;
    use super::*;
    use crate::config::ModelConfig;
    use crate::fixture::TempRepository;

    #[test]
    fn every_model_is_explained_and_written_once() {
        let folder = TempRepository::new();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../executor/tests/models/mlp.onnx");
        folder.write("a/1/net.onnx", fs::read(file).unwrap());
        folder.write("a/config.pbtxt", "name: \"a\"\nmax_batch_size: 4\ndefault_model_filename: \"net.onnx\"\n");
        folder.write("b/1/model.onnx", "");
        folder.write("b/config.pbtxt", "max_batch_size: 4\nbatch_input { }");
        folder.write("c.onnx", "");
        folder.write("d/1/model.onnx", "");
        folder.write("d/config.pbtxt", "max_batch_size: four");
        folder.write("e/1/.keep", "");
        folder.write("e/config.pbtxt", "platform: \"ensemble\" ensemble_scheduling { step { model_name: \"a\" } }");
        folder.write("f/1/model.onnx", fs::read(file).unwrap());
        folder.write("f/config.pbtxt", "max_batch_size: 4\ninput { name: \"x\" data_type: TYPE_FP32 dims: 5 }\n");
        let models = migrate(folder.path()).unwrap();
        let names: Vec<&str> = models.iter().map(|model| model.model.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
        let wrong = models[5].error.as_ref().unwrap();
        assert!(
            wrong.contains("f/config.pbtxt: input \"x\": dims and max_batch_size say [-1, 5], the model has [-1, 4]"),
            "{wrong}"
        );
        let outcomes: Vec<FieldOutcome> = models[0].fields.iter().map(|field| field.outcome).collect();
        assert_eq!(outcomes, [FieldOutcome::Honoured, FieldOutcome::Mapped, FieldOutcome::Honoured]);
        assert!(models[1].error.as_ref().unwrap().contains("batch_input[0] = {}: ragged batches are not formed"));
        assert_eq!((models[1].fields.len(), &models[1].model_toml), (2, &None));
        assert_eq!((&models[2].file, &models[2].error), (&None, &None));
        assert!(models[3].error.as_ref().unwrap().contains("d/config.pbtxt:1: expected an integer"));
        assert_eq!((&models[4].error, &models[4].model_toml), (&None, &None), "it has no model.toml");
        assert!(models[4].fields.iter().all(|field| field.outcome == FieldOutcome::Honoured), "{:?}", models[4].fields);
        for model in &models {
            model.write(false).unwrap();
        }
        let written = ModelConfig::read(&folder.path().join("a/model.toml")).unwrap();
        assert_eq!((written.max_batch, written.blocks[0].file.as_deref()), (Some(4), Some("net.onnx")));
        assert!(!folder.path().join("b/model.toml").exists() && !folder.path().join("d/model.toml").exists());
        assert!(models[0].write(false).unwrap_err().contains("a/model.toml: is there already"));
        models[0].write(true).unwrap();
        let (link, outside) = (folder.path().join("a/model.toml"), folder.path().join("outside"));
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        assert!(models[0].write(false).is_err() && !outside.exists());
        models[0].write(true).unwrap();
        assert!(!outside.exists() && fs::symlink_metadata(&link).unwrap().is_file());
    }
}
