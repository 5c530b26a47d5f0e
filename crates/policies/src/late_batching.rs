//! "late": cell by cell, where the next task of a device is chosen while one runs.
//!
//! Source: "Low Latency Model Serving with Late Batching", section 2 ("Ahead-of-Time Scheduling").
//!
//! 1. Requests are divided into subgraphs of one cell type, as by "cellular", whose implementation
//!    this shares.
//! 2. A device holds one running task and one behind it. The one behind is formed when the other
//!    begins, from the nodes that are ready then: steps that follow the submitted ones, and
//!    requests that arrived since the previous decision.
//! 3. The device therefore never waits for the scheduler between two cells, and a newcomer waits
//!    for two cells at most while there is room: the rest of the running one, and the one behind
//!    it.
//!
//! State: as "cellular" has. Knobs: `early_start` and `early_leave`, each of which switches off one
//! half of the idea, `max_batch`, `drop`. It ignores deadlines, except for the drop rule, and the
//! cost of batches.
//!
//! Choices where the paper leaves freedom. The order among several cell types of a model, of which
//! the paper's has one, is the order of "cellular". A device that may hold only one task gets the
//! next one when it is idle: that is `cellular` with `max_tasks = 1`. If the end of a block is not
//! known in advance, the step after the end runs and is wasted.

use crate::cell_scheduler::{CellRules, CellScheduler};
use crate::cellular_batching::{Algorithm1, EARLY_LEAVE, EARLY_START, join_and_leave, leaves_early};
use crate::policy::{Chains, Form, Policy};
use ripieno_model::{DropRule, Walk};
use ripieno_sched::Needs;
use ripieno_sched::cells::check;
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "late",
    source: "Late Batching",
    summary: "requests join and leave at every cell, and the next one is decided while one runs",
    walks: &Walk::ALL,
    chains: Chains::Any,
    knobs: &[EARLY_START, EARLY_LEAVE, MAX_BATCH, Knob { default: "never", ..DROP }],
    needs,
    form: Form::OnePiece(build),
};

/// One running task and one behind it.
const TASKS: usize = 2;

fn needs(knobs: &Knobs<'_>) -> Needs {
    Needs { depth: TASKS, nodes: true, pads: !leaves_early(knobs).unwrap_or(true), ..Needs::ONE_TASK }
}

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let (join, leave) = join_and_leave(knobs)?;
    let rules = CellRules { join, leave, ..CellRules::STEP_BY_STEP };
    Ok(Box::new(CellScheduler::with_fewest(setup, options, move |_| rules, Algorithm1, TASKS)))
}
