//! The epoch in etcd, shared by all schedulers of a cluster.
//!
//! The key `PREFIX/epoch` holds the epoch and its holder as text. The prefix names the cluster:
//! clusters that share an etcd need different ones.

mod client;
mod connect;
mod messages;

use super::etcd_access::EtcdAccess;
use super::{EpochEntry, EpochStore, Swap, Unreachable};
use client::EtcdClient;
use messages::{
    Compare, CompareTarget, CompareValue, Operation, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
};

/// The epoch in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    client: EtcdClient,
    key: Vec<u8>,
}

impl EtcdStore {
    /// Returns the store of the cluster with this prefix. It connects at the first call.
    pub fn new(access: EtcdAccess, prefix: &str) -> Result<EtcdStore, Unreachable> {
        Ok(EtcdStore { client: EtcdClient::new(access)?, key: format!("{prefix}/epoch").into_bytes() })
    }

    fn range(&self) -> RangeRequest {
        RangeRequest { key: self.key.clone(), limit: 1 }
    }
}

impl EpochStore for EtcdStore {
    fn swap(&mut self, swap: &Swap) -> Result<EpochEntry, Unreachable> {
        let (target, compared) = match swap.expected {
            Some(entry) => (CompareTarget::Value, CompareValue::Value(entry.to_string().into_bytes())),
            None => (CompareTarget::Version, CompareValue::Version(0)),
        };
        let compare = Compare { target: target.into(), key: self.key.clone(), compared: Some(compared) };
        let put = PutRequest { key: self.key.clone(), value: swap.next.to_string().into_bytes() };
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

    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable> {
        entry(&self.client.range(self.range())?)
    }
}

/// A text under a key in etcd, which operators and schedulers read and write.
#[derive(Debug)]
pub struct EtcdText {
    client: EtcdClient,
    key: Vec<u8>,
}

impl EtcdText {
    /// Returns the text `PREFIX/NAME` of the cluster with this prefix. It connects at the first
    /// call.
    pub fn new(access: EtcdAccess, prefix: &str, name: &str) -> Result<EtcdText, Unreachable> {
        Ok(EtcdText { client: EtcdClient::new(access)?, key: format!("{prefix}/{name}").into_bytes() })
    }

    /// Returns the text; `None` if there is none.
    pub fn read(&self) -> Result<Option<String>, Unreachable> {
        let range = self.client.range(RangeRequest { key: self.key.clone(), limit: 1 })?;
        Ok(range.kvs.first().map(|found| String::from_utf8_lossy(&found.value).into_owned()))
    }

    /// Replaces the text.
    pub fn write(&self, text: &str) -> Result<(), Unreachable> {
        let put = PutRequest { key: self.key.clone(), value: text.as_bytes().to_vec() };
        let success = vec![RequestOp { operation: Some(Operation::Put(put)) }];
        self.client.transact(TxnRequest { success, ..TxnRequest::default() }).map(drop)
    }
}

fn entry(range: &RangeResponse) -> Result<Option<EpochEntry>, Unreachable> {
    range.kvs.first().map(|found| String::from_utf8_lossy(&found.value).parse()).transpose()
}
