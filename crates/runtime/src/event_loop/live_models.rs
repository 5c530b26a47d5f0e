//! The models that a scheduler's core knows, with what the driver has learnt about each.
//!
//! A model stays while it has parts in the core or tasks in flight, also after it was unloaded:
//! tasks queued ahead may outlive the last part.

use crate::event_loop::model_ids::ModelIds;
use crate::learn::capacity::ModelEntry;
use crate::learn::delays::DataDelay;
use crate::learn::shapes::{ShapeSource, ShapeTable};
use crate::requests::jobs::LiveJob;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_calibration::{Calibration, Ran, Speeds};
use ripieno_executor::{MIN_HOST_TIME, Payload};
use ripieno_model::{Block, Extent, Model, Profile};
use ripieno_sched::{NetworkDelay, RequestClass, Shape};
use std::sync::Arc;
use std::time::Duration;

/// Number of batches after which the delay by the time of the host is computed anew.
const HOST_BATCHES: u32 = 16;

/// All models of a scheduler, by id.
pub(crate) struct LiveModels {
    models: Vec<Option<LiveModel>>,
    /// Unloaded models, which are removed once their last request has ended.
    leaving: Vec<ModelId>,
    /// Models with a suspect profile and no task in flight, each with the latency of a single row
    /// by that profile.
    suspects: Vec<(ModelId, Nanos)>,
    ids: Arc<ModelIds>,
}

/// A model that the core knows.
pub(crate) struct LiveModel {
    entry: Arc<ModelEntry>,
    /// Number of the model's request parts in the core.
    live: usize,
    /// Number of the model's tasks in flight.
    tasks: usize,
    leaving: bool,
    /// The shapes in use, if requests differ in shape.
    shapes: Option<ShapeTable>,
    calibration: Calibration,
    /// Times of the host between two computations, during which devices can compute.
    host_times: DataDelay,
    /// The delay by these times that the core plans with.
    host_delay: NetworkDelay,
}

/// A completed task as its model learns from it.
pub(crate) struct LearntTask {
    /// Block, rows and durations of the task.
    pub(crate) ran: Ran,
    /// Class of the requests.
    pub(crate) class: RequestClass,
    /// See [`TaskResult::host_time`](ripieno_executor::TaskResult::host_time).
    pub(crate) host_time: Duration,
    /// Quantile of these times that is planned with, in thousandths.
    pub(crate) host_permille: u32,
    /// Whether the whole task ran once and without an error.
    pub(crate) sound: bool,
    /// Lateness of the end; `None` if the end does not show how late batches are.
    pub(crate) late_by: Option<Nanos>,
}

/// Results of learning from a task.
pub(crate) struct LearntCosts {
    /// A corrected profile of the block.
    pub(crate) better: Option<Profile>,
    /// Profiled duration of the task for its size of inputs; `None` while that size is unknown.
    pub(crate) cost: Option<Nanos>,
    /// A changed delay by the time of the host.
    pub(crate) host_delay: Option<NetworkDelay>,
}

/// A part that was dropped before it ran.
pub(crate) struct DroppedPart {
    pub(crate) extent: Extent,
    /// Time from the arrival to the deadline.
    pub(crate) allowed: Nanos,
    pub(crate) shape: Shape,
}

impl LiveModels {
    pub(crate) fn new(models: usize, ids: Arc<ModelIds>) -> LiveModels {
        let models = (0..models).map(|_| None).collect();
        LiveModels { models, leaving: Vec::new(), suspects: Vec::new(), ids }
    }

    pub(crate) fn load(&mut self, id: ModelId, entry: Arc<ModelEntry>, model: &Model) {
        let shapes = ShapeTable::new(&*entry.loaded, entry.unfolds);
        let calibration = Calibration::new(model);
        self.models[id.index()] = Some(LiveModel {
            entry,
            live: 0,
            tasks: 0,
            leaving: false,
            shapes,
            calibration,
            host_times: DataDelay::default(),
            host_delay: NetworkDelay::default(),
        });
    }

