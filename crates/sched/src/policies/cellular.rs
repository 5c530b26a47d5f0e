//! "cellular": requests join and leave a running batch at every cell.
//!
//! Source: "Low Latency RNN Inference with Cellular Batching" (BatchMaker), Algorithm 1.
//!
//! 1. A request is taken apart into subgraphs of one cell type; each is released into the queue of its cell type when
//!    everything outside of it that it depends on has completed.
//! 2. An idle device takes a cell type: (a) one with a full batch ready, else (b) one with something ready and no task
//!    running, else (c) one with something ready; among several the one that `order` names.
//! 3. Up to `max_tasks` tasks of that type are submitted in one go, each from the front of the queue. Dependencies within a
//!    subgraph count as met when submitted; so the second task holds the next step of the same requests.
//! 4. A subgraph with tasks in flight is pinned to their device: a device keeps the order of its tasks.
//! 5. A request is answered when its own last cell has ended. One whose end shows while steps are queued ahead is answered at
//!    once; those steps run and are waste.
//!
//! State: a queue a cell type, counters a sequence, an arena of nodes for trees and graphs. Knobs: `order`, `max_tasks`,
//! `max_batch`, `drop`, and `early_start` and `early_leave`, which switch off one half of the idea each. It ignores deadlines
//! (but for the drop rule) and what a batch costs, as far as `order` does.
//!
//! Choices where the paper leaves freedom: queues are in the order of arrival, also for what is released later. Ready nodes
//! that are pinned elsewhere do not count in (a) to (c), so that no task is empty. A device is idle when it holds no task.
//! A block of several models at once: the order compares within a model only; among models, and among equals, the cell type
//! goes first that was chosen the longest ago, so that no model starves. A decision before every cell needs
//! `max_tasks = 1`: with the paper's 5, a newcomer may wait for five cells. Without early leave a sequence keeps its row, a
//! decoder or tree only waits with its answer. What runs once is submitted one task at a time: it makes nothing ready.
//!
//! One addition of ours, `order = "urgency"`: with the paper's fixed priorities, later cells first, an idle device always finds
//! a later cell with a row or two, so that earlier ones are starved and no batch fills. By turns all requests are under way and none
//! ends. So the cell type goes first whose next batch is the most urgent: its rows, each by the time until its deadline, for the time
//! that the batch takes; where all models go on in steps, of all of them. One that has had no turn for a quarter of its model's
//! latency target counts as full, so that a light model has its turn beside one that always fills. Where a request
//! needs several turns, that quarter is divided among them as long as somebody fills batches. Of a chain, whose blocks run once, the
//! latest block goes first: a batch runs to its end before the next one begins. A turn is put off that would make a request of
//! another cell type late which can be in time otherwise and can wait less. `"priority"` is the paper.
//!
//! Chains whose cost depends on the length and chains with skips are served too. A task of a first block takes, beside its oldest
//! request, who is better padded to the same length than run apart, by the profiles; later ones hold who was padded alike.

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
    help: "which cell type goes first: \"urgency\" = the one whose next batch has the most rows, each by the time until its \
           deadline, for the time that it takes (of a chain the latest block), \"priority\" = the one of a model with the \
           highest priority, as in the paper; it starves earlier cells where later ones always have a row or two",
};

const MAX_TASKS: Knob = Knob {
    name: "max_tasks",
    default: "5",
    help: "how many tasks are submitted to a device in one go, at most what the driver lets a device hold; 1 = a decision \
           before every cell: newcomers wait less, the device waits for the scheduler between cells (see \"late\")",
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

/// A request whose batches are small waits such a part of the latency target for its turns beside full ones.
const PATIENCE: i64 = 4;

/// A cell type of a model.
type Place = (ModelId, BlockId);

/// Which cell types of a model may go next.
type Eligible<'a> = dyn Fn(&CellModel, &CellType) -> bool + 'a;

/// Tasks that are submitted in one go unless told.
const TASKS: usize = 5;

fn max_tasks(knobs: &Knobs<'_>) -> Result<Option<usize>, BuildError> {
    knobs.count(MAX_TASKS.name, None)
}

fn leaves_early(knobs: &Knobs<'_>) -> Result<bool, BuildError> {
    knobs.flag(EARLY_LEAVE.name, true)
}

fn needs(knobs: &Knobs<'_>) -> Needs {
    let depth = max_tasks(knobs).ok().flatten().unwrap_or(TASKS);
    Needs {
        depth,
        nodes: true,
        pads: !leaves_early(knobs).unwrap_or(true),
        fitted: true,
        turns: true,
        ..Needs::ONE_TASK
    }
}

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let asked = max_tasks(knobs)?;
    if let Some(asked) = asked.filter(|&asked| asked > setup.limits.depth) {
        return Err(knobs.too_many(MAX_TASKS.name, asked, setup.limits.depth));
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
        max_tasks: asked.unwrap_or(TASKS),
        join,
        leave,
        pads_output: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
    Ok(Box::new(CellScheduler::new(setup, options, move |_| terms, Algorithm1 { order: order(knobs)? })))
}

/// Which cell type of a model goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellOrder {
    /// The one whose next batch is the most urgent.
    Urgency,
    /// The one with the highest priority.
    Priority,
}

/// The order that the options say.
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
        let somebody_fills = cells.models().any(|(_, served)| served.cells.iter().any(is_full));
        let turns = |served: &CellModel, cell: &CellType| if somebody_fills { cells.turns(served, cell) } else { 1 };
        let full = |served: &CellModel, cell: &CellType| {
            is_full(cell) || self.is_kept_waiting(now, served, cell, (device, turns(served, cell)))
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
    /// Whether a cell type, whose oldest request needs so many turns, has had none for so long that it counts as one with a full batch.
    fn is_kept_waiting(
        &self,
        now: Time,
        served: &CellModel,
        cell: &CellType,
        (device, turns): (DeviceId, u32),
    ) -> bool {
        let patience = Nanos(served.model.slo.0 / PATIENCE / i64::from(turns));
        self.order == CellOrder::Urgency && cell.ready(device) > 0 && now - cell.chosen_at >= patience
    }

    /// A cell type with a request that would be late behind a turn of the chosen one, and can be in time without it; of several the one
    /// that can wait least. None if the chosen one can wait no longer than they. Where full batches wait, nobody is more urgent: they
    /// would always be. Of a chain the latest block stands for all.
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

    /// Of each model the cell type that goes first, and of these the one that was chosen the longest ago; if all models go on in steps,
    /// the most urgent of all cell types.
    fn best(&self, now: Time, cells: &Cells, device: DeviceId, eligible: &Eligible<'_>) -> Option<Place> {
        // Behind what runs stands only what goes on in steps: a batch of a whole model would miss who comes meanwhile.
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

    /// The cell type of a model that goes first, and its weight; of equal ones the one that was chosen the longest ago.
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
