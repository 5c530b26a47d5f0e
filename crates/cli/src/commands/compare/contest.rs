//! One contestant: a runtime with a policy, its turns under load, and their results.

use super::predictions::{Errors, Predictions};
use super::requests::RequestArgs;
use crate::args::devices::DeviceArgs;
use crate::args::policy;
use crate::service::{Running, Service};
use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_bench::load::{BenchTarget, LoadReport, LoadSchedule, RequestOutcome as Sent, open_loop};
use ripieno_executor::{PhaseTimes, Tensor};
use ripieno_policies::find;
use ripieno_report::Latencies;
use ripieno_repository::registry::Repository;
use ripieno_runtime::{Engine, Failure, Job, JobResult};
use ripieno_sched::{Limits, OptionValue, Options};
use ripieno_server::ServerConfig;
use ripieno_workload::{ArrivalProcess, Arrivals};
use serde::Serialize;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A policy and its options as given, with a model and an SLO of its own, if any.
#[derive(Clone, Debug)]
pub(super) struct LiveContestant {
    title: String,
    policy: String,
    slo: Option<Nanos>,
    options: Options,
    /// The contestant's own model, if it does not run the common one.
    model: Option<String>,
}

/// The key of a contestant's own model: no policy has such an option.
const MODEL: &str = "model=";

impl FromStr for LiveContestant {
    type Err = String;

    fn from_str(text: &str) -> Result<LiveContestant, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        find(name).map_err(|error| error.to_string())?;
        let (models, options): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.starts_with(MODEL));
        let options =
            options.into_iter().map(policy::option).collect::<Result<Vec<(String, OptionValue)>, String>>()?;
        let model = models.last().map(|model| model[MODEL.len()..].to_owned());
        let mut options: Options = options.into_iter().collect();
        let slo = options.remove(SLO).map(|value| target(&value)).transpose()?;
        Ok(LiveContestant { title: text.to_owned(), policy: name.to_owned(), options, model, slo })
    }
}

/// The key of a contestant's own SLO.
const SLO: &str = "slo_ms";

fn target(value: &OptionValue) -> Result<Nanos, String> {
    let millis: Option<f64> = value.to_string().parse().ok();
    let millis = millis.filter(|millis| *millis > 0.0 && *millis <= 3_600_000.0);
    millis.map(Nanos::from_millis_f64).ok_or_else(|| format!("{SLO}={value}: give milliseconds above 0"))
}

/// The load of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum TurnLoad {
    /// Open loop, in requests per second.
    Rate(f64),
    /// Closed loop with this number of requests outstanding.
    Saturated(usize),
}

impl TurnLoad {
    pub(super) fn rate(self) -> Option<f64> {
        match self {
            TurnLoad::Rate(rate) => Some(rate),
            TurnLoad::Saturated(_) => None,
        }
    }
}

/// The results of a turn; requests and latencies of the counted part, the rest of the whole turn.
#[derive(Clone, Debug)]
pub(super) struct TurnOutcome {
    pub(super) answered_rps: f64,
    pub(super) bad_rate: f64,
    pub(super) violations: f64,
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) mean_ms: f64,
    pub(super) rows_per_task: f64,
    pub(super) tasks_per_s: f64,
    pub(super) busy_fraction: f64,
    pub(super) useless_fraction: f64,
    pub(super) padding_fraction: f64,
    pub(super) rows_gathered_per_row: f64,
    pub(super) tasks_without_copy_fraction: f64,
    pub(super) tasks_gathered_ahead_fraction: f64,
    pub(super) task: PerTask,
    pub(super) predictions: Option<Predictions>,
}

/// The mean costs of a task, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PerTask {
    /// Time of the scheduler's turns, which also accept and answer requests.
    pub(super) scheduling_us: f64,
    pub(super) gather_us: f64,
    pub(super) scatter_us: f64,
    pub(super) compute_us: f64,
    /// All but computing, divided by computing.
    pub(super) overhead_fraction: f64,
}

/// The outcomes of the requests of the counted part.
struct TurnCounts {
    answered: u64,
    /// Answers after the model's SLO.
    late: u64,
    requests: u64,
    latencies: Latencies,
    window: Duration,
}

/// A contestant whose model is loaded.
pub(super) struct LoadedContestant {
    title: String,
    engine: Engine,
    device: String,
    devices: u16,
    target: Arc<InProcess>,
    slo: Nanos,
    seed: u64,
}

/// A target that submits requests directly to the runtime.
struct InProcess {
    engine: Engine,
    model: ModelId,
    requests: Vec<Arc<[Tensor]>>,
}

impl InProcess {
    async fn ask(&self, index: u64) -> JobResult {
        let inputs = Arc::clone(&self.requests[(index % self.requests.len() as u64) as usize]);
        let rows = inputs.first().and_then(|input| input.shape.first()).map_or(1, |&rows| rows.max(1) as usize);
        let (tell, told) = oneshot::channel();
        // After a timeout the receiver is gone and the answer is dropped.
        let on_answer = Box::new(move |answer| drop(tell.send(answer)));
        let job = Job::new(self.model, inputs, rows, on_answer);
        match self.engine.submit(job) {
            Ok(_ticket) => told.await.unwrap_or(Err(Failure::ShuttingDown)),
            Err(refused) => Err(Failure::Failed(refused.to_string())),
        }
    }
}

