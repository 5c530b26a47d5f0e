//! Cells and their costs, and pieces of plots.

use crate::case::Contender;
use crate::context::ReproduceContext;
use crate::item::ResultRow;
use crate::job::{Question, SimAnswer};
use crate::peak::{KnownRate, PeakRates};
use ripieno_report::number;
use ripieno_report::plot::{Content, Look, Panel, PlotAxis, Series};
use std::fmt::Write;

/// A latency target that is never missed: the papers count latency and throughput.
const SLO_MS: f64 = 1e6;

/// The note of a peak that quick runs do not search for.
const UNKNOWN: &str = "Known from long runs only: without --quick.";

/// Latency at which a curve ends, as in the paper's text.
pub(super) const STEEP_MS: f64 = 500.0;

/// English sentences, scaled to the published mean.
pub(super) const EUROPARL: &str = "{ kind = \"histogram\", dataset = \"europarl-en\", mean = 24.0 }";

/// The other reading: the published mean and longest sentence, with 99 % below 100.
pub(super) const LOG_NORMAL: &str = "{ kind = \"lognormal\", mu = 2.914, sigma = 0.727, min = 1, max = 330 }";

/// A contender on a model.
#[derive(Clone, Debug)]
pub(super) struct CellsCase {
    pub(super) contender: Contender,
    pub(super) model: CellsModel,
    pub(super) devices: usize,
    pub(super) requests: u64,
    /// Time of a decision, which a task that was decided ahead does not wait for.
    pub(super) decision_us: f64,
}

/// A model and its costs.
#[derive(Clone, Debug)]
pub(super) struct CellsModel {
    /// The `[[model]]` table.
    pub(super) table: String,
    /// True if a cost was fitted to a result of the paper.
    fitted: bool,
}

/// Costs of an LSTM cell with hidden size 1,024, in ms: 185 us up to 64 rows and 784 us at 512 are
/// the paper's. 470 us at 256 follows from its statement that 512 gives 20 % more cells per second.
/// Costs in between are linear.
const LSTM: [(usize, f64); 3] = [(64, 0.185), (256, 0.470), (512, 0.784)];

/// Costs of scheduling per task and per row, and of gathering per row when the members change.
/// Fitted to the paper's 250 us at 64 rows, 87 % of the peak with one length, and 20K requests/s.
const TASK_MS: f64 = 0.0339;
const ROW_MS: f64 = 0.000_092;
pub(super) const GATHER_US: f64 = 0.395;

/// Returns the cost of the LSTM cell at any batch size, in ms, with scheduling.
fn lstm(batch: usize) -> f64 {
    let points = LSTM.windows(2);
    let between = |pair: &[(usize, f64)]| {
        let ((b0, l0), (b1, l1)) = (pair[0], pair[1]);
        (b0..=b1).contains(&batch).then(|| l0 + (l1 - l0) * (batch - b0) as f64 / (b1 - b0) as f64)
    };
    let flat = if batch <= 64 { Some(LSTM[0].1) } else { None };
    flat.or_else(|| points.into_iter().find_map(between)).unwrap_or(0.784 * batch as f64 / 512.0)
}

/// Returns a `[[model.block]]` table from costs at some batch sizes.
fn block(name: &str, max_batch: usize, cost: impl Fn(usize) -> f64, gather_us: f64) -> String {
    let batches = [1, 16, 64, 256, 512, 1024, 4096].into_iter().filter(|&batch| batch < max_batch).chain([max_batch]);
    let points: Vec<_> = batches.map(|batch| format!("[{batch}, {:.6}]", cost(batch))).collect();
    format!(
        "[[model.block]]\nname = \"{name}\"\nlatency_points = [{}]\ngather_us_per_row = {gather_us:?}\n",
        points.join(", ")
    )
}

fn model(walk: &str, keys: &str, blocks: &[String], fitted: bool) -> CellsModel {
    let blocks = blocks.concat();
    let table = format!("[[model]]\nname = \"m\"\nslo_ms = {SLO_MS:?}\nwalk = \"{walk}\"\n{keys}\n{blocks}");
    CellsModel { table, fitted }
}

/// Returns a chain of LSTM cells as BatchMaker runs it.
pub(super) fn cellular_lstm(max_batch: usize, lengths: &str) -> CellsModel {
    let cost = |batch: usize| lstm(batch) + TASK_MS + ROW_MS * batch as f64;
    model("repeat", &format!("lengths = {lengths}"), &[block("cell", max_batch, cost, GATHER_US)], true)
}

/// Returns the same chain as one materialised graph per bucket: no scheduling between cells.
pub(super) fn padded_lstm(max_batch: usize, lengths: &str) -> CellsModel {
    model("repeat", &format!("lengths = {lengths}"), &[block("cell", max_batch, lstm, 0.0)], false)
}

