//! External tests of `ripieno-runtime`, in one binary: each further binary would be built and
//! linked separately.

mod answers;
mod bad_requests;
mod cancel;
mod classes;
mod common;
mod deadlines;
mod devices;
mod diversity;
mod flight;
mod gathering;
mod holding;
mod idle;
mod isolated;
mod policies;
mod profiles;
mod remote;
mod replay;
mod shards;
mod sizes;
mod steps;
mod turns;
mod why;
