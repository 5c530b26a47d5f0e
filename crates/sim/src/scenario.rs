//! Scenario files, parsed into types.
//!
//! The keys are a contract (see the user guide); unknown keys are errors, since ignoring a misspelt
//! key would silently give a wrong result. Every error names the file, the key, the value and the
//! fix. `[[model]]` is read in `model.rs`, `blocks.rs`, `costs.rs`, `routes.rs` and `walks.rs`;
//! scenarios without a meaningful result are refused in `check.rs`.

mod blocks;
mod check;
mod costs;
mod ensembles;
mod listing;
mod model;
mod routes;
mod walks;

use crate::autoscale::{Autoscale, AutoscaleTable};
use crate::changing::{Changing, GivenLoad, ModelLoad, PhaseTable};
use crate::ensembles::SimulatedEnsemble;
use crate::jitter::Jitter;
use crate::link::{Delay, Network};
use crate::occupancy::Occupancy;
use crate::planning::{PlanTable, Planning};
use crate::world::QueueBound;
pub use routes::Routes;
pub use walks::WalkSource;

use ensembles::EnsembleTable;
use listing::Listing;
use model::ModelTable;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::bounds::staggered_bound;
use ripieno_model::{Graph, Model};
use ripieno_policies::{DEFAULT_POLICY, Policy, served_options};
use ripieno_sched::{Limits, Needs, Objective, OptionValue, Options, Setup};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;
pub(crate) use walks::Drawn;

/// A scenario that can be simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of all randomness.
    pub seed: u64,
    /// Offered requests per second, all models together; `None` if explicit requests are given.
    pub rate: Option<f64>,
    /// Number of arrivals, or duration.
    pub length: Length,
    /// Fraction of the run, from its start, that the statistics leave out.
    pub warmup_fraction: f64,
    /// The policy's name.
    pub policy: String,
    /// The policy's options.
    pub policy_options: Options,
    /// Whether the policy runs behind a server's admission control.
    pub admission: bool,
    /// Whether every promise of the scheduler contract is checked during the run.
    pub check: bool,
    /// Explicit requests, sorted by arrival.
    pub requests: Option<Vec<crate::Arrival>>,
    /// Each model's share of the rate and its arrival process; by model, followed by the ensembles.
    pub loads: Vec<ModelLoad>,
    /// Models as the steps of graphs.
    pub ensembles: Vec<SimulatedEnsemble>,
    /// The network between scheduler and devices.
    pub network: Network,
    /// Time of the scheduler's one thread for each task that it starts.
    pub decision: Nanos,
    /// Durations of tasks beyond their profile.
    pub jitter: Jitter,
    /// Device time of tasks, relative to their profile; the scheduler does not know it.
    pub occupancy: Occupancy,
    /// Measured delays of task reports: ends in order, with the times of their reports.
    pub reports: Vec<(Time, Time)>,
    /// Whether requests are treated as in the server: deadlines are planned ahead by a learnt
    /// margin, and clients stop waiting at the deadline.
    pub margins: bool,
    /// Keys for planning only.
    pub planning: Planning,
    /// Models, devices and bounds.
    pub setup: Setup,
    /// Whether the scenario sets the number of live requests.
    pub bounded: bool,
    /// Per model, the bound on its live requests; further ones are refused.
    pub queues: Vec<QueueBound>,
    /// Per model, the source of its walks, if they unfold or differ in length.
    pub walks: Vec<Option<WalkSource>>,
    /// Per model, its early exits and skips, if there are any.
    pub routes: Vec<Option<Routes>>,
    /// The graphs of requests.
    pub graphs: Vec<Graph>,
    /// Per model and block, the cost per row of a task whose members differ from the previous
    /// task's.
    pub gather: Vec<Vec<Nanos>>,
    /// The autoscaler, if there is one.
    pub autoscale: Option<Autoscale>,
    /// Length of the windows in which the run is reported, if it is.
    pub window: Option<Nanos>,
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Number of arrivals.
    Requests(u64),
    /// Arrivals up to this time.
    Until(Time),
}

/// The reason for which a scenario cannot be used.
#[derive(Debug, Error)]
#[error("{file}: {problem}")]
pub struct ScenarioError {
    file: String,
    problem: String,
}

