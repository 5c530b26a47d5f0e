//! Figures 9 and 11: a breakdown of the time, and the effect of the spread of lengths.

use super::SOURCE;
use super::lstm::noted_peak_rows;
use super::workload::{
    CellsCase, EUROPARL, bucketed, cellular, cellular_lstm, curve, padded_lstm, panel, peaks, sweep,
};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::Question;
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look, Series};

pub(super) const FIGURE_9: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure9",
    title: "Figure 9: queueing and computing at 5K requests/s",
    says: "99 % of the requests wait for at most 1.38 ms, where padding makes them wait for more than 100 ms.",
    run: figure_9,
};

pub(super) const FIGURE_11: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure11",
    title: "Figure 11: one length, up to 50, up to 100",
    says: "With one length padding wins, 27,136 requests/s against 87 % of it; the more lengths differ, the more it loses.",
    run: figure_11,
};

const REQUESTS: u64 = 60_000;

fn pair(context: &ReproduceContext, lengths: &str) -> Vec<CellsCase> {
    let requests = context.requests(REQUESTS);
    let case = |contender, model| CellsCase { contender, model, devices: 1, requests, decision_us: 0.0 };
    vec![
        case(cellular("cellular", Look::solid(0)), cellular_lstm(512, lengths)),
        case(bucketed("bucketed, width 10", 10, Look::solid(1)), padded_lstm(512, lengths)),
    ]
}

fn figure_9(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let cases = pair(context, EUROPARL);
    let jobs: Vec<_> = cases.iter().map(|case| (case.contender.name.clone(), case.toml(5_000.0))).collect();
    let answers = context.ask(Question::Delays, &jobs)?;
    let (mut rows, mut queueing, mut computing) = (Vec::new(), Vec::new(), Vec::new());
    for (case, answer) in cases.iter().zip(&answers) {
        let who = &case.contender.name;
        let is_cellular = case.contender.policy == "cellular";
        let (paper, note) = match is_cellular {
            true => (Some(1.38), "Five tasks of 250 us are 1.25 ms; jitter is not modelled."),
            false => (Some(100.0), "The paper says: more than 100."),
        };
        rows.push(case.row(": p99 of queueing", "ms", answer.p99_queue_ms).paper(paper).note(note));
        rows.push(case.row(": median of computing", "ms", answer.computing_ms.get(50).copied().unwrap_or(0.0)));
        if is_cellular {
            let note = "The paper says 64 most of the time; by Little's law 5,000 x 24 x 250 us is 30.";
            rows.push(case.row(": mean batch", "rows", answer.mean_batch).paper(64.0).note(note));
            let note = "Tasks with the members of the one before, which copy nothing.";
            rows.push(case.row(": tasks without copy", "%", answer.without_copy * 100.0).note(note));
        }
        let series = |values: &[f64]| Series {
            name: who.clone(),
            points: values.iter().zip(0..).map(|(&ms, percent)| (ms, f64::from(percent))).collect(),
            look: case.contender.look,
            markers: false,
        };
        queueing.push(series(&answer.delays_ms));
        computing.push(series(&answer.computing_ms));
    }
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "Queueing and computing at 5K requests/s".to_owned(),
            subtitle: "LSTM, one device, batches of up to 512, sample of sentences".to_owned(),
            panels: vec![
                panel("queueing", "ms", "% of requests", queueing),
                panel("computing", "ms", "% of requests", computing),
            ],
            columns: 2,
            note: SOURCE.to_owned(),
        },
    })
}

fn figure_11(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let sets = [
        ("one length", "{ kind = \"fixed\", value = 24 }".to_owned()),
        ("up to 50", EUROPARL.replace(" }", ", max = 50 }")),
        ("up to 100", EUROPARL.replace(" }", ", max = 100 }")),
    ];
    let rates =
        context.points(&[1.0, 3.0, 5.0, 8.0, 11.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0].map(|rate| rate * 1e3), 3);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (name, lengths) in &sets {
        let mut cases = pair(context, lengths);
        if *name == "one length" {
            // One bucket, which ends with this length.
            cases[1].contender = bucketed("bucketed, width 24", 24, Look::solid(1));
        }
        let (answers, found) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
        for (case, peak) in cases.iter().zip(&found) {
            rows.extend(noted_peak_rows(case, name, peak, None));
        }
        if *name == "one length" {
            let bound = 512.0 / (0.784e-3 * 24.0);
            let note = "784 us x 24 steps for 512 requests; the paper rounds to 53 batches a second.";
            rows.push(ResultRow::new("bound with one length", "requests/s", bound).paper(27_136.0).note(note));
            let note = "Saturated: offered twice the bound. The cost of gathering is fitted to this number.";
            let flood = CellsCase { requests: context.requests(100_000), ..cases[0].clone() };
            let full = sweep(context, &[flood], &[2.0 * bound])?[0][0].answered_rps;
            rows.push(cases[0].row(" with one length, of 27,136", "%", full / 271.36).paper(87.0).note(note));
        }
        let low = sweep(context, &cases, &[1_000.0])?;
        for (case, answers) in cases.iter().zip(&low) {
            rows.push(case.row(&format!(", {name}: p90 at 1K/s"), "ms", answers[0].p90_ms));
        }
        let lines =
            cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
        panels.push(panel(name, "requests a second, answered", "90th percentile, ms", lines.collect()));
    }
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "The spread of lengths".to_owned(),
            subtitle: format!(
                "LSTM, one device, batches of up to 512, {} requests a point, 1 seed",
                number(context.requests(REQUESTS) as f64)
            ),
            panels,
            columns: 3,
            note: SOURCE.to_owned(),
        },
    })
}
