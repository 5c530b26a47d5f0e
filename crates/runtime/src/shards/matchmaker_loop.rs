//! The matchmaker's loop: it reads the shards' messages and grants devices to them.

use super::MatchmakerInbox;
use crate::Clock;
use crate::event_loop::EventLoop;
use crate::event_loop::mailbox::{Mail, Mailbox};
use ripieno_base::Time;
use ripieno_policies::grants::{Offer, ToMatchmaker};
use ripieno_policies::{Matchmaker, shard_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The matchmaker, its inbox, and the mailboxes of the shards. [`connect`](super::connect) creates
/// one.
pub struct MatchmakerLoop {
    clock: Clock,
    matchmaker: Matchmaker,
    inbox: Arc<MatchmakerInbox>,
    /// Mailboxes of the shards.
    mailboxes: Vec<Arc<Mailbox>>,
    granted: Arc<AtomicU64>,
    /// The offers read in the current turn; empty between turns.
    offers: Vec<Offer>,
}

impl MatchmakerLoop {
    pub(crate) fn new(
        clock: Clock,
        matchmaker: Matchmaker,
        inbox: Arc<MatchmakerInbox>,
        mailboxes: Vec<Arc<Mailbox>>,
        granted: Arc<AtomicU64>,
    ) -> MatchmakerLoop {
        let offers = Vec::with_capacity(matchmaker.models());
        MatchmakerLoop { clock, matchmaker, inbox, mailboxes, granted, offers }
    }

    /// Takes a turn: reads the messages of all shards and sends grants to their mailboxes. Returns
    /// the number of messages and grants; 0 if the turn had no work.
    ///
    /// `now` returns the current time and is called once, after the offers are read.
    pub fn match_at(&mut self, now: impl FnOnce() -> Time) -> usize {
        let MatchmakerLoop { matchmaker, inbox, offers, .. } = self;
        // Offers are read before events but applied after them. So every event that a shard sent
        // before its offer is applied before the offer.
        let mut inputs = inbox.table.read(|offer| offers.push(offer));
        let now = now();
        // Reads at most the ring's capacity, so a high rate of events cannot delay the offers for
        // ever.
        for _ in 0..inbox.events.capacity() {
            let Some(event) = inbox.events.pop() else { break };
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

impl EventLoop for MatchmakerLoop {
    type Inbox = MatchmakerInbox;

    fn turn(&mut self) -> Time {
        let clock = self.clock;
        self.match_at(|| clock.now());
        self.matchmaker.next_wakeup()
    }

    fn has_ended(&self) -> bool {
        self.inbox.stopped.load(Ordering::SeqCst)
    }
}
