//! Figures 3 and 10: the cost of a cell, and the lengths of sentences.

use super::measured::step_times;
use super::workload::{EUROPARL, panel};
use super::{SOURCE, workload};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Figure, Look, Series};
use ripieno_sim::Scenario;
use ripieno_workload::{LengthDistribution, counted_lengths, stream};

pub(super) const FIGURE_3: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure3",
    title: "Figure 3: time and throughput of one LSTM step by batch size",
    says: "A step takes about as long for 64 rows as for one; beyond 512 rows throughput grows no more. On a processor batching \
           matters as much.",
    run: figure_3,
};

pub(super) const FIGURE_10: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure10",
    title: "Figure 10: lengths of sentences",
    says: "The mean is 24, the longest sentence has 330 words, and about 99 % have fewer than 100.",
    run: figure_10,
};

fn figure_3(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let parse = |model: workload::CellsModel| {
        Scenario::parse(&format!("rate = 1.0\npolicy = \"cellular\"\n{}", model.table), "figure 3")
    };
    let (raw, scheduled) =
        (parse(workload::padded_lstm(512, EUROPARL))?, parse(workload::cellular_lstm(512, EUROPARL))?);
    let latency =
        |scenario: &Scenario, batch: usize| scenario.setup.models[0].blocks[0].profile.latency(batch).as_millis_f64();
    let mut rows = Vec::new();
    for (batch, paper) in [(64, Some(185.0)), (256, None), (512, Some(784.0))] {
        let given = if paper.is_some() { "Given to the simulator." } else { "From \"20 % more throughput at 512\"." };
        let ours = latency(&raw, batch) * 1e3;
        rows.push(ResultRow::new(format!("one step, {batch} rows"), "us", ours).paper(paper).note(given));
    }
    for (batch, other) in [(64, 1), (512, 64)] {
        let gain = batch as f64 / other as f64 * latency(&raw, other) / latency(&raw, batch);
        rows.push(
            ResultRow::new(format!("throughput of {batch} rows over {other}"), "x", gain).note("By the costs given."),
        );
    }
    if let Some((times_ms, note)) = step_times(context, 512)? {
        let at = |batch: usize| times_ms.get(batch - 1).copied();
        let gain = |batch: usize, other: usize| Some(batch as f64 / other as f64 * at(other)? / at(batch)?);
        let measured = [64, 256, 512].map(|batch| at(batch).map(|ms| ms * 1e3)).into_iter();
        let gains = [(64, 1), (512, 64)].map(|(batch, other)| gain(batch, other));
        for (row, value) in rows.iter_mut().zip(measured.chain(gains)) {
            let own = row.clone().measured(value);
            *row = if value.is_some() { own.note(&note) } else { own };
        }
    }
    let gather = workload::GATHER_US * 64.0;
    let step = latency(&scheduled, 64) * 1e3 + gather;
    let note = "Fitted: 33.9 us a task, 0.092 us a row, 0.395 us a row that is gathered.";
    rows.push(
        ResultRow::new("one step, 64 rows, with scheduling and gathering", "us", step)
            .fitted(true)
            .paper(250.0)
            .note(note),
    );
    let gain = (512.0 / latency(&raw, 512)) / (256.0 / latency(&raw, 256)) - 1.0;
    rows.push(ResultRow::new("throughput of 512 rows over 256", "%", gain * 100.0).paper(20.0).note("Given."));
    let batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512];
    let series = |name: &str, scenario: &Scenario, look| {
        let point = |&batch: &usize| (batch as f64 / latency(scenario, batch) * 1e3, latency(scenario, batch) * 1e3);
        Series { name: name.to_owned(), points: batches.iter().map(point).collect(), look, markers: true }
    };
    let lines = vec![
        series("the cell", &raw, Look::solid(0)),
        series("with scheduling, without gathering", &scheduled, Look::dashed(0)),
    ];
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "The cost of a step, as the simulator takes it".to_owned(),
            subtitle: "LSTM, hidden size 1,024; 1 to 512 rows".to_owned(),
            panels: vec![panel("", "cells a second", "one step, us", lines)],
            columns: 1,
            note: SOURCE.to_owned(),
        },
    })
}

fn figure_10(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let europarl = counted_lengths("europarl-en")?.scaled_to(24.0)?;
    let law = LengthDistribution::log_normal(2.914, 0.727, 1, 330)?;
    let mut random = stream(1, 0);
    let mut drawn: Vec<u32> = (0..100_000).map(|_| law.draw(&mut random)).collect();
    drawn.sort_unstable();
    let of_law = |share: f64| f64::from(drawn[((drawn.len() - 1) as f64 * share) as usize]);
    let of_sample = |share: f64| f64::from(europarl.at(share));
    let mean = drawn.iter().map(|&length| f64::from(length)).sum::<f64>() / drawn.len() as f64;
    let below = |at: &dyn Fn(f64) -> f64| {
        (0..=1000).filter(|&share| at(f64::from(share) / 1000.0) < 100.0).count() as f64 / 10.01
    };
    let sample = "3,000 Europarl sentences of ours, stretched from 28.8 to the published mean.";
    let chosen = "Log-normal, mu 2.914, sigma 0.727, cut at 330: chosen to agree with the three published numbers.";
    let rows = vec![
        ResultRow::new("mean, sample", "words", europarl.mean()).paper(24.0).note(sample),
        ResultRow::new("mean, log-normal", "words", mean).fitted(true).paper(24.0).note(chosen),
        ResultRow::new("longest, sample", "words", of_sample(1.0))
            .paper(330.0)
            .note("So the sample's tail is lighter."),
        ResultRow::new("longest, log-normal", "words", of_law(1.0)).fitted(true).paper(330.0),
        ResultRow::new("shorter than 100, sample", "%", below(&of_sample)).paper(99.0),
        ResultRow::new("shorter than 100, log-normal", "%", below(&of_law)).fitted(true).paper(99.0),
        ResultRow::new("90th percentile, sample", "words", of_sample(0.9)),
        ResultRow::new("90th percentile, log-normal", "words", of_law(0.9)),
    ];
    let series = |name: &str, at: &dyn Fn(f64) -> f64, look| Series {
        name: name.to_owned(),
        points: (0..=100).map(|share| (at(f64::from(share) / 100.0), f64::from(share))).collect(),
        look,
        markers: false,
    };
    let lines = vec![series("sample", &of_sample, Look::solid(0)), series("log-normal", &of_law, Look::dashed(1))];
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "Lengths of sentences".to_owned(),
            subtitle: "Two readings of what is published".to_owned(),
            panels: vec![panel("", "words", "% of sentences", lines)],
            columns: 1,
            note: SOURCE.to_owned(),
        },
    })
}
