//! "cellular": requests join and leave a running batch at every cell.
//!
//! Source: "Low Latency RNN Inference with Cellular Batching" (BatchMaker), Algorithm 1.
//!
//! 1. A request is divided into subgraphs of one cell type; each enters the queue of its cell type
//!    when all of its outside inputs are complete.
//! 2. An idle device takes a cell type: (a) one with a full batch ready, else (b) one with a ready
//!    node and no running task, else (c) one with a ready node; among several by `order`.
//! 3. Up to `max_tasks` tasks of that type are submitted together, each from the front of the
//!    queue. Dependencies within a subgraph count as met when submitted, so the second task holds
//!    the next step of the same requests.
//! 4. A subgraph with tasks in flight is pinned to their device: a device keeps the order of its
//!    tasks.
//! 5. A request is answered when its own last cell has ended. A request whose end is found while
//!    steps are queued ahead is answered immediately; those steps run and are wasted.
//!
//! State: a queue per cell type, counters per sequence, a table of nodes for trees and graphs.
//! Knobs: `order`, `max_tasks`, `max_batch`, `drop`, and `early_start` and `early_leave`, each of
//! which switches off one half of the idea. It ignores deadlines (except for the drop rule) and the
//! cost of batches, except in `order`.
//!
//! Choices where the paper leaves freedom: queues are in the order of arrival, also for subgraphs
//! that are released later. Ready nodes that are pinned elsewhere do not count in (a) to (c), so
//! that no task is empty. A device is idle when it holds no task. With several models, the order
//! compares cell types within a model only; among models, and among equals, the cell type that was
//! chosen the longest ago goes first, so that no model starves. A decision before every cell needs
//! `max_tasks = 1`: with the paper's 5, a newcomer may wait for five cells. Without early leave a
//! sequence keeps its row; a decoder or tree only delays its answer. A block that runs once is
//! submitted one task at a time, since it makes nothing ready.
//!
//! One addition to the paper, `order = "urgency"`: with the paper's fixed priorities, later cells
//! first, an idle device always finds a later cell with a row or two, so earlier ones starve and no
//! batch fills. Round robin keeps all requests in progress and completes none. With "urgency", the
//! cell type with the most urgent next batch goes first: its rows, each weighted inversely by the
//! time until its deadline, relative to the batch's duration. If all models run in steps, the
//! comparison covers all models. A cell type without a turn for a quarter of its model's SLO counts
//! as full, so that a light model has its turn beside one that always fills; if a request needs
//! several turns, that quarter is divided among them while any cell type fills batches. For a
//! chain, whose blocks run once, the latest block goes first: a batch runs to its end before the
//! next one begins. A turn is deferred if it would make a request of another cell type late that
//! can still be in time and has less slack. `"priority"` is the paper's rule.
//!
//! Chains whose cost depends on the length and chains with skips are served, too. Besides its
//! oldest request, a task of a first block takes those that are better padded to the same length
//! than run separately, by the profiles; later blocks take requests of equal padded length.

use super::{DROP, MAX_BATCH};
use crate::knobs::{BuildError, Knob, Knobs};
use crate::parts::cells::{CellModel, CellRules, CellScheduler, CellType, Cells, Choose, Join, Leave, Padding, check};
use crate::parts::models::BatchOptions;
use crate::policy::{Chains, Form, Needs, Policy};
use crate::{Scheduler, Setup};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_model::{DropRule, Walk};
use std::cmp::Reverse;

pub(crate) const POLICY: Policy = Policy {
    name: "cellular",
    source: "BatchMaker, Algorithm 1",
    summary: "requests join and leave a running batch at every cell",
    walks: &Walk::ALL,
    chains: Chains::Any,
    knobs: &[ORDER, MAX_TASKS, EARLY_START, EARLY_LEAVE, MAX_BATCH, Knob { default: "never", ..DROP }],
    needs,
    served: &[],
    form: Form::OnePiece(build),
};

pub(super) const ORDER: Knob = Knob {
    name: "order",
    default: "urgency",
    help: "cell type that goes first: \"urgency\" = most rows in its next batch, each weighted by the inverse of the \
           time to its deadline, relative to the batch's duration (of a chain the latest block), \"priority\" = \
           highest priority within a model, as in the paper; it starves earlier cells where later ones always have a \
           row or two",
};

