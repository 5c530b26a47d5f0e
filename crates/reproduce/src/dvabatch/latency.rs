//! Figures 14 and 16, and stretch at every load: latency by load.

use super::SOURCE;
use super::measured::{self, StandInMeasurement};
use super::workload::{
    DvaCase, DvaNetwork, DvaSystem, LOADS, NETWORKS, RESNET152, SimOutcomes, Tuned, UNET, VGG19, axis, lines, mean,
    run, seeds, series, settings, tuned,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::machine::PolicyResult;
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};

pub(super) const FIGURE_14: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure14",
    title: "Figure 14: average latency at low, medium and high load",
    says: "At low, medium and high load (1/4, 3/5 and 9/10 of the peak) DVABatch lowers the average by 16.1, 39.0 and 57.7 % \
           against ZeroBatch and 35.4, 47.3 and 48.5 % against DelayBatch.",
    run: figure_14,
};

pub(super) const FIGURE_16: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure16",
    title: "Figure 16: 99th percentiles at low, medium and high load",
    says: "DVABatch lowers the 99th percentile by 16.9, 27.4 and 53.7 % against ZeroBatch and 45.2, 45.1 and 29.2 % against \
           DelayBatch.",
    run: figure_16,
};

pub(super) const STRETCH: ExperimentItem = ExperimentItem {
    id: "dvabatch/stretch",
    title: "Stretch against a batcher that never idles, by load",
    says: "DVABatch lowers the latency in all cases; a batch that runs for T_comp_wait is stretched no more. The paper does not say \
           what stretching costs where the baseline forms its next batch when the device is free.",
    run: stretch,
};

/// The contents of a figure.
struct FigureSpec {
    title: &'static str,
    label: &'static str,
    value: fn(&SimOutcomes) -> Spread,
    measured: fn(&PolicyResult) -> f64,
    /// The paper's reductions by load, against ZeroBatch and DelayBatch.
    zero: [f64; 3],
    delay: [f64; 3],
    /// The paper's reduction against ZeroBatch at low load, for networks that differ only in the
    /// arrival of requests.
    alike_at_low_load: Option<f64>,
}

fn figure_14(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    by_load(
        context,
        &FigureSpec {
            title: "Average latency by load",
            label: "mean latency, ms",
            value: SimOutcomes::mean_ms,
            measured: |row| row.mean_ms,
            zero: [16.1, 39.0, 57.7],
            delay: [35.4, 47.3, 48.5],
            alike_at_low_load: Some(0.0),
        },
    )
}

fn figure_16(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    by_load(
        context,
        &FigureSpec {
            title: "99th percentile by load",
            label: "p99, ms",
            value: |outcomes| outcomes.quantile_ms(0.99),
            measured: |row| row.p99_ms,
            zero: [16.9, 27.4, 53.7],
            delay: [45.2, 45.1, 29.2],
            alike_at_low_load: None,
        },
    )
}

/// Number of systems that a figure compares.
const CONTENDERS: usize = 7;
/// The readings of DVABatch's executors, with their positions among the contenders.
const READINGS: [(&str, usize); 2] = [("", 4), ("one executor a stage: ", 5)];
/// DVABatch with one pair of buffers, so that nothing runs in parallel.
const SERIAL: DvaSystem = DvaSystem::Dva("buffers = 1\n");

/// Returns ZeroBatch and the tuned DelayBatch by both rules, then DVABatch in lanes, with one
/// executor a stage, and serially.
fn contenders(tuned: &[Tuned; 2]) -> [DvaSystem; CONTENDERS] {
    let [free, start] = tuned.each_ref().map(|tuned| tuned.system);
    [DvaSystem::ZERO[0], DvaSystem::ZERO[1], free, start, DvaSystem::DVA, DvaSystem::STAGED, SERIAL]
}

