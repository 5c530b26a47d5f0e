//! A temporary folder of files for tests.

use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) struct TempRepository(TempDir);

impl TempRepository {
    pub(crate) fn new() -> TempRepository {
        TempRepository(TempDir::new().expect("a temporary folder can be made"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and creates its parent folders.
    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        std::fs::write(&path, content).expect("the file can be written");
        path
    }
}
