//! `ripieno backend`: devices of this machine, for a remote scheduler.

use super::backend_models::BackendRepository;
use super::probes::Probes;
use super::{EpochArgs, PeerArgs, SCHEDULER, reachable, shutdown_signal};
use crate::args::address::listening;
use crate::args::devices::DeviceArgs;
use crate::args::logs::LogFormat;
use crate::commands::control::ControlArgs;
use crate::commands::models::nothing_in;
use crate::output::tables;
use crate::output::{self, print_json};
use crate::service::{built_with, progress_bars};
use anyhow::{Context, bail};
use clap::Args;
use ripieno_cluster::handover::Epoch;
use ripieno_cluster::{Backend, DeviceUsage, OnOrder, StopSignal};
use ripieno_report::Format;
use ripieno_repository::registry::ModelRegistry;
use ripieno_repository::{LoadTarget, ModelControl, ModelReport};
use ripieno_sched::Limits;
use ripieno_server::{AccessConfig, ServerConfig};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

const HELP: &str = "Example:\n  ripieno backend ./models/repository --scheduler scheduler:8010\n\n\
                    Start the scheduler first or later: a backend connects again until it is there.\n";

/// Run batches for a cluster: load the models of a repository on this machine's devices and follow
/// a scheduler.
///
/// Each device is one backend of the scheduler. It fetches inputs from frontends and sends them
/// outputs, both directly. Served is what all backends of a scheduler have, or what its plan says;
/// a call to a frontend loads a model on all of them. SIGTERM makes it leave: it finishes its tasks
/// and receives no new ones.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct BackendArgs {
    /// The model repository, or one ONNX file.
    #[arg(value_name = "REPOSITORY|MODEL.onnx", default_value = "models/repository")]
    repository: PathBuf,

    /// Addresses of the schedulers, primary and spares.
    #[arg(long, value_name = "HOST:PORT,...", default_value = SCHEDULER, value_delimiter = ',', value_parser = reachable)]
    scheduler: Vec<String>,

    /// Address of the probes /v2/health/live and /v2/health/ready, and of the process's /metrics
    /// for Prometheus; ready once the models are loaded and a scheduler has accepted all devices
    /// [default: none].
    #[arg(long, value_name = "ADDR", value_parser = listening)]
    metrics: Option<SocketAddr>,

    /// Append a line to this file for each accepted order: nanoseconds since 1970, device, epoch,
    /// claim, scheduler, and "claim" or "batch". For tests.
    #[arg(long, value_name = "FILE", hide = true)]
    orders: Option<PathBuf>,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Serve models whose files are outside of the repository, behind symbolic links.
    #[arg(long)]
    allow_symlinks: bool,

    /// Load only the models that the scheduler's --plan has here, and change them with the plan.
    #[arg(long, conflicts_with_all = ["model_control_mode", "load_model"])]
    planned: bool,

    #[command(flatten)]
    control: ControlArgs,

    /// Time for the requests that have begun on it to finish when it leaves, in seconds. The rest
    /// begins anew elsewhere; streams that have sent steps end with 503.
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain_timeout_s: u64,

    /// Format of the log on stderr.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Output format; json prints one line once the models are loaded.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,

    #[command(flatten)]
    epoch: EpochArgs,

    #[command(flatten)]
    peers: PeerArgs,
}

