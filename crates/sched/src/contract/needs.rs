//! Requirements of a policy on its driver, and the objective that a server gives it.

use crate::Limits;

/// Requirements of a policy on its driver, given its options. A driver whose devices hold less
/// provides what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Number of batches that run concurrently on a device, each on a lane.
    pub lanes: usize,
    /// Number of tasks that a lane holds: the running one and those queued behind it.
    pub depth: usize,
    /// Whether graph nodes are kept for live requests.
    pub nodes: bool,
    /// True if the policy runs steps beyond the end of sequences whose length is known.
    pub pads: bool,
    /// Whether the policy itself rejects requests that cannot meet their deadlines.
    pub keeps_deadlines: bool,
    /// Whether the policy learns how long tasks occupy devices, so that deadlines need no margin.
    pub learns_occupancy: bool,
}

impl Needs {
    /// Returns the limits of a server with this number of devices and live requests.
    pub fn served(self, devices: usize, requests: usize) -> Limits {
        let nodes = if self.nodes { Limits::SERVED_NODES } else { 0 };
        self.on_devices(Limits {
            requests,
            models: Limits::SERVED_MODELS,
            devices,
            lanes: 1,
            depth: 1,
            batch: Limits::SERVED_BATCH,
            nodes,
        })
    }

    /// Returns `limits` with the required lanes and depth.
    pub fn on_devices(self, limits: Limits) -> Limits {
        Limits { lanes: self.lanes, depth: self.depth.min(Limits::MOST_DEPTH), ..limits }
    }

    /// One task at a time on each device, and no other requirement.
    pub const ONE_TASK: Needs =
        Needs { lanes: 1, depth: 1, nodes: false, pads: false, keeps_deadlines: false, learns_occupancy: false };
}

/// Name of the option of a policy that follows a server's objective.
pub const OBJECTIVE: &str = "objective";

/// The objective of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Short latencies: a batch waits only as far as device time is short.
    #[default]
    Latency,
    /// Few devices: a batch waits for as long as that saves device time.
    Efficiency,
}

impl Objective {
    /// Returns the objective's name, the value of a policy's option.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Latency => "latency",
            Objective::Efficiency => "efficiency",
        }
    }
}