    /// Accepts no further requests for a model.
    pub(crate) fn unload(&mut self, id: ModelId) {
        self.of(id).leaving = true;
        self.leaving.push(id);
    }

    /// Removes and returns an unloaded model whose last request has ended. The caller removes what
    /// it keeps of the model, then frees the id.
    pub(crate) fn pop_unloaded(&mut self) -> Option<ModelId> {
        let ended = |id: &ModelId| self.models[id.index()].as_ref().is_none_or(|known| known.live + known.tasks == 0);
        let id = self.leaving.remove(self.leaving.iter().position(ended)?);
        self.models[id.index()] = None;
        Some(id)
    }

    /// Lets another model use the id.
    pub(crate) fn free(&self, id: ModelId) {
        self.ids.free(id);
    }

    /// Returns a model that has requests or tasks.
    pub(crate) fn of(&mut self, id: ModelId) -> &mut LiveModel {
        self.models[id.index()].as_mut().expect("a model stays while its requests or tasks live")
    }

    /// Returns the model with this id, if it exists.
    pub(crate) fn get(&mut self, id: ModelId) -> Option<&mut LiveModel> {
        self.models[id.index()].as_mut()
    }

    /// Whether no model has a task in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.models.iter().flatten().all(|known| known.tasks == 0)
    }

    /// Adds a model whose profile is suspect, with the latency of a single row by that profile.
    pub(crate) fn add_suspect(&mut self, id: ModelId, alone: Nanos) {
        self.suspects.push((id, alone));
    }

    /// Takes a model with a suspect profile and the latency of a single row by that profile.
    pub(crate) fn pop_suspect(&mut self) -> Option<(ModelId, &mut LiveModel, Nanos)> {
        loop {
            let (id, alone) = self.suspects.pop()?;
            if self.models[id.index()].as_ref().is_some_and(|known| !known.leaving) {
                return Some((id, self.of(id), alone));
            }
        }
    }
}

impl LiveModel {
    pub(crate) fn entry(&self) -> &Arc<ModelEntry> {
        &self.entry
    }

