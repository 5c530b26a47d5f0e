//! Several loops that decide, each for its models, and the matchmaker that gives them devices.
//!
//! A loop is what it is where it decides for all (`scheduler_loop.rs`); only its core asks for devices instead of
//! having them. All that the matchmaker hears comes from the shards, by a [`Link`] each: offers are state, so the
//! latest of each model lies in a table; everything else travels in one bounded ring. Grants come back as mail.
//!
//! Invariants: an offer is visible only after all that its shard said before it; a device token is in one place, a
//! grant, a shard or the matchmaker; whoever leaves something for the matchmaker takes its turn afterwards, or finds
//! somebody else at it and has its thread look.

mod link;
mod matchmaker_loop;
mod offers;

pub(crate) use link::Link;
pub(crate) use matchmaker_loop::MatchmakerLoop;

use crate::Clock;
use crate::answer::Gate;
use crate::mailbox::{Mail, Mailbox};
use crate::parking::Parking;
use crate::turns::{Inbox, Looped, Turns};
use crossbeam_queue::ArrayQueue;
use offers::{OfferTable, OfferWriter};
use ripieno_sched::{Limits, Matchmaker, ToMatchmaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most shards: a bit each.
pub(crate) const MOST: usize = 64;

/// What shards have told the matchmaker and it has not read.
pub(crate) struct Desk {
    table: Arc<OfferTable>,
    events: ArrayQueue<ToMatchmaker>,
    parking: Parking,
    stopped: AtomicBool,
}

/// Where shards ask for devices.
pub(crate) struct Exchange<L: Looped> {
    matchmaker: Turns<MatchmakerLoop>,
    shards: Vec<Arc<Turns<L>>>,
    /// Shards that have a grant in their mailbox of which nobody has told them, a bit each.
    granted: Arc<AtomicU64>,
}

/// What is done about shards that were granted a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The calling thread takes their turns.
    TakeTurns,
    /// Their threads are called.
    Call,
}

impl<L: Looped<Inbox = Mailbox>> Exchange<L> {
    /// Of these shards, for so many ids of models.
    pub(crate) fn new(clock: Clock, limits: &Limits, models: usize, shards: Vec<Arc<Turns<L>>>) -> Exchange<L> {
        let desk = Arc::new(Desk::new(limits, models, shards.len()));
        Exchange { matchmaker: Turns::new(clock, desk), shards, granted: Arc::default() }
    }

    /// One shard's way to tell the matchmaker.
    pub(crate) fn link(&self) -> Link {
        Link::new(Arc::clone(self.matchmaker.inbox()))
    }

    /// Takes the matchmaker's turns until it is told to stop. Without it no shard goes on.
    pub(crate) fn run(&self, clock: Clock, matchmaker: Matchmaker, gate: Arc<Gate>) {
        let _closing = Closing(self, gate);
        let mailboxes = self.shards.iter().map(|shard| Arc::clone(shard.inbox())).collect();
        let (desk, granted) = (Arc::clone(self.matchmaker.inbox()), Arc::clone(&self.granted));
        let looped = MatchmakerLoop::new(clock, matchmaker, desk, mailboxes, granted);
        let pass_on = || {
            self.pass_on(Then::Call);
        };
        self.matchmaker.run(looped, pass_on);
    }

    /// Ends the matchmaker's thread.
    pub(crate) fn stop(&self) {
        let desk = self.matchmaker.inbox();
        desk.close();
        desk.call();
    }

    /// Ends all shards: none goes on without the others.
    pub(crate) fn end_shards(&self) {
        self.shards.iter().for_each(|shard| shard.inbox().post(Mail::Stop));
    }

    /// A shard has taken a turn on the calling thread: the matchmaker takes one if it was told something, and who was
    /// granted a device by it takes one. What these turns bring about in turn is left to the threads of shards.
    pub(crate) fn follow(&self, then: Then) {
        if self.match_up(then) && then == Then::TakeTurns {
            self.match_up(Then::Call);
        }
    }

    /// Whether a shard was granted anything.
    fn match_up(&self, then: Then) -> bool {
        if !self.matchmaker.inbox().is_empty() {
            self.matchmaker.take_or_call();
        }
        self.pass_on(then)
    }

    fn pass_on(&self, then: Then) -> bool {
        let granted = self.granted.swap(0, Ordering::AcqRel);
        let shards = self.shards.iter().enumerate().filter(|(at, _)| granted & (1 << at) != 0);
        shards.for_each(|(_, shard)| match then {
            Then::TakeTurns => shard.take_or_call(),
            Then::Call => shard.inbox().call(),
        });
        granted != 0
    }
}

/// Ends the shards with the matchmaker: they would wait for devices for ever.
struct Closing<'a, L: Looped<Inbox = Mailbox>>(&'a Exchange<L>, Arc<Gate>);

impl<L: Looped<Inbox = Mailbox>> Drop for Closing<'_, L> {
    fn drop(&mut self) {
        self.1.close();
        self.0.matchmaker.end();
        self.0.end_shards();
    }
}

impl Desk {
    /// For so many ids of models.
    pub(crate) fn new(limits: &Limits, models: usize, shards: usize) -> Desk {
        // Of each device slot what was sent and what comes back, and how each device stands with each shard. Who finds
        // it full waits.
        let events = ArrayQueue::new(2 * limits.tasks() + shards * limits.devices + models);
        let table = Arc::new(OfferTable::new(models));
        Desk { table, events, parking: Parking::default(), stopped: AtomicBool::new(false) }
    }
}

impl Inbox for Desk {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.table.has_news() && !self.stopped.load(Ordering::SeqCst)
    }

    fn parking(&self) -> &Parking {
        &self.parking
    }

    fn call(&self) {
        self.parking.wake();
    }

    /// What is left there is nobody's answer.
    fn close(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
