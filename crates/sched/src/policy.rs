//! The description of a policy: its name, the walks it serves, its requirements and its
//! constructor.

use crate::knobs::{BuildError, Knob, Knobs, Options};
use crate::shard::Rules;
use crate::{Limits, Scheduler, Setup};
use ripieno_model::{Model, Walk};

/// A row of the catalogue.
#[derive(Debug)]
pub struct Policy {
    /// The name on the command line.
    pub name: &'static str,
    /// Its source: title and section of the paper, or the system.
    pub source: &'static str,
    /// A summary in one sentence.
    pub summary: &'static str,
    /// The walks that it serves.
    pub walks: &'static [Walk],
    /// Its restrictions on chains.
    pub chains: Chains,
    /// Its options.
    pub knobs: &'static [Knob],
    /// Its requirements on the driver, given its options.
    pub(crate) needs: fn(&Knobs<'_>) -> Needs,
    /// Its constructor.
    pub(crate) form: Form,
}

/// Name of the option of a policy that follows a server's objective.
pub(crate) const OBJECTIVE: &str = "objective";

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
    /// Whether it runs steps beyond the end of sequences whose length is known.
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

/// The form in which a policy runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// A single scheduler.
    OnePiece(Build<Box<dyn Scheduler>>),
    /// Rules for whole batches: a single scheduler, or model shards and a matchmaker on separate
    /// threads.
    Shards(Build<Rules>),
}

/// Builds part of a policy from its options.
type Build<T> = fn(&Setup, &Knobs<'_>) -> Result<T, BuildError>;

/// Restrictions of a policy on chains whose requests differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chains {
    /// A batch that has begun takes no further members, or only compatible ones: lengths may
    /// differ, and blocks may be skipped.
    Any,
    /// Batches merge at later blocks, so their padding must be equal: no model whose cost depends
    /// on the length.
    EqualLengths,
    /// In addition, blocks are submitted ahead, so none may be skipped.
    NoSkips,
}

impl Policy {
    /// Returns its requirements on the driver with these options. Invalid values are rejected when
    /// the policy is built.
    pub fn needs(&'static self, options: &Options) -> Needs {
        (self.needs)(&self.read(options))
    }

    pub(crate) fn read<'a>(&'static self, options: &'a Options) -> Knobs<'a> {
        Knobs { policy: self.name, known: self.knobs, options }
    }

    /// Returns whether it can run as model shards and a matchmaker on separate threads.
    pub fn is_sharded(&self) -> bool {
        matches!(self.form, Form::Shards(_))
    }

    /// Returns whether it supports a server's objective: short latencies or few devices.
    pub fn has_objective(&self) -> bool {
        self.has(OBJECTIVE)
    }

    /// Returns whether it has this option.
    pub fn has(&self, knob: &str) -> bool {
        self.knobs.iter().any(|known| known.name == knob)
    }

    /// Checks that it serves the walk of a model. A driver calls this before it loads a model into
    /// a running scheduler.
    pub fn check_walk(&self, model: &Model) -> Result<(), BuildError> {
        let (policy, name) = (self.name, || model.name.clone());
        let chain = model.blocks.len() > 1;
        if !self.walks.contains(&model.walk) {
            Err(BuildError::Walk { policy, model: name(), walk: model.walk })
        } else if chain && self.chains != Chains::Any && model.has_lengths() {
            Err(BuildError::Lengths { policy, model: name() })
        } else if self.chains == Chains::NoSkips && model.blocks.iter().any(|block| block.skips) {
            Err(BuildError::Skips { policy, model: name() })
        } else {
            Ok(())
        }
    }
}
