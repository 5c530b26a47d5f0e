//! `ripieno frontend`: serves clients, and has requests scheduled and run by other processes.

use super::model::register;
use super::{PeerArgs, SCHEDULER, reachable, shutdown_signal};
use crate::args::access::AccessArgs;
use crate::args::address::listening;
use crate::args::bounds::BoundArgs;
use crate::args::logs::LogFormat;
use crate::args::server_threads::ServerThreads;
use crate::output::replies::ReplyArgs;
use crate::output::{self, print_json};
use crate::service::built_with;
use anyhow::Context;
use clap::Args;
use ripieno_base::{DeviceId, ModelId};
use ripieno_cluster::{Frontend, FrontendConfig, ModelDescription};
use ripieno_report::Format;
use ripieno_repository::registry::{IndexRow, ModelRegistry, Repository, Upload};
use ripieno_runtime::{DeviceRefused, DeviceSnapshot, EngineProcesses, Failure, Job, ModelSnapshot, SchedulerSnapshot};
use ripieno_sched::Limits;
use ripieno_server::{AccessConfig, Addresses, Backend, DeviceChange, Server, ServerConfig, Withdraw};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const HELP: &str = "Example:\n  ripieno frontend --scheduler scheduler:8010 --http :8000 --data :8011\n";

/// Serve clients of a cluster over HTTP and gRPC: decode, check and keep requests, and have a
/// scheduler decide about them.
///
/// Supports the protocols of `ripieno serve`. Inputs stay here until a backend fetches them from
/// the data port, and outputs come back there. Of several schedulers the primary receives the
/// requests; when it fails, its successor receives all that are unanswered. After a second without
/// a scheduler, requests are answered with 503 and a time to retry.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct FrontendArgs {
    /// Addresses of the schedulers, primary and spares.
    #[arg(long, value_name = "HOST:PORT,...", default_value = SCHEDULER, value_delimiter = ',', value_parser = reachable)]
    scheduler: Vec<String>,

    /// Address of HTTP: 8000 and localhost:8000 are on loopback, :8000 on every address; port 0
    /// takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = listening)]
    http: SocketAddr,

    /// Address of gRPC.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001", value_parser = listening)]
    grpc: SocketAddr,

    /// Address of Prometheus' /metrics, of this frontend's requests.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8003", value_parser = listening)]
    metrics: SocketAddr,

    /// Address at which backends fetch inputs and leave outputs. Not for clients, nor, without
    /// --peer-cert, for an untrusted network.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8011", value_parser = listening)]
    data: SocketAddr,

    /// The address of --data as backends reach it [default: the port on the address that the
    /// scheduler sees].
    #[arg(long, value_name = "HOST:PORT", value_parser = reachable)]
    advertise: Option<String>,

    /// Largest number of requests in flight; further ones are refused with 429.
    #[arg(long, value_name = "N", default_value_t = Limits::SERVED_REQUESTS as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_live: u32,

    /// Largest request body, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
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

    /// Format of the log on stderr.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Output format; json prints one line with the addresses.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    peers: PeerArgs,
}

pub(crate) fn run(args: &FrontendArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let threads = ServerThreads::start().context("cannot start the threads of the HTTP and gRPC server")?;
    let outcome = runtime.block_on(serve(args, &threads));
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &FrontendArgs, threads: &ServerThreads) -> anyhow::Result<()> {
    let registry = Arc::new(ModelRegistry::unlisted());
    let models = Arc::clone(&registry);
    let on_models = Box::new(move |served: &[(ModelId, ModelDescription)], loading: &[String]| {
        list(&models, served, loading);
    });
    let config = FrontendConfig {
        schedulers: args.scheduler.clone(),
        data: args.data,
        advertised: args.advertise.clone(),
        max_live: args.max_live,
        scheduler_timeout: FrontendConfig::SCHEDULER_TIMEOUT,
    };
    let frontend = Frontend::start(args.peers.transport()?, config, on_models);
    let frontend = frontend.with_context(|| format!("cannot listen on {} (--data)", args.data))?;
    args.peers.warn_if_open("the data port", frontend.data_address());
    let drain_timeout = Duration::from_secs(args.drain_timeout_s);
    let config = ServerConfig {
        http: Some(args.http),
        grpc: Some(args.grpc),
        metrics: Some(args.metrics),
        server_name: args.server_name.clone(),
        max_body_bytes: (args.max_body_mib as usize) << 20,
        drain_timeout,
        build: built_with(""),
        access: AccessConfig { peer_certificate: args.peers.certificate(), ..args.access.config() },
        connections_on: threads.runtimes().to_vec(),
        ..args.replies.over(args.bounds.over(ServerConfig::default()))
    };
    let told = Arc::new(RemoteRepository { registry: Arc::clone(&registry), frontend: frontend.clone() });
    let server = Server::bind(config, Arc::new(RemoteEngine(frontend.clone())), registry, told);
    let server = threads.runtimes()[0].spawn(server).await??;
    announce(args, &server.addresses(), frontend.data_address())?;
    let shutdown = async {
        if let Err(error) = shutdown_signal().await {
            tracing::error!(%error, "no signals can be waited for");
        }
        tracing::info!("shutting down: no new requests; those in flight are answered");
    };
    let drained = threads.runtimes()[0].spawn(server.run(shutdown)).await?;
    let draining = frontend.clone();
    let answered = tokio::task::spawn_blocking(move || draining.drain(drain_timeout)).await?;
    if !(drained && answered) {
        tracing::warn!("some requests were still in flight after {drain_timeout:?} and were answered with an error");
    }
    frontend.close();
    Ok(())
}

