//! Who is there, under leases of seconds: what operators and those who connect look up. It decides nothing, since a lease
//! ends seconds after its holder, and lives on when etcd changes its leader.

use super::super::Unreachable;
use super::client::Client;
use super::messages::{LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest};
use crate::handover::ids::{Process, Role};
use std::time::Duration;

/// An entry of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What it does.
    pub role: Role,
    /// Which life of it.
    pub process: Process,
    /// Where it is spoken to.
    pub address: String,
}

/// The inventory in etcd, and one's own entry.
#[derive(Debug)]
pub struct Inventory {
    client: Client,
    prefix: String,
    own: Member,
    seconds: i64,
    entered: bool,
}

/// Their names in keys.
const ROLES: [(Role, &str); 3] =
    [(Role::Scheduler, "scheduler"), (Role::Backend, "backend"), (Role::Frontend, "frontend")];

impl Inventory {
    /// The inventory of the cluster with this prefix. One's own entry is there from the first [`Inventory::keep`] on, and
    /// so many seconds after the last one; etcd knows whole seconds, and about a second at least.
    pub fn new(
        nodes: &[String],
        prefix: &str,
        timeout: Duration,
        own: Member,
        seconds: u32,
    ) -> Result<Inventory, Unreachable> {
        let client = Client::new(nodes, timeout)?;
        Ok(Inventory { client, prefix: format!("{prefix}/members/"), own, seconds: seconds.into(), entered: false })
    }

    /// Keeps one's own entry for another while, and enters it if it is not there. To be called each third of the while.
    pub fn keep(&mut self) -> Result<(), Unreachable> {
        // Positive, as etcd wants it; each process has its own.
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

    /// Everybody who is there, oneself too. What is not understood is left out: a later version may have entered it.
    pub fn members(&self) -> Result<Vec<Member>, Unreachable> {
        let key = self.prefix.clone().into_bytes();
        let mut range_end = key.clone();
        // The key after all that begin so: a slash is followed by a nought.
        *range_end.last_mut().expect("a prefix ends in a slash") += 1;
        let found = self.client.range(RangeRequest { key, range_end, limit: 0 })?;
        let texts = found.kvs.into_iter().map(|it| (String::from_utf8(it.key), String::from_utf8(it.value)));
        Ok(texts.filter_map(|(key, value)| self.member(&key.ok()?, value.ok()?)).collect())
    }

    fn member(&self, key: &str, address: String) -> Option<Member> {
        let (role, process) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        let &(role, _) = ROLES.iter().find(|(_, name)| *name == role)?;
        Some(Member { role, process: Process(u64::from_str_radix(process, 16).ok()?), address })
    }
}
