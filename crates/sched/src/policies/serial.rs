//! "serial": one request at a time, first come first served.
//!
//! Source: the baseline "Serial" of "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference".
//!
//! 1. A free device takes the request that arrived first, of whatever model, and runs it alone.
//! 2. Requests of several rows run as the client batched them.
//! 3. Nothing is dropped unless asked for.
//!
//! State: a queue a model. It ignores deadlines, latency profiles and that batching exists. No deviations known.

use super::{CONTROL_US, DATA_US, DROP, drop_rule, network};
use crate::catalogue::{BuildError, Knob, Knobs, Policy};
use crate::shard::{DeviceChoice, Fused, Gather, Rule, Start};
use crate::{Scheduler, Setup};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model};
use std::sync::Arc;

pub(crate) const POLICY: Policy = Policy {
    name: "serial",
    source: "LazyBatching, section V (Serial)",
    summary: "one request at a time, first come first served",
    sharded: false,
    knobs: &[Knob { default: "never", ..DROP }, CONTROL_US, DATA_US],
    build,
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let drop = drop_rule(knobs, DropRule::Never)?;
    let network = network(knobs)?;
    let rule = move |model: &Model| Rule {
        start: Start::After(Nanos::ZERO),
        gather: Gather::Fifo,
        drop: model.drop.unwrap_or(drop),
        max_batch: model.max_batch,
        single: true,
        network,
    };
    Ok(Box::new(Fused::new(setup, DeviceChoice::SmallestId, Arc::new(rule))))
}
