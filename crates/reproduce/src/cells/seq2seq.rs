//! Figure 13: encoder and decoder on two and four devices.

use super::SOURCE;
use super::measured::{CellsMeasured, CellsNetwork, measure};
use super::workload::{CellsCase, bucketed, cellular, curve, cut_rows, over, panel, peak_rows, peaks, seq2seq, sweep};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look};

pub(super) const FIGURE_13: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure13",
    title: "Figure 13: Seq2Seq on two and four devices",
    says: "8.5K requests/s on two devices and 17K on four; 512 for the encoder adds 3.5 to 6 % over 256.",
    run,
};

/// Adds the measurements of real cells to the rows of two devices.
fn beside(rows: &mut Vec<ResultRow>, measured: Option<CellsMeasured>) {
    let Some(CellsMeasured { given, note, .. }) = measured else { return };
    let [cellular, bucketed] = given[..] else { return };
    // "256,256" has equal batches for both cells, as the real ones do.
    let at = |who: &str| rows.iter().position(|row| row.name == format!("2 devices, {who}: saturated"));
    let (Some(ours), Some(padded)) = (at("cellular 256,256"), at("bucketed, width 10")) else { return };
    rows[ours].measured = Some(cellular.peak_rps);
    rows[padded].measured = Some(bucketed.peak_rps);
    let ratio = rows[ours].ours / rows[padded].ours;
    let row = ResultRow::new("2 devices, cellular 256,256 over bucketed, saturated", "ratio", ratio).fitted(true);
    rows.push(row.measured(cellular.peak_rps / bucketed.peak_rps).note(format!(
        "{note} The decoder chooses among 16,384 tokens, takes three times as long as the encoder, and gives as many tokens as the \
         input has."
    )));
}

/// Moderate loads as fractions of the paper's peak: the buckets carry some 60 % of it.
const MODERATE: [f64; 3] = [0.1, 0.2, 0.3];
const SUMMARY: &str =
    "The paper's summary, over MXNet and TensorFlow; 2.4 us a decoded row are fitted to 8.5K on two devices.";

/// Additional cost of a decoded row, in µs, fitted to the paper's peak.
const FITTED_US: f64 = 2.4;

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = context.requests(60_000);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (devices, paper) in [(2, 8_500.0_f64), (4, 17_000.0)] {
        let case = |contender, model| CellsCase { contender, model, devices, requests, decision_us: 0.0 };
        let cases = [
            case(cellular("cellular 512,256", Look::solid(0)), seq2seq(512, 256, FITTED_US, true)),
            case(cellular("cellular 256,256", Look::dashed(0)), seq2seq(256, 256, FITTED_US, true)),
            case(cellular("cellular 512,256, decoder as published", Look::solid(2)), seq2seq(512, 256, 0.0, true)),
            case(bucketed("bucketed, width 10", 10, Look::solid(1)), seq2seq(256, 256, FITTED_US, false)),
        ];
        let shares = context.points(&[0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0], 3);
        let rates: Vec<_> = shares.iter().map(|share: &f64| (share * paper / 10.0).round() * 10.0).collect();
        let (answers, found) = (sweep(context, &cases, &rates)?, peaks(context, &cases)?);
        for (at, (case, peak)) in cases.iter().zip(&found).enumerate() {
            let (paper, note) = match at {
                0 => (Some(paper), "2.4 us a decoded row are fitted to 8.5K on two devices."),
                2 => (Some(paper), "The published costs, and what scheduling and gathering add."),
                _ => (None, ""),
            };
            let named = |row: ResultRow| ResultRow { name: format!("{devices} devices, {}", row.name), ..row };
            rows.extend(peak_rows(case, "", peak, paper).map(|row| named(row).note(note)));
        }
        if devices == 2 {
            beside(&mut rows, measure(context, CellsNetwork::Seq2Seq, devices, &["cellular", "bucketed,width=10"], 1)?);
        }
        for (what, ratio) in over(&found[0], &found[3]) {
            let name = format!("{devices} devices: throughput over bucketed, {what}");
            rows.push(ResultRow::new(name, "%", (ratio - 1.0) * 100.0).fitted(true).paper(60.0).note(SUMMARY));
        }
        let moderate = sweep(context, &[cases[0].clone(), cases[3].clone()], &MODERATE.map(|share| share * paper))?;
        let pairs: Vec<_> = moderate[0].iter().zip(&moderate[1]).collect();
        rows.extend(cut_rows(&format!("{devices} devices"), &pairs, [Some(17.5), Some(82.6)]));
        for (what, ratio) in over(&found[0], &found[1]) {
            let name = format!("{devices} devices: gain by an encoder of 512, {what}");
            rows.push(
                ResultRow::new(name, "%", (ratio - 1.0) * 100.0)
                    .fitted(true)
                    .note("The paper says 3.5 to 6; each is found to 1 %."),
            );
        }
        let lines =
            cases.iter().zip(&answers).map(|(case, answers)| curve(&case.contender, answers, |answer| answer.p90_ms));
        panels.push(panel(
            &format!("{devices} devices"),
            "requests a second, answered",
            "90th percentile, ms",
            lines.collect(),
        ));
    }
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "Encoder and decoder".to_owned(),
            subtitle: format!("decoder three times the encoder, {} requests a point, 1 seed", number(requests as f64)),
            panels,
            columns: 2,
            note: SOURCE.to_owned(),
        },
    })
}
