//! Figures 15 and 17: what load is carried.

use super::SOURCE;
use super::measured::{self, Given};
use super::workload::{
    BERT_BASE, BERT_LARGE, Case, NETWORKS, Network, Outcome, QOS_MS, Sentences, System, axis, lines, mean, series,
    settings, tuned,
};
use crate::context::Context;
use crate::item::{Item, Report, Row};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_report::plot::{Axis, Bar, Content, Figure, Look, Panel};
use ripieno_sim::Arrival;
use ripieno_workload::{Lengths, stream, unit};

pub(super) const FIGURE_15: Item = Item {
    id: "dvabatch/figure15",
    title: "Figure 15: latency and peak throughput at stepping load",
    says: "Over 30,000 queries the load rises from 66/s to 4,000/s, every 2,000 queries. With DVABatch the peak is 46.81 % higher \
           for BertBase and 1.37 times for BertLarge, and the same for the other networks.",
    run: figure_15,
};

pub(super) const FIGURE_17: Item = Item {
    id: "dvabatch/figure17",
    title: "Figure 17: peak load by the spread of lengths",
    says: "On average over the workloads of GLUE the peak is 46.8 % higher for BertBase and 1.37 times for BertLarge; the more \
           uneven the lengths, the more.",
    run: figure_17,
};

const QUERIES: u32 = 30_000;
const STEP: u32 = 2_000;
const FIRST_RPS: f64 = 66.0;
const LAST_RPS: f64 = 4_000.0;

/// The load of the step that a query belongs to: even steps, the last of which would begin after the last query.
fn step_rps(query: u32) -> f64 {
    FIRST_RPS + f64::from(query / STEP) / f64::from(QUERIES / STEP) * (LAST_RPS - FIRST_RPS)
}

/// The queries of a stepping load, with an interval drawn for each by the load of its step.
fn stepping(network: &Network, sentences: Sentences) -> anyhow::Result<Vec<Arrival>> {
    let lengths = if network.has_lengths() { sentences.lengths()? } else { Lengths::Fixed(1) };
    let (mut gaps, mut sizes, mut at_s) = (stream(1, 0), stream(1, 1), 0.0);
    let query = |query| {
        at_s -= (1.0 - unit(&mut gaps)).ln() / step_rps(query);
        let at = Time::ORIGIN + Nanos::from_secs_f64(at_s);
        let extent = Extent { length: lengths.draw(&mut sizes), limit: 0 };
        Arrival { extent, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis_f64(QOS_MS)) }
    };
    Ok((0..QUERIES).map(query).collect())
}

/// Latencies by query under the stepping load.
fn climb(case: &Case) -> anyhow::Result<Vec<f64>> {
    let mut scenario = case.scenario()?;
    scenario.requests = Some(stepping(case.network, case.sentences)?);
    Ok(Outcome::answers(&scenario)?.iter().map(|(arrival, finish)| finish - arrival).collect())
}

/// The load of the last step before the first in which more than 1 % take longer than the target.
fn carried_rps(latencies_ms: &[f64]) -> f64 {
    let late = |step: &&[f64]| step.iter().filter(|&&latency| latency > QOS_MS).count() * 100 <= step.len();
    let steps = latencies_ms.chunks(STEP as usize).take_while(late).count() as u32;
    if steps == 0 { 0.0 } else { step_rps((steps - 1) * STEP) }
}

