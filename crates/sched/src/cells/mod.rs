//! Scheduling cell by cell: requests that walk through cells, their ready cells, and tasks of them.
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
//! # Policies
//!
//! Requests join the next step and leave at their own end. A policy that ties requests together,
//! or lets them wait for each other, says so by [`Groups`]. Which cell type an idle device takes
//! next is the scheduler's choice.
//!
//! # Parts
//!
//! `graphs.rs` and `subgraphs.rs` hold the parts of requests, `served.rs` the queues of cell types.
//! `walk.rs` has the walk of a request, `form.rs` tasks, `groups.rs` requests that go together.
//!
//! # What always holds
//!
//! Inputs take effect when they arrive, although answers wait for the next settle. The driver may
//! reuse a slot before it settles, right after the last task of the slot's former request has
//! ended.

mod form;
mod graphs;
mod groups;
mod outlook;
mod served;
mod subgraphs;
mod walk;

pub use groups::{Groups, Left};
pub use served::{CellModel, CellType};

use crate::contract::knobs::BuildError;
use crate::tables::devices::Devices;
use crate::tables::models::{BatchOptions, Models};
use crate::tables::requests::DropTimers;
use crate::tables::tasks::Tasks;
use crate::{Action, Limits, Outbox, Request, Setup};
use graphs::Graphs;
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Model, Profile};
use served::CellModelState;
use subgraphs::Subgraphs;

/// The state of all requests in cells.
#[derive(Debug)]
pub struct Cells<G = ()> {
    /// Requests that the policy ties together.
    pub groups: G,
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
    /// True if the request's output continues as padding after its end, which it has not reached.
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
    /// Nothing was submitted, and its group has not begun.
    Waiting,
    Running,
    /// The request's walk is complete; it waits for its group.
    Held,
    /// It has ended, or the slot is free.
    Over,
}

/// State of a device.
#[derive(Clone, Copy, Debug)]
struct CellDevice {
    /// Number of tasks in flight.
    held: usize,
    /// Number of live requests that have begun on the device and go on on no other.
    walks: usize,
    /// True if these requests go on there although the device is absent.
    drains: bool,
}

impl<G: Groups> Cells<G> {
    /// Creates the state without models, with the first `devices` devices present.
    pub fn new(limits: &Limits, devices: usize, options: BatchOptions, tasks: Tasks, groups: G) -> Cells<G> {
        let device = || CellDevice { held: 0, walks: 0, drains: false };
        Cells {
            groups,
            models: Models::new(limits, options),
            walkers: vec![Walker { state: CellRequestState::Over, ..Walker::new(Request::NONE, 0) }; limits.requests],
            subgraphs: Subgraphs::new(limits),
            graphs: Graphs::new(limits),
            tasks,
            places: vec![(0, 0); limits.tasks() * limits.batch],
            stride: limits.batch,
            devices: Devices::new(limits, devices, device),
            timers: DropTimers::new(limits.requests),
            pending: Vec::with_capacity(limits.requests),
            arrivals: 0,
            choices: 0,
        }
    }

    /// Adds a model. With `merges`, a task may hold more rows than the largest batch of requests.
    /// Panics if [`check`] refuses the model.
    pub fn load(&mut self, id: ModelId, model: Model, merges: bool) {
        assert_eq!(served::fault(&model), None, "the driver asks first whether the policy serves a model");
        let devices = self.devices.ids().count();
        let most = |model: &Model, max_batch| if merges { model.max_batch } else { max_batch };
        self.models.load(id, model, |model, max_batch| CellModelState::new(model, most(model, max_batch), devices));
        for device in self.devices.ids() {
            let present = self.devices[device].present;
            self.served_mut(id).own.set_present(device, present);
        }
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
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<G> {
        self.devices.ids()
    }

    /// Returns whether a device accepts tasks.
    pub fn is_present(&self, device: DeviceId) -> bool {
        self.devices[device].present
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
        self.devices[device].drains = false;
        self.models.iter_mut().for_each(|(_, served)| served.own.set_present(device, true));
    }

    /// Marks a device as absent. Its tasks in flight still end. With `drains`, requests that have
    /// begun there and are bound to it go on there, until a second call without it.
    pub fn leave_device(&mut self, device: DeviceId, drains: bool) {
        if self.devices[device].present {
            self.devices.leave(device);
            self.models.iter_mut().for_each(|(_, served)| served.own.set_present(device, false));
        }
        self.devices[device].drains = drains;
        self.release_device(device);
    }

    /// Releases the work of an absent device on which no request goes on any more.
    pub fn release_drained(&mut self, device: DeviceId) {
        if self.drains(device) && !self.has_walks(device) {
            self.leave_device(device, false);
        }
    }

    /// Returns whether requests that have begun on an absent device go on there.
    pub fn drains(&self, device: DeviceId) -> bool {
        !self.devices[device].present && self.devices[device].drains
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