    /// Whether this is the model that a request was accepted for, and it accepts requests.
    pub(crate) fn serves(&self, entry: &Arc<ModelEntry>) -> bool {
        !self.leaving && Arc::ptr_eq(&self.entry, entry)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns the model with the profiles in use.
    pub(crate) fn model(&self) -> &Model {
        self.calibration.model()
    }

    /// Returns the time by which batches end later than profiled.
    pub(crate) fn lateness(&self) -> Nanos {
        self.calibration.ahead()
    }

    /// Returns the latency of a request of `rows` rows alone.
    pub(crate) fn alone(&self, extent: Extent, rows: usize) -> Nanos {
        self.calibration.alone(extent, rows)
    }

    /// Counts a call's parts, and sets the shape and cost of its requests. The shape of an
    /// `isolated` call is shared with no other.
    pub(crate) fn enter(&mut self, call: &mut LiveJob, isolated: bool) {
        self.live += call.parts.len();
        if isolated {
            call.class.shape = Shape::ALONE;
        } else if let Some(shapes) = &mut self.shapes {
            let source = match &call.parts[0].entry.payload {
                Payload::Here(inputs) => ShapeSource::Inputs(inputs),
                Payload::Elsewhere(_) => ShapeSource::Sizes(call.sizes),
            };
            call.class.shape = shapes.enter(source, call.parts.len());
            call.class.cost = shapes.cost(call.class.shape);
        }
    }

    /// Counts a part that has left the core.
    pub(crate) fn leave(&mut self, shape: Shape) {
        self.live -= 1;
        if let Some(shapes) = &mut self.shapes {
            shapes.leave(shape);
        }
    }

    /// Counts a task. Returns the block that it runs, and the delay by the time of the host.
    pub(crate) fn start_task(&mut self, block: BlockId) -> (&Block, NetworkDelay) {
        self.tasks += 1;
        (&self.calibration.model().blocks[block.index()], self.host_delay)
    }

    pub(crate) fn end_task(&mut self) {
        self.tasks -= 1;
    }

    /// Whether the cost of requests of this shape is known.
    pub(crate) fn is_cost_known(&self, shape: Shape) -> bool {
        self.shapes.as_ref().is_none_or(|shapes| shapes.is_cost_known(shape))
    }

    /// Learns from a task that ended on the device `from`: its lateness, its cost by size, and its
    /// profile.
    pub(crate) fn learn(&mut self, now: Time, from: DeviceId, speeds: &Speeds, task: &LearntTask) -> LearntCosts {
        let LearntTask { ran, class, sound, late_by, .. } = *task;
        let cost_known = self.is_cost_known(class.shape);
        if let Some(late_by) = late_by.filter(|_| cost_known) {
            self.calibration.on_end(late_by);
        }
        let profiled = self.model().blocks[ran.block.index()].cost(ran.rows, ran.length);
        // Corrects for the device's slowdown, which is not an error of the profile.
        let took = ran.took.scale(100, u64::from(speeds.percent(from)));
        let fair = sound && speeds.is_fair(from);
        // Where inputs differ in size, costs by size are learnt and the profile stays.
        let alone = ran.alone && self.shapes.is_none();
        let nominal = Ran { took: class.cost.inverse().of(took), alone, ..ran };
        let better = fair.then(|| self.calibration.on_task(now, &nominal)).flatten();
        if let Some(shapes) = self.shapes.as_mut().filter(|_| fair) {
            shapes.observe(now, class.shape, took, profiled);
        }
        let host_delay = if sound { self.learn_host_time(task) } else { None };
        LearntCosts { better, cost: cost_known.then(|| class.cost.of(profiled)), host_delay }
    }

    /// Learns from the host's time for a batch. Returns the delay to plan with if it has changed.
    fn learn_host_time(&mut self, task: &LearntTask) -> Option<NetworkDelay> {
        if task.host_time.is_zero() {
            return None;
        }
        self.host_times.add(task.ran.rows, task.host_time);
        if !self.host_times.samples().is_multiple_of(HOST_BATCHES) {
            return None;
        }
        let delay = self.host_times.planned(task.host_permille);
        let least = Nanos(i64::try_from(MIN_HOST_TIME.as_nanos()).unwrap_or(i64::MAX));
        // A device does not use the host for such batches beside another one.
        let delay = if delay.lead(self.model().max_batch) < least { NetworkDelay::default() } else { delay };
        (std::mem::replace(&mut self.host_delay, delay) != delay).then_some(delay)
    }

    /// Replaces the profile that the scheduler plans with for a block.
    pub(crate) fn replace_profile(&mut self, block: BlockId, profile: Profile) {
        self.calibration.replace(block, profile);
        self.forget_costs();
    }

    /// Counts a request that was dropped before it ran. Returns the latency of a single row if the
    /// profile is suspect.
    pub(crate) fn on_hopeless(&mut self, now: Time, dropped: &DroppedPart, idle: bool) -> Option<Nanos> {
        let DroppedPart { extent, allowed, shape } = *dropped;
        if let Some(shapes) = &mut self.shapes {
            shapes.on_hopeless(now, shape);
            if shapes.is_cost_known(shape) {
                return None;
            }
        }
        if self.tasks > 0 {
            return None;
        }
        self.calibration.on_hopeless(now, extent, allowed, idle)
    }

    /// Lowers a suspect profile whose single row takes `alone`. Returns the lowered profiles.
    pub(crate) fn lower_profile(&mut self, alone: Nanos) -> Vec<(BlockId, Profile)> {
        let lowered = self.calibration.test(alone);
        self.forget_costs();
        lowered
    }

    fn forget_costs(&mut self) {
        self.shapes.iter_mut().for_each(ShapeTable::forget_costs);
    }
}
