//! What device time is worth: at 0 a batch starts at once, at 1 as late as it can.
//!
//! Device time is short when requests wait for it for so long that they keep their batch small, so that the batch passes over
//! them. So its price is measured by the share of rows that are passed over, 64 times that: the first of them announce that many
//! would be lost. On Table 2's models 16 times gave 2 % less goodput and 256 times 1 % more, before batches were spaced.
//!
//! What was tried instead: the probability that a batch finds all devices busy, by the measured load. It defers at loads that
//! need no deferral, which costs latency (three times as much at 85 % of the peak where a row costs as much as a launch) and, with
//! several models on one or two devices, goodput. The share of batches that start after their frontrun: once batches are deferred,
//! many are a little late, and deferral never ends.
//!
//! Where no batch runs, nobody misses anything: in silence the price halves with each batch that could have run. So an idle
//! server starts whatever comes at once, however busy it was a moment ago.

use ripieno_base::{Nanos, Time};

/// Device time is worth all that it could serve when one row in so many is passed over.
const SHORT: u64 = 64;

/// One, in the unit of the price and of shares.
pub(crate) const WHOLE: u64 = 1 << 16;

/// What device time is worth, in parts of [`WHOLE`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scarcity {
    passed: Share,
    /// When a batch started or ended last.
    last_activity: Time,
}

/// The share of rows that something happened to, as a moving average over the last [`Share::MEMORY`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share(u64);

/// What a candidate is weighed by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// What device time is worth, in parts of [`WHOLE`].
    pub(crate) price: u64,
    /// How long a device may be kept busy by other models when this one wants it: so much earlier it asks.
    pub(crate) guard: Nanos,
    /// By how much it goes before others, as if it were due so much earlier.
    pub(crate) ahead: Nanos,
    /// How long it would wait behind all that other models have waiting.
    pub(crate) behind: Nanos,
    /// How long after the model's last batch the next would start if all came evenly.
    pub(crate) spacing: Nanos,
    /// When the next device is free, and the one after it.
    pub(crate) free: [Time; 2],
}

impl Scarcity {
    /// So many rows started or were dropped, or they were passed over.
    pub(crate) fn observe(&mut self, rows: usize, passed: bool) {
        self.passed.observe(rows, passed);
    }

    /// A batch has started or ended; `batch` is how long one takes.
    pub(crate) fn note_activity(&mut self, now: Time, batch: Nanos) {
        (self.passed, self.last_activity) = (Share(self.fade(now, batch, self.passed.0)), now);
    }

    /// The price by which batches are started.
    pub(crate) fn price(self, now: Time, batch: Nanos) -> u64 {
        (self.fade(now, batch, self.passed.0) * SHORT).min(WHOLE)
    }

    fn fade(&self, now: Time, batch: Nanos, price: u64) -> u64 {
        let missed = (now - self.last_activity).0 / batch.0.max(1);
        price >> missed.clamp(0, 63)
    }
}

impl Share {
    const MEMORY: u64 = 256;

    /// It did, or did not, happen to so many rows.
    pub(crate) fn observe(&mut self, rows: usize, happened: bool) {
        let weight = (rows as u64).min(Share::MEMORY);
        let level = if happened { WHOLE } else { 0 };
        self.0 = (self.0 * (Share::MEMORY - weight) + level * weight) / Share::MEMORY;
    }

    pub(crate) fn permille(self) -> u64 {
        self.0 * 1_000 / WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Nanos = Nanos::from_millis(10);

    #[test]
    fn passed_over_rows_raise_the_price_and_silence_ends_it() {
        let mut scarcity = Scarcity::default();
        let now = |batches: i64| Time::ORIGIN + BATCH * batches;
        assert_eq!(scarcity.price(now(0), BATCH), 0);
        scarcity.observe(1, true);
        assert_eq!(scarcity.price(now(0), BATCH), WHOLE / 4, "one row in 256");
        scarcity.observe(3, true);
        assert!(scarcity.price(now(0), BATCH) > WHOLE * 98 / 100);
        (0..8).for_each(|_| scarcity.observe(64, false));
        let fallen = scarcity.price(now(0), BATCH);
        assert!(fallen < WHOLE / 8, "{fallen}");
        (0..4).for_each(|_| scarcity.observe(64, true));
        assert_eq!(scarcity.price(now(0), BATCH), WHOLE);
        scarcity.note_activity(now(7), BATCH);
        assert!(scarcity.price(now(7), BATCH) < WHOLE / 2, "halved seven times");
        assert_eq!(scarcity.price(now(1_000), BATCH), 0);
    }

    #[test]
    fn shares_follow_the_last_rows() {
        let mut share = Share::default();
        share.observe(128, true);
        assert_eq!(share.permille(), 500);
        share.observe(512, false);
        assert_eq!(share.permille(), 0);
    }
}
