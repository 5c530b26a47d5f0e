//! Late Batching's Figures 3 to 7, also with each half of the idea switched off.
//!
//! The paper's text does not give device and costs; the costs are of BatchMaker's cell, so only
//! ratios compare.

use super::LATE_SOURCE;
use super::workload::{
    CellsCase, EUROPARL, bucketed, bucketed_by_turns, cellular_lstm, curve, over, padded_lstm, panel, peak_rows, peaks,
    sweep,
};
use crate::case::Contender;
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::SimAnswer;
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look, Series};

const SAYS: &str =
    "Early start lowers latency, by 25 to 40 % where all lengths are alike; early leave raises the peak by 25 to 33 %.";

pub(super) const FIGURE_3: ExperimentItem = ExperimentItem {
    id: "late-batching/figure3",
    title: "Figure 3: median latency by throughput, sentences",
    says: SAYS,
    run: |context| latency(context, LateLengths::Sentences, "median", |answer| answer.p50_ms),
};

pub(super) const FIGURE_4: ExperimentItem = ExperimentItem {
    id: "late-batching/figure4",
    title: "Figure 4: 99th percentile by throughput, sentences",
    says: SAYS,
    run: |context| latency(context, LateLengths::Sentences, "99th percentile", |answer| answer.p99_ms),
};

pub(super) const FIGURE_5: ExperimentItem = ExperimentItem {
    id: "late-batching/figure5",
    title: "Figure 5: throughput by load, sentences",
    says: "Early start and early leave together raise the peak by about 25 to 33 %.",
    run: figure_5,
};

pub(super) const FIGURE_6: ExperimentItem = ExperimentItem {
    id: "late-batching/figure6",
    title: "Figure 6: median latency by throughput, one length",
    says: SAYS,
    run: |context| latency(context, LateLengths::Twenty, "median", |answer| answer.p50_ms),
};

pub(super) const FIGURE_7: ExperimentItem = ExperimentItem {
    id: "late-batching/figure7",
    title: "Figure 7: 99th percentile by throughput, one length",
    says: SAYS,
    run: |context| latency(context, LateLengths::Twenty, "99th percentile", |answer| answer.p99_ms),
};

#[derive(Clone, Copy, PartialEq)]
enum LateLengths {
    Sentences,
    Twenty,
}

impl LateLengths {
    fn toml(self) -> &'static str {
        match self {
            LateLengths::Sentences => EUROPARL,
            LateLengths::Twenty => "{ kind = \"fixed\", value = 20 }",
        }
    }
}

/// The paper ran 100,000 requests.
const REQUESTS: u64 = 100_000;

fn cases(context: &ReproduceContext, lengths: LateLengths) -> Vec<CellsCase> {
    let lengths = lengths.toml();
    let requests = context.requests(REQUESTS);
    let case = |contender, model| CellsCase { contender, model, devices: 1, requests, decision_us: 0.0 };
    let late = |name: &str, off: &[(&'static str, &str)], look| {
        case(Contender::new(name, "late", off, look), cellular_lstm(512, lengths))
    };
    let step_by_step =
        Contender::new("cellular, one task at a time", "cellular", &[("max_tasks", "1")], Look::solid(4));
    vec![
        late("Late Batching", &[], Look::solid(0)),
        late("without early start", &[("early_start", "false")], Look::dashed(2)),
        late("without early leave", &[("early_leave", "false")], Look::dashed(3)),
        case(bucketed("bucketed, width 10", 10, Look::solid(1)), padded_lstm(512, lengths)),
        case(bucketed_by_turns(Look::dashed(1)), padded_lstm(512, lengths)),
        case(step_by_step.clone(), cellular_lstm(512, lengths)),
        slow_decisions(case(
            Contender::new("Late Batching", "late", &[], Look::dashed(0)),
            cellular_lstm(512, lengths),
        )),
        slow_decisions(case(step_by_step, cellular_lstm(512, lengths))),
    ]
}

/// A decision takes so long that a device which waits for it loses a third of a small batch's time.
/// On two cores of a processor, `compare --live` has 180 us for a task of 440 rows.
const DECISION_US: f64 = 100.0;

/// Returns the case with decisions that take time, which a task that was decided ahead hides.
fn slow_decisions(case: CellsCase) -> CellsCase {
    let name = format!("{}, {DECISION_US} us a decision", case.contender.name);
    CellsCase { contender: Contender { name, ..case.contender }, decision_us: DECISION_US, ..case }
}

fn rates(context: &ReproduceContext) -> Vec<f64> {
    let all = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0].map(|rate| rate * 1e3);
    context.points(&all, 3)
}

