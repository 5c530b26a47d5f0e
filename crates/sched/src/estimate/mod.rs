//! Estimates for decisions: durations, arrival rates, device occupancy and its price.

pub mod by_length;
pub mod cost;
pub mod occupancy;
pub mod play;
pub mod rate;
pub mod reach;
pub mod scarcity;
