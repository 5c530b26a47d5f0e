//! Reproduces the experiments of the papers and compares the results: `ripieno reproduce`.
//!
//! An [`ExperimentItem`] is a figure or a table. It requests simulations from the
//! [`ReproduceContext`], which are independent of each other, so that they run on all cores. Their
//! results are cached on disk, so that an interrupted command continues where it stopped. The
//! result is an [`ItemReport`]: rows with the paper's value, our value and their ratio, and a plot.
//!
//! A few numbers are measured on a wall clock instead. This crate does not depend on the live
//! driver; the caller provides it as a [`LiveMachine`].

mod case;
mod cells;
mod context;
#[cfg(test)]
mod docs;
mod dvabatch;
mod item;
mod job;
mod lazybatching;
mod machine;
mod measured;
mod outcome;
mod parallel;
mod peak;
mod played;
mod print;
mod queue;
mod results;
mod sources;
mod symphony;
#[cfg(test)]
mod tests;

pub use context::{Effort, ReproduceContext};
pub use item::{ExperimentItem, FinishedItem, ItemReport, ResultRow};
pub use machine::{LiveMachine, PolicyResult, StressLoad, StressResult};
pub use parallel::each;
pub use print::{list_as_json, list_as_text};
pub use queue::JobQueue;
pub use results::{Maker, ResultsFile};

use anyhow::bail;

/// Iterates over all items, by paper.
pub fn items() -> impl Iterator<Item = &'static ExperimentItem> {
    symphony::ITEMS.iter().chain(cells::ITEMS).chain(lazybatching::ITEMS).chain(dvabatch::ITEMS)
}

/// Returns the item of this id, or every item for "all".
pub fn chosen(what: &str) -> anyhow::Result<Vec<&'static ExperimentItem>> {
    let chosen: Vec<_> = items().filter(|item| what == "all" || what == item.id).collect();
    if chosen.is_empty() {
        let known: Vec<_> = items().map(|item| item.id).collect();
        bail!("nothing is called {what:?}; use list, all, or one of {}", known.join(", "));
    }
    Ok(chosen)
}
