//! `ripieno plan`: the number of devices that a load needs, and the partition of models over them.

mod capacity;
mod current;
mod print;
#[cfg(test)]
mod tests;

use crate::args::overrides::Overrides;
use crate::args::plan_store::{PlanPlace, PlanStore, plan_place};
use crate::args::policy::POLICIES;
use crate::commands::roles::EtcdArgs;
use anyhow::{Context, bail};
use capacity::DeviceSearch;
use clap::Args;
use current::Current;
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_cluster::{PlacementPlan, PlannedSubCluster};
use ripieno_planner::{
    ClusterPlan, DevicesNeeded, LoadCost, PlanError, PlanOptions, PlannedModel, PlanningProblem, plan,
};
use ripieno_report::Format;
use ripieno_sim::Scenario;
use std::path::PathBuf;

/// Plan capacity: the number of devices for a scenario's load, and the models that should share
/// them.
///
/// The number of devices is computed by the analytic bound and an estimate, which are instant, and
/// by simulation. The simulations of the scheduler have more and fewer devices until every model's
/// bad rate (dropped or late) just stays within 1 %. The models are divided into sub-clusters with
/// balanced rate and memory; against a current partition, with few moves. See
/// docs/guide/capacity.md.
#[derive(Args, Debug)]
#[command(after_help = POLICIES)]
pub(crate) struct PlanArgs {
    /// The scenario file; see scenarios/plan/ for examples.
    scenario: PathBuf,

    #[command(flatten)]
    overrides: Overrides,

    #[command(flatten)]
    bounds: PartitionArgs,

    /// Write the plan for `ripieno scheduler --plan`: to a FILE, or to etcd:URL,...
    #[arg(long, value_name = "FILE|etcd:URL,...", value_parser = plan_place)]
    write: Option<PlanPlace>,

    #[command(flatten)]
    etcd: EtcdArgs,

    /// Do not simulate: only bound, estimate and partition.
    #[arg(long)]
    bound_only: bool,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// Settings of the partition, without editing the scenario.
#[derive(Args, Debug)]
struct PartitionArgs {
    /// Number of sub-clusters [default: the current one, or the smallest that memory and rate
    /// allow].
    #[arg(long, value_name = "N")]
    sub_clusters: Option<usize>,

    /// Memory of each device, which must hold all models of its sub-cluster.
    #[arg(long, value_name = "MB")]
    memory_mb_per_device: Option<f64>,

    /// Largest request rate of one sub-cluster, in requests per second.
    #[arg(long, value_name = "R")]
    max_rate: Option<f64>,

    /// The current partition: the output of an earlier `ripieno plan --format json`.
    #[arg(long, value_name = "FILE")]
    current: Option<PathBuf>,

    /// Largest cost of all moves from the current partition; a move costs a model's load_cost
    /// twice, by default 2.
    #[arg(long, value_name = "COST")]
    max_disruption: Option<u64>,

    /// The imbalance, (max − min) / average, below which no model moves; 0.01 by default.
    #[arg(long, value_name = "FRACTION")]
    target_imbalance: Option<f64>,
}

/// The complete result.
struct PlanOutcome {
    scenario: Scenario,
    rates: Vec<f64>,
    impossible: Vec<(usize, ripieno_base::Nanos)>,
    all: Capacity,
    plan: ClusterPlan,
    /// Capacity of each sub-cluster.
    parts: Vec<Capacity>,
    /// None if no current partition was given.
    current: Option<Current>,
}

/// Devices for a set of models.
struct Capacity {
    needed: DevicesNeeded,
    simulated: Option<DeviceSearch>,
}

/// Number of sub-clusters, beyond the minimum by memory and rate, that are tried if none is given.
const MORE_SUB_CLUSTERS: usize = 16;

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let outcome = outcome(args)?;
    print::print(&outcome, args.format)?;
    if let Some(place) = &args.write {
        let store = match place {
            PlanPlace::File(path) => PlanStore::File(path.clone()),
            PlanPlace::Etcd(nodes) if nodes.is_empty() => bail!("--write etcd:URL,... needs the nodes of the etcd"),
            PlanPlace::Etcd(nodes) => args.etcd.plan_store(nodes)?,
            PlanPlace::Auto => bail!("--write FILE or etcd:URL,...: the scheduler makes a plan auto by itself"),
        };
        store.write(&outcome.placement()?)?;
        tracing::info!("the plan is written: {}", store.name());
    }
    match print::impossible(&outcome) {
        Some(problem) => bail!("{}: {problem}", args.scenario.display()),
        None => Ok(()),
    }
}

