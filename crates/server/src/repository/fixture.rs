//! A temporary folder for tests, removed with its content when the test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Folder(PathBuf);

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Folder {
    pub(crate) fn new() -> Folder {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ripieno-repository-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and the folders above it.
    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        std::fs::write(&path, content).expect("the file can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
