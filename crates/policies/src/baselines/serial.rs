//! "serial": one request at a time, first come first served.
//!
//! Source: the baseline "Serial" of "LazyBatching: An SLA-aware Batching System for Cloud Machine
//! Learning Inference".
//!
//! 1. A free device takes the request that arrived first, of any model, and runs it alone.
//! 2. Requests of several rows run as the client batched them.
//! 3. By default, nothing is dropped.
//!
//! State: a queue per model. It ignores deadlines, latency profiles and batching. No known
//! deviations.

use crate::options::{network_needs, ways};
use crate::policy::{Chains, Form, Policy};
use crate::symphony::{DeviceChoice, Fused, Gather, Rules, StartBy};
use ripieno_base::Nanos;
use ripieno_model::DropRule;
use ripieno_sched::DROP;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{CONTROL_US, DATA_US};
use ripieno_sched::{Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "serial",
    source: "LazyBatching, section V (Serial)",
    summary: "one request at a time, first come first served",
    walks: crate::options::WHOLE,
    chains: Chains::Any,
    knobs: &[Knob { default: "never", ..DROP }, CONTROL_US, DATA_US],
    needs: network_needs,
    form: Form::OnePiece(build),
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let rules = Rules {
        start: PerModel::all(StartBy::after(Nanos::ZERO)),
        options: BatchOptions::unbounded(knobs, DropRule::Never)?,
        gather: Gather::Fifo,
        drops_passed: false,
        single: true,
        ways: ways(knobs)?,
    };
    Ok(Box::new(Fused::new(setup, DeviceChoice::SmallestId, rules)))
}
