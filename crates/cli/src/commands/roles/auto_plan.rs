//! A plan that the scheduler makes by itself, from the demand that it measures.
//!
//! The first plan divides the models by their memory. Every few minutes a later one balances the
//! measured rates, by few moves from the current one (`ripieno-planner`). A scheduler that is not
//! the primary, or that has just started, takes the plan from what the backends hold.

use crate::args::plan_store::PLAN_POLL;
use anyhow::Context;
use clap::Args;
use ripieno_base::Nanos;
use ripieno_cluster::{BackendHolding, ClusterScheduler, MAX_SUB_CLUSTERS, PlacementPlan, PlannedSubCluster};
use ripieno_model::Profile;
use ripieno_planner::{
    DeviceDemand, LoadCost, PlanError, PlanOptions, PlannedModel, PlanningProblem, devices_needed, plan,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Requests per second that one event loop decides about, with a margin.
const MAX_RATE: f64 = 100_000.0;
/// Imbalance of rate or memory that is not worth a move.
const TARGET_IMBALANCE: f64 = 0.2;
/// Devices beyond the busy ones that a sub-cluster is planned with, as a factor.
const HEADROOM: f64 = 1.2;
/// Factor of the busy devices up to which a sub-cluster keeps the devices that it was planned with.
const KEEP: f64 = 1.8;

/// Options of a plan that the scheduler makes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "A plan of its own")]
pub(crate) struct AutoPlanArgs {
    /// Number of sub-clusters, each with an event loop of its own; auto: as many as memory and the
    /// measured rate need. Implies --plan auto.
    #[arg(long, value_name = "N|auto", value_parser = sub_clusters)]
    sub_clusters: Option<SubClusterCount>,

    /// Memory of each device for --plan auto; a model counts as the size of its files [default: not
    /// bounded].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    memory_mb_per_device: Option<u64>,

    /// Time between plans of --plan auto, in seconds.
    #[arg(long, value_name = "S", default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    replan_s: u32,

    /// Largest number of models that a plan of --plan auto loads or unloads; a move is two.
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_disruption: u64,
}

/// A number of sub-clusters; `None` is chosen by memory and rate.
type SubClusterCount = Option<usize>;

fn sub_clusters(text: &str) -> Result<SubClusterCount, String> {
    match text.parse::<usize>() {
        _ if text == "auto" => Ok(None),
        Ok(number) if (1..=MAX_SUB_CLUSTERS).contains(&number) => Ok(Some(number)),
        _ => Err(format!("{text:?} is no number of sub-clusters; write 1 to {MAX_SUB_CLUSTERS}, or auto")),
    }
}

/// The demand for a model.
#[derive(Clone, Debug, Default)]
struct MeasuredModel {
    memory_mb: u64,
    rate_rps: f64,
    /// Profile and latency target, once the model has been loaded.
    served: Option<(Profile, Nanos)>,
}

/// Request counters of the models, by the numbers that frontends name.
#[derive(Default)]
struct DemandMeter {
    since: Option<Instant>,
    counted: BTreeMap<u16, u64>,
}

impl AutoPlanArgs {
    /// Returns true if the options ask for a plan of the scheduler's own.
    pub(crate) fn is_given(&self) -> bool {
        self.sub_clusters.is_some()
    }

    /// Plans on a thread of its own, as long as the scheduler is there.
    pub(crate) fn start(&self, scheduler: &Arc<ClusterScheduler>) -> anyhow::Result<()> {
        let (args, scheduler) = (self.clone(), Arc::downgrade(scheduler));
        let follow = move || {
            let (mut meter, mut told) = (DemandMeter::default(), String::new());
            loop {
                thread::sleep(PLAN_POLL);
                let Some(scheduler) = scheduler.upgrade() else { return };
                let cause = args.step(&scheduler, &mut meter).err().unwrap_or_default();
                if cause != told && !cause.is_empty() {
                    tracing::error!("the plan stays as it was: {cause}");
                }
                told = cause;
            }
        };
        thread::Builder::new().name("scheduler-plan".to_owned()).spawn(follow).context("cannot start a thread")?;
        Ok(())
    }

    /// Makes the first plan, or the next one if it is time for it.
    fn step(&self, scheduler: &ClusterScheduler, meter: &mut DemandMeter) -> Result<(), String> {
        let holdings = scheduler.holdings();
        if holdings.is_empty() {
            return Ok(());
        }
        let is_primary = scheduler.is_primary();
        let current = match scheduler.plan() {
            Some(plan) if is_primary => Some(plan),
            before => held(&holdings).or(before),
        };
        let due = meter.since.is_some_and(|since| since.elapsed() >= Duration::from_secs(self.replan_s.into()));
        let mut models = known(scheduler, &holdings);
        let names_all = current.as_ref().is_some_and(|plan| models.keys().all(|name| has(plan, name)));
        if meter.since.is_none() || due {
            meter.read(scheduler, &mut models);
        }
        let next = match current {
            Some(current) if names_all && !(due && is_primary) => current,
            current => self.plan(&models, current.as_ref())?,
        };
        scheduler.set_plan(next)
    }

    /// Returns a plan for these models, by few moves from the current one.
    fn plan(
        &self,
        models: &BTreeMap<String, MeasuredModel>,
        current: Option<&PlacementPlan>,
    ) -> Result<PlacementPlan, String> {
        let rate: f64 = models.values().map(|model| model.rate_rps).sum();
        let given = self.sub_clusters.flatten();
        let least = current.map_or(1, |plan| plan.sub_clusters.len()).max((rate / MAX_RATE).ceil() as usize);
        let mut number = given.unwrap_or(least).clamp(1, MAX_SUB_CLUSTERS.min(models.len()).max(1));
        let mut disruption = current.map(|_| self.max_disruption);
        loop {
            let problem = self.problem(models, current, number, disruption);
            let options = PlanOptions { target_imbalance: TARGET_IMBALANCE, ..PlanOptions::default() };
            match plan(&problem, &options) {
                Ok(found) => return Ok(self.placement(models, &found.sub_clusters, current)),
                Err(PlanError::TooSmall { at_least, .. }) if given.is_none() && at_least <= MAX_SUB_CLUSTERS => {
                    number = at_least;
                }
                // New models are placed, whatever that costs.
                Err(PlanError::NotFound { .. }) if disruption.is_some() => disruption = None,
                Err(PlanError::NotFound { .. }) if given.is_none() && number < MAX_SUB_CLUSTERS => number += 1,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn problem(
        &self,
        models: &BTreeMap<String, MeasuredModel>,
        current: Option<&PlacementPlan>,
        sub_clusters: usize,
        max_disruption: Option<u64>,
    ) -> PlanningProblem {
        // Before anything is measured all models count alike.
        let is_silent = models.values().all(|model| model.rate_rps == 0.0);
        let planned = |(name, model): (&String, &MeasuredModel)| PlannedModel {
            name: name.clone(),
            rate_rps: if is_silent { 1.0 } else { model.rate_rps },
            memory_mb: model.memory_mb as f64,
            runtime_memory_mb: 0.0,
            load_cost: LoadCost::Everywhere(1),
        };
        let place = |plan: &PlacementPlan, name: &String| {
            plan.sub_clusters.iter().position(|part| part.models.contains(name)).filter(|&place| place < sub_clusters)
        };
        PlanningProblem {
            models: models.iter().map(planned).collect(),
            sub_clusters,
            max_rate: None,
            max_memory_mb: self.memory_mb_per_device.map(|memory| memory as f64),
            memory_weight: if self.memory_mb_per_device.is_some() { 1.0 } else { 0.0 },
            current: current.map(|plan| models.keys().map(|name| place(plan, name)).collect()),
            max_disruption,
        }
    }

    fn placement(
        &self,
        models: &BTreeMap<String, MeasuredModel>,
        parts: &[ripieno_planner::SubCluster],
        current: Option<&PlacementPlan>,
    ) -> PlacementPlan {
        let names: Vec<&String> = models.keys().collect();
        let part = |(place, part): (usize, &ripieno_planner::SubCluster)| {
            let demands = part.models.iter().filter_map(|&model| models[names[model]].demand());
            let needed = devices_needed(&demands.collect::<Vec<_>>());
            let busy: f64 = needed.models.iter().map(|model| model.busy).sum();
            let before = current.and_then(|plan| plan.sub_clusters.get(place)).map_or(0, |part| part.devices);
            PlannedSubCluster {
                models: part.models.iter().map(|&model| names[model].clone()).collect(),
                devices: devices(busy, before),
            }
        };
        let memory = |(name, model): (&String, &MeasuredModel)| (name.clone(), model.memory_mb);
        PlacementPlan {
            sub_clusters: parts.iter().enumerate().map(part).collect(),
            device_memory_mb: self.memory_mb_per_device,
            memory_mb: models.iter().map(memory).collect(),
        }
    }
}

/// Returns the devices to plan with for a mean number of busy ones. The earlier number stays if it
/// is about right, so that chance moves no backend.
fn devices(busy: f64, before: u32) -> u32 {
    let wanted = (busy * HEADROOM).ceil().max(1.0) as u32;
    let most = (busy * KEEP).ceil().max(1.0) as u32;
    if (wanted..=most).contains(&before) { before } else { wanted }
}

impl MeasuredModel {
    fn demand(&self) -> Option<DeviceDemand<'_>> {
        let (profile, slo) = self.served.as_ref()?;
        Some(DeviceDemand { profile, slo: *slo, rate_rps: self.rate_rps })
    }
}

impl DemandMeter {
    /// Sets the rates of the models since the last call.
    fn read(&mut self, scheduler: &ClusterScheduler, models: &mut BTreeMap<String, MeasuredModel>) {
        let before = std::mem::take(&mut self.counted);
        let span = self.since.replace(Instant::now()).map(|since| since.elapsed().as_secs_f64());
        let Some(served) = scheduler.served() else { return };
        for (number, description) in served.models() {
            let Some((engine, id)) = served.engine_of(*number) else { continue };
            let count = engine.model_metrics(id).map_or(0, |model| model.requests.iter().map(|(_, count)| count).sum());
            self.counted.insert(number.0, count);
            let Some(model) = models.get_mut(&description.name) else { continue };
            let since = count.saturating_sub(before.get(&number.0).copied().unwrap_or(0));
            model.rate_rps += span.map_or(0.0, |span| since as f64 / span);
            model.served = Some((description.model.profile(), description.model.slo));
        }
    }
}

/// Returns the models that backends hold or can load.
fn known(scheduler: &ClusterScheduler, holdings: &[BackendHolding]) -> BTreeMap<String, MeasuredModel> {
    let mut models: BTreeMap<String, MeasuredModel> = BTreeMap::new();
    for holding in holdings {
        for (name, bytes) in &holding.available {
            let model = models.entry(name.clone()).or_default();
            model.memory_mb = model.memory_mb.max(bytes.div_ceil(1_000_000));
        }
        for name in &holding.loaded {
            models.entry(name.clone()).or_default();
        }
    }
    let served = scheduler.served();
    for (_, description) in served.iter().flat_map(|served| served.models()) {
        models.entry(description.name.clone()).or_default();
    }
    models
}

/// Returns the plan that the backends hold; `None` if none of them says where it belongs. A model
/// that is on its way from one sub-cluster to another counts to the first.
fn held(holdings: &[BackendHolding]) -> Option<PlacementPlan> {
    let stated = holdings.iter().filter_map(|holding| holding.stated).max()?;
    let mut sub_clusters = vec![PlannedSubCluster::default(); (stated + 1).min(MAX_SUB_CLUSTERS)];
    for holding in holdings {
        let Some(place) = holding.stated.filter(|&place| place < sub_clusters.len()) else { continue };
        sub_clusters[place].devices += 1;
        for name in &holding.loaded {
            if !sub_clusters.iter().any(|part| part.models.contains(name)) {
                sub_clusters[place].models.insert(name.clone());
            }
        }
    }
    let plan = PlacementPlan { sub_clusters, ..PlacementPlan::default() };
    plan.check().is_ok().then_some(plan)
}

fn has(plan: &PlacementPlan, name: &str) -> bool {
    plan.sub_clusters.iter().any(|part| part.models.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(sub_clusters: Option<SubClusterCount>, memory_mb_per_device: Option<u64>) -> AutoPlanArgs {
        AutoPlanArgs { sub_clusters, memory_mb_per_device, replan_s: 180, max_disruption: 4 }
    }

    fn models(all: &[(&str, u64, f64)]) -> BTreeMap<String, MeasuredModel> {
        let profile = Profile::linear(1.0, 5.0, 64).unwrap();
        let demand = |&(name, memory_mb, rate_rps): &(&str, u64, f64)| {
            let served = Some((profile.clone(), Nanos::from_millis(50)));
            (name.to_owned(), MeasuredModel { memory_mb, rate_rps, served })
        };
        all.iter().map(demand).collect()
    }

    /// Returns the models of each sub-cluster, and its devices.
    fn parts(plan: &PlacementPlan) -> Vec<(String, u32)> {
        plan.sub_clusters.iter().map(|part| (part.models.iter().cloned().collect(), part.devices)).collect()
    }

    #[test]
    fn the_first_plan_divides_by_memory_and_a_later_one_by_demand_with_few_moves() {
        let args = args(None, Some(100));
        let silent = [("a", 50, 0.0), ("b", 50, 0.0), ("c", 40, 0.0), ("d", 40, 0.0)];
        let first = args.plan(&models(&silent), None).unwrap();
        assert_eq!(first.sub_clusters.len(), 2, "{first:?}");
        assert!(first.check().is_ok() && first.device_memory_mb == Some(100));
        // All of the load is on two models of one sub-cluster: one of them changes its place.
        let mine: Vec<&String> = first.sub_clusters[0].models.iter().collect();
        let loaded: Vec<(&str, u64, f64)> = silent
            .iter()
            .map(|&(name, memory, _)| (name, memory, if mine.iter().any(|own| *own == name) { 3_000.0 } else { 0.0 }))
            .collect();
        let next = args.plan(&models(&loaded), Some(&first)).unwrap();
        assert!(
            next.sub_clusters.iter().all(|part| mine.iter().filter(|name| part.models.contains(**name)).count() == 1)
        );
        assert!(next.sub_clusters.iter().all(|part| part.devices >= 3), "{next:?}");
        let again = args.plan(&models(&loaded), Some(&next)).unwrap();
        assert_eq!(parts(&again), parts(&next), "the same demand moves nothing");
    }

    #[test]
    fn a_given_number_of_sub_clusters_is_kept_and_new_models_find_a_place() {
        let args = args(Some(Some(2)), None);
        let first = args.plan(&models(&[("a", 0, 5.0), ("b", 0, 5.0), ("c", 0, 5.0)]), None).unwrap();
        assert_eq!(first.sub_clusters.len(), 2);
        let more = [("a", 0, 5.0), ("b", 0, 5.0), ("c", 0, 5.0), ("d", 0, 0.0), ("e", 0, 0.0), ("f", 0, 9.0)];
        let next = args.plan(&models(&more), Some(&first)).unwrap();
        assert!(more.iter().all(|(name, ..)| has(&next, name)), "{next:?}");
        assert!(["a", "b", "c"].iter().filter(|name| place(&first, name) != place(&next, name)).count() <= 2);
        let alone = args.plan(&models(&[("a", 0, 1.0)]), None).unwrap();
        assert_eq!(parts(&alone), [("a".to_owned(), 1)], "there are no more sub-clusters than models");
    }

    fn place(plan: &PlacementPlan, name: &str) -> Option<usize> {
        plan.sub_clusters.iter().position(|part| part.models.contains(name))
    }

    #[test]
    fn chance_does_not_change_the_number_of_devices() {
        assert_eq!((devices(0.0, 0), devices(0.9, 0), devices(2.0, 0)), (1, 2, 3));
        assert_eq!((devices(1.7, 3), devices(2.2, 3), devices(2.6, 3)), (3, 3, 4));
        assert_eq!(devices(0.5, 3), 1);
    }

    #[test]
    fn what_backends_hold_is_a_plan() {
        let holding = |stated, loaded: &[&str]| BackendHolding {
            stated,
            loaded: loaded.iter().map(|&name| name.to_owned()).collect(),
            available: BTreeMap::new(),
        };
        assert_eq!(held(&[holding(None, &["a", "b"])]), None);
        let plan =
            held(&[holding(Some(1), &["c"]), holding(Some(0), &["a", "b"]), holding(Some(1), &["b", "c"])]).unwrap();
        assert_eq!(parts(&plan), [("ab".to_owned(), 1), ("c".to_owned(), 2)]);
    }

    #[test]
    fn a_number_of_sub_clusters_or_auto_is_taken() {
        assert_eq!((sub_clusters("auto"), sub_clusters("64")), (Ok(None), Ok(Some(64))));
        for bad in ["0", "65", "many", ""] {
            assert!(sub_clusters(bad).unwrap_err().contains("1 to 64, or auto"), "{bad}");
        }
    }
}
