//! A cluster of processes on loopback for the live form of items: a scheduler, emulated backends,
//! and frontends in this process, which the load generator of `ripieno bench` submits to.

use super::scaling::{BackendScaling, ScalableCluster};
use crate::commands::cluster_demo::processes::{DemoFolder, Process, free, until};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use indicatif::ProgressBar;
use ripieno_base::{ModelId, Nanos};
use ripieno_bench::load::{BenchTarget, LoadSchedule, RequestOutcome, open_loop};
use ripieno_cluster::plane::Tcp;
use ripieno_cluster::{Frontend, FrontendConfig, ModelDescription};
use ripieno_executor::Tensor;
use ripieno_model::{DataType, Model};
use ripieno_report::Latencies;
use ripieno_reproduce::{ClusterLoad, ClusterResult, ClusterSetup, LiveCluster, LiveScaling, LiveWindow};
use ripieno_runtime::{Failure, Job, JobOutput, JobResult};
use rustix::process::Signal;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Largest number of backend processes at the start; each has as many devices as needed.
const MAX_PROCESSES: usize = 8;
const MAX_LIVE: u32 = 1 << 16;
/// Time after which the load generator gives up a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A frontend, and the ids that it gives to the models.
pub(super) type ServingFrontend = (Frontend, Arc<Mutex<Vec<(ModelId, ModelDescription)>>>);

/// The processes and frontends. They end when it is dropped.
pub(super) struct LoopbackCluster {
    runtime: Runtime,
    models: Vec<Model>,
    frontends: Vec<ServingFrontend>,
    backends: Vec<Process>,
    /// Backends that finish their tasks before they end.
    leaving: Vec<Process>,
    scheduler: Process,
    address: String,
    folder: DemoFolder,
}

impl LoopbackCluster {
    pub(super) fn start(setup: &ClusterSetup) -> anyhow::Result<LoopbackCluster> {
        let folder = DemoFolder::new(None)?;
        for model in &setup.models {
            let at = folder.0.join("models").join(&model.name);
            fs::create_dir_all(at.join("1"))?;
            fs::write(at.join("model.toml"), settings(model))?;
        }
        let (scheduler, address) = scheduler(setup.policy, &setup.options, setup.most_devices, &folder)?;
        let frontends = (0..setup.frontends).map(|_| frontend(&address)).collect::<anyhow::Result<_>>()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (models, backends, leaving) = (setup.models.clone(), Vec::new(), Vec::new());
        let mut cluster = LoopbackCluster { runtime, models, frontends, backends, leaving, scheduler, address, folder };
        // Where the number of devices changes, each is a process.
        let processes =
            if setup.most_devices > setup.devices { setup.devices } else { setup.devices.min(MAX_PROCESSES) };
        for at in 0..processes {
            cluster.add_backend_process((setup.devices - at).div_ceil(processes))?;
        }
        cluster.until_serving(setup.devices)?;
        Ok(cluster)
    }

    /// Starts a backend's process with this number of devices.
    fn add_backend_process(&mut self, devices: usize) -> anyhow::Result<()> {
        let (models, devices) = (self.folder.at("models"), devices.to_string());
        let words = ["backend", &models, "--scheduler", &self.address, "--device", "emulated", "--devices", &devices];
        self.backends.push(Process::role(&words, self.folder.at("backends.log"))?);
        Ok(())
    }

    /// Waits until each frontend knows all models and this number of devices.
    fn until_serving(&self, devices: usize) -> anyhow::Result<()> {
        let models = self.models.len();
        let serves =
            |(frontend, known): &ServingFrontend| frontend.serving_devices() == devices && lock(known).len() == models;
        until("all devices serve", || Ok(self.frontends.iter().all(serves)))
    }

    /// Returns the id of each model at each frontend.
    fn ids(&self) -> anyhow::Result<Vec<(Frontend, Vec<ModelId>)>> {
        let of = |(frontend, known): &ServingFrontend| {
            let known = lock(known);
            let id = |model: &Model| {
                let served = known.iter().find(|(_, served)| served.name == model.name);
                Ok(served.with_context(|| format!("model {} is not served", model.name))?.0)
            };
            Ok((frontend.clone(), self.models.iter().map(id).collect::<anyhow::Result<Vec<_>>>()?))
        };
        self.frontends.iter().map(of).collect()
    }

    fn target(&self, load: &ClusterLoad) -> anyhow::Result<Arc<ClusterTarget>> {
        let data = Bytes::from_static(&[0; 8]);
        let input = Tensor { name: "x".into(), datatype: DataType::Int64, shape: vec![1, 1], data };
        Ok(Arc::new(ClusterTarget {
            frontends: self.ids()?,
            models: self.models.clone(),
            load: load.clone(),
            inputs: Arc::new([input]),
            ends: Mutex::new(EndedRequests::new(load.arrivals.len())),
        }))
    }

