//! The servers that load is sent to: anything that speaks the Open Inference Protocol.

pub mod door;
mod grpc;
mod http;

use std::str::FromStr;

use anyhow::Context;
use ripieno_model::{DataType, TensorSpec};

use super::inputs::Tensor;
use super::load::{Outcome, Target};
use door::Door;

/// The two forms of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// REST, tensors in binary unless asked otherwise.
    Http,
    /// gRPC, tensors raw.
    Grpc,
}

/// A server's address and how to talk to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host and port.
    pub authority: String,
    /// The protocol that the URL's scheme stands for; none if it has no scheme.
    pub protocol: Option<Protocol>,
    /// Whether the scheme asks for TLS.
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

/// What a server says about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Its inputs.
    pub inputs: Vec<TensorSpec>,
    /// The SLO that its configuration names, if any.
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
    /// A client for `model` with up to `connections` connections.
    pub fn new(
        authority: &str,
        protocol: Protocol,
        model: &str,
        connections: usize,
        door: &Door,
    ) -> anyhow::Result<Client> {
        Ok(match protocol {
            Protocol::Http => Client::Http(Box::new(http::HttpClient::new(authority, model, connections, door)?)),
            Protocol::Grpc => Client::Grpc(grpc::GrpcClient::new(authority, model, connections, door)?),
        })
    }

    /// Asks the server what the model's inputs and SLO are.
    pub async fn describe(&self) -> anyhow::Result<Description> {
        match self {
            Client::Http(client) => client.describe().await,
            Client::Grpc(client) => client.describe().await,
        }
    }

    /// Encodes the requests that [`Target::send`] will send in turn.
    pub fn prepare(&mut self, requests: &[Vec<Tensor>], json_tensors: bool) -> anyhow::Result<()> {
        match self {
            Client::Http(client) => client.prepare(requests, json_tensors),
            Client::Grpc(client) => {
                client.prepare(requests);
                Ok(())
            }
        }
    }
}

impl Target for Client {
    async fn send(&self, index: u64) -> Outcome {
        match self {
            Client::Http(client) => client.send(index).await,
            Client::Grpc(client) => client.send(index).await,
        }
    }
}

/// An input as the server's metadata declares it.
fn spec(name: String, datatype: &str, shape: Vec<i64>) -> anyhow::Result<TensorSpec> {
    let datatype = DataType::from_name(datatype)
        .with_context(|| format!("the model's input {name:?} has the unknown datatype {datatype:?}"))?;
    Ok(TensorSpec { name, datatype, shape })
}

/// The first line of what a server said, cut to a length that fits on a line.
fn excerpt(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(200).collect()
}

fn failed(class: impl Into<String>, message: &str) -> Outcome {
    Outcome::Failed { class: class.into(), message: excerpt(message) }
}