impl BenchTarget for InProcess {
    async fn send(&self, index: u64) -> Sent {
        match self.ask(index).await {
            Ok(_) => Sent::Answered,
            Err(failure) => {
                let message = failure.to_string();
                Sent::Failed { class: message.chars().take(40).collect(), message }
            }
        }
    }
}

/// Counters of a runtime at an instant.
struct Counters {
    at: Instant,
    tasks: u64,
    rows: f64,
    /// Rows with all padding.
    executed: u64,
    useless: u64,
    /// Elements computed for requests that differ in length, and elements of padding.
    elements: (u64, u64),
    busy_ns: u64,
    gathered: u64,
    without_copy: u64,
    gathered_ahead: u64,
    scheduling_ns: u64,
    gather_ns: u64,
    scatter_ns: u64,
    compute_ns: u64,
    predictions: Errors,
}

impl PerTask {
    fn between(before: &Counters, after: &Counters) -> PerTask {
        let tasks = (after.tasks - before.tasks).max(1) as f64;
        let us = |of: fn(&Counters) -> u64| (of(after) - of(before)) as f64 / tasks / 1e3;
        let [scheduling_us, gather_us, scatter_us, compute_us] =
            [us(|c| c.scheduling_ns), us(|c| c.gather_ns), us(|c| c.scatter_ns), us(|c| c.compute_ns)];
        let overhead_fraction = (scheduling_us + gather_us + scatter_us) / compute_us;
        PerTask { scheduling_us, gather_us, scatter_us, compute_us, overhead_fraction }
    }
}

