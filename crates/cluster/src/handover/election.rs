//! A scheduler's part in the election: it receives heartbeats, tolerates some silence, and asks the
//! store.

use super::ids::{Epoch, ProcessId};
use super::store::{EpochEntry, Swap};
use super::timing::Timing;
use ripieno_base::Time;

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
}

impl Election {
    pub(super) fn new(now: Time, me: ProcessId, timing: Timing) -> Election {
        // Longer than the tolerated silence: a primary may exist that has not been heard yet.
        let ask_at = now + timing.discovery * 2;
        let none = Epoch::default();
        Election { me, timing, entry: None, known: none, own: none, ask_at, store_asked: false, fenced: 0 }
    }

    pub(super) fn known(&self) -> Epoch {
        self.known
    }

    /// Returns true if the last known primary is another scheduler that is not silent.
    pub(super) fn follows(&self) -> bool {
        self.entry.is_some_and(|entry| entry.holder != self.me) && !self.store_asked
    }

    pub(super) fn ask_at(&self) -> Time {
        self.ask_at
    }

    /// Handles a heartbeat of an epoch that is not over as far as is known.
    pub(super) fn on_heartbeat(&mut self, now: Time, holder: ProcessId, epoch: Epoch) {
        self.entry = Some(EpochEntry { epoch, holder });
        self.known = self.known.max(epoch);
        self.fenced = 0;
        self.restart_timer(now);
    }

    /// Handles news of an epoch.
    pub(super) fn on_epoch(&mut self, epoch: Epoch) {
        self.known = self.known.max(epoch);
    }

    /// Handles the end of its own epoch.
    pub(super) fn on_fenced(&mut self, now: Time) {
        self.fenced += 1;
        self.restart_timer(now);
    }

    /// Handles the loss of a connection. The loss of the primary counts as silence, except for a
    /// scheduler that was fenced needlessly: it waits.
    pub(super) fn on_lost(&mut self, now: Time, who: ProcessId) {
        let is_primary = self.entry.is_some_and(|entry| entry.holder == who);
        if is_primary && self.fenced == 0 && !self.store_asked {
            self.ask_at = self.ask_at.min(now);
        }
    }

    /// Returns a swap for the store, if it is time.
    pub(super) fn on_timer(&mut self, now: Time) -> Option<Swap> {
        if now < self.ask_at {
            return None;
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
        self.ask_at = now + self.timing.tolerated_silence(self.fenced);
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
        election.on_heartbeat(Time(5), OTHER, Epoch(4));
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
        assert_eq!(
            election.ask_at(),
            silent + TIMING.silence + TIMING.store,
            "told the same again, it waits no longer"
        );
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
        assert_eq!(election.ask_at(), Time(9) + TIMING.silence * 4);
        election.on_heartbeat(Time(11), OTHER, Epoch(5));
        assert_eq!(election.ask_at(), Time(11) + TIMING.silence);
    }
}
