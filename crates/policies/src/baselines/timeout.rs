//! "timeout" and "eager": a batch starts when it is full or its first request has waited for a
//! fixed window.
//!
//! Sources: the dynamic batchers of TensorFlow Serving and Triton; as a baseline, "Symphony:
//! Optimized DNN Model Serving using Deferred Batch Scheduling", section 3.4 (exec = max(now, a +
//! k)), and "GraphB" of LazyBatching.
//!
//! 1. The candidate of a model is the batch gathered from the head of its queue.
//! 2. It may start once its first request has waited for the window k, or immediately if it is
//!    full.
//! 3. A free device takes, of the candidates that may start, the one with the earliest latest
//!    start.
//! 4. "eager" is k = 0: a free device never waits.
//! 5. With `gather = "fifo"` deadlines do not matter: batches take the oldest requests up to the
//!    largest batch, and the model whose head arrived first goes first. That is the batcher of
//!    servers without deadlines.
//!
//! State: a queue and a candidate per model. It ignores the growth of a batch's cost with its size
//! when it decides to wait. Deviation: a candidate starts at its latest start even if the window is
//! not over, since further waiting would only make it late. The public code of Symphony's authors
//! does the same.

use crate::options::{DEVICE, LINK_US, PASSED, SHARDS, drops_passed, network_needs, ways};
use crate::policy::{Chains, Form, Policy};
use crate::symphony::{Gather, Rules, StartBy};
use ripieno_base::Nanos;
use ripieno_model::DropRule;
use ripieno_sched::Needs;
use ripieno_sched::Setup;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{CONTROL_US, DATA_US};
use ripieno_sched::{DROP, MAX_BATCH};

const GATHER: Knob = Knob {
    name: "gather",
    default: "prefix",
    help: "requests that form a batch: \"prefix\" = from the head, as many as its deadline allows; \"window\" = heads \
           that keep the batch below its target are passed over; \"fifo\" = the oldest, regardless of deadlines",
};

const TIMEOUT_MS: Knob =
    Knob { name: "timeout_ms", default: "5", help: "longest wait of the first request of a batch for others, in ms" };

const TIMEOUT_SLO: Knob =
    Knob { name: "timeout_slo", default: "none", help: "the same as a fraction of the model's SLO, 0 to 1" };

pub(crate) const TIMEOUT: Policy = Policy {
    name: "timeout",
    source: "Triton, TensorFlow Serving; Symphony, section 3.4",
    summary: "a batch starts when it is full or its first request has waited for a fixed window",
    walks: crate::options::WHOLE,
    chains: Chains::Any,
    knobs: &[TIMEOUT_MS, TIMEOUT_SLO, GATHER, PASSED, MAX_BATCH, DROP, DEVICE, CONTROL_US, DATA_US, SHARDS, LINK_US],
    needs: |knobs| Needs { keeps_deadlines: true, ..network_needs(knobs) },
    form: Form::Shards(timeout_rules),
};

pub(crate) const EAGER: Policy = Policy {
    name: "eager",
    source: "Symphony, section 3.4 (k = 0)",
    summary: "a free device immediately takes all that waits",
    walks: crate::options::WHOLE,
    chains: Chains::Any,
    knobs: &[GATHER, PASSED, MAX_BATCH, DROP, DEVICE, CONTROL_US, DATA_US, SHARDS, LINK_US],
    needs: |knobs| Needs { keeps_deadlines: true, ..network_needs(knobs) },
    form: Form::Shards(eager_rules),
};

/// Returns the rules of "timeout".
fn timeout_rules(setup: &Setup, knobs: &Knobs<'_>) -> Result<Rules, BuildError> {
    let wait = |model: Option<&str>| {
        if let Some(fraction) = knobs.fraction("timeout_slo", model)? {
            return Ok(StartBy::SloMillionths((fraction * 1e6).round() as u64));
        }
        Ok(StartBy::after(Nanos::from_millis_f64(knobs.number("timeout_ms", model)?.unwrap_or(5.0))))
    };
    rules(setup, knobs, PerModel::read(&setup.models, wait)?)
}

/// Returns the rules of "eager".
fn eager_rules(setup: &Setup, knobs: &Knobs<'_>) -> Result<Rules, BuildError> {
    rules(setup, knobs, PerModel::all(StartBy::after(Nanos::ZERO)))
}

fn rules(setup: &Setup, knobs: &Knobs<'_>, start: PerModel<StartBy>) -> Result<Rules, BuildError> {
    let gathers = [("prefix", Gather::Prefix), ("window", Gather::Window), ("fifo", Gather::Fifo)];
    Ok(Rules {
        start,
        options: BatchOptions::read(setup, knobs, DropRule::Hopeless)?,
        gather: knobs.choice("gather", &gathers, Gather::Prefix)?,
        drops_passed: drops_passed(knobs)?,
        single: false,
        ways: ways(knobs)?,
    })
}
