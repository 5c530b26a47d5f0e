//! The same records by gRPC: a bidirectional stream of tonic whose messages hold one record, or as
//! many as have arrived.

use super::{Outcome, asked, ended_well, say};
use bytes::Bytes;
use ripieno_base::ModelId;
use ripieno_cluster::plane::{Message, RECORD, RequestEnd, RequestHeader};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{NamedService, StreamingService};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// Capacity of the channel to tonic, in messages.
const WAITING: usize = 1024;

#[derive(Clone, PartialEq, prost::Message)]
struct Records {
    #[prost(bytes = "bytes", tag = "1")]
    records: Bytes,
}

fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Ends each request as it arrives.
pub(super) fn echo() -> Outcome<()> {
    let runtime = runtime()?;
    // A port that is probably free.
    let address = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?.local_addr()?;
    runtime.block_on(async {
        let server = tokio::spawn(Server::builder().tcp_nodelay(true).add_service(Echo).serve(address));
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("{address}");
        Ok(server.await??)
    })
}

#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "ripieno.ControlPlane";
}

impl Service<HttpRequest<Body>> for Echo {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<HttpResponse<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let codec = ProstCodec::<Records, Records>::default();
        Box::pin(async { Ok(tonic::server::Grpc::new(codec).streaming(Echo, request).await) })
    }
}

impl StreamingService<Records> for Echo {
    type Response = Records;
    type ResponseStream = ReceiverStream<Result<Records, Status>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<Records>>) -> Self::Future {
        Box::pin(async {
            let (send, receive) = mpsc::channel(WAITING);
            tokio::spawn(async move {
                let mut asked = request.into_inner();
                while let Ok(Some(Records { records })) = asked.message().await {
                    let mut ends = Vec::with_capacity(records.len());
                    for message in messages(&records) {
                        let Message::Submit(RequestHeader { request, .. }) = message else { continue };
                        ended_well(request).encode(&mut ends);
                    }
                    if send.send(Ok(Records { records: ends.into() })).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Response::new(ReceiverStream::new(receive)))
        })
    }
}

fn messages(records: &Bytes) -> impl Iterator<Item = Message> {
    records.as_chunks::<RECORD>().0.iter().filter_map(|record| Message::decode(record, Bytes::new()).ok())
}

/// Keeps `in_flight` requests in flight, with at most `a_message` of them in one message.
pub(super) fn frontend(address: &str, in_flight: usize, a_message: usize, span: Duration) -> Outcome<()> {
    runtime()?.block_on(async {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?;
        let (send, waiting) = mpsc::channel(in_flight.max(WAITING));
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await?;
        let codec = ProstCodec::<Records, Records>::default();
        let path = PathAndQuery::from_static("/ripieno.ControlPlane/Stream");
        let mut since = vec![Instant::now(); in_flight];
        let first: Vec<u64> = (0..in_flight as u64).collect();
        for requests in first.chunks(a_message) {
            send.send(ask(requests, &mut since)).await?;
        }
        let mut ends = grpc.streaming(Request::new(ReceiverStream::new(waiting)), path, codec).await?.into_inner();
        let (begun, mut took, mut next) = (Instant::now(), Vec::new(), Vec::new());
        while begun.elapsed() < span {
            let Some(Records { records }) = ends.message().await? else { break };
            for message in messages(&records) {
                let Message::RequestEnd(RequestEnd { request, .. }) = message else { continue };
                took.push(since[request as usize % in_flight].elapsed());
                next.push(request + in_flight as u64);
            }
            for requests in next.chunks(a_message) {
                send.send(ask(requests, &mut since)).await?;
            }
            next.clear();
        }
        say(begun.elapsed(), took, "1.0");
        Ok(())
    })
}

/// Returns a message that submits these requests.
fn ask(requests: &[u64], since: &mut [Instant]) -> Records {
    let mut records = Vec::with_capacity(requests.len() * RECORD);
    for &request in requests {
        let at = request as usize % since.len();
        since[at] = Instant::now();
        asked(request, ModelId(0)).encode(&mut records);
    }
    Records { records: records.into() }
}
