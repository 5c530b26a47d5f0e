//! "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference": its figures
//! and sensitivity studies.
//!
//! Paper values are those that its text prints; nothing is read off pictures. The device is the
//! analytic model of its NPU (`ripieno_model::npu`), whose latencies of one input are calibrated to
//! Table II. Values that the text leaves open (lengths of sentences except for two numbers, loads,
//! lengths of runs) are chosen in `workload.rs`.

mod cost;
mod examples;
mod load;
mod measured;
mod nodes;
mod others;
mod regime;
mod sensitivity;
mod tail;
mod workload;

use super::item::ExperimentItem;

pub(super) const ITEMS: &[ExperimentItem] = &[
    cost::FIGURE_3,
    examples::FIGURE_4,
    load::FIGURE_5,
    examples::FIGURE_6,
    examples::FIGURE_7,
    examples::FIGURE_8,
    examples::FIGURE_10,
    cost::FIGURE_11,
    load::FIGURE_12,
    load::FIGURE_13,
    tail::FIGURE_14,
    tail::FIGURE_15,
    regime::REGIME,
    sensitivity::FIGURE_16,
    sensitivity::DEC_TIMESTEPS,
    sensitivity::MAX_BATCH,
    sensitivity::CO_LOCATED,
    sensitivity::SENTENCES,
    nodes::NODES,
    others::FIGURE_17,
    others::LANGUAGE_PAIRS,
];

/// The note below every plot.
const SOURCE: &str = "Experiment: \"LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference\". Values: ripieno \
                      simulate, on an analytic model of its NPU.";
