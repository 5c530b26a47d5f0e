//! What the demo needs, carried in the binary, so that it works from any folder.

use std::fs;
use std::path::{Path, PathBuf};

const DIGITS: &[u8] = include_bytes!("../../../../models/repository/digits/1/model.onnx");
const DIGITS_TOML: &str = include_str!("../../../../models/repository/digits/model.toml");
const SHAPES: &[u8] = include_bytes!("../../../../models/repository/shapes/1/model.onnx");
const SHAPES_TOML: &str = include_str!("../../../../models/repository/shapes/model.toml");

/// Held-out images with their true labels.
pub(super) const SAMPLES: [&str; 2] =
    [include_str!("../../../../models/samples/digits.json"), include_str!("../../../../models/samples/shapes.json")];

/// ResNet50 as Symphony's Table 3 measured it on a GTX 1080 Ti; profile and SLO are looked up by name.
const RESNET50_TOML: &str = "\
max_batch = 64

[[input]]
name = \"features\"
datatype = \"FP32\"
shape = [-1, 64]

[[output]]
name = \"classes\"
datatype = \"FP32\"
shape = [-1, 10]
";

/// The demo's models in a temporary folder, which goes with this value.
pub(super) struct Folder {
    root: PathBuf,
    /// The repository of the trained models.
    pub(super) models: PathBuf,
    /// The repository of the emulated one.
    pub(super) emulated: PathBuf,
}

impl Folder {
    pub(super) fn unpack() -> std::io::Result<Folder> {
        let root = std::env::temp_dir().join(format!("ripieno-demo-{}", std::process::id()));
        let folder = Folder { models: root.join("models"), emulated: root.join("emulated"), root };
        for (name, onnx, toml) in [("digits", DIGITS, DIGITS_TOML), ("shapes", SHAPES, SHAPES_TOML)] {
            write(&folder.models.join(name).join("1").join("model.onnx"), onnx)?;
            write(&folder.models.join(name).join("model.toml"), toml.as_bytes())?;
        }
        write(&folder.emulated.join("ResNet50").join("model.toml"), RESNET50_TOML.as_bytes())?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.root) {
            tracing::warn!("{} could not be removed: {error}", self.root.display());
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)
}