pub(crate) fn run(args: &BackendArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    if !args.repository.exists() {
        bail!("{} does not exist; give a model repository or an ONNX file", args.repository.display());
    }
    let transport = args.peers.transport()?;
    let target = LoadTarget { allow_symlinks: args.allow_symlinks, ..args.devices.target()? };
    let (executor, devices) = (Arc::clone(&target.engine), target.devices);
    let stop: Vec<Arc<StopSignal>> = (0..devices).map(|_| Arc::default()).collect();
    let usage: Vec<Arc<DeviceUsage>> = (0..devices).map(|_| Arc::default()).collect();
    let registry = Arc::new(ModelRegistry::default());
    let config = |address| probes_config(args, address, executor.name());
    let start = |address| runtime.block_on(Probes::start(config(address), &registry, &stop, &usage));
    let probes = args.metrics.map(start).transpose()?;
    let progress = progress_bars("measuring", "batch sizes");
    let control = if args.planned { ModelControl::Explicit(Default::default()) } else { args.control.control()? };
    let repository = Arc::new(BackendRepository::open(&args.repository, target, control, registry, progress));
    let reports = repository.load_all().map_err(anyhow::Error::msg).context("the repository cannot be read")?;
    if !repository.offers_any() && !reports.is_empty() {
        bail!("none of the {} models can be served; it says above why", reports.len());
    }
    if !repository.offers_any() && !args.planned {
        bail!("{}", nothing_in(&args.repository));
    }
    let planned = args.planned.then(|| repository.planned()).transpose().context("cannot start a thread")?;
    if let Some(seconds) = args.control.poll_s() {
        repository.poll_every(Duration::from_secs(seconds.into())).context("cannot start a thread")?;
    }
    let (models, calls) = (repository.offered(), repository.calls());
    announce(args, &reports, probes.as_ref().and_then(|probes| probes.address))?;
    let epoch = latest(&args.epoch)?;
    let orders = args.orders.as_ref().map(|path| File::options().create(true).append(true).open(path));
    let orders = orders.transpose().context("cannot open the file of --orders")?.map(Arc::new);
    let start = |(device, stop): (usize, &Arc<StopSignal>)| {
        let (transport, schedulers, depth) = (Arc::clone(&transport), args.scheduler.clone(), Limits::MOST_DEPTH);
        let (executor, models, stop) = (Arc::clone(&executor), Arc::clone(&models), Arc::clone(stop));
        let on_order = orders.as_ref().map(|file| journal(file, device));
        let (calls, usage) = (Some(Arc::clone(&calls)), Arc::clone(&usage[device]));
        let planned = planned.clone();
        let backend =
            Backend { transport, schedulers, executor, depth, models, calls, planned, epoch, on_order, usage };
        thread::Builder::new().name("backend".to_owned()).spawn(move || backend.run(&stop))
    };
    let running = stop.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>().context("cannot start a thread")?;
    runtime.block_on(shutdown_signal())?;
    tracing::info!("leaving: no new batches; those that are here are run");
    stop.iter().for_each(|stop| stop.leave());
    wait(&running, Duration::from_secs(args.drain_timeout_s));
    stop.iter().for_each(|stop| stop.abort());
    // A device that hangs is not waited for.
    wait(&running, Duration::from_secs(1));
    Ok(())
}

fn probes_config(args: &BackendArgs, address: SocketAddr, engine: &str) -> ServerConfig {
    ServerConfig {
        metrics: Some(address),
        build: built_with(engine),
        access: AccessConfig { peer_certificate: args.peers.certificate(), ..AccessConfig::default() },
        ..ServerConfig::default()
    }
}

fn announce(args: &BackendArgs, models: &[ModelReport], metrics: Option<SocketAddr>) -> anyhow::Result<()> {
    if args.format == Format::Json {
        return print_json(&serde_json::json!({ "scheduler": args.scheduler, "models": models, "metrics": metrics }));
    }
    match args.planned {
        true => output::print("models     as the scheduler's plan says")?,
        false => output::print(tables::models(models))?,
    }
    output::print(format!("schedulers {}", args.scheduler.join(", ")))
}

/// Returns the latest epoch, which an earlier run of this backend may have followed. Waits until
/// the store answers.
fn latest(args: &EpochArgs) -> anyhow::Result<Epoch> {
    let Some(mut store) = args.store()? else { return Ok(Epoch::default()) };
    let mut said = false;
    loop {
        match store.read() {
            Ok(held) => return Ok(held.map_or(Epoch::default(), |held| held.epoch)),
            Err(error) if !said => tracing::warn!("{error}; asking again"),
            Err(_) => {}
        }
        said = true;
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a callback that writes accepted orders to a file.
fn journal(file: &Arc<File>, device: usize) -> OnOrder {
    let file = Arc::clone(file);
    Arc::new(move |claim, holder, is_claim| {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let what = if is_claim { "claim" } else { "batch" };
        let line = format!("{at} {device} {} {} {holder:?} {what}\n", claim.epoch.0, claim.number);
        if let Err(error) = (&*file).write_all(line.as_bytes()) {
            tracing::error!(%error, "an order is not written down");
        }
    })
}

fn wait(running: &[JoinHandle<()>], span: Duration) {
    let until = Instant::now() + span;
    while Instant::now() < until && running.iter().any(|thread| !thread.is_finished()) {
        thread::sleep(Duration::from_millis(5));
    }
}
