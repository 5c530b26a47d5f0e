//! Options that several policies share.

use crate::symphony::{DeviceChoice, Fused, Halves, Linked, Rules, Ways};
use ripieno_base::Nanos;
use ripieno_model::Walk;
use ripieno_sched::{BuildError, Knob, Knobs, Needs, NetworkDelay};
use ripieno_sched::{Scheduler, Setup};

/// The walks that policies without cells serve.
pub(crate) const WHOLE: &[Walk] = &[Walk::Whole, Walk::Chain];

/// Number of tasks that a device gets together, of a set of requests that runs to the end.
pub(crate) const SET_AHEAD: usize = 16;

pub(crate) const PASSED: Knob = Knob {
    name: "passed",
    default: "dispatch",
    help: "heads that gather=window passes over are dropped: \"dispatch\" = when the batch starts, \"update\" = at \
           each update of the candidate, as the public code of Symphony's authors does",
};

/// Returns whether passed-over heads are dropped at each update.
pub(crate) fn drops_passed(knobs: &Knobs<'_>) -> Result<bool, BuildError> {
    knobs.choice(PASSED.name, &[("dispatch", false), ("update", true)], false)
}

pub(crate) const DEVICE: Knob = Knob {
    name: "device",
    default: "smallest-id",
    help: "order of preference among free devices: \"smallest-id\" keeps the last devices idle so that they can be released, \
           \"earliest-free\" spreads the load",
};

pub(crate) const SHARDS: Knob = Knob {
    name: "shards",
    default: "none",
    help: "number of model shards that exchange messages with a matchmaker, instead of one scheduler; models are assigned \
           to shards round robin",
};

pub(crate) const LINK_US: Knob =
    Knob { name: "link_us", default: "0", help: "latency of a message between shard and matchmaker, in us" };

/// Builds a whole-batch scheduler with these rules, in one piece or in shards.
pub(crate) fn whole_batches(setup: &Setup, knobs: &Knobs<'_>, rules: Rules) -> Result<Box<dyn Scheduler>, BuildError> {
    let choice = device_choice(knobs)?;
    let delay = link(knobs)?;
    Ok(match knobs.count(SHARDS.name, None)? {
        None => Box::new(Fused::new(setup, choice, rules)),
        // A shard without a model has nothing to do.
        Some(shards) => Box::new(Linked::new(setup, choice, &rules, shards.min(setup.limits.models), delay)),
    })
}

/// Returns the delay between shards and matchmaker; zero for a policy without shards.
fn link(knobs: &Knobs<'_>) -> Result<Nanos, BuildError> {
    if !knobs.has(LINK_US.name) {
        return Ok(Nanos::ZERO);
    }
    Ok(Nanos::from_millis_f64(knobs.number(LINK_US.name, None)?.unwrap_or(0.0) / 1e3))
}

/// Builds the two halves for separate threads.
pub(crate) fn halves(setup: &Setup, knobs: &Knobs<'_>, rules: Rules, shards: usize) -> Result<Halves, BuildError> {
    Ok(Halves::new(setup, device_choice(knobs)?, &rules, shards))
}

/// Returns the requirements of rules that take account of the network: if messages take time, a
/// batch is sent while another one runs.
pub(crate) fn network_needs(knobs: &Knobs<'_>) -> Needs {
    let waits = NetworkDelay::read(knobs).is_ok_and(|network| !network.is_none());
    Needs { depth: if waits { 2 } else { 1 }, ..Needs::ONE_TASK }
}

/// Returns the times that a batch needs to get a device and to reach it.
pub(crate) fn ways(knobs: &Knobs<'_>) -> Result<Ways, BuildError> {
    // An offer goes to the matchmaker, the grant comes back.
    Ok(Ways { network: NetworkDelay::read(knobs)?, round_trip: link(knobs)? * 2 })
}

pub(crate) fn device_choice(knobs: &Knobs<'_>) -> Result<DeviceChoice, BuildError> {
    let choices = [("smallest-id", DeviceChoice::SmallestId), ("earliest-free", DeviceChoice::EarliestFree)];
    knobs.choice("device", &choices, DeviceChoice::SmallestId)
}
