//! TLS on every port, with certificates that are made when the test runs.

use crate::access::Scratch;
use crate::scripted::{Event, echo};
use crate::support::{PATIENCE, Running, config, scripted};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use ripieno_server::{AccessConfig, ServerConfig, TlsFiles};
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ripieno_wire::proto::inference::{ServerLiveRequest, ServerReadyRequest};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// Certificate and key, as PEM.
type Pair = (String, String);

fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(authority: &Issuer, name: &str) -> Pair {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned(), name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

struct Files {
    certificate: Scratch,
    key: Scratch,
    authorities: Option<Scratch>,
}

impl Files {
    fn new((certificate, key): &Pair, clients: Option<&Issuer>) -> Files {
        let authorities = clients.map(|authority| Scratch::new(&authority.pem()));
        Files { certificate: Scratch::new(certificate), key: Scratch::new(key), authorities }
    }

    fn tls(&self, plain_metrics: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.certificate.0.clone(),
            key: self.key.0.clone(),
            client_authorities: self.authorities.as_ref().map(|file| file.0.clone()),
            plain_metrics,
        }
    }

    async fn serve(&self, plain_metrics: bool, header_timeout: Duration) -> Running {
        let tls = self.tls(plain_metrics);
        let reload_every = Duration::from_millis(5);
        let access = AccessConfig { tls: Some(tls), reload_every, ..AccessConfig::default() };
        scripted(ServerConfig { access, header_timeout, ..config() }).await.0
    }
}

