//! Measures the number of requests per second that the control plane carries: one frontend process,
//! a scheduler process and backend processes, on loopback.
//!
//! `cargo run --release -p ripieno-cluster --example control_plane -- [--backends N] [--in-flight
//! N] [--seconds S] [--model-us US] [--divided]`
//!
//! The frontend submits requests and counts their ends, without clients and tensors; backends
//! report the end of a batch after its time, without pulling inputs: what is left is the cost of a
//! request's records. Each row runs in processes of its own: `echo`, where a peer ends each request
//! as it reads it (the connection alone); `engine`, where the scheduler's engine refuses each
//! request for lack of a model. `cluster` is the whole control plane. `grpc 1` and `grpc 256` are
//! `echo` over a bidirectional stream of tonic, whose messages hold one record, or up to 256 of
//! them. Latency is from submission to end; the processor time is the peer's, or the scheduler's,
//! per request.
//!
//! With `--divided` the rows are the whole control plane with 1, 2 and 4 shards, and with 2 and 4
//! sub-clusters, for four models alike. After each comes a row at half of its rate, under `eager`
//! on devices of which some are always idle. Its latency, less the time of a batch, is what the
//! control plane adds.

mod grpc;

use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::handover::store::AloneStore;
use ripieno_cluster::handover::{Epoch, Timing};
use ripieno_cluster::plane::{
    Handshake, LinkBounds, MemberEnd, Message, MessageReader, PeerLink, RequestEnd, RequestHeader, Role, RunningReport,
    TaskEnd, Tcp, Transport, accept_handshake, connect_handshake,
};
use ripieno_cluster::{
    ClusterScheduler, InitialPlan, ModelDescription, OfferedModel, PlacementPlan, PlannedSubCluster, SchedulerConfig,
    StartedEngine, encode_offers,
};
use ripieno_model::{DataType, DropRule, Model, Profile, TensorSpec};
use ripieno_policies::{Halves, ServedPolicy, build, build_halves, find, served_options};
use ripieno_runtime::{Engine, EngineConfig, Failure, JobOutput};
use ripieno_sched::{Objective, Options, Scheduler, Setup};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    let division = Division {
        policy: after("--policy").cloned().unwrap_or_else(|| "deferred".to_owned()),
        shards: number("--shards", 1)? as usize,
        sub_clusters: number("--sub-clusters", 1)? as usize,
        models: number("--models", 1)? as usize,
    };
    match words.first().map(String::as_str) {
        Some("echo") => echo(),
        Some("scheduler") => scheduler(division),
        Some("backend") => backend(&words[1], model_us, &division),
        Some("frontend") => {
            let pace = number("--rate", 0)?;
            frontend(&words[1], in_flight, Duration::from_secs(seconds), &division, pace)
        }
        Some("grpc-echo") => grpc::echo(),
        Some("grpc-frontend") => {
            grpc::frontend(&words[1], in_flight, number("--a-message", 1)? as usize, Duration::from_secs(seconds))
        }
        _ if words.iter().any(|word| word == "--divided") => divided(&words, backends, model_us),
        _ => all(&words, backends),
    }
}

/// The models, and how the scheduler divides them.
struct Division {
    policy: String,
    shards: usize,
    sub_clusters: usize,
    models: usize,
}

impl Division {
    /// Returns the numbers by which frontends name the models: each sub-cluster has 256.
    fn ids(&self) -> Vec<ModelId> {
        let id = |at: usize| at % self.sub_clusters * 256 + at / self.sub_clusters;
        (0..self.models).map(|at| ModelId(id(at) as u16)).collect()
    }

    fn plan(&self) -> InitialPlan {
        if self.sub_clusters == 1 {
            return InitialPlan::Whole;
        }
        let models = |part: usize| (part..self.models).step_by(self.sub_clusters).map(|at| format!("m{at}")).collect();
        let sub_clusters =
            (0..self.sub_clusters).map(|part| PlannedSubCluster { models: models(part), devices: 1 }).collect();
        InitialPlan::Given(PlacementPlan { sub_clusters, ..PlacementPlan::default() })
    }
}

