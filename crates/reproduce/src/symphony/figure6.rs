//! Figure 6: deferred scheduling against eager scheduling and against timeouts.

use super::SOURCE;
use super::workload::{
    axis, case, deferred_prefix, deferred_window, eager_prefix, eager_window, from_zoo, lines, load, resnet50, timeout,
    zoo,
};
use crate::case::{CaseLoad, Contender, ScenarioCase};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};

pub(super) const FIGURE_6A: ExperimentItem = ExperimentItem {
    id: "symphony/figure6a",
    title: "Figure 6a: eager against deferred, by batching effect",
    says: "at beta/alpha = 1 both have nearly the same goodput; the stronger the batching effect, the further eager falls \
           behind.",
    run: by_batching_effect,
};

pub(super) const FIGURE_6B: ExperimentItem = ExperimentItem {
    id: "symphony/figure6b",
    title: "Figure 6b: timeouts against deferred",
    says: "with one model the best timeout reaches the goodput of deferred scheduling; with 37 models any timeout stays much \
           lower.",
    run: by_timeout,
};

const REQUESTS: u64 = 200_000;
const CLAMPED: &str = "Long timeouts do no harm in ours: a batch starts at its latest moment even if its timeout is not over. The paper \
                       sees them fall, and does not say what its baseline does then.";
const GATHERS: [&str; 2] = ["window", "prefix"];

const PREFIX: &str = "With prefix gathering eager loses less: a good part of its loss under window gathering are early drops, made for the \
                      sake of large batches that it then does not wait for.";

fn by_batching_effect(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let betas = context.points(&[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0], 7);
    let requests = context.requests(REQUESTS);
    let models = |beta: f64| (1..=10).map(move |index| load(format!("m{index}"), 1.0, beta, 2.0 * (8.0 + beta)));
    let of = |contender: &Contender| {
        let contender = contender.clone();
        betas.iter().map(move |&beta| case(&contender, 32, models(beta).collect(), requests)).collect::<Vec<_>>()
    };
    let contenders = [deferred_window(), eager_window(), deferred_prefix(), eager_prefix()];
    let found = context.goodputs(&contenders.iter().flat_map(of).collect::<Vec<_>>(), 1)?;
    let (mut rows, mut shown) = (Vec::new(), Vec::new());
    for ((gather, pair), look) in
        GATHERS.iter().zip(found.chunks(2 * betas.len())).zip([Look::solid(0), Look::dashed(0)])
    {
        let (deferred, eager) = pair.split_at(betas.len());
        let ratios = deferred.iter().zip(eager).map(|(deferred, eager)| eager.mean / deferred.mean);
        let points: Vec<_> = betas.iter().copied().zip(ratios).collect();
        rows.extend(points.iter().map(|&(beta, ratio)| {
            let row = ResultRow::new(format!("{gather}, beta/alpha = {beta}: eager over deferred"), "ratio", ratio);
            let note = if *gather == "prefix" { PREFIX } else { "" };
            row.paper((beta == 1.0).then_some(1.0)).note(note)
        }));
        let points = points.into_iter().map(|(beta, ratio)| (beta, ratio * 100.0)).collect();
        shown.push(Series { name: format!("both with {gather} gathering"), points, look, markers: true });
    }
    let y = PlotAxis { from: Some(50.0), ..axis("goodput of eager, % of deferred") };
    let figure = Figure {
        title: "The stronger the batching effect, the more eager scheduling loses".to_owned(),
        subtitle: format!(
            "10 equal models, alpha = 1 ms, SLO 2 l(8), 32 devices, Poisson arrivals, {} requests a run, 1 seed",
            number(requests as f64)
        ),
        panels: vec![lines("", axis("beta/alpha"), y, shown)],
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// One of the figure's two setups.
struct TimeoutSetup {
    name: &'static str,
    loads: Vec<CaseLoad>,
    devices: usize,
    /// The paper's best result of a timeout, if it states one.
    best: Option<f64>,
}

fn by_timeout(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mixed = zoo("a100")?.iter().map(from_zoo).collect();
    let single = vec![CaseLoad { slo_ms: 50.0, ..resnet50() }];
    let setups = [
        TimeoutSetup { name: "ResNet50, SLO 50 ms, 8 devices", loads: single, devices: 8, best: Some(1.0) },
        TimeoutSetup { name: "37 models of Table 4, 64 devices", loads: mixed, devices: 64, best: None },
    ];
    let fractions = context.points(&[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0], 4);
    let requests = context.requests(REQUESTS);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for setup in &setups {
        let mut shown = Vec::new();
        for (gather, look) in GATHERS.iter().zip([Look::solid(0), Look::dashed(0)]) {
            let points = relative(context, setup, gather, &fractions, requests)?;
            rows.extend(timeout_rows(setup, gather, &points));
            let points = points.into_iter().map(|(fraction, ratio)| (fraction * 100.0, ratio * 100.0)).collect();
            shown.push(Series { name: format!("both with {gather} gathering"), points, look, markers: true });
        }
        panels.push(lines(setup.name, axis("timeout, % of the SLO"), axis("goodput, % of deferred"), shown));
    }
    let figure = Figure {
        title: "Timeouts against deferred scheduling".to_owned(),
        subtitle: format!("Poisson arrivals, equal rates, {} requests a run, 1 seed", number(requests as f64)),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Returns the goodput at each timeout, relative to deferred scheduling with the same gathering.
fn relative(
    context: &ReproduceContext,
    setup: &TimeoutSetup,
    gather: &str,
    fractions: &[f64],
    requests: u64,
) -> anyhow::Result<Vec<(f64, f64)>> {
    let deferred = if gather == "window" { deferred_window() } else { deferred_prefix() };
    let timeouts = fractions.iter().map(|&fraction| timeout(fraction, gather));
    let cases: Vec<ScenarioCase> = std::iter::once(deferred)
        .chain(timeouts)
        .map(|contender| case(&contender, setup.devices, setup.loads.clone(), requests))
        .collect();
    let found = context.goodputs(&cases, 1)?;
    Ok(fractions.iter().zip(&found[1..]).map(|(&fraction, spread)| (fraction, spread.mean / found[0].mean)).collect())
}

fn timeout_rows(setup: &TimeoutSetup, gather: &str, points: &[(f64, f64)]) -> Vec<ResultRow> {
    let best = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let row = |(fraction, ratio): &(f64, f64)| {
        let name = format!("{}, {gather}: timeout {:.0} % of SLO over deferred", setup.name, fraction * 100.0);
        ResultRow::new(name, "ratio", *ratio).note(if *fraction == 1.0 { CLAMPED } else { "" })
    };
    let note = match (gather, setup.best) {
        ("prefix", None) => {
            "With prefix gathering short timeouts do as well as deferring, which the paper does not find."
        }
        _ => "",
    };
    let best = ResultRow::new(format!("{}, {gather}: best timeout over deferred", setup.name), "ratio", best)
        .paper(setup.best)
        .note(note);
    points.iter().map(row).chain([best]).collect()
}
