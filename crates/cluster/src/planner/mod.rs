//! Which models share which devices, and how many devices they need.
//!
//! A cluster is divided into sub-clusters; every device of one has all of its models loaded, so that any model may run on
//! any of them. More sub-clusters means fewer models that must fit a device's memory, but also that a burst of one model
//! finds fewer devices. [`plan`] is the assignment problem of Appendix A of "Symphony: Optimized DNN Model Serving using
//! Deferred Batch Scheduling": spread rate and memory evenly, keep each sub-cluster's memory and rate within bounds, and
//! change little of what is running. [`devices_needed`] sizes what comes out by the analytic bound of the same paper.
//!
//! [`plan`] is a pure function: no clock, no thread; equal problems and options give equal plans.

mod devices;
mod disruption;
mod error;
mod instance;
mod partition;
mod search;
pub mod synthetic;
#[cfg(test)]
mod tests;

pub use devices::{Demand, DevicesNeeded, MOST_DEVICES, ModelDevices, Need, devices_needed};
pub use error::PlanError;

use instance::{Instance, units};
use partition::Partition;
use search::Dice;

/// With so few models one search may end in the wrong valley, and many are cheap; with more, all ends are alike.
const FEW: usize = 40;
const ROUNDS: u64 = 10;

/// What is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The models, m of them.
    pub models: Vec<ModelLoad>,
    /// How many sub-clusters, l.
    pub sub_clusters: usize,
    /// The most requests per second that one sub-cluster's dispatcher takes, R_max.
    pub max_rate: Option<f64>,
    /// The memory of one device, S_max: all models of a sub-cluster and the largest runtime memory among them must fit.
    pub max_memory_mb: Option<f64>,
    /// What a deviation of the memory counts for beside one of the rate, w. Both are taken relative to their averages.
    pub memory_weight: f64,
    /// Where each model is now, in the order of `models`; none for a model that is new. None at all: nothing runs yet.
    pub current: Option<Vec<Option<usize>>>,
    /// The most that all loading and unloading may cost, C_max.
    pub max_disruption: Option<u64>,
}

/// A model to be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLoad {
    /// Its name, unique among the models.
    pub name: String,
    /// Requests per second, r.
    pub rate_rps: f64,
    /// Memory as long as it is loaded, s.
    pub memory_mb: f64,
    /// Memory beyond that while it runs, d.
    pub runtime_memory_mb: f64,
    /// What loading or unloading it costs, c.
    pub load_cost: LoadCost,
}

/// What loading or unloading a model costs, in units of the caller's choice; a move costs both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadCost {
    /// The same in every sub-cluster.
    Everywhere(u64),
    /// By sub-cluster; those with more devices may be dearer.
    BySubCluster(Vec<u64>),
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Seed of the random part of the search.
    pub seed: u64,
    /// How many random changes to look at: more time, better balance. The default takes about a tenth of a second.
    pub proposals: u64,
    /// Where something runs already: the imbalance of rate and of memory that is not worth a move.
    pub target_imbalance: f64,
}

/// A partition of the models, and what it is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The sub-clusters. Where nothing runs yet they come in the order of their first models.
    pub sub_clusters: Vec<SubCluster>,
    /// The sub-cluster of each model.
    pub places: Vec<usize>,
    /// (max − min) / average of the sub-clusters' rates.
    pub rate_imbalance: f64,
    /// (max − min) / average of the sub-clusters' memory.
    pub memory_imbalance: f64,
    /// The largest deviation from the average rate plus the weighted largest one from the average memory, both relative.
    pub objective: f64,
    /// What changes, by model; empty where nothing runs yet.
    pub moves: Vec<Move>,
    /// What all moves cost.
    pub disruption: u64,
}

/// One sub-cluster of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SubCluster {
    /// Its models, ascending.
    pub models: Vec<usize>,
    /// Their requests per second.
    pub rate_rps: f64,
    /// Their memory on each device while nothing runs.
    pub memory_mb: f64,
    /// The largest runtime memory among them.
    pub runtime_memory_mb: f64,
}

/// A model that is loaded somewhere, and unloaded where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The model.
    pub model: usize,
    /// Where it was; none if it is new.
    pub from: Option<usize>,
    /// Where it goes.
    pub to: usize,
    /// What that costs.
    pub cost: u64,
}

impl LoadCost {
    fn at(&self, place: usize) -> u64 {
        match self {
            LoadCost::Everywhere(cost) => *cost,
            LoadCost::BySubCluster(costs) => costs[place],
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 1, proposals: 2_000_000, target_imbalance: 0.01 }
    }
}

