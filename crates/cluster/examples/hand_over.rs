//! How long a hand-over takes on this machine: two schedulers as processes, backends as threads, one frontend with load.
//!
//! The primary is killed, or stopped with `--stop`, run after run; measured is the time from the signal until every backend
//! has obeyed the new primary. The epoch is in a file, or in the etcd of `--etcd http://HOST:PORT,…`.
//! `cargo run --release -p ripieno-cluster --example hand_over -- [--backends 64] [--runs 20] [--rate 500] [--stop]`

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_cluster::handover::driver::{
    BackendPart, Deliver, Execute, FrontendPart, Handle, Machine, Node, Schedule, SchedulerPart, Settings, Submit,
};
use ripieno_cluster::handover::store::{EpochStore, EtcdStore, FileStore};
use ripieno_cluster::handover::{
    Admitted, Answer, Backend, BackendLimits, Epoch, Frontend, Full, Outcome, Process, RequestId, Scheduler,
    SchedulerAction, SchedulerLimits, Stamp, Timing, Wanted,
};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TIMING: Timing = Timing::SHARED_HOSTS;
const BATCH: usize = 8;
/// After a run the old primary is a spare again, and all is quiet.
const PAUSE: Duration = Duration::from_millis(700);

type Failed = Box<dyn std::error::Error>;

#[derive(Clone)]
struct Options {
    backends: u16,
    runs: usize,
    rate: u64,
    stop: bool,
    etcd: Vec<String>,
    file: String,
    /// Of a scheduler: its ordinal, and the addresses of both.
    scheduler: Option<u16>,
    addresses: Vec<SocketAddr>,
}

fn options() -> Result<Options, Failed> {
    let file = std::env::temp_dir().join(format!("ripieno-epoch-{}", std::process::id()));
    let (etcd, addresses, file) = (Vec::new(), Vec::new(), file.display().to_string());
    let mut read = Options { backends: 64, runs: 20, rate: 500, stop: false, etcd, file, scheduler: None, addresses };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--backends" => read.backends = value()?.parse()?,
            "--runs" => read.runs = value()?.parse()?,
            "--rate" => read.rate = value()?.parse()?,
            "--stop" => read.stop = true,
            "--etcd" => read.etcd = value()?.split(',').map(str::to_owned).collect(),
            "--file" => read.file = value()?,
            "--scheduler" => read.scheduler = Some(value()?.parse()?),
            "--addresses" => read.addresses = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            _ => return Err(format!("{word} is not known; see the head of this file").into()),
        }
    }
    Ok(read)
}

fn main() -> Result<(), Failed> {
    let options = options()?;
    match options.scheduler {
        Some(ordinal) => schedule(ordinal, &options),
        None => measure(&options),
    }
}

fn store(options: &Options) -> Result<Box<dyn EpochStore>, Failed> {
    if options.etcd.is_empty() {
        return Ok(Box::new(FileStore::new(&options.file)));
    }
    let timeout = Duration::from_nanos(TIMING.store.0.cast_unsigned());
    Ok(Box::new(EtcdStore::new(&options.etcd, "/ripieno/example", timeout)?))
}

/// A process of this life.
fn process(ordinal: u16) -> Result<Process, Failed> {
    Ok(Process::new(ordinal, SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64))
}

fn settings(me: Process, listen: Option<SocketAddr>, dial: Vec<SocketAddr>) -> Settings {
    Settings { me, listen, dial, redial: TIMING.hello, connections: 10_000 }
}

// A scheduler.

/// First come, first served on idle backends.
#[derive(Default)]
struct Host {
    queue: VecDeque<Admitted>,
    loads: BTreeMap<Process, usize>,
}

impl Schedule for Host {
    fn on_action(&mut self, _now: Time, action: SchedulerAction) {
        match action {
            SchedulerAction::Admit(admitted) => self.queue.push_back(admitted),
            SchedulerAction::Withdraw(request) => self.queue.retain(|admitted| admitted.request != request),
            SchedulerAction::Load { backend, batches: Some(batches) } => drop(self.loads.insert(backend, batches)),
            SchedulerAction::Load { backend, batches: None } => drop(self.loads.remove(&backend)),
            SchedulerAction::Follow => *self = Host::default(),
            _ => {}
        }
    }

