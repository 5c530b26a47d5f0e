//! Devices that join, leave or are lost while requests run.
//!
//! A leaving device ends the tasks that it holds, and the requests that only it can continue, if
//! the policy lets them go on there. Requests that have not begun fail if it was the last one. A
//! device is lost if it is reported lost or hangs in a task. It is removed with all its tasks: in
//! one instant, the core learns that the device left and that its tasks were lost. Requests whose
//! state was on the device restart on another device, at most once. A chain keeps its state on the
//! device that ran it last, as does a request of a pinned model that runs cell by cell. A request
//! does not restart if
//!
//! * it has restarted before, because the request itself may make devices hang,
//! * its client has received a step of the answer, because the repeated steps might differ,
//! * it could no longer meet its deadline,
//! * no device is left.
//!
//! The client of such a request gets an error that allows a retry. While no device serves, every
//! request gets this error.

use super::SchedulerLoop;
use crate::Failure;
use crate::devices::{DeviceState, SharedDevice};
use crate::event_loop::tasks_in_flight::LostTask;
use crate::learn::capacity::ModelEntry;
use crate::requests::jobs::{JobPart, PartStage};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_sched::{Control, Outcome, TaskDone};
use std::sync::Arc;
use std::time::Duration;

/// Retry delay reported to clients whose device was lost.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The failure reported while no device serves.
fn no_device() -> Failure {
    Failure::Outage { cause: "no device is there to run it".to_owned(), retry_after: RETRY_AFTER }
}

fn device_lost() -> Failure {
    Failure::Outage { cause: "the device that ran it was lost".to_owned(), retry_after: RETRY_AFTER }
}

impl SchedulerLoop {
    /// Adds a serving device. Models that were unloaded while the caller attached them are detached
    /// again.
    pub(super) fn join(
        &mut self,
        now: Time,
        id: DeviceId,
        device: SharedDevice,
        attached: &[(ModelId, Arc<ModelEntry>)],
    ) {
        for (model, entry) in attached {
            if self.models.get(*model).is_none_or(|known| !Arc::ptr_eq(known.entry(), entry)) {
                device.detach(*model);
            }
        }
        self.dispatcher.join(now, id, device);
        self.speeds.join(id);
        self.core.control(Control::DeviceJoined(id));
    }

    /// Removes a device that leaves or was `lost`. Does nothing if it is already gone.
    pub(super) fn leave(&mut self, now: Time, id: DeviceId, lost: bool) {
        match (self.dispatcher.slots().state(id), lost) {
            (_, true) => self.lose_if_there(now, id, false),
            (Some(DeviceState::Serving), false) => {
                self.dispatcher.leave(id);
                self.speeds.leave(id);
                self.core.control(Control::DeviceLeft(id));
                self.fail_stranded(now);
            }
            _ => {}
        }
    }

    /// Gives up the devices that hang in a task. A serving device rejoins if it ends the task after
    /// all.
    pub(super) fn lose_hung_devices(&mut self, now: Time) {
        while let Some(id) = self.dispatcher.hung(now) {
            tracing::error!(device = id.0, "a device does not end its task and is given up as lost");
            let again = self.dispatcher.slots().state(id) == Some(DeviceState::Serving);
            // Other shards receive this before the device can rejoin under the same id. A later
            // message would remove the rejoined device.
            self.mails.report_hang(id, again);
            self.lose_if_there(now, id, again);
        }
    }

    /// Records a task that ran alone on its device. Reports the device to the core when it becomes
    /// slower than other devices or recovers.
    pub(super) fn observe_speed(&mut self, now: Time, id: DeviceId, took: Nanos, profiled: Nanos) {
        if let Some((id, percent)) = self.speeds.observe(now, id, took, profiled)
            && self.dispatcher.slots().state(id) == Some(DeviceState::Serving)
        {
            tracing::warn!(device = id.0, percent, "a device takes this percentage of the time of other devices");
            self.dispatcher.set_percent(id, percent);
            self.core.control(Control::DeviceSlowed { device: id, percent });
        }
    }

