//! The thread of a model shard, under a load that it generates itself.

use super::load::Load;
use super::meter::{Meter, Spent};
use super::openings::Openings;
use crate::Clock;
use crate::shards::OfferWriter;
use crossbeam_queue::ArrayQueue;
use ripieno_base::Time;
use ripieno_sched::{Action, Grant, Limits, ModelShard, Outbox, Outcome, Scheduler, TaskDone, ToMatchmaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shard, its load and its ends of the mailboxes.
pub(super) struct ShardThread {
    shard: ModelShard,
    pub(super) load: Load,
    openings: Openings,
    writer: OfferWriter,
    /// Releases and news of what was sent, to the matchmaker.
    events: Arc<ArrayQueue<ToMatchmaker>>,
    grants: Arc<ArrayQueue<Grant>>,
    out: Outbox,
    mail: Vec<ToMatchmaker>,
}

impl ShardThread {
    pub(super) fn new(
        shard: ModelShard,
        load: Load,
        limits: &Limits,
        writer: OfferWriter,
        events: Arc<ArrayQueue<ToMatchmaker>>,
        grants: Arc<ArrayQueue<Grant>>,
    ) -> ShardThread {
        ShardThread {
            shard,
            load,
            openings: Openings::new(limits.models),
            writer,
            events,
            grants,
            out: Outbox::new(limits),
            mail: Vec::with_capacity(limits.models + 2 * limits.tasks()),
        }
    }

    /// Takes turns until it is told to stop.
    pub(super) fn run(mut self, clock: Clock, stop: &AtomicBool, counted_from: Time) -> (Load, Spent) {
        let mut meter = Meter::new(counted_from);
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

    /// Takes in what is there, decides, tells. Whether there was anything to do. `at_hand_out` is asked when
    /// batches have been handed out.
    pub(super) fn turn(&mut self, now: Time, at_hand_out: impl Fn() -> Time) -> bool {
        let ShardThread { shard, load, openings, .. } = self;
        let mut inputs = load.arrive(now, |request| {
            openings.arrived(request.model, request.arrived);
            shard.on_request(now, request);
        });
        inputs += load.end_tasks(now, |task| {
            shard.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] })
        });
        while let Some(grant) = self.grants.pop() {
            shard.on_grant(now, grant);
            inputs += 1;
        }
        if inputs == 0 && now < shard.next_wakeup() {
            return false;
        }
        shard.settle(now, &mut self.out);
        self.mail.extend(self.out.take_mail());
        self.perform(now, at_hand_out);
        self.tell(now);
        true
    }

    fn perform(&mut self, now: Time, at_hand_out: impl Fn() -> Time) {
        let mut started = false;
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, .. } => {
                    self.load.start(now, task, (model, block), self.shard.members(task).len());
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
        self.out.clear();
    }

    /// All batches of a turn count as handed out with the last of them: one look at the clock, and never too early.
    fn note_decisions(&mut self, at: Time) {
        for action in self.out.actions() {
            if let Action::Start { model, .. } = *action
                && let Some(waited) = self.openings.started(model, at)
            {
                self.load.decided(at, waited);
            }
        }
    }

    fn tell(&mut self, now: Time) {
        for mail in self.mail.drain(..) {
            match mail {
                ToMatchmaker::Offer(offer) => {
                    self.openings.offered(now, offer.model, offer.opens());
                    self.writer.write(&offer);
                }
                event => assert!(self.events.push(event).is_ok(), "a ring holds an event a device slot"),
            }
        }
        self.writer.publish();
    }
}