const MAX_TASKS: Knob = Knob {
    name: "max_tasks",
    default: "5",
    help: "number of tasks that are submitted to a device together, at most what the driver lets a device hold; 1 = a \
           decision before every cell: newcomers wait less, the device waits for the scheduler between cells (see \
           \"late\")",
};

const EARLY_START: Knob = Knob {
    name: "early_start",
    default: "true",
    help: "requests may join a running batch; false = a device takes the next set when all of the last one have ended",
};

const EARLY_LEAVE: Knob = Knob {
    name: "early_leave",
    default: "true",
    help: "a request is answered, and frees its row, at its own end; false = with the last of those that began in the \
           same batch",
};

/// Reciprocal of the part of the SLO that a request with small batches waits for its turns beside
/// full ones.
const MAX_WAIT_FRACTION: i64 = 4;

/// A cell type of a model.
type Place = (ModelId, BlockId);

/// The predicate for cell types that may go next.
type Eligible<'a> = dyn Fn(&CellModel, &CellType) -> bool + 'a;

/// Default number of tasks that are submitted together.
const TASKS: usize = 5;

fn max_tasks(knobs: &Knobs<'_>) -> Result<Option<usize>, BuildError> {
    knobs.count(MAX_TASKS.name, None)
}

fn leaves_early(knobs: &Knobs<'_>) -> Result<bool, BuildError> {
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
    let join = match knobs.flag(EARLY_START.name, true)? {
        true => Join::AtOnce,
        false => Join::InSets { width: None, drains: false },
    };
    let leave = match leaves_early(knobs)? {
        true => Leave::AtItsEnd,
        false => Leave::WithItsSet(Padding::ToLongest),
    };
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let terms = CellRules {
        merges: false,
        max_tasks: requested.unwrap_or(TASKS),
        join,
        leave,
        pads_output: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
    Ok(Box::new(CellScheduler::new(setup, options, move |_| terms, Algorithm1 { order: order(knobs)? })))
}

/// The order among the cell types of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellOrder {
    /// The most urgent next batch first.
    Urgency,
    /// The highest priority first.
    Priority,
}

/// Returns the order that was set.
pub(super) fn order(knobs: &Knobs<'_>) -> Result<CellOrder, BuildError> {
    knobs.choice(ORDER.name, &[("urgency", CellOrder::Urgency), ("priority", CellOrder::Priority)], CellOrder::Urgency)
}

/// "Schedule" of Algorithm 1, lines 4 to 10. Shared with "late".
pub(super) struct Algorithm1 {
    pub(super) order: CellOrder,
}

impl Choose for Algorithm1 {
    fn choose(&mut self, now: Time, cells: &Cells, device: DeviceId) -> Option<(ModelId, BlockId)> {
        let is_full = |cell: &CellType| cell.ready(device) >= cell.max;
        let any_fills = cells.models().any(|(_, served)| served.cells.iter().any(is_full));
        let turns = |served: &CellModel, cell: &CellType| if any_fills { cells.turns(served, cell) } else { 1 };
        let full = |served: &CellModel, cell: &CellType| {
            is_full(cell) || self.waited_too_long(now, served, cell, (device, turns(served, cell)))
        };
        let quiet = |_: &CellModel, cell: &CellType| cell.running == 0 && cell.ready(device) > 0;
        let ready = |_: &CellModel, cell: &CellType| cell.ready(device) > 0;
        let best = |eligible: &Eligible<'_>| self.best(now, cells, device, eligible);
        let chosen = best(&full).or_else(|| best(&quiet)).or_else(|| best(&ready))?;
        let urgent = (self.order == CellOrder::Urgency).then(|| self.more_urgent(now, cells, device, chosen));
        Some(urgent.flatten().unwrap_or(chosen))
    }
}

