//! Learning from completed tasks: lateness, costs by size of the inputs, and corrected profiles.

use crate::event_loop::scheduler_loop::{LearntTask, SchedulerLoop};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_calibration::Ran;
use ripieno_model::Profile;

/// Results of learning from a task.
pub(crate) struct LearntCosts {
    /// A corrected profile of the block.
    pub(crate) better: Option<Profile>,
    /// Profiled duration of the task for its size of inputs; `None` while that size is unknown.
    pub(crate) cost: Option<Nanos>,
    /// Whether requests of the model unfold.
    pub(crate) unfolds: bool,
}

impl SchedulerLoop {
    /// Learns from a task of a model: its lateness, its cost by size, and its profile.
    pub(crate) fn learn(&mut self, now: Time, from: DeviceId, model: ModelId, task: LearntTask) -> LearntCosts {
        let LearntTask { ran, class, sound, late_by } = task;
        let known = self.models[model.index()].as_mut().expect("a model stays while its tasks fly");
        known.tasks -= 1;
        let cost_known = known.shapes.as_ref().is_none_or(|shapes| shapes.is_cost_known(class.shape));
        if let Some(late_by) = late_by.filter(|_| cost_known) {
            known.calibration.on_end(late_by);
        }
        let profiled = known.calibration.model().blocks[ran.block.index()].cost(ran.rows, ran.length);
        // Corrects for the device's slowdown, which is not an error of the profile.
        let took = ran.took.scale(100, u64::from(self.speeds.percent(from)));
        let fair = sound && self.speeds.is_fair(from);
        // Where inputs differ in size, costs by size are learnt and the profile stays.
        let alone = ran.alone && known.shapes.is_none();
        let nominal = Ran { took: class.cost.inverse().of(took), alone, ..ran };
        let better = fair.then(|| known.calibration.on_task(now, &nominal)).flatten();
        if let Some(shapes) = known.shapes.as_mut().filter(|_| fair) {
            shapes.observe(now, class.shape, took, profiled);
        }
        let cost = cost_known.then(|| class.cost.of(profiled));
        LearntCosts { better, cost, unfolds: known.entry.unfolds }
    }
}
