//! Addresses and credentials of an etcd.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The way to an etcd.
#[derive(Clone, Debug)]
pub struct EtcdAccess {
    /// The nodes, `http://HOST:PORT` or `https://HOST:PORT` each.
    pub nodes: Vec<String>,
    /// Credentials for nodes with https.
    pub tls: Option<EtcdTls>,
    /// The user, where etcd has authentication enabled.
    pub user: Option<EtcdUser>,
    /// Time after which a call without a reply from any node fails.
    pub timeout: Duration,
}

/// Files for connections to etcd, read at each connection.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authorities of its nodes' certificates (PEM).
    pub authority: PathBuf,
    /// A client certificate with its chain, and its key (PEM).
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// Name of the user.
    pub name: String,
    /// Password, which is never shown.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({})", self.name)
    }
}
