//! The catalogue: every policy by the name that its paper gave it, and its constructor.
//!
//! One table serves the command line, the server, the simulator, the contract tests and the
//! documentation. A policy is added by one file or folder and one row here. The file is in
//! `baselines/` if only comparisons use it.

use crate::choice::DEFAULT_POLICY;
use crate::faithful::Faithful;
use crate::policy::{Chains, Form, Policy};
use crate::symphony::{Halves, Matchmaker};
use crate::{baselines, cellular_batching, dvabatch, late_batching, lazy_batching, options, symphony, unified};
use ripieno_model::{Model, Walk};
use ripieno_sched::{BuildError, Knobs, Needs, OptionValue, Options, Scheduler, Setup, admission};

/// Every policy.
pub const CATALOGUE: &[Policy] = &[
    baselines::serial::POLICY,
    baselines::timeout::TIMEOUT,
    baselines::timeout::EAGER,
    symphony::deferred::POLICY,
    baselines::clockwork::POLICY,
    baselines::nexus::POLICY,
    baselines::shepherd::POLICY,
    cellular_batching::POLICY,
    late_batching::POLICY,
    baselines::bucketed::POLICY,
    baselines::graph_merge::POLICY,
    lazy_batching::LAZY,
    lazy_batching::ORACLE,
    baselines::delay_batch::POLICY,
    dvabatch::POLICY,
    unified::POLICY,
];

/// Returns the policy of this name.
pub fn find(name: &str) -> Result<&'static Policy, BuildError> {
    CATALOGUE.iter().find(|policy| policy.name == name).ok_or_else(|| BuildError::UnknownPolicy {
        name: name.to_owned(),
        known: CATALOGUE.iter().map(|policy| policy.name).collect(),
    })
}

/// Builds the policy of this name for a setup.
pub fn build(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let (form, knobs) = checked(name, setup, options)?;
    match form {
        Form::OnePiece(build) => build(setup, &knobs),
        Form::Shards(rules) => options::whole_batches(setup, &knobs, rules(setup, &knobs)?),
    }
}

/// Builds the policy of this name as a server runs it: behind admission control, which rejects
/// requests that are unlikely to meet their deadlines or exceed their share, and which keeps
/// requests of different shapes in separate batches.
///
/// With the option [`FAITHFUL`] a published policy runs as its paper has it.
pub fn build_served(name: &str, setup: &Setup, options: &Options) -> Result<Box<dyn Scheduler>, BuildError> {
    let inner = Setup { limits: admission::Shapes::widen(&setup.limits, 1), ..setup.clone() };
    let (server, options) = ServerLayers::read(name, options)?;
    let policy = build(name, &inner, &options)?;
    Ok(server.wrap(policy, setup, (0, 1)))
}

/// Name of the option by which a server runs a published policy without what it adds to any:
/// deadlines with a margin, corrected profiles and speeds, and admission control.
pub const FAITHFUL: &str = "faithful";

/// The layers that a server puts in front of a policy.
#[derive(Clone, Copy, Debug)]
enum ServerLayers {
    /// Admission control for a policy with these needs.
    Admission(Needs),
    /// None but what keeps answers right.
    Faithful,
}

impl ServerLayers {
    /// Takes the server's own option out of a policy's options.
    fn read(name: &str, options: &Options) -> Result<(ServerLayers, Options), BuildError> {
        let (policy, mut options) = (find(name)?, options.clone());
        match options.remove(FAITHFUL) {
            None | Some(OptionValue::Bool(false)) => Ok((ServerLayers::Admission(policy.needs(&options)), options)),
            Some(_) if name == DEFAULT_POLICY => {
                Err(BuildError::Setup(format!("{name:?} is no published policy; {FAITHFUL:?} needs one")))
            }
            Some(OptionValue::Bool(true)) => Ok((ServerLayers::Faithful, options)),
            Some(other) => Err(BuildError::Setup(format!("option {FAITHFUL:?} is {other}; it must be true or false"))),
        }
    }

    fn wrap(self, policy: Box<dyn Scheduler>, setup: &Setup, part: (usize, usize)) -> Box<dyn Scheduler> {
        match self {
            ServerLayers::Admission(needs) => admission::wrap(policy, needs, setup, part),
            ServerLayers::Faithful => Box::new(Faithful::new(policy, setup, part)),
        }
    }
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
    let inner = Setup { limits: admission::Shapes::widen(&setup.limits, shards), ..setup.clone() };
    if inner.limits.models > ID_SPACE {
        return Err(BuildError::Setup(format!("{shards} shards need more than {ID_SPACE} ids of models; run fewer")));
    }
    let (server, options) = ServerLayers::read(name, options)?;
    let Halves { shards: halves, matchmaker } = build_halves(name, &inner, &options, shards)?;
    let piece = |(number, shard)| server.wrap(Box::new(shard), setup, (number, shards));
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
        Form::Shards(rules) => options::halves(setup, &knobs, rules(setup, &knobs)?, shards.max(1)),
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

impl Policy {
    /// Checks that the policy serves the walk of a model. A driver calls this before it loads a
    /// model into a running scheduler.
    pub fn check_walk(&self, model: &Model) -> Result<(), BuildError> {
        let (policy, name) = (self.name, || model.name.clone());
        let chain = model.blocks.len() > 1;
        if !self.walks.contains(&model.walk) {
            Err(BuildError::Walk { policy, model: name(), walk: model.walk, serves: serving(model.walk, |_| true) })
        } else if chain && self.chains != Chains::Any && model.has_lengths() {
            Err(BuildError::Lengths {
                policy,
                model: name(),
                serves: serving(Walk::Chain, |chains| chains == Chains::Any),
            })
        } else if self.chains == Chains::NoSkips && model.blocks.iter().any(|block| block.skips) {
            Err(BuildError::Skips {
                policy,
                model: name(),
                serves: serving(Walk::Chain, |chains| chains != Chains::NoSkips),
            })
        } else {
            Ok(())
        }
    }
}

/// Returns the names of the policies that serve a walk with matching restrictions on chains.
fn serving(walk: Walk, matches: impl Fn(Chains) -> bool) -> Vec<&'static str> {
    let serves = |policy: &&Policy| policy.walks.contains(&walk) && matches(policy.chains);
    CATALOGUE.iter().filter(serves).map(|policy| policy.name).collect()
}