/// Returns encoder and decoder: the decoder costs three times the encoder, since it is 75 % of the
/// work, and `extra_us` per decoded row on top. The output is as long as the input times a
/// log-normal factor.
pub(super) fn seq2seq(encoder: usize, decoder: usize, extra_us: f64, overhead: bool) -> CellsModel {
    let added = move |batch: usize| if overhead { TASK_MS + ROW_MS * batch as f64 } else { 0.0 };
    let gather = if overhead { GATHER_US } else { 0.0 };
    // Three times the cost of a row in full batches; at 64 rows and fewer, three cells of 185 us.
    let decode = |batch: usize| {
        let per_row = 3.0 * 0.784 / 512.0;
        (3.0 * 0.185_f64).max(per_row * batch as f64) + extra_us * batch as f64 / 1e3
    };
    let keys = format!("lengths = {EUROPARL}\noutput_lengths = {{ kind = \"ratio\", sigma = 0.2 }}");
    let blocks = [
        block("encoder", encoder, |batch| lstm(batch) + added(batch), gather),
        block("decoder", decoder, |batch| decode(batch) + added(batch), gather),
    ];
    model("encode-decode", &keys, &blocks, overhead || extra_us > 0.0)
}

/// Returns the cost of a TreeLSTM cell in ms: 200 us up to 16 rows, 390 at 64, then growing like
/// the LSTM cell. The paper gives none; chosen so that the 90th percentiles at 1K requests/s are
/// close to its own.
fn tree_cell(batch: usize) -> f64 {
    match batch {
        0..=16 => 0.2,
        17..=64 => 0.2 + 0.19 * (batch - 16) as f64 / 48.0,
        _ => 0.390 * lstm(batch) / 0.185,
    }
}

/// BatchMaker's additional cost per task and per row; the latter is fitted to 3.1K requests/s.
const TREE_ROW_MS: f64 = 0.002;

/// Returns leaf and internal cells as BatchMaker runs them.
pub(super) fn cellular_trees(trees: &str) -> CellsModel {
    let cost = |batch: usize| tree_cell(batch) + TASK_MS + TREE_ROW_MS * batch as f64;
    let blocks = [block("leaf", 64, cost, 0.0), block("internal", 64, cost, 0.0)];
    model("tree", &format!("trees = {trees}"), &blocks, true)
}

/// Returns the same cells for merged graphs: batches of all nodes of one level, of any size.
pub(super) fn merged_trees(trees: &str) -> CellsModel {
    let blocks = [block("leaf", 4096, tree_cell, 0.0), block("internal", 4096, tree_cell, 0.0)];
    model("tree", &format!("trees = {trees}"), &blocks, true)
}

/// Returns a graph hard-coded for one shape: a chain of `cells` cells.
pub(super) fn ideal_trees(cells: u32) -> CellsModel {
    let keys = format!("lengths = {{ kind = \"fixed\", value = {cells} }}");
    model("repeat", &keys, &[block("cell", 64, tree_cell, 0.0)], true)
}

impl CellsCase {
    /// Returns a row of this contender, marked if its model has fitted costs.
    pub(super) fn row(&self, what: &str, unit: &'static str, ours: f64) -> ResultRow {
        ResultRow::new(format!("{}{what}", self.contender.name), unit, ours).fitted(self.model.fitted)
    }

    pub(super) fn toml(&self, rate: f64) -> String {
        let CellsCase { contender, model: CellsModel { table, .. }, devices, requests, decision_us } = self;
        let mut text = format!("seed = 1\nrequests = {requests}\nwarmup_fraction = 0.1\nrate = {rate:?}\n");
        if *decision_us > 0.0 {
            let _ = writeln!(text, "decision_us = {decision_us:?}");
        }
        let _ = write!(text, "policy = \"{}\"\n[policy_options]\n", contender.policy);
        for (key, value) in &contender.options {
            let _ = writeln!(text, "{key} = {value}");
        }
        let _ = write!(text, "[cluster]\ndevices = {devices}\n{table}");
        text
    }
}

/// Returns the answer of each case at each rate.
pub(super) fn sweep(
    context: &ReproduceContext,
    cases: &[CellsCase],
    rates: &[f64],
) -> anyhow::Result<Vec<Vec<SimAnswer>>> {
    let jobs: Vec<_> = cases
        .iter()
        .flat_map(|case| rates.iter().map(|&rate| (case.contender.name.clone(), case.toml(rate))))
        .collect();
    let answers = context.ask(Question::Run, &jobs)?;
    Ok(answers.chunks(rates.len()).map(<[SimAnswer]>::to_vec).collect())
}