impl Algorithm1 {
    /// Returns whether a cell type, whose oldest request needs this number of turns, has had none
    /// for so long that it counts as one with a full batch.
    fn waited_too_long(
        &self,
        now: Time,
        served: &CellModel,
        cell: &CellType,
        (device, turns): (DeviceId, u32),
    ) -> bool {
        let max_wait = Nanos(served.model.slo.0 / MAX_WAIT_FRACTION / i64::from(turns));
        self.order == CellOrder::Urgency && cell.ready(device) > 0 && now - cell.chosen_at >= max_wait
    }

    /// Returns a cell type with a request that would be late after a turn of the chosen one, and
    /// can be in time without it; of several the one with the least slack. None if the chosen one
    /// has no more slack. While full batches wait none is more urgent, since they always would be.
    /// Considers only the latest block of a chain.
    fn more_urgent(&self, now: Time, cells: &Cells, device: DeviceId, chosen: Place) -> Option<Place> {
        let slack = |served: &CellModel, block: BlockId| cells.slack(now, served, block.index(), device);
        let own = cells.models().find(|(id, _)| *id == chosen.0).map(|(_, served)| served)?;
        let turn = cells.turn(own, chosen.1.index(), device);
        let waits = |served: &CellModel, cell: &CellType| {
            (1..cell.max).contains(&cell.ready(device)) && served.may_run_on(device)
        };
        let behind = cells.holds(device) > 0;
        let urgent = cells.models().flat_map(|(id, served)| {
            let unfolds = served.model.walk.is_unfolded();
            let places = (0..served.cells.len()).rev().filter(move |&at| waits(served, &served.cells[at]));
            let places = places.take(if unfolds { usize::MAX } else { usize::from(!behind) });
            places.map(move |at| (id, BlockId(at as u16))).filter_map(|at| Some((slack(served, at.1)?, at)))
        });
        let (least, place) = urgent.filter(|&(slack, at)| slack < turn && at != chosen).min()?;
        let other = place.0 != chosen.0 || own.model.walk.is_unfolded();
        (other && slack(own, chosen.1).is_none_or(|own| least < own)).then_some(place)
    }

    /// Returns, among the first cell type of each model, the one that was chosen the longest ago;
    /// if all models run in steps, the most urgent one.
    fn best(&self, now: Time, cells: &Cells, device: DeviceId, eligible: &Eligible<'_>) -> Option<Place> {
        // Only steps are queued behind a running task: a batch of a whole model would miss requests
        // that arrive meanwhile.
        let behind = cells.holds(device) > 0;
        let steps = |served: &CellModel| served.model.walk.is_unfolded();
        let by_urgency = self.order == CellOrder::Urgency && cells.models().all(|(_, served)| steps(served));
        let models = cells.models().filter(|(_, served)| served.may_run_on(device) && (!behind || steps(served)));
        let firsts = models.filter_map(|(id, served)| {
            let (weight, block) = self.first(now, cells, (served, device), eligible)?;
            let rank = (Reverse(if by_urgency { weight } else { 0 }), served.cells[block].chosen, id);
            Some((rank, (id, BlockId(block as u16))))
        });
        firsts.min_by_key(|&(rank, _)| rank).map(|(_, place)| place)
    }

    /// Returns the cell type of a model that goes first, and its weight; of equal ones the one that
    /// was chosen the longest ago.
    fn first(
        &self,
        now: Time,
        cells: &Cells,
        (served, device): (&CellModel, DeviceId),
        eligible: &Eligible<'_>,
    ) -> Option<(u128, usize)> {
        let types = || served.cells.iter().enumerate();
        if self.order == CellOrder::Urgency && !served.model.walk.is_unfolded() {
            let latest = || served.cells.iter().rposition(|cell| cell.ready(device) > 0);
            return types().any(|(_, cell)| eligible(served, cell)).then(latest).flatten().map(|at| (0, at));
        }
        let weight = |at: usize, cell: &CellType| match self.order {
            CellOrder::Urgency => cells.urgency(now, served, at, device),
            CellOrder::Priority => u128::from(cell.priority),
        };
        let among = types().filter(|(_, cell)| eligible(served, cell)).map(|(at, cell)| (weight(at, cell), at));
        among.min_by_key(|&(weight, at)| (Reverse(weight), served.cells[at].chosen))
    }
}
