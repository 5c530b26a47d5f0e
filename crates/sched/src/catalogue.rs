//! The catalogue: every policy by the name that its paper gave it, and how it is built.
//!
//! One table serves the command line, the server, the simulator, the contract tests and the documentation. A policy
//! is added by one file in `policies/` and one row here.

use crate::knobs::{BuildError, Knob, Knobs, Options};
use crate::shard::{Halves, Rules};
use crate::{Scheduler, Setup, admission, policies};
use ripieno_model::{Model, Walk};
use std::fmt;

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
    /// How it is built.
    pub(crate) form: Form,
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
}

impl Needs {
    /// One task at a time on each device, and nothing else.
    pub const ONE_TASK: Needs =
        Needs { lanes: 1, depth: 1, nodes: false, pads: false, keeps_deadlines: false, fitted: false };
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
    InStep,
}

/// Every policy.
pub const CATALOGUE: &[Policy] = &[
    policies::serial::POLICY,
    policies::timeout::TIMEOUT,
    policies::timeout::EAGER,
    policies::symphony::POLICY,
    policies::clockwork::POLICY,
    policies::nexus::POLICY,
    policies::shepherd::POLICY,
    policies::cellular::POLICY,
    policies::late::POLICY,
    policies::bucketed::POLICY,
    policies::graph_merge::POLICY,
    policies::lazy_batching::LAZY,
    policies::lazy_batching::ORACLE,
    policies::delay_batch::POLICY,
    policies::dvabatch::POLICY,
];

/// The policy of this name.
pub fn find(name: &str) -> Result<&'static Policy, BuildError> {
    CATALOGUE.iter().find(|policy| policy.name == name).ok_or_else(|| BuildError::UnknownPolicy(name.to_owned()))
}

impl Policy {
    /// What it needs of its driver with these options. Values that make no sense are refused when the policy is built.
    pub fn needs(&'static self, options: &Options) -> Needs {
        (self.needs)(&self.read(options))
    }

    fn read<'a>(&'static self, options: &'a Options) -> Knobs<'a> {
        Knobs { policy: self.name, known: self.knobs, options }
    }

    /// Whether it can run as model shards and a matchmaker on threads of their own.
    pub fn is_sharded(&self) -> bool {
        matches!(self.form, Form::Shards(_))
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
        } else if self.chains == Chains::InStep && model.blocks.iter().any(|block| block.skips) {
            Err(BuildError::Skips { policy, model: name() })
        } else {
            Ok(())
        }
    }
}

/// Builds the policy of this name for a setup.
pub fn build(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let (form, knobs) = checked(name, setup, options)?;
    match form {
        Form::OnePiece(build) => build(setup, &knobs),
        Form::Shards(rules) => policies::whole_batches(setup, &knobs, rules(setup, &knobs)?),
    }
}

/// Builds the policy of this name as a server runs it: behind a door that refuses what no schedule is likely to answer in
/// time and what exceeds its share, and that keeps requests of different shapes apart.
pub fn build_served(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let inner = Setup { limits: admission::widen(&setup.limits), ..setup.clone() };
    let policy = build(name, &inner, options)?;
    Ok(admission::guard(policy, find(name)?.needs(options).keeps_deadlines, setup))
}

/// Builds the policy of this name in two halves, for threads of their own: shards, to which models go in turn by their
/// ids, and the matchmaker.
pub fn build_halves(name: &str, setup: &Setup, options: &Options, shards: usize) -> Result<Halves, BuildError> {
    let (form, knobs) = checked(name, setup, options)?;
    match form {
        Form::OnePiece(_) => Err(BuildError::Setup(format!("policy {name:?} does not run in shards"))),
        Form::Shards(rules) => policies::halves(setup, &knobs, rules(setup, &knobs)?, shards.max(1)),
    }
}

/// How the policy is built, and its options, if it serves the setup with them.
fn checked<'a>(name: &str, setup: &Setup, options: &'a Options) -> Result<(Form, Knobs<'a>), BuildError> {
    let policy = find(name)?;
    setup.models.iter().try_for_each(|model| policy.check_walk(model))?;
    check_setup(setup)?;
    let knobs = policy.read(options);
    knobs.check(setup)?;
    Ok((policy.form, knobs))
}

fn check_setup(setup: &Setup) -> Result<(), BuildError> {
    let limits = &setup.limits;
    let fault = |text: String| Err(BuildError::Setup(text));
    if setup.models.len() > limits.models || setup.devices > limits.devices {
        return fault(format!(
            "{} models and {} devices exceed the limits of {} and {}",
            setup.models.len(),
            setup.devices,
            limits.models,
            limits.devices
        ));
    }
    if limits.requests == 0 || limits.devices == 0 || limits.lanes == 0 || limits.depth == 0 || limits.batch == 0 {
        return fault("every limit must be at least 1".to_owned());
    }
    let bad = |model: &&Model| model.max_batch == 0 || model.max_batch > limits.batch;
    if let Some(model) = setup.models.iter().find(bad) {
        let (name, batch) = (&model.name, model.max_batch);
        return fault(format!("model {name:?} has max_batch {batch}, which is not between 1 and {}", limits.batch));
    }
    // Cells of one request have largest batches of their own.
    let whole = setup.models.iter().filter(|model| !model.walk.is_unfolded());
    let short = |model: &&Model| model.blocks.iter().any(|block| block.profile.max_batch() < model.max_batch);
    match whole.into_iter().find(short) {
        Some(model) => fault(format!("model {:?} has a block whose profile ends before max_batch", model.name)),
        None => Ok(()),
    }
}

/// The policies that serve chains in this way.
fn names(serves: impl Fn(Chains) -> bool) -> String {
    let chain = |policy: &&Policy| policy.walks.contains(&Walk::Chain) && serves(policy.chains);
    let names: Vec<_> = CATALOGUE.iter().filter(chain).map(|policy| policy.name).collect();
    names.join(", ")
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::UnknownPolicy(name) => {
                let known: Vec<_> = CATALOGUE.iter().map(|policy| policy.name).collect();
                write!(f, "unknown policy {name:?}; choose one of: {}", known.join(", "))
            }
            BuildError::UnknownKnob { policy, name } => {
                let knobs = find(policy).map_or(&[][..], |policy| policy.knobs);
                let known: Vec<_> = knobs.iter().map(|knob| knob.name).collect();
                write!(f, "policy {policy:?} has no option {name:?}; it has: {} (or KNOB.MODEL)", known.join(", "))
            }
            BuildError::BadValue { policy, knob, value, expected } => {
                write!(f, "option {knob:?} of policy {policy:?} is {value}; it must be {expected}")
            }
            BuildError::Walk { policy, model, walk } => {
                let serves: Vec<_> =
                    CATALOGUE.iter().filter(|other| other.walks.contains(walk)).map(|other| other.name).collect();
                let (walk, serves) = (walk.name(), serves.join(", "));
                write!(f, "policy {policy:?} does not serve walk {walk:?} of model {model:?}; these do: {serves}")
            }
            BuildError::Lengths { policy, model } => {
                let serve = names(|chains| chains == Chains::Any);
                write!(
                    f,
                    "policy {policy:?} merges batches between the blocks of model {model:?}, but they are padded to \
                     different lengths; serve it in one piece (granularity = \"whole\"), or by one of: {serve}"
                )
            }
            BuildError::Skips { policy, model } => {
                let serve = names(|chains| chains != Chains::InStep);
                write!(
                    f,
                    "policy {policy:?} submits blocks ahead, but requests of model {model:?} skip some; these policies \
                     serve it: {serve}"
                )
            }
            BuildError::Setup(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BuildError {}
