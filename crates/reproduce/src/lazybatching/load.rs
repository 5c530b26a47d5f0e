//! Figures 5, 12 and 13: batch sizes, latency and throughput by load.

use super::SOURCE;
use super::measured;
use super::workload::{
    LOADS, LazyCase, LazySystem, MAIN, SimOutcomes, WINDOWS_MS, axis, lines, mean, run, seeds, series, settings,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};

pub(super) const FIGURE_5: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure5",
    title: "Figure 5: batch sizes of graph batching, by window and load",
    says: "No window suits all loads: a long one forms larger batches under high load and only delays under low load.",
    run: figure_5,
};

pub(super) const FIGURE_12: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure12",
    title: "Figure 12: mean latency by load",
    says: "LazyB's latency is lowest at all loads: 5.3x, 2.7x and 2.5x below the best graph batching for ResNet, GNMT and \
           Transformer, and 15x below graph batching on average.",
    run: figure_12,
};

pub(super) const FIGURE_13: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure13",
    title: "Figure 13: throughput by load",
    says: "LazyB's throughput is like that of the best graph batching or better: 1.1x, 1.3x and 1.2x for ResNet, GNMT and \
           Transformer, and 1.5x on average.",
    run: figure_13,
};

/// The outcomes by network, system and load.
struct LoadSweep {
    systems: Vec<LazySystem>,
    loads: Vec<f64>,
    outcomes: Vec<SimOutcomes>,
}

impl LoadSweep {
    fn new(context: &ReproduceContext) -> anyhow::Result<LoadSweep> {
        let (systems, loads) = (LazySystem::all(), context.points(&LOADS, 2));
        let mut cases = Vec::new();
        for (network, _) in MAIN {
            for &system in &systems {
                cases.extend(loads.iter().map(|&rate| LazyCase::new(system, network, rate)));
            }
        }
        let outcomes = run(context, &cases)?;
        Ok(LoadSweep { systems, loads, outcomes })
    }

    fn at(&self, network: usize, system: usize, load: usize) -> &SimOutcomes {
        &self.outcomes[(network * self.systems.len() + system) * self.loads.len() + load]
    }

    /// Returns the ratios of graph batching to LazyB: for the window that is best by its mean over
    /// loads, and the mean over windows. `better` is true if lower values are better.
    fn ratios(&self, network: usize, value: impl Fn(&SimOutcomes) -> f64, better_is_lower: bool) -> (f64, f64) {
        let place = |system: LazySystem| self.systems.iter().position(|&other| other == system).unwrap_or(0);
        let lazy = place(LazySystem::LazyB);
        let ratio = |system: usize, load: usize| {
            let (graph, lazy) = (value(self.at(network, system, load)), value(self.at(network, lazy, load)));
            if better_is_lower { graph / lazy } else { lazy / graph }
        };
        let of = |system: LazySystem| mean((0..self.loads.len()).map(|load| ratio(place(system), load)));
        let all: Vec<f64> = LazySystem::graph_batching().map(of).collect();
        (all.iter().copied().fold(f64::INFINITY, f64::min), mean(all))
    }

    fn report(&self, context: &ReproduceContext, what: &SweepFigure) -> anyhow::Result<ItemReport> {
        let mut rows = Vec::new();
        let mut panels = Vec::new();
        for (network, (_, name)) in MAIN.iter().enumerate() {
            let spread = |system: usize, load: usize| (what.value)(self.at(network, system, load));
            let mut curves = Vec::new();
            for (system, who) in self.systems.iter().enumerate() {
                for (load, rate) in self.loads.iter().enumerate() {
                    let Spread { mean, low, high } = spread(system, load);
                    let name = format!("{name}, {rate}/s: {}", who.name());
                    rows.push(ResultRow::new(name, what.unit, mean).seeds(low, high, seeds(context)));
                }
                let points = self.loads.iter().enumerate().map(|(load, &rate)| (rate, spread(system, load).mean));
                curves.push(series(*who, points.collect()));
            }
            panels.push(lines(name, axis("requests/s"), what.axis(), curves));
        }
        let mut overall = Vec::new();
        for (network, (id, name)) in MAIN.iter().enumerate() {
            let measured = measured::gains(context, id)?;
            let gains = measured.as_ref().map(|gains| if what.lower { gains.latency } else { gains.throughput });
            let (measured_best, measured_average) = gains.unzip();
            let told = measured.as_ref().map_or("", |gains| gains.note.as_str());
            let (best, average) = self.ratios(network, |outcomes| (what.value)(outcomes).mean, what.lower);
            let row = format!("{name}: LazyB against the best window, mean over loads");
            let row = ResultRow::new(row, "x", best).paper(what.best[network]).measured(measured_best);
            rows.push(row.note(what.notes[network]).note(told));
            let row = format!("{name}: LazyB against all windows, mean over windows and loads");
            rows.push(ResultRow::new(row, "x", average).measured(measured_average).note(told));
            overall.push(average);
        }
        let row = "LazyB against all windows, mean over networks, windows and loads";
        rows.push(ResultRow::new(row, "x", mean(overall)).paper(what.overall).note(what.note));
        let figure = Figure {
            title: what.title.to_owned(),
            subtitle: settings(context),
            panels,
            columns: 3,
            note: SOURCE.to_owned(),
        };
        Ok(ItemReport { rows, figure })
    }
}

