//! Faults and changes during a run: devices join, leave and slow down, clients withdraw.

use super::{EmulatedTask, World, each};
use crate::observer::Observer;
use ripieno_base::{BlockId, DeviceId, ModelId, TaskId, Time};
use ripieno_model::Profile;
use ripieno_sched::{Control, NetworkDelay, Outcome};
use std::iter::Peekable;

/// A fault or change during a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A device joins.
    Join(DeviceId),
    /// A device leaves after its tasks.
    Leave(DeviceId),
    /// A device is lost with its tasks.
    Lose(DeviceId),
    /// A device runs at `percent` % of the profiled latency.
    Slow(DeviceId, u32),
    /// The next task to end on the device fails.
    FailNext(DeviceId),
    /// The client of this request withdraws it, if it still waits for an answer.
    Cancel(u64),
    /// A model is unloaded.
    Unload(ModelId),
    /// A model is loaded, if it is not, and if no request or task is left from an earlier load.
    Load(ModelId),
    /// The scheduler's profile of a block of a loaded model is replaced; devices run as before.
    ReplaceProfile(ModelId, BlockId, Profile),
    /// The scheduler learns that batches need this time to reach devices; they come as before.
    Delay(NetworkDelay),
    /// The scheduler learns that batches of a loaded model need this time to be gathered; they come
    /// as before.
    Gather(ModelId, NetworkDelay),
}

/// A source of faults that decides during the run.
pub trait Controller {
    /// Returns the time of its next fault, given that the next event of the world is at `due`;
    /// [`Time::NEVER`] if there is none.
    fn next_at(&mut self, due: Time) -> Time;

    /// Returns the next fault at `now`; called until there is none. It acts after the ends of tasks
    /// and before arrivals.
    fn act(&mut self, now: Time) -> Option<Fault>;
}

/// Faults that are known in advance.
pub(super) struct Scheduled<I: Iterator>(pub(super) Peekable<I>);

impl<I: Iterator<Item = (Time, Fault)>> Controller for Scheduled<I> {
    fn next_at(&mut self, _due: Time) -> Time {
        self.0.peek().map_or(Time::NEVER, |&(at, _)| at)
    }

    fn act(&mut self, now: Time) -> Option<Fault> {
        self.0.next_if(|&(at, _)| at == now).map(|(_, fault)| fault)
    }
}

impl World<'_> {
    /// Applies a fault; one that does not apply, like the loss of an absent device, has no effect.
    pub(super) fn inflict(&mut self, fault: &Fault, observers: &mut [&mut dyn Observer]) {
        let Some(control) = self.control(fault) else {
            // A device that is leaving may be lost with its remaining tasks.
            if let Fault::Lose(device) = *fault {
                self.lose(device, observers);
            }
            return;
        };
        self.events += 1;
        if let Control::DeviceLeft(device) = control {
            each(observers, |observer| observer.left(device));
        }
        self.scheduler.on_control(self.now, control);
        if let Fault::Lose(device) = *fault {
            self.lose(device, observers);
        }
    }

    /// Loses a device that has left, with its tasks and the requests that go on there.
    fn lose(&mut self, device: DeviceId, observers: &mut [&mut dyn Observer]) {
        if self.scheduler.holds(device) {
            self.events += 1;
            each(observers, |observer| observer.left(device));
            self.scheduler.on_control(self.now, Control::DeviceLeft(device));
        }
        self.lose_tasks(device, observers);
    }

    fn control(&mut self, fault: &Fault) -> Option<Control> {
        let present = |world: &World<'_>, device: DeviceId| world.devices[device.index()].present;
        Some(match *fault {
            Fault::Join(device) if present(self, device) => return None,
            Fault::Leave(device) | Fault::Lose(device) if !present(self, device) => return None,
            Fault::Unload(id) | Fault::ReplaceProfile(id, ..) | Fault::Gather(id, _) if !self.loaded[id.index()] => {
                return None;
            }
            Fault::Load(model) if self.is_in_use(model) => return None,
            Fault::Join(device) => {
                let state = &mut self.devices[device.index()];
                (state.present, state.percent) = (true, 100);
                Control::DeviceJoined(device)
            }
            Fault::Leave(device) | Fault::Lose(device) => {
                self.devices[device.index()].present = false;
                Control::DeviceLeft(device)
            }
            Fault::Slow(device, percent) => {
                self.devices[device.index()].percent = percent;
                Control::DeviceSlowed { device, percent }
            }
            Fault::FailNext(device) => {
                self.devices[device.index()].fail_next = true;
                return None;
            }
            Fault::Cancel(id) => {
                let (_, request) = self.live.iter().flatten().find(|(live, _)| *live == id)?;
                Control::Cancelled(request.slot)
            }
            Fault::Unload(model) => {
                self.loaded[model.index()] = false;
                Control::ModelUnloaded(model)
            }
            Fault::Load(model) => self.load(model),
            Fault::ReplaceProfile(model, block, ref profile) => {
                if let Some(learning) = &mut self.learning {
                    learning.replace(model, block, profile.clone());
                }
                Control::ProfileReplaced { model, block, profile: profile.clone() }
            }
            Fault::Delay(delay) => Control::NetworkDelayed(delay),
            Fault::Gather(model, delay) => Control::GatherMeasured(model, delay),
        })
    }

    fn load(&mut self, model: ModelId) -> Control {
        self.loaded[model.index()] = true;
        let spec = &self.models[model.index()];
        if let Some(learning) = &mut self.learning {
            learning.load(model, spec);
        }
        Control::ModelLoaded(model, Box::new(spec.clone()))
    }

    /// Returns whether a model is loaded, or requests or tasks of it are left.
    fn is_in_use(&self, model: ModelId) -> bool {
        self.loaded[model.index()]
            || self.live.iter().flatten().any(|(_, request)| request.model == model)
            || self.tasks.iter().flatten().any(|running| running.model == model)
    }

    fn lose_tasks(&mut self, device: DeviceId, observers: &mut [&mut dyn Observer]) {
        let state = &mut self.devices[device.index()];
        (state.busy_until, state.heard) = (self.now, self.now);
        let of_device = |(id, task): (usize, &Option<EmulatedTask>)| {
            task.as_ref().filter(|running| running.device == device).map(|running| (running.serial, TaskId(id as u32)))
        };
        let mut lost: Vec<_> = self.tasks.iter().enumerate().filter_map(of_device).collect();
        lost.sort_unstable();
        for (_, id) in lost {
            self.take_off_lane(id, device.index());
            self.report(id, Outcome::DeviceLost, observers);
        }
    }
}
