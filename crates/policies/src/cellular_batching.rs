//! "cellular": requests join and leave a running batch at every cell.
//!
//! Source: "Low Latency RNN Inference with Cellular Batching" (BatchMaker), Algorithm 1.
//!
//! 1. A request is divided into subgraphs of one cell type; each enters the queue of its cell type
//!    when all of its outside inputs are complete.
//! 2. An idle device takes a cell type: (a) one with a full batch ready, else (b) one with a ready
//!    node and no running task, else (c) one with a ready node. Among several the one of highest
//!    priority goes first.
//! 3. Up to `max_tasks` tasks of that type are submitted together, each from the front of the
//!    queue. Dependencies within a subgraph count as met when submitted, so the second task holds
//!    the next step of the same requests.
//! 4. A subgraph with tasks in flight is pinned to their device: a device keeps the order of its
//!    tasks.
//! 5. A request is answered when its own last cell has ended. A request whose end is found while
//!    steps are queued ahead is answered immediately; those steps run and are wasted.
//!
//! State: a queue per cell type, counters per sequence, a table of nodes for trees and graphs.
//! Knobs: `max_tasks`, `max_batch`, `drop`, and `early_start` and `early_leave`, each of which
//! switches off one half of the idea. It ignores deadlines (except for the drop rule) and the cost
//! of batches.
//!
//! Choices where the paper leaves freedom. Queues are in the order of arrival, also for subgraphs
//! that are released later. Ready nodes that are pinned elsewhere do not count in (a) to (c), so
//! that no task is empty. A device is idle when it holds no task.
//!
//! With several models, priorities compare cell types within a model only. Among models, and among
//! equals, the cell type that was chosen the longest ago goes first, so that no model starves.
//!
//! A decision before every cell needs `max_tasks = 1`: with the paper's 5, a newcomer may wait for
//! five cells. Without early leave a sequence keeps its row; a decoder or tree only delays its
//! answer. A block that runs once is submitted one task at a time, since it makes nothing ready.
//!
//! Chains whose cost depends on the length and chains with skips are served, too. Besides its
//! oldest request, a task of a first block takes the requests that are better padded to the same
//! length than run separately, by the profiles. Later blocks take requests of equal padded length.

use crate::cell_scheduler::{CellRules, CellScheduler, Choose, Join, Leave, Padding, Sets};
use crate::policy::{Chains, Form, Policy};
use ripieno_base::{BlockId, DeviceId, ModelId};
use ripieno_model::{DropRule, Walk};
use ripieno_sched::Needs;
use ripieno_sched::cells::{CellType, Cells, check};
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Scheduler, Setup};
use std::cmp::Reverse;

pub(crate) const POLICY: Policy = Policy {
    name: "cellular",
    source: "BatchMaker, Algorithm 1",
    summary: "requests join and leave a running batch at every cell",
    walks: &Walk::ALL,
    chains: Chains::Any,
    knobs: &[MAX_TASKS, EARLY_START, EARLY_LEAVE, MAX_BATCH, Knob { default: "never", ..DROP }],
    needs,
    form: Form::OnePiece(build),
};

const MAX_TASKS: Knob = Knob {
    name: "max_tasks",
    default: "5",
    help: "number of tasks that are submitted to a device together, at most what the driver lets a device hold; 1 = a \
           decision before every cell: newcomers wait less, the device waits for the scheduler between cells (see \
           \"late\")",
};

pub(super) const EARLY_START: Knob = Knob {
    name: "early_start",
    default: "true",
    help: "requests may join a running batch; false = a device takes the next set when all of the last one have ended",
};

pub(super) const EARLY_LEAVE: Knob = Knob {
    name: "early_leave",
    default: "true",
    help: "a request is answered, and frees its row, at its own end; false = with the last of those that began in the \
           same batch",
};

/// Default number of tasks that are submitted together.
const TASKS: usize = 5;

fn max_tasks(knobs: &Knobs<'_>) -> Result<Option<usize>, BuildError> {
    knobs.count(MAX_TASKS.name, None)
}

/// Returns the rules by which requests join and leave.
pub(super) fn join_and_leave(knobs: &Knobs<'_>) -> Result<(Join, Leave), BuildError> {
    let join = match knobs.flag(EARLY_START.name, true)? {
        true => Join::NextTask,
        false => Join::InSets { width: None },
    };
    let leave = match leaves_early(knobs)? {
        true => Leave::AtItsEnd,
        false => Leave::WithItsSet(Padding::ToLongest),
    };
    Ok((join, leave))
}

pub(super) fn leaves_early(knobs: &Knobs<'_>) -> Result<bool, BuildError> {
    knobs.flag(EARLY_LEAVE.name, true)
}

fn needs(knobs: &Knobs<'_>) -> Needs {
    let depth = max_tasks(knobs).ok().flatten().unwrap_or(TASKS);
    Needs { depth, nodes: true, pads: !leaves_early(knobs).unwrap_or(true), ..Needs::ONE_TASK }
}

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let requested = max_tasks(knobs)?;
    if let Some(requested) = requested.filter(|&requested| requested > setup.limits.depth) {
        return Err(knobs.too_many(MAX_TASKS.name, requested, setup.limits.depth));
    }
    let (join, leave) = join_and_leave(knobs)?;
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let rules = CellRules { max_tasks: requested.unwrap_or(TASKS), join, leave, ..CellRules::STEP_BY_STEP };
    Ok(Box::new(CellScheduler::new(setup, options, move |_| rules, Algorithm1)))
}

/// "Schedule" of Algorithm 1, lines 4 to 10. Shared with "late".
pub(super) struct Algorithm1;

impl Choose for Algorithm1 {
    fn choose(&mut self, cells: &Cells<Sets>, device: DeviceId) -> Option<(ModelId, BlockId)> {
        let full = |cell: &CellType| cell.ready(device) >= cell.max;
        let quiet = |cell: &CellType| cell.running == 0 && cell.ready(device) > 0;
        let ready = |cell: &CellType| cell.ready(device) > 0;
        best(cells, device, full).or_else(|| best(cells, device, quiet)).or_else(|| best(cells, device, ready))
    }
}

/// Returns, among the cell types of highest priority of each model, the one that was chosen the
/// longest ago.
fn best(cells: &Cells<Sets>, device: DeviceId, eligible: impl Fn(&CellType) -> bool) -> Option<(ModelId, BlockId)> {
    // Only steps are queued behind a running task: a batch of a whole model would miss requests
    // that arrive meanwhile.
    let behind = cells.holds(device) > 0;
    let models =
        cells.models().filter(|(_, served)| served.may_run_on(device) && (!behind || served.model.walk.is_unfolded()));
    let firsts = models.filter_map(|(id, served)| {
        let among = served.cells.iter().enumerate().filter(|(_, cell)| eligible(cell));
        let (block, cell) = among.min_by_key(|(_, cell)| (Reverse(cell.priority), cell.chosen))?;
        Some((cell.chosen, id, BlockId(block as u16)))
    });
    firsts.min().map(|(_, model, block)| (model, block))
}
