//! Stands for etcd in a build without the feature `etcd`.

use super::etcd_access::EtcdAccess;
use super::{EpochEntry, EpochStore, Swap, Unreachable};

/// The epoch in etcd, which this build cannot reach.
#[derive(Debug)]
pub enum EtcdStore {}

impl EtcdStore {
    /// Returns an error that names the feature.
    pub fn new(access: EtcdAccess, _: &str) -> Result<EtcdStore, Unreachable> {
        let nodes = access.nodes.join(",");
        Err(Unreachable(format!("{nodes}: this build cannot reach an etcd; build it with --features etcd")))
    }
}

/// A text in etcd, which this build cannot reach.
#[derive(Debug)]
pub enum EtcdText {}

impl EtcdText {
    /// Returns an error that names the feature.
    pub fn new(access: EtcdAccess, prefix: &str, _: &str) -> Result<EtcdText, Unreachable> {
        EtcdStore::new(access, prefix).map(|store| match store {})
    }

    /// Reads nothing.
    pub fn read(&self) -> Result<Option<String>, Unreachable> {
        match *self {}
    }

    /// Writes nothing.
    pub fn write(&self, _: &str) -> Result<(), Unreachable> {
        match *self {}
    }
}

impl EpochStore for EtcdStore {
    fn swap(&mut self, _: &Swap) -> Result<EpochEntry, Unreachable> {
        match *self {}
    }

    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable> {
        match *self {}
    }
}
