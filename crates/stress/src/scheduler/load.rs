//! The load on one shard. Requests for random models arrive evenly spaced. Devices are simulated: a
//! batch ends when its profile says. So the benchmark measures only the scheduler's work on queues,
//! batches, mailboxes and clock.

use ripieno_base::{BlockId, Lcg, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model};
use ripieno_report::Latencies;
use ripieno_sched::{Limits, Request, RequestClass};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Largest number of arrivals processed in one turn. The limit ensures that grants are read often.
const ARRIVALS_A_TURN: usize = 256;

/// Largest number of task ends processed in one turn. Each arrival may start a task, so a smaller
/// limit would free devices more slowly than a late shard fills them.
const ENDS_A_TURN: usize = ARRIVALS_A_TURN;

/// Models and arrival rate of one shard.
pub(super) struct ShardLoadPlan {
    pub(super) models: Vec<Model>,
    /// Ids of this shard's models.
    pub(super) own: Vec<ModelId>,
    /// Time between two arrivals.
    pub(super) gap: Nanos,
    /// Start of the measurement. Earlier requests are not counted.
    pub(super) counted_from: Time,
}

/// Outcomes of the counted requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardTally {
    pub(super) requests: u64,
    pub(super) good: u64,
    pub(super) batches: u64,
    /// Number of requests in the counted batches.
    pub(super) batched: u64,
    /// Delay from a request's due time to its processing.
    pub(super) lag: Latencies,
    /// Decision latency of the counted batches; see [`Openings`](super::openings::Openings).
    pub(super) decision: Latencies,
}

/// Requests and running batches of one shard.
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

    /// Sets the due time of the first request to `now`, so that a slow thread start does not count
    /// as lag.
    pub(super) fn begin(&mut self, now: Time) {
        self.next = now;
    }

    /// Calls `each` with every request that is due. Returns the number of requests.
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

    /// Creates a request. If no slot is free, returns `None` and the request counts as unanswered.
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

    /// Calls `each` with every task that is done. Returns the number of tasks.
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

    /// Records the decision latency `took` of a batch that was dispatched at `at`.
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
