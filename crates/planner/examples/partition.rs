//! Measures the planner on the workload of Appendix A.2: imbalance and time, then a drift of the
//! rates and the moves that restore the balance. The tables of docs/guide/capacity.md come from
//! here.
//!
//! `cargo run --release -p ripieno-planner --example partition -- MODELS SUB_CLUSTERS SEEDS`

use ripieno_planner::synthetic::{drift, problem, random_plan, with_current};
use ripieno_planner::{ClusterPlan, PlanError, PlanOptions, PlanningProblem, plan};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: &str| arguments.next().unwrap_or(default.to_owned()).parse::<usize>();
    let (models, sub_clusters, seeds) = (number("400")?, number("4")?, number("5")?);
    println!("m = {models}, l = {sub_clusters}: imbalance of rate and of memory, moves, time");
    for seed in 1..=seeds as u64 {
        run(models, sub_clusters, seed)?;
    }
    Ok(())
}

fn run(models: usize, sub_clusters: usize, seed: u64) -> Result<(), PlanError> {
    let fresh = problem(models, sub_clusters, seed);
    let options = PlanOptions { seed, ..PlanOptions::default() };
    let first = timed(seed, "planned", || plan(&fresh, &options))?;
    match random_plan(&fresh, 10_000, seed)? {
        Some(random) => print(seed, "best of 10,000 random", &random, None),
        None => println!("seed {seed}  none of 10,000 random partitions keeps the bounds"),
    }
    let mut drifted = with_current(&fresh, &first);
    drift(&mut drifted, 0.4, seed);
    println!("seed {seed}  {:<22} {:8.4} %", "rates drift", 100.0 * rate_imbalance(&drifted, &first));
    // A move costs one to unload and one to load.
    drifted.max_disruption = Some(models as u64 / 20 * 2);
    timed(seed, "moved, at most 5 %", || plan(&drifted, &options))?;
    Ok(())
}

/// Returns the imbalance of a problem's rates in the sub-clusters of an earlier plan.
fn rate_imbalance(problem: &PlanningProblem, plan: &ClusterPlan) -> f64 {
    let rate = |models: &Vec<usize>| models.iter().map(|&model| problem.models[model].rate_rps).sum::<f64>();
    let rates: Vec<f64> = plan.sub_clusters.iter().map(|sub_cluster| rate(&sub_cluster.models)).collect();
    let (least, most) = rates.iter().fold((f64::MAX, 0f64), |(low, high), &rate| (low.min(rate), high.max(rate)));
    (most - least) / (rates.iter().sum::<f64>() / rates.len() as f64)
}

fn timed(
    seed: u64,
    what: &str,
    plan: impl FnOnce() -> Result<ClusterPlan, PlanError>,
) -> Result<ClusterPlan, PlanError> {
    let started = Instant::now();
    let plan = plan()?;
    print(seed, what, &plan, Some(started.elapsed().as_secs_f64()));
    Ok(plan)
}

fn print(seed: u64, what: &str, plan: &ClusterPlan, seconds: Option<f64>) {
    let (rate, memory) = (100.0 * plan.rate_imbalance, 100.0 * plan.memory_imbalance);
    let seconds = seconds.map_or(String::new(), |seconds| format!("{seconds:.3} s"));
    println!("seed {seed}  {what:<22} {rate:8.4} % {memory:8.4} %  {:3} moves  {seconds}", plan.moves.len());
}
