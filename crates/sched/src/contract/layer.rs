//! Schedulers in front of another one.
//!
//! A layer names its inner scheduler and overrides what it changes. All other calls are forwarded
//! here, in one place: a method of [`Scheduler`] that is missing below fails a test.

use crate::{Control, Outbox, Prediction, Request, Scheduler, TaskDone};
use ripieno_base::{DeviceId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use std::any::Any;

/// A scheduler in front of another one. It has the methods of [`Scheduler`] and forwards them
/// by default.
pub trait SchedulerLayer: Send {
    /// Returns the inner scheduler.
    fn inner(&self) -> &dyn Scheduler;

    /// Returns the inner scheduler mutably.
    fn inner_mut(&mut self) -> &mut dyn Scheduler;

    /// [`Scheduler::on_graph`].
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.inner_mut().on_graph(request, graph);
    }

    /// [`Scheduler::on_request`].
    fn on_request(&mut self, now: Time, request: &Request) {
        self.inner_mut().on_request(now, request);
    }

    /// [`Scheduler::on_task_done`].
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.inner_mut().on_task_done(now, done);
    }

    /// [`Scheduler::on_control`].
    fn on_control(&mut self, now: Time, control: Control) {
        self.inner_mut().on_control(now, control);
    }

    /// [`Scheduler::settle`].
    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.inner_mut().settle(now, out);
    }

    /// [`Scheduler::next_wakeup`].
    fn next_wakeup(&self) -> Time {
        self.inner().next_wakeup()
    }

    /// [`Scheduler::members`].
    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.inner().members(task)
    }

    /// [`Scheduler::nodes`].
    fn nodes(&self, task: TaskId) -> &[u32] {
        self.inner().nodes(task)
    }

    /// [`Scheduler::prediction`].
    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        self.inner().prediction(request)
    }

    /// [`Scheduler::holds`].
    fn holds(&self, device: DeviceId) -> bool {
        self.inner().holds(device)
    }

    /// [`Scheduler::learns_occupancy`].
    fn learns_occupancy(&self) -> bool {
        self.inner().learns_occupancy()
    }

    /// [`Scheduler::takes_real_deadlines`].
    fn takes_real_deadlines(&self) -> bool {
        self.inner().takes_real_deadlines()
    }

    /// [`Scheduler::as_shard`].
    fn as_shard(&mut self) -> Option<&mut dyn Any> {
        self.inner_mut().as_shard()
    }
}

impl<L: SchedulerLayer> Scheduler for L {
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        SchedulerLayer::on_graph(self, request, graph);
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        SchedulerLayer::on_request(self, now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        SchedulerLayer::on_task_done(self, now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        SchedulerLayer::on_control(self, now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        SchedulerLayer::settle(self, now, out);
    }

    fn next_wakeup(&self) -> Time {
        SchedulerLayer::next_wakeup(self)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        SchedulerLayer::members(self, task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        SchedulerLayer::nodes(self, task)
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        SchedulerLayer::prediction(self, request)
    }

    fn holds(&self, device: DeviceId) -> bool {
        SchedulerLayer::holds(self, device)
    }

    fn learns_occupancy(&self) -> bool {
        SchedulerLayer::learns_occupancy(self)
    }

    fn takes_real_deadlines(&self) -> bool {
        SchedulerLayer::takes_real_deadlines(self)
    }

    fn as_shard(&mut self) -> Option<&mut dyn Any> {
        SchedulerLayer::as_shard(self)
    }
}

#[cfg(test)]
mod tests {
    /// Names of the methods within the block that begins with `head`.
    fn methods<'a>(source: &'a str, head: &str) -> Vec<&'a str> {
        let body = source.split_once(head).expect("the block is there").1;
        let body = body.split_once("\n}\n").expect("the block ends").0;
        let lines = body.lines().filter_map(|line| line.strip_prefix("    fn "));
        lines.filter_map(|line| line.split('(').next()).collect()
    }

    #[test]
    fn every_method_of_a_scheduler_is_forwarded() {
        let (scheduler, layer) = (include_str!("scheduler.rs"), include_str!("layer.rs"));
        let wanted = methods(scheduler, "pub trait Scheduler: Send {");
        assert!(wanted.len() > 5);
        assert_eq!(methods(layer, "impl<L: SchedulerLayer> Scheduler for L {"), wanted);
        let defaults = methods(layer, "pub trait SchedulerLayer: Send {");
        assert_eq!(defaults, [&["inner", "inner_mut"], &wanted[..]].concat());
    }
}
