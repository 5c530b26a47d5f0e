//! A scheduler's part in the election: it receives heartbeats, tolerates some silence, and asks the
//! store.
//!
//! Silence counts while this scheduler itself runs. A gap between two of its own marks means that
//! it slept, and that heartbeats may wait unread. A primary that was deposed rests before it stands
//! again, so that two schedulers on a busy machine do not depose each other in turn.

use super::ids::{Epoch, ProcessId};
use super::store::{EpochEntry, Swap};
use super::timing::Timing;
use ripieno_base::{Nanos, Time};
use std::fmt;

/// The reason for which a scheduler stands for leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionCause {
    /// No primary was heard since the start of this scheduler.
    NoPrimary,
    /// The primary was not heard for this long, while this scheduler ran.
    Silence(Nanos),
    /// The connection to the primary ended.
    ConnectionLost,
    /// The primary has no backends or no frontends; this scheduler has both.
    CutOff,
}

impl fmt::Display for ElectionCause {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElectionCause::NoPrimary => text.write_str("no primary was heard since the start"),
            ElectionCause::Silence(span) => {
                write!(text, "the primary was not heard for {:.0} ms", span.as_millis_f64())
            }
            ElectionCause::ConnectionLost => text.write_str("the connection to the primary ended"),
            ElectionCause::CutOff => text.write_str("the primary is cut off from backends or frontends"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Election {
    me: ProcessId,
    timing: Timing,
    /// The last known entry of the store, from the store itself or from a primary.
    entry: Option<EpochEntry>,
    /// The latest known epoch.
    known: Epoch,
    /// The latest epoch of its own.
    own: Epoch,
    /// Time at which the store is asked, unless a heartbeat arrives earlier.
    ask_at: Time,
    /// True if the store has been asked since the last heartbeat.
    store_asked: bool,
    /// Number of times that it was fenced since the last heartbeat of another primary.
    fenced: u32,
    /// Time before which it does not stand, since it was deposed.
    rests_until: Time,
    /// Time before which silence and lost connections do not count, since it slept.
    trusts_from: Time,
    /// Time of its last mark.
    awake: Time,
    /// Sleep since the last heartbeat.
    slept: Nanos,
    /// Time of the last heartbeat; `None` before the first.
    heard: Option<Time>,
    /// Time since which the primary says that it lacks a role that this scheduler reaches.
    cut_off_since: Option<Time>,
    /// The reason for which the store was asked last.
    cause: ElectionCause,
}

impl Election {
    pub(super) fn new(now: Time, me: ProcessId, timing: Timing) -> Election {
        // Longer than the tolerated silence: a primary may exist that has not been heard yet.
        let ask_at = now + timing.discovery * 2;
        let none = Epoch::default();
        Election {
            me,
            timing,
            entry: None,
            known: none,
            own: none,
            ask_at,
            store_asked: false,
            fenced: 0,
            rests_until: now,
            trusts_from: now,
            awake: now,
            slept: Nanos::ZERO,
            heard: None,
            cut_off_since: None,
            cause: ElectionCause::NoPrimary,
        }
    }

    pub(super) fn known(&self) -> Epoch {
        self.known
    }

    /// Returns true if the last known primary is another scheduler that is not silent.
    pub(super) fn follows(&self) -> bool {
        self.entry.is_some_and(|entry| entry.holder != self.me) && !self.store_asked
    }

    /// Returns why the store was asked last.
    pub(super) fn cause(&self) -> ElectionCause {
        self.cause
    }

    /// Returns the time of its next mark, or at which it asks the store.
    pub(super) fn next_wakeup(&self) -> Time {
        self.ask_at.min(self.awake + self.timing.mark())
    }

    /// Marks that the process runs. After a gap it hears what waits before it judges.
    pub(super) fn on_awake(&mut self, now: Time) {
        let gap = now - self.awake;
        self.awake = now;
        if gap < self.timing.nap() || self.slept >= self.timing.max_slept() {
            return;
        }
        self.slept += gap;
        self.trusts_from = now + self.timing.silence;
        self.stand_at(self.ask_at + gap);
    }

    /// Sets the time at which the store is asked.
    fn stand_at(&mut self, at: Time) {
        self.ask_at = at.max(self.rests_until).max(self.trusts_from);
    }

    /// Handles a heartbeat of an epoch that is not over as far as is known. A primary that stays
    /// cut off from a role that this scheduler reaches is replaced like a silent one.
    pub(super) fn on_heartbeat(&mut self, now: Time, holder: ProcessId, epoch: Epoch, cut_off: bool) {
        let earlier = self.entry.replace(EpochEntry { epoch, holder });
        let since = self.cut_off_since.filter(|_| earlier == self.entry);
        self.known = self.known.max(epoch);
        self.cut_off_since = cut_off.then(|| since.unwrap_or(now));
        self.fenced = 0;
        (self.heard, self.slept) = (Some(now), Nanos::ZERO);
        if self.cut_off_since.is_none_or(|since| now < since + self.timing.cut_off) {
            self.cause = ElectionCause::Silence(Nanos::ZERO);
            self.restart_timer(now);
        } else if !self.store_asked {
            self.cause = ElectionCause::CutOff;
            self.stand_at(now);
        }
    }

    /// Handles news of an epoch.
    pub(super) fn on_epoch(&mut self, epoch: Epoch) {
        self.known = self.known.max(epoch);
    }

    /// Handles the end of its own epoch.
    pub(super) fn on_fenced(&mut self, now: Time) {
        self.fenced += 1;
        self.rests_until = now + self.timing.rest;
        self.restart_timer(now);
    }

    /// Handles the loss of a connection. The loss of the primary counts as silence and ends a rest,
    /// except for a scheduler that was fenced needlessly, or that has just slept: it waits.
    pub(super) fn on_lost(&mut self, now: Time, who: ProcessId) {
        let is_primary = self.entry.is_some_and(|entry| entry.holder == who);
        if is_primary && self.fenced == 0 && !self.store_asked && now >= self.trusts_from {
            self.rests_until = now;
            self.cause = ElectionCause::ConnectionLost;
            self.stand_at(self.ask_at.min(now));
        }
    }

    /// Returns a swap for the store, if it is time.
    pub(super) fn on_timer(&mut self, now: Time) -> Option<Swap> {
        if now < self.ask_at {
            return None;
        }
        if let (ElectionCause::Silence(_), Some(heard)) = (self.cause, self.heard) {
            self.cause = ElectionCause::Silence(now - heard);
        }
        self.store_asked = true;
        self.ask_at = now + self.timing.store;
        let epoch = self.entry.map_or(Epoch::default(), |entry| entry.epoch).next();
        Some(Swap { expected: self.entry, next: EpochEntry { epoch, holder: self.me } })
    }

    /// Handles the store's entry. Returns the epoch that begins, if it is its own.
    pub(super) fn on_store(&mut self, now: Time, held: EpochEntry) -> Option<Epoch> {
        // A reply that is older than what other processes know.
        if held.epoch < self.known {
            return None;
        }
        self.known = held.epoch;
        if held.holder == self.me {
            // An epoch that began earlier has ended and cannot be resumed.
            let begins = held.epoch > self.own;
            self.own = held.epoch;
            self.entry = Some(held);
            return begins.then_some(held.epoch);
        }
        // The holder may be about to send its first heartbeat.
        if self.entry != Some(held) {
            self.entry = Some(held);
            self.restart_timer(now);
        }
        None
    }

    fn restart_timer(&mut self, now: Time) {
        self.store_asked = false;
        self.stand_at(now + self.timing.tolerated_silence(self.fenced));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ProcessId = ProcessId(1);
    const OTHER: ProcessId = ProcessId(2);
    const TIMING: Timing = Timing::SHARED_HOSTS;

    fn entry(epoch: u64, holder: ProcessId) -> EpochEntry {
        EpochEntry { epoch: Epoch(epoch), holder }
    }

    fn spare() -> (Election, Time) {
        let mut election = Election::new(Time::ORIGIN, ME, TIMING);
        election.on_heartbeat(Time(5), OTHER, Epoch(4), false);
        (election, Time(5) + TIMING.silence)
    }

    #[test]
    fn a_new_scheduler_gives_a_primary_time_to_be_heard() {
        let mut election = Election::new(Time::ORIGIN, ME, TIMING);
        let begun = Time::ORIGIN + TIMING.discovery * 2;
        assert_eq!(election.on_timer(Time(begun.0 - 1)), None);
        assert_eq!(election.on_timer(begun), Some(Swap { expected: None, next: entry(1, ME) }));
        assert_eq!(election.on_store(begun, entry(4, OTHER)), None);
        assert_eq!(
            election.on_timer(begun + TIMING.store),
            Some(Swap { expected: Some(entry(4, OTHER)), next: entry(5, ME) })
        );
    }

    #[test]
    fn silence_asks_the_store_and_each_epoch_begins_once() {
        let (mut election, silent) = spare();
        assert_eq!(election.on_timer(Time(silent.0 - 1)), None);
        assert!(election.follows());
        let swap = Swap { expected: Some(entry(4, OTHER)), next: entry(5, ME) };
        assert_eq!(election.on_timer(silent), Some(swap));
        assert!(!election.follows(), "the primary is silent");
        assert_eq!(election.on_timer(silent), None, "a reply may be on the way");
        let again = silent + TIMING.store;
        assert_eq!(election.on_timer(again), Some(swap), "the first reply was lost");
        assert_eq!(election.on_store(again, entry(5, ME)), Some(Epoch(5)));
        assert_eq!(election.on_store(again, entry(5, ME)), None);
    }

    #[test]
    fn the_second_waits_for_the_first() {
        let (mut election, silent) = spare();
        election.on_timer(silent);
        assert_eq!(election.on_store(silent, entry(5, OTHER)), None);
        assert_eq!(election.on_timer(silent), None);
        let swap = election.on_timer(silent + TIMING.silence).unwrap();
        assert_eq!(swap, Swap { expected: Some(entry(5, OTHER)), next: entry(6, ME) });
        assert_eq!(election.on_store(silent + TIMING.silence, entry(5, OTHER)), None);
        assert_eq!(election.ask_at, silent + TIMING.silence + TIMING.store, "told the same again, it waits no longer");
    }

    #[test]
    fn a_reply_of_the_past_begins_nothing() {
        let (mut election, silent) = spare();
        election.on_timer(silent);
        election.on_epoch(Epoch(6));
        assert_eq!(election.on_store(silent, entry(5, ME)), None);
    }

    #[test]
    fn a_broken_connection_to_the_primary_counts_as_silence_unless_fenced() {
        let (mut election, _) = spare();
        election.on_lost(Time(9), ME);
        assert_eq!(election.on_timer(Time(9)), None);
        election.on_lost(Time(9), OTHER);
        assert!(election.on_timer(Time(9)).is_some());
        let (mut election, _) = spare();
        election.on_fenced(Time(9));
        election.on_fenced(Time(9));
        election.on_lost(Time(10), OTHER);
        assert_eq!(election.ask_at, Time(9) + TIMING.rest);
    }

    #[test]
    fn a_deposed_primary_rests_until_its_successor_ends() {
        let (mut election, silent) = spare();
        election.on_timer(silent);
        election.on_store(silent, entry(5, ME));
        election.on_fenced(silent);
        election.on_heartbeat(silent, OTHER, Epoch(6), false);
        assert_eq!(election.on_timer(silent + TIMING.silence), None, "a short silence means nothing to it");
        let rested = silent + TIMING.rest;
        assert!(election.clone().on_timer(rested).is_some(), "a longer one does");
        election.on_lost(silent + TIMING.silence, OTHER);
        assert!(election.on_timer(silent + TIMING.silence).is_some(), "its process has ended");
        assert_eq!(election.cause(), ElectionCause::ConnectionLost);
    }

    #[test]
    fn a_primary_that_stays_cut_off_is_replaced_although_it_is_heard() {
        let (mut election, _) = spare();
        let mut hear = |at: Time, epoch: u64, cut_off: bool| {
            election.on_heartbeat(at, OTHER, Epoch(epoch), cut_off);
            election.on_timer(at)
        };
        let begun = Time(5) + TIMING.heartbeat;
        let patient = begun + TIMING.cut_off;
        assert_eq!(hear(begun, 4, true), None);
        assert_eq!(hear(Time(patient.0 - 1), 4, true), None);
        assert_eq!(hear(patient, 5, true), None, "the next primary has as much time");
        assert_eq!(hear(patient + TIMING.heartbeat, 5, false), None);
        let late = patient + TIMING.cut_off;
        assert_eq!(hear(late, 5, true), None, "it reached all since");
        let swap = Swap { expected: Some(entry(5, OTHER)), next: entry(6, ME) };
        assert_eq!(hear(late + TIMING.cut_off, 5, true), Some(swap));
        assert_eq!(hear(late + TIMING.cut_off, 5, true), None, "a reply may be on the way");
        assert_eq!(election.cause(), ElectionCause::CutOff);
    }

    #[test]
    fn silence_that_the_listener_slept_through_does_not_count() {
        let (mut election, silent) = spare();
        let woken = silent + Nanos::from_millis(200);
        election.on_awake(woken);
        election.on_lost(woken, OTHER);
        assert_eq!(election.on_timer(woken), None, "heartbeats wait to be read");
        election.on_heartbeat(woken, OTHER, Epoch(4), false);
        assert_eq!(election.ask_at, woken + TIMING.silence);

        // A primary that has ended meanwhile is still missed.
        let (mut election, _) = spare();
        let mut now = Time(5);
        while election.on_timer(now).is_none() {
            assert!(now < Time(5) + TIMING.recovery());
            now = now + TIMING.silence;
            election.on_awake(now);
        }
        assert!(matches!(election.cause(), ElectionCause::Silence(span) if span > TIMING.max_slept()));
    }
}
