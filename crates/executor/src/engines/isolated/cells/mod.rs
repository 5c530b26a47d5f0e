//! Cells of a GPU in a process of their own.
//!
//! A model has one process for each device. It owns the device's context and the rows of state, for
//! all lanes. The server knows which row belongs to which request, and which steps are in flight.
//! So a step crosses as a few words for each member, through memory that both have mapped
//! ([`wire`]). Rows stay where they are, unless the host needs one.
//!
//! If the process ends, its rows are gone, and the requests that had state there are lost. The next
//! step finds a new process, whose rows are all free.

mod host;
mod wire;
mod worker;

pub(crate) use host::{CellProcesses, CellPrograms, CellsOn};
pub(super) use worker::serve_cells;
