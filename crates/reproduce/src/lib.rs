//! Runs the experiments of the papers again, and says how ours compare: `ripieno reproduce`.
//!
//! An [`Item`] is a figure or a table. It asks the [`Context`] for simulations, which are
//! independent of each other, so that they run on all cores, and are kept on disk, so that an interrupted call goes on
//! where it was. What comes out is a [`Report`]: rows of paper's value, our value and ratio, and a plot.
//!
//! Few numbers are measured on a wall clock instead. The live driver is not known here, as it never is beside the simulator: whoever
//! calls brings it as a [`Machine`].

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
mod symphony;
#[cfg(test)]
mod tests;

pub use context::{Context, Effort};
pub use item::{Done, Item, Report, Row};
pub use machine::{Carried, Compared, Machine, Stress};
pub use parallel::each;
pub use print::{list_as_json, list_as_text};
pub use queue::Queue;
pub use results::{Maker, Results};

use anyhow::bail;

/// All that can be reproduced, by paper.
pub fn items() -> impl Iterator<Item = &'static Item> {
    symphony::ITEMS.iter().chain(cells::ITEMS).chain(lazybatching::ITEMS).chain(dvabatch::ITEMS)
}

/// The item of this id, or with "all" every one.
pub fn chosen(what: &str) -> anyhow::Result<Vec<&'static Item>> {
    let chosen: Vec<_> = items().filter(|item| what == "all" || what == item.id).collect();
    if chosen.is_empty() {
        let known: Vec<_> = items().map(|item| item.id).collect();
        bail!("nothing is called {what:?}; use list, all, or one of {}", known.join(", "));
    }
    Ok(chosen)
}
