//! The load generator against small test servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use indicatif::ProgressBar;
use ripieno_base::{Nanos, Time};
use ripieno_model::{DataType, TensorSpec};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use super::args::{BenchArgs, RateSweep};
use super::inputs::{self, Filling, InputSamples};
use super::load::{BenchTarget, LoadReport, LoadSchedule, RequestOutcome, open_loop};
use super::target::tls::ClientAuth;
use super::target::{Client, Protocol};

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

fn parse(line: &str) -> Result<BenchArgs, String> {
    let command = <Command as clap::Parser>::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
    command.bench.check().map(|()| command.bench)
}

#[test]
fn a_load_that_no_generator_sends_is_refused_with_the_flag() {
    let error = |more: &str| parse(&format!("bench localhost:8000 --model m {more}")).unwrap_err();
    assert!(error("--rate 1e9 --duration 1").contains("are 1000000000 requests, and a run has at most 50000000"));
    assert!(error("--sweep 10,1e8 --duration 1").contains("lower the rate or --duration"));
    assert!(error("--rate -5").contains("\"-5\" is no number above 0"));
    assert!(parse("bench localhost:8000 --model m --rate 5e6 --duration 10").is_ok());
}

/// Returns a schedule of `count` requests a millisecond apart, all counted.
fn plan(count: i64) -> LoadSchedule {
    LoadSchedule {
        due: Box::new((0..count).map(|at| Time::ORIGIN + Nanos::from_millis(at))),
        warmup: Nanos::ZERO,
        end: Nanos::from_millis(count),
        slo: None,
        timeout: Duration::from_secs(60),
        max_in_flight: 10_000,
        max_outstanding: 10_000,
    }
}

async fn drive<T: BenchTarget>(target: T, plan: LoadSchedule) -> LoadReport {
    open_loop(Arc::new(target), plan, &ProgressBar::hidden()).await.unwrap()
}

/// Answers nothing until all requests have been sent.
struct Stalled {
    expected: u64,
    sent: AtomicU64,
    open: watch::Sender<bool>,
}

impl BenchTarget for Stalled {
    async fn send(&self, _index: u64) -> RequestOutcome {
        if self.sent.fetch_add(1, Ordering::SeqCst) + 1 == self.expected {
            self.open.send_replace(true);
        }
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
        RequestOutcome::Answered
    }
}

/// A closed loop would never send the second request, and the run would not end.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_server_gets_no_relief_and_the_stall_shows() {
    let target = Stalled { expected: 100, sent: AtomicU64::new(0), open: watch::Sender::new(false) };
    let report = drive(target, LoadSchedule { slo: Some(Nanos::from_millis(50)), ..plan(100) }).await;
    assert_eq!((report.requests, report.answered), (100, 100));
    // The first request was due 99 ms before the last, and nothing was answered before that one.
    assert!(report.latencies.max_ms().unwrap() >= 98.9);
    assert!(report.late >= 49 && report.bad_rate() >= 0.49);
}

