//! Calls to etcd that a dead or hung node does not hold up: each goes to all nodes at once, and the first reply counts.
//!
//! A client that balances over the nodes stalls for its whole timeout on each call that goes to one that hangs. All calls
//! here may be made several times: what was done already is done, and says so.

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

/// etcd, over a connection to each of its nodes. Calls block.
#[derive(Debug)]
pub(super) struct Client {
    /// One thread keeps the connections, so that they are warm when a primary ends.
    runtime: Runtime,
    nodes: Vec<Channel>,
    timeout: Duration,
}

impl Client {
    /// A client of these nodes, `http://host:port` each. Nobody is called yet.
    pub(super) fn new(nodes: &[String], timeout: Duration) -> Result<Client, Unreachable> {
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
        Ok(Client { runtime, nodes, timeout })
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

    /// The id is the caller's, so that several grants are one.
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
            let first = first(&self.nodes, path, &message);
            let late = |_| Unreachable(format!("no node replied to {path} within {:?}", self.timeout));
            tokio::time::timeout(self.timeout, first).await.map_err(late)?
        })
    }
}

/// The first node's reply that is one; what the last one failed of if none is.
async fn first<I, O>(nodes: &[Channel], path: &'static str, message: &I) -> Result<O, Unreachable>
where
    I: Message + Clone + Send + Sync + 'static,
    O: Message + Default + Send + 'static,
{
    let mut calls = JoinSet::new();
    for node in nodes {
        calls.spawn(ask(node.clone(), path, message.clone()));
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

/// A call with one message each way; to etcd, one of a stream looks alike.
async fn ask<I, O>(node: Channel, path: &'static str, message: I) -> Result<O, Status>
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
