//! What is said of a policy: its name, what it serves, what it needs of its driver, and how it is built.

use crate::knobs::{BuildError, Knob, Knobs, Options};
use crate::shard::Rules;
use crate::{Limits, Scheduler, Setup};
use ripieno_model::{Model, Walk};

/// A row of the catalogue.
#[derive(Debug)]
pub struct Policy {
    /// The name on the command line.
    pub name: &'static str,
    /// Where it comes from: title and section of the paper, or the system.
    pub source: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The walks that it serves.
    pub walks: &'static [Walk],
    /// What it makes of chains.
    pub chains: Chains,
    /// What can be set.
    pub knobs: &'static [Knob],
    /// What it needs of its driver with these options.
    pub(crate) needs: fn(&Knobs<'_>) -> Needs,
    /// What a server sets of it, where nobody says otherwise; the defaults are as the paper has it.
    pub(crate) served: &'static [(&'static str, Setting)],
    /// How it is built.
    pub(crate) form: Form,
}

/// To what a server sets an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Always the same.
    Word(&'static str),
    /// The server's own objective.
    Objective,
}

/// What a policy needs of its driver, given its options. A driver whose devices hold less gives what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// How many batches run side by side on a device, each on a lane of it.
    pub lanes: usize,
    /// How many tasks a lane holds at once: the one that runs, and those that are queued behind it.
    pub depth: usize,
    /// Whether nodes of graphs are kept for live requests.
    pub nodes: bool,
    /// Whether it runs steps beyond the end of sequences whose length is known.
    pub pads: bool,
    /// Whether it refuses early, by itself, what cannot be answered in time.
    pub keeps_deadlines: bool,
    /// Whether it takes all that is there up to a full batch, whatever the deadlines, so that the largest batch of a
    /// model that runs whole beside cells must be fitted to its SLO.
    pub fitted: bool,
    /// Whether models take turns on a device, the one first that had none for the longest: a batch, or as many steps of cells as a
    /// device holds tasks.
    pub turns: bool,
}

impl Needs {
    /// The bounds of a server of so many devices and live requests.
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

    /// The same bounds with the lanes, and the tasks on a lane, that are needed.
    pub fn on_devices(self, limits: Limits) -> Limits {
        Limits { lanes: self.lanes, depth: self.depth.min(Limits::MOST_DEPTH), ..limits }
    }

    /// One task at a time on each device, and nothing else.
    pub const ONE_TASK: Needs =
        Needs { lanes: 1, depth: 1, nodes: false, pads: false, keeps_deadlines: false, fitted: false, turns: false };
}

/// The forms in which a policy runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// In one piece.
    OnePiece(Build<Box<dyn Scheduler>>),
    /// As rules for whole batches: in one piece, or as model shards and a matchmaker on threads of their own.
    Shards(Build<Rules>),
}

/// Builds something of a policy from what was set.
type Build<T> = fn(&Setup, &Knobs<'_>) -> Result<T, BuildError>;

/// What a policy makes of chains whose requests are not all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chains {
    /// A batch that has begun takes no further members, or only those that suit it: lengths may differ, and blocks be skipped.
    Any,
    /// Batches meet at later blocks, so their padding must be the same: no model whose cost depends on the length.
    EqualLengths,
    /// Moreover blocks are submitted ahead: none may be skipped.
    NoSkips,
}

impl Policy {
    /// What it needs of its driver with these options. Values that make no sense are refused when the policy is built.
    pub fn needs(&'static self, options: &Options) -> Needs {
        (self.needs)(&self.read(options))
    }

    pub(crate) fn read<'a>(&'static self, options: &'a Options) -> Knobs<'a> {
        Knobs { policy: self.name, known: self.knobs, options }
    }

    /// Whether it can run as model shards and a matchmaker on threads of their own.
    pub fn is_sharded(&self) -> bool {
        matches!(self.form, Form::Shards(_))
    }

    /// Whether it can serve short latencies or few devices, as a server is told.
    pub fn has_objective(&self) -> bool {
        self.served.iter().any(|(_, to)| *to == Setting::Objective)
    }

    /// Whether it has this option.
    pub fn has(&self, knob: &str) -> bool {
        self.knobs.iter().any(|known| known.name == knob)
    }

    /// Whether it serves the walk of a model; a driver asks before it loads one into a scheduler that runs.
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
