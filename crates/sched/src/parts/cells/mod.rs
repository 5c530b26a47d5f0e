//! Scheduling cell by cell: the state that "cellular", "bucketed" and "graph-merge" share.
//!
//! A request is taken apart into subgraphs of one cell type (BatchMaker, section 4.3). One is released into the queue of its
//! cell type when all that it depends on outside of itself has completed; from then on its nodes may be submitted as soon as
//! their inputs have been submitted to the same device, since a device keeps the order. So a subgraph is pinned to the device
//! that holds tasks of it, until none is left there.
//!
//! The three policies differ in who may join and when they leave ([`CellRules`]), and in which cell type an idle device takes
//! next ([`Choose`]). A fixed set of requests that runs to its end is a set whose subgraphs stay pinned; padding is a
//! sequence that goes on beyond its last step. What is common is here: `graphs.rs` and `subgraphs.rs` the parts of requests,
//! `served.rs` the queues of cell types, `walk.rs` the way of a request, `form.rs` tasks, `sets.rs` who runs together.
//!
//! Facts are worked in when they are told, and answers wait for the next settle: the driver may give a slot to the next
//! request right after the last task with the old one has ended, and before it settles.

mod form;
mod frame;
mod graphs;
mod served;
mod sets;
mod slack;
mod subgraphs;
mod walk;

pub(crate) use frame::CellScheduler;
pub(crate) use served::{CellModel, CellType};

use crate::knobs::BuildError;
use crate::parts::cohorts::{CohortId, Cohorts};
use crate::parts::devices::Devices;
use crate::parts::models::{BatchOptions, Models};
use crate::parts::requests::DropTimers;
use crate::parts::tasks::Tasks;
use crate::{Action, Limits, Outbox, Request, Setup};
use graphs::Graphs;
use ripieno_base::{BlockId, DeviceId, Links, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::Model;
use served::CellModelState;
use sets::{CellSet, SetTurns};
use subgraphs::Subgraphs;

/// What the policy's options say about a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRules {
    /// Whether a task may hold more rows than the requests of a set have.
    pub(crate) merges: bool,
    /// The most tasks submitted to a device in one go.
    pub(crate) max_tasks: usize,
    /// Who may join.
    pub(crate) join: Join,
    /// Who may leave.
    pub(crate) leave: Leave,
    /// With padding, whether outputs are padded too: until the last of the set has ended.
    pub(crate) pads_output: bool,
    /// How long the oldest request of a bucket waits for its set to fill.
    pub(crate) window: Nanos,
    /// How long the merging of graphs takes before a set can start, for each node.
    pub(crate) merge_per_node: Nanos,
}

/// When a request may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// With the next task that has room.
    AtOnce,
    /// In a fixed set of requests from one bucket, on a device that has no set.
    InSets {
        /// How many lengths a bucket holds; none: all lengths are alike.
        width: Option<u32>,
        /// Whether a bucket keeps its turn as long as it can fill sets.
        drains: bool,
    },
}

/// When a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With its own last cell.
    AtItsEnd,
    /// With the last of its set. Those that began in one task are a set, where requests may join at any time.
    WithItsSet(Padding),
}

/// What becomes of the rows of shorter requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    /// They are given up.
    None,
    /// They are kept until the longest of the set has ended.
    ToLongest,
    /// They are kept until the end of the bucket.
    ToBucket,
}

/// Which cell type an idle device takes next.
pub(crate) trait Choose: Send {
    /// One with something ready for this device.
    fn choose(&mut self, now: Time, cells: &Cells, device: DeviceId) -> Option<(ModelId, BlockId)>;
}

