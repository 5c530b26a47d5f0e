//! The description of a policy: its name, the walks it serves, its requirements and its
//! constructor.

use crate::symphony::Rules;
use ripieno_model::Walk;
use ripieno_sched::{BuildError, Knob, Knobs, Needs, OBJECTIVE, Options, Scheduler, Setup};

/// A row of the catalogue.
#[derive(Debug)]
pub struct Policy {
    /// The name on the command line.
    pub name: &'static str,
    /// Source of the policy: title and section of the paper, or the system.
    pub source: &'static str,
    /// A summary in one sentence.
    pub summary: &'static str,
    /// The walks that it serves.
    pub walks: &'static [Walk],
    /// Restrictions of the policy on chains.
    pub chains: Chains,
    /// Options of the policy.
    pub knobs: &'static [Knob],
    /// Requirements of the policy on the driver, given the options.
    pub(crate) needs: fn(&Knobs<'_>) -> Needs,
    /// Constructor of the policy.
    pub(crate) form: Form,
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
    /// Returns the policy's requirements on the driver with these options. Invalid values are
    /// rejected when the policy is built.
    pub fn needs(&'static self, options: &Options) -> Needs {
        (self.needs)(&self.read(options))
    }

    pub(crate) fn read<'a>(&'static self, options: &'a Options) -> Knobs<'a> {
        Knobs { policy: self.name, known: self.knobs, options }
    }

    /// Returns true if the policy can run as model shards and a matchmaker on separate threads.
    pub fn is_sharded(&self) -> bool {
        matches!(self.form, Form::Shards(_))
    }

    /// Returns true if the policy supports a server's objective: short latencies or few devices.
    pub fn has_objective(&self) -> bool {
        self.has(OBJECTIVE)
    }

    /// Returns true if the policy has this option.
    pub fn has(&self, knob: &str) -> bool {
        self.knobs.iter().any(|known| known.name == knob)
    }
}
