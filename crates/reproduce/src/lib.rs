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
mod live;
mod machine;
mod measured;
mod outcome;
mod parallel;
mod peak;
mod played;
mod print;
mod queue;
mod results;
mod seeds;
mod sources;
mod symphony;
#[cfg(test)]
mod tests;

pub use context::{Effort, ReproduceContext};
pub use item::{ExperimentItem, FinishedItem, ItemReport, ResultRow};
pub use machine::{
    ClusterLoad, ClusterResult, ClusterSetup, Incast, LiveCluster, LiveMachine, LiveScaling, LiveWindow, PolicyResult,
    StressLoad, StressResult,
};
pub use parallel::each;
pub use print::{list_as_json, list_as_text};
pub use queue::JobQueue;
pub use results::{Maker, ResultsFile};

use anyhow::{Context as _, bail};
use item::RunItem;
use std::path::Path;

/// Iterates over all items, by paper.
pub fn items() -> impl Iterator<Item = &'static ExperimentItem> {
    symphony::ITEMS.iter().chain(cells::ITEMS).chain(lazybatching::ITEMS).chain(dvabatch::ITEMS)
}

/// Returns the live form of an item, if it has one.
fn live_form(item: &ExperimentItem) -> Option<RunItem> {
    symphony::LIVE.iter().find(|(id, _)| *id == item.id).map(|(_, run)| *run)
}

/// Runs the live form of an item, and writes its plot into the folder `out`.
pub fn reproduce_live(
    item: &'static ExperimentItem,
    context: &ReproduceContext,
    out: &Path,
) -> anyhow::Result<FinishedItem> {
    let run = live_form(item).with_context(|| format!("{} has no live form", item.id))?;
    item.finish(run, true, context, out)
}

/// Returns the item of this id, or every item for "all". With `live` it must have a live form.
pub fn chosen(what: &str, live: bool) -> anyhow::Result<Vec<&'static ExperimentItem>> {
    let mut chosen: Vec<_> = items().filter(|item| what == "all" || what == item.id).collect();
    if live && !chosen.is_empty() {
        chosen.retain(|item| live_form(item).is_some());
        if chosen.is_empty() {
            let known: Vec<_> = items().filter(|item| live_form(item).is_some()).map(|item| item.id).collect();
            bail!("{what} has no live form; these have one: {}", known.join(", "));
        }
    }
    if chosen.is_empty() {
        let known: Vec<_> = items().map(|item| item.id).collect();
        bail!("nothing is called {what:?}; use list, all, or one of {}", known.join(", "));
    }
    Ok(chosen)
}