    fn decide(&mut self, now: Time, scheduler: &mut Scheduler, out: &mut Vec<SchedulerAction>) {
        let idle = self.loads.iter().find(|(_, batches)| **batches == 0).map(|(&backend, _)| backend);
        let Some(backend) = idle.filter(|_| !self.queue.is_empty()) else { return };
        let batch: Vec<_> = self.queue.drain(..self.queue.len().min(BATCH)).map(|admitted| admitted.request).collect();
        scheduler.start(now, backend, &batch, now + Nanos::from_millis(500), out);
    }
}

fn schedule(ordinal: u16, options: &Options) -> Result<(), Failed> {
    let me = process(ordinal)?;
    let limits = SchedulerLimits { members: 10_000, requests: 100_000 };
    let scheduler = Scheduler::new(Time::ORIGIN, me, TIMING, limits);
    let store = store(options)?;
    let listen = options.addresses[usize::from(ordinal)];
    let settings = settings(me, Some(listen), options.addresses.clone());
    let (node, _handle) = Node::new(settings, |handle| SchedulerPart::new(scheduler, Host::default(), store, handle))?;
    node.run()?;
    Ok(())
}

// Backends and the frontend.

/// A batch that will have ended then, and whom to tell.
type End = (Instant, Stamp, Handle<(Stamp, Outcome)>);

/// A batch lasts two milliseconds: a thread for all of them says when it has ended.
struct Emulated {
    ordinal: u16,
    handle: Handle<(Stamp, Outcome)>,
    ends: Sender<End>,
    obeyed: Sender<(u16, Epoch, Instant)>,
    last: Stamp,
}

impl Execute for Emulated {
    fn begin(&mut self, _now: Time, batch: Stamp, _members: Vec<Wanted>) {
        let end = Instant::now() + Duration::from_millis(2);
        self.ends.send((end, batch, self.handle.clone())).expect("the thread of ends lives");
    }

    fn obeyed(&mut self, _now: Time, last: Stamp) {
        assert!(last > self.last, "backend {} obeys {last:?} after {:?}", self.ordinal, self.last);
        if last.epoch > self.last.epoch {
            self.obeyed.send((self.ordinal, last.epoch, Instant::now())).expect("the measurement goes on");
        }
        self.last = last;
    }
}

#[derive(Default)]
struct Tally {
    submitted: AtomicU64,
    ran: AtomicU64,
    retried: AtomicU64,
}

/// Counts answers, and finds the longest time without one.
struct Client {
    tally: Arc<Tally>,
    last: Instant,
    gap: Arc<Mutex<Duration>>,
}

impl Deliver for Client {
    fn submitted(&mut self, _tag: u64, request: Result<RequestId, Full>) {
        request.expect("there is place");
        self.tally.submitted.fetch_add(1, Ordering::Relaxed);
    }

