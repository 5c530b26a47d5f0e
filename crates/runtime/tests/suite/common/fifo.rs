//! First in, first out: each free device takes the requests of the oldest one's model and block, up
//! to a batch.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_sched::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use std::collections::VecDeque;

pub(crate) struct Fifo {
    /// Largest batch and number of blocks of each model.
    models: Vec<Option<(u32, usize)>>,
    queue: VecDeque<(Request, BlockId)>,
    /// Running task of each device; the device's index is also the task's id.
    running: Vec<Option<Running>>,
    members: Vec<Vec<RequestSlot>>,
    ending: Vec<Action>,
}

struct Running {
    block: BlockId,
    requests: Vec<Request>,
}

impl Fifo {
    pub(crate) fn new(setup: &Setup) -> Fifo {
        Fifo {
            models: vec![None; setup.limits.models],
            queue: VecDeque::new(),
            running: (0..setup.devices).map(|_| None).collect(),
            members: vec![Vec::new(); setup.devices],
            ending: Vec::new(),
        }
    }

    fn reject(&mut self, why: Why, chosen: impl Fn(&Request) -> bool) {
        let ending = &mut self.ending;
        self.queue.retain(|(request, _)| {
            if chosen(request) {
                ending.push(Action::Reject { request: request.slot, why });
            }
            !chosen(request)
        });
    }

    fn batch(&mut self) -> Option<(ModelId, Running)> {
        let &(first, block) = self.queue.front()?;
        let mut room = self.models[first.model.index()].unwrap().0;
        let mut requests = Vec::new();
        self.queue.retain(|(request, at)| {
            let fits = request.model == first.model && *at == block && request.rows <= room;
            if fits {
                room -= request.rows;
                requests.push(*request);
            }
            !fits
        });
        Some((first.model, Running { block, requests }))
    }
}

impl Scheduler for Fifo {
    fn on_request(&mut self, _: Time, request: &Request) {
        self.queue.push_back((*request, BlockId(0)));
    }

    fn on_task_done(&mut self, _: Time, done: &TaskDone<'_>) {
        let Running { block, requests } = self.running[done.task.index()].take().expect("the task runs");
        for (at, request) in requests.into_iter().enumerate().rev() {
            let blocks = self.models[request.model.index()].map_or(1, |(_, blocks)| blocks);
            let over = block.index() + 1 == blocks || done.ended.get(at).copied().unwrap_or(false);
            match done.outcome {
                Outcome::Failed => self.ending.push(Action::Reject { request: request.slot, why: Why::Failed }),
                Outcome::Cancelled => self.queue.push_front((request, BlockId(0))),
                _ if over => self.ending.push(Action::Finish { request: request.slot }),
                _ => self.queue.push_front((request, BlockId(block.0 + 1))),
            }
        }
    }

    fn on_control(&mut self, _: Time, control: Control) {
        match control {
            Control::ModelLoaded(id, model) => {
                self.models[id.index()] = Some((model.max_batch as u32, model.blocks.len()));
            }
            Control::ModelUnloaded(id) => self.reject(Why::Unloaded, |request| request.model == id),
            Control::Cancelled(slot) => self.reject(Why::Cancelled, |request| request.slot == slot),
            _ => {}
        }
    }

    fn settle(&mut self, _: Time, out: &mut Outbox) {
        self.ending.drain(..).for_each(|action| out.push(action));
        for device in 0..self.running.len() {
            if self.running[device].is_some() {
                continue;
            }
            let Some((model, running)) = self.batch() else { return };
            self.members[device] = running.requests.iter().map(|request| request.slot).collect();
            let task = TaskId(device as u32);
            let (block, device) = (running.block, DeviceId(device as u16));
            let length = running.requests.iter().map(|request| request.extent.length).max().unwrap();
            self.running[device.index()] = Some(running);
            let (lane, not_before) = (LaneId(0), Time::ORIGIN);
            out.push(Action::Start { task, model, block, device, lane, length, not_before });
        }
    }

    fn next_wakeup(&self) -> Time {
        Time::NEVER
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.members[task.index()]
    }
}

/// The first-in-first-out scheduler, with callbacks for each request and each end of a task.
pub(crate) struct Told<R, E>(pub(crate) Fifo, pub(crate) R, pub(crate) E);

impl<R: FnMut() + Send, E: FnMut() + Send> Scheduler for Told<R, E> {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.1();
        self.0.on_request(now, request);
    }
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.2();
        self.0.on_task_done(now, done);
    }
    fn on_control(&mut self, now: Time, control: Control) {
        self.0.on_control(now, control);
    }
    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.0.settle(now, out);
    }
    fn next_wakeup(&self) -> Time {
        self.0.next_wakeup()
    }
    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.0.members(task)
    }
}
