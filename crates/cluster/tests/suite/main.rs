//! The tests of `ripieno-cluster` from outside, in one binary.

mod answers;
mod common;
mod connections;
mod delays;
mod faults;
mod hanging;
mod late_inputs;
mod leaving;
mod plans;
mod reconnecting;
mod releases;
mod spares;
mod walks;