    fn delivered(&mut self, _now: Time, answer: Answer) {
        let counter = if answer.outcome == Outcome::Ran { &self.tally.ran } else { &self.tally.retried };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut gap = self.gap.lock().expect("nobody panics with it");
        *gap = gap.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

fn run<M: Machine + Send + 'static>(node: Node<M>) {
    thread::spawn(move || node.run().map(drop).expect("the node runs"));
}

fn backends(options: &Options, dial: &[SocketAddr]) -> Result<Receiver<(u16, Epoch, Instant)>, Failed> {
    let (sender, obeyed) = channel();
    let (ends, ending) = channel::<End>();
    // All last equally long, so they end in the order in which they come here.
    thread::spawn(move || {
        for (end, batch, handle) in ending {
            sleep(end.saturating_duration_since(Instant::now()));
            handle.order((batch, Outcome::Ran));
        }
    });
    for ordinal in 0..options.backends {
        let me = Process::new(ordinal, 1);
        let limits = BackendLimits { running: 1, waiting: 1, answers: 1_000 };
        let backend = Backend::new(Time::ORIGIN, Epoch::default(), TIMING, limits);
        let (ends, obeyed) = (ends.clone(), sender.clone());
        let emulated = |handle| Emulated { ordinal, handle, ends, obeyed, last: Stamp::default() };
        run(Node::new(settings(me, None, dial.to_vec()), |handle| BackendPart::new(backend, emulated(handle)))?.0);
    }
    Ok(obeyed)
}

// The measurement.

/// A scheduler as a process, which ends with its handle.
struct Spawned(Child);

impl Spawned {
    fn start(ordinal: u16, options: &Options) -> Result<Spawned, Failed> {
        let addresses: Vec<_> = options.addresses.iter().map(SocketAddr::to_string).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--scheduler", &ordinal.to_string(), "--addresses", &addresses.join(",")]);
        command.args(["--file", &options.file]);
        if !options.etcd.is_empty() {
            command.args(["--etcd", &options.etcd.join(",")]);
        }
        Ok(Spawned(command.spawn()?))
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When the first and the last backend have obeyed a later epoch than this, and which.
fn commanded(
    options: &Options,
    obeyed: &Receiver<(u16, Epoch, Instant)>,
    over: Epoch,
) -> Result<(Instant, Instant, Epoch), Failed> {
    let mut first = None;
    let mut heard = BTreeMap::<Epoch, u16>::new();
    loop {
        let (_, epoch, at) = obeyed.recv_timeout(Duration::from_secs(20))?;
        if epoch <= over {
            continue;
        }
        let first = *first.get_or_insert(at);
        let count = heard.entry(epoch).or_default();
        *count += 1;
        if *count == options.backends {
            return Ok((first, at, epoch));
        }
    }
}

fn measure(options: &Options) -> Result<(), Failed> {
    let mut options = options.clone();
    let free: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    options.addresses = free.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    drop(free);
    let mut schedulers = [Spawned::start(0, &options)?, Spawned::start(1, &options)?];

    let (tally, gap) = (Arc::new(Tally::default()), Arc::new(Mutex::new(Duration::ZERO)));
    let me = Process::new(0, 2);
    let frontend = Frontend::new(Time::ORIGIN, me, TIMING, 100_000);
    let client = Client { tally: tally.clone(), last: Instant::now(), gap: gap.clone() };
    let listen = Some("127.0.0.1:0".parse()?);
    let (node, clients) =
        Node::new(settings(me, listen, options.addresses.clone()), |_| FrontendPart::new(frontend, client))?;
    let mut dial = options.addresses.clone();
    dial.extend(node.address());
    run(node);
    let obeyed = backends(&options, &dial)?;
    let (_, _, mut epoch) = commanded(&options, &obeyed, Epoch::default())?;
    let every = Duration::from_secs(1) / u32::try_from(options.rate)?;
    let left = Nanos::from_millis(2_000);
    thread::spawn(move || {
        for tag in 0.. {
            clients.order(Submit { tag, model: ModelId(0), left });
            sleep(every);
        }
    });

    let (mut firsts, mut alls, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs {
        sleep(PAUSE);
        let holder = store(&options)?.read()?.ok_or("nobody reigns")?;
        epoch = epoch.max(holder.epoch);
        while obeyed.try_recv().is_ok() {}
        *gap.lock().expect("nobody panics with it") = Duration::ZERO;
        let primary = usize::from(holder.holder.ordinal());
        let begun = Instant::now();
        schedulers[primary].signal(if options.stop { Signal::STOP } else { Signal::KILL })?;
        let (first, all, next) = commanded(&options, &obeyed, epoch)?;
        epoch = next;
        sleep(PAUSE);
        gaps.push(gap.lock().expect("nobody panics with it").as_secs_f64() * 1e3);
        firsts.push((first - begun).as_secs_f64() * 1e3);
        alls.push((all - begun).as_secs_f64() * 1e3);
        match options.stop {
            true => schedulers[primary].signal(Signal::CONT)?,
            false => schedulers[primary] = Spawned::start(primary as u16, &options)?,
        }
    }
    sleep(PAUSE);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} backends, {} runs, primary {}, load average {}",
        options.backends,
        options.runs,
        if options.stop { "stopped" } else { "killed" },
        load.split(' ').next().unwrap_or("unknown")
    );
    show("first backend obeys", &mut firsts);
    show("all backends obey", &mut alls);
    show("longest time without an answer", &mut gaps);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let [submitted, ran, retried] = [&tally.submitted, &tally.ran, &tally.retried].map(count);
    println!("requests: {submitted} submitted, {ran} ran, {retried} told to try again");
    let _ = std::fs::remove_file(&options.file);
    let _ = std::fs::remove_file(format!("{}.lock", options.file));
    Ok(())
}

fn show(what: &str, millis: &mut [f64]) {
    millis.sort_by(f64::total_cmp);
    let (least, median, most) = (millis[0], millis[millis.len() / 2], millis[millis.len() - 1]);
    println!("{what:32} ms: median {median:7.1}, least {least:7.1}, most {most:7.1}");
}
