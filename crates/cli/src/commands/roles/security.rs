//! Encryption between roles, and access to etcd: flags of `scheduler`, `backend` and `frontend`.

use crate::args::plan_store::{PLAN_KEY, PlanPlace, PlanStore};
use anyhow::{Context, bail};
use clap::Args;
use ripieno_cluster::handover::store::{EpochStore, EtcdAccess, EtcdStore, EtcdText, EtcdTls, EtcdUser, FileStore};
use ripieno_cluster::plane::{MutualTls, PeerFiles, Tcp, Transport};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest time for a store to answer.
const STORE_TIMEOUT: Duration = Duration::from_millis(100);

/// Mutual TLS between the roles of a cluster.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Between roles")]
pub(crate) struct PeerArgs {
    /// Encrypt the connections between roles, and accept only peers of --peer-ca: this role's
    /// certificate and its chain (PEM), for servers and clients. Read again when it changes; all
    /// roles need one.
    #[arg(long, value_name = "FILE", requires = "peer_key", requires = "peer_ca")]
    peer_cert: Option<PathBuf>,

    /// The private key of --peer-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,

    /// The authority of all roles' certificates (PEM).
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,

    /// The DNS name that every role's certificate has, whatever its address.
    #[arg(long, value_name = "NAME", default_value = "ripieno")]
    peer_name: String,
}

impl PeerArgs {
    /// Returns the transport between roles.
    pub(crate) fn transport(&self) -> anyhow::Result<Arc<dyn Transport>> {
        let (Some(certificate), Some(key), Some(authority)) = (&self.peer_cert, &self.peer_key, &self.peer_ca) else {
            return Ok(Arc::new(Tcp));
        };
        let files = PeerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            authority: authority.clone(),
            name: self.peer_name.clone(),
        };
        let tls = MutualTls::open(files).map_err(anyhow::Error::msg).context("--peer-cert, --peer-key, --peer-ca")?;
        Ok(Arc::new(tls))
    }

    /// Returns the certificate towards other roles, if they encrypt.
    pub(crate) fn certificate(&self) -> Option<PathBuf> {
        self.peer_cert.clone()
    }

    /// Warns if a port that clients must not reach is not on loopback and takes any connection.
    pub(crate) fn warn_if_open(&self, what: &str, address: SocketAddr) {
        if self.peer_cert.is_none() && !address.ip().is_loopback() {
            tracing::warn!(
                "{what} on {address} accepts any connection, unencrypted; keep it on a network that only the roles of \
                 this cluster reach, or give all roles --peer-cert, --peer-key and --peer-ca"
            );
        }
    }
}

/// The store of the epoch.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store of the epoch")]
pub(crate) struct EpochArgs {
    /// Store of the epoch, which decides the primary: file:PATH for schedulers of one machine, or
    /// etcd:URL,URL,... with the nodes of an etcd [default: this scheduler has no spare].
    #[arg(long, value_name = "STORE", value_parser = stored)]
    epoch: Option<Stored>,

    #[command(flatten)]
    etcd: EtcdArgs,
}

/// The way to an etcd.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "etcd")]
pub(crate) struct EtcdArgs {
    /// Prefix of this cluster's keys in etcd; another for each cluster that uses it.
    #[arg(long, value_name = "PREFIX", default_value = "/ripieno", value_parser = prefix)]
    etcd_prefix: String,

    /// The authority of etcd's certificates (PEM), for https:// nodes.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,

    /// A client certificate for etcd, with its chain (PEM).
    #[arg(long, value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,

    /// The private key of --etcd-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,

    /// A user of etcd, which needs to read and write the keys with the prefix.
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// A file with that user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

/// A store of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stored {
    File(PathBuf),
    Etcd(Vec<String>),
}

impl EpochArgs {
    /// Returns true if a store is given, so that there may be spares.
    pub(crate) fn is_given(&self) -> bool {
        self.epoch.is_some()
    }

    /// Opens the store, if there is one.
    pub(crate) fn store(&self) -> anyhow::Result<Option<Box<dyn EpochStore>>> {
        Ok(match &self.epoch {
            None => None,
            Some(Stored::File(_)) if self.etcd.etcd_ca.is_some() || self.etcd.etcd_user.is_some() => {
                bail!("--etcd-ca and --etcd-user are for --epoch etcd:URL,...")
            }
            Some(Stored::File(path)) => Some(Box::new(FileStore::new(path))),
            Some(Stored::Etcd(nodes)) => {
                Some(Box::new(EtcdStore::new(self.etcd.access(nodes)?, &self.etcd.etcd_prefix)?))
            }
        })
    }

