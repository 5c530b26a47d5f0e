//! Figures 7 and 8: LSTM on one device, by load, largest batch and width of the buckets.

use super::SOURCE;
use super::measured::{CellsMeasured, CellsNetwork, measure};
use super::workload::{
    CellsCase, EUROPARL, LOG_NORMAL, bucketed, bucketed_by_turns, cellular, cellular_lstm, curve, cut_rows, over,
    padded_lstm, panel, peak_rows, peaks, sweep,
};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::peak::PeakRates;
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look};

pub(super) const FIGURE_7A: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure7a",
    title: "Figure 7a: LSTM, batches of up to 512",
    says: "The 90th percentile stays at 12 ms up to 8K requests/s and rises slowly up to 20K; padding begins at 25 ms and ends at 16K.",
    run: |context| figure_7(context, 512),
};

pub(super) const FIGURE_7B: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure7b",
    title: "Figure 7b: LSTM, batches of up to 64",
    says: "The same latency at low load, and much less throughput.",
    run: |context| figure_7(context, 64),
};

pub(super) const FIGURE_8: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure8",
    title: "Figure 8: widths of buckets",
    says: "Narrow buckets carry most and wait longest; wide ones wait less and carry less; a width of 10 is a good trade.",
    run: figure_8,
};

const REQUESTS: u64 = 60_000;
/// The capacity of the paper's buckets, in requests/s, which defines a moderate load.
const PADDED_PEAK: f64 = 16_000.0;

fn cases(context: &ReproduceContext, max_batch: usize, lengths: &str) -> Vec<CellsCase> {
    let case = |contender, model| CellsCase {
        contender,
        model,
        devices: 1,
        requests: context.requests(REQUESTS),
        decision_us: 0.0,
    };
    vec![
        case(cellular("cellular", Look::solid(0)), cellular_lstm(max_batch, lengths)),
        case(bucketed("bucketed", 10, Look::solid(1)), padded_lstm(max_batch, lengths)),
        case(bucketed_by_turns(Look::dashed(1)), padded_lstm(max_batch, lengths)),
    ]
}

fn rates(context: &ReproduceContext, most: f64) -> Vec<f64> {
    let all = [0.05, 0.1, 0.15, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0]
        .map(|share| (share * most / 100.0).round() * 100.0);
    context.points(&all, 3)
}

fn figure_7(context: &ReproduceContext, max_batch: usize) -> anyhow::Result<ItemReport> {
    let wide = max_batch == 512;
    let rates = rates(context, if wide { 20_000.0 } else { 10_000.0 });
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (name, lengths) in [("sample", EUROPARL), ("log-normal", LOG_NORMAL)] {
        let cases = cases(context, max_batch, lengths);
        let (answers, peaks) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
        for (case, peak) in cases.iter().zip(&peaks) {
            rows.extend(noted_peak_rows(case, name, peak, paper_peak(&case.contender.name, wide)));
        }
        for (buckets, peak) in cases.iter().zip(&peaks).skip(1) {
            for (what, ratio) in over(&peaks[0], peak) {
                let name = format!("cellular over {}, {name}, {what}", buckets.contender.name);
                rows.push(ResultRow::new(name, "ratio", ratio).fitted(true).paper(wide.then_some(20.0 / 16.0)));
            }
        }
        if wide {
            let all = rates.iter().zip(answers[0].iter().zip(&answers[1]));
            let moderate: Vec<_> = all.filter(|(rate, _)| **rate <= PADDED_PEAK / 2.0).map(|(_, pair)| pair).collect();
            let what = format!("{name}, against bucketed");
            rows.extend(cut_rows(&what, &moderate, [Some(37.5), Some(90.5)]));
            rows.extend(low_load_rows(context, &cases, name)?);
        }
        if wide && lengths == EUROPARL {
            rows.extend(unfitted_rows(context, &cases, &peaks)?);
            beside(&mut rows, measure(context, CellsNetwork::Lstm, 1, &["cellular", "bucketed,width=10"], 1)?);
        }
        let lines =
            cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
        panels.push(panel(name, "requests a second, answered", "90th percentile, ms", lines.collect()));
    }
    let requests = number(context.requests(REQUESTS) as f64);
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: format!("LSTM with batches of up to {max_batch}"),
            subtitle: format!("one device, buckets of 10, {requests} requests a point, Poisson arrivals, 1 seed"),
            panels,
            columns: 2,
            note: SOURCE.to_owned(),
        },
    })
}

/// Returns the peak of cells at the published times alone: scheduling and gathering for free, as
/// the buckets have it.
fn unfitted_rows(
    context: &ReproduceContext,
    cases: &[CellsCase],
    found: &[PeakRates],
) -> anyhow::Result<Vec<ResultRow>> {
    let contender = cellular("cellular, scheduling and gathering for free", Look::dashed(0));
    let free = CellsCase { contender, model: padded_lstm(512, EUROPARL), ..cases[0].clone() };
    let peaks = peaks(context, std::slice::from_ref(&free))?;
    let mut rows = Vec::new();
    for peak in &peaks {
        rows.extend(peak_rows(&free, ", sample", peak, Some(20_000.0)));
        for (buckets, found) in cases.iter().zip(found).skip(1) {
            for (what, ratio) in over(peak, found) {
                let name = format!("{} over {}, sample, {what}", free.contender.name, buckets.contender.name);
                rows.push(ResultRow::new(name, "ratio", ratio).paper(20.0 / 16.0));
            }
        }
    }
    Ok(rows)
}

