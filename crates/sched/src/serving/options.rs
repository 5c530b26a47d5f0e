//! Options of the scheduler, and its requirements on the driver.

use crate::contract::knobs::{DROP, Knob, MAX_BATCH};
use crate::contract::needs::{Needs, OBJECTIVE};
use crate::contract::network::{CONTROL_US, DATA_US};

/// Options of the scheduler.
pub const KNOBS: &[Knob] = &[MAX_BATCH, DROP, OBJECTIVES, CONTROL_US, DATA_US];

/// Requirements of the scheduler on its driver.
pub const NEEDS: Needs =
    Needs { depth: 2, nodes: true, keeps_deadlines: true, learns_occupancy: true, ..Needs::ONE_TASK };

const OBJECTIVES: Knob = Knob {
    name: OBJECTIVE,
    default: "latency",
    help: "\"latency\" = a batch waits for others only while device time is short, \"efficiency\" = it waits for as long \
           as that saves device time, so that fewer devices suffice",
};
