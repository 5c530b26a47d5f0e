//! "late": cell by cell, the next one decided while one runs.
//!
//! Source: "Low Latency Model Serving with Late Batching", section 2 ("Ahead-of-Time Scheduling").
//!
//! 1. Requests are taken apart into subgraphs of one cell type, as by "cellular", whose machinery this is.
//! 2. A device holds one task that runs and one behind it. The one behind is formed when the other begins, of what is ready
//!    then: steps that follow what was submitted, and who has come since the decision before.
//! 3. So the device never waits for the scheduler between two cells, and a newcomer waits for two cells at most while there is
//!    room: the rest of the one that runs, and the one behind it.
//!
//! State: that of "cellular". Knobs: `order`, `max_batch`, `drop`. It ignores deadlines and what a batch costs,
//! but for the drop rule and the order.
//!
//! Choices where the paper leaves freedom: which cell type goes first, where a model has several (the paper's has one). A
//! device that may hold one task only gets the next one when it is idle: that is `cellular` with `max_tasks = 1`. Where a block
//! runs until an end that nobody knows, the step behind that end runs and is waste.

use super::cellular::{Algorithm1, ORDER, order};
use super::{DROP, MAX_BATCH};
use crate::knobs::{BuildError, Knob, Knobs};
use crate::parts::cells::{CellRules, CellScheduler, Join, Leave, check};
use crate::parts::models::BatchOptions;
use crate::policy::{Chains, Form, Needs, Policy};
use crate::{Scheduler, Setup};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Walk};

pub(crate) const POLICY: Policy = Policy {
    name: "late",
    source: "Late Batching",
    summary: "requests join and leave at every cell, and the next one is decided while one runs",
    walks: &Walk::ALL,
    chains: Chains::Any,
    knobs: &[ORDER, MAX_BATCH, Knob { default: "never", ..DROP }],
    needs: |_| Needs { depth: TASKS, nodes: true, fitted: true, turns: true, ..Needs::ONE_TASK },
    served: &[],
    form: Form::OnePiece(build),
};

/// One that runs and one behind it.
const TASKS: usize = 2;

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let terms = CellRules {
        merges: false,
        max_tasks: 1,
        join: Join::AtOnce,
        leave: Leave::AtItsEnd,
        pads_output: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
    let choice = Algorithm1 { order: order(knobs)? };
    Ok(Box::new(CellScheduler::ahead(setup, options, move |_| terms, choice, TASKS)))
}
