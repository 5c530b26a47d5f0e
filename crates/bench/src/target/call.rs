//! One call to a server over HTTP, plain or TLS, for commands that ask it something.

use super::tls::{ClientAuth, ClientTlsArgs};
use super::{Address, Protocol};
use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// Makes a call without a body to `http[s]://HOST:PORT`, and returns the answer.
pub async fn call(method: Method, url: &str, path: &str, tls: &ClientTlsArgs) -> anyhow::Result<Response<Incoming>> {
    call_with(method, url, path, tls, false).await
}

/// Makes a call as [`call`] does. With `trusts_any` and without authorities of its own, the client
/// takes any certificate: for this machine's own server, where no name is to be proved.
pub async fn call_with(
    method: Method,
    url: &str,
    path: &str,
    tls: &ClientTlsArgs,
    trusts_any: bool,
) -> anyhow::Result<Response<Incoming>> {
    let address: Address = url.parse().map_err(anyhow::Error::msg)?;
    ensure!(address.protocol != Some(Protocol::Grpc), "{url}: give http://HOST:PORT or https://HOST:PORT");
    let auth = ClientAuth::open_with(tls, &address, trusts_any)?;
    let mut request = Request::builder().method(method);
    request = request.uri(format!("{}://{}{path}", auth.scheme(), address.authority));
    if let Some(authorization) = auth.authorization() {
        request = request.header(AUTHORIZATION, authorization);
    }
    let client = Client::builder(TokioExecutor::new()).build(auth.connector(b"http/1.1"));
    let request = request.body(Full::<Bytes>::default())?;
    client.request(request).await.with_context(|| format!("cannot reach {url}"))
}

/// Asks any server for a file. Only these headers are sent: tokens of this machine are not for
/// others.
pub async fn get(url: &Uri, headers: &HeaderMap) -> anyhow::Result<Response<Incoming>> {
    let encrypted = match url.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => anyhow::bail!("{url}: give http:// or https://"),
    };
    let auth = ClientAuth::public(encrypted)?;
    let mut request = Request::get(url).header(USER_AGENT, concat!("ripieno/", env!("CARGO_PKG_VERSION")));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let client = Client::builder(TokioExecutor::new()).build(auth.connector(b"http/1.1"));
    client.request(request.body(Full::<Bytes>::default())?).await.with_context(|| format!("cannot reach {url}"))
}
