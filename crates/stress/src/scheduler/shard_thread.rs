//! The thread of a shard, which generates its load itself.

use super::load::ShardLoad;
use super::meter::{TurnMeter, TurnTime};
use super::openings::Openings;
use ripieno_base::Time;
use ripieno_policies::ModelShard;
use ripieno_policies::grants::ToMatchmaker;
use ripieno_runtime::Clock;
use ripieno_runtime::shards::ShardConnection;
use ripieno_sched::{Action, Limits, Outbox, Outcome, Scheduler, TaskDone};
use std::sync::atomic::{AtomicBool, Ordering};

/// A shard with its load, and its connection to the matchmaker.
pub(super) struct ShardThread {
    shard: ModelShard,
    pub(super) load: ShardLoad,
    openings: Openings,
    connection: ShardConnection,
    out: Outbox,
}

impl ShardThread {
    pub(super) fn new(shard: ModelShard, load: ShardLoad, limits: &Limits, connection: ShardConnection) -> ShardThread {
        let (openings, out) = (Openings::new(limits.models), Outbox::new(limits));
        ShardThread { shard, load, openings, connection, out }
    }

    /// Takes turns until `stop` is set.
    pub(super) fn run(mut self, clock: Clock, stop: &AtomicBool, counted_from: Time) -> (ShardLoad, TurnTime) {
        let mut meter = TurnMeter::new(counted_from);
        self.load.begin(clock.now());
        while !stop.load(Ordering::Relaxed) {
            let now = clock.now();
            meter.begin(now);
            let worked = self.turn(now, || clock.now());
            meter.worked(worked);
            if !worked {
                std::hint::spin_loop();
            }
        }
        (self.load, meter.spent)
    }

    /// Reads inputs, decides and publishes. Returns whether the turn had work. `at_hand_out`
    /// returns the current time and is called after the last dispatch.
    pub(super) fn turn(&mut self, now: Time, at_hand_out: impl Fn() -> Time) -> bool {
        if !self.connection.flush() {
            return false;
        }
        let ShardThread { shard, load, openings, .. } = self;
        let mut inputs = load.arrive(now, |request| {
            openings.arrived(request.model, request.arrived);
            shard.on_request(now, request);
        });
        inputs += load.end_tasks(now, |task| {
            shard.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] })
        });
        while let Some(grant) = self.connection.next_grant() {
            shard.on_grant(grant);
            inputs += 1;
        }
        if inputs == 0 && now < shard.next_wakeup() {
            return false;
        }
        shard.settle(now, &mut self.out);
        self.perform(now, at_hand_out);
        self.publish(now);
        true
    }

    fn perform(&mut self, now: Time, at_hand_out: impl Fn() -> Time) {
        let mut started = false;
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, .. } => {
                    self.load.start(now, task, model, block, self.shard.members(task).len());
                    started = true;
                }
                Action::Finish { request } => self.load.finish(now, request),
                Action::Reject { request, .. } => self.load.reject(request),
                Action::Cancel { .. } => unreachable!("no sharded policy aborts running work"),
            }
        }
        if started {
            self.note_decisions(at_hand_out());
        }
    }

    /// Records the decision latency of all batches of a turn. `at` is the dispatch of the last
    /// batch, which saves clock reads and never understates the latency.
    fn note_decisions(&mut self, at: Time) {
        for action in self.out.actions() {
            if let Action::Start { model, .. } = *action
                && let Some(waited) = self.openings.started(model, at)
            {
                self.load.record_decision(at, waited);
            }
        }
    }

    fn publish(&mut self, now: Time) {
        let openings = &mut self.openings;
        self.connection.send(self.shard.take_mail().inspect(|mail| {
            if let ToMatchmaker::Offer(offer) = mail {
                openings.offered(now, offer.model, offer.opens());
            }
        }));
        self.out.clear();
    }
}
