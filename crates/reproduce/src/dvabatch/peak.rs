//! Figures 15 and 17: the peak load.

use super::SOURCE;
use super::measured::{self, StandInMeasurement};
use super::workload::{
    BERT_BASE, BERT_LARGE, DvaCase, DvaNetwork, DvaSystem, NETWORKS, QOS_MS, Sentences, SimOutcome, Tuned, axis, lines,
    mean, series, settings, tuned,
};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_report::plot::{Bar, Content, Figure, Look, Panel, PlotAxis};
use ripieno_sim::Arrival;
use ripieno_workload::{LengthDistribution, stream, unit};

pub(super) const FIGURE_15: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure15",
    title: "Figure 15: latency and peak throughput at stepping load",
    says: "Over 30,000 queries the load rises from 66/s to 4,000/s, every 2,000 queries. With DVABatch the peak is 46.81 % higher \
           for BertBase and 1.37 times for BertLarge, and the same for the other networks.",
    run: figure_15,
};

pub(super) const FIGURE_17: ExperimentItem = ExperimentItem {
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

/// Returns the load of a query's step: even steps, the last of which would begin after the last
/// query.
fn step_rps(query: u32) -> f64 {
    FIRST_RPS + f64::from(query / STEP) / f64::from(QUERIES / STEP) * (LAST_RPS - FIRST_RPS)
}

/// Returns the queries of a stepping load, with an interval drawn for each by the load of its step.
fn stepping(network: &DvaNetwork, sentences: Sentences) -> anyhow::Result<Vec<Arrival>> {
    let lengths = if network.has_lengths() { sentences.lengths()? } else { LengthDistribution::Fixed(1) };
    let (mut gaps, mut sizes, mut at_s) = (stream(1, 0), stream(1, 1), 0.0);
    let query = |query| {
        at_s -= (1.0 - unit(&mut gaps)).ln() / step_rps(query);
        let at = Time::ORIGIN + Nanos::from_secs_f64(at_s);
        let extent = Extent { length: lengths.draw(&mut sizes), limit: 0 };
        Arrival { extent, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis_f64(QOS_MS)) }
    };
    Ok((0..QUERIES).map(query).collect())
}

/// Returns latencies by query under the stepping load.
fn climb(case: &DvaCase) -> anyhow::Result<Vec<f64>> {
    let mut scenario = case.scenario()?;
    scenario.requests = Some(stepping(case.network, case.sentences)?);
    Ok(SimOutcome::answers(&scenario)?.iter().map(|(arrival, finish)| finish - arrival).collect())
}

/// Returns the load of the last step before the first in which more than 1 % exceed the target.
fn carried_rps(latencies_ms: &[f64]) -> f64 {
    let late = |step: &&[f64]| step.iter().filter(|&&latency| latency > QOS_MS).count() * 100 <= step.len();
    let steps = latencies_ms.chunks(STEP as usize).take_while(late).count() as u32;
    if steps == 0 { 0.0 } else { step_rps((steps - 1) * STEP) }
}

