//! Reading of files beside a model.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a whole file of at most `most` bytes.
pub(crate) fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("{shown}: is larger than {} MiB, more than such a file ever is", most >> 20));
    }
    Ok(bytes)
}
