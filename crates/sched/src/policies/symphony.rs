//! "deferred": Symphony's deferred batch scheduling.
//!
//! Source: "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", sections 3.1
//! and 3.2, Algorithm 1.
//!
//! 1. The candidate of a model is the largest batch from its queue that can finish by the first
//!    member's deadline d.
//! 2. It may start from frontrun, d − ℓ(b+1), to its latest start, d − ℓ(b): no request that
//!    arrives after frontrun could join it in time, so waiting longer gains nothing, and an earlier
//!    start might prevent a larger batch.
//! 3. At exec = max(now, frontrun) it takes the free device with the smallest id; the others stay
//!    idle for release.
//! 4. Without a free device it stays schedulable until its latest start; a device that becomes free
//!    takes the schedulable candidate with the earliest latest start.
//! 5. Candidates are recomputed on every arrival and grant, and when their latest start has passed.
//!
//! State: a queue, a candidate and a rate meter per model; devices by id. It ignores future
//! requests of other models.
//!
//! Choices where the paper leaves freedom: `gather = "window"` is the default, since with "prefix"
//! goodput collapses beyond the peak; passed-over heads are dropped when the batch starts, not
//! before.
//!
//! Two objectives are additions to the paper (docs/internals/adr/0018). A batch of b rows that
//! would grow to b' by its frontrun may start as soon as p·ℓ(b)/b ≤ ℓ(b')/b', where p is the price
//! of device time: 1 for "efficiency", and its measured shortage for "latency"
//! (`shard/scarcity.rs`). A batch that no request will join therefore starts immediately under
//! both. Under "latency" a batch for the last idle device starts halfway to the time at which the
//! next one becomes free, and evenly spaced as far as arrivals are even or device time is short
//! (docs/internals/adr/0024), so that devices become free one after the other and none runs a
//! single row while others wait. Between two blocks of a chain, a batch of another model that could
//! wait for neither the next border nor another device runs first (docs/internals/adr/0027).
//! Frontrun is moved ahead by twice the time in which a device becomes free of other models, so
//! that deferred batches do not collide at their latest starts. Heads that keep the batch below
//! that size are passed over, and run on a device that no candidate needs.

use super::{CONTROL_US, DATA_US, DEVICE, DROP, LINK_US, MAX_BATCH, SHARDS, network, network_needs};
use crate::Setup;
use crate::knobs::{BuildError, Knob, Knobs};
use crate::parts::models::{BatchOptions, PerModel};
use crate::policy::{Chains, Form, Needs, Policy, ServedSetting};
use crate::shard::{Gather, Price, Rules, StartBy, StartRule};
use ripieno_model::DropRule;

pub(crate) const POLICY: Policy = Policy {
    name: "deferred",
    source: "Symphony, sections 3.1 and 3.2",
    summary: "a batch starts at the last moment that keeps its size, so that it is as large as its deadline allows",
    walks: super::WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "gather",
            default: "window",
            help: "requests that form a batch: \"prefix\" = from the head, as many as its deadline allows; \"window\" \
                   = heads that keep the batch below its target are passed over; \"spare\" (default except for \
                   \"published\") = likewise, with a target that carries the load, and passed-over requests run on \
                   spare devices",
        },
        Knob {
            name: "objective",
            default: "published",
            help: "\"published\" = always defer to the latest start; \"latency\" = wait only as far as device time is \
                   short; \"efficiency\" = wait for as long as that saves device time",
        },
        MAX_BATCH,
        DROP,
        DEVICE,
        CONTROL_US,
        DATA_US,
        SHARDS,
        LINK_US,
    ],
    needs: |knobs| Needs { keeps_deadlines: true, ..network_needs(knobs) },
    served: &[("objective", ServedSetting::Objective)],
    form: Form::Shards(rules),
};

/// Returns the rules for whole batches.
fn rules(setup: &Setup, knobs: &Knobs<'_>) -> Result<Rules, BuildError> {
    let objectives = [
        ("published", StartRule::Frontrun),
        ("latency", StartRule::Priced(Price::Measured)),
        ("efficiency", StartRule::Priced(Price::Full)),
    ];
    let start = knobs.choice("objective", &objectives, StartRule::Frontrun)?;
    let gather = if start == StartRule::Frontrun { Gather::Window } else { Gather::Spare };
    let gathers = [("prefix", Gather::Prefix), ("window", Gather::Window), ("spare", Gather::Spare)];
    Ok(Rules {
        start: PerModel::all(StartBy::Rule(start)),
        options: BatchOptions::read(setup, knobs, DropRule::Hopeless)?,
        gather: knobs.choice("gather", &gathers, gather)?,
        single: false,
        network: network(knobs)?,
    })
}