/// Time spent waiting for a connection is part of the latency: the only connection is busy until
/// all are due.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_turn_counts_from_the_due_time() {
    struct Held(watch::Sender<bool>);
    impl BenchTarget for Held {
        async fn send(&self, _index: u64) -> RequestOutcome {
            let mut open = self.0.subscribe();
            let _ = open.wait_for(|open| *open).await;
            RequestOutcome::Answered
        }
    }
    let open = watch::Sender::new(false);
    let opener = open.clone();
    let mut due = plan(20).due;
    let due = std::iter::from_fn(move || {
        let next = due.next();
        opener.send_if_modified(|open| next.is_none() && !std::mem::replace(open, true));
        next
    });
    let report = drive(Held(open), LoadSchedule { due: Box::new(due), max_in_flight: 1, ..plan(20) }).await;
    assert_eq!(report.answered, 20);
    assert!(report.latencies.max_ms().unwrap() >= 18.9);
    assert!(report.send_lag.max_ms().unwrap() >= 17.9);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_bound_are_not_sent_and_count_as_bad() {
    struct Never(Arc<Notify>);
    impl BenchTarget for Never {
        async fn send(&self, _index: u64) -> RequestOutcome {
            self.0.notified().await;
            RequestOutcome::Answered
        }
    }
    let bounded = LoadSchedule { max_outstanding: 3, timeout: Duration::from_millis(500), ..plan(10) };
    let report = drive(Never(Arc::new(Notify::new())), bounded).await;
    assert_eq!((report.requests, report.not_sent, report.answered), (10, 7, 0));
    assert_eq!(report.failures["client timeout"].count, 3);
    assert_eq!(report.bad_rate(), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_warmup_is_sent_but_not_counted() {
    struct Counting(AtomicU64);
    impl BenchTarget for Arc<Counting> {
        async fn send(&self, _index: u64) -> RequestOutcome {
            self.0.fetch_add(1, Ordering::SeqCst);
            RequestOutcome::Answered
        }
    }
    let target = Arc::new(Counting(AtomicU64::new(0)));
    let report = drive(target.clone(), LoadSchedule { warmup: Nanos::from_millis(10), ..plan(30) }).await;
    assert_eq!((report.requests, report.answered, target.0.load(Ordering::SeqCst)), (20, 20, 30));
    assert_eq!(report.per_second(report.answered), 1000.0);
}

/// A server of one model that answers every third request with 429 and every fifth with 504.
async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let infers = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let infers = infers.clone();
            let service = service_fn(move |request| answer(request, infers.clone()));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    address
}

async fn answer(request: Request<Incoming>, infers: Arc<AtomicU64>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/v2/models/m" => {
            (200, r#"{"name":"m","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[]}"#)
        }
        "/v2/models/m/config" => (200, r#"{"parameters":{"slo_ms":{"string_value":"25"}}}"#),
        "/v2/models/m/infer" => {
            let header: usize = request.headers()["inference-header-content-length"].to_str().unwrap().parse().unwrap();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len() - header, 2 * 4 * 4);
            match infers.fetch_add(1, Ordering::SeqCst) {
                at if at % 3 == 0 => (429, r#"{"error":"queue full"}"#),
                at if at % 5 == 0 => (504, r#"{"error":"too late"}"#),
                _ => (200, r#"{"outputs":[]}"#),
            }
        }
        _ => (404, r#"{"error":"no such model"}"#),
    };
    Ok(Response::builder().status(status).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_described_and_its_statuses_are_counted() {
    let address = serve().await.to_string();
    let mut client = Client::new(&address, Protocol::Http, "m", 8, &ClientAuth::default()).unwrap();
    let description = client.describe().await.unwrap();
    assert_eq!((description.inputs[0].shape.as_slice(), description.slo_ms), (&[-1, 4][..], Some(25.0)));
    let filling = Filling { rows: 2, ..Filling::default() };
    client.prepare(&inputs::requests(&description.inputs, &filling).unwrap(), false).unwrap();
    let report = drive(client, LoadSchedule { max_in_flight: 8, ..plan(30) }).await;
    let count = |class: &str| report.failures[class].count;
    assert_eq!((report.answered, count("HTTP 429"), count("HTTP 504")), (16, 10, 4));
    assert_eq!(report.failures["HTTP 504"].example, r#"{"error":"too late"}"#);
}

/// Answers every third request with RESOURCE_EXHAUSTED and the others with an empty message.
async fn answer_grpc(
    request: Request<Incoming>,
    infers: Arc<AtomicU64>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let sent = request.into_body().collect().await.unwrap().to_bytes();
    assert!(sent.windows(4).any(|window| window == b"FP32"));
    let response = Response::builder().header("content-type", "application/grpc");
    let refused = infers.fetch_add(1, Ordering::SeqCst).is_multiple_of(3);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(if refused { "8" } else { "0" }));
    trailers.insert("grpc-message", HeaderValue::from_static("queue full"));
    let message = Full::new(Bytes::from_static(&[0; 5]));
    Ok(response.body(message.with_trailers(std::future::ready(Some(Ok(trailers))))).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_statuses_are_counted_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let infers = Arc::new(AtomicU64::new(0));
        while let Ok((stream, _)) = listener.accept().await {
            let infers = infers.clone();
            let service = service_fn(move |request| answer_grpc(request, infers.clone()));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let mut client = Client::new(&address, Protocol::Grpc, "m", 2, &ClientAuth::default()).unwrap();
    let spec = TensorSpec { name: "x".into(), datatype: DataType::Fp32, shape: vec![-1, 4] };
    let filling = Filling { rows: 1, ..Filling::default() };
    client.prepare(&inputs::requests(&[spec], &filling).unwrap(), false).unwrap();
    let report = drive(client, plan(30)).await;
    assert_eq!((report.answered, report.failures.len()), (20, 1), "{:?}", report.failures);
    let refused = &report.failures["RESOURCE_EXHAUSTED"];
    assert_eq!((refused.count, refused.example.as_str()), (10, "RESOURCE_EXHAUSTED: queue full"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_or_server_is_named() {
    let address = serve().await.to_string();
    let error = Client::new(&address, Protocol::Http, "other", 1, &ClientAuth::default())
        .unwrap()
        .describe()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no such model"), "{error}");
    let client = Client::new("127.0.0.1:1", Protocol::Http, "m", 1, &ClientAuth::default()).unwrap();
    assert!(client.describe().await.unwrap_err().to_string().contains("is the server running"));
    let client = Client::new("127.0.0.1:1", Protocol::Grpc, "m", 1, &ClientAuth::default()).unwrap();
    assert!(client.describe().await.unwrap_err().to_string().contains("grpc://127.0.0.1:1"));
}

#[test]
fn inputs_fit_their_declaration() {
    let spec = |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.into(), datatype, shape: shape.into() };
    let specs = [
        spec("image", DataType::Fp32, &[-1, 2, -1]),
        spec("ids", DataType::Int64, &[-1, -1]),
        spec("text", DataType::Bytes, &[-1, 1]),
        spec("half", DataType::Fp16, &[-1, 4]),
    ];
    let filling = Filling { rows: 3, shapes: vec!["image:2,5".parse().unwrap()], ..Filling::default() };
    let requests = inputs::requests(&specs, &filling).unwrap();
    assert_eq!(requests, inputs::requests(&specs, &filling).unwrap());
    assert!(requests.len() > 1 && requests[0] != requests[1]);
    let shapes: Vec<(&[i64], usize)> =
        requests[0].iter().map(|tensor| (&tensor.shape[..], tensor.data.len())).collect();
    assert_eq!(shapes, [(&[3, 2, 5][..], 120), (&[3, 1], 24), (&[3, 1], 12), (&[3, 4], 24)]);
    let refused = |shape: &str, rows| {
        let filling = Filling { rows, shapes: vec![shape.parse().unwrap()], ..Filling::default() };
        inputs::requests(&specs, &filling).unwrap_err().to_string()
    };
    assert!(refused("image:3,5", 1).contains("does not fit"));
    assert!(refused("picture:2,5", 1).contains("no input \"picture\""));
    assert!(refused("ids:99999999999", 1).contains("too large"));
}

#[test]
fn samples_are_scaled_and_sent_in_turn() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/samples/digits.json");
    let samples = InputSamples::read(file.as_ref()).unwrap();
    let first: Vec<f32> = samples.rows[0].data.iter().map(|&value| value as f32 / 16.0).collect();
    let spec = TensorSpec { name: "image".into(), datatype: DataType::Fp32, shape: vec![-1, 1, 8, 8] };
    let filling = Filling { rows: 2, samples: Some(samples), ..Filling::default() };
    let tensor = &inputs::requests(&[spec], &filling).unwrap()[0][0];
    let sent: Vec<f32> = tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    assert_eq!((&tensor.shape[..], &sent[..64]), (&[2, 1, 8, 8][..], &first[..]));
}

#[test]
fn lines_are_parsed_or_refused_with_a_reason() {
    assert_eq!(parse("bench h:1 -m d --sweep 0.1:0.5:0.1").unwrap().sweep.unwrap().0.len(), 5);
    assert_eq!(parse("bench h:1 -m d --sweep 1,20").unwrap().sweep, Some(RateSweep(vec![1.0, 20.0])));
    assert!(parse("bench h:1 -m d --rate 5 --arrival gamma:0.3").is_ok());
    assert!(parse("bench h:1 -m d --find-goodput --rate 100").is_ok());
    for (line, reason) in [
        ("bench h:1 -m d", "--rate R"),
        ("bench h:1 -m d --rate 0", "above 0"),
        ("bench h:1 -m d --rate 5 --sweep 1,2", "cannot be used with"),
        ("bench h:1 -m d --rate 5 --arrival trace:t.csv", "its own rate"),
        ("bench h:1 -m d --rate 5 --arrival burst", "gamma:SHAPE"),
        ("bench h:1 -m d --sweep 9:1:1", "FROM is above TO"),
        ("bench h:1 -m d --rate 5 --shape x", "NAME:DIMS"),
        ("bench h:1 --rate 5", "--model"),
        ("bench ftp://h -m d --rate 5", "ftp:// is not supported"),
        ("bench h:1/v2 -m d --rate 5", "is no server"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
}
