//! External tests of `ripieno-executor`, in one binary: each further binary would be built and
//! linked separately.

mod bad_requests;
mod cells;
mod common;
mod contract;
mod deep;
mod defaults;
mod engines;
mod isolated;
mod leaving;
mod lengths;
#[cfg(target_os = "linux")]
mod memory;
mod row_sharing;
mod sizes;
mod unbatched;
mod values;