fn outcome(args: &PlanArgs) -> anyhow::Result<PlanOutcome> {
    let mut scenario = args.overrides.read(&args.scenario)?;
    args.bounds.apply(&mut scenario);
    let file = args.scenario.display();
    scenario.check_policy(&file.to_string())?;
    let current = scenario.planning.current.as_deref().map(Current::read).transpose()?;
    let plan = partition(&scenario, current.as_ref()).with_context(|| format!("{file}: no plan"))?;
    measure(scenario, plan, current, !args.bound_only)
}

impl PlanOutcome {
    /// Returns the plan as a scheduler carries it out.
    fn placement(&self) -> anyhow::Result<PlacementPlan> {
        let name = |model: usize| self.scenario.setup.models[model].name.clone();
        let part = |(place, part): (usize, &ripieno_planner::SubCluster)| PlannedSubCluster {
            models: part.models.iter().map(|&model| name(model)).collect(),
            devices: self.parts.get(place).unwrap_or(&self.all).devices(),
        };
        let footprint = |(model, footprint): (usize, &ripieno_sim::Footprint)| {
            Some((name(model), footprint.memory_mb?.ceil() as u64))
        };
        let memory_mb = self.scenario.planning.models.iter().enumerate().filter_map(footprint).collect();
        let sub_clusters = self.plan.sub_clusters.iter().enumerate().map(part).collect();
        let mut plan = PlacementPlan { sub_clusters, device_memory_mb: None, memory_mb };
        // The memory of a device, less the most that a model needs while it runs; rounded in favour
        // of the plan.
        let runtime = self.scenario.planning.models.iter().map(|model| model.runtime_memory_mb).fold(0.0, f64::max);
        let largest = plan.sub_clusters.iter().map(|part| plan.memory(&part.models)).max().unwrap_or(0);
        let bound = |memory: f64| ((memory - runtime).max(0.0) as u64).max(largest);
        plan.device_memory_mb = self.scenario.planning.memory_mb_per_device.map(bound);
        plan.check().map_err(|cause| anyhow::anyhow!("the plan cannot be written: {cause}"))?;
        Ok(plan)
    }
}

impl Capacity {
    /// Returns the number of devices to plan with: the simulated one, else the estimate.
    fn devices(&self) -> u32 {
        let simulated = self.simulated.as_ref().and_then(|found| found.good.as_ref());
        let devices = simulated.map_or(self.needed.estimate, |(devices, _)| *devices);
        u32::try_from(devices.max(1)).unwrap_or(u32::MAX)
    }
}

impl PartitionArgs {
    fn apply(&self, scenario: &mut Scenario) {
        let planning = &mut scenario.planning;
        planning.sub_clusters = self.sub_clusters.or(planning.sub_clusters);
        planning.memory_mb_per_device = self.memory_mb_per_device.or(planning.memory_mb_per_device);
        planning.max_rate = self.max_rate.or(planning.max_rate);
        planning.max_disruption = self.max_disruption.or(planning.max_disruption);
        planning.target_imbalance = self.target_imbalance.or(planning.target_imbalance);
        planning.current = self.current.clone().or(planning.current.take());
    }
}

/// Returns the best partition. The number of sub-clusters is the given one, else the current
/// partition's, else the smallest possible.
fn partition(scenario: &Scenario, current: Option<&Current>) -> anyhow::Result<ClusterPlan> {
    let defaults = PlanOptions::default();
    let target_imbalance = scenario.planning.target_imbalance.unwrap_or(defaults.target_imbalance);
    let options = PlanOptions { seed: scenario.seed, target_imbalance, ..defaults };
    let given = scenario.planning.sub_clusters.or(current.map(|current| current.sub_clusters));
    let (mut sub_clusters, mut more) = (given.unwrap_or(1), MORE_SUB_CLUSTERS);
    loop {
        match plan(&problem(scenario, current, sub_clusters)?, &options) {
            Err(PlanError::TooSmall { at_least, .. }) if given.is_none() => sub_clusters = at_least,
            Err(PlanError::NotFound { .. }) if given.is_none() && more > 0 => {
                more -= 1;
                sub_clusters += 1;
            }
            planned => return Ok(planned?),
        }
    }
}