/// Measures each division at saturation, and then at half of that rate.
fn divided(words: &[String], backends: u64, model_us: u64) -> Outcome<()> {
    println!(
        "{:16} {:>12} {:>9} {:>9} {:>8} {:>9}",
        "what", "requests/s", "added p50", "added p99", "a batch", "CPU µs"
    );
    for (what, shards, sub_clusters) in
        [("one loop", 1, 1), ("2 shards", 2, 1), ("4 shards", 4, 1), ("2 sub-clusters", 1, 2), ("4 sub-clusters", 1, 4)]
    {
        let division = format!("--models 4 --shards {shards} --sub-clusters {sub_clusters}");
        let run = |policy: &str, rate: u64| {
            let own = format!("{division} --policy {policy} --rate {rate}");
            let own: Vec<String> = own.split(' ').map(str::to_owned).collect();
            measured(&[&own, words].concat(), ("scheduler", "frontend"), backends)
        };
        let full = run("deferred", 0)?;
        let half = run("eager", (full.rate / 2.0) as u64)?;
        println!("{what:16} {:12.0} {:>9} {:>9} {:>8} {:>9.2}", full.rate, "", "", full.batch, full.processor_us);
        let added = |latency: f64| latency - model_us as f64;
        let (p50, p99) = (added(half.p50_us), added(half.p99_us));
        println!("{:16} {:12.0} {p50:>9.0} {p99:>9.0} {:>8} {:>9.2}", "", half.rate, half.batch, half.processor_us);
    }
    Ok(())
}

/// A row that a frontend has printed, and the processor time of its peer for each request.
struct MeasuredRow {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    batch: String,
    processor_us: f64,
}

/// Starts the processes of a row, and returns the frontend's measurements.
fn measured(words: &[String], (server, frontend): (&str, &str), backends: u64) -> Outcome<MeasuredRow> {
    let (mut server, address) = started(&[&[server.to_owned()], words].concat())?;
    let mut others = Vec::new();
    for _ in 0..backends {
        others.push(started(&[&["backend".to_owned(), address.clone()], words].concat())?.0);
    }
    let (mut frontend, line) = started(&[&[frontend.to_owned(), address], words].concat())?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [ended, rate, p50, p99, batch] = fields[..] else { return Err("the frontend says nothing".into()) };
    let processor_us = processor_us(server.id())? / ended.parse::<f64>()?;
    frontend.wait()?;
    others.push(std::mem::replace(&mut server, frontend));
    for mut other in others {
        other.kill()?;
        other.wait()?;
    }
    let (rate, p50_us, p99_us) = (rate.parse()?, p50.parse()?, p99.parse()?);
    Ok(MeasuredRow { rate, p50_us, p99_us, batch: batch.to_owned(), processor_us })
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
        let own = ["--a-message", a_message].map(str::to_owned);
        let MeasuredRow { rate, p50_us, p99_us, batch, processor_us } =
            measured(&[&own[..], words].concat(), (server, frontend), count)?;
        println!("{what:8} {rate:12.0} {p50_us:>9} {p99_us:>9} {batch:>8} {processor_us:>9.2}");
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

fn scheduler(division: Division) -> Outcome<()> {
    let plan = division.plan();
    let start = move || {
        let (name, shards) = (division.policy.as_str(), division.shards);
        let policy = find(name).map_err(|error| error.to_string())?;
        let options = served_options(policy, Options::new(), Objective::Latency);
        let limits = policy.needs(&options).served(64, LIVE);
        let setup = Setup { models: Vec::new(), devices: 0, limits };
        let scheduler = match shards {
            1 => ServedPolicy::from(build(name, &setup, &options).map_err(|error| error.to_string())?),
            _ => sharded(name, &setup, &options, shards)?,
        };
        let engine =
            Engine::start(EngineConfig::new(scheduler, setup, Vec::new())).map_err(|error| error.to_string())?;
        Ok(StartedEngine { engine, depth: limits.depth, delay_permille: None })
    };
    let config = SchedulerConfig {
        listen: anywhere(),
        schedulers: Vec::new(),
        store: Box::new(AloneStore { epoch: Epoch(1) }),
        timing: Timing::SHARED_HOSTS,
        plan,
        drain_timeout: Duration::from_secs(30),
        start: Box::new(start),
        on_serving: Box::new(|_| {}),
    };
    let scheduler = ClusterScheduler::start(Arc::new(Tcp), config)?;
    println!("{}", scheduler.address());
    loop {
        thread::park();
    }
}

/// Returns a policy in shards, with the matchmaker that they share.
fn sharded(name: &str, setup: &Setup, options: &Options, shards: usize) -> Result<ServedPolicy, String> {
    let Halves { shards, matchmaker } =
        build_halves(name, setup, options, shards).map_err(|error| error.to_string())?;
    let pieces = shards.into_iter().map(|shard| Box::new(shard) as Box<dyn Scheduler>).collect();
    Ok(ServedPolicy { pieces, matchmaker: Some(matchmaker) })
}

/// Returns the models that a backend offers.
fn offers(count: usize, model_us: u64) -> Outcome<Vec<u8>> {
    let specs = [TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] }];
    let profile = Profile::linear(0.0, model_us as f64 / 1e3, MAX_BATCH).map_err(|error| format!("{error:?}"))?;
    let model = Model { drop: Some(DropRule::Never), ..Model::whole("m", profile, Nanos::from_millis(1000)) };
    let description = |name: String| ModelDescription {
        name,
        max_queue: Some(LIVE),
        ..ModelDescription::whole(model.clone(), &specs, &specs)
    };
    let offer =
        |at: usize| OfferedModel { number: at as u32, superseded: false, description: description(format!("m{at}")) };
    Ok(encode_offers(&(0..count).map(offer).collect::<Vec<_>>()))
}