/// The part of the sweep that a figure shows.
struct SweepFigure {
    title: &'static str,
    unit: &'static str,
    label: &'static str,
    to: Option<f64>,
    value: fn(&SimOutcomes) -> Spread,
    lower: bool,
    best: [f64; 3],
    notes: [&'static str; 3],
    overall: f64,
    note: &'static str,
}

impl SweepFigure {
    fn axis(&self) -> PlotAxis {
        PlotAxis { to: self.to, ..axis(self.label) }
    }
}

fn figure_12(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let what = SweepFigure {
        title: "Mean latency by load",
        unit: "ms",
        label: "mean latency, ms",
        to: Some(150.0),
        value: SimOutcomes::mean_ms,
        lower: true,
        best: [5.3, 2.7, 2.5],
        notes: [
            "The paper's loads and run lengths are not printed; the ratio is largest at low load, where a window only delays, and below \
             1 at 2,000/s, close to what the device carries.",
            "Above 256/s newcomers preempt a job of 7 ms all the time, so that slack drains up to the SLO: Equation 2 admits as \
             many as the SLO covers, each at its time alone.",
            "Graph batching pads to the longest sentence of the batch and answers all at its end.",
        ],
        overall: 15.0,
        note: "The paper does not print over which windows and loads it averages.",
    };
    LoadSweep::new(context)?.report(context, &what)
}

fn figure_13(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let same = "Up to 1,000/s the device carries the load with graph batching too, so that both answer what is offered; it \
                carries 2,000/s as well.";
    let padding = "Up to 1,000/s both answer what is offered; at 2,000/s padding overloads graph batching.";
    let what = SweepFigure {
        title: "Throughput by load",
        unit: "requests/s",
        label: "answered, requests/s",
        to: None,
        value: SimOutcomes::answered_rps,
        lower: false,
        best: [1.1, 1.3, 1.2],
        notes: [same, padding, same],
        overall: 1.5,
        note: same,
    };
    LoadSweep::new(context)?.report(context, &what)
}

fn figure_5(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let loads = [16.0, 500.0, 1000.0];
    let cases: Vec<_> = loads
        .iter()
        .flat_map(|&rate| LazySystem::graph_batching().map(move |system| LazyCase::new(system, "resnet50", rate)))
        .collect();
    let outcomes = run(context, &cases)?;
    let (mut rows, mut sizes, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (rate, of_load)) in loads.iter().zip(outcomes.chunks(WINDOWS_MS.len())).enumerate() {
        let batch = |outcomes: &SimOutcomes| outcomes.spread(|outcome| outcome.mean_batch);
        for (window, outcomes) in WINDOWS_MS.iter().zip(of_load) {
            for (what, unit, spread) in
                [("mean batch", "requests", batch(outcomes)), ("mean latency", "ms", outcomes.mean_ms())]
            {
                let name = format!("{rate}/s, window {window} ms: {what}");
                rows.push(ResultRow::new(name, unit, spread.mean).seeds(spread.low, spread.high, seeds(context)));
            }
        }
        let curve = |value: &dyn Fn(&SimOutcomes) -> f64| Series {
            name: format!("{rate} requests/s"),
            points: WINDOWS_MS.iter().zip(of_load).map(|(&window, at)| (f64::from(window), value(at))).collect(),
            look: Look::solid(place),
            markers: true,
        };
        sizes.push(curve(&|outcomes| batch(outcomes).mean));
        latencies.push(curve(&|outcomes| outcomes.mean_ms().mean));
    }
    let panels = vec![
        lines("Batches", axis("window, ms"), axis("mean batch, requests"), sizes),
        lines("Latency", axis("window, ms"), axis("mean latency, ms"), latencies),
    ];
    let figure = Figure {
        title: "No window suits all loads".to_owned(),
        subtitle: format!("ResNet, graph batching; {}", settings(context)),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}
