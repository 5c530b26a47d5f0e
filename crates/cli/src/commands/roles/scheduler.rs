//! `ripieno scheduler`: schedules the requests of remote frontends on remote backends.

use super::auto_plan::AutoPlanArgs;
use super::engines::ClusterEngines;
use super::model::register;
use super::{EpochArgs, PeerArgs, SCHEDULER, engine_crash, reachable, shutdown_signal};
use crate::args::address::listening;
use crate::args::logs::LogFormat;
use crate::args::plan_store::{PLAN_POLL, PlanPlace, PlanStore, plan_place};
use crate::args::policy::{FaithfulArg, ObjectiveArg, POLICIES, PolicyArgs};
use crate::args::server_threads::ServerThreads;
use crate::commands::flight::recorder;
use crate::output::{self, print_json};
use crate::service::built_with;
use anyhow::{Context, bail};
use clap::Args;
use ripieno_base::Nanos;
use ripieno_cluster::handover::store::AloneStore;
use ripieno_cluster::handover::{Epoch, Timing};
use ripieno_cluster::{
    ClusterScheduler, InitialPlan, OnServing, SchedulerConfig, ServedCluster, StartEngine, StartedEngine,
};
use ripieno_policies::{
    CATALOGUE, FAITHFUL, Halves, Policy, ServedPolicy, build, build_halves, build_served, build_shards, find,
};
use ripieno_report::Format;
use ripieno_repository::registry::{IndexRow, ModelRegistry, Repository, Upload};
use ripieno_runtime::{Clock, Engine, EngineConfig, HangBound};
use ripieno_sched::{CONTROL_US, DATA_US, Limits, Needs, Options, Scheduler, Setup};
use ripieno_server::{AccessConfig, Server, ServerConfig};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const HELP: &str = "Example:\n  ripieno scheduler --listen 127.0.0.1:8010\n  ripieno backend ./models/repository\n  \
                    ripieno frontend\n";

/// Decide for a cluster which requests run together, where and when.
///
/// Frontends send it requests as numbers, never tensors; backends are its devices. It starts
/// without models: the first backend determines them. After a restart all backends and frontends
/// follow it again.
///
/// Several schedulers with one --epoch are a primary and its spares: when it fails or hangs, a
/// spare takes over within milliseconds, and running batches go on.
#[derive(Args, Debug)]
#[command(after_help = format!("{HELP}\n{POLICIES}"))]
pub(crate) struct SchedulerArgs {
    /// Address for frontends and backends: 8010 is on loopback, :8010 on every address. Not for
    /// clients, nor, without --peer-cert, for an untrusted network.
    #[arg(long, value_name = "ADDR", default_value = SCHEDULER, value_parser = listening)]
    listen: SocketAddr,

    /// Address of Prometheus' /metrics: models, devices, decisions, and the advised number of
    /// devices.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8002", value_parser = listening)]
    metrics: SocketAddr,

    /// Addresses of all schedulers with the same epoch; its own may be among them.
    #[arg(long, value_name = "HOST:PORT,...", requires = "epoch", value_delimiter = ',', value_parser = reachable)]
    schedulers: Vec<String>,

    /// Silence after which a primary is taken for lost, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(10..=10_000))]
    silence_ms: u16,

    /// Least time after which a device that does not end its batch counts as hung, in milliseconds;
    /// its requests run elsewhere if their deadline allows. The bound is this, ten times the
    /// profile, or twice the profile of the batch run again in parts: the longest of the three. A
    /// batch waits half of this for inputs; a frontend that does not send them is left out until it
    /// does.
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=3_600_000))]
    hang_ms: u32,

    /// Which models share devices, as `ripieno plan --write` writes it: a FILE, etcd for the etcd
    /// of --epoch, or etcd:URL,... auto: the scheduler plans by itself, from the demand that it
    /// measures. A change is carried out while requests run. Give all schedulers the same [default:
    /// every backend has all models].
    #[arg(long, value_name = "FILE|etcd|auto", value_parser = plan_place)]
    plan: Option<PlanPlace>,

    #[command(flatten)]
    auto_plan: AutoPlanArgs,

    /// Number of threads that decide, each for a part of the models, with one more that assigns
    /// devices: for more requests than one core can schedule. Needs a --policy of whole batches.
    /// With a plan, each sub-cluster has as many.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    faithful: FaithfulArg,

    /// latency: an idle device starts immediately, unless device time is short. efficiency: a batch
    /// waits as long as that saves device time [default: latency].
    #[arg(long, value_enum)]
    objective: Option<ObjectiveArg>,

    /// Largest number of requests in flight, of all frontends and models; further ones are refused
    /// with 429.
    #[arg(long, value_name = "N", default_value_t = Limits::SERVED_REQUESTS as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_live: u32,

    /// Largest number of devices, each of which is one backend.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    max_devices: u16,

    /// Largest size of the inputs that frontends may keep, of all requests in flight, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_held_mib: u32,

    /// Time for requests to finish after a shutdown began, in seconds; the rest is answered with
    /// 503. Also for the requests that have begun on a backend that the plan moves.
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain_timeout_s: u64,

    /// Memory for the last ten minutes of scheduling, in MiB, which the page and `ripieno why`
    /// read. 0: keep none.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    flight_mib: u32,

    /// Format of the log on stderr.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Output format; json prints one line with the addresses.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,

    #[command(flatten)]
    epoch: EpochArgs,

    #[command(flatten)]
    peers: PeerArgs,
}

