//! Measures the number of requests per second that the control plane carries: one frontend process,
//! a scheduler process and backend processes, on loopback.
//!
//! `cargo run --release -p ripieno-cluster --example control_plane -- [--backends N] [--in-flight
//! N] [--seconds S] [--model-us US]`
//!
//! The frontend submits requests and counts their ends, without clients and tensors; backends
//! report the end of a batch after its time, without pulling inputs: what is left is the cost of a
//! request's records. Each row runs in processes of its own: `echo`, where a peer ends each request
//! as it reads it (the connection alone); `engine`, where the scheduler's engine refuses each
//! request for lack of a model. `cluster` is the whole control plane. `grpc 1` and `grpc 256` are
//! `echo` over a bidirectional stream of tonic, whose messages hold one record, or up to 256 of
//! them. Latency is from submission to end; the processor time is the peer's, or the scheduler's,
//! per request.

mod grpc;

use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::handover::store::AloneStore;
use ripieno_cluster::handover::{Epoch, Timing};
use ripieno_cluster::plane::{
    Handshake, LinkBounds, MemberEnd, Message, MessageReader, PeerLink, RequestEnd, RequestHeader, Role, RunningReport,
    TaskEnd, Tcp, Transport, accept_handshake, connect_handshake,
};
use ripieno_cluster::{
    ClusterScheduler, ModelDescription, OfferedModel, SchedulerConfig, StartedEngine, TensorDescription, encode_offers,
};
use ripieno_model::{DataType, DropRule, Model, Profile, TensorSpec};
use ripieno_policies::{build, find, served_options};
use ripieno_runtime::{Engine, EngineConfig, Failure, JobOutput};
use ripieno_sched::{Objective, Options, Setup};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const MAX_BATCH: usize = 64;
const LIVE: usize = 1 << 16;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &str| words.iter().position(|given| given == word).and_then(|at| words.get(at + 1));
    let number = |word: &str, default: u64| after(word).map_or(Ok(default), |text| text.parse());
    let (backends, in_flight) = (number("--backends", 2)?, number("--in-flight", 8192)? as usize);
    let (seconds, model_us) = (number("--seconds", 3)?, number("--model-us", 500)?);
    match words.first().map(String::as_str) {
        Some("echo") => echo(),
        Some("scheduler") => scheduler(),
        Some("backend") => backend(&words[1], model_us),
        Some("frontend") => frontend(&words[1], in_flight, Duration::from_secs(seconds)),
        Some("grpc-echo") => grpc::echo(),
        Some("grpc-frontend") => {
            grpc::frontend(&words[1], in_flight, number("--a-message", 1)? as usize, Duration::from_secs(seconds))
        }
        _ => all(&words, backends),
    }
}

/// Starts the processes of each row and prints the frontend's measurements.
fn all(words: &[String], backends: u64) -> Outcome<()> {
    println!("{:8} {:>12} {:>9} {:>9} {:>8} {:>9}", "what", "requests/s", "p50 µs", "p99 µs", "a batch", "CPU µs");
    let rows = [
        ("echo", "echo", "frontend", 0, ""),
        ("grpc 1", "grpc-echo", "grpc-frontend", 0, "1"),
        ("grpc 256", "grpc-echo", "grpc-frontend", 0, "256"),
        ("engine", "scheduler", "frontend", 0, ""),
        ("cluster", "scheduler", "frontend", backends, ""),
    ];
    for (what, server, frontend, count, a_message) in rows {
        let (mut server, address) = started(&[server.to_owned()])?;
        let mut others = Vec::new();
        for _ in 0..count {
            others.push(started(&[&["backend".to_owned(), address.clone()], words].concat())?.0);
        }
        let own = [frontend, &address, "--a-message", a_message].map(str::to_owned);
        let (mut frontend, line) = started(&[&own, words].concat())?;
        let (ended, line) = line.split_once(' ').ok_or("the frontend says nothing")?;
        println!("{what:8} {line} {:>9.2}", processor_us(server.id())? / ended.parse::<f64>()?);
        frontend.wait()?;
        others.push(std::mem::replace(&mut server, frontend));
        for mut other in others {
            other.kill()?;
            other.wait()?;
        }
    }
    Ok(())
}

/// Returns the processor time of a process so far, in µs, on Linux, whose clock ticks a hundred
/// times a second.
fn processor_us(process: u32) -> Outcome<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).map_or(Ok(0.0), |ticks| ticks.parse::<f64>());
    Ok((ticks(11)? + ticks(12)?) * 10_000.0)
}

/// Starts a process of this program, and returns the first line that it prints.
fn started(words: &[String]) -> Outcome<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.as_mut() {
        BufReader::new(out).read_line(&mut line)?;
    }
    Ok((child, line.trim_end().to_owned()))
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Ends each request as it arrives.
fn echo() -> Outcome<()> {
    let listener = Tcp.listen(anywhere())?;
    println!("{}", listener.address());
    while let Some(stream) = listener.accept()? {
        accept_handshake(&*stream, Handshake::new(Role::Scheduler, 1), &[Role::Frontend])?;
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "echo")?;
        let mut reader = MessageReader::new(stream, PeerLink::MAX_SILENCE);
        while let Ok(message) = reader.read() {
            if let Message::Submit(RequestHeader { request, .. }) = message {
                link.send(&ended_well(request));
            }
        }
    }
    Ok(())
}

fn ended_well(request: u64) -> Message {
    let (queued, executed) = (Nanos::ZERO, Nanos::ZERO);
    let answer = Ok(JobOutput { outputs: Vec::new(), queued, executed, batch: 1, late: false });
    Message::RequestEnd(RequestEnd { request, answer })
}

