//! The tests of `ripieno-executor` from outside, in one binary: each binary more is built and linked anew.

mod cells;
mod common;
mod contract;
mod culprits;
mod deep;
mod engines;
mod isolated;
mod leaving;
mod lengths;
mod unbatched;
mod values;