/// Returns the peaks of each case; unknown in a quick run.
pub(super) fn peaks(context: &ReproduceContext, cases: &[CellsCase]) -> anyhow::Result<Vec<PeakRates>> {
    if context.is_quick() {
        return Ok(vec![PeakRates::default(); cases.len()]);
    }
    // The search chooses the length of its runs: a case that two figures share is searched once.
    let whole = |case: &CellsCase| CellsCase { requests: 1, ..case.clone() }.toml(1000.0);
    let jobs: Vec<_> = cases.iter().map(|case| (case.contender.name.clone(), whole(case))).collect();
    let answers = context.ask(Question::Peak { doublings: context.doublings() }, &jobs)?;
    Ok(answers.into_iter().filter_map(|answer| answer.peak).collect())
}

/// Returns the reduction of the 90th percentile by the first case against the other at moderate
/// loads, in percent: the smallest and the largest of these answers, with the paper's numbers.
pub(super) fn cut_rows(what: &str, pairs: &[(&SimAnswer, &SimAnswer)], papers: [Option<f64>; 2]) -> [ResultRow; 2] {
    let cuts = pairs.iter().map(|(ours, other)| (1.0 - ours.p90_ms / other.p90_ms) * 100.0);
    let least = cuts.clone().fold(f64::INFINITY, f64::min);
    let most = cuts.fold(f64::NEG_INFINITY, f64::max);
    let row = |which: &str, cut: f64, paper: Option<f64>| {
        ResultRow::new(format!("{what}: {which} cut of p90 at moderate load"), "%", cut)
            .fitted(true)
            .paper(paper)
            .note(MODERATE)
    };
    [row("least", least, papers[0]), row("greatest", most, papers[1])]
}

const MODERATE: &str = "Loads up to half of what the buckets carry, as the paper defines moderate. It prints one range over MXNet and \
                        TensorFlow and does not say over which figures.";

/// Returns the two rows of a peak, with the paper's number for both, since the text does not say
/// which of them it is.
pub(super) fn peak_rows(case: &CellsCase, what: &str, peak: &PeakRates, paper: Option<f64>) -> [ResultRow; 2] {
    let PeakRates { sustained, p90_ms, saturated } = *peak;
    let row = |which: &str, known: KnownRate, more: String| {
        let note = match (known.rps, known.requests) {
            (Some(_), requests) => format!("{} requests; {more}.", number(requests as f64)),
            (None, 0) => UNKNOWN.to_owned(),
            (None, requests) => format!("Did not settle within {} requests.", number(requests as f64)),
        };
        case.row(&format!("{what}: {which}"), "requests/s", known.rps()).paper(paper).note(note.replace("; .", "."))
    };
    [
        row("sustained", sustained, format!("p90 there {} ms", number(p90_ms))),
        row("saturated", saturated, String::new()),
    ]
}

/// Returns the ratio of two peaks, sustained and saturated.
pub(super) fn over(peak: &PeakRates, other: &PeakRates) -> [(&'static str, f64); 2] {
    let ratio = |of: fn(&PeakRates) -> KnownRate| of(peak).rps() / of(other).rps();
    [("sustained", ratio(|peak| peak.sustained)), ("saturated", ratio(|peak| peak.saturated))]
}

/// Returns latency over throughput, up to the rate at which it becomes steep.
pub(super) fn curve(contender: &Contender, answers: &[SimAnswer], latency: impl Fn(&SimAnswer) -> f64) -> Series {
    let points = answers.iter().map(|answer| (answer.answered_rps, latency(answer))).filter(|&(_, ms)| ms <= STEEP_MS);
    Series { name: contender.name.clone(), points: points.collect(), look: contender.look, markers: true }
}

pub(super) fn panel(title: &str, x: &str, y: &str, series: Vec<Series>) -> Panel {
    let axis = |label: &str| PlotAxis { label: label.to_owned(), ..PlotAxis::default() };
    Panel { title: title.to_owned(), x: axis(x), y: axis(y), content: Content::Lines(series) }
}

pub(super) fn cellular(name: &str, look: Look) -> Contender {
    Contender::new(name, "cellular", &[], look)
}

/// Returns buckets that keep their turn while they can fill batches.
pub(super) fn bucketed(name: &str, width: u32, look: Look) -> Contender {
    Contender::new(name, "bucketed", &[("width", &width.to_string())], look)
}

/// Returns the other reading of a turn: each bucket gives one batch, round robin.
pub(super) fn bucketed_by_turns(look: Look) -> Contender {
    Contender::new("bucketed, one batch a turn", "bucketed", &[("width", "10"), ("turn", "\"one\"")], look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cost_what_the_paper_says() {
        assert_eq!((lstm(1), lstm(64), lstm(256), lstm(512)), (0.185, 0.185, 0.470, 0.784));
        assert!((tree_cell(64) - 0.39).abs() < 1e-12);
        let step = lstm(64) + TASK_MS + (ROW_MS + GATHER_US / 1e3) * 64.0;
        assert!((step - 0.250).abs() < 1e-3, "{step}");
    }
}
