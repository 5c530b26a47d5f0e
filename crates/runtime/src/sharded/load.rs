//! The load on a shard: requests at fixed, evenly spaced moments for random models, and devices that cost nothing, whose
//! batches end when their profile says so. What is left is the scheduler: queues, batches, mailboxes, clock.

use ripieno_base::{BlockId, ModelId, Nanos, Random, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model};
use ripieno_report::Latencies;
use ripieno_sched::{Limits, Request, RequestClass};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests taken in one turn, so that grants are looked at often.
const ARRIVALS_A_TURN: usize = 256;

/// Ends of tasks taken in one turn: no fewer than arrivals, which may start one by one, or a shard that is behind would free
/// devices more slowly than it fills them.
const ENDS_A_TURN: usize = ARRIVALS_A_TURN;

/// What comes to a shard and when.
pub(super) struct Plan {
    pub(super) models: Vec<Model>,
    /// The ids of the models of this shard.
    pub(super) own: Vec<ModelId>,
    /// Between two requests.
    pub(super) gap: Nanos,
    /// What is due before this is not counted.
    pub(super) counted_from: Time,
}

/// What became of the requests that count.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) good: u64,
    pub(super) batches: u64,
    /// Requests in those batches.
    pub(super) batched: u64,
    /// How late the thread got round to a request that was due.
    pub(super) lag: Latencies,
    /// From the moment at which a batch could start to the moment at which it was handed out.
    pub(super) decision: Latencies,
}

/// Requests and running batches of a shard.
pub(super) struct Load {
    plan: Plan,
    next: Time,
    random: Random,
    live: Vec<Request>,
    free: Vec<RequestSlot>,
    ends: BinaryHeap<Reverse<(Time, TaskId)>>,
    pub(super) tally: Tally,
}

impl Load {
    pub(super) fn new(plan: Plan, limits: &Limits) -> Load {
        let none = Request {
            slot: RequestSlot(0),
            model: ModelId(0),
            arrived: Time(0),
            deadline: Time(0),
            rows: 1,
            extent: Extent::ONE,
            class: RequestClass::default(),
        };
        Load {
            next: Time::ORIGIN,
            random: Random::new(1 + u64::from(plan.own[0].0)),
            live: vec![none; limits.requests],
            free: (0..limits.requests as u32).rev().map(RequestSlot).collect(),
            ends: BinaryHeap::with_capacity(limits.tasks()),
            tally: Tally::default(),
            plan,
        }
    }

    /// The first request is due at `now`, not at the origin: a thread that took long to start has not missed anything.
    pub(super) fn begin(&mut self, now: Time) {
        self.next = now;
    }

    /// The requests that are due. Returns how many there were.
    pub(super) fn arrive(&mut self, now: Time, mut each: impl FnMut(&Request)) -> usize {
        let mut arrived = 0;
        while self.next <= now && arrived < ARRIVALS_A_TURN {
            let due = self.next;
            self.next = due + self.plan.gap;
            arrived += 1;
            if let Some(request) = self.request(now, due) {
                each(&request);
            }
        }
        arrived
    }

    /// None if no slot is free: the request counts as not answered.
    fn request(&mut self, now: Time, due: Time) -> Option<Request> {
        let model = self.plan.own[self.random.below(self.plan.own.len() as u64) as usize];
        let counted = due >= self.plan.counted_from;
        self.tally.requests += u64::from(counted);
        if counted && self.tally.requests.is_multiple_of(64) {
            self.tally.lag.record(now - due);
        }
        let slot = self.free.pop()?;
        let deadline = due + self.plan.models[model.index()].slo;
        let request = Request {
            slot,
            model,
            arrived: due,
            deadline,
            rows: 1,
            extent: Extent::ONE,
            class: RequestClass::default(),
        };
        self.live[slot.index()] = request;
        Some(request)
    }

    /// The tasks that are done. Returns how many there were.
    pub(super) fn end_tasks(&mut self, now: Time, mut each: impl FnMut(TaskId)) -> usize {
        let mut ended = 0;
        while ended < ENDS_A_TURN && self.ends.peek().is_some_and(|&Reverse((at, _))| at <= now) {
            let Some(Reverse((_, task))) = self.ends.pop() else { break };
            each(task);
            ended += 1;
        }
        ended
    }

    /// A batch of `rows` requests starts.
    pub(super) fn start(&mut self, now: Time, task: TaskId, (model, block): (ModelId, BlockId), rows: usize) {
        let latency = self.plan.models[model.index()].blocks[block.index()].profile.latency(rows);
        self.ends.push(Reverse((now + latency, task)));
        if now >= self.plan.counted_from {
            self.tally.batches += 1;
            self.tally.batched += rows as u64;
        }
    }

    /// The decision to start a batch, handed out at `at`, took this long.
    pub(super) fn decided(&mut self, at: Time, took: Nanos) {
        if at >= self.plan.counted_from {
            self.tally.decision.record(took);
        }
    }

    /// A request is answered.
    pub(super) fn finish(&mut self, now: Time, slot: RequestSlot) {
        let done = self.live[slot.index()];
        self.tally.good += u64::from(done.arrived >= self.plan.counted_from && now <= done.deadline);
        self.free.push(slot);
    }

    /// A request is refused.
    pub(super) fn reject(&mut self, slot: RequestSlot) {
        self.free.push(slot);
    }
}
