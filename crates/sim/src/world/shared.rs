//! Devices with several lanes, where the duration of a task depends on its neighbours.

use super::{EmulatedTask, World};
use crate::observer::Observer;
use ripieno_base::{Nanos, TaskId, Time};
use ripieno_model::{LaneTask, Lanes};
use std::cmp::Reverse;

impl World<'_> {
    /// Returns the next end of a task on a lane, and the next time at which a task that waits for
    /// its inputs could begin.
    pub(super) fn lanes_due(&self) -> (Time, Time) {
        let due = |(ending, beginning): (Time, Time), lanes: &Lanes| {
            (ending.min(lanes.next_end()), beginning.min(lanes.next_begin()))
        };
        self.lanes.iter().fold((Time::NEVER, Time::NEVER), due)
    }

    /// Advances all devices to `now`.
    pub(super) fn advance_lanes(&mut self, now: Time) {
        self.now = now;
        self.lanes.iter_mut().for_each(|lanes| lanes.advance(now));
    }

    pub(super) fn end_on_lanes(&mut self, observers: &mut [&mut dyn Observer]) {
        for device in 0..self.lanes.len() {
            self.lanes[device].advance(self.now);
            while let Some((task, began)) = self.lanes[device].pop_ended(self.now) {
                let running = self.tasks[task.index()].as_mut().expect("what ends was started");
                (running.start, running.end) = (began, self.now);
                let serial = running.serial;
                match self.heard(self.now, device) {
                    heard if heard > self.now => self.ends.push(Reverse((heard, serial, task))),
                    _ => self.end_task(task, serial, observers),
                }
            }
        }
    }

    pub(super) fn put_on_lane(&mut self, task: TaskId, running: &EmulatedTask, alone: Nanos) {
        let EmulatedTask { model, block, device, lane, rows, length, start, .. } = *running;
        let share = self.models[model.index()].blocks[block.index()].share(rows, length);
        let lanes = &mut self.lanes[device.index()];
        assert!(lane.index() < lanes.count(), "{task:?} was started on {lane:?} of {device:?}, which has none such");
        lanes.push(self.now, lane, LaneTask { task, earliest: start, alone, share });
    }

    /// Removes a task that did not complete from its lane.
    pub(super) fn take_off_lane(&mut self, task: TaskId, device: usize) {
        let Some(lanes) = self.lanes.get_mut(device) else { return };
        let began = lanes.remove(self.now, task);
        if let Some(running) = &mut self.tasks[task.index()]
            && running.end == Time::NEVER
        {
            running.start = began.unwrap_or(self.now);
        }
    }
}
