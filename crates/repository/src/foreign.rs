//! Advice for model files of other formats, found where an ONNX file is expected.

use std::fs;
use std::path::Path;

/// Number of files that a message names.
const SHOWN: usize = 3;

/// Formats by the ending of the file: name, and how to convert it.
const FORMATS: &[(&[&str], &str, &str)] = &[
    (
        &["pt", "pth", "pt2", "ckpt", "torchscript"],
        "PyTorch",
        "export it with torch.onnx.export (docs/guide/exporting.md)",
    ),
    (&["safetensors"], "weights", "export the model with optimum-cli export onnx or torch.onnx.export"),
    (&["h5", "hdf5", "keras", "pb", "savedmodel"], "TensorFlow", "convert it with python -m tf2onnx.convert"),
    (&["tflite"], "TensorFlow Lite", "convert it with python -m tf2onnx.convert --tflite"),
    (&["plan", "engine", "trt"], "TensorRT", "serve the ONNX file that it was built from"),
    (&["pkl", "pickle", "joblib"], "pickle", "convert it with skl2onnx or torch.onnx.export"),
    (&["pdmodel", "pdiparams"], "PaddlePaddle", "convert it with paddle2onnx"),
    (&["mlmodel", "mlpackage"], "Core ML", "export the original model to ONNX"),
    (&["gguf", "ggml"], "GGUF", "export the original model to ONNX"),
    (&["ort"], "ONNX Runtime's own format", "serve the .onnx file that it was made from"),
    (&["zip", "tar", "gz", "tgz", "mar"], "archive", "unpack it"),
];

/// Returns the name of the file's format and the way to an ONNX file, if the ending is known.
pub(super) fn format(path: &Path) -> Option<(&'static str, &'static str)> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let found = FORMATS.iter().find(|(endings, ..)| endings.contains(&ending.as_str()));
    found.map(|&(_, name, convert)| (name, convert))
}

/// Returns a clause about a folder without an ONNX file: the first model file of another format
/// with the way to convert it, else its first files. `None` for a folder without visible files.
pub fn found_instead(folder: &Path) -> Option<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name().to_string_lossy().escape_debug().to_string())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    if let Some((name, (what, convert))) = names.iter().find_map(|name| Some((name, format(Path::new(name))?))) {
        return Some(format!("{name} is no ONNX file ({what}): {convert}"));
    }
    let (shown, more) = (names.iter().take(SHOWN).cloned().collect::<Vec<_>>(), names.len().saturating_sub(SHOWN));
    match (shown.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(format!("it holds {}", shown.join(", "))),
        (false, more) => Some(format!("it holds {} and {more} more", shown.join(", "))),
    }
}

/// Returns the error for one file that is not an ONNX file.
pub(super) fn not_onnx(path: &Path) -> String {
    let shown = path.display();
    match format(path) {
        Some((what, convert)) => {
            format!("{shown}: not an ONNX file ({what}), and only ONNX is served; {convert}, and give model.onnx")
        }
        None => format!("{shown}: not an ONNX file; give a folder of models or a file that ends in .onnx"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempRepository;

    #[test]
    fn a_file_of_another_format_is_named_with_the_way_to_onnx() {
        let folder = TempRepository::new();
        assert_eq!(found_instead(folder.path()), None);
        for file in [".hidden", "a.md", "b.md", "c.md", "d.md"] {
            folder.write(file, "");
        }
        assert_eq!(found_instead(folder.path()).unwrap(), "it holds a.md, b.md, c.md and 1 more");
        folder.write("net.PT", "");
        assert!(found_instead(folder.path()).unwrap().starts_with("net.PT is no ONNX file (PyTorch): export it with"));
        let error = not_onnx(&folder.path().join("net.PT"));
        assert!(error.contains("net.PT: not an ONNX file (PyTorch), and only ONNX is served; export it"), "{error}");
        assert!(not_onnx(Path::new("x.txt")).contains("give a folder of models"));
    }
}
