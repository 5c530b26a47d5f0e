//! Figures that the driver learns from what it runs: costs, shapes, delays, failures.

pub(crate) mod capacity;
pub(crate) mod delays;
pub(crate) mod failures;
pub(crate) mod server_delay;
pub(crate) mod shape_costs;
pub(crate) mod shapes;
pub(crate) mod shortest_time;