/// Default number of live requests, without `max_live` or a server's bounds. Further ones are
/// refused and count as dropped.
const MAX_LIVE: usize = 65_536;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    #[serde(default = "one")]
    seed: u64,
    requests: Option<u64>,
    duration_s: Option<f64>,
    requests_file: Option<PathBuf>,
    warmup_fraction: Option<f64>,
    rate: Option<f64>,
    #[serde(default = "deferred")]
    policy: String,
    #[serde(default)]
    policy_options: std::collections::BTreeMap<String, toml::Value>,
    #[serde(default)]
    admission: bool,
    #[serde(default = "one_device")]
    cluster: ClusterTable,
    #[serde(default)]
    decision_us: f64,
    #[serde(default)]
    network: NetworkTable,
    #[serde(default)]
    jitter: Jitter,
    #[serde(default)]
    occupancy: Occupancy,
    max_live: Option<usize>,
    window_s: Option<f64>,
    autoscale: Option<AutoscaleTable>,
    #[serde(default)]
    phase: Vec<PhaseTable>,
    #[serde(default)]
    plan: PlanTable,
    #[serde(default)]
    model: Vec<ModelTable>,
    #[serde(default)]
    ensemble: Vec<EnsembleTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterTable {
    devices: usize,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkTable {
    control_us: f64,
    data_us_per_request: f64,
    transport: Option<String>,
    estimate_us: Option<f64>,
}

fn one() -> u64 {
    1
}

fn deferred() -> String {
    "deferred".to_owned()
}

fn one_device() -> ClusterTable {
    ClusterTable { devices: 1 }
}

impl Scenario {
    /// Reads a scenario file; a `requests_file` in it is relative to its folder.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let file = path.display().to_string();
        let fail = |problem| ScenarioError { file: file.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
        parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(fail)
    }

    /// Parses the text of a scenario; `file` names it in errors.
    pub fn parse(text: &str, file: &str) -> Result<Scenario, ScenarioError> {
        parse(text, Path::new(".")).map_err(|problem| ScenarioError { file: file.to_owned(), problem })
    }

    /// Sets the policy, options, bounds and margins with which the server would
    /// serve these models.
    pub fn serve(&mut self, objective: Objective) {
        let policy = ripieno_policies::find(DEFAULT_POLICY).expect("the catalogue has the default policy");
        self.serve_under(policy, served_options(policy, Options::new(), objective));
    }

    /// Does the same for a chosen policy, with the options as given to the server.
    pub fn serve_under(&mut self, policy: &'static Policy, options: Options) {
        (self.policy, self.policy_options) = (policy.name.to_owned(), options);
        (self.margins, self.admission) = (true, true);
        let limits = &mut self.setup.limits;
        if !self.bounded {
            limits.requests = Limits::SERVED_REQUESTS;
        }
        limits.nodes = limits.nodes.min(Limits::SERVED_NODES);
        let unbounded = self.queues.iter_mut().filter(|queue| **queue == QueueBound::Unbounded);
        unbounded.for_each(|queue| *queue = QueueBound::Served);
    }

    /// Returns the policy's options, with the estimates of the network if the policy has such
    /// options and they are not set.
    pub fn effective_options(&self) -> Options {
        let mut options = self.policy_options.clone();
        for (knob, delay) in [("control_us", self.network.estimate), ("data_us_per_row", self.network.data_per_row)] {
            if delay > Nanos::ZERO && ripieno_policies::find(&self.policy).is_ok_and(|policy| policy.has(knob)) {
                options.entry(knob.to_owned()).or_insert(OptionValue::Float(delay.as_millis_f64() * 1e3));
            }
        }
        options
    }

    /// Returns the setup with the lanes and depth that the policy needs.
    pub fn effective_setup(&self) -> Setup {
        let setup = self.setup.clone();
        Setup { limits: self.needs().on_devices(setup.limits), ..setup }
    }

    /// Returns the requirements of the policy with its options; an unknown policy is rejected when
    /// it is built.
    pub(crate) fn needs(&self) -> Needs {
        let policy = ripieno_policies::find(&self.policy);
        policy.map_or(Needs::ONE_TASK, |policy| policy.needs(&self.effective_options()))
    }

    /// Returns the throughput of all devices in staggered execution with evenly spaced arrivals:
    /// the analytic bound of "Symphony: Optimized DNN Model Serving using Deferred Batch
    /// Scheduling", with the devices shared by the models. It is the first guess of a goodput
    /// search.
    ///
    /// A model that unfolds counts with full batches of each of its cells and the mean number of
    /// steps.
    pub fn bound_rps(&self) -> f64 {
        let seconds = |model: usize| self.loads[model].share * self.seconds_per_request(model);
        let seconds: f64 = (0..self.setup.models.len()).map(seconds).sum::<f64>() + self.seconds_of_ensembles();
        self.setup.devices as f64 / seconds
    }

    fn seconds_of_ensembles(&self) -> f64 {
        let loads = &self.loads[self.setup.models.len()..];
        let seconds =
            |steps: &[ModelId]| steps.iter().map(|model| self.seconds_per_request(model.index())).sum::<f64>();
        self.ensembles.iter().zip(loads).map(|(ensemble, load)| load.share * seconds(&ensemble.steps)).sum()
    }

    fn seconds_per_request(&self, index: usize) -> f64 {
        let (model, routes) = (&self.setup.models[index], &self.routes[index]);
        match (&self.walks[index], routes) {
            (Some(unfold), _) if model.walk.is_unfolded() => walks::seconds_per_request(model, unfold, &self.graphs),
            (None, None) => {
                let profile = model.profile();
                let batch = staggered_bound(&profile, model.slo, self.setup.devices).batch.max(1);
                profile.latency(batch).as_secs_f64() / batch as f64
            }
            (unfold, _) => {
                let reach = routes.as_ref().map_or_else(|| vec![1.0; model.blocks.len()], Routes::reach);
                walks::seconds_at_best(model, unfold.as_ref(), &reach)
            }
        }
    }
}

type ParseResult<T> = Result<T, String>;

fn parse(text: &str, folder: &Path) -> ParseResult<Scenario> {
    let file: ScenarioFile = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.model.is_empty() {
        return Err("there is no model; add a [[model]] table".to_owned());
    }
    let models = file.model.iter().map(|model| model.model(folder)).collect::<ParseResult<Vec<_>>>()?;
    let (mut models, routes): (Vec<_>, Vec<_>) = models.into_iter().unzip();
    for (model, table) in models.iter_mut().zip(&file.model) {
        model.dec_timesteps = table.dec_timesteps(model.walk, folder)?;
    }
    unique(models.iter().map(|model| model.name.as_str()).chain(file.ensemble.iter().map(EnsembleTable::name)))?;
    let ensembles = file.ensemble.iter().map(|table| table.parse(&models)).collect::<ParseResult<Vec<_>>>()?;
    let mut graphs = Vec::new();
    let listed = file.requests_file.is_some();
    let walk = |(table, model): (&ModelTable, &Model)| {
        let unfold = table.walk_keys().parse(model, listed, folder, &mut graphs);
        unfold.map_err(|problem| format!("model {:?}: {problem}", model.name))
    };
    let walks = file.model.iter().zip(&models).map(walk).collect::<ParseResult<Vec<_>>>()?;
    let longest: Vec<_> = file.model.iter().map(ModelTable::max_length).collect();
    let requests = match &file.requests_file {
        Some(name) => {
            let mut listing = Listing { models: &models, walks: &walks, longest: &longest, graphs: &mut graphs };
            Some(listing.read(&folder.join(name))?)
        }
        None => None,
    };
    let footprints = file.model.iter().map(ModelTable::footprint).collect::<ParseResult<_>>()?;
    let gather = file.model.iter().map(ModelTable::gather).collect::<ParseResult<_>>()?;
    let warmup_fraction = file.warmup_fraction.unwrap_or(if requests.is_some() { 0.0 } else { 0.1 });
    if !(0.0..1.0).contains(&warmup_fraction) {
        return Err(format!("warmup_fraction = {warmup_fraction}; it must be at least 0 and less than 1"));
    }
    let autoscale = file.autoscale.as_ref().map(|table| table.parse(file.cluster.devices)).transpose()?;
    let Offered { rate, length, loads } = file.offered(requests.as_deref())?;
    Ok(Scenario {
        seed: file.seed,
        rate,
        length,
        warmup_fraction,
        policy_options: options(&file.policy_options)?,
        loads,
        ensembles,
        network: file.network.parse()?,
        decision: decision(file.decision_us)?,
        jitter: file.jitter.check()?,
        occupancy: file.occupancy.clone().check(file.cluster.devices)?,
        reports: Vec::new(),
        margins: false,
        planning: file.plan.parse(folder, footprints)?,
        setup: file.setup(models, autoscale.as_ref(), &graphs)?,
        bounded: file.max_live.is_some(),
        queues: file.model.iter().map(ModelTable::max_queue).collect::<ParseResult<_>>()?,
        walks,
        routes,
        graphs,
        gather,
        autoscale,
        window: file.window(&autoscale)?,
        policy: file.policy,
        admission: file.admission,
        check: true,
        requests,
    })
}

fn decision(micros: f64) -> ParseResult<Nanos> {
    match micros.is_finite() && micros >= 0.0 {
        true => Ok(Nanos::from_millis_f64(micros / 1e3)),
        false => Err(format!("decision_us = {micros}; it must be a number of microseconds of at least 0")),
    }
}

/// The offered load.
struct Offered {
    rate: Option<f64>,
    length: Length,
    loads: Vec<ModelLoad>,
}

/// Default window of a run whose load changes, without `window_s` or an autoscaler.
const WINDOW: Nanos = Nanos::from_millis(10_000);

impl ScenarioFile {
    fn offered(&self, requests: Option<&[crate::Arrival]>) -> ParseResult<Offered> {
        let of_ensembles = self.ensemble.iter().map(EnsembleTable::share).sum::<ParseResult<f64>>()?;
        let (mut loads, total) = model::loads(&self.model, of_ensembles)?;
        for ensemble in &self.ensemble {
            loads.push(ensemble.load(total)?);
        }
        if !self.load_changes() {
            let (rate, length) = (self.rate()?, self.length(requests)?);
            rate.map_or(Ok(()), |rate| check::checked_rate("rate", rate, length))?;
            return Ok(Offered { rate, length, loads });
        }
        if !self.ensemble.is_empty() {
            return Err("the load of ensembles does not change; remove [[phase]], rates and drift".to_owned());
        }
        if self.requests_file.is_some() {
            return Err("requests_file says what arrives; remove [[phase]], rates and drift".to_owned());
        }
        let given = GivenLoad {
            seed: self.seed,
            rate: self.rate,
            requests: self.requests,
            duration_s: self.duration_s,
            phases: &self.phase,
            models: self.model.iter().zip(&loads).map(|(model, load)| model.given(load)).collect(),
        };
        let Changing { mean_rps, until, loads } = given.parse()?;
        Ok(Offered { rate: Some(mean_rps), length: Length::Until(until), loads })
    }

    fn load_changes(&self) -> bool {
        !self.phase.is_empty() || self.model.iter().any(ModelTable::load_changes)
    }

    fn window(&self, autoscale: &Option<Autoscale>) -> ParseResult<Option<Nanos>> {
        match (self.window_s, autoscale) {
            (Some(_), Some(_)) => {
                Err("window_s has no effect beside [autoscale], whose every_s is the window".to_owned())
            }
            (Some(seconds), None) if (0.001..1e9).contains(&seconds) => Ok(Some(Nanos::from_secs_f64(seconds))),
            (Some(seconds), None) => Err(format!("window_s = {seconds}; it must be at least 0.001")),
            (None, Some(autoscale)) => Ok(Some(autoscale.every)),
            (None, None) => Ok(self.load_changes().then_some(WINDOW)),
        }
    }

    fn rate(&self) -> ParseResult<Option<f64>> {
        match (self.rate, &self.requests_file) {
            (None, Some(_)) => Ok(None),
            (Some(_), Some(_)) => Err("both rate and requests_file are given; remove one".to_owned()),
            (Some(rate), None) => Ok(Some(rate)),
            (None, None) => Err("rate is missing; give the offered requests per second, or a requests_file".to_owned()),
        }
    }

    fn length(&self, requests: Option<&[crate::Arrival]>) -> ParseResult<Length> {
        match (self.requests, self.duration_s, requests) {
            (None, None, Some(requests)) => Ok(Length::Requests(requests.len() as u64)),
            (_, _, Some(_)) => Err("requests_file says what arrives; remove requests and duration_s".to_owned()),
            (Some(0), ..) => Err("requests = 0; it must be at least 1".to_owned()),
            (Some(requests), None, None) => Ok(Length::Requests(requests)),
            (None, Some(seconds), None) if seconds > 0.0 && seconds <= 1e9 => {
                Ok(Length::Until(Time::ORIGIN + Nanos::from_secs_f64(seconds)))
            }
            (None, Some(seconds), None) => Err(format!("duration_s = {seconds}; it must be above 0 and at most 1e9")),
            (Some(_), Some(_), None) => Err("both requests and duration_s are given; remove one".to_owned()),
            (None, None, None) => Ok(Length::Requests(50_000)),
        }
    }

    fn setup(&self, models: Vec<Model>, autoscale: Option<&Autoscale>, graphs: &[Graph]) -> ParseResult<Setup> {
        let devices = self.cluster.devices;
        if !(1..=65_536).contains(&devices) {
            return Err(format!("cluster.devices = {devices}; it must be between 1 and 65536"));
        }
        let requests = self.max_live.unwrap_or(MAX_LIVE);
        if !(1..=1 << 24).contains(&requests) {
            return Err(format!("max_live = {requests}; it must be between 1 and {}", 1 << 24));
        }
        let batch = models.iter().map(|model| model.max_batch).max().unwrap_or(1);
        let most = autoscale.map_or(devices, |autoscale| autoscale.max);
        let largest = graphs.iter().map(Limits::room).max().unwrap_or(0);
        let nodes = requests.saturating_mul(largest).min(MAX_NODES.max(largest));
        // The policy may still be replaced, so its requirements on devices are filled in when a run
        // begins.
        let limits = Limits { requests, models: models.len(), devices: most, batch, nodes, ..Limits::ONE };
        Ok(Setup { models, devices, limits })
    }
}

/// Bound on the graph nodes of live requests; requests beyond it are refused.
const MAX_NODES: usize = 1 << 20;

impl NetworkTable {
    fn parse(&self) -> ParseResult<Network> {
        let micros = |key: &str, value: f64| match value.is_finite() && (0.0..1e9).contains(&value) {
            true => Ok(Nanos::from_millis_f64(value / 1e3)),
            false => Err(format!("network.{key} = {value}; it must be a number of microseconds of at least 0")),
        };
        let control = match (self.transport.as_deref(), self.control_us) {
            (None, fixed) => Delay::Fixed(micros("control_us", fixed)?),
            (Some("rdma"), 0.0) => Delay::Rdma,
            (Some("tcp"), 0.0) => Delay::Tcp,
            (Some("rdma" | "tcp"), _) => return Err("network.transport says the delay; remove control_us".to_owned()),
            (Some(other), _) => return Err(format!("network.transport = {other:?}; it must be \"rdma\" or \"tcp\"")),
        };
        let estimate = self.estimate_us.map(|estimate| micros("estimate_us", estimate)).transpose()?;
        Ok(Network {
            control,
            data_per_row: micros("data_us_per_request", self.data_us_per_request)?,
            estimate: estimate.unwrap_or(control.high_percentile()),
        })
    }
}

fn options(table: &std::collections::BTreeMap<String, toml::Value>) -> ParseResult<Options> {
    let value = |name: &String, value: &toml::Value| match value {
        toml::Value::Boolean(value) => Ok(OptionValue::Bool(*value)),
        toml::Value::Integer(value) => Ok(OptionValue::Int(*value)),
        toml::Value::Float(value) => Ok(OptionValue::Float(*value)),
        toml::Value::String(value) => Ok(OptionValue::Text(value.clone())),
        _ => Err(format!("policy_options.{name} must be a number, a word, true or false")),
    };
    table.iter().map(|(name, given)| Ok((name.clone(), value(name, given)?))).collect()
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> ParseResult<()> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("the name {name:?} is used twice"));
        }
    }
    Ok(())
}
