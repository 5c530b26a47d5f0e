//! A value built from files and rebuilt when they change.
//!
//! Contents are compared, not modification times: the files are small, and times are unreliable (a
//! restored backup, a changed clock, two writes within one tick). If new content is incomplete or
//! invalid, the old value stays, with one log line, until the content changes again.

use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum file size; certificates and tokens are far smaller.
const MAX_FILE_BYTES: u64 = 4 << 20;

type BuildFn<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// A value built from files.
pub(super) struct Reloading<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    build: BuildFn<T>,
    current: RwLock<Arc<T>>,
    /// Hash of the content checked last, valid or not.
    seen: Mutex<[u8; 32]>,
}

impl<T> Reloading<T> {
    /// Builds the initial value; a failure is the caller's error. A value without files never
    /// changes.
    pub(super) fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        build: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Reloading<T>, String> {
        let contents = read_all(&files);
        let seen = Mutex::new(hash(&contents));
        let value = build(&contents?)?;
        Ok(Reloading { what, files, build: Box::new(build), current: RwLock::new(Arc::new(value)), seen })
    }

    /// Returns the value of the last valid content.
    pub(super) fn current(&self) -> Arc<T> {
        self.current.read().clone()
    }

    /// Checks the files for changes; blocks.
    pub(super) fn refresh(&self) {
        if self.files.is_empty() {
            return;
        }
        let contents = read_all(&self.files);
        let mut seen = self.seen.lock();
        if std::mem::replace(&mut *seen, hash(&contents)) == *seen {
            return;
        }
        match contents.and_then(|contents| (self.build)(&contents)) {
            Ok(value) => {
                *self.current.write() = Arc::new(value);
                tracing::info!("{}: read again, since {} changed", self.what, shown(&self.files));
            }
            Err(error) => tracing::error!("{}: what was read before stays in use: {error}", self.what),
        }
    }
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    files
        .iter()
        .map(|file| read(file).map_err(|cause| format!("{}: cannot be read: {cause}", file.display())))
        .collect()
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(file)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(content)
}

fn hash(contents: &Result<Vec<Vec<u8>>, String>) -> [u8; 32] {
    let mut hash = Sha256::new();
    match contents {
        Ok(contents) => contents.iter().for_each(|content| {
            hash.update((content.len() as u64).to_le_bytes());
            hash.update(content);
        }),
        Err(error) => hash.update(error),
    }
    hash.finalize().into()
}

fn shown(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::TempFiles;
    use super::*;

    fn number(contents: &[Vec<u8>]) -> Result<u32, String> {
        str::from_utf8(&contents[0]).ok().and_then(|text| text.parse().ok()).ok_or_else(|| "no number".to_owned())
    }

    #[test]
    fn a_change_counts_and_a_broken_one_does_not() {
        let folder = TempFiles::new();
        let file = folder.write("n", "1");
        let value = Reloading::open("number", vec![file.clone()], number).unwrap();
        assert_eq!(*value.current(), 1);
        let after = |content: &str| {
            folder.write("n", content);
            value.refresh();
            *value.current()
        };
        assert_eq!((after("2"), after("x"), after("3")), (2, 2, 3));
        std::fs::remove_file(&file).unwrap();
        value.refresh();
        assert_eq!(*value.current(), 3, "a file that is gone takes nothing away");
        assert_eq!(after("4"), 4);
    }

    #[test]
    fn the_first_content_must_be_good() {
        let folder = TempFiles::new();
        let open = |content: &str| Reloading::open("number", vec![folder.write("n", content)], number).err();
        assert_eq!((open("x"), open("1")), (Some("no number".to_owned()), None));
        let gone = Reloading::open("number", vec![folder.path().join("gone")], number).err().unwrap();
        assert!(gone.contains("gone: cannot be read"), "{gone}");
        let huge = Reloading::open("number", vec![folder.write("n", vec![b'1'; (4 << 20) + 1])], number).err().unwrap();
        assert!(huge.contains("larger than"), "{huge}");
    }
}
