//! The matchmaker's loop: reads what shards say, and grants them devices.

use super::Desk;
use crate::Clock;
use crate::mailbox::{Mail, Mailbox};
use crate::turns::Looped;
use ripieno_base::Time;
use ripieno_sched::{Matchmaker, Offer, ToMatchmaker, shard_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The matchmaker and its ends of the mail.
pub(crate) struct MatchmakerLoop {
    clock: Clock,
    matchmaker: Matchmaker,
    desk: Arc<Desk>,
    /// Of the shards.
    mailboxes: Vec<Arc<Mailbox>>,
    granted: Arc<AtomicU64>,
    /// The offers of a turn; empty between turns.
    offers: Vec<Offer>,
}

impl MatchmakerLoop {
    pub(crate) fn new(
        clock: Clock,
        matchmaker: Matchmaker,
        desk: Arc<Desk>,
        mailboxes: Vec<Arc<Mailbox>>,
        granted: Arc<AtomicU64>,
    ) -> MatchmakerLoop {
        let offers = Vec::with_capacity(matchmaker.models());
        MatchmakerLoop { clock, matchmaker, desk, mailboxes, granted, offers }
    }

    /// Takes in what is there and grants what can be granted; how much of both there was.
    pub(crate) fn match_at(&mut self, now: impl FnOnce() -> Time) -> usize {
        let MatchmakerLoop { matchmaker, desk, offers, .. } = self;
        // Offers are looked at before events and counted after them: what a shard said before its offer is in the ring
        // by then.
        let mut inputs = desk.table.read(|offer| offers.push(offer));
        let now = now();
        // Bounded by what the ring can hold, so that offers count however many events come in.
        for _ in 0..desk.events.capacity() {
            let Some(event) = desk.events.pop() else { break };
            matchmaker.on_mail(now, event);
            inputs += 1;
        }
        offers.drain(..).for_each(|offer| matchmaker.on_mail(now, ToMatchmaker::Offer(offer)));
        let mut granted = 0;
        while let Some(grant) = matchmaker.next_grant(now) {
            let shard = shard_of(grant.model, self.mailboxes.len());
            self.mailboxes[shard].put(Mail::Grant(grant));
            granted |= 1 << shard;
            inputs += 1;
        }
        self.granted.fetch_or(granted, Ordering::AcqRel);
        inputs
    }
}

impl Looped for MatchmakerLoop {
    type Inbox = Desk;

    fn turn(&mut self) -> Time {
        let clock = self.clock;
        self.match_at(|| clock.now());
        self.matchmaker.next_wakeup()
    }

    fn has_ended(&self) -> bool {
        self.desk.stopped.load(Ordering::SeqCst)
    }
}
