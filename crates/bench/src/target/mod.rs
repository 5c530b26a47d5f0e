//! The servers under load: any server of the Open Inference Protocol.

pub mod call;
mod grpc;
mod http;
pub mod tls;

use std::str::FromStr;

use anyhow::Context;
use ripieno_model::{DataType, TensorSpec};

use super::inputs::BenchTensor;
use super::load::{BenchTarget, RequestOutcome};
use tls::ClientAuth;

/// The two forms of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// REST; tensors in binary by default.
    Http,
    /// gRPC, tensors raw.
    Grpc,
}

/// A server's address, with the protocol in its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host and port.
    pub authority: String,
    /// The protocol of the URL's scheme; `None` if it has no scheme.
    pub protocol: Option<Protocol>,
    /// Whether the scheme requires TLS.
    pub encrypted: bool,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(url: &str) -> Result<Address, String> {
        let (protocol, encrypted, rest) = match url.split_once("://") {
            None => (None, false, url),
            Some(("http", rest)) => (Some(Protocol::Http), false, rest),
            Some(("https", rest)) => (Some(Protocol::Http), true, rest),
            Some(("grpc", rest)) => (Some(Protocol::Grpc), false, rest),
            Some(("grpcs", rest)) => (Some(Protocol::Grpc), true, rest),
            Some((scheme, _)) => {
                return Err(format!("scheme {scheme}:// is not supported; use http://, https://, grpc:// or grpcs://"));
            }
        };
        let authority = rest.trim_end_matches('/');
        if authority.is_empty() || authority.contains('/') {
            return Err(format!("{url:?} is no server; write HOST:PORT, http[s]://HOST:PORT or grpc[s]://HOST:PORT"));
        }
        Ok(Address { authority: authority.to_owned(), protocol, encrypted })
    }
}

/// The metadata of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetMetadata {
    /// Inputs of the model.
    pub inputs: Vec<TensorSpec>,
    /// The SLO in its configuration, if any.
    pub slo_ms: Option<f64>,
}

/// A client for one model of one server, with its requests prepared.
pub enum Client {
    /// REST.
    Http(Box<http::HttpClient>),
    /// gRPC.
    Grpc(grpc::GrpcClient),
}

impl Client {
    /// Returns a client for `model` with up to `connections` connections.
    pub fn new(
        authority: &str,
        protocol: Protocol,
        model: &str,
        connections: usize,
        auth: &ClientAuth,
    ) -> anyhow::Result<Client> {
        Ok(match protocol {
            Protocol::Http => Client::Http(Box::new(http::HttpClient::new(authority, model, connections, auth)?)),
            Protocol::Grpc => Client::Grpc(grpc::GrpcClient::new(authority, model, connections, auth)?),
        })
    }

    /// Fetches the model's inputs and SLO.
    pub async fn describe(&self) -> anyhow::Result<TargetMetadata> {
        match self {
            Client::Http(client) => client.describe().await,
            Client::Grpc(client) => client.describe().await,
        }
    }

    /// Encodes the requests that [`BenchTarget::send`] sends in turn.
    pub fn prepare(&mut self, requests: &[Vec<BenchTensor>], json_tensors: bool) -> anyhow::Result<()> {
        match self {
            Client::Http(client) => client.prepare(requests, json_tensors),
            Client::Grpc(client) => {
                client.prepare(requests);
                Ok(())
            }
        }
    }
}

impl BenchTarget for Client {
    async fn send(&self, index: u64) -> RequestOutcome {
        match self {
            Client::Http(client) => client.send(index).await,
            Client::Grpc(client) => client.send(index).await,
        }
    }
}

/// Parses an input of the server's metadata.
fn spec(name: String, datatype: &str, shape: Vec<i64>) -> anyhow::Result<TensorSpec> {
    let datatype = DataType::from_name(datatype)
        .with_context(|| format!("the model's input {name:?} has the unknown datatype {datatype:?}"))?;
    Ok(TensorSpec { name, datatype, shape })
}

/// Returns the first line of a server's message, truncated to 200 characters.
fn excerpt(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(200).collect()
}

fn failed(class: impl Into<String>, message: &str) -> RequestOutcome {
    RequestOutcome::Failed { class: class.into(), message: excerpt(message) }
}
