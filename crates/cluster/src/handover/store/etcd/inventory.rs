//! The connected processes, under leases of seconds, for operators and for connecting processes. It
//! decides nothing, since a lease ends seconds after its holder, and outlives it further when etcd
//! changes its leader.

use super::super::Unreachable;
use super::client::EtcdClient;
use super::messages::{LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest};
use crate::handover::ids::{ProcessId, Role};
use std::time::Duration;

/// An entry of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Role of the process.
    pub role: Role,
    /// Id of this run of the process.
    pub process: ProcessId,
    /// Address of the process.
    pub address: String,
}

/// The inventory in etcd, with the entry of this process.
#[derive(Debug)]
pub struct Inventory {
    client: EtcdClient,
    prefix: String,
    own: ClusterMember,
    seconds: i64,
    entered: bool,
}

/// Names of the roles in keys.
const ROLES: [(Role, &str); 3] =
    [(Role::Scheduler, "scheduler"), (Role::Backend, "backend"), (Role::Frontend, "frontend")];

impl Inventory {
    /// Returns the inventory of the cluster with this prefix. The entry of this process exists from
    /// the first [`Inventory::keep`] until `seconds` after the last one; etcd supports whole
    /// seconds of about a second at least.
    pub fn new(
        nodes: &[String],
        prefix: &str,
        timeout: Duration,
        own: ClusterMember,
        seconds: u32,
    ) -> Result<Inventory, Unreachable> {
        let client = EtcdClient::new(nodes, timeout)?;
        Ok(Inventory { client, prefix: format!("{prefix}/members/"), own, seconds: seconds.into(), entered: false })
    }

    /// Renews the entry of this process, and creates it if it does not exist. Call it every third
    /// of the lease time.
    pub fn keep(&mut self) -> Result<(), Unreachable> {
        // Positive, as etcd requires; unique to the process.
        let id = (self.own.process.0 & i64::MAX as u64).max(1).cast_signed();
        if self.client.keep_alive(LeaseKeepAliveRequest { id })?.seconds <= 0 {
            self.entered = false;
            self.client.grant(LeaseGrantRequest { seconds: self.seconds, id })?;
        }
        if self.entered {
            return Ok(());
        }
        let (_, role) = ROLES.iter().find(|(role, _)| *role == self.own.role).expect("each role has a name");
        let key = format!("{}{role}/{:016x}", self.prefix, self.own.process.0).into_bytes();
        self.client.put(PutRequest { key, value: self.own.address.clone().into_bytes(), lease: id })?;
        self.entered = true;
        Ok(())
    }

    /// Returns all members, including this process. Unknown entries are skipped: a later version
    /// may have made them.
    pub fn members(&self) -> Result<Vec<ClusterMember>, Unreachable> {
        let key = self.prefix.clone().into_bytes();
        let mut range_end = key.clone();
        // The first key after all keys with the prefix: "0" follows "/".
        *range_end.last_mut().expect("a prefix ends in a slash") += 1;
        let found = self.client.range(RangeRequest { key, range_end, limit: 0 })?;
        let texts = found.kvs.into_iter().map(|it| (String::from_utf8(it.key), String::from_utf8(it.value)));
        Ok(texts.filter_map(|(key, value)| self.member(&key.ok()?, value.ok()?)).collect())
    }

    fn member(&self, key: &str, address: String) -> Option<ClusterMember> {
        let (role, process) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        let &(role, _) = ROLES.iter().find(|(_, name)| *name == role)?;
        Some(ClusterMember { role, process: ProcessId(u64::from_str_radix(process, 16).ok()?), address })
    }
}
