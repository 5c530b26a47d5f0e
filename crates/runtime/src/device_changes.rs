//! Devices that come, go and are lost while requests run.
//!
//! A device that leaves ends what it holds. One that is lost, because somebody says so or because it does not end its task,
//! is given up with all of it: the core is told that it left and that each of its tasks was lost, in one instant. Whose walk
//! went with it begins anew elsewhere, once; the state of chains lies on the device, so those begin anew that had only been
//! there. Not so a request
//!
//! * whose walk has begun anew before: perhaps it is what devices hang of,
//! * whose client has had a step of the answer: it would get the same steps again, and perhaps not the same,
//! * that could not be answered in time any more,
//! * if no device is left.
//!
//! It gets an error by which its client knows that it may ask again. While no device serves, so does everybody.

use crate::Failure;
use crate::admission::ModelEntry;
use crate::devices::{DeviceState, Shared};
use crate::fleet::LostTask;
use crate::mailbox::Mail;
use crate::scheduler_loop::SchedulerLoop;
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_sched::{Control, Outcome, TaskDone};
use std::sync::Arc;
use std::time::Duration;

/// When a client that lost its device may find another.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is told while no device serves.
fn no_device() -> Failure {
    Failure::Outage { cause: "no device is there to run it".to_owned(), retry_after: RETRY_AFTER }
}

fn lost() -> Failure {
    Failure::Outage { cause: "the device that ran it was lost".to_owned(), retry_after: RETRY_AFTER }
}

impl SchedulerLoop {
    /// A device serves from now on. What was unloaded while these models were attached to it is taken off again.
    pub(crate) fn join(&mut self, now: Time, id: DeviceId, device: Shared, attached: &[(ModelId, Arc<ModelEntry>)]) {
        for (model, entry) in attached {
            let known = self.models[model.index()].as_ref();
            if known.is_none_or(|known| !Arc::ptr_eq(&known.entry, entry)) {
                device.detach(*model);
            }
        }
        self.fleet.join(now, id, device);
        self.fleet.metrics[id.index()].set_percent(100);
        self.speeds.join(id);
        self.core.control(Control::DeviceJoined(id));
    }

    /// A device is to leave, or was `lost`; nothing if it has gone already.
    pub(crate) fn leave(&mut self, now: Time, id: DeviceId, lost: bool) {
        match (self.fleet.seats.state(id), lost) {
            (_, true) => self.lose_if_there(now, id, false),
            (Some(DeviceState::Serving), false) => {
                self.fleet.seats.leave(id);
                self.speeds.leave(id);
                self.core.control(Control::DeviceLeft(id));
            }
            _ => {}
        }
    }

    /// Gives up the devices that do not end their tasks. Should one end after all, it comes again, unless it was to leave.
    pub(crate) fn look_for_hangs(&mut self, now: Time) {
        while let Some(id) = self.fleet.hung(now) {
            tracing::error!(device = id.0, "a device does not end its task and is given up as lost");
            let again = self.fleet.seats.state(id) == Some(DeviceState::Serving);
            // Before it can come again: whoever reads this later has it under its new name.
            self.others.iter().for_each(|other| other.post(Mail::Hangs(id, again)));
            self.lose_if_there(now, id, again);
        }
    }

    /// A task that had its device for itself has ended: tells the core if the device is slower than others, or no more.
    pub(crate) fn time_device(&mut self, now: Time, id: DeviceId, took: Nanos, profiled: Nanos) {
        if let Some((id, percent)) = self.speeds.observe(now, id, took, profiled)
            && self.fleet.seats.state(id) == Some(DeviceState::Serving)
        {
            tracing::warn!(device = id.0, percent, "a device takes so many percent of what others take");
            self.fleet.metrics[id.index()].set_percent(percent);
            self.core.control(Control::DeviceSlowed { device: id, percent });
        }
    }

    /// Ends what a policy has started on devices that had gone.
    pub(crate) fn end_orphans(&mut self, now: Time) {
        if !self.fleet.orphans.is_empty() {
            let tasks = self.fleet.take_orphans();
            let members: Vec<RequestSlot> = members(&tasks).collect();
            members.into_iter().for_each(|slot| self.start_over(now, slot));
            self.end_lost(tasks);
        }
    }

    /// Devices that have ended all that they held are gone.
    pub(crate) fn let_go_of_drained(&mut self, now: Time) {
        while let Some(id) = self.fleet.seats.drained() {
            tracing::info!(device = id.0, "a device has left");
            self.fleet.seats.part_with(id);
            self.jobs.forget_device(id);
            self.dismiss_stranded(now);
        }
    }

    /// Answers a newcomer if no device serves.
    pub(crate) fn is_stranded(&mut self, now: Time, lead: RequestSlot) -> bool {
        let stranded = self.fleet.seats.serving() == 0;
        if stranded {
            self.fail(now, lead, no_device());
            self.jobs.release_if_over(lead);
        }
        stranded
    }

    /// Gives a device up, unless it has gone.
    pub(crate) fn lose_if_there(&mut self, now: Time, id: DeviceId, again: bool) {
        match self.fleet.seats.state(id) {
            None => return,
            Some(DeviceState::Serving) => self.core.control(Control::DeviceLeft(id)),
            Some(_) => {}
        }
        let tasks = self.fleet.lose(id, again);
        self.speeds.leave(id);
        let losers = self.jobs.lost_with(id, members(&tasks));
        losers.into_iter().for_each(|slot| self.start_over(now, slot));
        self.end_lost(tasks);
        self.jobs.forget_device(id);
        self.dismiss_stranded(now);
    }

    /// The walk in `slot` went with a device: it begins anew, or its request is answered with an error.
    fn start_over(&mut self, now: Time, slot: RequestSlot) {
        let serves = self.fleet.seats.serving() > 0;
        let (lead, call, part) = self.jobs.owner(slot);
        let known = self.models[call.id.index()].as_ref().expect("a model stays while its requests live");
        let part = &mut call.parts[part];
        if part.result.is_some() {
            return;
        }
        let in_time = now + known.learnt.alone(part.entry.extent, part.rows) <= call.expires;
        let again = serves && in_time && !part.retried && !part.streamed;
        part.start_over();
        if !again {
            self.fail(now, lead, lost());
        }
    }

    fn end_lost(&mut self, tasks: Vec<LostTask>) {
        for LostTask { task, members, model } in tasks {
            let known = self.models[model.index()].as_mut().expect("a model stays while its tasks fly");
            known.tasks -= 1;
            members.iter().for_each(|&slot| self.jobs.part(slot).flying -= 1);
            self.core.task_done(&TaskDone { task, outcome: Outcome::DeviceLost, ended: &[], skips: &[] });
            self.jobs.release_landed(&members);
            self.fleet.recycle(members);
        }
    }

    /// Once no device serves: answers those of whom nothing runs.
    fn dismiss_stranded(&mut self, now: Time) {
        if self.fleet.seats.serving() > 0 {
            return;
        }
        for lead in self.jobs.leads() {
            if self.jobs.call(lead).parts.iter().all(|part| part.flying == 0) {
                self.is_stranded(now, lead);
            }
        }
    }
}

fn members(tasks: &[LostTask]) -> impl Iterator<Item = RequestSlot> {
    tasks.iter().flat_map(|task| &task.members).copied()
}
