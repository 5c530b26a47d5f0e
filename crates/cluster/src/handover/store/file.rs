//! The epoch of schedulers on one machine, in a file, as a substitute for etcd.
//!
//! The file is not synced to disk, which may take long: a crash of the machine ends every process
//! that knew the epoch.

use super::{EpochEntry, EpochStore, Swap, Unreachable};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// A file with the epoch. A lock file serialises schedulers; a new epoch replaces the old file
/// atomically.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// Returns a store in this file, which is created at the first swap.
    pub fn new(path: impl Into<PathBuf>) -> FileStore {
        FileStore { path: path.into() }
    }

    fn beside(&self, ending: &str) -> PathBuf {
        self.path.with_added_extension(ending)
    }

    fn unreachable(&self, error: &io::Error) -> Unreachable {
        Unreachable(format!("{}: {error}", self.path.display()))
    }

    fn lock(&self) -> io::Result<File> {
        let lock = File::create(self.beside("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    fn replace(&self, entry: &EpochEntry) -> io::Result<()> {
        let next = self.beside("next");
        let mut file = File::create(&next)?;
        writeln!(file, "{entry}")?;
        fs::rename(next, &self.path)
    }
}

impl EpochStore for FileStore {
    fn swap(&mut self, swap: &Swap) -> Result<EpochEntry, Unreachable> {
        let _locked = self.lock().map_err(|error| self.unreachable(&error))?;
        let held = self.read()?;
        let entry = swap.apply_to(held)?;
        if held != Some(entry) {
            self.replace(&entry).map_err(|error| self.unreachable(&error))?;
        }
        Ok(entry)
    }

    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable> {
        match fs::read_to_string(&self.path) {
            // A crashed machine may leave an empty file.
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreachable(&error)),
        }
    }
}