    /// Sends the requests while `beside` runs, whose second argument returns true once they have
    /// ended.
    fn run(
        &mut self,
        load: &ClusterLoad,
        beside: impl FnOnce(&mut LoopbackCluster, &dyn Fn() -> bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Arc<ClusterTarget>, Latencies)> {
        let target = self.target(load)?;
        let times: Vec<_> = load.arrivals.iter().map(|&(at, _)| at).collect();
        let schedule = LoadSchedule {
            due: Box::new(times.into_iter()),
            warmup: load.warmup,
            end: load.end,
            slo: None,
            timeout: TIMEOUT,
            max_in_flight: MAX_LIVE as usize,
            max_outstanding: MAX_LIVE as usize,
        };
        let sent = Arc::clone(&target);
        let running = self.runtime.spawn(async move { open_loop(sent, schedule, &ProgressBar::hidden()).await });
        beside(self, &|| running.is_finished())?;
        let report = self.runtime.block_on(running).context("the load generator failed")??;
        Ok((target, report.send_lag))
    }
}

impl LiveCluster for LoopbackCluster {
    fn serve(&mut self, load: &ClusterLoad) -> anyhow::Result<ClusterResult> {
        let before = CoreTimes::read();
        let (target, send_lag) = self.run(load, |_, _| Ok(()))?;
        let ended = lock(&target.ends);
        Ok(ClusterResult {
            worst_bad_rate: target.worst_bad_rate(&ended),
            batch_us: percentiles(ended.batch_us.clone()),
            way_us: percentiles(ended.way_us.clone()),
            send_lag_us: send_lag.p99_ms().unwrap_or(f64::NAN) * 1e3,
            busy_cores: before.zip(CoreTimes::read()).map(|(before, after)| before.busy_until(&after)),
        })
    }

    fn serve_scaled(&mut self, load: &ClusterLoad, scaling: &LiveScaling) -> anyhow::Result<Vec<LiveWindow>> {
        let windows = (load.end.0 / scaling.every.0.max(1)) as usize;
        let mut follower = BackendScaling::new(*scaling, Instant::now());
        let (target, _) = self.run(load, |cluster, is_over| follower.follow(cluster, windows, is_over))?;
        let ended = lock(&target.ends);
        Ok(follower.windows(load, &ended.in_time))
    }
}

impl ScalableCluster for LoopbackCluster {
    fn add_backend(&mut self) -> anyhow::Result<()> {
        self.add_backend_process(1)
    }

    fn release_backend(&mut self) -> anyhow::Result<()> {
        let Some(backend) = self.backends.pop() else { return Ok(()) };
        backend.signal(Signal::TERM)?;
        self.leaving.push(backend);
        Ok(())
    }

    fn backends(&self) -> usize {
        self.backends.len()
    }

    fn metrics(&self) -> anyhow::Result<SocketAddr> {
        self.scheduler.says("metrics").parse().context("the scheduler says no address of its metrics")
    }
}

impl Drop for LoopbackCluster {
    fn drop(&mut self) {
        self.frontends.iter().for_each(|(frontend, _)| frontend.close());
        self.leaving.drain(..).for_each(Process::wait);
    }
}

/// Starts the scheduler of a cluster; returns its address, too.
pub(super) fn scheduler(
    policy: &str,
    options: &[String],
    devices: usize,
    folder: &DemoFolder,
) -> anyhow::Result<(Process, String)> {
    let [address] = free(1)?[..] else { bail!("no port is free") };
    let (address, devices) = (address.to_string(), devices.max(64).to_string());
    let first = ["scheduler", "--listen", &address, "--metrics", "127.0.0.1:0", "--max-devices", &devices];
    let options = options.iter().flat_map(|option| ["--option", option]);
    let words: Vec<&str> = first.into_iter().chain(["--policy", policy]).chain(options).collect();
    Ok((Process::role(&words, folder.at("scheduler.log"))?, address))
}

/// Starts a frontend in this process.
pub(super) fn frontend(scheduler: &str) -> anyhow::Result<ServingFrontend> {
    let data = SocketAddr::from(([127, 0, 0, 1], 0));
    let (schedulers, scheduler_timeout) = (vec![scheduler.to_owned()], FrontendConfig::SCHEDULER_TIMEOUT);
    let config = FrontendConfig { schedulers, data, advertised: None, max_live: MAX_LIVE, scheduler_timeout };
    let known = Arc::<Mutex<Vec<(ModelId, ModelDescription)>>>::default();
    let told = Arc::clone(&known);
    let on_models = Box::new(move |models: &[_], _: &[String]| *lock(&told) = models.to_vec());
    Ok((Frontend::start(Arc::new(Tcp), config, on_models).context("cannot start a frontend")?, known))
}

/// Returns the model.toml of a model whose answer is its input.
fn settings(model: &Model) -> String {
    let latencies: Vec<String> =
        model.profile().table().iter().map(|latency| latency.as_millis_f64().to_string()).collect();
    let tensor = |kind: &str| format!("[[{kind}]]\nname = \"x\"\ndatatype = \"INT64\"\nshape = [-1, 1]\n");
    let (input, output) = (tensor("input"), tensor("output"));
    format!(
        "latency_ms = [{}]\nslo_ms = {}\nmax_batch = {}\nmax_queue = {MAX_LIVE}\n{input}{output}",
        latencies.join(", "),
        model.slo.as_millis_f64(),
        model.max_batch
    )
}

/// The frontends as the load generator's target.
struct ClusterTarget {
    frontends: Vec<(Frontend, Vec<ModelId>)>,
    models: Vec<Model>,
    load: ClusterLoad,
    inputs: Arc<[Tensor]>,
    ends: Mutex<EndedRequests>,
}

/// The requests that have ended.
struct EndedRequests {
    /// Whether each request was answered in time.
    in_time: Vec<bool>,
    /// Time of each answer's batch beyond its profile, from the request's arrival at the scheduler.
    batch_us: Vec<f64>,
    /// Time of each answer outside of the scheduler's view.
    way_us: Vec<f64>,
}

impl EndedRequests {
    fn new(requests: usize) -> EndedRequests {
        EndedRequests { in_time: vec![false; requests], batch_us: Vec::new(), way_us: Vec::new() }
    }
}

impl ClusterTarget {
    /// Returns the highest bad rate of a model, of the requests that count.
    fn worst_bad_rate(&self, ended: &EndedRequests) -> f64 {
        let mut counts = vec![(0u64, 0u64); self.models.len()];
        for (&(at, model), in_time) in self.load.arrivals.iter().zip(&ended.in_time) {
            if at - ripieno_base::Time::ORIGIN >= self.load.warmup {
                let (all, bad) = &mut counts[model.index()];
                (*all, *bad) = (*all + 1, *bad + u64::from(!in_time));
            }
        }
        counts.iter().map(|&(all, bad)| bad as f64 / all.max(1) as f64).fold(0.0, f64::max)
    }

