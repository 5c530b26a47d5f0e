//! Figures 4 to 6: the unevenness of inputs and operators.

use super::SOURCE;
use super::workload::{DvaCase, DvaSystem, LINKNET, UNET, axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};
use ripieno_workload::counted_lengths;

pub(super) const FIGURE_4: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure4",
    title: "Figure 4: lengths of sentences in GLUE",
    says: "Most sentences have 5 to 20 words, but some have more than 100.",
    run: figure_4,
};

pub(super) const FIGURE_5: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure5",
    title: "Figure 5: two matrix products of ResNet50 by batch size",
    says: "On a Titan RTX the product of [3136 b, 576] and [576, 64] prefers a batch of 1, that of [49 b, 576] and [576, 512] one of 8: \
           its time does not rise until then.",
    run: figure_5,
};

pub(super) const FIGURE_6: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure6",
    title: "Figure 6: operators of Unet by batch size",
    says: "Most operators of the first part profit from batches of more than 32, those of the second part from less than 8.",
    run: figure_6,
};

fn figure_4(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (place, (set, name)) in
        [("glue-cola", "CoLA"), ("sst2-sentences", "SST-2"), ("glue-rte", "RTE")].iter().enumerate()
    {
        let histogram = counted_lengths(set)?;
        let share = |from: u32, to: u32| {
            let at = |quantile: u32| histogram.at(f64::from(quantile) / 10_000.0);
            (0..10_000).filter(|&quantile| (from..=to).contains(&at(quantile))).count() as f64 / 10_000.0
        };
        rows.push(ResultRow::new(format!("{name}: 5 to 20 tokens"), "share", share(5, 20)).note(TOKENS));
        rows.push(ResultRow::new(format!("{name}: more than 100 tokens"), "share", share(101, u32::MAX)));
        rows.push(ResultRow::new(format!("{name}: mean"), "tokens", histogram.mean()));
        rows.push(ResultRow::new(format!("{name}: longest"), "tokens", f64::from(histogram.at(1.0))));
        let points = (0..=30).map(|tenth| (f64::from(tenth) * 10.0, share(0, tenth * 10) * 100.0)).collect();
        curves.push(Series { name: (*name).to_owned(), points, look: Look::solid(place), markers: false });
    }
    let y = PlotAxis { to: Some(100.0), ..axis("sentences at most as long, %") };
    let figure = Figure {
        title: "Tokens in a sentence".to_owned(),
        subtitle: "Training sets: 8,551, 6,920 and 2,490 sentences or pairs".to_owned(),
        panels: vec![lines("", axis("tokens"), y, curves)],
        columns: 1,
        note: "Data: CoLA, SST-2 and RTE, counted by us.".to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const TOKENS: &str =
    "Words and punctuation marks; RTE's are pairs of sentences, SST-2's whole sentences. Three of the ten workloads.";

/// Multiprocessors of a Titan RTX, and the tile of the output that one of them computes at a time.
const PROCESSORS: u32 = 72;
const TILE: u32 = 64;

/// Returns the number of rounds of the device for a product with this number of rows per request
/// and columns.
fn waves(rows: u32, columns: u32, batch: u32) -> u32 {
    ((rows * batch).div_ceil(TILE) * columns.div_ceil(TILE)).div_ceil(PROCESSORS)
}

fn figure_5(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (place, (name, height, width, paper)) in
        [("GEMM-A", 3136, 64, 1.0), ("GEMM-B", 49, 512, 8.0)].into_iter().enumerate()
    {
        let alone = waves(height, width, 1);
        let flat = (1..=64).take_while(|&batch| waves(height, width, batch) == alone).count();
        rows.push(
            ResultRow::new(format!("{name}: largest batch as fast as one"), "requests", flat as f64)
                .paper(paper)
                .note(WAVES),
        );
        for batch in [8, 64] {
            let times = f64::from(waves(height, width, batch)) / f64::from(alone);
            rows.push(ResultRow::new(format!("{name}: time of {batch} over that of one"), "x", times));
        }
        let points = (1..=64).map(|batch| (f64::from(batch), f64::from(waves(height, width, batch)))).collect();
        curves.push(Series { name: name.to_owned(), points, look: Look::solid(place), markers: false });
    }
    let figure = Figure {
        title: "Two matrix products by batch size".to_owned(),
        subtitle: format!("Analytic: tiles of {TILE} x {TILE}, one at a time on each of {PROCESSORS} multiprocessors"),
        panels: vec![lines("", axis("batch"), axis("time, rounds"), curves)],
        columns: 1,
        note: SOURCE.replace("ripieno simulate, on declared stage profiles", "an analytic model"),
    };
    Ok(ItemReport { rows, figure })
}

const WAVES: &str =
    "Declared: rounds of tiles over 72 multiprocessors and nothing else; nothing was measured on this GPU.";

fn figure_6(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for network in [&UNET, &LINKNET] {
        let case = DvaCase { launch_ms: 0.0, ..DvaCase::new(context, network, DvaSystem::DVA, 1.0) };
        let model = &case.scenario()?.setup.models[0];
        let mut curves = Vec::new();
        for (stage, block) in model.blocks.iter().enumerate() {
            let name = format!("stage {}", stage + 1);
            let preferred = block.profile.preferred() as f64;
            rows.push(
                ResultRow::new(format!("{}, {name}: preferred batch", network.name), "requests", preferred)
                    .note(STAGES),
            );
            let time = |batch: usize| (batch as f64, block.profile.latency(batch).as_millis_f64());
            let points = (1..=64).map(time).collect();
            curves.push(Series { name, points, look: Look::solid(stage), markers: false });
        }
        panels.push(lines(network.name, axis("batch"), axis("time, ms"), curves));
    }
    let figure = Figure {
        title: "Stages that prefer different batches".to_owned(),
        subtitle: "Declared stage profiles".to_owned(),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const STAGES: &str = "Declared: 32 for the first half and 8 for the second, as the paper says of the groups of operators; the smallest \
                      batch with 95 % of the best rate.";
