//! "Low Latency RNN Inference with Cellular Batching" (BatchMaker) and "Low Latency Model Serving
//! with Late Batching": their examples and figures.
//!
//! Paper values are those that the texts print; nothing is read off pictures. The texts give the
//! time of a cell at some batch sizes. The values in between, and the costs of scheduling and
//! gathering, are chosen in `workload.rs`. Three numbers there are fitted to three of the paper's.
//! Every row that depends on them is marked.

mod cost;
#[cfg(test)]
mod doubling;
mod example;
mod late;
mod lstm;
mod lstm_lengths;
mod measured;
mod seq2seq;
mod trees;
mod workload;

use super::item::ExperimentItem;

pub(super) const ITEMS: &[ExperimentItem] = &[
    cost::FIGURE_3,
    example::FIGURE_5,
    lstm::FIGURE_7A,
    lstm::FIGURE_7B,
    lstm::FIGURE_8,
    lstm_lengths::FIGURE_9,
    cost::FIGURE_10,
    lstm_lengths::FIGURE_11,
    seq2seq::FIGURE_13,
    trees::FIGURE_14,
    trees::FIGURE_15,
    example::LATE_FIGURE_1,
    late::FIGURE_3,
    late::FIGURE_4,
    late::FIGURE_5,
    late::FIGURE_6,
    late::FIGURE_7,
];

/// The note below BatchMaker's plots.
const SOURCE: &str =
    "Experiment: \"Low Latency RNN Inference with Cellular Batching\". Values: ripieno simulate, on emulated devices.";

/// The note below Late Batching's plots.
const LATE_SOURCE: &str =
    "Experiment: \"Low Latency Model Serving with Late Batching\". Values: ripieno simulate, on emulated devices.";