fn scheduler() -> Outcome<()> {
    let start = || {
        let policy = find("deferred").map_err(|error| error.to_string())?;
        let options = served_options(policy, Options::new(), Objective::Latency);
        let limits = policy.needs(&options).served(64, LIVE);
        let setup = Setup { models: Vec::new(), devices: 0, limits };
        let scheduler = build("deferred", &setup, &options).map_err(|error| error.to_string())?;
        let engine =
            Engine::start(EngineConfig::new(scheduler, setup, Vec::new())).map_err(|error| error.to_string())?;
        Ok(StartedEngine { engine, depth: limits.depth })
    };
    let config = SchedulerConfig {
        listen: anywhere(),
        schedulers: Vec::new(),
        store: Box::new(AloneStore { epoch: Epoch(1) }),
        timing: Timing::SHARED_HOSTS,
        plan: ripieno_cluster::InitialPlan::Whole,
        start: Box::new(start),
        on_serving: Box::new(|_| {}),
    };
    let scheduler = ClusterScheduler::start(Arc::new(Tcp), config)?;
    println!("{}", scheduler.address());
    loop {
        thread::park();
    }
}

/// A device that takes some time for each batch, and nothing else.
fn backend(address: &str, model_us: u64) -> Outcome<()> {
    let (link, mut reader) = connect(address, Role::Backend)?;
    let spec =
        TensorDescription::of(&TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] });
    let profile = Profile::linear(0.0, model_us as f64 / 1e3, MAX_BATCH).map_err(|error| format!("{error:?}"))?;
    let model = Model { drop: Some(DropRule::Never), ..Model::whole("m", profile, Nanos::from_millis(1000)) };
    let description = ModelDescription {
        name: "m".to_owned(),
        version: "1".to_owned(),
        digest: String::new(),
        platform: "none".to_owned(),
        inputs: vec![spec.clone()],
        outputs: vec![spec],
        answers: vec!["x".to_owned()],
        batched: true,
        lengths: None,
        model,
        max_queue: Some(LIVE),
        max_queued_work: None,
        answer_late: true,
        slo_origin: String::new(),
        labels: Default::default(),
        streams: false,
        walks: None,
    };
    let models = encode_offers(&[OfferedModel { number: 0, superseded: false, description }]).into();
    link.send(&Message::RegisterBackend { depth: 64, models });
    println!("offered");
    let mut free = Instant::now();
    while let Ok(message) = reader.read() {
        if let Message::Claim { stamp, .. } = message {
            link.send(&Message::Report(RunningReport { stamp, revision: 1, held: Vec::new() }));
        } else if let Message::RunTask(run) = message {
            free = free.max(Instant::now()) + Duration::from_micros(model_us);
            thread::sleep(free.saturating_duration_since(Instant::now()));
            let members = Ok(run.members.iter().map(|_| MemberEnd::Ended).collect());
            let took_ns = model_us * 1000;
            link.send(&Message::TaskEnd(TaskEnd {
                task: run.task,
                ago_ns: 0,
                took_ns,
                reruns: 0,
                lost: None,
                members,
            }));
        }
    }
    Ok(())
}

fn connect(address: &str, role: Role) -> Outcome<(Arc<PeerLink>, MessageReader)> {
    let stream = Tcp.connect(address, Duration::from_secs(5))?;
    connect_handshake(&*stream, Handshake::new(role, 0), Role::Scheduler)?;
    let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "ask")?;
    Ok((link, MessageReader::new(stream, PeerLink::MAX_SILENCE)))
}

fn asked(request: u64) -> Message {
    let (model, client, priority, rows, length) = (ModelId(0), 0, 0, 1, 1);
    Message::Submit(RequestHeader {
        request,
        model,
        client,
        priority,
        rows,
        length,
        bytes: 1,
        left_ns: None,
        sizes: None,
        stream: false,
    })
}

/// Keeps `in_flight` requests in flight: each that ends is submitted again.
fn frontend(address: &str, in_flight: usize, span: Duration) -> Outcome<()> {
    let (link, mut reader) = connect(address, Role::Frontend)?;
    link.send(&Message::RegisterFrontend(1, "127.0.0.1:9".to_owned()));
    // Until the scheduler is the primary; a peer that answers each request immediately does not
    // tell.
    thread::sleep(Duration::from_millis(1_000));
    let mut since = vec![Instant::now(); in_flight];
    let ask = |since: &mut [Instant], request: u64| {
        since[request as usize % in_flight] = Instant::now();
        link.send(&asked(request));
    };
    (0..in_flight as u64).for_each(|request| ask(&mut since, request));
    let (begun, mut took, mut batches, mut refused) = (Instant::now(), Vec::new(), 0.0, 0);
    while begun.elapsed() < span {
        let Message::RequestEnd(RequestEnd { request, answer }) = reader.read()? else { continue };
        took.push(since[request as usize % in_flight].elapsed());
        match answer {
            Ok(answered) => batches += 1.0 / answered.batch.max(1) as f64,
            Err(Failure::QueueFull { .. }) => refused += 1,
            Err(other) => return Err(format!("a request failed: {other}").into()),
        }
        ask(&mut since, request + in_flight as u64);
    }
    let batch = if refused > 0 { "refused".to_owned() } else { format!("{:.1}", took.len() as f64 / batches) };
    say(begun.elapsed(), took, &batch);
    Ok(())
}

/// Prints a frontend's measurements as a row.
fn say(span: Duration, mut took: Vec<Duration>, batch: &str) {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_micros();
    let rate = took.len() as f64 / span.as_secs_f64();
    println!("{} {rate:12.0} {:>9} {:>9} {batch:>8}", took.len(), at(50), at(99));
}
