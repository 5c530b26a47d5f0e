//! Records of a run: rings of the last minutes, recordings on disk, their replay, and causes of
//! lateness.

pub(crate) mod flight;
pub mod history;
pub(crate) mod recorder;
pub(crate) mod replay;
