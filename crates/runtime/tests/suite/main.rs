//! The tests of `ripieno-runtime` from outside, in one binary: each binary more is built and linked anew.

mod answers;
mod cancel;
mod classes;
mod common;
mod culprits;
mod deadlines;
mod devices;
mod diversity;
mod elsewhere;
mod idle;
mod isolated;
mod policies;
mod profiles;
mod replay;
mod shards;
mod steps;
mod turns;
