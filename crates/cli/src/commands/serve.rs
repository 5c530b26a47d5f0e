//! `ripieno serve`: serves a repository of models until it is stopped.

use crate::args::access::AccessArgs;
use crate::args::address::listening;
use crate::args::bounds::BoundArgs;
use crate::args::devices::DeviceArgs;
use crate::args::logs::LogFormat;
use crate::args::policy::{FaithfulArg, ObjectiveArg, POLICIES, PolicyArgs};
use crate::args::server_threads::ServerThreads;
use crate::commands::control::ControlArgs;
use crate::commands::flight::FlightArgs;
use crate::commands::models::{check_all, nothing_in};
use crate::commands::roles::engine_crash;
use crate::commands::try_command::easiest;
use crate::download;
use crate::output::replies::ReplyArgs;
use crate::output::tables;
use crate::output::{self, print_json};
use crate::service::{Running, Service};
use anyhow::{Context, bail};
use clap::Args;
use ripieno_policies::{CATALOGUE, find};
use ripieno_report::Format;
use ripieno_repository::scan::scan;
use ripieno_repository::{ModelReport, RepositoryPoll};
use ripieno_sched::Limits;
use ripieno_server::{Addresses, ServerConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

const HELP: &str = "Example:\n  ripieno serve ./models/repository --device cpu\n\nThe SLO is a setting of a model: slo_ms = 50 in \
                    NAME/model.toml. Without it no request is refused as late.\n\nEach flag may be given as a variable: --max-live as \
                    RIPIENO_MAX_LIVE, --tokens as RIPIENO_TOKENS_FILE.\n";

/// Serve a repository of models (NAME/VERSION/model.onnx or model.py, NAME/model.toml) or
/// one MODEL.onnx (a path, hf://ORG/NAME or https://HOST/MODEL.onnx) over HTTP and gRPC.
///
/// Supports the Open Inference Protocol (KServe V2) with Triton's extensions, so stock Triton and
/// KServe clients work unchanged. Each model has one setting that matters, slo_ms in its
/// model.toml.
#[derive(Args, Debug)]
#[command(after_help = format!("{HELP}\n{POLICIES}"))]
pub(crate) struct ServeArgs {
    /// The model repository, or one ONNX file.
    #[arg(value_name = "REPOSITORY|MODEL.onnx", default_value = "models/repository")]
    repository: PathBuf,

    /// Address of HTTP: 8000 and localhost:8000 are on loopback, :8000 on every address; port 0
    /// takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = listening)]
    http: SocketAddr,

    /// Address of gRPC.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001", value_parser = listening)]
    grpc: SocketAddr,

    /// Address of Prometheus' /metrics.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8002", value_parser = listening)]
    metrics: SocketAddr,

    #[command(flatten)]
    devices: DeviceArgs,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    faithful: FaithfulArg,

    /// latency: an idle device starts immediately, unless device time is short. efficiency: a batch
    /// waits as long as that saves device time [default: latency].
    #[arg(long, value_enum)]
    objective: Option<ObjectiveArg>,

    /// Number of scheduler threads, each for a part of the models, with one more that assigns
    /// devices: for more requests than one core can schedule. Needs a --policy of whole batches.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,

    /// Serve models whose files are outside of the repository, behind symbolic links.
    #[arg(long)]
    allow_symlinks: bool,

    /// Largest number of requests in flight, of all models; further ones are refused with 429.
    #[arg(long, value_name = "N", default_value_t = Limits::SERVED_REQUESTS as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_live: u32,

    /// Largest number of devices, if some are added while the server runs (POST /v2/devices/add)
    /// [default: --devices].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_devices: Option<u16>,

    /// The SLO is no flag: this one exists for its error.
    #[arg(long, value_name = "MS", hide = true, value_parser = slo_is_of_models)]
    slo_ms: Option<String>,

    /// Each protocol has a port of its own: this one exists for its error.
    #[arg(long, value_name = "PORT", hide = true, value_parser = port_is_of_protocols)]
    port: Option<String>,

    /// Largest request body, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_body_mib: u32,

    #[command(flatten)]
    bounds: BoundArgs,

    /// Time for requests in flight to finish after a shutdown began, in seconds; the rest is
    /// answered with 503.
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain_timeout_s: u64,

    /// The name in the server's metadata; tests of some clients expect "triton".
    #[arg(long, value_name = "NAME", default_value = "ripieno")]
    server_name: String,

    #[command(flatten)]
    replies: ReplyArgs,

    /// Exit with code 1 if any model cannot be served at the start. If no model can be served, the
    /// server exits also without this flag. Exceptions are --model-control-mode explicit or poll,
    /// --poll-s and --load-overrides, where models may come later.
    #[arg(long)]
    exit_on_error: bool,

    #[command(flatten)]
    models: ControlArgs,

    /// Format of the log on stderr.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Record every scheduling input and decision into this file, as JSON lines; compressed if its
    /// name ends with .gz.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    flight: FlightArgs,

    /// Output format; json prints one line once the models are loaded.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,

    #[command(flatten)]
    access: AccessArgs,
}

/// Time for devices to finish their last tasks after all requests are answered.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// The poll interval without polling, as good as never.
const NO_PERIOD: Duration = Duration::from_secs(86_400);

/// Refuses `--slo-ms` with the place where the SLO is set.
fn slo_is_of_models(value: &str) -> Result<String, String> {
    Err(format!("the SLO is a setting of each model: write slo_ms = {value} into its NAME/model.toml"))
}

/// Refuses `--port` with the flags that set ports.
fn port_is_of_protocols(value: &str) -> Result<String, String> {
    Err(format!("each protocol has a port of its own: write --http {value}, and --grpc and --metrics for the others"))
}

pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let threads = ServerThreads::start().context("cannot start the threads of the HTTP and gRPC server")?;
    let outcome = runtime.block_on(serve(args, &threads));
    // A model may still be loading on a thread of its own; the process does not wait for it.
    runtime.shutdown_background();
    drop(threads);
    outcome
}

