//! One policy a file, under its published name. The catalogue lists them.

pub(crate) mod bucketed;
pub(crate) mod cellular;
pub(crate) mod clockwork;
pub(crate) mod delay_batch;
pub(crate) mod dvabatch;
pub(crate) mod graph_merge;
pub(crate) mod late;
pub(crate) mod lazy_batching;
pub(crate) mod nexus;
pub(crate) mod serial;
pub(crate) mod shepherd;
pub(crate) mod symphony;
pub(crate) mod timeout;

use crate::knobs::{BuildError, Knob, Knobs};
use crate::policy::Needs;
use crate::shard::{DeviceChoice, Fused, Halves, Linked, NetworkDelay, Rules};
use crate::{Scheduler, Setup};
use ripieno_base::Nanos;
use ripieno_model::Walk;

/// What policies that never take a request apart serve.
const WHOLE: &[Walk] = &[Walk::Whole, Walk::Chain];

/// Tasks of a set of requests that runs to the end: a device gets so many of them in one go.
const SET_AHEAD: usize = 16;

const DROP: Knob = Knob {
    name: "drop",
    default: "hopeless",
    help: "what becomes of a request that cannot be punctual: \"hopeless\" = rejected at once, \"expired\" = rejected at \
           its deadline, \"never\" = answered late; a model's own drop rule wins",
};

const DEVICE: Knob = Knob {
    name: "device",
    default: "smallest-id",
    help: "which free device is taken: \"smallest-id\" keeps the last devices idle so that they can be released, \
           \"earliest-free\" spreads the load",
};

const MAX_BATCH: Knob =
    Knob { name: "max_batch", default: "the model's", help: "the most rows in a batch; a wider request runs alone" };

const CONTROL_US: Knob = Knob {
    name: "control_us",
    default: "0",
    help: "how long a message to a device may take, in us, by the scheduler's estimate: a high percentile, since a batch \
           that arrives late ends late",
};

const DATA_US: Knob = Knob {
    name: "data_us_per_row",
    default: "0",
    help: "how long a device may take to fetch the inputs of a row, in us, by the scheduler's estimate",
};

const SHARDS: Knob = Knob {
    name: "shards",
    default: "none",
    help: "run as so many model shards and a matchmaker that exchange messages, instead of in one piece; models go to the \
           shards in turn",
};

const LINK_US: Knob =
    Knob { name: "link_us", default: "0", help: "how long a message between shard and matchmaker takes, in us" };

/// The machinery of whole batches under some rules, in one piece or in shards.
pub(crate) fn whole_batches(setup: &Setup, knobs: &Knobs<'_>, rules: Rules) -> Result<Box<dyn Scheduler>, BuildError> {
    let choice = device_choice(knobs)?;
    let delay = link(knobs)?;
    Ok(match knobs.count(SHARDS.name, None)? {
        None => Box::new(Fused::new(setup, choice, rules)),
        // A shard without a model has nothing to do.
        Some(shards) => Box::new(Linked::new(setup, choice, &rules, shards.min(setup.limits.models), delay)),
    })
}

/// The delay between shards and matchmaker; a policy without shards has none.
fn link(knobs: &Knobs<'_>) -> Result<Nanos, BuildError> {
    if !knobs.has(LINK_US.name) {
        return Ok(Nanos::ZERO);
    }
    Ok(Nanos::from_millis_f64(knobs.number(LINK_US.name, None)?.unwrap_or(0.0) / 1e3))
}

/// The same in two halves, for threads of their own.
pub(crate) fn halves(setup: &Setup, knobs: &Knobs<'_>, rules: Rules, shards: usize) -> Result<Halves, BuildError> {
    Ok(Halves::new(setup, device_choice(knobs)?, &rules, shards))
}

/// What rules need that take account of the network: where a message takes time, a batch is sent while another runs.
fn ahead(knobs: &Knobs<'_>) -> Needs {
    let waits = network(knobs).is_ok_and(|network| network.lead(1) > Nanos::ZERO);
    Needs { depth: if waits { 2 } else { 1 }, ..Needs::ONE_TASK }
}

fn network(knobs: &Knobs<'_>) -> Result<NetworkDelay, BuildError> {
    let micros = |knob: &str| Ok(Nanos::from_millis_f64(knobs.number(knob, None)?.unwrap_or(0.0) / 1e3));
    let (control, data_per_row) = (micros(CONTROL_US.name)?, micros(DATA_US.name)?);
    // An offer goes to the matchmaker, the grant comes back.
    Ok(NetworkDelay { control, data_per_row, round_trip: link(knobs)? * 2 })
}

fn device_choice(knobs: &Knobs<'_>) -> Result<DeviceChoice, BuildError> {
    let choices = [("smallest-id", DeviceChoice::SmallestId), ("earliest-free", DeviceChoice::EarliestFree)];
    knobs.choice("device", &choices, DeviceChoice::SmallestId)
}
