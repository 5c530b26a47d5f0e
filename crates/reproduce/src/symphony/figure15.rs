//! Figure 15: a load that changes, on up to 512 devices that follow it.

use super::SOURCE;
use super::workload::{axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::{Interval, Question};
use crate::live::{LIVE_SOURCE, arrivals};
use crate::machine::{ClusterLoad, ClusterSetup, LiveScaling};
use anyhow::{Context as _, bail};
use ripieno_base::Nanos;
use ripieno_report::plot::{Figure, Look, Panel, PlotAxis, Series};
use ripieno_sim::{Length, Scenario};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure15",
    title: "Figure 15: devices follow a changing load, up to 512 of them",
    says: "Symphony consolidates on few devices when the load is low, advises the autoscaler to add and remove devices, and \
           keeps the bad rate low unless the cluster is overloaded.",
    run,
};

const SCENARIO: &str = include_str!("../../../../scenarios/autoscale/figure15.toml");
/// The load of the live form, by the paper's rule.
const LIVE_STEPS: &str = include_str!("../../../../scenarios/autoscale/live.toml");
/// A tenth of it for quick runs.
const LIVE_QUICK: [(&str, &str); 3] =
    [("duration_s = 30", "duration_s = 2"), ("every_s = 10", "every_s = 1"), ("000\n", "00\n")];
/// A smaller version for quick runs.
const SMALL: &str = include_str!("../../../../scenarios/autoscale/small.toml");

/// Our additions to the paper's rule; without them it is the paper's.
const KNOBS: [&str; 3] = ["headroom", "burst", "release_after"];

/// Time after a step of the load in which the autoscaler reacts and its devices join.
const STEP_S: f64 = 15.0;
/// The bad rate that the paper's goodput allows.
const LIMIT: f64 = 0.01;

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (name, scenario) = if context.is_quick() { ("small.toml", SMALL) } else { ("figure15.toml", SCENARIO) };
    let is_knob = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| KNOBS.contains(&key));
    let published: String = scenario.lines().filter(|line| !is_knob(line)).map(|line| format!("{line}\n")).collect();
    let scenarios = [(name.to_owned(), scenario.to_owned()), (format!("{name}, the paper's rule"), published)];
    let answers = context.ask(Question::Run, &scenarios)?;
    let windows = &answers[0].windows;
    let mut rows = rows(windows, &steps_s(scenario));
    rows.extend(self::rows(&answers[1].windows, &steps_s(scenario)).into_iter().filter_map(by_the_letter));
    let figure = Figure {
        title: "Devices follow the load".to_owned(),
        subtitle: format!("scenarios/autoscale/{name}: steps of the total load, every model drifts by itself; 1 seed"),
        panels: panels(windows),
        columns: 1,
        note: format!("{SOURCE} The paper's load, from 150 hours of video, is not public; this one is ours."),
    };
    Ok(ItemReport { rows, figure })
}