impl ServeArgs {
    fn service(&self) -> anyhow::Result<Service> {
        let (policy, options) = self.policy.served(self.objective)?;
        let options = self.faithful.over(options);
        if self.shards > 1 && self.policy.policy.is_none() && !find(&policy)?.is_sharded() {
            let sharded = CATALOGUE.iter().filter(|policy| policy.is_sharded()).map(|policy| policy.name);
            let sharded = sharded.collect::<Vec<_>>().join(", ");
            bail!("--shards needs --policy, since {policy} does not run in shards; these do: {sharded}");
        }
        self.policy.log(&policy, &options);
        let scaling = PolicyArgs::scaling(&options);
        let flight = self.flight.config(&policy, &options)?;
        Ok(Service {
            repository: self.repository.clone(),
            devices: self.devices.clone(),
            options,
            policy,
            shards: usize::from(self.shards),
            max_live: self.max_live as usize,
            max_devices: self.max_devices,
            record: self.record.clone(),
            flight,
            measure_for: None,
            slo: None,
            control: self.models.control()?,
            allow_symlinks: self.allow_symlinks,
            config: ServerConfig {
                scaling,
                http: Some(self.http),
                grpc: Some(self.grpc),
                metrics: Some(self.metrics),
                server_name: self.server_name.clone(),
                max_body_bytes: (self.max_body_mib as usize) << 20,
                drain_timeout: Duration::from_secs(self.drain_timeout_s),
                auto_dump: self.flight.auto_dump(),
                telemetry: self.flight.telemetry(&self.server_name)?,
                ui: self.flight.has_page(),
                access: self.access.config(),
                ..self.replies.over(self.bounds.over(ServerConfig::default()))
            },
        })
    }
}