fn problem(scenario: &Scenario, current: Option<&Current>, sub_clusters: usize) -> anyhow::Result<PlanningProblem> {
    let planning = &scenario.planning;
    let models = scenario.setup.models.iter().zip(capacity::rates(scenario)).zip(&planning.models);
    let load = |((model, rate_rps), footprint): ((&ripieno_model::Model, f64), &ripieno_sim::Footprint)| {
        if planning.memory_mb_per_device.is_some() && footprint.memory_mb.is_none() {
            bail!("model {:?}: memory_mb is missing; give it, since the memory of a device is bounded", model.name);
        }
        Ok(PlannedModel {
            name: model.name.clone(),
            rate_rps,
            memory_mb: footprint.memory_mb.unwrap_or(0.0),
            runtime_memory_mb: footprint.runtime_memory_mb,
            load_cost: LoadCost::Everywhere(footprint.load_cost),
        })
    };
    // A model of a sub-cluster that is removed has to be loaded elsewhere, like a new one.
    let place = |current: &Current, name: &str| current.places.get(name).copied().filter(|&place| place < sub_clusters);
    let places = |current| scenario.setup.models.iter().map(|model| place(current, &model.name)).collect();
    Ok(PlanningProblem {
        models: models.map(load).collect::<anyhow::Result<_>>()?,
        sub_clusters,
        max_rate: planning.max_rate,
        max_memory_mb: planning.memory_mb_per_device,
        memory_weight: planning.memory_weight.unwrap_or(1.0),
        current: current.map(places),
        max_disruption: planning.max_disruption,
    })
}

/// Computes the devices of all models together and of each sub-cluster.
fn measure(
    scenario: Scenario,
    plan: ClusterPlan,
    current: Option<Current>,
    simulate: bool,
) -> anyhow::Result<PlanOutcome> {
    let impossible = scenario.impossible_models();
    let possible = |models: &[usize]| -> Vec<usize> {
        models.iter().copied().filter(|&model| impossible.iter().all(|&(late, _)| late != model)).collect()
    };
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    let everything: Vec<usize> = (0..scenario.setup.models.len()).collect();
    let all = capacity(&scenario, &everything, &possible(&everything), simulate, &bar, "all models")?;
    let part = |(place, sub_cluster): (usize, &ripieno_planner::SubCluster)| {
        let models = &sub_cluster.models;
        capacity(&scenario, models, &possible(models), simulate, &bar, &format!("sub-cluster {place}"))
    };
    let parts = match plan.sub_clusters.len() {
        // The same models as all, so the same result.
        1 => Vec::new(),
        _ => plan.sub_clusters.iter().enumerate().map(part).collect::<anyhow::Result<_>>()?,
    };
    bar.finish_and_clear();
    Ok(PlanOutcome { rates: capacity::rates(&scenario), impossible, all, plan, parts, current, scenario })
}

fn capacity(
    scenario: &Scenario,
    models: &[usize],
    possible: &[usize],
    simulate: bool,
    bar: &ProgressBar,
    what: &str,
) -> anyhow::Result<Capacity> {
    let rates = capacity::rates(scenario);
    let needed = capacity::needed(&capacity::subset(scenario, models));
    let loaded = possible.iter().any(|&model| rates[model] > 0.0);
    let simulated = match needed.bound.devices().unwrap_or(0).max(needed.estimate) {
        _ if !simulate || !loaded => None,
        guess => {
            let part = capacity::subset(scenario, possible);
            let progress = |devices: usize, summary: &ripieno_report::Summary| {
                let bad = 100.0 * summary.worst_bad_rate;
                bar.set_message(format!("{what}: {devices} devices: worst bad rate {bad:.2} %"));
                bar.tick();
            };
            Some(capacity::simulated(&part, guess, progress)?)
        }
    };
    Ok(Capacity { needed, simulated })
}