    /// Returns the store of the plan at this place; `etcd` alone is the etcd of the epoch. Returns
    /// `None` for a plan that the scheduler makes.
    pub(crate) fn plan_store(&self, place: &PlanPlace) -> anyhow::Result<Option<PlanStore>> {
        match (place, &self.epoch) {
            (PlanPlace::Auto, _) => Ok(None),
            (PlanPlace::Etcd(nodes), Some(Stored::Etcd(own))) if nodes.is_empty() => {
                self.etcd.plan_store(own).map(Some)
            }
            (PlanPlace::Etcd(nodes), _) if nodes.is_empty() => {
                bail!("--plan etcd is the etcd of --epoch etcd:URL,...; give that, or write --plan etcd:URL,...")
            }
            (PlanPlace::Etcd(nodes), _) => self.etcd.plan_store(nodes).map(Some),
            (PlanPlace::File(path), _) => Ok(Some(PlanStore::File(path.clone()))),
        }
    }
}

impl EtcdArgs {
    /// Returns the plan in the etcd of these nodes.
    pub(crate) fn plan_store(&self, nodes: &[String]) -> anyhow::Result<PlanStore> {
        Ok(PlanStore::Etcd(Box::new(EtcdText::new(self.access(nodes)?, &self.etcd_prefix, PLAN_KEY)?)))
    }

    fn access(&self, nodes: &[String]) -> anyhow::Result<EtcdAccess> {
        let certificate = self.etcd_cert.clone().zip(self.etcd_key.clone());
        let tls = self.etcd_ca.clone().map(|authority| EtcdTls { authority, certificate });
        let user = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(name), Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("--etcd-password-file {}", file.display()))?;
                Some(EtcdUser { name: name.clone(), password: text.trim_end_matches(['\r', '\n']).to_owned() })
            }
            _ => None,
        };
        Ok(EtcdAccess { nodes: nodes.to_vec(), tls, user, timeout: STORE_TIMEOUT })
    }
}

fn stored(text: &str) -> Result<Stored, String> {
    match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Ok(Stored::File(path.into())),
        Some(("etcd", nodes)) if !nodes.is_empty() => Ok(Stored::Etcd(nodes.split(',').map(str::to_owned).collect())),
        _ => Err(format!("{text:?} is no store of an epoch; write file:PATH, or etcd:http://HOST:2379,...")),
    }
}

fn prefix(text: &str) -> Result<String, String> {
    let trimmed = text.trim_end_matches('/');
    match trimmed.starts_with('/') {
        true => Ok(trimmed.to_owned()),
        false => Err(format!("{text:?} is no prefix of keys; begin it with a slash, as in /ripieno")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_file_or_nodes_of_an_etcd() {
        assert_eq!(stored("file:/tmp/epoch"), Ok(Stored::File("/tmp/epoch".into())));
        let nodes = ["http://a:2379", "http://b:2379"].map(str::to_owned).to_vec();
        assert_eq!(stored("etcd:http://a:2379,http://b:2379"), Ok(Stored::Etcd(nodes)));
        for bad in ["", "file:", "etcd:", "/tmp/epoch", "http://a:2379"] {
            assert!(stored(bad).unwrap_err().contains("file:PATH"), "{bad}");
        }
    }

    #[test]
    fn a_prefix_begins_with_a_slash_and_ends_without() {
        assert_eq!(prefix("/a/b/").as_deref(), Ok("/a/b"));
        for bad in ["", "/", "a/b"] {
            assert!(prefix(bad).unwrap_err().contains("slash"), "{bad}");
        }
    }

    /// Parses the flags of a scheduler.
    fn parsed(words: &[&str]) -> Result<EpochArgs, String> {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            epoch: EpochArgs,
        }
        let words = [&["any"], words].concat();
        <Only as clap::Parser>::try_parse_from(words).map(|only| only.epoch).map_err(|error| error.to_string())
    }

    #[test]
    fn access_to_etcd_is_complete_or_refused() {
        let etcd = ["--epoch", "etcd:https://a:2379"];
        let refused = |more: &[&str]| match parsed(&[&etcd[..], more].concat()) {
            Ok(epoch) => epoch.store().err().map(|error| format!("{error:#}")).unwrap_or_default(),
            Err(error) => error,
        };
        assert!(refused(&[]).contains("--etcd-ca FILE"), "https without an authority");
        assert!(refused(&["--etcd-ca", "/no/ca.pem"]).contains("/no/ca.pem"));
        assert!(refused(&["--etcd-user", "me"]).contains("--etcd-password-file"));
        assert!(refused(&["--etcd-user", "me", "--etcd-password-file", "/no/word"]).contains("/no/word"));
        assert!(refused(&["--etcd-cert", "/a.pem"]).contains("--etcd-key"));
        let file = parsed(&["--epoch", "file:/tmp/e", "--etcd-ca", "/a.pem"]).unwrap();
        assert!(file.store().err().unwrap().to_string().contains("etcd:URL"));
    }
}