/// Multiple of the profiled latency after which a backend's device counts as hung: the loss of a
/// backend that was only slow costs a batch, as it connects again.
const HANG_TIMES: u32 = 10;

pub(crate) fn run(args: &SchedulerArgs) -> anyhow::Result<()> {
    // A wrong option is an error before the first backend joins.
    let (policy, options) = args.policy.served(args.objective)?;
    let (shards, options) = (usize::from(args.shards), args.faithful.over(options));
    check_shards(shards, args.policy.policy.is_some(), &policy)?;
    let limits = find(&policy)?.needs(&options).served(1, shards);
    build_policy(&policy, &options, shards, &Setup { models: Vec::new(), devices: 0, limits })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let threads = ServerThreads::start().context("cannot start the threads of the HTTP and gRPC server")?;
    let outcome = runtime.block_on(serve(args, &threads));
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &SchedulerArgs, threads: &ServerThreads) -> anyhow::Result<()> {
    let (cluster, registry) = (Arc::<Mutex<Option<ServedCluster>>>::default(), Arc::new(ModelRegistry::default()));
    let (known, models) = (Arc::clone(&cluster), Arc::clone(&registry));
    let on_serving = Box::new(move |serving: Option<ServedCluster>| {
        register(&models, serving.as_ref().map_or(&[], ServedCluster::models));
        *known.lock().unwrap_or_else(PoisonError::into_inner) = serving;
    });
    let scheduler = start_cluster(args, on_serving)?;
    let drain_timeout = Duration::from_secs(args.drain_timeout_s);
    let config = ServerConfig {
        http: None,
        grpc: None,
        metrics: Some(args.metrics),
        drain_timeout,
        scaling: PolicyArgs::scaling(&args.policy.served(args.objective)?.1),
        build: built_with(""),
        access: AccessConfig { peer_certificate: args.peers.certificate(), ..AccessConfig::default() },
        ..ServerConfig::default()
    };
    let later = Arc::new(ClusterEngines {
        cluster: Arc::clone(&cluster),
        scheduler: Arc::clone(&scheduler),
        max_devices: args.max_devices,
    });
    let told = Arc::new(ModelListing(Arc::clone(&registry)));
    let server = Server::bind(config, later, registry, told);
    let server = threads.runtimes()[0].spawn(server).await??;
    announce(args, &scheduler, server.addresses().metrics)?;
    let (crash, watched) = (Arc::<OnceLock<anyhow::Error>>::default(), Arc::clone(&scheduler));
    let crashed = Arc::clone(&crash);
    let shutdown = async move {
        tokio::select! {
            signal = shutdown_signal() => if let Err(error) = signal {
                tracing::error!(%error, "no signals can be waited for");
            },
            error = engine_crash(|| watched.engines().iter().all(Engine::is_alive)) => {
                watched.close();
                drop(crashed.set(error));
            }
        }
    };
    threads.runtimes()[0].spawn(server.run(shutdown)).await?;
    if let Some(error) = crash.get() {
        bail!("{error:#}");
    }
    if args.epoch.is_given() {
        // The successor receives all waiting requests, and reports of all that run.
        tracing::info!("shutting down: a spare takes over");
        scheduler.close();
        return Ok(());
    }
    tracing::info!("shutting down: no new requests; those that wait or run are answered");
    let serving = cluster.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(cluster) = serving {
        let drained = tokio::task::spawn_blocking(move || drain(&cluster, drain_timeout)).await?;
        if !drained {
            tracing::warn!(
                "some requests were still under way after {drain_timeout:?} and were answered with an error"
            );
        }
        // The last answers are on their way to the frontends.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scheduler.close();
    Ok(())
}

/// Starts to listen for frontends and backends, and carries out the plan, if there is one.
fn start_cluster(args: &SchedulerArgs, on_serving: OnServing) -> anyhow::Result<Arc<ClusterScheduler>> {
    let is_auto = args.auto_plan.is_given() || args.plan == Some(PlanPlace::Auto);
    if args.auto_plan.is_given() && args.plan.as_ref().is_some_and(|plan| *plan != PlanPlace::Auto) {
        bail!("--sub-clusters is for --plan auto; the plan that is given says how many there are");
    }
    let plan = args.plan.as_ref().map(|place| args.epoch.plan_store(place)).transpose()?.flatten();
    let config = SchedulerConfig {
        listen: args.listen,
        schedulers: args.schedulers.clone(),
        store: args.epoch.store()?.unwrap_or_else(|| Box::new(AloneStore { epoch: epoch() })),
        timing: Timing { silence: Nanos::from_millis(i64::from(args.silence_ms)), ..Timing::SHARED_HOSTS },
        plan: match &plan {
            Some(plan) => InitialPlan::Given(plan.read()?),
            None if is_auto => InitialPlan::Later,
            None => InitialPlan::Whole,
        },
        drain_timeout: Duration::from_secs(args.drain_timeout_s),
        start: start(args),
        on_serving,
    };
    let scheduler = ClusterScheduler::start(args.peers.transport()?, config);
    let scheduler = Arc::new(scheduler.with_context(|| format!("cannot listen on {} (--listen)", args.listen))?);
    args.peers.warn_if_open("the scheduler", scheduler.address());
    if let Some(plan) = plan {
        follow_plan(plan, &scheduler)?;
    } else if is_auto {
        args.auto_plan.start(&scheduler)?;
    }
    Ok(scheduler)
}

/// Waits until all accepted requests are answered; returns false if some were not in time.
fn drain(cluster: &ServedCluster, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    let mut drained = true;
    for engine in cluster.engines() {
        drained &= engine.drain(until.saturating_duration_since(Instant::now()));
    }
    drained
}

/// Checks that a policy runs in this number of shards.
fn check_shards(shards: usize, is_given: bool, policy: &str) -> anyhow::Result<()> {
    if shards > 1 && !find(policy)?.is_sharded() {
        let sharded = CATALOGUE.iter().filter(|policy| policy.is_sharded()).map(|policy| policy.name);
        let (sharded, given) = (sharded.collect::<Vec<_>>().join(", "), if is_given { "another" } else { "a" });
        bail!(
            "--shards needs {given} --policy, since {policy} does not run in shards; these do: {sharded}. {policy} is \
             divided into --sub-clusters"
        );
    }
    Ok(())
}

/// Carries out changes of a plan, on a thread of its own, as long as the scheduler is there.
fn follow_plan(plan: PlanStore, scheduler: &Arc<ClusterScheduler>) -> anyhow::Result<()> {
    let scheduler = Arc::downgrade(scheduler);
    let follow = move || {
        let mut told = String::new();
        loop {
            thread::sleep(PLAN_POLL);
            let Some(scheduler) = scheduler.upgrade() else { return };
            let read = plan.read().and_then(|read| scheduler.set_plan(read).map_err(anyhow::Error::msg));
            let cause = read.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if cause != told && !cause.is_empty() {
                tracing::error!("the plan stays as it was: {cause}");
            }
            told = cause;
        }
    };
    thread::Builder::new().name("scheduler-plan".to_owned()).spawn(follow).context("cannot start a thread")?;
    Ok(())
}

/// Returns an epoch that is larger at each start.
fn epoch() -> Epoch {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Epoch(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Returns the callback that starts the engine once the models are known.
fn start(args: &SchedulerArgs) -> StartEngine {
    let (chosen, objective, flight_mib) = (args.policy.clone(), args.objective, args.flight_mib);
    let (faithful, shards) = (args.faithful, usize::from(args.shards));
    // One for all sub-clusters: the page shows them together.
    let clock = Clock::start();
    let bounds = EngineBounds {
        devices: usize::from(args.max_devices),
        live: args.max_live as usize,
        bytes: (args.max_held_mib as usize) << 20,
        hang: HangBound { times: HANG_TIMES, least: Nanos::from_millis(i64::from(args.hang_ms)) },
    };
    Box::new(move || {
        let (name, options) = chosen.served(objective).map_err(|error| error.to_string())?;
        let options = faithful.over(options);
        chosen.log(&name, &options);
        start_engine(&name, &options, shards, bounds, (flight_mib, clock)).map_err(|error| format!("{error:#}"))
    })
}

/// Bounds of a scheduler's engine.
#[derive(Clone, Copy)]
struct EngineBounds {
    devices: usize,
    /// Requests in flight.
    live: usize,
    /// Bytes that wait for devices.
    bytes: usize,
    /// The bound of a task, beyond which its device counts as hung.
    hang: HangBound,
}

fn start_engine(
    name: &str,
    options: &Options,
    shards: usize,
    bounds: EngineBounds,
    (flight_mib, clock): (u32, Clock),
) -> anyhow::Result<StartedEngine> {
    let EngineBounds { devices, live, bytes, hang } = bounds;
    let policy = find(name)?;
    let needs = policy.needs(options);
    let delay_permille = delay_permille(policy, options);
    // While one batch runs, the next one may be on its way.
    let depth = needs.depth.max(if delay_permille.is_some() { 2 } else { 1 });
    let limits = Needs { depth, ..needs }.served(devices, live);
    let setup = Setup { models: Vec::new(), devices: 0, limits };
    let scheduler = build_policy(name, options, shards, &setup)?;
    let mut config = EngineConfig::new(scheduler, setup, Vec::new());
    (config.max_queued_bytes, config.policy, config.hang) = (bytes, Some(policy), hang);
    (config.flight, config.clock) = (recorder(flight_mib, name, options)?, clock);
    let engine = Engine::start(config).context("cannot start the runtime")?;
    Ok(StartedEngine { engine, depth: limits.depth, delay_permille })
}

/// Builds a policy. This role has no admission control in any case.
fn build_policy(name: &str, options: &Options, shards: usize, setup: &Setup) -> anyhow::Result<ServedPolicy> {
    Ok(match shards {
        1 if options.contains_key(FAITHFUL) => ServedPolicy::from(build_served(name, setup, options)?),
        1 => ServedPolicy::from(build(name, setup, options)?),
        _ if options.contains_key(FAITHFUL) => build_shards(name, setup, options, shards)?,
        _ => {
            let Halves { shards, matchmaker } = build_halves(name, setup, options, shards)?;
            let pieces = shards.into_iter().map(|shard| Box::new(shard) as Box<dyn Scheduler>).collect();
            ServedPolicy { pieces, matchmaker: Some(matchmaker) }
        }
    })
}

/// Returns the quantile of the measured delays that a policy plans with, in thousandths: the median
/// if the policy itself learns how late batches are, otherwise the 99th percentile. An option that
/// is written replaces what is measured.
fn delay_permille(policy: &'static Policy, options: &Options) -> Option<u32> {
    let is_written = |knob: &str| options.keys().any(|key| key.split('.').next() == Some(knob));
    let written = [CONTROL_US.name, DATA_US.name].into_iter().any(is_written);
    if written || options.contains_key(FAITHFUL) || !policy.has(CONTROL_US.name) {
        return None;
    }
    Some(if policy.needs(options).learns_occupancy { 500 } else { 990 })
}

fn announce(args: &SchedulerArgs, scheduler: &ClusterScheduler, metrics: Option<SocketAddr>) -> anyhow::Result<()> {
    let (listen, process) = (scheduler.address(), format!("{:?}", scheduler.process()));
    if args.format == Format::Json {
        return print_json(&serde_json::json!({ "listen": listen, "metrics": metrics, "process": process }));
    }
    output::print(format!("scheduler  {listen}"))?;
    let shown = metrics.map_or("off".to_owned(), |metrics| format!("http://{metrics}/metrics"));
    output::print(format!("metrics    {shown}"))?;
    let page = metrics.map_or("off".to_owned(), |metrics| format!("http://{metrics}/ui"));
    output::print(format!("page       {page}"))
}

/// The models of a cluster, as its backends describe them.
pub(super) struct ModelListing(pub(super) Arc<ModelRegistry>);

impl Repository for ModelListing {
    fn load(&self, name: &str, _: Option<&Upload>) -> Result<(), String> {
        Err(format!("model '{name}': ask a frontend to load and unload models"))
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        self.load(name, None)
    }

    fn index(&self) -> Vec<IndexRow> {
        self.0.index()
    }
}
