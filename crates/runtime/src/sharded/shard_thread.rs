//! The thread of a model shard, under a load that it generates itself and with devices that cost nothing.
//!
//! Requests come at fixed, evenly spaced moments to random models; batches end when their profile says so. What is left
//! is the scheduler: queues, batches, mailboxes, clock.

use super::board::Board;
use crate::Clock;
use crossbeam_queue::ArrayQueue;
use ripieno_base::{ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model};
use ripieno_report::Latencies;
use ripieno_sched::{Action, Grant, Limits, ModelShard, Outbox, Outcome, Request, TaskDone, ToMatchmaker};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests and ends of tasks taken in one turn, so that grants are looked at often.
const INPUTS_A_TURN: usize = 256;

/// What the thread owns and shares.
pub(super) struct ShardThread {
    pub(super) clock: Clock,
    pub(super) shard: ModelShard,
    pub(super) models: Vec<Model>,
    /// The ids of the models of this shard.
    pub(super) own: Vec<ModelId>,
    pub(super) limits: Limits,
    pub(super) board: Arc<Board>,
    pub(super) events: Arc<ArrayQueue<ToMatchmaker>>,
    pub(super) grants: Arc<ArrayQueue<Grant>>,
    pub(super) stop: Arc<AtomicBool>,
    /// Between two requests.
    pub(super) gap: Nanos,
    /// Requests due before this are not counted.
    pub(super) counted_from: Time,
}

/// What a shard saw of the counted requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) good: u64,
    pub(super) batches: u64,
    /// How late the thread got round to a request that was due.
    pub(super) lag: Latencies,
}

struct Work {
    thread: ShardThread,
    out: Outbox,
    mail: Vec<ToMatchmaker>,
    live: Vec<Request>,
    free: Vec<RequestSlot>,
    ends: BinaryHeap<Reverse<(Time, TaskId)>>,
    next: Time,
    random: u64,
    tally: Tally,
}

impl ShardThread {
    /// Runs until it is told to stop.
    pub(super) fn run(self) -> Tally {
        let limits = self.limits;
        let none = Request {
            slot: RequestSlot(0),
            model: ModelId(0),
            arrived: Time(0),
            deadline: Time(0),
            rows: 1,
            extent: Extent::ONE,
        };
        let mut work = Work {
            out: Outbox::new(&limits),
            mail: Vec::with_capacity(limits.models + 2 * limits.tasks()),
            live: vec![none; limits.requests],
            free: (0..limits.requests as u32).rev().map(RequestSlot).collect(),
            ends: BinaryHeap::with_capacity(limits.tasks()),
            next: self.clock.now(),
            random: 1 + u64::from(self.own[0].0),
            tally: Tally::default(),
            thread: self,
        };
        while !work.thread.stop.load(Ordering::Relaxed) {
            work.turn();
        }
        work.tally
    }
}

impl Work {
    fn turn(&mut self) {
        let now = self.thread.clock.now();
        let mut inputs = self.arrive(now) + self.end_tasks(now);
        while let Some(grant) = self.thread.grants.pop() {
            self.thread.shard.on_grant(now, grant);
            inputs += 1;
        }
        if inputs == 0 && now < self.thread.shard.next_wakeup() {
            return std::hint::spin_loop();
        }
        self.thread.shard.settle(now, &mut self.out, &mut self.mail);
        self.perform(now);
        for mail in self.mail.drain(..) {
            match mail {
                ToMatchmaker::Offer(offer) => self.thread.board.post(offer),
                event => assert!(self.thread.events.push(event).is_ok(), "a ring holds an event a device slot"),
            }
        }
    }

    fn arrive(&mut self, now: Time) -> usize {
        let mut arrived = 0;
        while self.next <= now && arrived < INPUTS_A_TURN {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let model = self.thread.own[(self.random >> 33) as usize % self.thread.own.len()];
            let due = self.next;
            self.next = due + self.thread.gap;
            self.request(now, due, model);
            arrived += 1;
        }
        arrived
    }

    fn request(&mut self, now: Time, due: Time, model: ModelId) {
        let counted = due >= self.thread.counted_from;
        self.tally.requests += u64::from(counted);
        if counted && self.tally.requests.is_multiple_of(64) {
            self.tally.lag.record(now - due);
        }
        // One that finds no slot counts as not answered.
        let Some(slot) = self.free.pop() else { return };
        let deadline = due + self.thread.models[model.index()].slo;
        let request = Request { slot, model, arrived: due, deadline, rows: 1, extent: Extent::ONE };
        self.live[slot.index()] = request;
        self.thread.shard.on_request(now, &request);
    }

    fn end_tasks(&mut self, now: Time) -> usize {
        let mut ended = 0;
        while ended < INPUTS_A_TURN
            && let Some(&Reverse((at, task))) = self.ends.peek()
            && at <= now
        {
            self.ends.pop();
            self.thread.shard.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[] });
            ended += 1;
        }
        ended
    }

    fn perform(&mut self, now: Time) {
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, .. } => {
                    let rows = self.thread.shard.members(task).len();
                    let latency = self.thread.models[model.index()].blocks[block.index()].profile.latency(rows);
                    self.ends.push(Reverse((now + latency, task)));
                    self.tally.batches += 1;
                }
                Action::Finish { request } => {
                    let done = self.live[request.index()];
                    let good = done.arrived >= self.thread.counted_from && now <= done.deadline;
                    self.tally.good += u64::from(good);
                    self.free.push(request);
                }
                Action::Reject { request, .. } => self.free.push(request),
                Action::Cancel { .. } => unreachable!("no sharded policy aborts running work"),
            }
        }
        self.out.clear();
    }
}
