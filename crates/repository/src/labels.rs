//! Class labels of an output: a text file in the model's folder with one label per line.

use super::containment;
use super::model_files::ModelFiles;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

/// Maximum size of a label file.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum length of a label, which is repeated in every classification response.
const MAX_LABEL_BYTES: usize = 1000;

/// Class labels of an output, in the order of its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// File path relative to the model's folder.
    pub file: String,
    /// The labels; there may be fewer than classes.
    pub names: Vec<String>,
    /// Length of the longest label, in bytes.
    pub longest: usize,
}

/// Reads the label files of `wanted`, pairs of output and file. The error names the file and the
/// fix.
pub(super) fn read(
    found: &ModelFiles,
    wanted: &[(String, String)],
    allow_symlinks: bool,
) -> Result<BTreeMap<String, Labels>, String> {
    let configured = found.config.as_ref().or(found.triton.as_ref()).or(found.version_folder.as_ref());
    let folder = configured.and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let read = |(output, file): &(String, String)| {
        let path = folder.join(file);
        let shown = path.display();
        if !Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(format!("{shown}: labels lie in the model's folder; put the file there"));
        }
        if !allow_symlinks {
            containment::check_contained(found, &path)?;
        }
        let unreadable = |cause| format!("{shown}: the labels of output '{output}' cannot be read: {cause}");
        let about = fs::metadata(&path).map_err(unreadable)?;
        if !about.is_file() || about.len() > MAX_FILE_BYTES {
            return Err(format!("{shown}: labels are a text file of at most {MAX_FILE_BYTES} bytes"));
        }
        let text = String::from_utf8(fs::read(&path).map_err(unreadable)?)
            .map_err(|_| format!("{shown}: labels are UTF-8 text; save the file in that encoding"))?;
        let names: Vec<String> = text.lines().map(str::to_owned).collect();
        if let Some(line) = names.iter().position(|name| name.len() > MAX_LABEL_BYTES) {
            return Err(format!("{shown}:{}: a label has at most {MAX_LABEL_BYTES} bytes; shorten it", line + 1));
        }
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        Ok((output.clone(), Labels { file: file.clone(), names, longest }))
    };
    wanted.iter().map(read).collect()
}