fn figure_15(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let plain: Vec<_> = NETWORKS.iter().map(|network| DvaCase::new(context, network, DvaSystem::DVA, 1.0)).collect();
    let measured = measured_peaks(context, &plain)?;
    let tuned = tuned(context, &plain)?;
    let contenders = |at: usize| [tuned[at][0].system, tuned[at][1].system, DvaSystem::DVA, DvaSystem::BARE];
    let cases: Vec<_> =
        (0..plain.len()).flat_map(|at| contenders(at).map(|system| DvaCase { system, ..plain[at] })).collect();
    let climbs = context.each(&cases, climb)?;
    let searched = searched(context, &plain)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (at, case) in plain.iter().enumerate() {
        let name = case.network.name;
        let steps: Vec<f64> = (0..4).map(|system| carried_rps(&climbs[at * 4 + system])).collect();
        let mut curves = Vec::new();
        for (system, who) in contenders(at).into_iter().enumerate() {
            rows.push(ResultRow::new(format!("{name}: last step carried, {}", who.name()), "queries/s", steps[system]));
            let peak = if system >= 2 { searched[system - 2][at] } else { tuned[at][system].peak };
            let row = ResultRow::new(format!("{name}: peak by search, {}", who.name()), "queries/s", peak);
            rows.push(measured::beside(row, measured[at].as_ref(), |given| given.peak_rps(who)));
            let latencies_ms = &climbs[at * 4 + system];
            let point = |(block, of): (usize, &[f64])| ((block as f64 + 0.5) / 4.0, mean(of.iter().copied()));
            curves.push(series(who, latencies_ms.chunks(500).enumerate().map(point).collect()));
        }
        for ((reading, who), peaks) in DvaSystem::READINGS.into_iter().zip(&searched) {
            for (rule, place) in [("free", 0), ("start", 1)] {
                let gain = peaks[at] / tuned[at][place].peak;
                let row =
                    ResultRow::new(format!("{name}: {reading}peak over DelayBatch, {rule}, by search"), "x", gain);
                let row =
                    row.paper(published_gain(case.network)).note(if case.network.has_lengths() { GAIN } else { "" });
                let given = measured[at].as_ref().filter(|_| who == DvaSystem::BARE);
                rows.push(measured::beside(row, given, |given| given.gain(tuned[at][place].system)));
            }
        }
        let y = PlotAxis { to: Some(2.0 * QOS_MS), ..axis("latency, ms") };
        panels.push(lines(name, axis("query, in steps of 2,000"), y, curves));
    }
    let figure = Figure {
        title: "Latency under a load that rises from 66 to 4,000 queries/s".to_owned(),
        subtitle: "Declared stage profiles; 30,000 queries, mean of every 500".to_owned(),
        panels,
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Returns the peaks of DVABatch in each reading, by case.
fn searched(context: &ReproduceContext, cases: &[DvaCase]) -> anyhow::Result<[Vec<f64>; 2]> {
    let of = |system| {
        let cases: Vec<_> = cases.iter().map(|case| DvaCase { system, ..*case }).collect();
        context.each(&cases, DvaCase::peak)
    };
    Ok([of(DvaSystem::DVA)?, of(DvaSystem::BARE)?])
}

/// Measures the peaks of real models; before the simulations, so that missing models are reported
/// immediately.
fn measured_peaks(context: &ReproduceContext, cases: &[DvaCase]) -> anyhow::Result<Vec<Option<StandInMeasurement>>> {
    cases.iter().map(|case| measured::peaks(context, case)).collect()
}

const GAIN: &str = "The load rises by 262/s a step, so peaks are also searched at constant load, to 1 %: the 99th percentile is at most \
                    200 ms. The paper writes an increase by 46.81 %, and 1.37x for BertLarge.";

fn published_gain(network: &DvaNetwork) -> f64 {
    match network.name {
        "BertBase" => 1.4681,
        "BertLarge" => 1.37,
        _ => 1.0,
    }
}

fn figure_17(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let sets = ["glue-rte", "glue-cola", "sst2-sentences"].map(Sentences::Of);
    let spreads = context.points(&[0.2, 0.4, 0.55, 0.73, 0.9], 2);
    let sentences: Vec<_> = sets.into_iter().chain(spreads.into_iter().map(Sentences::LogNormal)).collect();
    let networks: [&DvaNetwork; 2] = [&BERT_BASE, &BERT_LARGE];
    let cases: Vec<_> = networks
        .iter()
        .flat_map(|network| {
            let plain = DvaCase::new(context, network, DvaSystem::DVA, 1.0);
            sentences.iter().map(move |&sentences| DvaCase { sentences, ..plain })
        })
        .collect();
    let measured = measured_peaks(context, &cases)?;
    let (baselines, peaks) = (tuned(context, &cases)?, searched(context, &cases)?);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, place) in networks.iter().zip(0..) {
        let mut bars = Vec::new();
        for (at, sentences) in sentences.iter().enumerate() {
            let at = place * sentences_len(&cases) + at;
            let name = format!("{}, {}", network.name, sentences.name());
            for (rule, tuned) in ["free", "start"].iter().zip(&baselines[at]) {
                let given = measured[at].as_ref();
                let row = ResultRow::new(format!("{name}: DelayBatch, {rule}"), "queries/s", tuned.peak);
                rows.push(measured::beside(row, given, |given| given.peak_rps(tuned.system)));
                for ((reading, who), peaks) in DvaSystem::READINGS.into_iter().zip(&peaks) {
                    let name = format!("{name}: {reading}DVABatch over it, {rule}");
                    let given = given.filter(|_| who == DvaSystem::BARE);
                    let row = ResultRow::new(name, "x", peaks[at] / tuned.peak);
                    rows.push(measured::beside(row, given, |given| given.gain(tuned.system)));
                }
            }
            let value = peaks[0][at] / baselines[at][0].peak;
            bars.push(Bar { name: sentences.name(), value, spread: None, paper: None, look: Look::solid(0) });
        }
        let own = place * sentences.len();
        let own = own..own + sets.len();
        rows.extend(mean_gains(network, &baselines[own.clone()], peaks.each_ref().map(|peaks| &peaks[own.clone()])));
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
    Ok(ItemReport { rows, figure })
}

/// Returns the mean gain over the data sets, for each reading of DVABatch and of DelayBatch.
fn mean_gains(network: &DvaNetwork, baselines: &[[Tuned; 2]], peaks: [&[f64]; 2]) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for ((reading, _), peaks) in DvaSystem::READINGS.into_iter().zip(peaks) {
        for (rule, which) in [("free", 0), ("start", 1)] {
            let gains = peaks.iter().zip(baselines).map(|(peak, tuned)| peak / tuned[which].peak);
            let name = format!("{}: {reading}DVABatch over DelayBatch, {rule}, mean of three data sets", network.name);
            rows.push(ResultRow::new(name, "x", mean(gains)).paper(published_gain(network)).note(SETS));
        }
    }
    rows
}

/// Returns the number of workloads for each of the two networks.
fn sentences_len(cases: &[DvaCase]) -> usize {
    cases.len() / 2
}

const SETS: &str =
    "RTE, CoLA and SST-2 (whole sentences) in tokens that we counted; the paper averages over ten workloads.";
