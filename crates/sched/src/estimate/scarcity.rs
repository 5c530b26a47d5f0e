//! The price of device time: at 0 a batch starts immediately, at 1 as late as it can.
//!
//! # The rule
//!
//! Device time is short when requests wait for it so long that they limit the size of their batch,
//! so that the batch passes over them. The price is therefore 64 times the share of rows that are
//! passed over: the first of them announce that many would be lost.
//!
//! On the models of Symphony's Table 2, without spacing of batches, a factor of 16 gives 2 % less
//! goodput, and 256 gives 1 % more.
//!
//! While no batch runs, no request is passed over: the price halves with each batch that could have
//! run. An idle server therefore starts batches immediately, however busy it was before.
//!
//! # Rejected
//!
//! * The probability that a batch finds all devices busy, by the measured load. It defers batches
//!   at loads that need no deferral. At 85 % of the peak, the latency of models in which a row
//!   costs as much as a launch is three times as high. With several models on one or two devices it
//!   costs goodput, too.
//! * The share of batches that start after their frontrun. Many deferred batches are a little late,
//!   so deferral would never end.

use ripieno_base::{Nanos, Permille, Ratio, Time};

/// Reciprocal of the share of passed-over rows at which the price reaches 1.
const SHORT: u64 = 64;

/// The price of device time, or a share of rows, in parts of 65,536.
pub type Price = Ratio<{ 1 << 16 }>;

/// The measured price of device time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scarcity {
    /// Share of rows that were passed over.
    passed: Share,
    /// Time of the last start of a batch.
    last_activity: Time,
}

/// Number of recent rows in moving means.
pub const MEMORY: u64 = 256;

/// Share of rows with some property, as a moving average over the last [`MEMORY`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Share(Price);

impl Scarcity {
    /// Records rows that started, or (`passed`) that were passed over, dropped or refused.
    pub fn observe(&mut self, rows: usize, passed: bool) {
        self.passed.observe(rows, passed);
    }

    /// Records the start of a batch; `batch` is the mean duration of one.
    pub fn note_activity(&mut self, now: Time, batch: Nanos) {
        (self.passed, self.last_activity) = (Share(self.fade(now, batch, self.passed.0)), now);
    }

    /// Returns the price by which batches are started.
    pub fn price(self, now: Time, batch: Nanos) -> Price {
        Price::from_parts(self.fade(now, batch, self.passed.0).parts() * SHORT).min(Price::WHOLE)
    }

    fn fade(&self, now: Time, batch: Nanos, price: Price) -> Price {
        let missed = (now - self.last_activity).0 / batch.0.max(1);
        Price::from_parts(price.parts() >> missed.clamp(0, 63))
    }
}

impl Share {
    /// Records `rows` rows with or without the property.
    pub fn observe(&mut self, rows: usize, happened: bool) {
        let weight = (rows as u64).min(MEMORY);
        let level = if happened { Price::WHOLE } else { Price::ZERO };
        self.0 = self.0.toward(level, weight, MEMORY);
    }

    /// Returns the share in parts of 1,000.
    pub fn permille(self) -> Permille {
        self.0.permille()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = Price::WHOLE.parts();
    const BATCH: Nanos = Nanos::from_millis(10);

    #[test]
    fn passed_over_rows_raise_the_price_and_silence_ends_it() {
        let mut scarcity = Scarcity::default();
        let now = |batches: i64| Time::ORIGIN + BATCH * batches;
        assert_eq!(scarcity.price(now(0), BATCH), Price::ZERO);
        scarcity.observe(1, true);
        assert_eq!(scarcity.price(now(0), BATCH).parts(), ONE / 4, "one row in 256");
        scarcity.observe(3, true);
        assert!(scarcity.price(now(0), BATCH).parts() > ONE * 98 / 100);
        (0..8).for_each(|_| scarcity.observe(64, false));
        let fallen = scarcity.price(now(0), BATCH);
        assert!(fallen.parts() < ONE / 8, "{fallen:?}");
        (0..4).for_each(|_| scarcity.observe(64, true));
        assert_eq!(scarcity.price(now(0), BATCH), Price::WHOLE);
        scarcity.note_activity(now(7), BATCH);
        assert!(scarcity.price(now(7), BATCH).parts() < ONE / 2, "halved seven times");
        assert_eq!(scarcity.price(now(1_000), BATCH), Price::ZERO);
    }

    #[test]
    fn shares_follow_the_last_rows() {
        let mut share = Share::default();
        share.observe(128, true);
        assert_eq!(share.permille().parts(), 500);
        share.observe(512, false);
        assert_eq!(share.permille().parts(), 0);
    }
}