    async fn ask(&self, index: u64) -> JobResult {
        let (_, model) = self.load.arrivals[index as usize];
        let (frontend, ids) = &self.frontends[index as usize % self.frontends.len()];
        let (tell, told) = oneshot::channel();
        // After a timeout the receiver is gone and the answer is dropped.
        let on_answer = Box::new(move |answer| drop(tell.send(answer)));
        let (inputs, model) = (Arc::clone(&self.inputs), ids[model.index()]);
        frontend.submit(Job::new(model, inputs, 1, on_answer))?;
        told.await.unwrap_or(Err(Failure::ShuttingDown))
    }

    /// Notes the delays of an answer that took `total`.
    fn note(&self, index: u64, answered: &JobOutput, total: Duration) {
        let model = &self.models[self.load.arrivals[index as usize].1.index()];
        let us = |span: Nanos| span.as_millis_f64() * 1e3;
        let seen = answered.queued + answered.executed;
        let total = Nanos(i64::try_from(total.as_nanos()).unwrap_or(i64::MAX));
        let mut ends = lock(&self.ends);
        ends.batch_us.push(us(seen - model.profile().latency(answered.batch.clamp(1, model.max_batch))));
        ends.way_us.push(us(total - seen));
    }
}

impl BenchTarget for ClusterTarget {
    async fn send(&self, index: u64) -> RequestOutcome {
        let sent = Instant::now();
        match self.ask(index).await {
            Ok(answered) => {
                self.note(index, &answered, sent.elapsed());
                RequestOutcome::Answered
            }
            Err(failure) => {
                let message = failure.to_string();
                RequestOutcome::Failed { class: "failed".to_owned(), message }
            }
        }
    }

    fn on_end(&self, index: u64, latency: Nanos, outcome: &RequestOutcome) {
        let slo = self.models[self.load.arrivals[index as usize].1.index()].slo;
        lock(&self.ends).in_time[index as usize] = *outcome == RequestOutcome::Answered && latency <= slo;
    }
}

/// Returns the median and the 99th percentile.
fn percentiles(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    [0.5, 0.99].map(|share| values.get((last * share).round() as usize).copied().unwrap_or(f64::NAN))
}

/// The time of all cores so far, as Linux counts it in ticks.
struct CoreTimes {
    busy: f64,
    all: f64,
    cores: f64,
}

impl CoreTimes {
    fn read() -> Option<CoreTimes> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let fields = text.lines().next()?.split_whitespace().skip(1).take(8);
        let ticks: Vec<f64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
        // The fourth and fifth are idle.
        let (all, idle) = (ticks.iter().sum::<f64>(), ticks.get(3)? + ticks.get(4)?);
        let cores = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as f64;
        Some(CoreTimes { busy: all - idle, all, cores })
    }

    /// Returns the mean number of busy cores from this reading to a later one.
    fn busy_until(&self, later: &CoreTimes) -> f64 {
        self.cores * (later.busy - self.busy) / (later.all - self.all).max(1.0)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
