//! A scheduler's part in who is the primary: it hears heartbeats, bears silence, and asks the store.

use super::ids::{Epoch, Process};
use super::store::{Entry, Swap};
use super::timing::Timing;
use ripieno_base::Time;

#[derive(Clone, Debug)]
pub(super) struct Election {
    me: Process,
    timing: Timing,
    /// What the store held when it was last heard of, by its own word or a primary's.
    entry: Option<Entry>,
    /// The latest epoch that anybody has spoken of.
    known: Epoch,
    /// The latest of its own.
    own: Epoch,
    /// Without a heartbeat until then, the store is asked.
    ask_at: Time,
    /// The store has been asked since the last heartbeat.
    asking: bool,
    /// So often it was fenced and has not heard the one who came after.
    fenced: u32,
}

impl Election {
    pub(super) fn new(now: Time, me: Process, timing: Timing) -> Election {
        // Longer than a silence: whom it has not yet heard may be there all the same.
        let ask_at = now + timing.discovery * 2;
        let none = Epoch::default();
        Election { me, timing, entry: None, known: none, own: none, ask_at, asking: false, fenced: 0 }
    }

    pub(super) fn known(&self) -> Epoch {
        self.known
    }

    /// Whether another scheduler was the primary when it was last heard of, and is not silent.
    pub(super) fn follows(&self) -> bool {
        self.entry.is_some_and(|entry| entry.holder != self.me) && !self.asking
    }

    pub(super) fn ask_at(&self) -> Time {
        self.ask_at
    }

    /// The primary has spoken, of an epoch that is not over as far as is known.
    pub(super) fn on_heartbeat(&mut self, now: Time, holder: Process, epoch: Epoch) {
        self.entry = Some(Entry { epoch, holder });
        self.known = self.known.max(epoch);
        self.fenced = 0;
        self.wait(now);
    }

    /// Somebody knows of this epoch.
    pub(super) fn on_epoch(&mut self, epoch: Epoch) {
        self.known = self.known.max(epoch);
    }

    /// Its own epoch is over, because there is a later one.
    pub(super) fn on_fenced(&mut self, now: Time) {
        self.fenced += 1;
        self.wait(now);
    }

    /// The connection to somebody broke. That a primary ended is seen so at once; who was fenced for nothing rather waits.
    pub(super) fn on_lost(&mut self, now: Time, who: Process) {
        let is_primary = self.entry.is_some_and(|entry| entry.holder == who);
        if is_primary && self.fenced == 0 && !self.asking {
            self.ask_at = self.ask_at.min(now);
        }
    }

    /// Asks the store, if it is time.
    pub(super) fn on_timer(&mut self, now: Time) -> Option<Swap> {
        if now < self.ask_at {
            return None;
        }
        self.asking = true;
        self.ask_at = now + self.timing.store;
        let epoch = self.entry.map_or(Epoch::default(), |entry| entry.epoch).next();
        Some(Swap { expected: self.entry, next: Entry { epoch, holder: self.me } })
    }

    /// The store has said what it holds. The epoch that begins by it, if it is its own.
    pub(super) fn on_store(&mut self, now: Time, held: Entry) -> Option<Epoch> {
        // A reply that was overtaken by what others know.
        if held.epoch < self.known {
            return None;
        }
        self.known = held.epoch;
        if held.holder == self.me {
            // One that began before has ended: there is no way back into it.
            let begins = held.epoch > self.own;
            self.own = held.epoch;
            self.entry = Some(held);
            return begins.then_some(held.epoch);
        }
        // Who has it may be about to speak.
        if self.entry != Some(held) {
            self.entry = Some(held);
            self.wait(now);
        }
        None
    }

    fn wait(&mut self, now: Time) {
        self.asking = false;
        self.ask_at = now + self.timing.patience(self.fenced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Process = Process(1);
    const OTHER: Process = Process(2);
    const TIMING: Timing = Timing::SHARED_HOSTS;

    fn entry(epoch: u64, holder: Process) -> Entry {
        Entry { epoch: Epoch(epoch), holder }
    }

    fn spare() -> (Election, Time) {
        let mut election = Election::new(Time::ORIGIN, ME, TIMING);
        election.on_heartbeat(Time(5), OTHER, Epoch(4));
        (election, Time(5) + TIMING.silence)
    }

    #[test]
    fn who_has_just_begun_gives_a_primary_time_to_be_heard() {
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
    fn who_comes_second_waits_for_the_first() {
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
    fn a_broken_connection_to_the_primary_is_silence_but_not_for_who_was_fenced() {
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
