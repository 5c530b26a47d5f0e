//! "DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for Efficient Processing of DNN
//! Services on GPUs": its figures.
//!
//! Paper values are those that its text prints; nothing is read off pictures. It prints no times of
//! stages or operators, so the networks are declared profiles (`workload.rs`): the results show the
//! effect of the rules under these profiles, not the performance of a Titan RTX. The baselines'
//! dispatch rule, which the paper does not state, decides much of the comparison, so both are
//! printed: the next batch is formed when the device is free, or when the previous batch starts.

mod diversity;
mod examples;
mod knobs;
mod latency;
mod measured;
mod others;
mod peak;
mod second;
mod workload;

use super::item::ExperimentItem;

pub(super) const ITEMS: &[ExperimentItem] = &[
    examples::FIGURE_3,
    diversity::FIGURE_4,
    diversity::FIGURE_5,
    diversity::FIGURE_6,
    latency::FIGURE_14,
    peak::FIGURE_15,
    latency::FIGURE_16,
    peak::FIGURE_17,
    knobs::FIGURE_18,
    knobs::FIGURE_19,
    knobs::FIGURE_20,
    knobs::FIGURE_21,
    latency::COMP_WAIT,
    second::SECOND_READING,
    others::LAZY,
    others::BUFFERS,
];

/// The note below every plot.
const SOURCE: &str = "Experiment: \"DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for Efficient Processing of DNN \
                      Services on GPUs\". Values: ripieno simulate, on declared stage profiles.";