/// Sets the models that are served and those that backends are loading. A model that changes from
/// one to the other is never unknown.
fn list(registry: &ModelRegistry, served: &[(ModelId, ModelDescription)], loading: &[String]) {
    let all: Vec<String> = loading.iter().chain(served.iter().map(|(_, model)| &model.name)).cloned().collect();
    registry.set_awaited(&all);
    register(registry, served);
    registry.set_awaited(loading);
    registry.set_listed();
}

fn announce(args: &FrontendArgs, addresses: &Addresses, data: SocketAddr) -> anyhow::Result<()> {
    let Addresses { http, grpc, metrics } = *addresses;
    if args.format == Format::Json {
        return print_json(&serde_json::json!({ "http": http, "grpc": grpc, "metrics": metrics, "data": data }));
    }
    let (scheme, of_metrics) = args.access.scheme();
    let shown = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    output::print(format!("HTTP       {scheme}://{}", shown(http)))?;
    output::print(format!("gRPC       {}", shown(grpc)))?;
    output::print(format!("metrics    {of_metrics}://{}/metrics", shown(metrics)))?;
    output::print(format!("data       {data}"))?;
    output::print(format!("schedulers {}", args.scheduler.join(", ")))
}

/// A remote engine behind the HTTP and gRPC server.
struct RemoteEngine(Frontend);

impl Backend for RemoteEngine {
    fn submit(&self, job: Job) -> Result<Withdraw, Failure> {
        let (request, frontend) = (self.0.submit(job)?, self.0.clone());
        Ok(Box::new(move || frontend.cancel(request)))
    }

    fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.model(id)
    }

    fn processes(&self, _: ModelId) -> Option<EngineProcesses> {
        None
    }

    /// The scheduler counts the devices of the cluster.
    fn devices(&self) -> Vec<DeviceSnapshot> {
        Vec::new()
    }

    fn serving_devices(&self) -> usize {
        self.0.serving_devices()
    }

    fn slow_links(&self) -> Vec<String> {
        self.0.slow_links()
    }

    /// The scheduler knows the load of the devices, and advises on their number.
    fn is_primary(&self) -> bool {
        false
    }

    fn change_devices(&self, _: DeviceChange) -> Result<DeviceId, DeviceRefused> {
        Err(DeviceRefused::Elsewhere)
    }

    fn scheduler(&self) -> SchedulerSnapshot {
        SchedulerSnapshot::default()
    }
}

/// The repositories of the backends, which calls of clients change on all of them.
struct RemoteRepository {
    registry: Arc<ModelRegistry>,
    frontend: Frontend,
}

impl Repository for RemoteRepository {
    fn load(&self, name: &str, upload: Option<&Upload>) -> Result<(), String> {
        match upload {
            None => self.frontend.change_model(name, false),
            Some(_) => Err(format!(
                "model '{name}': calls to a cluster bring no configuration and no files; put them into the repositories \
                 of the backends and load the model"
            )),
        }
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        self.frontend.change_model(name, true)
    }

    fn index(&self) -> Vec<IndexRow> {
        self.registry.index()
    }
}
