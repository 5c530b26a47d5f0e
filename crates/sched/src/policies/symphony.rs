//! "deferred": Symphony's deferred batch scheduling.
//!
//! Source: "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", sections 3.1 and 3.2, Algorithm 1.
//!
//! 1. The candidate of a model is the largest batch from its queue that can finish by the first member's deadline d.
//! 2. It may start from frontrun, d − ℓ(b+1), to its latest moment, d − ℓ(b): no request that arrives after frontrun
//!    could join it in time, so waiting longer gains nothing, and starting sooner might give away a larger batch.
//! 3. At exec = max(now, frontrun) it takes the free device with the smallest id; the others stay idle for release.
//! 4. Without a free device it stays schedulable until its latest moment; a device that falls free takes, of the
//!    schedulable candidates, the one with the earliest latest moment.
//! 5. Candidates are computed anew on every arrival and grant, and when their latest moment has passed.
//!
//! State: a queue, a candidate and a rate meter a model; devices by id. It ignores what other models will ask for.
//!
//! Choices where the paper leaves freedom: `gather = "window"` is the default, since with "prefix" goodput collapses
//! beyond the peak; passed-over heads are dropped when the batch starts, not before.
//!
//! Two objectives are ours (docs/internals/adr/0018). A batch of b rows that would be b' by its frontrun may start as soon as p·ℓ(b)/b ≤ ℓ(b')/b',
//! where p is what device time is worth: 1 for "efficiency", and as much as it is short for "latency" (`shard/scarcity.rs`).
//! So a batch that nobody will join starts at once under both. Under "latency" a batch for the last idle device starts halfway to when the
//! next one falls free, and evenly so far as arrivals do or device time is short (docs/internals/adr/0024), so that devices fall free one after
//! the other and none runs a single row while others wait.
//! Between two blocks of a chain a batch of another model runs first that could wait for neither the next one nor another device
//! (docs/internals/adr/0027). Frontrun is put forward by twice the time in which a device falls free of other models, so that deferred batches do not
//! meet at their last moments. Heads that keep the batch below that size are passed over, and run on a device that nobody
//! else wants.

use super::{CONTROL_US, DATA_US, DEVICE, DROP, LINK_US, MAX_BATCH, SHARDS, ahead, network};
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
            help: "which requests form a batch: \"prefix\" = from the head, as many as its deadline allows; \"window\" = \
                   heads that keep the batch below its target are passed over; \"spare\" (default but for \
                   \"published\") = likewise, towards a size that carries the load, and they run on spare devices",
        },
        Knob {
            name: "objective",
            default: "published",
            help: "\"published\" = always defer to the last moment; \"latency\" = wait only as far as device time is \
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
    needs: |knobs| Needs { keeps_deadlines: true, ..ahead(knobs) },
    served: &[("objective", ServedSetting::Objective)],
    form: Form::Shards(rules),
};

/// What distinguishes the policy on the machinery of whole batches.
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
