//! The thread of the matchmaker.

use super::board::Board;
use crate::Clock;
use crossbeam_queue::ArrayQueue;
use ripieno_sched::{Grant, Matchmaker, ToMatchmaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the thread owns and shares.
pub(super) struct MatchmakerThread {
    pub(super) clock: Clock,
    pub(super) matchmaker: Matchmaker,
    pub(super) board: Arc<Board>,
    /// Releases, and news of what was sent, from all shards.
    pub(super) events: Arc<ArrayQueue<ToMatchmaker>>,
    /// One ring a shard; a model belongs to the shard at its id modulo their number.
    pub(super) grants: Vec<Arc<ArrayQueue<Grant>>>,
    pub(super) stop: Arc<AtomicBool>,
}

impl MatchmakerThread {
    /// Runs until it is told to stop; returns how many grants it gave. It does not sleep: it is meant for a core of its
    /// own, where the next mail is always a few microseconds away.
    pub(super) fn run(mut self) -> u64 {
        let mut given = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            // Bounded by what the ring can hold, so that offers are looked at however many events come in.
            for _ in 0..self.events.capacity() {
                let Some(event) = self.events.pop() else { break };
                self.matchmaker.on_mail(now, event);
            }
            let matchmaker = &mut self.matchmaker;
            self.board.read(|offer| matchmaker.on_mail(now, ToMatchmaker::Offer(offer)));
            while let Some(grant) = self.matchmaker.next_grant(now) {
                let ring = &self.grants[grant.model.index() % self.grants.len()];
                assert!(ring.push(grant).is_ok(), "a ring holds as many grants as there are device slots");
                given += 1;
            }
        }
        given
    }
}
