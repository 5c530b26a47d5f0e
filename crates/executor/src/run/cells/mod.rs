//! Cells: blocks that a request runs once per element of a sequence or node of a graph, with the
//! same weights.
//!
//! * [`wiring`]: the sources of each cell's inputs, resolved at load.
//! * [`request`]: checks a request and computes its extent, before it takes a slot.
//! * [`row`]: one request's row of an output, in the host's memory or on a device.
//! * [`walk`]: the state of a slot between two cells.
//! * [`task`]: runs one batch: gather, compute, scatter.
//!
//! The state of requests belongs to the loaded model and not to a device, so a request's next cell
//! may run on another device. The outputs of a cell stay in the engine's output batch, and each
//! member keeps its row of it ([`Rows`](crate::run::rows::Rows)). So scattering copies nothing. A
//! batch of the same members in the same order finds its state contiguous and copies nothing
//! either. If a member has ended but is still in queued batches, any row at its position is read.
//! So one early end does not force a copy of the others' state. Rejected: a buffer with one row per
//! slot, which would copy every state twice in every step.

mod examples;
mod linking;
mod request;
mod row;
mod task;
mod walk;
mod wiring;

pub(crate) use linking::link;
pub(crate) use row::{CellOutputs, DeviceOutputs, DeviceStep, HostCopies};
pub(crate) use task::{StepInFlight, execute, launch, settle};
pub(crate) use wiring::{CellWiring, FeedSource, OUTPUT_LENGTH, Seed, Wiring};

use walk::WalkArena;

/// The data of a cell model beyond its plan.
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
