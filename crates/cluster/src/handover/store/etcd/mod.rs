//! The epoch in etcd, where all schedulers of a cluster see it alike, and the inventory beside it.
//!
//! Keys: `PREFIX/epoch` holds the epoch and its holder as text; `PREFIX/members/ROLE/PROCESS` holds an address, under a
//! lease. The prefix names the cluster, or one of several sub-clusters that share an etcd.

mod client;
mod inventory;
mod messages;

pub use inventory::{Inventory, Member};

use super::{Entry, EpochStore, Swap, Unreachable};
use client::Client;
use messages::{Compare, Compared, Operation, PutRequest, RangeRequest, RangeResponse, RequestOp, Target, TxnRequest};
use std::time::Duration;

/// The epoch in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    client: Client,
    key: Vec<u8>,
}

impl EtcdStore {
    /// The epoch of the cluster with this prefix, in the etcd of these nodes (`http://host:port`). A call that none of them
    /// has answered after the timeout is given up.
    pub fn new(nodes: &[String], prefix: &str, timeout: Duration) -> Result<EtcdStore, Unreachable> {
        Ok(EtcdStore { client: Client::new(nodes, timeout)?, key: format!("{prefix}/epoch").into_bytes() })
    }

    fn range(&self) -> RangeRequest {
        RangeRequest { key: self.key.clone(), limit: 1, ..RangeRequest::default() }
    }
}

impl EpochStore for EtcdStore {
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable> {
        let (target, compared) = match swap.expected {
            Some(entry) => (Target::Value, Compared::Value(entry.to_string().into_bytes())),
            None => (Target::Version, Compared::Version(0)),
        };
        let compare = Compare { target: target.into(), key: self.key.clone(), compared: Some(compared) };
        let put = PutRequest { key: self.key.clone(), value: swap.next.to_string().into_bytes(), lease: 0 };
        let operation = |operation| vec![RequestOp { operation: Some(operation) }];
        let transaction = TxnRequest {
            compare: vec![compare],
            success: operation(Operation::Put(put)),
            failure: operation(Operation::Range(self.range())),
        };
        let reply = self.client.transact(transaction)?;
        if reply.succeeded {
            return Ok(swap.next);
        }
        let held = reply.responses.into_iter().find_map(|response| response.range);
        let held = entry(&held.unwrap_or_default())?;
        held.ok_or_else(Unreachable::forgot)
    }

    fn read(&mut self) -> Result<Option<Entry>, Unreachable> {
        entry(&self.client.range(self.range())?)
    }
}

fn entry(range: &RangeResponse) -> Result<Option<Entry>, Unreachable> {
    range.kvs.first().map(|found| String::from_utf8_lossy(&found.value).parse()).transpose()
}
