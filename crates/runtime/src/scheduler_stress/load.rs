//! The load on a shard: requests at fixed, evenly spaced times for random models, and devices
//! without cost, whose batches end when their profile says. The remaining cost is the scheduler's:
//! queues, batches, mailboxes, clock.

use ripieno_base::{BlockId, Lcg, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model};
use ripieno_report::Latencies;
use ripieno_sched::{Limits, Request, RequestClass};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of requests taken in one turn, so that grants are read often.
const ARRIVALS_A_TURN: usize = 256;

/// Number of task ends taken in one turn: no fewer than arrivals, which may start one by one, or a
/// shard that is behind would free devices more slowly than it fills them.
const ENDS_A_TURN: usize = ARRIVALS_A_TURN;

/// Arrivals of a shard.
pub(super) struct ShardLoadPlan {
    pub(super) models: Vec<Model>,
    /// The ids of the models of this shard.
    pub(super) own: Vec<ModelId>,
    /// Time between two requests.
    pub(super) gap: Nanos,
    /// Start of the measurement; earlier requests are not counted.
    pub(super) counted_from: Time,
}

/// Outcomes of the counted requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardTally {
    pub(super) requests: u64,
    pub(super) good: u64,
    pub(super) batches: u64,
    /// Requests in those batches.
    pub(super) batched: u64,
    /// Delay from a request's due time to its processing by the thread.
    pub(super) lag: Latencies,
    /// Time from the moment at which a batch could start to its dispatch.
    pub(super) decision: Latencies,
}

/// Requests and running batches of a shard.
pub(super) struct ShardLoad {
    plan: ShardLoadPlan,
    next: Time,
    random: Lcg,
    live: Vec<Request>,
    free: Vec<RequestSlot>,
    ends: BinaryHeap<Reverse<(Time, TaskId)>>,
    pub(super) tally: ShardTally,
}

impl ShardLoad {
    pub(super) fn new(plan: ShardLoadPlan, limits: &Limits) -> ShardLoad {
        let none = Request {
            slot: RequestSlot(0),
            model: ModelId(0),
            arrived: Time(0),
            deadline: Time(0),
            rows: 1,
            extent: Extent::ONE,
            class: RequestClass::default(),
        };
        ShardLoad {
            next: Time::ORIGIN,
            random: Lcg::new(1 + u64::from(plan.own[0].0)),
            live: vec![none; limits.requests],
            free: (0..limits.requests as u32).rev().map(RequestSlot).collect(),
            ends: BinaryHeap::with_capacity(limits.tasks()),
            tally: ShardTally::default(),
            plan,
        }
    }

    /// Makes the first request due at `now`, not at the origin, so that a slow thread start is not
    /// counted as lag.
    pub(super) fn begin(&mut self, now: Time) {
        self.next = now;
    }

    /// Calls `each` with the requests that are due. Returns their number.
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

    /// Creates a request; `None` if no slot is free, which counts as not answered.
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

    /// Calls `each` with the tasks that are done. Returns their number.
    pub(super) fn end_tasks(&mut self, now: Time, mut each: impl FnMut(TaskId)) -> usize {
        let mut ended = 0;
        while ended < ENDS_A_TURN && self.ends.peek().is_some_and(|&Reverse((at, _))| at <= now) {
            let Some(Reverse((_, task))) = self.ends.pop() else { break };
            each(task);
            ended += 1;
        }
        ended
    }

    /// Starts a batch of `rows` requests.
    pub(super) fn start(&mut self, now: Time, task: TaskId, model: ModelId, block: BlockId, rows: usize) {
        let latency = self.plan.models[model.index()].blocks[block.index()].profile.latency(rows);
        self.ends.push(Reverse((now + latency, task)));
        if now >= self.plan.counted_from {
            self.tally.batches += 1;
            self.tally.batched += rows as u64;
        }
    }

    /// Records the time `took` of a decision to start a batch, dispatched at `at`.
    pub(super) fn record_decision(&mut self, at: Time, took: Nanos) {
        if at >= self.plan.counted_from {
            self.tally.decision.record(took);
        }
    }

    /// Counts an answered request.
    pub(super) fn finish(&mut self, now: Time, slot: RequestSlot) {
        let done = self.live[slot.index()];
        self.tally.good += u64::from(done.arrived >= self.plan.counted_from && now <= done.deadline);
        self.free.push(slot);
    }

    /// Frees the slot of a refused request.
    pub(super) fn reject(&mut self, slot: RequestSlot) {
        self.free.push(slot);
    }
}
