//! Measurements of real cells on this machine for the simulated figures: with a state of 1,024 and
//! random weights, by `ripieno compare`.
//!
//! The absolute numbers belong to the machine, which is not a GPU; the order of the contenders and
//! their ratios can be compared with the paper. So all contenders of a figure take turns in one
//! run, on the same engine and threads.

use crate::context::ReproduceContext;
use anyhow::Context as _;
use ripieno_onnx::RandomCells;
use std::fs;
use std::path::{Path, PathBuf};

const HIDDEN: usize = 1_024;
/// Limits of real cells: on processors more rows hardly raise the throughput.
const LIMITS: &str = "max_batch = 64\nmax_length = 330\nslo_ms = 60000.0\n";
/// Size at which the decoder's choice of a token costs twice its LSTM, and the decoder three times
/// the encoder, as in the simulation.
const VOCABULARY: usize = 16 * HIDDEN;

/// Length of a turn. A set of merged graphs is answered as one, several times in this span even on
/// a slow machine.
const SECONDS: u32 = 6;

/// A model of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) enum CellsNetwork {
    Lstm,
    Seq2Seq,
    TreeLstm,
}

/// The measurement of one contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContenderMeasurement {
    /// Requests per second with as many outstanding as it accepts.
    pub(super) peak_rps: f64,
    /// The 90th percentile at half of the baseline's peak.
    pub(super) p90_ms: f64,
}

/// The measurements of all contenders, and the load at which the 90th percentile was taken, in
/// requests/s.
#[derive(Clone, Debug)]
pub(super) struct CellsMeasured {
    pub(super) given: Vec<ContenderMeasurement>,
    pub(super) half_rps: f64,
    /// The method, as a sentence.
    pub(super) note: String,
}

/// Measures the contenders, if the user requests it. The peak of `baseline` sets the lower load.
pub(super) fn measure(
    context: &ReproduceContext,
    network: CellsNetwork,
    devices: usize,
    policies: &[&str],
    baseline: usize,
) -> anyhow::Result<Option<CellsMeasured>> {
    let Some(engine) = context.measured() else { return Ok(None) };
    let folder = ScratchFolder::make().context("cannot make a folder for the cells")?;
    let cells = match network {
        CellsNetwork::Lstm => RandomCells::lstm(HIDDEN, HIDDEN, 1),
        CellsNetwork::Seq2Seq => RandomCells::seq2seq(VOCABULARY, HIDDEN, 1),
        CellsNetwork::TreeLstm => RandomCells::tree_lstm(HIDDEN, HIDDEN, 1),
    };
    cells.write(&folder.0, LIMITS).with_context(|| format!("cannot write cells into {}", folder.0.display()))?;
    let rounds = if context.is_quick() { 1 } else { 3 };
    let common = format!("--model {} --engine {engine} --devices {devices} --threads 1 --rounds {rounds}", cells.name);
    let run = |policies: &[&str], more: &str| {
        let policies = policies.iter().flat_map(|policy| ["--policy", policy]);
        let words: Vec<_> = common.split(' ').chain(policies).chain(more.split(' ')).map(str::to_owned).collect();
        context.machine().compare(&folder.0, &words)
    };
    let peaks = run(policies, &format!("--seconds {SECONDS}"))?;
    let half_rps = (peaks[baseline].answered_rps / 2.0).max(0.1);
    let low = run(policies, &format!("--seconds {SECONDS} --rate {half_rps:.2}"))?;
    let given = peaks.iter().zip(&low);
    let given =
        given.map(|(peak, low)| ContenderMeasurement { peak_rps: peak.answered_rps, p90_ms: low.p90_ms }).collect();
    let note = format!(
        "Measured: cells with a state of {HIDDEN}, random weights and batches of up to 64, {engine}, {devices} device{} of one \
         thread, {rounds} x {SECONDS} s, contenders in turn.",
        if devices == 1 { "" } else { "s" }
    );
    Ok(Some(CellsMeasured { given, half_rps, note }))
}

/// Measures one step of an LSTM, in milliseconds by rows, up to the largest batch of a figure; with
/// the method.
pub(super) fn step_times(context: &ReproduceContext, rows: usize) -> anyhow::Result<Option<(Vec<f64>, String)>> {
    let Some(engine) = context.measured() else { return Ok(None) };
    let folder = ScratchFolder::make().context("cannot make a folder for the cells")?;
    let rows = if context.is_quick() { rows / 8 } else { rows };
    let limits = format!("max_batch = {rows}\nmax_length = 330\nslo_ms = 60000.0\n");
    let cells = RandomCells::lstm(HIDDEN, HIDDEN, 1);
    cells.write(&folder.0, &limits).with_context(|| format!("cannot write cells into {}", folder.0.display()))?;
    let words: Vec<_> = ["--engine", engine, "--threads", "1"].map(str::to_owned).into();
    let times = context.machine().costs(&folder.0, &words)?;
    let note = format!(
        "Measured: a cell with a state of {HIDDEN} and random weights on {engine}, one thread of this processor."
    );
    Ok(Some((times, note)))
}

/// A folder for one measurement, removed afterwards with its hundreds of megabytes of weights.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn make() -> std::io::Result<ScratchFolder> {
        let folder = std::env::temp_dir().join(format!("ripieno-measured-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(ScratchFolder(folder))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(%error, folder = %folder.display(), "a folder of measured cells stays behind");
    }
}
