//! The thread of the matchmaker.

use super::meter::{Meter, Spent};
use crate::Clock;
use crate::shards::OfferTable;
use crossbeam_queue::ArrayQueue;
use ripieno_base::Time;
use ripieno_sched::{Grant, Matchmaker, ToMatchmaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The matchmaker and its ends of the mailboxes.
pub(super) struct MatchmakerThread {
    pub(super) matchmaker: Matchmaker,
    pub(super) table: Arc<OfferTable>,
    /// Releases, and news of what was sent, from all shards.
    pub(super) events: Arc<ArrayQueue<ToMatchmaker>>,
    /// One ring a shard; a model belongs to the shard at its id modulo their number.
    pub(super) grants: Vec<Arc<ArrayQueue<Grant>>>,
}

impl MatchmakerThread {
    /// Takes turns until it is told to stop. It does not sleep: it is meant for a core of its own, where the next mail is
    /// always a few microseconds away.
    pub(super) fn run(mut self, clock: Clock, stop: &AtomicBool, counted_from: Time) -> Spent {
        let mut meter = Meter::new(counted_from);
        while !stop.load(Ordering::Relaxed) {
            let now = clock.now();
            meter.begin(now);
            meter.worked(self.turn(now));
        }
        meter.spent
    }

    /// Takes in what is there and grants what can be granted. Whether there was anything to do.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut inputs = 0;
        // Bounded by what the ring can hold, so that offers are looked at however many events come in.
        for _ in 0..self.events.capacity() {
            let Some(event) = self.events.pop() else { break };
            self.matchmaker.on_mail(now, event);
            inputs += 1;
        }
        let matchmaker = &mut self.matchmaker;
        inputs += self.table.read(|offer| matchmaker.on_mail(now, ToMatchmaker::Offer(offer)));
        while let Some(grant) = self.matchmaker.next_grant(now) {
            let ring = &self.grants[grant.model.index() % self.grants.len()];
            assert!(ring.push(grant).is_ok(), "a ring holds as many grants as there are device slots");
            inputs += 1;
        }
        inputs > 0
    }
}
