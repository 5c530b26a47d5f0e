//! "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling": its examples, figures
//! and tables.
//!
//! Paper values are those that its text and tables print; nothing is read off pictures. Its text
//! leaves values open: length of runs, seeds, the load at which distributions were taken. They are
//! chosen here once, by constants, and named in the subtitle of each plot. No constant is fitted to
//! a result.

mod example;
mod figure1;
mod figure10;
mod figure11;
mod figure13;
mod figure13_left;
mod figure14;
mod figure15;
mod figure16;
mod figure17;
mod figure2;
mod figure6;
mod figure7;
mod figure9;
mod second;
mod table2;
#[cfg(test)]
mod tests;
mod workload;

use super::item::{ExperimentItem, RunItem};

pub(super) const ITEMS: &[ExperimentItem] = &[
    example::ITEM,
    figure1::FIGURE_1,
    figure2::ITEM,
    figure6::FIGURE_6A,
    figure6::FIGURE_6B,
    figure7::ITEM,
    figure9::ITEM,
    figure10::ITEM,
    figure11::ITEM,
    figure1::FIGURE_12,
    figure13_left::ITEM,
    figure13::ITEM,
    figure14::ITEM,
    figure15::ITEM,
    figure16::ITEM,
    figure17::ITEM,
    table2::ITEM,
    second::ITEM,
];

/// The live forms, by item.
pub(super) const LIVE: &[(&str, RunItem)] = &[
    ("symphony/table2", table2::live),
    ("symphony/figure9", figure9::live),
    ("symphony/figure10", figure10::live),
    ("symphony/figure15", figure15::live),
    ("symphony/figure17", figure17::live),
];

/// The note below every plot.
const SOURCE: &str = "Experiment: \"Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling\". Values: ripieno \
                      simulate, on emulated devices.";
