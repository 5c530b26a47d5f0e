//! Figures 14 and 16, and stretch at every load: latency by load.

use super::SOURCE;
use super::measured::{self, StandInMeasurement};
use super::workload::{
    DvaCase, DvaSystem, LOADS, NETWORKS, RESNET152, SimOutcomes, Tuned, VGG19, axis, lines, mean, run, seeds, series,
    settings, tuned,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::machine::PolicyResult;
use ripieno_report::plot::{Figure, Look, Series};

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

pub(super) const COMP_WAIT: ExperimentItem = ExperimentItem {
    id: "dvabatch/comp-wait",
    title: "Policy III by T_comp_wait",
    says: "A batch that has run for T_comp_wait is stretched no more, so that none violates the QoS. The paper does not give the time.",
    run: comp_wait,
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
/// The position of the readings of DVABatch among the contenders.
const READINGS: usize = 4;
/// DVABatch with one pair of buffers, so that nothing runs in parallel.
const SERIAL: DvaSystem = DvaSystem::Dva("buffers = 1\n");

/// Returns ZeroBatch and the tuned DelayBatch by both rules, then DVABatch in both readings, and
/// serially.
fn contenders(tuned: &[Tuned; 2]) -> [DvaSystem; CONTENDERS] {
    let [free, start] = tuned.each_ref().map(|tuned| tuned.system);
    [DvaSystem::ZERO[0], DvaSystem::ZERO[1], free, start, DvaSystem::DVA, DvaSystem::BARE, SERIAL]
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
    for ((reading, system), of) in DvaSystem::READINGS.into_iter().zip(READINGS..) {
        for (baseline, paper, systems) in [("ZeroBatch", what.zero, [0, 1]), ("DelayBatch", what.delay, [2, 3])] {
            for (rule, than) in ["free", "start"].into_iter().zip(systems) {
                for (load, (level, _)) in LOADS.iter().enumerate() {
                    let name = format!("{reading}less than {baseline}, {rule}, {level} load, mean of networks");
                    let ours = mean((0..NETWORKS.len()).map(|network| less(network, load, of, than)));
                    let note = if rule == "free" { FREE } else { START };
                    let row = ResultRow::new(name, "%", ours).paper(paper[load]).note(note);
                    let baseline = contenders(&tuned[0])[than];
                    let measured = if system == DvaSystem::BARE { &measured[..] } else { &[] };
                    rows.push(less_measured(row, what, baseline, load, measured));
                }
            }
        }
    }
    for (network, declared) in NETWORKS.iter().enumerate() {
        if ![VGG19.name, RESNET152.name].contains(&declared.name) {
            continue;
        }
        let readings = DvaSystem::READINGS.map(|(reading, _)| reading);
        for (reading, of) in readings.into_iter().chain(["one at a time: "]).zip(READINGS..) {
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
        Some(1.0 - value(DvaSystem::BARE)? / value(baseline)?)
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

/// Values of `T_comp_wait`, by their names; the last is the default.
const TIMES: [(&str, DvaSystem); 9] = [
    ("0", DvaSystem::BARE),
    ("2 ms", DvaSystem::Dva("comp_wait_ms = 2\n")),
    ("4 ms", DvaSystem::Dva("comp_wait_ms = 4\n")),
    ("8 ms", DvaSystem::Dva("comp_wait_ms = 8\n")),
    ("16 ms", DvaSystem::Dva("comp_wait_ms = 16\n")),
    ("32 ms", DvaSystem::Dva("comp_wait_ms = 32\n")),
    ("64 ms", DvaSystem::Dva("comp_wait_ms = 64\n")),
    ("128 ms", DvaSystem::Dva("comp_wait_ms = 128\n")),
    ("SLO less the largest batch", DvaSystem::DVA),
];

fn comp_wait(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let networks: Vec<_> = NETWORKS.iter().copied().filter(|network| !network.has_lengths()).collect();
    let plain: Vec<_> =
        networks.iter().map(|network| DvaCase::new(context, network, DvaSystem::ZERO[0], 1.0)).collect();
    let peaks = context.each(&plain, DvaCase::peak)?;
    let systems: Vec<_> = DvaSystem::ZERO.into_iter().chain(TIMES.map(|(_, system)| system)).collect();
    let mut cases = Vec::new();
    for (case, peak) in plain.iter().zip(&peaks) {
        for &system in &systems {
            cases.extend(LOADS.iter().map(|(_, load)| DvaCase { system, rate: load * peak, ..*case }));
        }
    }
    let outcomes = run(context, &cases)?;
    let ms = |network: usize, system: usize, load: usize| {
        outcomes[(network * systems.len() + system) * LOADS.len() + load].mean_ms().mean
    };
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, declared) in networks.iter().enumerate() {
        for (than, rule) in ["free", "start"].into_iter().enumerate() {
            for (load, (level, _)) in LOADS.iter().enumerate() {
                let less = |time: usize| 100.0 - ms(network, 2 + time, load) / ms(network, than, load) * 100.0;
                for (time, (name, _)) in TIMES.iter().enumerate() {
                    let name = format!("{}, {level} load, {name}: less than ZeroBatch, {rule}", declared.name);
                    rows.push(ResultRow::new(name, "%", less(time)));
                }
            }
        }
        let curve = |load: usize| Series {
            name: format!("{} load", LOADS[load].0),
            points: (0..TIMES.len()).map(|time| (time as f64, ms(network, 2 + time, load))).collect(),
            look: Look::solid(load),
            markers: true,
        };
        let x = axis("T_comp_wait: 0, 2, 4, 8, 16, 32, 64, 128 ms, the default");
        panels.push(lines(declared.name, x, axis("mean latency, ms"), (0..LOADS.len()).map(curve).collect()));
    }
    let (title, subtitle) = ("Time within which newcomers join a batch".to_owned(), settings(context));
    Ok(ItemReport { rows, figure: Figure { title, subtitle, panels, columns: 2, note: SOURCE.to_owned() } })
}
