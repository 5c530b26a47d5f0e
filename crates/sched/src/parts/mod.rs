//! Parts that policies are made of.

pub(crate) mod calibration;
pub(crate) mod cells;
pub(crate) mod cohorts;
pub(crate) mod cost;
pub(crate) mod devices;
pub(crate) mod drift;
pub(crate) mod fifo;
pub(crate) mod margin;
pub(crate) mod models;
pub(crate) mod play;
pub(crate) mod queue;
pub(crate) mod rate;
pub(crate) mod reach;
pub(crate) mod requests;
pub(crate) mod speeds;
pub(crate) mod tasks;