impl LoadedContestant {
    pub(super) async fn start(
        contestant: &LiveContestant,
        repository: &Path,
        model: &str,
        devices: &DeviceArgs,
        requests: &RequestArgs,
    ) -> anyhow::Result<LoadedContestant> {
        let model = contestant.model.as_deref().unwrap_or(model);
        let config = ServerConfig { http: None, grpc: None, metrics: None, ..ServerConfig::default() };
        let service = Service {
            repository: repository.to_owned(),
            devices: devices.clone(),
            policy: contestant.policy.clone(),
            options: contestant.options.clone(),
            shards: 1,
            max_live: Limits::SERVED_REQUESTS,
            max_devices: None,
            record: None,
            flight: None,
            measure_for: None,
            slo: contestant.slo,
            control: Default::default(),
            // No port is open, so there are no other clients.
            allow_symlinks: true,
            config,
        };
        let device = devices.target()?.engine.device_key();
        let Running { engine, repository, registry, .. } = service.start(&[Handle::current()]).await?;
        let model = model.to_owned();
        let wanted = model.clone();
        let loaded = tokio::task::spawn_blocking(move || Repository::load(&*repository, &wanted, None)).await?;
        loaded.map_err(|reason| anyhow!("model {model}: {reason}"))?;
        let entry = registry.get(&model, "").map_err(|error| anyhow!("model {model}: {error}"))?;
        let target = InProcess {
            engine: engine.clone(),
            model: entry.id.context("an ensemble cannot be compared on")?,
            requests: requests.build(&entry)?,
        };
        match target.ask(0).await {
            // A policy that answers a lone request too late is compared all the same.
            Ok(_) | Err(Failure::Expired | Failure::Hopeless | Failure::TooLate { .. }) => {}
            Err(failure) => {
                return Err(anyhow!(failure)).with_context(|| format!("{}: the first request", contestant.title));
            }
        }
        let title = contestant.title.clone();
        let (devices, slo) = (devices.count(), entry.slo.span);
        Ok(LoadedContestant { title, engine, device, devices, target: Arc::new(target), slo, seed: requests.seed })
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn device(&self) -> &str {
        &self.device
    }

    pub(super) async fn turn(
        &self,
        load: TurnLoad,
        span: Duration,
        timeout: Duration,
        round: u64,
    ) -> anyhow::Result<TurnOutcome> {
        let before = self.counters()?;
        let TurnCounts { answered, late, requests, latencies, window } = match load {
            TurnLoad::Rate(rate) => self.open(rate, span, timeout, round).await?,
            TurnLoad::Saturated(outstanding) => self.saturate(outstanding, span).await?,
        };
        let after = self.counters()?;
        let seconds = (after.at - before.at).as_secs_f64();
        let (tasks, rows) = ((after.tasks - before.tasks) as f64, after.rows - before.rows);
        let useful = after.elements.0 - before.elements.0;
        let padding = after.elements.1 - before.elements.1;
        let busy_ns = (after.busy_ns - before.busy_ns) as f64;
        Ok(TurnOutcome {
            answered_rps: answered as f64 / window.as_secs_f64(),
            bad_rate: 1.0 - answered as f64 / requests.max(1) as f64,
            violations: 1.0 - (answered - late) as f64 / requests.max(1) as f64,
            p50_ms: latencies.p50_ms().unwrap_or(f64::NAN),
            p90_ms: latencies.quantile_ms(0.9).unwrap_or(f64::NAN),
            p99_ms: latencies.p99_ms().unwrap_or(f64::NAN),
            mean_ms: latencies.mean_ms().unwrap_or(f64::NAN),
            rows_per_task: rows / tasks.max(1.0),
            tasks_per_s: tasks / seconds,
            busy_fraction: busy_ns / (seconds * 1e9 * f64::from(self.devices)),
            padding_fraction: padding as f64 / ((useful + padding) as f64).max(1.0),
            useless_fraction: (after.useless - before.useless) as f64
                / ((after.executed - before.executed) as f64).max(1.0),
            rows_gathered_per_row: (after.gathered - before.gathered) as f64 / rows.max(1.0),
            tasks_without_copy_fraction: (after.without_copy - before.without_copy) as f64 / tasks.max(1.0),
            tasks_gathered_ahead_fraction: (after.gathered_ahead - before.gathered_ahead) as f64 / tasks.max(1.0),
            task: PerTask::between(&before, &after),
            predictions: Predictions::between(&before.predictions, &after.predictions),
        })
    }

    /// Runs an open loop; the first fifth of a turn is not counted.
    async fn open(&self, rate: f64, span: Duration, timeout: Duration, round: u64) -> anyhow::Result<TurnCounts> {
        let end = Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX));
        let warmup = Nanos(end.0 / 5);
        let arrivals = Arrivals::new(ArrivalProcess::Poisson, rate, self.seed, round)?;
        let due = Box::new(arrivals.take_while(move |&due| due < Time::ORIGIN + end));
        let plan = LoadSchedule {
            due,
            warmup,
            end,
            slo: Some(self.slo),
            timeout,
            max_in_flight: 20_000,
            max_outstanding: 20_000,
        };
        let report = open_loop(Arc::clone(&self.target), plan, &ProgressBar::hidden()).await?;
        let LoadReport { answered, late, requests, latencies, .. } = report;
        Ok(TurnCounts { answered, late, requests, latencies, window: span.mul_f64(0.8) })
    }

    async fn saturate(&self, outstanding: usize, span: Duration) -> anyhow::Result<TurnCounts> {
        let (begun, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (counted, end) = (begun + span.mul_f64(0.2), begun + span);
        let clients: Vec<_> = (0..outstanding)
            .map(|_| tokio::spawn(client(Arc::clone(&self.target), self.slo, Arc::clone(&next), counted, end)))
            .collect();
        let mut all =
            TurnCounts { answered: 0, late: 0, requests: 0, latencies: Latencies::new(), window: end - counted };
        for client in clients {
            let own = client.await?;
            all.answered += own.answered;
            all.late += own.late;
            all.requests += own.requests;
            all.latencies.merge(&own.latencies);
        }
        Ok(all)
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let model = self.engine.model_metrics(self.target.model).context("the model is loaded")?;
        let devices = self.engine.device_metrics();
        let spent = |of: fn(&PhaseTimes) -> u64| devices.iter().map(|device| of(&device.spent)).sum();
        Ok(Counters {
            at: Instant::now(),
            tasks: devices.iter().map(|device| device.batches).sum(),
            rows: model.batch_rows.sum as f64,
            executed: model.executed_rows,
            useless: model.wasted_rows + model.padding_rows,
            elements: (model.useful_elements, model.padding_elements),
            busy_ns: devices.iter().map(|device| device.busy_ns).sum(),
            gathered: devices.iter().map(|device| device.rows_gathered).sum(),
            without_copy: devices.iter().map(|device| device.tasks_without_copy).sum(),
            gathered_ahead: devices.iter().map(|device| device.tasks_gathered_ahead).sum(),
            scheduling_ns: self.engine.scheduler_metrics().busy_ns,
            gather_ns: spent(|spent| spent.gather_ns),
            scatter_ns: spent(|spent| spent.scatter_ns),
            compute_ns: spent(|spent| spent.compute_ns),
            predictions: Errors { sizes: model.prediction_error, bias: model.prediction_bias },
        })
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let engine = self.engine;
        tokio::task::spawn_blocking(move || engine.drain(Duration::from_secs(5))).await?;
        Ok(())
    }
}

/// Sends one request after the other until the end; counts those answered in the window.
async fn client(
    target: Arc<InProcess>,
    slo: Nanos,
    next: Arc<AtomicU64>,
    counted: Instant,
    end: Instant,
) -> TurnCounts {
    let mut own = TurnCounts { answered: 0, late: 0, requests: 0, latencies: Latencies::new(), window: end - counted };
    while Instant::now() < end {
        let sent = Instant::now();
        let answer = target.ask(next.fetch_add(1, Ordering::Relaxed)).await;
        let done = Instant::now();
        if (counted..end).contains(&done) {
            own.requests += 1;
            if answer.is_ok() {
                let latency = Nanos((done - sent).as_nanos() as i64);
                own.answered += 1;
                own.late += u64::from(latency > slo);
                own.latencies.record(latency);
            }
        }
        if answer.is_err() {
            // Refused: an immediate retry would be refused as well.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    own
}
