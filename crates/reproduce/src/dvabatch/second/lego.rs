//! DVABatch's schedule for load diversity by the rules of its authors' public code, written anew
//! from facts about it.
//!
//! 1. Each stage has an executor and a queue of items. An item is a range of a batch's requests.
//! 2. What waits when the first executor is free is a new batch, or joins the newest one as an item
//!    of its own. It joins if the batch stays below the limit, has not passed its last border, and
//!    is younger than `max_wait`.
//! 3. An item that ends a stage goes on only if it holds the last request of its batch. It then
//!    takes all that the next stage has not received; any other item ends and waits.
//! 4. An executor starts an item only if the next stage has a free buffer.
//!
//! One device, one model whose requests are alike; devices do not change.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_sched::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use std::collections::VecDeque;

/// The options of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct LegoOptions {
    /// Age up to which a batch is joined; zero is never.
    pub(super) max_wait: Nanos,
    /// Number of buffers between two stages.
    pub(super) buffers: usize,
}

/// A batch.
#[derive(Debug)]
struct LegoBatch {
    members: Vec<RequestSlot>,
    created: Time,
    /// Number of members that each stage has received.
    received: Vec<usize>,
}

/// A range of a batch's members.
#[derive(Clone, Copy, Debug)]
struct LegoItem {
    batch: usize,
    start: usize,
    end: usize,
}

/// An executor with its queue.
#[derive(Debug, Default)]
struct LegoStage {
    queue: VecDeque<LegoItem>,
    running: Option<LegoItem>,
    /// Members of the running task.
    members: Vec<RequestSlot>,
}

/// The scheduler.
#[derive(Debug)]
pub(super) struct LegoScheduler {
    options: LegoOptions,
    max_batch: usize,
    waiting: VecDeque<RequestSlot>,
    /// All batches so far, by number.
    batches: Vec<LegoBatch>,
    stages: Vec<LegoStage>,
    ended: Vec<Action>,
}

impl LegoScheduler {
    pub(super) fn new(setup: &Setup, options: LegoOptions) -> LegoScheduler {
        let model = &setup.models[0];
        LegoScheduler {
            options,
            max_batch: model.max_batch,
            waiting: VecDeque::new(),
            batches: Vec::new(),
            stages: model.blocks.iter().map(|_| LegoStage::default()).collect(),
            ended: Vec::new(),
        }
    }

    /// Hands what waits to the first stage, as part of the newest batch or as a new one.
    fn accept(&mut self, now: Time) {
        let count = self.waiting.len().min(self.max_batch);
        if count == 0 {
            return;
        }
        let (max_wait, max_batch, borders) = (self.options.max_wait, self.max_batch, self.stages.len() - 1);
        let joins = self.batches.last().is_some_and(|batch| {
            let passed = batch.received[1..].iter().filter(|&&received| received > 0).count();
            batch.members.len() + count < max_batch && passed < borders && now - batch.created < max_wait
        });
        if !joins {
            let received = vec![0; self.stages.len()];
            self.batches.push(LegoBatch { members: Vec::new(), created: now, received });
        }
        let newest = self.batches.len() - 1;
        let members = &mut self.batches[newest].members;
        let start = members.len();
        members.extend(self.waiting.drain(..count));
        self.stages[0].queue.push_back(LegoItem { batch: newest, start, end: start + count });
    }

    /// Returns whether the stage after this one has a free buffer.
    fn has_buffer(&self, stage: usize) -> bool {
        self.stages
            .get(stage + 1)
            .is_none_or(|next| next.queue.len() + usize::from(next.running.is_some()) < self.options.buffers)
    }

    /// Passes an item on, or lets it wait for the rest of its batch.
    fn forward(&mut self, stage: usize, item: LegoItem) {
        let batch = &mut self.batches[item.batch];
        if stage + 1 == self.stages.len() || item.end != batch.members.len() {
            return;
        }
        let start = std::mem::replace(&mut batch.received[stage + 1], item.end);
        self.stages[stage + 1].queue.push_back(LegoItem { start, ..item });
    }

    fn start(&mut self, now: Time, stage: usize, out: &mut Outbox) -> bool {
        if self.stages[stage].running.is_some() || !self.has_buffer(stage) {
            return false;
        }
        if stage == 0 && self.stages[0].queue.is_empty() {
            self.accept(now);
        }
        let LegoScheduler { batches, stages, .. } = self;
        let LegoStage { queue, running, members } = &mut stages[stage];
        let Some(item) = queue.pop_front() else { return false };
        *running = Some(item);
        members.clear();
        members.extend_from_slice(&batches[item.batch].members[item.start..item.end]);
        out.push(Action::Start {
            task: TaskId(stage as u32),
            model: ModelId(0),
            block: BlockId(stage as u16),
            device: DeviceId(0),
            lane: LaneId(stage as u16),
            length: 1,
            not_before: now,
        });
        true
    }
}

impl Scheduler for LegoScheduler {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.waiting.push_back(request.slot);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let stage = done.task.index();
        let Some(item) = self.stages[stage].running.take() else { return };
        if stage + 1 == self.stages.len() {
            let finish = |&request: &RequestSlot| match done.outcome {
                Outcome::Ok => Action::Finish { request },
                _ => Action::Reject { request, why: Why::Failed },
            };
            self.ended.extend(self.stages[stage].members.iter().map(finish));
        }
        self.forward(stage, item);
    }

    /// The experiments change nothing while they run.
    fn on_control(&mut self, _now: Time, _control: Control) {}

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.ended.drain(..).for_each(|action| out.push(action));
        // Later stages first: what they take makes room for the earlier ones.
        while (0..self.stages.len()).rev().any(|stage| self.start(now, stage, out)) {}
    }

    fn next_wakeup(&self) -> Time {
        Time::NEVER
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.stages[task.index()].members
    }
}
