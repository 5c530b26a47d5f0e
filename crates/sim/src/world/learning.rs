//! Calibration from task durations, as in the runtime.

use super::{EmulatedTask, World};
use ripieno_base::{BlockId, ModelId, Nanos, Time};
use ripieno_calibration::{Calibration, Ran};
use ripieno_model::{Model, Profile};
use ripieno_sched::{Control, Request};

/// Calibrations by model.
pub(super) struct Learning {
    models: Vec<Calibration>,
    /// Models without running tasks whose profiles are to be tested, with the profiled latency of a
    /// request alone.
    suspects: Vec<(ModelId, Nanos)>,
}

impl Learning {
    pub(super) fn new(believed: &[Model]) -> Learning {
        Learning { models: believed.iter().map(Calibration::new).collect(), suspects: Vec::new() }
    }

    /// Starts again with a model that is loaded.
    pub(super) fn load(&mut self, id: ModelId, model: &Model) {
        self.models[id.index()] = Calibration::new(model);
        self.suspects.retain(|&(suspect, _)| suspect != id);
    }

    /// Replaces a profile that was measured again.
    pub(super) fn replace(&mut self, model: ModelId, block: BlockId, profile: Profile) {
        self.models[model.index()].replace(block, profile);
    }

    /// Returns the margin by which the scheduler's deadlines precede the real ones.
    pub(super) fn ahead(&self, model: ModelId) -> Nanos {
        self.models[model.index()].ahead()
    }

    /// Records the end of a task of this model on a device that needs `percent` % of its duration;
    /// `alone` is true if no other lane shared the device.
    pub(super) fn on_end(
        &mut self,
        now: Time,
        truth: &Model,
        running: &EmulatedTask,
        percent: u32,
        alone: bool,
    ) -> Option<Control> {
        let EmulatedTask { model, block, rows, length, start, end, excess, scale, .. } = *running;
        let learnt = &mut self.models[model.index()];
        let profiled = |model: &Model| scale.of(model.blocks[block.index()].cost(rows, length));
        let cost = |model: &Model| profiled(model).scale(u64::from(percent), 100);
        let misjudged = cost(truth) - cost(learnt.model());
        let late = now - end + excess;
        learnt.on_end(if alone { late + misjudged } else { late });
        let took = scale.inverse().of((end - start).scale(100, u64::from(percent.max(1))));
        let profile = learnt.on_task(now, &Ran { block, rows, length, took, alone })?;
        learnt.replace(block, profile.clone());
        Some(Control::ProfileReplaced { model, block, profile })
    }

    /// Records a request that was rejected before it ran while no task of its model is in flight;
    /// `idle` is true if no task of any model is.
    pub(super) fn on_hopeless(&mut self, now: Time, request: &Request, idle: bool) {
        let allowed = request.deadline - request.arrived;
        let learnt = &mut self.models[request.model.index()];
        if let Some(alone) = learnt.on_hopeless(now, request.extent, allowed, idle) {
            self.suspects.push((request.model, alone));
        }
    }
}

impl World<'_> {
    /// Tests profiles that prevent all tasks.
    pub(super) fn test_profiles(&mut self) {
        let Some(learning) = &mut self.learning else { return };
        for (model, alone) in learning.suspects.drain(..) {
            if !self.loaded[model.index()] {
                continue;
            }
            for (block, profile) in learning.models[model.index()].test(alone) {
                self.scheduler.on_control(self.now, Control::ProfileReplaced { model, block, profile });
            }
        }
    }
}
