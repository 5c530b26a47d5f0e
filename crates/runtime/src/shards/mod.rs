//! Several scheduler loops with their own models, and the matchmaker that grants devices to them.
//!
//! Each loop works as in an unsharded server (`scheduler_loop.rs`), but its core requests devices
//! instead of owning them. The matchmaker receives messages only from the shards, through one link
//! per shard. Offers are state, so a table holds the latest offer of each model. All other messages
//! travel in one bounded ring. The matchmaker answers with grants, which are mail to the shards.
//!
//! Invariants:
//!
//! * An offer becomes visible only after all earlier messages of its shard.
//! * A device token is in exactly one place: a grant, a shard or the matchmaker.
//! * A thread that leaves a message for the matchmaker then takes the matchmaker's turn. If another
//!   thread is in that turn, it wakes the matchmaker's thread.
//!
//! The module is public for benchmarks: with [`connect`], they run the links, mailboxes and
//! matchmaker of a server under a load of their own. So they measure the product's code.

mod connection;
mod link;
mod matchmaker_loop;
mod offers;

pub use connection::{ShardConnection, connect};
pub(crate) use link::MatchmakerLink;
pub use matchmaker_loop::MatchmakerLoop;

use crate::Clock;
use crate::event_loop::mailbox::{Mail, Mailbox};
use crate::event_loop::parking::Parking;
use crate::event_loop::{EventLoop, Inbox, LoopRunner};
use crate::requests::answer::DrainGate;
use crossbeam_queue::ArrayQueue;
use offers::{OfferTable, OfferWriter};
use ripieno_policies::Matchmaker;
use ripieno_policies::grants::ToMatchmaker;
use ripieno_sched::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest number of shards, limited by the 64 bits of `ShardRouter::granted`.
pub(crate) const MAX_SHARDS: usize = 64;

/// Messages from the shards that the matchmaker has not read.
pub(crate) struct MatchmakerInbox {
    table: Arc<OfferTable>,
    events: ArrayQueue<ToMatchmaker>,
    parking: Parking,
    stopped: AtomicBool,
}

/// Takes turns of the matchmaker and of the shards that were granted devices.
pub(crate) struct ShardRouter<L: EventLoop> {
    matchmaker: LoopRunner<MatchmakerLoop>,
    shards: Vec<Arc<LoopRunner<L>>>,
    /// Shards with a grant in their mailbox that have not been woken for it, one bit each.
    granted: Arc<AtomicU64>,
}

/// Delivery of a grant to its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantDelivery {
    /// The calling thread takes the shard's turn.
    TakeTurns,
    /// The shard's thread is woken.
    Wake,
}

impl<L: EventLoop<Inbox = Mailbox>> ShardRouter<L> {
    /// Creates the router of `shards`, for `models` model ids.
    pub(crate) fn new(clock: Clock, limits: &Limits, models: usize, shards: Vec<Arc<LoopRunner<L>>>) -> ShardRouter<L> {
        let inbox = Arc::new(MatchmakerInbox::new(limits, models, shards.len()));
        ShardRouter { matchmaker: LoopRunner::new(clock, inbox), shards, granted: Arc::default() }
    }

    /// Returns a new connection of a shard to the matchmaker.
    pub(crate) fn link(&self) -> MatchmakerLink {
        MatchmakerLink::new(Arc::clone(self.matchmaker.inbox()))
    }

    /// Takes the matchmaker's turns until it is stopped, then ends all shards, which cannot work
    /// without it.
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

    /// Stops the matchmaker's thread.
    pub(crate) fn stop(&self) {
        let inbox = self.matchmaker.inbox();
        inbox.close();
        inbox.wake();
    }

    /// Ends all shards, because no shard can work without the others.
    pub(crate) fn end_shards(&self) {
        self.shards.iter().for_each(|shard| shard.inbox().post(Mail::Stop));
    }

    /// Takes the matchmaker's turn if it has messages, and then the turns of the shards that were
    /// granted devices. A shard calls this after its own turn. If these turns cause further grants,
    /// the shards' threads are woken instead.
    pub(crate) fn run_matchmaker(&self, then: GrantDelivery) {
        if self.match_once(then) && then == GrantDelivery::TakeTurns {
            self.match_once(GrantDelivery::Wake);
        }
    }

    /// Takes the matchmaker's turn once, if it has messages. Returns whether a shard was granted a
    /// device.
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

/// Ends all shards when the matchmaker ends; otherwise they would wait for devices for ever.
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
        // Room for a release and a return of each device slot, each device's state in each shard,
        // and each model. A shard that finds the ring full waits.
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

    /// Drops unread messages, which no client waits for.
    fn close(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
