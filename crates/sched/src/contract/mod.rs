//! The contract between a scheduler and its driver: facts, decisions, limits and options.

pub(crate) mod action;
pub(crate) mod cost_scale;
pub(crate) mod event;
pub(crate) mod knobs;
pub(crate) mod layer;
pub(crate) mod limits;
pub(crate) mod needs;
pub(crate) mod network;
pub(crate) mod reason;
pub(crate) mod scheduler;
