//! Clients whose requests run alone for a while, because the engine failed on too many of them.
//!
//! If the engine fails on one request, its batch is run several more times to find that request.
//! This is cheap if rare, but expensive for a client that often sends failing requests. So failures
//! are counted per model and client, and the counts decay with time. While a client's count is too
//! high, its requests run alone.
//!
//! All unidentified clients share one count, so isolating them slows all of them down because of
//! one. They are isolated only while failures are so frequent that the additional runs cost more
//! than running each request alone.
//!
//! Only clients with failures are kept, up to a fixed number.

use ripieno_base::{ModelId, Nanos, Time};
use std::collections::HashMap;

/// Time after which the count of failures is halved.
const FAILURE_HALF_LIFE: Nanos = Nanos::from_millis(10_000);

/// Fixed-point value of one failure, with enough bits for several halvings.
const ONE: u32 = 1 << 8;

/// Decayed count of failures at which a client's requests run alone.
const ISOLATION_THRESHOLD: u32 = 3 * ONE;

/// Unidentified clients are isolated only while at least one in this many of their requests fails.
/// At this rate, finding the failed requests of a full batch takes more runs than the batch has
/// members.
const UNKNOWN_CLIENT_RATIO: u32 = 4;

/// The id shared by all unidentified clients.
const UNKNOWN_CLIENT: u16 = 0;

/// Largest number of records. Each new record beyond it replaces an old one.
const MAX_RECORDS: usize = 1024;

/// Recent failures by model and client.
#[derive(Debug, Default)]
pub(crate) struct FailureHistory {
    records: HashMap<(ModelId, u16), FailureRecord>,
}

#[derive(Clone, Copy, Debug)]
struct FailureRecord {
    failed: u32,
    /// Requests since the first failure, decayed like `failed`.
    requests: u32,
    /// Time to which both counts have been decayed.
    decayed_to: Time,
}

impl FailureRecord {
    /// Decays the counts to `now`. Returns false once the failures are negligible.
    fn decay(&mut self, now: Time) -> bool {
        let halves = ((now - self.decayed_to).0 / FAILURE_HALF_LIFE.0).max(0);
        self.decayed_to = self.decayed_to + FAILURE_HALF_LIFE * halves;
        let by = halves.min(31) as u32;
        (self.failed, self.requests) = (self.failed >> by, self.requests >> by);
        self.failed > ONE / UNKNOWN_CLIENT_RATIO
    }
}

impl FailureHistory {
    /// Counts a request. Returns whether it must run alone.
    pub(crate) fn on_request(&mut self, now: Time, model: ModelId, client: u16) -> bool {
        let Some(record) = self.records.get_mut(&(model, client)) else { return false };
        if !record.decay(now) {
            self.records.remove(&(model, client));
            return false;
        }
        record.requests = record.requests.saturating_add(ONE);
        record.failed >= ISOLATION_THRESHOLD
            && (client != UNKNOWN_CLIENT || record.failed.saturating_mul(UNKNOWN_CLIENT_RATIO) >= record.requests)
    }

    /// Counts a request on which the engine failed alone.
    pub(crate) fn on_failure(&mut self, now: Time, model: ModelId, client: u16) {
        let key = (model, client);
        if self.records.len() == MAX_RECORDS && !self.records.contains_key(&key) {
            let least = self.records.iter().min_by_key(|(key, record)| (record.decayed_to, record.failed, **key));
            if let Some(least) = least.map(|(&key, _)| key) {
                self.records.remove(&least);
            }
        }
        let record = self.records.entry(key).or_insert(FailureRecord { failed: 0, requests: ONE, decayed_to: now });
        record.decay(now);
        record.failed = record.failed.saturating_add(ONE);
    }

    /// Counts a request that was in an engine process when the process ended. The request may be
    /// the cause, so its client is isolated immediately.
    pub(crate) fn on_process_death(&mut self, now: Time, model: ModelId, client: u16) {
        (0..ISOLATION_THRESHOLD / ONE).for_each(|_| self.on_failure(now, model, client));
    }

    /// Forgets a model, because its id may be reused.
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
    fn unidentified_clients_run_alone_only_while_many_fail() {
        let mut failures = FailureHistory::default();
        let mut send = |now: Time, of: u32, failing: u32| {
            let alone = (0..of).filter(|_| failures.on_request(now, MODEL, UNKNOWN_CLIENT)).count();
            (0..failing).for_each(|_| failures.on_failure(now, MODEL, UNKNOWN_CLIENT));
            alone
        };
        for _ in 0..100 {
            assert_eq!(send(s(1), 12, 1), 0, "one in twelve is distinguished more cheaply");
        }
        assert_eq!((0..100).map(|_| send(s(200), 12, 6)).max(), Some(12));
        assert_eq!(send(s(200), 12, 6), 12);
    }

    #[test]
    fn clients_of_a_crashed_process_are_isolated_immediately() {
        let mut failures = FailureHistory::default();
        failures.on_process_death(s(1), MODEL, 7);
        assert!(failures.on_request(s(1), MODEL, 7) && !failures.on_request(s(1), MODEL, 8));
        assert!(!failures.on_request(s(11), MODEL, 7), "and no longer if nothing more happens");
        failures.on_process_death(s(20), MODEL, UNKNOWN_CLIENT);
        let alone = (0..100).filter(|_| failures.on_request(s(20), MODEL, UNKNOWN_CLIENT)).count();
        assert!((8..16).contains(&alone), "{alone} of the unidentified clients");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut failures = FailureHistory::default();
        for client in 0..3 * MAX_RECORDS as u16 {
            failures.on_failure(s(i64::from(client)), MODEL, 1 + client);
            assert!(failures.records.len() <= MAX_RECORDS);
        }
        let last = 3 * MAX_RECORDS as u16;
        (0..2).for_each(|_| failures.on_failure(s(i64::from(last)), MODEL, last));
        assert!(failures.on_request(s(i64::from(last)), MODEL, last), "the latest is not forgotten");
        failures.forget(MODEL);
        assert!(failures.records.is_empty());
    }
}
