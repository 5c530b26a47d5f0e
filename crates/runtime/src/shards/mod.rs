//! Several scheduler loops, each for its own models, and the matchmaker that grants them devices.
//!
//! A loop is the same as without shards (`scheduler_loop.rs`), but its core requests devices
//! instead of owning them. All input of the matchmaker comes from the shards, through one
//! [`MatchmakerLink`] each: offers are state, so a table holds the latest of each model; all other
//! messages travel in one bounded ring. Grants come back as mail.
//!
//! Invariants: an offer is visible only after all that its shard sent before it; a device token is
//! in one place, a grant, a shard or the matchmaker; a thread that leaves a message for the
//! matchmaker then takes its turn, or, if another thread is in a turn, wakes the matchmaker's
//! thread.

mod link;
mod matchmaker_loop;
mod offers;

pub(crate) use link::MatchmakerLink;
pub(crate) use matchmaker_loop::MatchmakerLoop;

use crate::Clock;
use crate::answer::DrainGate;
use crate::event_loop::{EventLoop, Inbox, LoopRunner};
use crate::mailbox::{Mail, Mailbox};
use crate::parking::Parking;
use crossbeam_queue::ArrayQueue;
use offers::{OfferTable, OfferWriter};
use ripieno_sched::{Limits, Matchmaker, ToMatchmaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest number of shards: one bit each.
pub(crate) const MAX_SHARDS: usize = 64;

/// Messages from the shards that the matchmaker has not read.
pub(crate) struct MatchmakerInbox {
    table: Arc<OfferTable>,
    events: ArrayQueue<ToMatchmaker>,
    parking: Parking,
    stopped: AtomicBool,
}

/// Routes device requests from shards to the matchmaker, and grants back.
pub(crate) struct ShardRouter<L: EventLoop> {
    matchmaker: LoopRunner<MatchmakerLoop>,
    shards: Vec<Arc<LoopRunner<L>>>,
    /// Bit set of shards that have a grant in their mailbox and have not been woken for it.
    granted: Arc<AtomicU64>,
}

/// Means by which shards with a new grant learn of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantDelivery {
    /// The calling thread takes their turns.
    TakeTurns,
    /// Their threads are woken.
    Wake,
}

impl<L: EventLoop<Inbox = Mailbox>> ShardRouter<L> {
    /// Creates the router of these shards, for `models` model ids.
    pub(crate) fn new(clock: Clock, limits: &Limits, models: usize, shards: Vec<Arc<LoopRunner<L>>>) -> ShardRouter<L> {
        let inbox = Arc::new(MatchmakerInbox::new(limits, models, shards.len()));
        ShardRouter { matchmaker: LoopRunner::new(clock, inbox), shards, granted: Arc::default() }
    }

    /// Returns a new connection of a shard to the matchmaker.
    pub(crate) fn link(&self) -> MatchmakerLink {
        MatchmakerLink::new(Arc::clone(self.matchmaker.inbox()))
    }

    /// Takes the matchmaker's turns until it is stopped. Without it no shard continues.
    pub(crate) fn run(&self, clock: Clock, matchmaker: Matchmaker, gate: Arc<DrainGate>) {
        let _closing = EndShardsOnExit(self, gate);
        let mailboxes = self.shards.iter().map(|shard| Arc::clone(shard.inbox())).collect();
        let (inbox, granted) = (Arc::clone(self.matchmaker.inbox()), Arc::clone(&self.granted));
        let event_loop = MatchmakerLoop::new(clock, matchmaker, inbox, mailboxes, granted);
        let deliver_grants = || {
            self.pass_on(GrantDelivery::Wake);
        };
        self.matchmaker.run(event_loop, deliver_grants);
    }

    /// Ends the matchmaker's thread.
    pub(crate) fn stop(&self) {
        let inbox = self.matchmaker.inbox();
        inbox.close();
        inbox.wake();
    }

    /// Ends all shards: none continues without the others.
    pub(crate) fn end_shards(&self) {
        self.shards.iter().for_each(|shard| shard.inbox().post(Mail::Stop));
    }

    /// Runs the matchmaker after a shard's turn on the calling thread, if it has messages, and then
    /// the shards that it granted devices. Turns that follow from those are left to the shards'
    /// threads.
    pub(crate) fn run_matchmaker(&self, then: GrantDelivery) {
        if self.match_once(then) && then == GrantDelivery::TakeTurns {
            self.match_once(GrantDelivery::Wake);
        }
    }

    /// Runs the matchmaker once; returns whether a shard was granted a device.
    fn match_once(&self, then: GrantDelivery) -> bool {
        if !self.matchmaker.inbox().is_empty() {
            self.matchmaker.turn_or_wake();
        }
        self.pass_on(then)
    }

    fn pass_on(&self, then: GrantDelivery) -> bool {
        let granted = self.granted.swap(0, Ordering::AcqRel);
        let shards = self.shards.iter().enumerate().filter(|(at, _)| granted & (1 << at) != 0);
        shards.for_each(|(_, shard)| match then {
            GrantDelivery::TakeTurns => shard.turn_or_wake(),
            GrantDelivery::Wake => shard.inbox().wake(),
        });
        granted != 0
    }
}

/// Ends the shards with the matchmaker, since they would wait for devices for ever.
struct EndShardsOnExit<'a, L: EventLoop<Inbox = Mailbox>>(&'a ShardRouter<L>, Arc<DrainGate>);

impl<L: EventLoop<Inbox = Mailbox>> Drop for EndShardsOnExit<'_, L> {
    fn drop(&mut self) {
        self.1.close();
        self.0.matchmaker.end();
        self.0.end_shards();
    }
}

impl MatchmakerInbox {
    /// Creates the inbox for `models` model ids.
    pub(crate) fn new(limits: &Limits, models: usize, shards: usize) -> MatchmakerInbox {
        // Room for each device slot's release and return, each device's state with each shard, and
        // each model. A shard that finds the ring full waits.
        let events = ArrayQueue::new(2 * limits.tasks() + shards * limits.devices + models);
        let table = Arc::new(OfferTable::new(models));
        MatchmakerInbox { table, events, parking: Parking::default(), stopped: AtomicBool::new(false) }
    }
}

impl Inbox for MatchmakerInbox {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.table.has_news() && !self.stopped.load(Ordering::SeqCst)
    }

    fn parking(&self) -> &Parking {
        &self.parking
    }

    fn wake(&self) {
        self.parking.wake();
    }

    /// Unread messages are dropped: no client waits for them.
    fn close(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
