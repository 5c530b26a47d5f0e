//! Deferred against eager by the rules of the authors' public code: does deferring win there?
//!
//! The workloads are mixed models, of which the paper says 1.35 to 2.02. The same workloads are run
//! under `deferred` and `eager` with the options that are nearest to the code.

mod rank;
mod rate;
#[cfg(test)]
mod tests;

use super::SOURCE;
use super::workload::{axis, case, from_zoo, lines, zoo};
use crate::case::{Contender, ScenarioCase};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use rank::{RankOptions, RankScheduler, RankStart};
use ripieno_base::Nanos;
use ripieno_report::plot::{Figure, Look, Series};
use ripieno_report::{Search, search};
use ripieno_sim::{simulate_at, simulate_with};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/second-reading",
    title: "Figure 7, mixed models, by the rules of the public code",
    says: "with mixed models deferred gains 35 to 102 %.",
    run,
};

const TABLES: [(&str, &str); 2] = [("1080ti", "Table 3"), ("a100", "Table 4")];
const SHAPES: [f64; 3] = [0.1, 0.3, 1.0];
const DEVICES_PER_MODEL: [usize; 4] = [1, 2, 3, 4];
const REQUESTS_PER_DEVICE: u64 = 1_500;
/// The program's own margin before the latest start.
const JITTER: Nanos = Nanos::from_micros(100);

/// A scheduler of the experiment.
#[derive(Clone, Debug)]
enum Reader {
    /// The second reading.
    Rank(RankOptions),
    /// A policy of the catalogue.
    Ours(Contender),
}

/// The pairs, deferred first, with what their rows begin with.
fn pairs() -> [(&'static str, [Reader; 2]); 3] {
    let starts = [RankStart::Frontrun, RankStart::Immediately];
    let rank = |has_target| starts.map(|start| Reader::Rank(RankOptions { start, has_target, jitter: JITTER }));
    let options = [("gather", "\"window\""), ("passed", "\"update\""), ("device", "\"earliest-free\"")];
    let ours =
        ["deferred", "eager"].map(|policy| Reader::Ours(Contender::new(policy, policy, &options, Look::solid(0))));
    [("public code", rank(true)), ("public code, without a target", rank(false)), ("ours, nearest options", ours)]
}

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let workloads = workloads(context)?;
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (place, (pair, readers)) in pairs().into_iter().enumerate() {
        let cases: Vec<_> = workloads
            .iter()
            .flat_map(|(_, case)| readers.iter().map(move |reader| (reader.clone(), case.clone())))
            .collect();
        let goodputs = context.each(&cases, |(reader, case)| goodput(reader, case))?;
        let gains: Vec<f64> = goodputs.chunks(2).map(|pair| pair[0] / pair[1]).collect();
        for ((name, _), goodputs) in workloads.iter().zip(goodputs.chunks(2)) {
            rows.push(ResultRow::new(format!("{pair}, {name}: deferred"), "requests/s", goodputs[0]));
            rows.push(ResultRow::new(format!("{pair}, {name}: over eager"), "times", goodputs[0] / goodputs[1]));
        }
        rows.extend(ends(pair, &gains));
        let mut sorted = gains;
        sorted.sort_by(f64::total_cmp);
        let points = sorted.iter().enumerate().map(|(rank, &gain)| (rank as f64 + 1.0, gain)).collect();
        curves.push(Series { name: pair.to_owned(), points, look: Look::solid(place), markers: true });
    }
    let figure = Figure {
        title: "Deferred against eager by two readings".to_owned(),
        subtitle: format!("{} workloads of mixed models, sorted by gain, 1 seed", workloads.len()),
        panels: vec![lines("", axis("workloads"), axis("deferred over eager, times"), curves)],
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Returns the workloads with their names.
fn workloads(context: &ReproduceContext) -> anyhow::Result<Vec<(String, ScenarioCase)>> {
    let ratios = context.points(&DEVICES_PER_MODEL, 2);
    let mut workloads = Vec::new();
    for (device, table) in TABLES {
        let models = zoo(device)?;
        for shape in context.points(&SHAPES, 2) {
            for ratio in &ratios {
                let devices = models.len() * ratio;
                let loads = models.iter().map(|model| from_zoo(model).shape(Some(shape))).collect();
                let requests = context.requests(devices as u64 * REQUESTS_PER_DEVICE);
                let none = Contender::new("", "deferred", &[], Look::solid(0));
                let case = case(&none, devices, loads, requests);
                let case = ScenarioCase { seed: context.seed(case.seed), ..case };
                workloads.push((format!("{table}, {devices} devices, shape {shape}"), case));
            }
        }
    }
    Ok(workloads)
}

fn goodput(reader: &Reader, case: &ScenarioCase) -> anyhow::Result<f64> {
    let case = match reader {
        Reader::Ours(contender) => ScenarioCase { contender: contender.clone(), ..case.clone() },
        Reader::Rank(_) => case.clone(),
    };
    let scenario = case.scenario()?;
    let run = |rate| match reader {
        Reader::Ours(_) => simulate_at(&scenario, rate, None),
        Reader::Rank(options) => {
            let scheduler = RankScheduler::new(&scenario.effective_setup(), *options);
            simulate_with(&scenario, Box::new(scheduler), rate, None)
        }
    };
    let found =
        search(Search::from_ceiling(scenario.bound_rps()), |rate| run(rate).map(|run| (run.worst_bad_rate, ())))?;
    Ok(found.goodput_rps())
}

/// Returns the least, the middle and the greatest gain.
fn ends(pair: &str, gains: &[f64]) -> [ResultRow; 3] {
    let mut sorted = gains.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    let row = |which: &str, gain| ResultRow::new(format!("{pair}: deferred over eager, {which}"), "times", gain);
    let last = sorted.len().saturating_sub(1);
    [row("least", at(0)).paper(1.35), row("median", at(last / 2)), row("most", at(last)).paper(2.02)]
}
