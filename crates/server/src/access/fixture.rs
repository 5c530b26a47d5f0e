//! A temporary folder of files for tests.

use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) struct TempFiles(TempDir);

impl TempFiles {
    pub(super) fn new() -> TempFiles {
        TempFiles(TempDir::new().unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn write(&self, file: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(file);
        std::fs::write(&path, content).unwrap();
        path
    }
}
