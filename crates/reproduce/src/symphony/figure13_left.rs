//! Figure 13, left: the request rate that the scheduler itself carries.
//!
//! The only item that is measured on a wall clock, with the live threads of `cargo bench -p
//! ripieno-stress --bench scheduler`: shards, which also generate the load, and one matchmaker;
//! devices cost nothing. So the numbers belong to the machine, nothing is cached, and one load runs
//! at a time.

use super::workload::{axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::machine::{LiveMachine, StressLoad};
use ripieno_base::Nanos;
use ripieno_model::{Model, Profile};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};
use std::num::NonZeroUsize;
use std::time::Duration;

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure13-left",
    title: "Figure 13, left: requests a second through the scheduler alone, on a wall clock",
    says: "throughput grows linearly with the number of model threads, whatever the number of GPUs: on the 32 cores of an AMD \
           EPYC 7502, 12 million requests/s.",
    run,
};

const PAPER_RPS: f64 = 12e6;
/// Numbers of shards; one of the paper's cores is for the matchmaker.
const SHARDS: [usize; 6] = [1, 2, 4, 8, 16, 31];
const DEVICES: [usize; 2] = [1_000, 10_000];
const MODELS: usize = 20;

/// First rate of the search, which doubles it until the scheduler does not keep up, and number of
/// bisections afterwards.
const FIRST_RPS: f64 = 250e3;
const MOST_DOUBLINGS: usize = 8;
const HALVINGS: usize = 3;
/// Upper bound on the fraction of requests dropped or late at a carried rate, and on the fraction
/// not handled.
const MAX_BAD_RATE: f64 = 0.01;
/// Number of tries, since other programs may occupy a core for some milliseconds.
const TRIES: usize = 2;

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let fitting = |&shards: &usize| shards == 1 || shards < cores;
    let shards = context.points(&SHARDS.into_iter().filter(fitting).collect::<Vec<_>>(), 2);
    let all_devices = if context.is_quick() { &DEVICES[..1] } else { &DEVICES[..] };
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (index, &devices) in all_devices.iter().enumerate() {
        let mut points = Vec::new();
        for &shards in &shards {
            let carried = carried(context.machine(), context.span(Duration::from_secs(1)), shards, devices)?;
            points.push((shards as f64, carried));
            let name = format!("{shards} shard threads and a matchmaker, {devices} devices");
            rows.push(ResultRow::new(name, "requests/s", carried).note(note(cores)));
        }
        let name = format!("{} devices", number(devices as f64));
        curves.push(Series { name, points, look: Look::solid(index), markers: true });
    }
    let points = curves.iter().flat_map(|curve| &curve.points);
    let (most, a_core) = points.fold((0.0_f64, 0.0_f64), |(most, a_core), &(shards, carried)| {
        (most.max(carried), a_core.max(carried / (shards + 1.0)))
    });
    rows.push(ResultRow::new("most on this machine", "requests/s", most).paper(PAPER_RPS).note(note(cores)));
    let row = ResultRow::new("for each core used, matchmaker's included", "requests/s", a_core);
    rows.push(row.note("The paper's 12 million over its 32 cores are 375,000, by our division."));
    let y = PlotAxis { from: Some(0.0), ..axis("carried, requests/s") };
    let figure = Figure {
        title: "What the scheduler alone carries".to_owned(),
        subtitle: format!(
            "{MODELS} models, l(b) = 0.1 b + 5 ms, SLO 25 ms, batches of at most 64; on {cores} cores; the paper: 12 million on 32"
        ),
        panels: vec![lines("", axis("shard threads, beside one matchmaker thread"), y, curves)],
        columns: 1,
        note: "Experiment: \"Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling\". Values: measured on a wall \
               clock, as by cargo bench -p ripieno-stress --bench scheduler."
            .to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

fn note(cores: usize) -> String {
    format!(
        "Depends on the machine: {cores} cores here, 32 in the paper, whose models (alpha 1.08 ms, SLO 100 ms in its public code) also \
         differ. Each thread wants a core of its own; on fewer, or on cores with other work, the number says little. A rate \
         counts if at most 1 % of the requests is late in one of two runs."
    )
}

/// Returns the highest rate that is carried, to within an eighth; 0 if not even the first is.
fn carried(machine: &dyn LiveMachine, span: Duration, shards: usize, devices: usize) -> anyhow::Result<f64> {
    let (mut good, mut rate) = (0.0, FIRST_RPS);
    for _ in 0..=MOST_DOUBLINGS {
        if !keeps_up(machine, span, shards, devices, rate)? {
            break;
        }
        (good, rate) = (rate, 2.0 * rate);
    }
    let mut bad = rate;
    for _ in 0..if good > 0.0 { HALVINGS } else { 0 } {
        let middle = f64::midpoint(good, bad);
        *(if keeps_up(machine, span, shards, devices, middle)? { &mut good } else { &mut bad }) = middle;
    }
    Ok(good)
}

fn keeps_up(
    machine: &dyn LiveMachine,
    span: Duration,
    shards: usize,
    devices: usize,
    rate: f64,
) -> anyhow::Result<bool> {
    let profile = Profile::linear(0.1, 5.0, 64)?;
    let model = |at: usize| Model::whole(&at.to_string(), profile.clone(), Nanos::from_millis(25));
    let stress = StressLoad {
        policy: "deferred",
        models: (0..MODELS).map(model).collect(),
        devices,
        shards,
        rate,
        duration: span,
        warmup: span / 2,
    };
    for _ in 0..TRIES {
        let report = machine.stress(stress.clone())?;
        if report.bad_rate <= MAX_BAD_RATE && report.handled_rps >= (1.0 - MAX_BAD_RATE) * rate {
            return Ok(true);
        }
    }
    Ok(false)
}
