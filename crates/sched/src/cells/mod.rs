//! Scheduling cell by cell: the state that "cellular", "bucketed" and "graph-merge" share.
//!
//! # Subgraphs
//!
//! A request is divided into subgraphs of one cell type ("Low Latency RNN Inference with Cellular
//! Batching", section 4.3). A subgraph enters the queue of its cell type when all of its outside
//! inputs are complete.
//!
//! From then on its nodes may be submitted as soon as their inputs have been submitted to the same
//! device, since a device keeps the order. A subgraph is therefore pinned to the device that holds
//! tasks of it, until none is left there. Where devices do not share the state of requests, the
//! model is pinned: the device of a request's first cell runs all of them.
//!
//! # Three policies
//!
//! The policies differ in the rules for joining and leaving ([`CellRules`]), and in the cell type
//! that an idle device takes next (`Choose`). A fixed set of requests that runs to its end is a set
//! whose subgraphs stay pinned. Padding is a sequence that continues beyond its last step.
//!
//! # Parts
//!
//! `graphs.rs` and `subgraphs.rs` hold the parts of requests, `served.rs` the queues of cell types.
//! `walk.rs` has the walk of a request, `form.rs` tasks, `sets.rs` requests that run together.
//!
//! # What always holds
//!
//! Inputs take effect when they arrive, although answers wait for the next settle. The driver may
//! reuse a slot before it settles, right after the last task of the slot's former request has
//! ended.

mod form;
mod graphs;
mod outlook;
mod served;
mod sets;
mod subgraphs;
mod walk;

pub use served::{CellModel, CellType};

use crate::contract::knobs::BuildError;
use crate::tables::cohorts::{CohortId, Cohorts};
use crate::tables::devices::Devices;
use crate::tables::models::{BatchOptions, Models};
use crate::tables::requests::DropTimers;
use crate::tables::tasks::Tasks;
use crate::{Action, Limits, Outbox, Request, Setup};
use graphs::Graphs;
use ripieno_base::{BlockId, DeviceId, Links, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Model, Profile};
use served::CellModelState;
use sets::{CellSet, SetTurns};
use subgraphs::Subgraphs;

/// The policy's options for a model.
#[derive(Clone, Copy, Debug)]
pub struct CellRules {
    /// Whether a task may hold more rows than the requests of a set have.
    pub merges: bool,
    /// Largest number of tasks submitted to a device together.
    pub max_tasks: usize,
    /// The rule for joining.
    pub join: Join,
    /// The rule for leaving.
    pub leave: Leave,
    /// Whether outputs go on as padding until the last member of the set has ended. Needs a rule
    /// for leaving with padding.
    pub pads_output: bool,
    /// True if a bucket keeps its turn while it can fill sets.
    pub drains: bool,
    /// Longest time that the oldest request of a bucket waits for its set to fill.
    pub window: Nanos,
    /// Time of merging graphs before a set can start, per node.
    pub merge_per_node: Nanos,
}

impl CellRules {
    /// One step at a time: requests join at the next step and leave at their own end.
    pub const STEP_BY_STEP: CellRules = CellRules {
        merges: false,
        max_tasks: 1,
        join: Join::NextTask,
        leave: Leave::AtItsEnd,
        pads_output: false,
        drains: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
}

/// The rule for the start of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// In the next task that has room.
    NextTask,
    /// In a fixed set of requests from one bucket, on a device that has no set.
    InSets {
        /// Number of lengths in a bucket; `None` puts all lengths into one.
        width: Option<u32>,
    },
}

/// The rule for the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// After its own last cell.
    AtItsEnd,
    /// After the last request of its set. If requests may join at any time, those that begin in one
    /// task form a set.
    WithItsSet(Padding),
}

/// The rule for the rows of shorter requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Rows of ended requests are removed.
    None,
    /// Rows are kept until the longest of the set has ended.
    ToLongest,
    /// Rows are kept until the end of the bucket.
    ToBucket,
}

/// The common state.
#[derive(Debug)]
pub struct Cells {
    /// The models.
    models: Models<CellModelState>,
    /// Live requests, by slot.
    walkers: Vec<Walker>,
    /// Subgraphs of all live requests.
    subgraphs: Subgraphs,
    /// Nodes and edges of all live requests.
    graphs: Graphs,
    /// Tasks in flight, in cells and of the policy's own.
    pub(crate) tasks: Tasks,
    /// The subgraph of each member of a task, and the index of its node among the graphs. Each task
    /// has a part of the same length.
    places: Vec<(u32, u32)>,
    /// Length of a task's part of `places`.
    stride: usize,
    /// Requests that run together, where sets are fixed.
    sets: Cohorts<CellSet>,
    /// Turns of the buckets.
    turns: SetTurns,
    /// Links of the buckets.
    links: Links,
    /// The devices.
    devices: Devices<CellDevice>,
    /// Drop times of waiting requests.
    timers: DropTimers,
    /// Answers since the last settle.
    pending: Vec<Action>,
    /// Number of requests so far.
    arrivals: u64,
    /// Number of choices of a cell type so far.
    choices: u64,
    /// Largest number of tasks that a device holds.
    max_tasks: usize,
}

