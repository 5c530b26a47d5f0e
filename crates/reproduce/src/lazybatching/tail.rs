//! Figures 14 and 15: tails and violations at 1,000 requests per second.

use super::SOURCE;
use super::workload::{LazyCase, LazySystem, MAIN, SimOutcomes, axis, lines, mean, run, seeds, series, settings};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Figure, PlotAxis};

pub(super) const FIGURE_14: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure14",
    title: "Figure 14: distribution of latencies at 1,000 requests/s",
    says: "LazyB's 99th percentile is far below that of the best graph batching: 54 against 123 ms for Transformer.",
    run: figure_14,
};

pub(super) const FIGURE_15: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure15",
    title: "Figure 15: violations by SLO at 1,000 requests/s",
    says: "LazyB violates nothing unless the SLO is below 20, 40 and 60 ms for ResNet, GNMT and Transformer, and is close to \
           Oracle; at 100 ms two thirds of graph batching's windows violate more than half; LazyB satisfies SLOs 5.5x as \
           well.",
    run: figure_15,
};

const RATE: f64 = 1000.0;
const SLOS_MS: [f64; 8] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0];
/// The SLO from which on LazyB has no violations in the paper.
const SAFE_MS: [f64; 3] = [20.0, 40.0, 60.0];

fn figure_14(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let systems = LazySystem::all();
    let cases: Vec<_> = MAIN
        .iter()
        .flat_map(|(network, _)| systems.iter().map(move |&system| LazyCase::new(system, network, RATE)))
        .collect();
    let outcomes = run(context, &cases)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for ((network, name), of_network) in MAIN.iter().zip(outcomes.chunks(systems.len())) {
        let p99 = |outcomes: &SimOutcomes| outcomes.quantile_ms(0.99);
        let graphs = systems.iter().zip(of_network).filter(|(system, _)| matches!(system, LazySystem::GraphB(_)));
        let best = graphs.min_by(|a, b| a.1.mean_ms().mean.total_cmp(&b.1.mean_ms().mean));
        let mut curves = Vec::new();
        for (system, outcomes) in systems.iter().zip(of_network) {
            let is_best = best.is_some_and(|(best, _)| best == system);
            let Spread { mean, low, high } = p99(outcomes);
            let paper = match (*network, system) {
                ("transformer", LazySystem::LazyB) => Some(54.0),
                ("transformer", _) if is_best => Some(123.0),
                _ => None,
            };
            let note = if is_best { "The best graph batching, by mean latency." } else { "" };
            let note = if paper.is_some() && !is_best { NEITHER } else { note };
            let name = format!("{name}: p99, {}", system.name());
            rows.push(ResultRow::new(name, "ms", mean).paper(paper).seeds(low, high, seeds(context)).note(note));
            if is_best || !matches!(system, LazySystem::GraphB(_)) {
                let at = |percent: u32| (outcomes.quantile_ms(f64::from(percent) / 100.0).mean, f64::from(percent));
                let mut curve = series(*system, (0..=100).map(at).collect());
                curve.markers = false;
                curves.push(curve);
            }
        }
        let x = PlotAxis { to: Some(100.0), ..axis("latency, ms") };
        panels.push(lines(name, x, PlotAxis { to: Some(100.0), ..axis("requests, %") }, curves));
    }
    let figure = Figure {
        title: "Latencies at 1,000 requests/s".to_owned(),
        subtitle: format!("The best window of graph batching; {}", settings(context)),
        panels,
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const NEITHER: &str = "Batching pays more in this cost model than in the paper's simulator, where 1,000/s is close to what the device \
                       carries: both values are lower here.";

fn figure_15(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let systems = LazySystem::all();
    let (slos, seeds) = (context.points(&SLOS_MS, 2), seeds(context));
    // Only these policies use the SLO; one run of the others covers all SLOs.
    let looks =
        |system: &LazySystem| matches!(system, LazySystem::LazyB | LazySystem::LazyBSinceArrival | LazySystem::Oracle);
    let mut cases = Vec::new();
    for (network, _) in MAIN {
        for system in &systems {
            let runs = if looks(system) { slos.len() } else { 1 };
            cases.extend(slos.iter().take(runs).map(|&slo_ms| LazyCase::new(*system, network, RATE).slo_ms(slo_ms)));
        }
    }
    let mut outcomes = run(context, &cases)?.into_iter();
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    let (mut hopeless, mut gains) = (Vec::new(), Vec::new());
    for ((_, name), safe_ms) in MAIN.iter().zip(SAFE_MS) {
        let (mut curves, mut graph, mut lazy) = (Vec::new(), Vec::new(), 0.0);
        for system in &systems {
            let own: Vec<SimOutcomes> = outcomes.by_ref().take(if looks(system) { slos.len() } else { 1 }).collect();
            let at = |place: usize| own[place.min(own.len() - 1)].beyond(slos[place]);
            for (place, slo_ms) in slos.iter().enumerate() {
                let Spread { mean, low, high } = at(place);
                let paper = (*system == LazySystem::LazyB && *slo_ms >= safe_ms).then_some(0.0);
                let name = format!("{name}, SLO {slo_ms} ms: {}", system.name());
                let row = ResultRow::new(name, "violations", mean).paper(paper).seeds(low, high, seeds);
                rows.push(row.note(if paper.is_some() && mean > 0.0 { WHY } else { "" }));
            }
            let satisfied = mean((0..slos.len()).map(|place| 1.0 - at(place).mean));
            match system {
                LazySystem::GraphB(_) => {
                    graph.push(satisfied);
                    hopeless.push(f64::from(u8::from(at(slos.len() - 1).mean > 0.5)));
                }
                LazySystem::LazyB => lazy = satisfied,
                LazySystem::Serial | LazySystem::LazyBSinceArrival | LazySystem::Oracle => {}
            }
            curves.push(series(
                *system,
                slos.iter().enumerate().map(|(at_, &slo)| (slo, at(at_).mean * 100.0)).collect(),
            ));
        }
        gains.push(lazy / mean(graph));
        panels.push(lines(name, axis("SLO, ms"), PlotAxis { to: Some(100.0), ..axis("violations, %") }, curves));
    }
    let row = "windows of graph batching that violate more than half at 100 ms";
    rows.push(ResultRow::new(row, "share", mean(hopeless)).paper(2.0 / 3.0).note(NEITHER));
    let row = "SLOs satisfied, LazyB over graph batching, mean over windows, SLOs and networks";
    rows.push(ResultRow::new(row, "x", mean(gains)).paper(5.5).note("The paper does not print how it averages."));
    let figure = Figure {
        title: "Violations by SLO at 1,000 requests/s".to_owned(),
        subtitle: settings(context).replace("SLO 100 ms, ", ""),
        panels,
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const WHY: &str = "Equation 2 allows SLO / time alone requests at once, each for at least that time: for GNMT at 40 ms 5 in 7.2 ms, \
                   694/s by Little's law. Beyond that an empty table takes what waits, however late, and newcomers keep preempting.";
