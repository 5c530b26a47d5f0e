//! Many machines as one server.
//!
//! The [`planner`] says how many devices a load needs, and which models share which devices. It decides every few minutes
//! and never about a request. [`handover`] keeps one central scheduler in command of all backends, and puts a spare in its
//! place within milliseconds when it ends.

pub mod handover;
pub mod planner;
