//! "cellular": requests join and leave a running batch at every cell.
//!
//! Sources: "Low Latency RNN Inference with Cellular Batching" (BatchMaker), Algorithm 1; "Low Latency Model Serving with Late
//! Batching" is the case `max_tasks = 1`, a decision before every block.
//!
//! 1. A request is taken apart into subgraphs of one cell type; each is released into the queue of its cell type when
//!    everything outside of it that it depends on has completed.
//! 2. An idle device takes a cell type: (a) one with a full batch ready, else (b) one with something ready and no task
//!    running, else (c) one with something ready; among several the one with the highest priority.
//! 3. Up to `max_tasks` tasks of that type are submitted in one go, each from the front of the queue. Dependencies within a
//!    subgraph count as met when submitted; so the second task holds the next step of the same requests.
//! 4. A subgraph with tasks in flight is pinned to their device: a device keeps the order of its tasks.
//! 5. A request is answered when its own last cell has ended. One whose end shows while steps are queued ahead is answered at
//!    once; those steps run and are waste.
//!
//! State: a queue a cell type, counters a sequence, an arena of nodes for trees and graphs. Knobs: `max_tasks`, `max_batch`,
//! `drop`, and `early_start` and `early_leave`, which switch off one half of the idea each. It ignores deadlines (but for the
//! drop rule) and what a batch costs.
//!
//! Choices where the paper leaves freedom: queues are in the order of arrival, also for what is released later. Ready nodes
//! that are pinned elsewhere do not count in (a) to (c), so that no task is empty. A device is idle when it holds no task.
//! A block of several models at once: priorities compare within a model only; among models, and among equal priorities, the
//! cell type goes first that was chosen the longest ago, so that no model starves. A decision before every cell needs
//! `max_tasks = 1`: with the paper's 5, a newcomer may wait for five cells. Without early leave a sequence keeps its row, a
//! decoder or tree only waits with its answer.

use super::{DROP, MAX_BATCH, drop_rule};
use crate::catalogue::{BuildError, Chains, Knob, Knobs, Policy};
use crate::parts::cells::{Cell, CellScheduler, Cells, Choose, Join, Leave, Padding, Served, Terms, check};
use crate::shard::PerModel;
use crate::{Scheduler, Setup};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos};
use ripieno_model::{DropRule, Model, Walk};
use std::cmp::Reverse;

pub(crate) const POLICY: Policy = Policy {
    name: "cellular",
    source: "BatchMaker, Algorithm 1; Late Batching",
    summary: "requests join and leave a running batch at every cell",
    sharded: false,
    keeps_deadlines: false,
    walks: &Walk::ALL,
    chains: Chains::InStep,
    knobs: &[MAX_TASKS, EARLY_START, EARLY_LEAVE, MAX_BATCH, Knob { default: "never", ..DROP }],
    build,
};

const MAX_TASKS: Knob = Knob {
    name: "max_tasks",
    default: "5",
    help: "how many tasks are submitted to a device in one go, at most what the driver lets a device hold; 1 = a decision \
           before every cell (Late Batching): newcomers wait less, the device waits for the scheduler between cells",
};

const EARLY_START: Knob = Knob {
    name: "early_start",
    default: "true",
    help: "whether a request may join a running batch; false = a device takes the next set when all of the last one have \
           ended",
};

const EARLY_LEAVE: Knob = Knob {
    name: "early_leave",
    default: "true",
    help: "whether a request is answered, and gives its row up, at its own end; false = with the last of those that began \
           in the same batch",
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let max_tasks = knobs.count(MAX_TASKS.name, None)?;
    if let Some(asked) = max_tasks.filter(|&asked| asked > setup.limits.depth) {
        return Err(knobs.too_many(MAX_TASKS.name, asked, setup.limits.depth));
    }
    let join = match knobs.flag(EARLY_START.name, true)? {
        true => Join::AtOnce,
        false => Join::InSets { width: None, drains: false },
    };
    let leave = match knobs.flag(EARLY_LEAVE.name, true)? {
        true => Leave::AtItsEnd,
        false => Leave::WithItsSet(Padding::ToLongest),
    };
    let drop = drop_rule(knobs, DropRule::Never)?;
    let max_batch = PerModel::read(&setup.models, |model| knobs.count(MAX_BATCH.name, model))?;
    let terms = move |model: &Model| Terms {
        drop: model.drop.unwrap_or(drop),
        max_batch: max_batch.of(model).unwrap_or(usize::MAX).min(model.max_batch),
        set: max_batch.of(model).unwrap_or(usize::MAX).min(model.max_batch),
        max_tasks: max_tasks.unwrap_or(5),
        join,
        leave,
        pads_output: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
    Ok(Box::new(CellScheduler::new(setup, Box::new(terms), Algorithm1)))
}

/// "Schedule" of Algorithm 1, lines 4 to 10.
struct Algorithm1;

impl Choose for Algorithm1 {
    fn choose(&mut self, cells: &Cells, device: DeviceId) -> Option<(ModelId, BlockId)> {
        let full = |cell: &Cell| cell.ready(device) >= cell.max;
        let quiet = |cell: &Cell| cell.running == 0 && cell.ready(device) > 0;
        let ready = |cell: &Cell| cell.ready(device) > 0;
        best(cells, full).or_else(|| best(cells, quiet)).or_else(|| best(cells, ready))
    }
}

/// Of each model the cell type with the highest priority, and of these the one that was chosen the longest ago.
fn best(cells: &Cells, eligible: impl Fn(&Cell) -> bool) -> Option<(ModelId, BlockId)> {
    let of_model = |(id, served): (ModelId, &Served)| {
        let blocks = served.cells.iter().zip(0..).filter(|(cell, _)| eligible(cell));
        let (cell, block) = blocks.min_by_key(|(cell, _)| (Reverse(cell.priority), cell.chosen))?;
        Some((cell.chosen, id, BlockId(block)))
    };
    let models = cells.models().filter(|(_, served)| served.has_instance());
    models.filter_map(of_model).min().map(|(_, model, block)| (model, block))
}