fn by_load(context: &ReproduceContext, what: &FigureSpec) -> anyhow::Result<ItemReport> {
    let plain: Vec<_> = NETWORKS.iter().map(|network| DvaCase::new(context, network, DvaSystem::DVA, 1.0)).collect();
    // Before the simulations, so that missing models are reported immediately.
    let measured: Vec<_> =
        plain.iter().map(|case| measured::by_load(context, case)).collect::<anyhow::Result<Vec<_>>>()?;
    let tuned = tuned(context, &plain)?;
    let mut cases = Vec::new();
    for (case, tuned) in plain.iter().zip(&tuned) {
        for system in contenders(tuned) {
            cases.extend(LOADS.iter().map(|(_, load)| DvaCase { system, rate: load * tuned[0].peak, ..*case }));
        }
    }
    let outcomes = run(context, &cases)?;
    let value = |network: usize, system: usize, load: usize| {
        (what.value)(&outcomes[(network * CONTENDERS + system) * 3 + load])
    };
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, (case, tuned)) in plain.iter().zip(&tuned).enumerate() {
        let name = case.network.name;
        let mut curves = Vec::new();
        for (system, who) in contenders(tuned).into_iter().enumerate() {
            for (load, (level, _)) in LOADS.iter().enumerate() {
                let Spread { mean, low, high } = value(network, system, load);
                let row = ResultRow::new(format!("{name}, {level} load: {}", who.name()), "ms", mean);
                let row = row.seeds(low, high, seeds(context)).note(window(who));
                let given = measured[network].as_ref();
                rows.push(measured::beside(row, given, |given| given.latency(who, load, what.measured)));
            }
            let points =
                LOADS.iter().enumerate().map(|(at, (_, load))| (load * 100.0, value(network, system, at).mean));
            curves.push(series(who, points.collect()));
        }
        panels.push(lines(name, axis("load, % of the peak"), axis(what.label), curves));
    }
    let less = |network: usize, load: usize, of: usize, than: usize| {
        100.0 - value(network, of, load).mean / value(network, than, load).mean * 100.0
    };
    for (reading, of) in READINGS {
        for (baseline, paper, systems) in [("ZeroBatch", what.zero, [0, 1]), ("DelayBatch", what.delay, [2, 3])] {
            for (rule, than) in ["free", "start"].into_iter().zip(systems) {
                for (load, (level, _)) in LOADS.iter().enumerate() {
                    let name = format!("{reading}less than {baseline}, {rule}, {level} load, mean of networks");
                    let ours = mean((0..NETWORKS.len()).map(|network| less(network, load, of, than)));
                    let note = if rule == "free" { FREE } else { START };
                    let row = ResultRow::new(name, "%", ours).paper(paper[load]).note(note);
                    let baseline = contenders(&tuned[0])[than];
                    let measured = if of == READINGS[0].1 { &measured[..] } else { &[] };
                    rows.push(less_measured(row, what, baseline, load, measured));
                }
            }
        }
    }
    for (network, declared) in NETWORKS.iter().enumerate() {
        if ![VGG19.name, RESNET152.name].contains(&declared.name) {
            continue;
        }
        for (reading, of) in READINGS.into_iter().chain([("one at a time: ", CONTENDERS - 1)]) {
            let name = format!("{}, low load: {reading}less than ZeroBatch, free", declared.name);
            rows.push(ResultRow::new(name, "%", less(network, 0, of, 0)).paper(what.alike_at_low_load).note(SHARING));
        }
    }
    let (title, note) = (what.title.to_owned(), SOURCE.to_owned());
    Ok(ItemReport { rows, figure: Figure { title, subtitle: settings(context), panels, columns: 3, note } })
}

/// Adds DVABatch's reduction on real models to a row: the mean over the measured ones.
fn less_measured(
    row: ResultRow,
    what: &FigureSpec,
    baseline: DvaSystem,
    load: usize,
    measured: &[Option<StandInMeasurement>],
) -> ResultRow {
    let less = |given: &StandInMeasurement| {
        let value = |system| given.latency(system, load, what.measured);
        Some(1.0 - value(DvaSystem::DVA)? / value(baseline)?)
    };
    let of: Vec<_> = measured.iter().map(|given| given.as_ref().and_then(less)).collect();
    if of.iter().all(Option::is_none) {
        return row;
    }
    let names: Vec<_> = NETWORKS.iter().zip(&of).filter(|(_, less)| less.is_some()).map(|(net, _)| net.name).collect();
    let given = mean(of.into_iter().flatten()) * 100.0;
    row.measured(given).note(format!("Measured: the mean of {}.", names.join(", ")))
}