/// Divides models into sub-clusters.
///
/// Where nothing runs yet, as evenly as the search can. Where something does, with few moves: until the imbalance is
/// within [`Options::target_imbalance`], or cannot be lowered further within [`Problem::max_disruption`].
pub fn plan(problem: &Problem, options: &Options) -> Result<Plan, PlanError> {
    let target = options.target_imbalance;
    if !(target.is_finite() && target >= 0.0) {
        return Err(PlanError::BadLimit { key: "target_imbalance", value: target });
    }
    let instance = Instance::new(problem)?;
    let mut dice = Dice::new(options.seed);
    let partition = match &problem.current {
        Some(current) => disruption::reconfigure(&instance, current, options, &mut dice),
        None => in_order(&fresh(&instance, options, &mut dice)),
    };
    match broken(&partition) {
        Some(broken) => Err(PlanError::NotFound { sub_clusters: instance.sub_clusters, broken }),
        None => Ok(describe(&partition)),
    }
}

/// The best partition found where nothing runs yet.
fn fresh<'a>(instance: &'a Instance<'a>, options: &Options, dice: &mut Dice) -> Partition<'a> {
    search::exhaust(instance, |partition| partition.score())
        .unwrap_or_else(|| approximate(instance, options.proposals, dice))
}

/// The best partition that random changes lead to.
fn approximate<'a>(instance: &'a Instance<'a>, proposals: u64, dice: &mut Dice) -> Partition<'a> {
    let rounds = if instance.models() <= FEW { ROUNDS } else { 1 };
    let proposals = proposals / rounds;
    let mut best = search::greedy(instance);
    for _ in 0..rounds {
        let mut partition = search::explore(search::greedy(instance), proposals, dice, |_| false);
        search::descend(&mut partition, dice, |_| false);
        let partition = search::refine(partition, proposals, dice, |_| false);
        if partition.score() < best.score() {
            best = partition;
        }
    }
    best
}

/// The same partition with its sub-clusters in the order of their first models, so that equal ones look equal. Load costs
/// by sub-cluster do not matter here: where nothing runs, nothing is disrupted.
fn in_order<'a>(partition: &Partition<'a>) -> Partition<'a> {
    let mut names = vec![None; partition.sub_clusters()];
    let mut next = 0;
    let mut rename = |&place: &usize| {
        *names[place].get_or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    let places: Vec<usize> = partition.places().iter().map(&mut rename).collect();
    Partition::at(partition.instance, &places)
}

/// The bounds that a partition breaks, in words.
fn broken(partition: &Partition<'_>) -> Option<String> {
    let problem = partition.instance.problem;
    let worst = |sum: &dyn Fn(usize) -> i64| units((0..partition.sub_clusters()).map(sum).max().unwrap_or(0));
    let memory = worst(&|place| partition.memory(place) + partition.runtime(place));
    let rate = worst(&|place| partition.rate(place));
    let over = |key: &str, used: f64, most: Option<f64>| {
        most.filter(|&most| used > most + 1e-6).map(|most| format!("{key} = {most} (the closest one needs {used})"))
    };
    let found = [
        over("memory_mb_per_device", memory, problem.max_memory_mb),
        over("max_rate", rate, problem.max_rate),
        (partition.disruption() > partition.instance.max_disruption).then(|| "max_disruption".to_owned()),
    ];
    found.into_iter().flatten().reduce(|all, next| format!("{all} and {next}"))
}

fn describe(partition: &Partition<'_>) -> Plan {
    let (rate_imbalance, memory_imbalance) = partition.imbalance();
    let moves = moves(partition);
    Plan {
        sub_clusters: (0..partition.sub_clusters()).map(|place| sub_cluster(partition, place)).collect(),
        places: partition.places().to_vec(),
        rate_imbalance,
        memory_imbalance,
        objective: partition.score().objective,
        disruption: moves.iter().map(|change| change.cost).fold(0, u64::saturating_add),
        moves,
    }
}

fn sub_cluster(partition: &Partition<'_>, place: usize) -> SubCluster {
    let mut models = partition.members(place).to_vec();
    models.sort_unstable();
    SubCluster {
        models,
        rate_rps: units(partition.rate(place)),
        memory_mb: units(partition.memory(place)),
        runtime_memory_mb: units(partition.runtime(place)),
    }
}

fn moves(partition: &Partition<'_>) -> Vec<Move> {
    let instance = partition.instance;
    if instance.problem.current.is_none() {
        return Vec::new();
    }
    let change = |(model, &to): (usize, &usize)| {
        let from = instance.current(model);
        (from != Some(to)).then(|| Move { model, from, to, cost: instance.disruption(model, to) })
    };
    partition.places().iter().enumerate().filter_map(change).collect()
}
