//! The epoch of schedulers on one machine, in a file: what stands in for etcd where there are no other machines.
//!
//! It is not forced to the disk, which may take long: who ends with the machine takes along all who knew the epoch.

use super::{Entry, EpochStore, Swap, Unreachable};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// A file with the epoch. Schedulers take turns by a lock beside it; a new epoch takes the old one's place whole.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// The epoch in this file, which is made when it is first needed.
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

    fn replace(&self, entry: &Entry) -> io::Result<()> {
        let next = self.beside("next");
        let mut file = File::create(&next)?;
        writeln!(file, "{entry}")?;
        fs::rename(next, &self.path)
    }
}

impl EpochStore for FileStore {
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable> {
        let _locked = self.lock().map_err(|error| self.unreachable(&error))?;
        let held = self.read()?;
        let entry = swap.on(held)?;
        if held != Some(entry) {
            self.replace(&entry).map_err(|error| self.unreachable(&error))?;
        }
        Ok(entry)
    }

    fn read(&mut self) -> Result<Option<Entry>, Unreachable> {
        match fs::read_to_string(&self.path) {
            // As a machine that ended may leave it.
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreachable(&error)),
        }
    }
}
