//! The catalogue: every policy by the name that its paper gave it, and its constructor.
//!
//! One table serves the command line, the server, the simulator, the contract tests and the
//! documentation. A policy is added by one file in `policies/`, or in `baselines/` if it serves
//! only to be compared with, and one row here.

use crate::knobs::{BuildError, Knobs, Options};
use crate::policy::{Chains, Form, Policy};
use crate::shard::{Halves, Matchmaker};
use crate::{Scheduler, Setup, admission, baselines, policies, serving};
use ripieno_model::{Model, Walk};
use std::fmt;

/// Every policy.
pub const CATALOGUE: &[Policy] = &[
    policies::serial::POLICY,
    policies::timeout::TIMEOUT,
    policies::timeout::EAGER,
    policies::symphony::POLICY,
    baselines::clockwork::POLICY,
    baselines::nexus::POLICY,
    baselines::shepherd::POLICY,
    policies::cellular::POLICY,
    policies::late::POLICY,
    policies::bucketed::POLICY,
    policies::graph_merge::POLICY,
    policies::lazy_batching::LAZY,
    policies::lazy_batching::ORACLE,
    policies::delay_batch::POLICY,
    policies::dvabatch::POLICY,
    serving::POLICY,
];

/// Returns the policy of this name.
pub fn find(name: &str) -> Result<&'static Policy, BuildError> {
    CATALOGUE.iter().find(|policy| policy.name == name).ok_or_else(|| BuildError::UnknownPolicy(name.to_owned()))
}

/// Builds the policy of this name for a setup.
pub fn build(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let (form, knobs) = checked(name, setup, options)?;
    match form {
        Form::OnePiece(build) => build(setup, &knobs),
        Form::Shards(rules) => policies::whole_batches(setup, &knobs, rules(setup, &knobs)?),
    }
}

/// Builds the policy of this name as a server runs it: behind admission control, which rejects
/// requests that are unlikely to meet their deadlines or exceed their share, and which keeps
/// requests of different shapes in separate batches.
pub fn build_served(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let inner = Setup { limits: admission::widen(&setup.limits, 1), ..setup.clone() };
    let policy = build(name, &inner, options)?;
    Ok(admission::wrap(policy, find(name)?.needs(options), setup, (0, 1)))
}

/// A policy as a server runs it, in one piece or in several shards.
pub struct ServedPolicy {
    /// The pieces, each behind its own admission control; [`shard_of`](crate::shard_of) gives the
    /// piece of a model.
    pub pieces: Vec<Box<dyn Scheduler>>,
    /// The matchmaker that grants devices to the pieces, if there are several.
    pub matchmaker: Option<Matchmaker>,
}

impl From<Box<dyn Scheduler>> for ServedPolicy {
    fn from(scheduler: Box<dyn Scheduler>) -> ServedPolicy {
        ServedPolicy { pieces: vec![scheduler], matchmaker: None }
    }
}

impl<S: Scheduler + 'static> From<Box<S>> for ServedPolicy {
    fn from(scheduler: Box<S>) -> ServedPolicy {
        ServedPolicy::from(scheduler as Box<dyn Scheduler>)
    }
}

/// Builds the policy of this name as a server runs it, in `shards` shards; with one shard this is
/// [`build_served`].
pub fn build_shards(name: &str, setup: &Setup, options: &Options, shards: usize) -> Result<ServedPolicy, BuildError> {
    if shards <= 1 {
        return Ok(build_served(name, setup, options)?.into());
    }
    let inner = Setup { limits: admission::widen(&setup.limits, shards), ..setup.clone() };
    if inner.limits.models > ID_SPACE {
        return Err(BuildError::Setup(format!("{shards} shards need more than {ID_SPACE} ids of models; run fewer")));
    }
    let Halves { shards: halves, matchmaker } = build_halves(name, &inner, options, shards)?;
    let needs = find(name)?.needs(options);
    let piece = |(number, shard)| admission::wrap(Box::new(shard), needs, setup, (number, shards));
    Ok(ServedPolicy { pieces: halves.into_iter().enumerate().map(piece).collect(), matchmaker: Some(matchmaker) })
}

/// Builds the policy of this name in two halves for separate threads: shards, to which models are
/// assigned round robin by id, and the matchmaker.
pub fn build_halves(name: &str, setup: &Setup, options: &Options, shards: usize) -> Result<Halves, BuildError> {
    let (form, knobs) = checked(name, setup, options)?;
    match form {
        Form::OnePiece(_) => {
            let sharded: Vec<_> = CATALOGUE.iter().filter(|other| other.is_sharded()).map(|other| other.name).collect();
            let sharded = sharded.join(", ");
            Err(BuildError::Setup(format!("policy {name:?} does not run in shards; these do: {sharded}")))
        }
        Form::Shards(rules) => policies::halves(setup, &knobs, rules(setup, &knobs)?, shards.max(1)),
    }
}

/// Number of distinct model ids, which have 16 bits.
const ID_SPACE: usize = 1 << 16;

/// Returns the form of the policy and its options, if it serves the setup with them.
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

/// Returns the names of the policies with matching restrictions on chains.
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
            BuildError::UnknownModel { option, models } => {
                let models: Vec<_> = models.iter().take(20).map(String::as_str).collect();
                write!(f, "option {option:?} names a model that is not there; the models are: {}", models.join(", "))
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
                let serve = names(|chains| chains != Chains::NoSkips);
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