impl ServeArgs {
    /// Returns true if the server is meant to wait for models that come after the start: by calls,
    /// or into the repository.
    fn waits_for_models(&self) -> bool {
        self.models.is_explicit() || self.models.poll_s().is_some() || self.bounds.takes_uploads()
    }

    /// Returns an error if the repository cannot be served, whatever its models are.
    fn check_repository(&self) -> anyhow::Result<()> {
        let repository = &self.repository;
        if !repository.exists() {
            bail!("{} does not exist; give a model repository or an ONNX file", repository.display());
        }
        match scan(repository) {
            // A folder may become readable, but a file of another format stays what it is.
            Err(error) if repository.is_file() || !self.waits_for_models() => bail!("{error}"),
            Ok(models) if models.is_empty() && (self.exit_on_error || !self.waits_for_models()) => {
                bail!("{}", nothing_in(repository))
            }
            _ => Ok(()),
        }
    }
}

async fn serve(mut args: ServeArgs, threads: &ServerThreads) -> anyhow::Result<()> {
    args.repository = download::local(&args.repository).await?;
    args.check_repository()?;
    let service = args.service()?;
    let drain_timeout = service.config.drain_timeout;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let Running { engine, repository, server, addresses, .. } = service.start(threads.runtimes()).await?;
    let loads = repository.clone();
    let loading = tokio::task::spawn_blocking(move || loads.load_all());
    let (give_up, gave_up) = oneshot::channel();
    let announced = tokio::spawn(async move {
        let loaded = loading.await.map_err(anyhow::Error::from).and_then(|models| models.map_err(anyhow::Error::msg));
        let loaded = loaded.context("the repository cannot be read");
        match loaded.and_then(|models| begin(&args, &addresses, &models)) {
            Ok(()) => {}
            Err(error) if args.exit_on_error || !args.waits_for_models() => return drop(give_up.send(error)),
            Err(error) => tracing::error!("{error:#}"),
        }
        // From here on SIGHUP reloads; an earlier one has waited until now.
        let mut looks = RepositoryPoll::default();
        loop {
            let period = args.models.poll_s().map_or(NO_PERIOD, |seconds| Duration::from_secs(seconds.into()));
            let shared = repository.clone();
            match tokio::time::timeout(period, hangup.recv()).await {
                Ok(None) => return,
                Ok(Some(())) => report_reload(tokio::task::spawn_blocking(move || shared.reload()).await),
                Err(_) if args.models.poll_s().is_none() => {}
                Err(_) => {
                    let look = tokio::task::spawn_blocking(move || (shared.poll(&mut looks), looks)).await;
                    looks = look.map_or_else(
                        |_| RepositoryPoll::default(),
                        |(looked, looks)| {
                            report_look(looked);
                            looks
                        },
                    );
                }
            }
        }
    });
    let failure = Arc::new(OnceLock::new());
    let (failed, watched) = (failure.clone(), engine.clone());
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            Ok(error) = gave_up => drop(failed.set(error)),
            crash = engine_crash(|| watched.is_alive()) => drop(failed.set(crash)),
        }
        tracing::info!("shutting down: no new requests; those in flight are answered");
    };
    let drained = threads.runtimes()[0].spawn(server.run(shutdown)).await?;
    announced.abort();
    let draining = engine.clone();
    let answered = tokio::task::spawn_blocking(move || draining.drain(drain_timeout)).await?;
    if !(drained && answered) {
        tracing::warn!("some requests were still in flight after {drain_timeout:?} and were answered with an error");
    }
    // Other owners of the engine may outlive this; the recording is complete only after the
    // shutdown.
    let stopped = tokio::task::spawn_blocking(move || engine.shutdown());
    if tokio::time::timeout(LAST_TASKS, stopped).await.is_err() {
        tracing::warn!("a device is still at work after {LAST_TASKS:?}; a recording may lack its end");
    }
    tracing::info!("the server has ended");
    failure.get().map_or(Ok(()), |error: &anyhow::Error| bail!("{error:#}"))
}