/// Adds the measurements of real cells to the rows: peaks, latencies at half of the baseline's
/// peak, and ratios.
fn beside(rows: &mut Vec<ResultRow>, measured: Option<CellsMeasured>) {
    let Some(CellsMeasured { given, half_rps, note }) = measured else { return };
    let who = ["cellular", "bucketed"];
    let at = |name: String| rows.iter().position(|row| row.name == name);
    let peaks = who.map(|who| at(format!("{who}, sample: saturated")));
    let lows = who.map(|who| at(format!("{who}, sample: p90 at 8K/s")));
    let ours = |at: Option<usize>| at.map_or(f64::NAN, |at| rows[at].ours);
    let low = ours(lows[0]) / ours(lows[1]);
    for ((peak, low), given) in peaks.into_iter().zip(lows).zip(&given) {
        if let (Some(peak), Some(low)) = (peak, low) {
            rows[peak].measured = Some(given.peak_rps);
            rows[low].measured = Some(given.p90_ms);
            rows[low] =
                rows[low].clone().note(format!("Measured at {}/s, half of the buckets' peak here.", number(half_rps)));
        }
    }
    let [cellular, bucketed] = given[..] else { return };
    let ratio = rows.iter_mut().find(|row| row.name == "cellular over bucketed, sample, saturated");
    if let Some(row) = ratio {
        *row = row.clone().measured(cellular.peak_rps / bucketed.peak_rps).note(&note);
    }
    let row = ResultRow::new("cellular p90 over bucketed's at half of its peak, sample", "ratio", low).fitted(true);
    rows.push(row.measured(cellular.p90_ms / bucketed.p90_ms).note(note));
}

fn paper_peak(contender: &str, wide: bool) -> Option<f64> {
    match (contender.starts_with("cellular"), wide) {
        (true, true) => Some(20_000.0),
        (false, true) => Some(PADDED_PEAK),
        _ => None,
    }
}

/// Returns the rows of a peak, with a note.
pub(super) fn noted_peak_rows(case: &CellsCase, lengths: &str, peak: &PeakRates, paper: Option<f64>) -> [ResultRow; 2] {
    let note = match case.contender.policy == "cellular" {
        true if paper.is_some() => "The cost of gathering is fitted to 20K.",
        false if lengths == "log-normal" => {
            "One sentence in a hundred is longer than 100 words: rare long buckets hold everything up."
        }
        _ => "",
    };
    peak_rows(case, &format!(", {lengths}"), peak, paper).map(|row| row.note(note))
}

/// Returns the latency under low load.
fn low_load_rows(context: &ReproduceContext, cases: &[CellsCase], name: &str) -> anyhow::Result<Vec<ResultRow>> {
    let answers = sweep(context, cases, &[1_000.0, 5_000.0, 8_000.0])?;
    let mut rows = Vec::new();
    for (case, answers) in cases.iter().zip(&answers) {
        let is_cellular = case.contender.policy == "cellular";
        for (rate, answer) in ["1K", "5K", "8K"].iter().zip(answers) {
            let paper = if is_cellular { Some(12.0) } else { Some(25.0).filter(|_| *rate == "1K") };
            let row = case.row(&format!(", {name}: p90 at {rate}/s"), "ms", answer.p90_ms).paper(paper);
            rows.push(match (is_cellular, *rate) {
                (false, "1K") => {
                    row.note("The paper's smallest. Not reproduced: in turn, a request waits for other buckets.")
                }
                (true, _) => row.note(format!("Mean batch {}.", number(answer.mean_batch))),
                _ => row,
            });
        }
    }
    Ok(rows)
}

fn figure_8(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let rates = rates(context, 20_000.0);
    let requests = context.requests(REQUESTS);
    let mut cases = vec![CellsCase {
        contender: cellular("cellular", Look::solid(0)),
        model: cellular_lstm(512, EUROPARL),
        devices: 1,
        requests,
        decision_us: 0.0,
    }];
    for (at, width) in [1, 5, 10, 20, 40].into_iter().enumerate() {
        let contender = bucketed(&format!("bucketed, width {width}"), width, Look::solid(at + 1));
        cases.push(CellsCase { contender, model: padded_lstm(512, EUROPARL), devices: 1, requests, decision_us: 0.0 });
    }
    let (answers, peaks) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
    let at_2k = sweep(context, &cases, &[2_000.0])?;
    let mut rows = Vec::new();
    for ((case, peak), low) in cases.iter().zip(&peaks).zip(&at_2k) {
        rows.extend(peak_rows(case, "", peak, None));
        let padding = format!("{} % of the rows are padding.", number(low[0].wasted * 100.0));
        rows.push(case.row(": p90 at 2K/s", "ms", low[0].p90_ms).note(padding));
    }
    let ratios: Vec<_> = peaks[1..].iter().map(|peak| over(&peaks[0], peak)).collect();
    for at in 0..2 {
        // NaN if any value is unknown.
        let smaller = |least: f64, ratio: f64| if ratio.is_nan() || ratio < least { ratio } else { least };
        let best = ratios.iter().map(|ratio| ratio[at].1).fold(f64::INFINITY, smaller);
        let row = ResultRow::new(format!("cellular over the best width, {}", ratios[0][at].0), "ratio", best);
        rows.push(row.fitted(true).paper(1.25).note("Above 1: cellular carries more than every width."));
    }
    let lines =
        cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "Widths of buckets".to_owned(),
            subtitle: format!(
                "LSTM, batches of up to 512, sample of sentences, {} requests a point, 1 seed",
                number(requests as f64)
            ),
            panels: vec![panel("", "requests a second, answered", "90th percentile, ms", lines.collect())],
            columns: 1,
            note: SOURCE.to_owned(),
        },
    })
}
