//! One call to a server over HTTP, plain or TLS, for commands that ask it something.

use super::tls::{ClientAuth, ClientTlsArgs};
use super::{Address, Protocol};
use anyhow::ensure;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::{Client, Error};
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
    let authority = "name its authority with --ca, or in SSL_CERT_FILE";
    client.request(request).await.map_err(|error| unreachable(url, address.encrypted, authority, error))
}

/// Returns the error for a server that cannot be reached, with the likely mistake.
fn unreachable(url: &str, is_encrypted: bool, authority: &str, error: Error) -> anyhow::Error {
    let hint = match is_encrypted {
        true if format!("{error:?}").contains("UnknownIssuer") => format!("; {authority}"),
        false if !error.is_connect() => "; if the server encrypts, write https://".to_owned(),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot reach {url}{hint}"))
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
    let (shown, authority) = (url.to_string(), "name its authority in SSL_CERT_FILE");
    let answer = client.request(request.body(Full::<Bytes>::default())?).await;
    answer.map_err(|error| unreachable(&shown, encrypted, authority, error))
}