/// Prints the served models. Returns an error if the server is to end: no model serves and none may
/// come later, or one cannot be served and the user wants the server to end then.
fn begin(args: &ServeArgs, addresses: &Addresses, models: &[ModelReport]) -> anyhow::Result<()> {
    if !args.waits_for_models() && models.iter().all(|model| model.error.is_some()) {
        if args.format == Format::Table {
            output::print(tables::models(models))?;
        }
        bail!("none of the {} models can be served; it says above why", models.len());
    }
    announce(args, addresses, models)?;
    // A server with explicit control may start without models.
    if args.exit_on_error && !args.models.begins_empty() {
        return check_all(&args.repository, models);
    }
    if models.iter().any(|model| model.error.is_none()) {
        return Ok(());
    }
    let later = match args.models.poll_s() {
        Some(seconds) => format!("the repository is read every {seconds} s"),
        None => "load calls bring models".to_owned(),
    };
    tracing::warn!("no model serves yet, so the server is not ready; {later}");
    Ok(())
}

/// Logs the models that a poll has changed, if any.
fn report_look(looked: Result<Vec<ModelReport>, String>) {
    match looked {
        Ok(models) => {
            for model in models.iter().filter(|model| model.error.is_none()) {
                tracing::info!("model {}: version {} has come or changed, and is served", model.name, model.version);
            }
        }
        Err(error) => tracing::error!("the repository cannot be read, so nothing changes: {error}"),
    }
}

fn report_reload(reloaded: Result<Result<Vec<ModelReport>, String>, tokio::task::JoinError>) {
    match reloaded.map_err(|error| error.to_string()).and_then(std::convert::identity) {
        // Failed models are in the log with their errors.
        Ok(models) => {
            let served = models.iter().filter(|model| model.error.is_none()).count();
            tracing::info!(
                "SIGHUP: the repository is read again; {served} of {} changed models are served",
                models.len()
            );
        }
        Err(error) => tracing::error!("SIGHUP: the repository cannot be read, so nothing changes: {error}"),
    }
}

fn announce(args: &ServeArgs, addresses: &Addresses, models: &[ModelReport]) -> anyhow::Result<()> {
    let (scheme, of_metrics) = args.access.scheme();
    if args.format == Format::Json {
        return print_json(&serde_json::json!({
            "http": addresses.http,
            "grpc": addresses.grpc,
            "metrics": addresses.metrics,
            "models": models,
        }));
    }
    output::print(tables::models(models))?;
    let shown = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    output::print(format!("HTTP     {scheme}://{}", shown(addresses.http)))?;
    output::print(format!("gRPC     {}", shown(addresses.grpc)))?;
    output::print(format!("metrics  {of_metrics}://{}/metrics", shown(addresses.metrics)))?;
    if args.flight.has_page() {
        output::print(format!("page     {of_metrics}://{}/ui", shown(addresses.metrics)))?;
    }
    if let Some((http, tried)) = addresses.http.zip(easiest(models)) {
        let command = tried.command(&format!("{scheme}://{http}"), &args.access.curl_options());
        output::print(format!("\ntry      {command}"))?;
    }
    // A load of sequences or trees needs a distribution of lengths.
    let is_fixed = |model: &&ModelReport| model.error.is_none() && !model.inputs.iter().any(|input| has_length(input));
    if let (Some(http), Some(model)) = (addresses.http, models.iter().find(is_fixed)) {
        let options = args.access.bench_options();
        output::print(format!("         ripieno bench {scheme}://{http}{options} --model {} --rate 50", model.name))?;
    }
    Ok(())
}

/// Returns true if a described input has another open dimension besides the batch.
fn has_length(input: &str) -> bool {
    input.matches("-1").count() > 1
}
