//! A client of etcd that a dead or hung node does not delay: each call goes to all nodes, and the
//! first reply counts.
//!
//! A client that balances over the nodes stalls for its whole timeout on each call to a hung node.
//! All calls here are idempotent.
//!
//! Of a user, etcd wants a token with each call. It checks the password slowly on purpose, and
//! forgets a token that is not used for five minutes; the callers read the epoch more often.

use super::super::Unreachable;
use super::connect::channel;
use super::messages::{AuthenticateRequest, AuthenticateResponse};
use super::messages::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::handover::store::etcd_access::{EtcdAccess, EtcdUser};
use parking_lot::Mutex;
use prost::Message;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::once;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// Longest time for etcd to check a password.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The header of the token.
const TOKEN: &str = "token";

type EtcdToken = MetadataValue<Ascii>;

/// A connection to each node of etcd. Calls block.
#[derive(Debug)]
pub(super) struct EtcdClient {
    /// One thread keeps the connections, so that they are warm when a primary is lost.
    runtime: Runtime,
    nodes: Vec<Channel>,
    timeout: Duration,
    user: Option<EtcdUser>,
    token: Mutex<Option<EtcdToken>>,
}

impl EtcdClient {
    /// Returns a client, which connects at the first call.
    pub(super) fn new(access: EtcdAccess) -> Result<EtcdClient, Unreachable> {
        let EtcdAccess { nodes, tls, user, timeout } = access;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build();
        let runtime = runtime.map_err(|error| Unreachable(format!("no thread for it: {error}")))?;
        let inside = runtime.enter();
        let nodes = nodes.iter().map(|node| channel(node, tls.as_ref(), timeout)).collect::<Result<Vec<_>, _>>()?;
        drop(inside);
        Ok(EtcdClient { runtime, nodes, timeout, user, token: Mutex::default() })
    }

    pub(super) fn transact(&self, request: TxnRequest) -> Result<TxnResponse, Unreachable> {
        self.call("/etcdserverpb.KV/Txn", request)
    }

    pub(super) fn range(&self, request: RangeRequest) -> Result<RangeResponse, Unreachable> {
        self.call("/etcdserverpb.KV/Range", request)
    }

    fn call<I, O>(&self, path: &'static str, message: I) -> Result<O, Unreachable>
    where
        I: Message + Clone + Send + Sync + 'static,
        O: Message + Default + Send + 'static,
    {
        self.runtime.block_on(async {
            let token = self.token().await?;
            match self.reply(path, &message, token, self.timeout).await {
                Err(status) if self.user.is_some() && is_outdated(&status) => {
                    *self.token.lock() = None;
                    let token = self.token().await?;
                    self.reply(path, &message, token, self.timeout).await.map_err(|status| unreachable(path, &status))
                }
                replied => replied.map_err(|status| unreachable(path, &status)),
            }
        })
    }

    /// Returns the user's token, if there is a user; logs in if there is no token.
    async fn token(&self) -> Result<Option<EtcdToken>, Unreachable> {
        const PATH: &str = "/etcdserverpb.Auth/Authenticate";
        let Some(EtcdUser { name, password }) = &self.user else { return Ok(None) };
        let known = self.token.lock().clone();
        if known.is_some() {
            return Ok(known);
        }
        let login = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let reply: Result<AuthenticateResponse, Status> = self.reply(PATH, &login, None, LOGIN_TIMEOUT).await;
        let reply =
            reply.map_err(|status| Unreachable(format!("user {name:?} (--etcd-user): {}", status.message())))?;
        let token = EtcdToken::try_from(reply.token).map_err(|_| Unreachable("its token is no header".to_owned()))?;
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }

    /// Returns the first successful reply, or the last node's failure.
    async fn reply<I, O>(
        &self,
        path: &'static str,
        message: &I,
        token: Option<EtcdToken>,
        within: Duration,
    ) -> Result<O, Status>
    where
        I: Message + Clone + Send + Sync + 'static,
        O: Message + Default + Send + 'static,
    {
        let mut calls = JoinSet::new();
        for node in &self.nodes {
            calls.spawn(call_node(node.clone(), path, message.clone(), token.clone()));
        }
        let first = async {
            let mut failed = Status::unavailable("it has no nodes");
            while let Some(replied) = calls.join_next().await {
                match replied {
                    Ok(Ok(reply)) => return Ok(reply),
                    Ok(Err(status)) => failed = status,
                    Err(ended) => failed = Status::internal(ended.to_string()),
                }
            }
            Err(failed)
        };
        let late = |_| Status::deadline_exceeded(format!("no node replied within {within:?}"));
        tokio::time::timeout(within, first).await.map_err(late)?
    }
}

fn unreachable(path: &str, status: &Status) -> Unreachable {
    Unreachable(format!("{path}: {status}"))
}

/// Returns true if etcd does not know the token any more: it has expired, or users have changed.
fn is_outdated(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains("revision of auth store is old")
}

/// Makes a call with one message each way, which etcd cannot tell from a stream of one.
async fn call_node<I, O>(node: Channel, path: &'static str, message: I, token: Option<EtcdToken>) -> Result<O, Status>
where
    I: Message + Send + Sync + 'static,
    O: Message + Default + Send + 'static,
{
    let mut node = Grpc::new(node);
    node.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<I, O>::default();
    let mut request = Request::new(once(message));
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN, token);
    }
    let reply = node.streaming(request, path, codec).await?;
    let reply = reply.into_inner().message().await?;
    reply.ok_or_else(|| Status::unavailable("the reply is empty"))
}
