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
//! goodput collapses beyond the peak. Passed-over heads are dropped when the batch starts, or with
//! `passed = "update"` whenever the candidate is computed, as the authors' public code does.

use crate::options::{DEVICE, LINK_US, PASSED, SHARDS, drops_passed, network_needs, ways};
use crate::policy::{Chains, Form, Policy};
use crate::symphony::{Gather, Rules, StartBy, StartRule};
use ripieno_model::DropRule;
use ripieno_sched::Needs;
use ripieno_sched::Setup;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{CONTROL_US, DATA_US};
use ripieno_sched::{DROP, MAX_BATCH};

pub(crate) const POLICY: Policy = Policy {
    name: "deferred",
    source: "Symphony, sections 3.1 and 3.2",
    summary: "a batch starts at the last moment that keeps its size, so that it is as large as its deadline allows",
    walks: crate::options::WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "gather",
            default: "window",
            help: "requests that form a batch: \"prefix\" = from the head, as many as its deadline allows; \"window\" \
                   = heads that keep the batch below its target are passed over",
        },
        PASSED,
        MAX_BATCH,
        DROP,
        DEVICE,
        CONTROL_US,
        DATA_US,
        SHARDS,
        LINK_US,
    ],
    needs: |knobs| Needs { keeps_deadlines: true, ..network_needs(knobs) },
    form: Form::Shards(rules),
};

/// Returns the rules for whole batches.
fn rules(setup: &Setup, knobs: &Knobs<'_>) -> Result<Rules, BuildError> {
    let gathers = [("prefix", Gather::Prefix), ("window", Gather::Window)];
    Ok(Rules {
        start: PerModel::all(StartBy::Rule(StartRule::Frontrun)),
        options: BatchOptions::read(setup, knobs, DropRule::Hopeless)?,
        gather: knobs.choice("gather", &gathers, Gather::Window)?,
        drops_passed: drops_passed(knobs)?,
        single: false,
        ways: ways(knobs)?,
    })
}