fn window(system: DvaSystem) -> String {
    match system {
        DvaSystem::Delay(window, _) if window > 0.0 => {
            format!("A window of {window} ms: the shortest of those within 1 % of the highest peak.")
        }
        _ => String::new(),
    }
}

const SHARING: &str = "A request that uses an eighth of the device runs beside another and slows nobody down, by declaration: sharing is ideal \
                       and linear. In the paper batches of one take as long under DVABatch as under ZeroBatch. With one buffer \
                       pair (one at a time) nothing is shared.";
const FREE: &str = "The baseline forms its next batch when the device is free: what waits fills batches by itself, and a window buys \
                    nothing.";
const START: &str = "The baseline forms its next batch when the previous one starts.";

/// Loads as fractions of the peak.
const SWEEP: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
/// Stretch and no stretch, on one lane and on two.
const STRETCHES: [(&str, DvaSystem); 4] = [
    ("stretch, 1 buffer", DvaSystem::Dva("split = false\nbuffers = 1\n")),
    ("no stretch, 1 buffer", DvaSystem::Dva("split = false\nbuffers = 1\nstretch = false\n")),
    ("stretch, 2 buffers", DvaSystem::Dva("split = false\n")),
    ("no stretch, 2 buffers", DvaSystem::Dva("split = false\nstretch = false\n")),
];

fn stretch(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let networks: [&DvaNetwork; 3] = [&RESNET152, &VGG19, &UNET];
    let loads = context.points(&SWEEP, 3);
    let systems: Vec<_> = std::iter::once(DvaSystem::ZERO[0]).chain(STRETCHES.map(|(_, system)| system)).collect();
    let mut cases = Vec::new();
    for network in networks {
        let free = DvaCase { launch_ms: 0.0, ..DvaCase::new(context, network, DvaSystem::ZERO[0], 1.0) };
        let peak = free.peak()?;
        for &system in &systems {
            cases.extend(loads.iter().map(|load| DvaCase { system, rate: load * peak, ..free }));
        }
    }
    let outcomes = run(context, &cases)?;
    let ms = |network: usize, system: usize, load: usize| {
        outcomes[(network * systems.len() + system) * loads.len() + load].mean_ms().mean
    };
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, declared) in networks.iter().enumerate() {
        let over = |system: usize, load: usize| ms(network, system, load) / ms(network, 0, load) * 100.0 - 100.0;
        let mut curves = Vec::new();
        for (place, (how, _)) in (1..).zip(STRETCHES) {
            let points: Vec<_> = (0..loads.len()).map(|load| (loads[load] * 100.0, over(place, load))).collect();
            for (load, more) in &points {
                let name = format!("{} at {load:.0} %, {how}: over ZeroBatch, free", declared.name);
                rows.push(ResultRow::new(name, "%", *more));
            }
            let worst = points.iter().map(|&(_, more)| more).fold(f64::NEG_INFINITY, f64::max);
            rows.push(ResultRow::new(format!("{}, {how}: worst over all loads", declared.name), "%", worst));
            curves.push(Series {
                name: how.to_owned(),
                points,
                look: Look { colour: (place - 1) % 2, dashed: place > 2 },
                markers: true,
            });
        }
        let y = PlotAxis { label: "mean latency over ZeroBatch, %".to_owned(), from: None, to: None };
        panels.push(lines(declared.name, axis("load, % of the peak"), y, curves));
    }
    let figure = Figure {
        title: "Stretching a batch that runs".to_owned(),
        subtitle: format!("{}; no launch costs, no splits", settings(context)),
        panels,
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}
