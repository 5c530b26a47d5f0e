//! The names of an output's classes: a line each, in a text file in the model's folder.

use super::borders;
use super::found::Found;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

/// The largest file of names.
const MOST_BYTES: u64 = 16 << 20;
/// The longest name: it goes into answers as often as they are asked for classes.
const LONGEST: usize = 1000;

/// The names of the classes of an output, in the order of its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// The file, from the model's folder on.
    pub file: String,
    /// The names; there may be fewer than classes.
    pub names: Vec<String>,
    /// Bytes of the longest.
    pub longest: usize,
}

/// Reads the files of `wanted`: output and file. The error names the file and the fix.
pub(super) fn read(
    found: &Found,
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
            borders::check(found, &path)?;
        }
        let unreadable = |cause| format!("{shown}: the labels of output '{output}' cannot be read: {cause}");
        let about = fs::metadata(&path).map_err(unreadable)?;
        if !about.is_file() || about.len() > MOST_BYTES {
            return Err(format!("{shown}: labels are a text file of at most {MOST_BYTES} bytes"));
        }
        let text = String::from_utf8(fs::read(&path).map_err(unreadable)?)
            .map_err(|_| format!("{shown}: labels are UTF-8 text; save the file in that encoding"))?;
        let names: Vec<String> = text.lines().map(str::to_owned).collect();
        if let Some(line) = names.iter().position(|name| name.len() > LONGEST) {
            return Err(format!("{shown}:{}: a label has at most {LONGEST} bytes; shorten it", line + 1));
        }
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        Ok((output.clone(), Labels { file: file.clone(), names, longest }))
    };
    wanted.iter().map(read).collect()
}