/// A live request.
#[derive(Clone, Copy, Debug)]
struct Walker {
    /// The request.
    request: Request,
    /// Arrival number: earlier requests are served first.
    number: u64,
    /// State of the request.
    state: CellRequestState,
    /// Current stage of the walk.
    stage: usize,
    /// Number of subgraphs of this stage that are not complete.
    open: u32,
    /// Number of nodes in flight.
    in_flight: u32,
    /// Number of completed nodes.
    done: u32,
    /// True if a task of the request was lost: it starts over once none of its nodes is in flight.
    lost: bool,
    /// The device that holds the intermediate results, for a chain or a walk of a pinned model that
    /// has begun.
    held_by: Option<DeviceId>,
    /// True if the request was withdrawn: if its work is lost, it does not start over.
    unwanted: bool,
    /// Padded length of the request after the first block; its own length before.
    length: u32,
    /// True if the request counts among the members of its set that have not reached their end.
    going: bool,
}

impl Walker {
    /// Creates a waiting request.
    fn new(request: Request, number: u64) -> Walker {
        Walker {
            request,
            number,
            state: CellRequestState::Waiting,
            stage: 0,
            open: 0,
            in_flight: 0,
            done: 0,
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
    /// Nothing was submitted, and it is in no set.
    Waiting,
    Running,
    /// The request's walk is complete; it waits for its set.
    Held,
    /// It has ended, or the slot is free.
    Over,
}

/// State of a device.
#[derive(Clone, Copy, Debug)]
struct CellDevice {
    /// Number of tasks in flight.
    held: usize,
    /// Number of live requests of pinned models that have begun on the device.
    walks: usize,
    /// The set that runs on the device, if sets are fixed.
    set: Option<CohortId>,
    /// End of the merging of graphs.
    ready: Time,
}

impl Cells {
    /// Creates the state without models, with the first `devices` devices present.
    pub fn new(limits: &Limits, devices: usize, options: BatchOptions, tasks: Tasks) -> Cells {
        let device = || CellDevice { held: 0, walks: 0, set: None, ready: Time::ORIGIN };
        Cells {
            models: Models::new(limits, options),
            walkers: vec![Walker { state: CellRequestState::Over, ..Walker::new(Request::NONE, 0) }; limits.requests],
            subgraphs: Subgraphs::new(limits),
            graphs: Graphs::new(limits),
            tasks,
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

    /// Adds a model with its rules. Panics if [`check`] refuses the model.
    pub fn load(&mut self, id: ModelId, model: Model, rules: CellRules) {
        let buckets = match rules.join {
            Join::NextTask => 0,
            Join::InSets { width: None } => 1,
            Join::InSets { width: Some(_) } => sets::BUCKETS,
        };
        assert_eq!(served::fault(&model), None, "the driver asks first whether the policy serves a model");
        let devices = self.devices.ids().count();
        self.models.load(id, model, |model, max_batch| CellModelState::new(model, max_batch, rules, devices, buckets));
    }

    /// Returns the model of this id, which must be loaded.
    pub fn served(&self, id: ModelId) -> &CellModel {
        self.models.get(id)
    }

    fn served_mut(&mut self, id: ModelId) -> &mut CellModel {
        self.models.get_mut(id)
    }

    /// Returns all models, including unloaded ones with running requests.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, &CellModel)> {
        self.models.iter()
    }

    /// Returns the ids of all devices, present or not.
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        self.devices.ids()
    }

    /// Returns whether a device accepts tasks.
    pub fn is_present(&self, device: DeviceId) -> bool {
        self.devices[device].present
    }

    /// Returns the time at which an idle device may take the next set; [`Time::NEVER`] if no
    /// request waits for one.
    pub fn sets_ripen(&self) -> Time {
        self.turns.ripens
    }

    /// Returns the number of tasks that a device holds.
    pub fn holds(&self, device: DeviceId) -> usize {
        self.devices[device].held
    }

    /// Returns whether only this device can continue some requests.
    pub fn has_walks(&self, device: DeviceId) -> bool {
        self.devices[device].walks > 0
    }

    /// Returns the subgraph of a task's member, and the index of its node among the graphs.
    fn place(&self, task: TaskId, member: usize) -> (u32, u32) {
        self.places[task.index() * self.stride + member]
    }

    fn walker(&mut self, slot: RequestSlot) -> &mut Walker {
        &mut self.walkers[slot.index()]
    }

    /// Returns the model of this id, if there is one.
    pub fn find(&self, id: ModelId) -> Option<&CellModel> {
        self.models.find(id)
    }

    /// Receives the graph of a request that is about to arrive.
    pub fn insert_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.graphs.insert(request, graph, &mut self.subgraphs);
    }

    /// Marks a device as present.
    pub fn join_device(&mut self, device: DeviceId) {
        self.devices.join(device);
    }

    /// Marks a device as absent. Its tasks in flight still end.
    pub fn leave_device(&mut self, device: DeviceId) {
        self.devices.leave(device);
        self.release_device(device);
    }

    /// Replaces the profile of a cell type.
    pub fn replace_profile(&mut self, model: ModelId, block: BlockId, profile: Profile) {
        self.models.replace_profile(model, block, profile);
    }

    /// Returns the time at which the next waiting request is too late.
    pub fn next_drop(&self) -> Time {
        self.timers.next()
    }

    /// Returns the requests of a task, one for each node.
    pub fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }

    /// Returns the node that each member of a task runs.
    pub fn nodes(&self, task: TaskId) -> &[u32] {
        self.tasks.nodes(task)
    }

    /// Moves the answers since the last settle to the driver.
    pub fn flush(&mut self, out: &mut Outbox) {
        self.pending.drain(..).for_each(|action| out.push(action));
    }
}

/// Checks that the common parts support all models.
pub fn check(setup: &Setup) -> Result<(), BuildError> {
    match setup.models.iter().find_map(served::fault) {
        Some(fault) => Err(BuildError::Setup(fault)),
        None => Ok(()),
    }
}
