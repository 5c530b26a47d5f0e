//! The models of the demo, embedded in the binary, so that it works in any folder.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of models/repository, by its path there.
macro_rules! files {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../../../../../models/repository/", $path)).as_slice())),*]
    };
}

/// The trained models for images: whole, and in blocks after which they may answer.
const WHOLE: [(&str, &[u8]); 8] = files![
    "digits/1/model.onnx",
    "digits/model.toml",
    "shapes/1/model.onnx",
    "shapes/model.toml",
    "shapes-exits/1/glance.onnx",
    "shapes-exits/1/look.onnx",
    "shapes-exits/1/study.onnx",
    "shapes-exits/model.toml",
];

/// The trained models for texts and trees, in cells.
const CELLS: [(&str, &[u8]); 10] = files![
    "dates/1/encoder.onnx",
    "dates/1/decoder.onnx",
    "dates/model.toml",
    "arithmetic/1/leaf.onnx",
    "arithmetic/1/internal.onnx",
    "arithmetic/1/head.onnx",
    "arithmetic/model.toml",
    "sentiment/1/cell.onnx",
    "sentiment/1/head.onnx",
    "sentiment/model.toml",
];

/// Held-out images with their true labels, and the models for them.
pub(super) const IMAGES: [(&str, &[&str]); 2] = [
    (include_str!("../../../../../models/samples/digits.json"), &["digits"]),
    (include_str!("../../../../../models/samples/shapes.json"), &["shapes", "shapes-exits"]),
];

/// Held-out sequences and trees with their true answers.
pub(super) const TEXTS: [&str; 3] = [
    include_str!("../../../../../models/samples/dates.json"),
    include_str!("../../../../../models/samples/arithmetic.json"),
    include_str!("../../../../../models/samples/sentiment.json"),
];

/// ResNet50 as Symphony's Table 3 measured it on a GTX 1080 Ti; profile and SLO are looked up by
/// name.
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

/// A cell over sequences whose step takes one millisecond and a little for each row, like a
/// mid-sized LSTM on a small accelerator.
const LSTM_TOML: &str = "\
walk = \"repeat\"
slo_ms = 250.0
max_length = 330
max_batch = 64

[[block]]
name = \"cell\"
alpha_ms = 0.02
beta_ms = 1.0
[block.inputs]
token = \"request\"

[[input]]
name = \"token\"
datatype = \"INT32\"
shape = [-1, -1]

[[output]]
name = \"y\"
from = \"cell.y\"
datatype = \"FP32\"
shape = [-1, 4]
";

/// The demo's models in a temporary folder, removed with this value.
pub(super) struct AssetsFolder {
    root: PathBuf,
    /// The repository of the trained models for images.
    pub(super) images: PathBuf,
    /// The repository of those for texts and trees.
    pub(super) texts: PathBuf,
    /// The repository of an emulated model that runs whole.
    pub(super) whole: PathBuf,
    /// The repository of an emulated model in cells.
    pub(super) cells: PathBuf,
}

impl AssetsFolder {
    pub(super) fn unpack() -> std::io::Result<AssetsFolder> {
        let root = std::env::temp_dir().join(format!("ripieno-demo-{}", std::process::id()));
        let [images, texts, whole, cells] = ["images", "texts", "whole", "cells"].map(|name| root.join(name));
        let folder = AssetsFolder { images, texts, whole, cells, root };
        for (models, files) in [(&folder.images, &WHOLE[..]), (&folder.texts, &CELLS[..])] {
            files.iter().try_for_each(|(path, bytes)| write(&models.join(path), bytes))?;
        }
        write(&folder.whole.join("ResNet50").join("model.toml"), RESNET50_TOML.as_bytes())?;
        write(&folder.cells.join("LSTM").join("model.toml"), LSTM_TOML.as_bytes())?;
        Ok(folder)
    }
}

impl Drop for AssetsFolder {
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
