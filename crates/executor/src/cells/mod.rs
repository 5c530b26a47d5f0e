//! Cells: blocks with shared weights that a request runs once for each element of a sequence or
//! node of a tree.
//!
//! [`wiring`] is the source of each tensor of a cell, resolved at load; [`request`] checks a
//! request and computes its extent before it takes a slot; [`walk`] is the state of a slot between
//! two cells; and [`task`] runs one batch: gather, compute, scatter.
//!
//! The arena of walks belongs to the loaded model and not to a device, so a request's next cell may
//! run on another device. A cell's outputs are kept as rows of the engine's own output batch
//! ([`Rows`](crate::rows::Rows)), so scattering copies nothing, and a batch of the same members in
//! the same order finds its state contiguous and copies nothing either. Rejected: a buffer with one
//! row per slot, which would copy every state twice in every step, even with constant membership.
//! For a member that has ended but is still part of queued batches, the rows at its position are
//! read, regardless of their content, so that one early end does not force a copy of the others'
//! state.

mod examples;
mod linking;
mod request;
mod task;
mod walk;
mod wiring;

pub(crate) use linking::link;
pub(crate) use task::execute;
pub(crate) use wiring::{OUTPUT_LENGTH, Wiring};

use walk::WalkArena;

/// The parts of a cell model beside its plan.
#[derive(Debug)]
pub(crate) struct CellModel {
    pub(crate) wiring: Wiring,
    pub(crate) arena: WalkArena,
}

impl CellModel {
    fn new(wiring: Wiring) -> CellModel {
        CellModel { wiring, arena: WalkArena::default() }
    }
}