    /// Ends the tasks that a policy started on devices that no longer exist.
    pub(super) fn end_orphans(&mut self, now: Time) {
        if self.dispatcher.has_orphans() {
            let tasks = self.dispatcher.take_orphans();
            let members: Vec<RequestSlot> = members(&tasks).collect();
            members.into_iter().for_each(|slot| self.restart_walk(now, slot));
            self.end_lost_tasks(tasks);
        }
    }

    /// Removes leaving devices that have ended all their tasks and requests.
    pub(super) fn remove_drained(&mut self, now: Time) {
        while let Some(id) = self.dispatcher.pop_drained(|id| self.core.holds(id)) {
            tracing::info!(device = id.0, "a device has left");
            self.jobs.forget_device(id);
            self.fail_stranded(now);
        }
    }

    /// Fails a request if no device serves. Returns whether it did.
    pub(super) fn fail_if_no_device(&mut self, now: Time, lead: RequestSlot) -> bool {
        let stranded = self.dispatcher.slots().serving() == 0;
        if stranded {
            self.fail(now, lead, no_device());
            self.jobs.release_if_over(lead);
        }
        stranded
    }

    /// Gives a device up as lost, unless it is already gone.
    pub(super) fn lose_if_there(&mut self, now: Time, id: DeviceId, again: bool) {
        match self.dispatcher.slots().state(id) {
            None => return,
            Some(DeviceState::Serving) => self.core.control(Control::DeviceLeft(id)),
            Some(_) => {}
        }
        if self.core.holds(id) {
            self.core.control(Control::DeviceLeft(id));
        }
        let tasks = self.dispatcher.lose(id, again);
        self.speeds.leave(id);
        let losers = self.jobs.lost_with(id, members(&tasks));
        losers.into_iter().for_each(|slot| self.restart_walk(now, slot));
        self.end_lost_tasks(tasks);
        self.jobs.forget_device(id);
        self.fail_stranded(now);
    }

    /// Restarts the request in `slot`, whose state was lost with a device, or fails it.
    fn restart_walk(&mut self, now: Time, slot: RequestSlot) {
        let serves = self.dispatcher.slots().serving() > 0;
        let (lead, call, part) = self.jobs.owner(slot);
        let known = self.models.of(call.id);
        let part = &mut call.parts[part];
        if part.result.is_some() {
            return;
        }
        let in_time = now + known.alone(part.entry.extent, part.rows) <= call.expires;
        let again = serves && in_time && !part.retried && !part.streamed;
        part.restart_walk();
        if !again {
            self.fail(now, lead, device_lost());
        }
    }

    fn end_lost_tasks(&mut self, tasks: Vec<LostTask>) {
        for LostTask { task, members, model } in tasks {
            self.models.of(model).end_task();
            members.iter().for_each(|&slot| self.jobs.part(slot).in_flight -= 1);
            self.core.task_done(&TaskDone { task, outcome: Outcome::DeviceLost, ended: &[], skips: &[] });
            self.jobs.release_completed(&members);
            self.dispatcher.recycle(members);
        }
    }

    /// Fails all calls that have no task in flight and go on on no leaving device, if no device
    /// serves.
    fn fail_stranded(&mut self, now: Time) {
        let slots = self.dispatcher.slots();
        if slots.serving() > 0 {
            return;
        }
        let holds = |id: DeviceId| slots.state(id) == Some(DeviceState::Leaving) && self.core.holds(id);
        let goes_on = |part: &JobPart| part.stage == PartStage::Begun && part.device.is_some_and(holds);
        for lead in self.jobs.leads_where(|part| part.in_flight == 0 && !goes_on(part)) {
            self.fail_if_no_device(now, lead);
        }
    }
}

fn members(tasks: &[LostTask]) -> impl Iterator<Item = RequestSlot> {
    tasks.iter().flat_map(|task| &task.members).copied()
}
