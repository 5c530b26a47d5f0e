//! Whose requests run alone for a while, because the engine failed on too many of them.
//!
//! A request that the engine fails on costs its batch a few further runs, until it is told from the others. That is cheap now and
//! then, and dear if somebody sends little else. So failures are counted by model and client, and fade with time; who has too
//! many runs alone until they have faded. Clients that nobody can tell apart are one: there, everybody would pay for one of
//! them, so they run alone only while so many requests fail that telling them apart costs more than running each by itself.
//!
//! Only who has failed is kept, and of those a bounded number.

use ripieno_base::{ModelId, Nanos, Time};
use std::collections::HashMap;

/// After this time a failure counts half.
const HALF_LIFE: Nanos = Nanos::from_millis(10_000);

/// One failure, so that it can be halved a few times.
const ONE: u32 = 1 << 8;

/// So many failures have a client run alone.
const MANY: u32 = 3 * ONE;

/// Among clients that cannot be told apart, also one failure in so many requests: from there on, finding the culprits of a full
/// batch takes more runs than there are members.
const ONE_IN: u32 = 4;

/// Of the clients that nobody tells apart.
const UNKNOWN: u16 = 0;

/// The most that are kept in mind.
const MOST: usize = 1024;

/// Who has failed lately.
#[derive(Debug, Default)]
pub(crate) struct FailureHistory {
    records: HashMap<(ModelId, u16), Record>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    failed: u32,
    /// Requests since the first failure, likewise fading.
    asked: u32,
    /// Until when both have faded.
    faded: Time,
}

impl Record {
    /// Fades; false once nothing is left.
    fn fade(&mut self, now: Time) -> bool {
        let halves = ((now - self.faded).0 / HALF_LIFE.0).max(0);
        self.faded = self.faded + HALF_LIFE * halves;
        let by = halves.min(31) as u32;
        (self.failed, self.asked) = (self.failed >> by, self.asked >> by);
        self.failed > ONE / ONE_IN
    }
}

impl FailureHistory {
    /// A request comes in; whether it must run alone.
    pub(crate) fn on_request(&mut self, now: Time, model: ModelId, client: u16) -> bool {
        let Some(record) = self.records.get_mut(&(model, client)) else { return false };
        if !record.fade(now) {
            self.records.remove(&(model, client));
            return false;
        }
        record.asked = record.asked.saturating_add(ONE);
        record.failed >= MANY && (client != UNKNOWN || record.failed.saturating_mul(ONE_IN) >= record.asked)
    }

    /// The engine failed on a request alone.
    pub(crate) fn on_failure(&mut self, now: Time, model: ModelId, client: u16) {
        let key = (model, client);
        if self.records.len() == MOST && !self.records.contains_key(&key) {
            let least = self.records.iter().min_by_key(|(key, record)| (record.faded, record.failed, **key));
            if let Some(least) = least.map(|(&key, _)| key) {
                self.records.remove(&least);
            }
        }
        let record = self.records.entry(key).or_insert(Record { failed: 0, asked: ONE, faded: now });
        record.fade(now);
        record.failed = record.failed.saturating_add(ONE);
    }

    /// A process of the model's engine ended with a request in it, perhaps by its doing: the client runs alone at once.
    pub(crate) fn on_death(&mut self, now: Time, model: ModelId, client: u16) {
        (0..MANY / ONE).for_each(|_| self.on_failure(now, model, client));
    }

    /// The model has gone, and its id may be another's.
    pub(crate) fn forget(&mut self, model: ModelId) {
        self.records.retain(|&(of, _), _| of != model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId(3);

    fn s(seconds: i64) -> Time {
        Time::ORIGIN + Nanos::from_millis(1000) * seconds
    }

    #[test]
    fn a_client_that_fails_repeatedly_runs_alone_until_it_has_faded() {
        let mut failures = FailureHistory::default();
        for failure in 0..3 {
            assert!(!failures.on_request(s(1), MODEL, 7), "after {failure} failures");
            failures.on_failure(s(1), MODEL, 7);
        }
        assert!((0..1_000).all(|_| failures.on_request(s(1), MODEL, 7)), "however many good ones it sends");
        assert!(!failures.on_request(s(1), MODEL, 8), "another client of the model");
        assert!(!failures.on_request(s(1), ModelId(4), 7), "the client with another model");
        assert!(failures.on_request(s(10), MODEL, 7));
        assert!(!failures.on_request(s(11), MODEL, 7), "half of three are too few");
        (0..2).for_each(|_| failures.on_failure(s(12), MODEL, 7));
        assert!(failures.on_request(s(12), MODEL, 7), "what is left still counts");
        assert!(!failures.on_request(s(1_000_000), MODEL, 7));
        assert!(failures.records.is_empty());
    }

    #[test]
    fn clients_that_nobody_tells_apart_run_alone_only_while_many_fail() {
        let mut failures = FailureHistory::default();
        let mut send = |now: Time, of: u32, failing: u32| {
            let alone = (0..of).filter(|_| failures.on_request(now, MODEL, UNKNOWN)).count();
            (0..failing).for_each(|_| failures.on_failure(now, MODEL, UNKNOWN));
            alone
        };
        for _ in 0..100 {
            assert_eq!(send(s(1), 12, 1), 0, "one in twelve is told apart more cheaply");
        }
        assert_eq!((0..100).map(|_| send(s(200), 12, 6)).max(), Some(12));
        assert_eq!(send(s(200), 12, 6), 12);
    }

    #[test]
    fn who_was_in_a_process_that_ended_runs_alone_at_once() {
        let mut failures = FailureHistory::default();
        failures.on_death(s(1), MODEL, 7);
        assert!(failures.on_request(s(1), MODEL, 7) && !failures.on_request(s(1), MODEL, 8));
        assert!(!failures.on_request(s(11), MODEL, 7), "and no longer if nothing more happens");
        failures.on_death(s(20), MODEL, UNKNOWN);
        let alone = (0..100).filter(|_| failures.on_request(s(20), MODEL, UNKNOWN)).count();
        assert!((8..16).contains(&alone), "{alone} of those that nobody tells apart");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut failures = FailureHistory::default();
        for client in 0..3 * MOST as u16 {
            failures.on_failure(s(i64::from(client)), MODEL, 1 + client);
            assert!(failures.records.len() <= MOST);
        }
        let last = 3 * MOST as u16;
        (0..2).for_each(|_| failures.on_failure(s(i64::from(last)), MODEL, last));
        assert!(failures.on_request(s(i64::from(last)), MODEL, last), "the latest is not forgotten");
        failures.forget(MODEL);
        assert!(failures.records.is_empty());
    }
}
