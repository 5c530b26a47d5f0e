//! Figures 14 and 15: TreeLSTM.

use super::SOURCE;
use super::measured::{CellsMeasured, CellsNetwork, measure};
use super::workload::{
    CellsCase, bucketed, cellular, cellular_trees, curve, ideal_trees, merged_trees, over, panel, peak_rows, peaks,
    sweep,
};
use crate::case::Contender;
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look};

pub(super) const FIGURE_14: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure14",
    title: "Figure 14: TreeLSTM on the TreeBank",
    says: "3.1K requests/s against DyNet's 2.1K; at 1K/s a 90th percentile of 6.8 against 9.5 ms.",
    run: figure_14,
};

pub(super) const FIGURE_15: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure15",
    title: "Figure 15: trees of one shape",
    says: "Complete trees of 16 leaves: the peak is about 30 % below that of a graph made for this shape.",
    run: figure_15,
};

const TREEBANK: &str = "{ kind = \"shapes\", dataset = \"sst-test\" }";
const COMPLETE: &str = "{ kind = \"complete\", leaves = 16 }";
const REQUESTS: u64 = 40_000;

fn merge(name: &str, us: &str, look: Look) -> Contender {
    Contender::new(name, "graph-merge", &[("max_batch", "64"), ("merge_us_per_node", us)], look)
}

fn figure(title: &str, requests: u64, panel: ripieno_report::plot::Panel) -> Figure {
    Figure {
        title: title.to_owned(),
        subtitle: format!(
            "TreeLSTM, one device, batches of up to 64, {} requests a point, 1 seed",
            number(requests as f64)
        ),
        panels: vec![panel],
        columns: 1,
        note: SOURCE.to_owned(),
    }
}

fn figure_14(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = context.requests(REQUESTS);
    let case = |contender, model| CellsCase { contender, model, devices: 1, requests, decision_us: 0.0 };
    let cases = [
        case(cellular("cellular", Look::solid(0)), cellular_trees(TREEBANK)),
        case(merge("graph-merge, 8 us a node", "8", Look::solid(1)), merged_trees(TREEBANK)),
        case(merge("graph-merge for free", "0", Look::dashed(1)), merged_trees(TREEBANK)),
    ];
    let rates = context.points(&[0.25, 0.5, 1.0, 1.5, 1.8, 2.0, 2.4, 2.8, 3.0].map(|rate| rate * 1e3), 3);
    let (answers, found) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
    let low = sweep(context, &cases, &[1_000.0])?;
    let papers = [(Some(3_100.0), Some(6.8)), (Some(2_100.0), Some(9.5)), (None, None)];
    let mut rows = Vec::new();
    for (((case, peak), low), (peak_paper, low_paper)) in cases.iter().zip(&found).zip(&low).zip(papers) {
        let note = if peak_paper.is_some() { "One constant of the costs is fitted to this number." } else { "" };
        rows.extend(peak_rows(case, "", peak, peak_paper).map(|row| row.note(note)));
        rows.push(case.row(": p90 at 1K/s", "ms", low[0].p90_ms).paper(low_paper));
    }
    let policies = ["cellular", "graph-merge,merge_us_per_node=8", "graph-merge"];
    let measured = measure(context, CellsNetwork::TreeLstm, 1, &policies, 1)?;
    let note = "By the text's numbers; the paper's summary says 1.8.";
    for (what, ratio) in over(&found[0], &found[1]) {
        rows.push(
            ResultRow::new(format!("cellular over graph-merge, {what}"), "ratio", ratio)
                .fitted(true)
                .paper(3.1 / 2.1)
                .note(note),
        );
    }
    let cut = (1.0 - low[0][0].p90_ms / low[1][0].p90_ms) * 100.0;
    let note = "The paper's 87 % against TensorFlow Fold has no row: what its merging costs is not printed.";
    let row =
        ResultRow::new("cellular's p90 below graph-merge's at 1K/s", "%", cut).fitted(true).paper(28.0).note(note);
    rows.push(row);
    let free = over(&found[0], &found[2])[1].1;
    rows.push(ResultRow::new("cellular over graph-merge for free, saturated", "ratio", free).fitted(true));
    if let Some(measured) = measured {
        beside(&mut rows, &measured);
    }
    let lines =
        cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
    let panel = panel("", "requests a second, answered", "90th percentile, ms", lines.collect());
    Ok(ItemReport { rows, figure: figure("Trees of the TreeBank", requests, panel) })
}

/// Adds the measurements of real cells to the rows: the saturated rate and the latency of each
/// contender, then the ratios.
fn beside(rows: &mut [ResultRow], measured: &CellsMeasured) {
    let CellsMeasured { given, half_rps, note } = measured;
    let [contenders @ .., _, merged, _, free] = rows else { return };
    for (pair, given) in contenders.chunks_mut(3).zip(given) {
        pair[1].measured = Some(given.peak_rps);
        pair[2].measured = Some(given.p90_ms);
        pair[2].note = format!("Measured at {}/s, half of graph-merge's peak here.", number(*half_rps));
    }
    for (row, other) in [(merged, &given[1]), (free, &given[2])] {
        row.measured = Some(given[0].peak_rps / other.peak_rps);
        *row = row.clone().note(note);
    }
}

fn figure_15(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = context.requests(REQUESTS);
    let case = |contender, model| CellsCase { contender, model, devices: 1, requests, decision_us: 0.0 };
    let cases = [
        case(cellular("cellular", Look::solid(0)), cellular_trees(COMPLETE)),
        case(merge("graph-merge, 8 us a node", "8", Look::solid(1)), merged_trees(COMPLETE)),
        case(bucketed("a graph for this shape", 31, Look::solid(2)), ideal_trees(31)),
    ];
    let rates = context.points(&[0.25, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0].map(|rate| rate * 1e3), 3);
    let (answers, found) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
    let low = sweep(context, &cases, &[1_000.0])?;
    let mut rows = Vec::new();
    for ((case, peak), low) in cases.iter().zip(&found).zip(&low) {
        rows.extend(peak_rows(case, "", peak, None));
        rows.push(case.row(": p90 at 1K/s", "ms", low[0].p90_ms));
    }
    let note = "The paper says: approximately. By the costs at 64 rows: 390 us and 2 us a row are fitted to Figure 14.";
    for (what, ratio) in over(&found[0], &found[2]) {
        let below = (1.0 - ratio) * 100.0;
        let row = ResultRow::new(format!("cellular below the graph for this shape, {what}"), "%", below).fitted(true);
        rows.push(row.paper(30.0).note(note));
    }
    let lines =
        cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
    let panel = panel("", "requests a second, answered", "90th percentile, ms", lines.collect());
    Ok(ItemReport { rows, figure: figure("Complete trees of 16 leaves", requests, panel) })
}