fn figure_15(context: &Context) -> anyhow::Result<Report> {
    let plain: Vec<_> = NETWORKS.iter().map(|network| Case::new(context, network, System::DVA, 1.0)).collect();
    let measured = measured_peaks(context, &plain)?;
    let tuned = tuned(context, &plain)?;
    let contenders = |at: usize| [tuned[at][0].system, tuned[at][1].system, System::DVA];
    let cases: Vec<_> =
        (0..plain.len()).flat_map(|at| contenders(at).map(|system| Case { system, ..plain[at] })).collect();
    let climbs = context.each(&cases, climb)?;
    let searched = context.each(&plain, Case::peak)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (at, case) in plain.iter().enumerate() {
        let name = case.network.name;
        let steps: Vec<f64> = (0..3).map(|system| carried_rps(&climbs[at * 3 + system])).collect();
        let mut curves = Vec::new();
        for (system, who) in contenders(at).into_iter().enumerate() {
            rows.push(Row::new(format!("{name}: last step carried, {}", who.name()), "queries/s", steps[system]));
            let peak = if system == 2 { searched[at] } else { tuned[at][system].peak };
            let row = Row::new(format!("{name}: peak by search, {}", who.name()), "queries/s", peak);
            rows.push(measured::beside(row, measured[at].as_ref(), |given| given.peak_rps(who)));
            let latencies_ms = &climbs[at * 3 + system];
            let point = |(block, of): (usize, &[f64])| ((block as f64 + 0.5) / 4.0, mean(of.iter().copied()));
            curves.push(series(who, latencies_ms.chunks(500).enumerate().map(point).collect()));
        }
        for (rule, place) in [("free", 0), ("start", 1)] {
            let gain = searched[at] / tuned[at][place].peak;
            let row = Row::new(format!("{name}: peak over DelayBatch, {rule}, by search"), "x", gain);
            let row = row.paper(published_gain(case.network)).note(if case.network.has_lengths() { GAIN } else { "" });
            rows.push(measured::beside(row, measured[at].as_ref(), |given| given.gain(tuned[at][place].system)));
        }
        let y = Axis { to: Some(2.0 * QOS_MS), ..axis("latency, ms") };
        panels.push(lines(name, axis("query, in steps of 2,000"), y, curves));
    }
    let figure = Figure {
        title: "Latency under a load that rises from 66 to 4,000 queries/s".to_owned(),
        subtitle: "Declared stage profiles; 30,000 queries, mean of every 500".to_owned(),
        panels,
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(Report { rows, figure })
}

/// What real models carry; before the simulations, so that what is missing for it is told at once.
fn measured_peaks(context: &Context, cases: &[Case]) -> anyhow::Result<Vec<Option<Given>>> {
    cases.iter().map(|case| measured::peaks(context, case)).collect()
}

const GAIN: &str = "The load rises by 262/s a step, so peaks are also searched at constant load, to 1 %: the 99th percentile is at most \
                    200 ms. The paper writes an increase by 46.81 %, and 1.37x for BertLarge.";

fn published_gain(network: &Network) -> f64 {
    match network.name {
        "BertBase" => 1.4681,
        "BertLarge" => 1.37,
        _ => 1.0,
    }
}

fn figure_17(context: &Context) -> anyhow::Result<Report> {
    let sets = ["glue-rte", "glue-cola", "sst2-sentences"].map(Sentences::Of);
    let spreads = context.points(&[0.2, 0.4, 0.55, 0.73, 0.9], 2);
    let sentences: Vec<_> = sets.into_iter().chain(spreads.into_iter().map(Sentences::LogNormal)).collect();
    let networks: [&Network; 2] = [&BERT_BASE, &BERT_LARGE];
    let cases: Vec<_> = networks
        .iter()
        .flat_map(|network| {
            let plain = Case::new(context, network, System::DVA, 1.0);
            sentences.iter().map(move |&sentences| Case { sentences, ..plain })
        })
        .collect();
    let measured = measured_peaks(context, &cases)?;
    let (baselines, peaks) = (tuned(context, &cases)?, context.each(&cases, Case::peak)?);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, place) in networks.iter().zip(0..) {
        let mut bars = Vec::new();
        for (at, sentences) in sentences.iter().enumerate() {
            let at = place * sentences_len(&cases) + at;
            let name = format!("{}, {}", network.name, sentences.name());
            for (rule, tuned) in ["free", "start"].iter().zip(&baselines[at]) {
                let given = measured[at].as_ref();
                let row = Row::new(format!("{name}: DelayBatch, {rule}"), "queries/s", tuned.peak);
                rows.push(measured::beside(row, given, |given| given.peak_rps(tuned.system)));
                let row = Row::new(format!("{name}: DVABatch over it, {rule}"), "x", peaks[at] / tuned.peak);
                rows.push(measured::beside(row, given, |given| given.gain(tuned.system)));
            }
            let value = peaks[at] / baselines[at][0].peak;
            bars.push(Bar { name: sentences.name(), value, spread: None, paper: None, look: Look::solid(0) });
        }
        let own = place * sentences.len();
        for (rule, which) in [("free", 0), ("start", 1)] {
            let gain = |at: usize| peaks[own + at] / baselines[own + at][which].peak;
            let name = format!("{}: DVABatch over DelayBatch, {rule}, mean of three data sets", network.name);
            rows.push(Row::new(name, "x", mean((0..sets.len()).map(gain))).paper(published_gain(network)).note(SETS));
        }
        let (x, y) = (axis("peak over DelayBatch, free, x"), axis(""));
        panels.push(Panel { title: network.name.to_owned(), x, y, content: Content::Bars(bars) });
    }
    let figure = Figure {
        title: "Peak load by lengths".to_owned(),
        subtitle: settings(context),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(Report { rows, figure })
}

/// How many workloads each of the two networks was tried with.
fn sentences_len(cases: &[Case]) -> usize {
    cases.len() / 2
}

const SETS: &str =
    "RTE, CoLA and SST-2 (whole sentences) in tokens that we counted; the paper averages over ten workloads.";
