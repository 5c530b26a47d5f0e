//! Cells: blocks with shared weights that a request runs once for each element of a sequence or node of a tree.
//!
//! [`wiring`] settles at load where each tensor of a cell comes from, [`request`] says before a request takes a slot
//! whether it can be run and how far it walks, [`walk`] is what a slot holds between two cells, and [`task`] runs one
//! batch: gather, compute, scatter.
//!
//! The arena of walks belongs to the loaded model and not to a device, so that a request's next cell may run on another
//! device. What a cell leaves are rows of the engine's own output batch ([`Rows`](crate::rows::Rows)), so scattering
//! copies nothing, and a batch of the same members in the same order finds its state side by side and copies nothing either.
//! Rejected: a buffer with one row for each slot, which would copy every state twice in every step, even while the
//! membership stays. Of a member that has ended but still stands in batches queued ahead, the rows that lie there are taken,
//! whatever they hold, so that one early end does not make the others' state move.

mod examples;
mod linking;
mod request;
mod task;
mod walk;
mod wiring;

pub(crate) use linking::link;
pub(crate) use task::execute;
pub(crate) use wiring::{OUTPUT_LENGTH, Wiring};

use walk::Arena;

/// What a model in cells has beside its plan.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) wiring: Wiring,
    pub(crate) arena: Arena,
}

impl Cells {
    fn new(wiring: Wiring) -> Cells {
        Cells { wiring, arena: Arena::default() }
    }
}
