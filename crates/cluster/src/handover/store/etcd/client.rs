//! A client of etcd that a dead or hung node does not delay: each call goes to all nodes, and the
//! first reply counts.
//!
//! A client that balances over the nodes stalls for its whole timeout on each call to a hung node.
//! All calls here are idempotent.

use super::super::Unreachable;
use super::messages::{LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::messages::{PutRequest, PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use prost::Message;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::once;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// A connection to each node of etcd. Calls block.
#[derive(Debug)]
pub(super) struct EtcdClient {
    /// One thread keeps the connections, so that they are warm when a primary is lost.
    runtime: Runtime,
    nodes: Vec<Channel>,
    timeout: Duration,
}

impl EtcdClient {
    /// Returns a client of these nodes, `http://host:port` each. It connects at the first call.
    pub(super) fn new(nodes: &[String], timeout: Duration) -> Result<EtcdClient, Unreachable> {
        let unreachable = |error: &dyn std::fmt::Display, node: &str| Unreachable(format!("{node}: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build();
        let runtime = runtime.map_err(|error| unreachable(&error, "no thread for it"))?;
        let _inside = runtime.enter();
        let connect = |node: &String| {
            let endpoint = Endpoint::from_shared(node.clone()).map_err(|error| unreachable(&error, node))?;
            Ok(endpoint.connect_timeout(timeout).tcp_nodelay(true).connect_lazy())
        };
        let nodes = nodes.iter().map(connect).collect::<Result<Vec<_>, Unreachable>>()?;
        drop(_inside);
        Ok(EtcdClient { runtime, nodes, timeout })
    }

    pub(super) fn transact(&self, request: TxnRequest) -> Result<TxnResponse, Unreachable> {
        self.call("/etcdserverpb.KV/Txn", request)
    }

    pub(super) fn range(&self, request: RangeRequest) -> Result<RangeResponse, Unreachable> {
        self.call("/etcdserverpb.KV/Range", request)
    }

    pub(super) fn put(&self, request: PutRequest) -> Result<PutResponse, Unreachable> {
        self.call("/etcdserverpb.KV/Put", request)
    }

    /// Grants a lease. The caller chooses its id, so that repeated grants are one.
    pub(super) fn grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Unreachable> {
        self.call("/etcdserverpb.Lease/LeaseGrant", request)
    }

    pub(super) fn keep_alive(&self, request: LeaseKeepAliveRequest) -> Result<LeaseKeepAliveResponse, Unreachable> {
        self.call("/etcdserverpb.Lease/LeaseKeepAlive", request)
    }

    fn call<I, O>(&self, path: &'static str, message: I) -> Result<O, Unreachable>
    where
        I: Message + Clone + Send + Sync + 'static,
        O: Message + Default + Send + 'static,
    {
        self.runtime.block_on(async {
            let first = first_reply(&self.nodes, path, &message);
            let late = |_| Unreachable(format!("no node replied to {path} within {:?}", self.timeout));
            tokio::time::timeout(self.timeout, first).await.map_err(late)?
        })
    }
}

/// Returns the first successful reply, or the last node's failure.
async fn first_reply<I, O>(nodes: &[Channel], path: &'static str, message: &I) -> Result<O, Unreachable>
where
    I: Message + Clone + Send + Sync + 'static,
    O: Message + Default + Send + 'static,
{
    let mut calls = JoinSet::new();
    for node in nodes {
        calls.spawn(call_node(node.clone(), path, message.clone()));
    }
    let mut failed = Unreachable("it has no nodes".into());
    while let Some(replied) = calls.join_next().await {
        match replied {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(status)) => failed = Unreachable(format!("{path}: {status}")),
            Err(ended) => failed = Unreachable(format!("{path}: {ended}")),
        }
    }
    Err(failed)
}

/// Makes a call with one message each way, which etcd cannot tell from a stream of one.
async fn call_node<I, O>(node: Channel, path: &'static str, message: I) -> Result<O, Status>
where
    I: Message + Send + Sync + 'static,
    O: Message + Default + Send + 'static,
{
    let mut node = Grpc::new(node);
    node.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<I, O>::default();
    let reply = node.streaming(Request::new(once(message)), path, codec).await?;
    let reply = reply.into_inner().message().await?;
    reply.ok_or_else(|| Status::unavailable("the reply is empty"))
}