/// Serves a small load by a cluster on this machine whose backends join and leave as the scheduler
/// advises, by the paper's rule.
pub(super) fn live(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mut text = LIVE_STEPS.to_owned();
    if context.is_quick() {
        text = LIVE_QUICK.iter().fold(text, |text, (usual, quick)| text.replace(usual, quick));
    }
    let scenario = Scenario::parse(&text, "scenario of the experiment")?;
    let Length::Until(until) = scenario.length else { bail!("the scenario has phases") };
    let scale = scenario.autoscale.context("the scenario has an autoscaler")?;
    let simulated = context.ask(Question::Run, &[(scenario.policy.clone(), text.clone())])?;
    let setup = ClusterSetup {
        models: scenario.setup.models.clone(),
        devices: scenario.setup.devices,
        most_devices: scale.max,
        frontends: 2,
        policy: "deferred",
        options: Vec::new(),
    };
    let scaling = LiveScaling { every: scale.every, range: (scale.min, scale.max), release_after: scale.release_after };
    let load = ClusterLoad { warmup: Nanos::ZERO, ..arrivals(&scenario, until)? };
    let live: Vec<_> =
        context.machine().cluster(&setup)?.serve_scaled(&load, &scaling)?.iter().map(Interval::from).collect();
    let steps = steps_s(&text);
    let with_live =
        |(simulated, live): (ResultRow, ResultRow)| ResultRow { note: String::new(), ..simulated }.measured(live.ours);
    let rows = rows(&simulated[0].windows, &steps).into_iter().zip(rows(&live, &steps)).map(with_live).collect();
    let figure = Figure {
        title: "Devices follow the load, live".to_owned(),
        subtitle: "scenarios/autoscale/live.toml on a cluster of processes: steps of the total load".to_owned(),
        panels: panels(&live),
        columns: 1,
        note: LIVE_SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Returns a row of the run by the paper's rule, unless it is about the load, which is the same.
fn by_the_letter(row: ResultRow) -> Option<ResultRow> {
    let name = format!("the paper's rule: {}", row.name);
    (!row.name.starts_with("offered")).then(|| ResultRow { name, ..row }.note(LETTER))
}

const LETTER: &str = "All idle time is released as soon as it is seen and nothing is added before requests are bad: the rows above have a \
                      twentieth to spare, more where fewer devices share bursts, and wait for two windows.";

/// Returns the times at which the load changes by a step, the start included.
fn steps_s(scenario: &str) -> Vec<f64> {
    let durations = scenario.lines().filter_map(|line| line.strip_prefix("duration_s = ")?.parse::<f64>().ok());
    let step = |end: &mut f64, duration: f64| {
        let start = *end;
        *end += duration;
        Some(start)
    };
    durations.scan(0.0, step).collect()
}

fn rows(windows: &[Interval], steps_s: &[f64]) -> Vec<ResultRow> {
    let near_step = |window: &&Interval| {
        let start_s = window.end_s - window.span_s;
        steps_s.iter().any(|&step_s| start_s < step_s + STEP_S && window.end_s > step_s)
    };
    let settled: Vec<_> = windows.iter().filter(|window| !near_step(window)).collect();
    let most = |value: fn(&Interval) -> f64| windows.iter().map(value).fold(0.0, f64::max);
    let least = |value: fn(&Interval) -> f64| windows.iter().map(value).fold(f64::INFINITY, f64::min);
    let requests = |value: fn(&Interval) -> f64| windows.iter().map(|one| value(one) * one.span_s).sum::<f64>();
    let worst = settled.iter().map(|window| window.bad_rate).fold(0.0, f64::max);
    let above = settled.iter().filter(|window| window.bad_rate > LIMIT).count();
    let per_busy = settled.iter().map(|window| window.devices / window.busy_devices);
    vec![
        ResultRow::new("offered, highest", "requests/s", most(|window| window.offered_rps)),
        ResultRow::new("offered, lowest", "requests/s", least(|window| window.offered_rps)),
        ResultRow::new("devices, most", "devices", most(|window| window.devices)),
        ResultRow::new("devices, fewest", "devices", least(|window| window.devices)),
        ResultRow::new("devices for each busy one, away from steps, most", "devices", per_busy.fold(0.0, f64::max)),
        ResultRow::new("bad rate away from steps, highest of a window", "share", worst)
            .note("Windows of 10 s that begin at least 15 s after a step: the next look, and the start of devices."),
        ResultRow::new("windows away from steps above 1 % bad", "of them", above as f64 / settled.len().max(1) as f64),
        ResultRow::new(
            "bad rate of the whole run",
            "share",
            1.0 - requests(|window| window.goodput_rps) / requests(|window| window.offered_rps).max(1.0),
        )
        .note("Devices take 10 s to be asked for and 5 s to start, so that every step up costs requests."),
    ]
}

fn panels(windows: &[Interval]) -> Vec<Panel> {
    let series = |name: &str, colour: usize, value: fn(&Interval) -> f64| Series {
        name: name.to_owned(),
        points: windows.iter().map(|window| (window.end_s, value(window))).collect(),
        look: Look::solid(colour),
        markers: false,
    };
    let end = windows.last().map(|window| window.end_s);
    let time = || PlotAxis { to: end, ..axis("time, s") };
    vec![
        lines(
            "Load",
            time(),
            axis("requests/s"),
            vec![
                series("offered", 6, |window| window.offered_rps),
                series("answered in time", 0, |window| window.goodput_rps),
            ],
        ),
        lines(
            "Devices",
            time(),
            axis("devices"),
            vec![
                series("advised", 4, |window| window.desired_devices as f64),
                series("there", 1, |window| window.devices),
                series("kept busy", 2, |window| window.busy_devices),
            ],
        ),
        lines("Bad requests", time(), axis("bad, %"), vec![series("bad", 3, |window| window.bad_rate * 100.0)]),
    ]
}