fn latency(
    context: &ReproduceContext,
    lengths: LateLengths,
    what: &str,
    of: impl Fn(&SimAnswer) -> f64,
) -> anyhow::Result<ItemReport> {
    let (cases, rates) = (cases(context, lengths), rates(context));
    let answers = sweep(context, &cases, &rates)?;
    let low = sweep(context, &cases, &[5_000.0])?;
    let mut rows = Vec::new();
    for (case, low) in cases.iter().zip(&low) {
        rows.push(case.row(&format!(": {what} at 5K/s"), "ms", of(&low[0])));
    }
    for (name, buckets) in [("less than bucketed at 5K/s", 3), ("less than bucketed, one batch a turn, at 5K/s", 4)] {
        let less = (1.0 - of(&low[0][0]) / of(&low[buckets][0])) * 100.0;
        rows.push(match lengths {
            LateLengths::Twenty => ResultRow::new(name, "%", less)
                .fitted(true)
                .paper(32.5)
                .note("The paper says roughly 25 to 40, below the peak; its middle."),
            LateLengths::Sentences => ResultRow::new(name, "%", less).fitted(true),
        });
    }
    let lines = cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, &of));
    let panels = vec![panel("", "requests a second, answered", &format!("{what}, ms"), lines.collect())];
    Ok(ItemReport { rows, figure: figure(context, &format!("Late Batching: {what}"), lengths, panels) })
}

fn figure(
    context: &ReproduceContext,
    title: &str,
    lengths: LateLengths,
    panels: Vec<ripieno_report::plot::Panel>,
) -> Figure {
    let lengths = if lengths == LateLengths::Sentences { "sample of sentences" } else { "20 words each" };
    let requests = number(context.requests(REQUESTS) as f64);
    Figure {
        title: title.to_owned(),
        subtitle: format!("LSTM, one device, batches of up to 512, {lengths}, {requests} requests a point, 1 seed"),
        panels,
        columns: 1,
        note: LATE_SOURCE.to_owned(),
    }
}

fn figure_5(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (cases, rates) = (cases(context, LateLengths::Sentences), rates(context));
    let (answers, found) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
    let mut rows: Vec<_> = cases.iter().zip(&found).flat_map(|(case, peak)| peak_rows(case, "", peak, None)).collect();
    let note = "The paper says about 25 to 33; its middle. What a turn of the buckets is decides here.";
    for (name, buckets) in [("bucketed", 3), ("bucketed, one batch a turn", 4)] {
        for (what, ratio) in over(&found[0], &found[buckets]) {
            let row = ResultRow::new(format!("gain over {name}, {what}"), "%", (ratio - 1.0) * 100.0).fitted(true);
            rows.push(row.paper(29.0).note(note));
        }
    }
    let line = |(case, answers): (&CellsCase, &Vec<SimAnswer>)| Series {
        name: case.contender.name.clone(),
        points: rates.iter().copied().zip(answers.iter().map(|answer| answer.answered_rps)).collect(),
        look: case.contender.look,
        markers: true,
    };
    let lines = cases.iter().zip(&answers).map(line).collect();
    let panels = vec![panel("", "requests a second, offered", "requests a second, answered", lines)];
    Ok(ItemReport { rows, figure: figure(context, "Late Batching: throughput", LateLengths::Sentences, panels) })
}
