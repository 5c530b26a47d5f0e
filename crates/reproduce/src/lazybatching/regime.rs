//! Latency, throughput and SLOs at loads that are shares of each network's peak.
//!
//! The paper's loads are absolute: at 1,000 requests/s its device is loaded and ours is not. The
//! peak is what graph batching answers at most, with the best of its windows.

use super::SOURCE;
use super::workload::{
    LazyCase, LazySystem, MAIN, OTHERS, SLO_MS, SimOutcomes, axis, lines, run, seeds, series, settings,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Figure, PlotAxis};

pub(super) const REGIME: ExperimentItem = ExperimentItem {
    id: "lazybatching/regime",
    title: "Figures 12, 13, 15 and 16 by shares of the peak",
    says: "LazyB improves latency by 5.3x, 2.7x and 2.5x and throughput by 1.1x, 1.3x and 1.2x over the best graph batching for ResNet, \
           GNMT and Transformer, at loads that the paper does not print.",
    run: regime,
};

const SHARES: [f64; 4] = [0.5, 0.8, 1.0, 1.5];
/// The paper's gains over the best graph batching for the three main networks: latency, throughput.
const GAINS: [(f64, f64); 3] = [(5.3, 1.1), (2.7, 1.3), (2.5, 1.2)];
/// Requests of a run that finds the peak.
const PEAK_REQUESTS: u64 = 24_000;

/// Returns what graph batching answers at most, in requests per second.
fn peak(context: &ReproduceContext, network: &'static str) -> anyhow::Result<f64> {
    let bound = LazyCase::new(LazySystem::Serial, network, 1.0).scenario()?.bound_rps();
    let case = |system| LazyCase { requests: PEAK_REQUESTS, ..LazyCase::new(system, network, bound) };
    let outcomes = run(context, &LazySystem::graph_batching().map(case).collect::<Vec<_>>())?;
    Ok(outcomes.iter().map(|outcomes| outcomes.answered_rps().mean).fold(0.0, f64::max))
}

fn regime(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (systems, shares) = (LazySystem::all(), context.points(&SHARES, 2));
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (place, (network, name)) in MAIN.into_iter().chain(OTHERS).enumerate() {
        let peak = peak(context, network)?;
        rows.push(ResultRow::new(format!("{name}: peak of graph batching"), "requests/s", peak));
        let mut cases = Vec::new();
        for share in &shares {
            cases.extend(systems.iter().map(|&system| LazyCase::new(system, network, share * peak)));
        }
        let outcomes = run(context, &cases)?;
        let of_shares: Vec<_> = shares.iter().copied().zip(outcomes.chunks(systems.len())).collect();
        for &(share, of_share) in &of_shares {
            let name = format!("{name}, {share} of the peak");
            rows.extend(figures(&name, of_share, context));
            rows.extend(gains(&name, of_share, GAINS.get(place).copied()));
        }
        let curve = |(at, system): (usize, &LazySystem)| {
            series(*system, of_shares.iter().map(|(share, of)| (*share, of[at].mean_ms().mean)).collect())
        };
        let y = PlotAxis { to: Some(200.0), ..axis("mean latency, ms") };
        panels.push(lines(name, axis("load, of the peak"), y, systems.iter().enumerate().map(curve).collect()));
    }
    let (title, subtitle) = ("Loads by shares of the peak".to_owned(), settings(context));
    Ok(ItemReport { rows, figure: Figure { title, subtitle, panels, columns: 3, note: SOURCE.to_owned() } })
}

/// Returns the rows of each system.
fn figures(name: &str, outcomes: &[SimOutcomes], context: &ReproduceContext) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (system, outcomes) in LazySystem::all().iter().zip(outcomes) {
        let mut row = |what: &str, unit, Spread { mean, low, high }: Spread| {
            let row = ResultRow::new(format!("{name}: {what}, {}", system.name()), unit, mean);
            rows.push(row.seeds(low, high, seeds(context)));
        };
        row("mean latency", "ms", outcomes.mean_ms());
        row("answered", "requests/s", outcomes.answered_rps());
        row("beyond 100 ms", "violations", outcomes.beyond(SLO_MS));
    }
    rows
}

/// Returns LazyB, in both readings, against the best baseline at this load by latency and by
/// throughput: below 1 the baseline wins.
fn gains(name: &str, outcomes: &[SimOutcomes], paper: Option<(f64, f64)>) -> Vec<ResultRow> {
    let systems = LazySystem::all();
    let value = |system: LazySystem, of: fn(&SimOutcomes) -> Spread| {
        systems.iter().position(|&other| other == system).map_or(f64::NAN, |at| of(&outcomes[at]).mean)
    };
    let (latency, answered) = (SimOutcomes::mean_ms, SimOutcomes::answered_rps);
    let best = LazySystem::graph_batching().map(|system| value(system, latency)).fold(f64::INFINITY, f64::min);
    let most = LazySystem::graph_batching().map(|system| value(system, answered)).fold(0.0, f64::max);
    let mut rows = Vec::new();
    for lazy in [LazySystem::LazyB, LazySystem::LazyBSinceArrival] {
        let (paper, who) = (paper.filter(|_| lazy == LazySystem::LazyB), lazy.name());
        let mut row = |what: &str, ours: f64, paper: Option<f64>| {
            let won = if ours < 1.0 { "The baseline wins." } else { "" };
            rows.push(ResultRow::new(format!("{name}: {what}"), "x", ours).paper(paper).note(won));
        };
        row(&format!("latency, best GraphB over {who}"), best / value(lazy, latency), paper.map(|paper| paper.0));
        row(&format!("latency, Serial over {who}"), value(LazySystem::Serial, latency) / value(lazy, latency), None);
        row(
            &format!("throughput, {who} over the best GraphB"),
            value(lazy, answered) / most,
            paper.map(|paper| paper.1),
        );
    }
    rows
}