/// The state.
#[derive(Debug)]
pub(crate) struct Cells {
    models: Models<CellModelState>,
    walkers: Vec<Walker>,
    subgraphs: Subgraphs,
    graphs: Graphs,
    tasks: Tasks,
    /// Beside each member of a task its subgraph, and the node's place among the graphs; with a fixed stride.
    places: Vec<(u32, u32)>,
    stride: usize,
    /// Who runs together, where that is fixed.
    sets: Cohorts<CellSet>,
    turns: SetTurns,
    /// Links of the buckets.
    links: Links,
    devices: Devices<CellDevice>,
    /// When waiting requests are to be dropped.
    timers: DropTimers,
    /// Answers since the last settle.
    pending: Vec<Action>,
    arrivals: u64,
    choices: u64,
    max_tasks: usize,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Walker {
    request: Request,
    /// Counts arrivals: who came first is served first.
    number: u64,
    state: CellRequestState,
    stage: usize,
    /// Subgraphs of this stage that are not over.
    open: u32,
    /// Nodes in flight.
    in_flight: u32,
    /// A task of it was lost: it starts over once nothing of it is in flight.
    lost: bool,
    /// Of a chain that has begun: the device that has what its blocks left.
    held_by: Option<DeviceId>,
    /// Nobody waits for its answer: should its work be lost, it does not start over.
    unwanted: bool,
    /// What it was padded to in its first block; its own length before.
    length: u32,
    /// Whether it counts among those of its set that have not reached their end.
    going: bool,
}

impl Walker {
    /// One that waits.
    fn new(request: Request, number: u64) -> Walker {
        Walker {
            request,
            number,
            state: CellRequestState::Waiting,
            stage: 0,
            open: 0,
            in_flight: 0,
            lost: false,
            held_by: None,
            unwanted: false,
            length: request.extent.length,
            going: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellRequestState {
    /// Nothing was submitted, nor is it in a set.
    Waiting,
    Running,
    /// Its walk is complete; it waits for its set.
    Held,
    /// It has ended, or there is none.
    Over,
}

/// What is kept of a device.
#[derive(Clone, Copy, Debug)]
struct CellDevice {
    /// Tasks in flight.
    held: usize,
    set: Option<CohortId>,
    /// Before that, merging is not done.
    ready: Time,
}

impl Cells {
    fn new(limits: &Limits, devices: usize, options: BatchOptions) -> Cells {
        let device = || CellDevice { held: 0, set: None, ready: Time::ORIGIN };
        Cells {
            models: Models::new(limits, options),
            walkers: vec![Walker { state: CellRequestState::Over, ..Walker::new(Request::NONE, 0) }; limits.requests],
            subgraphs: Subgraphs::new(limits),
            graphs: Graphs::new(limits),
            tasks: Tasks::new(limits),
            places: vec![(0, 0); limits.tasks() * limits.batch],
            stride: limits.batch,
            sets: Cohorts::new(limits.requests),
            turns: SetTurns { last: (0, 0), ripens: Time::NEVER },
            links: Links::new(limits.requests),
            devices: Devices::new(limits, devices, device),
            timers: DropTimers::new(limits.requests),
            pending: Vec::with_capacity(limits.requests),
            arrivals: 0,
            choices: 0,
            max_tasks: limits.depth,
        }
    }

    fn load(&mut self, id: ModelId, model: Model, terms: CellRules) {
        let buckets = match terms.join {
            Join::AtOnce => 0,
            Join::InSets { width: None, .. } => 1,
            Join::InSets { width: Some(_), .. } => sets::BUCKETS,
        };
        assert_eq!(served::fault(&model), None, "the driver asks first whether the policy serves a model");
        let devices = self.devices.ids().count();
        self.models.load(id, model, |model, max_batch| CellModelState::new(model, max_batch, terms, devices, buckets));
    }

    fn served(&self, id: ModelId) -> &CellModel {
        self.models.get(id)
    }

    fn served_mut(&mut self, id: ModelId) -> &mut CellModel {
        self.models.get_mut(id)
    }

    /// All models, those that only finish what runs too.
    pub(crate) fn models(&self) -> impl Iterator<Item = (ModelId, &CellModel)> {
        self.models.iter()
    }

    /// How often a cell type must be chosen for its oldest request until that is through, if it goes on in steps.
    pub(crate) fn turns(&self, served: &CellModel, cell: &CellType) -> u32 {
        let oldest = cell.queue.front().map(|id| self.subgraphs.at(id));
        let steps = oldest.filter(|subgraph| !subgraph.is_graph).map_or(1, |subgraph| subgraph.total);
        steps.div_ceil(served.terms.max_tasks.min(self.max_tasks) as u32).max(1)
    }

    /// How many tasks a device holds.
    pub(crate) fn holds(&self, device: DeviceId) -> usize {
        self.devices[device].held
    }

    /// The subgraph of a member of a task, and the place of the node that it runs among the graphs.
    fn place(&self, task: TaskId, member: usize) -> (u32, u32) {
        self.places[task.index() * self.stride + member]
    }

    fn walker(&mut self, slot: RequestSlot) -> &mut Walker {
        &mut self.walkers[slot.index()]
    }

    fn flush(&mut self, out: &mut Outbox) {
        self.pending.drain(..).for_each(|action| out.push(action));
    }
}

/// Whether the parts can follow requests through all models.
pub(crate) fn check(setup: &Setup) -> Result<(), BuildError> {
    match setup.models.iter().find_map(served::fault) {
        Some(fault) => Err(BuildError::Setup(fault)),
        None => Ok(()),
    }
}
