//! Figure 16: the balance of the partition into sub-clusters.

use super::SOURCE;
use super::workload::{axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_planner::synthetic::{problem, random_plan};
use ripieno_planner::{ClusterPlan, PlanOptions, PlanningProblem, plan};
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure16",
    title: "Figure 16: imbalance of 800 models in 20 sub-clusters",
    says: "an integer program, given 10 s, finds far more even partitions than random ones given the same time; the figure \
           shows the imbalance (max - min)/avg of memory and of load.",
    run,
};

const MODELS: usize = 800;
const SUB_CLUSTERS: usize = 20;
const PROBLEMS: u64 = 40;
/// Number of random partitions, of which the best is taken.
const DRAWS: usize = 20_000;

const NOTE: &str = "The paper shows the distribution only as a picture and gives neither sizes of models nor bounds; both are ours. The \
                    planner keeps the bounds, of random partitions none is asked for.";

/// Imbalance of rate and of memory.
type Imbalance = (f64, f64);

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let seeds: Vec<u64> = (1..=if context.is_quick() { 6 } else { PROBLEMS }).collect();
    let imbalance = |plan: &ClusterPlan| (plan.rate_imbalance, plan.memory_imbalance);
    let draws = if context.is_quick() { DRAWS / 10 } else { DRAWS };
    let found = context.each(&seeds, |&seed| {
        let problem = problem(MODELS, SUB_CLUSTERS, seed);
        let planned = plan(&problem, &PlanOptions { seed, ..PlanOptions::default() })?;
        // The bounds are dropped, since hardly any random partition keeps them.
        let unbounded = PlanningProblem { max_rate: None, max_memory_mb: None, ..problem };
        let random = random_plan(&unbounded, draws, seed)?;
        Ok((imbalance(&planned), random.as_ref().map(imbalance)))
    })?;
    let planned: Vec<_> = found.iter().map(|found| found.0).collect();
    let random: Vec<_> = found.iter().filter_map(|found| found.1).collect();
    let mut rows = Vec::new();
    for (name, all) in [("planner", &planned), ("random", &random)] {
        rows.extend(imbalance_rows(name, all));
    }
    let x = PlotAxis { from: Some(0.0), ..axis("imbalance (max - min)/avg, %") };
    let figure = Figure {
        title: "How even the sub-clusters are: the share of problems with at most this imbalance".to_owned(),
        subtitle: format!(
            "{MODELS} models, {SUB_CLUSTERS} sub-clusters, exponential rates, {} problems; random: best of {draws} draws",
            seeds.len()
        ),
        panels: vec![
            lines("Planner", x.clone(), axis("problems, %"), curves(&planned, 0)),
            lines("Best of random partitions", x, axis("problems, %"), curves(&random, 0)),
        ],
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

fn imbalance_rows(name: &str, all: &[Imbalance]) -> Vec<ResultRow> {
    let row = |what: &str, value: fn(&Imbalance) -> f64| {
        let worst = all.iter().map(value).fold(f64::NAN, f64::max);
        ResultRow::new(format!("{name}: worst imbalance of {what}"), "%", worst * 100.0).note(NOTE)
    };
    vec![row("rate", |imbalance| imbalance.0), row("memory", |imbalance| imbalance.1)]
}

/// Returns the distributions of both imbalances, in percent.
fn curves(all: &[Imbalance], colour: usize) -> Vec<Series> {
    let rates = all.iter().map(|one| one.0 * 100.0).collect();
    let memories = all.iter().map(|one| one.1 * 100.0).collect();
    vec![distribution("rate", rates, colour), distribution("memory", memories, colour + 1)]
}

fn distribution(name: &str, mut values: Vec<f64>, colour: usize) -> Series {
    values.sort_by(f64::total_cmp);
    let share = 100.0 / values.len().max(1) as f64;
    let points = (1..).zip(values).map(|(rank, value)| (value, f64::from(rank) * share)).collect();
    Series { name: name.to_owned(), points, look: Look::solid(colour), markers: true }
}