/// A TLS connection of a client that trusts `authority` and may show a certificate.
async fn connect(
    address: SocketAddr,
    authority: &Issuer,
    own: Option<&Pair>,
    protocol: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// The status and body of `GET path` on a connection, by the protocol that it agreed on.
async fn get(stream: TlsStream<TcpStream>, path: &str) -> io::Result<(StatusCode, Bytes)> {
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let request = Request::get(format!("https://localhost{path}")).header("host", "localhost");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let io = TokioIo::new(stream);
    let answer = if is_h2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    let answer = answer.map_err(io::Error::other)?;
    let status = answer.status();
    Ok((status, answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes()))
}

/// Whether a client gets an answer; the refusal of a certificate comes after the handshake in TLS 1.3.
async fn is_served(address: SocketAddr, authority: &Issuer, own: Option<&Pair>, protocol: &[u8]) -> bool {
    let path = "/v2/health/live";
    let served = async { get(connect(address, authority, own, protocol).await?, path).await };
    tokio::time::timeout(PATIENCE, served).await.unwrap().is_ok()
}

async fn grpc(address: SocketAddr, authority: &Issuer, own: Option<&Pair>) -> Result<bool, tonic::Status> {
    let stream = connect(address, authority, own, b"h2").await?;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("one connection only"));
        async move { stream }
    });
    let endpoint = Endpoint::from_static("https://localhost");
    let channel =
        endpoint.connect_with_connector(connector).await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    let mut client = GrpcInferenceServiceClient::new(channel);
    client.server_live(ServerLiveRequest {}).await?;
    Ok(client.server_ready(ServerReadyRequest {}).await?.into_inner().ready)
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn every_port_speaks_tls_and_nothing_else() {
    let authority = authority("ours");
    let files = Files::new(&issue(&authority, "server"), None);
    let server = files.serve(false, LONG).await;
    let (http, metrics) = (server.addresses.http.unwrap(), server.addresses.metrics.unwrap());
    for protocol in [&b"h2"[..], b"http/1.1"] {
        let stream = connect(http, &authority, None, protocol).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        assert_eq!(get(stream, "/v2/health/ready").await.unwrap().0, StatusCode::OK);
    }
    let (status, text) = get(connect(metrics, &authority, None, b"http/1.1").await.unwrap(), "/metrics").await.unwrap();
    assert!(status == StatusCode::OK && text.starts_with(b"# HELP"));
    assert!(grpc(server.addresses.grpc.unwrap(), &authority, None).await.unwrap());
    assert!(
        !is_served(http, &self::authority("another"), None, b"h2").await,
        "the client does not know this authority"
    );
    for address in [http, metrics, server.addresses.grpc.unwrap()] {
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // A reset is a refusal, too.
        let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await.unwrap();
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
}

#[tokio::test]
async fn with_client_authorities_only_their_clients_are_let_in() {
    let (ours, theirs, other) = (authority("ours"), authority("theirs"), authority("other"));
    let files = Files::new(&issue(&ours, "server"), Some(&theirs));
    let server = files.serve(true, LONG).await;
    let (good, bad) = (issue(&theirs, "client"), issue(&other, "client"));
    let cases = [(None, false), (Some(&bad), false), (Some(&good), true)];
    for (own, expected) in cases {
        for protocol in [&b"h2"[..], b"http/1.1"] {
            assert_eq!(is_served(server.addresses.http.unwrap(), &ours, own, protocol).await, expected);
        }
        assert_eq!(grpc(server.addresses.grpc.unwrap(), &ours, own).await.is_ok(), expected);
    }
    let plain = Request::get(format!("http://{}/metrics", server.addresses.metrics.unwrap()));
    let plain = crate::support::send(plain.body(Full::default()).unwrap()).await;
    assert_eq!(plain.status, StatusCode::OK, "the metrics were left in the clear");
}

#[tokio::test]
async fn a_new_certificate_is_taken_over_without_a_restart_and_a_broken_one_is_not() {
    let (old, new) = (authority("old"), authority("new"));
    let files = Files::new(&issue(&old, "server"), None);
    let server = files.serve(false, LONG).await;
    let http = server.addresses.http.unwrap();
    let kept = connect(http, &old, None, b"http/1.1").await.unwrap();
    files.certificate.write("-----BEGIN CERTIFICATE-----\nbroken");
    for _ in 0..20 {
        assert!(is_served(http, &old, None, b"h2").await, "the old one stays");
    }
    let (certificate, key) = issue(&new, "server");
    files.certificate.write(&certificate);
    files.key.write(&key);
    while !is_served(http, &new, None, b"h2").await {
        tokio::task::yield_now().await;
    }
    assert!(!is_served(http, &old, None, b"h2").await);
    assert_eq!(get(kept, "/v2/health/live").await.unwrap().0, StatusCode::OK, "connections outlive their certificate");
}

#[tokio::test]
async fn who_never_begins_holds_up_nobody_and_is_sent_away() {
    let authority = authority("ours");
    let files = Files::new(&issue(&authority, "server"), None);
    let server = files.serve(false, Duration::from_millis(200)).await;
    let http = server.addresses.http.unwrap();
    let mut silent = TcpStream::connect(http).await.unwrap();
    let mut half = TcpStream::connect(http).await.unwrap();
    half.write_all(&[22, 3, 1]).await.unwrap();
    for stream in [&mut silent, &mut half] {
        // An error is an end, too; only to go on would be wrong.
        let _ = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 64])).await.expect("the server hangs up");
    }
    let patient = files.serve(false, LONG).await;
    let http = patient.addresses.http.unwrap();
    let _silent = TcpStream::connect(http).await.unwrap();
    assert!(is_served(http, &authority, None, b"h2").await);
}

#[tokio::test]
async fn a_handshake_under_way_does_not_delay_the_end() {
    let authority = authority("ours");
    let files = Files::new(&issue(&authority, "server"), None);
    let mut server = files.serve(false, LONG).await;
    let _silent = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    assert!(
        is_served(server.addresses.http.unwrap(), &authority, None, b"h2").await,
        "so the other was accepted before"
    );
    server.stop.take().unwrap().send(()).unwrap();
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

#[tokio::test]
async fn who_stops_sending_after_a_request_is_answered_inside_tls() {
    let authority = authority("ours");
    let files = Files::new(&issue(&authority, "server"), None);
    let tls = files.tls(false);
    let access = AccessConfig { tls: Some(tls), ..AccessConfig::default() };
    let (server, backend, mut events) = scripted(ServerConfig { access, ..config() }).await;
    let mut stream = connect(server.addresses.http.unwrap(), &authority, None, b"http/1.1").await.unwrap();
    stream.write_all(crate::connections::request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    stream.shutdown().await.unwrap();
    // The server asks whether the client is still there: an interim answer, encrypted like all else.
    let mut interim = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut interim)).await.unwrap().unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100");
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.contains("HTTP/1.1 200") && answer.contains("[1.0,2.0]"), "{answer}");
}