/// A device that takes some time for each batch, and nothing else.
fn backend(address: &str, model_us: u64, division: &Division) -> Outcome<()> {
    let (link, mut reader) = connect(address, Role::Backend)?;
    let models = offers(division.models, model_us)?.into();
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
            link.send(&Message::TaskEnd(TaskEnd { took_ns, ..TaskEnd::without_run(run.task, members) }));
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

fn asked(request: u64, model: ModelId) -> Message {
    let (client, priority, rows, length) = (0, 0, 1, 1);
    Message::Submit(RequestHeader {
        request,
        model,
        client,
        priority,
        rows,
        length,
        bytes: 1,
        left_ns: None,
        way: 0,
        age_ms: 0,
        sizes: None,
        stream: false,
    })
}

/// The requests of a frontend.
struct Requests {
    link: Arc<PeerLink>,
    models: Vec<ModelId>,
    /// Time at which each request in flight was submitted, in ns from `begun`.
    since_ns: Vec<AtomicU64>,
    begun: Instant,
}

impl Requests {
    fn submit(&self, request: u64) {
        let at = request as usize;
        self.since_ns[at % self.since_ns.len()].store(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.link.send(&asked(request, self.models[at % self.models.len()]));
    }

    fn took(&self, request: u64) -> Duration {
        let since = self.since_ns[request as usize % self.since_ns.len()].load(Ordering::Relaxed);
        self.begun.elapsed().saturating_sub(Duration::from_nanos(since))
    }

    /// Submits `rate` requests a second, as many as are due each 200 µs.
    fn pace(&self, rate: u64, span: Duration) {
        let mut sent = 0;
        while self.begun.elapsed() < span {
            let due = (self.begun.elapsed().as_secs_f64() * rate as f64) as u64;
            (sent..due).for_each(|request| self.submit(request));
            sent = due;
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Keeps `in_flight` requests in flight: each that ends is submitted again. With a rate, requests
/// come at that rate instead.
fn frontend(address: &str, in_flight: usize, span: Duration, division: &Division, rate: u64) -> Outcome<()> {
    let (link, mut reader) = connect(address, Role::Frontend)?;
    link.send(&Message::RegisterFrontend(1, "127.0.0.1:9".to_owned()));
    // Until the scheduler is the primary; a peer that answers each request immediately does not
    // tell.
    thread::sleep(Duration::from_millis(1_000));
    let places = if rate > 0 { LIVE } else { in_flight };
    let since_ns = (0..places).map(|_| AtomicU64::new(0)).collect();
    let requests = Arc::new(Requests { link, models: division.ids(), since_ns, begun: Instant::now() });
    let paced = Arc::clone(&requests);
    match rate {
        0 => (0..in_flight as u64).for_each(|request| requests.submit(request)),
        _ => drop(thread::spawn(move || paced.pace(rate, span))),
    }
    let (begun, mut took, mut batches, mut refused) = (Instant::now(), Vec::new(), 0.0, 0);
    while begun.elapsed() < span {
        let Message::RequestEnd(RequestEnd { request, answer }) = reader.read()? else { continue };
        took.push(requests.took(request));
        match answer {
            Ok(answered) => batches += 1.0 / answered.batch.max(1) as f64,
            Err(Failure::QueueFull { .. } | Failure::NotLoaded) => refused += 1,
            Err(other) => return Err(format!("a request failed: {other}").into()),
        }
        if rate == 0 {
            requests.submit(request + in_flight as u64);
        }
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
