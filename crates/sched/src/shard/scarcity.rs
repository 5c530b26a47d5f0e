//! What device time is worth: at 0 a batch starts at once, at 1 as late as it can.
//!
//! A moment of device time is worth what the probability is that somebody misses it. Two estimates of that, of which the higher
//! one counts. *Ahead*: the part of the load that finds all N devices busy if it runs in batches of its target size,
//! ρ^(√(2(N+1)) − 1) after Sakasegawa. *Behind*: the share of rows that did wait for a device
//! for longer than was good for them. A batch gains by waiting until its frontrun, d − ℓ(b+1); one that starts later did not
//! wait for others to join but for a device. It follows bursts, costs that are wrong, whatever the first estimate does not know, and
//! rises before requests are lost. Requests that are lost count like those that start late. A few late rows announce many, so
//! this estimate is 16 times the share. With 8 times it is late:
//! on Table 2's ResNet50 goodput is then 8 % below published deferral, with 32 times 2 %.
//!
//! Where no batch runs, nobody misses anything: in silence the price halves with each batch that could have run. So an idle
//! server starts whatever comes at once, however busy it was a moment ago.

use ripieno_base::{Nanos, Time};

/// Rows over which the share of late ones is averaged.
const MEMORY: u64 = 256;
/// At this share of late rows, as one in so many, device time is worth all that it could serve.
const SHORT: u64 = 16;

/// One, in the unit of the price.
pub(crate) const WHOLE: u64 = 1 << 16;

/// What device time is worth, in parts of [`WHOLE`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scarcity {
    late: u64,
    /// When a batch started or ended last.
    stirred: Time,
}

/// What a candidate is weighed by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// What device time is worth, in parts of [`WHOLE`], where a batch may wait and where requests may be passed over.
    pub(crate) to_start: u64,
    pub(crate) to_skip: u64,
    /// How long a device may be kept busy by other models when this one wants it: so much earlier it asks.
    pub(crate) guard: Nanos,
    /// By how much it goes before others, as if it were due so much earlier.
    pub(crate) ahead: Nanos,
}

impl Scarcity {
    /// `rows` started or were dropped, too late or not.
    pub(crate) fn observe(&mut self, rows: usize, late: bool) {
        let weight = (rows as u64).min(MEMORY);
        let level = if late { WHOLE } else { 0 };
        self.late = (self.late * (MEMORY - weight) + level * weight) / MEMORY;
    }

    /// A batch has started or ended; `batch` is how long one takes.
    pub(crate) fn stir(&mut self, now: Time, batch: Nanos) {
        (self.late, self.stirred) = (self.fade(now, batch, self.late), now);
    }

    /// The price by which batches are started, where so many thousandths of a device would be busy.
    pub(crate) fn price_of_start(self, now: Time, batch: Nanos, load: u64, devices: usize) -> u64 {
        self.price_of_skip(now, batch).max(self.fade(now, batch, wait_probability(load, devices)))
    }

    /// The price by which requests are passed over: only what was seen justifies that.
    pub(crate) fn price_of_skip(self, now: Time, batch: Nanos) -> u64 {
        (self.fade(now, batch, self.late) * SHORT).min(WHOLE)
    }

    fn fade(&self, now: Time, batch: Nanos, price: u64) -> u64 {
        let missed = (now - self.stirred).0 / batch.0.max(1);
        price >> missed.clamp(0, 63)
    }
}

/// The probability that a batch finds all devices busy, in parts of [`WHOLE`].
fn wait_probability(load: u64, devices: usize) -> u64 {
    let devices = devices.max(1) as u64;
    let busy = (load * WHOLE / (1_000 * devices)).min(WHOLE);
    // The exponent in sixteenths; between whole exponents the power is interpolated.
    let exponent = (512 * (devices + 1)).isqrt() - 16;
    let (whole, part) = (exponent / 16, exponent % 16);
    let mut power = WHOLE;
    let (mut base, mut left) = (busy, whole);
    while left > 0 {
        if left % 2 == 1 {
            power = power * base / WHOLE;
        }
        (base, left) = (base * base / WHOLE, left / 2);
    }
    let next = power * busy / WHOLE;
    (power * (16 - part) + next * part) / 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Nanos = Nanos::from_millis(10);

    fn percent(price: u64) -> u64 {
        price * 100 / WHOLE
    }

    #[test]
    fn a_batch_waits_as_often_as_all_devices_are_busy() {
        let at = |load, devices| percent(wait_probability(load, devices));
        assert_eq!((at(0, 1), at(500, 1), at(900, 1), at(2_000, 1)), (0, 50, 89, 100));
        // 7 devices: the third power; 31: the seventh.
        assert_eq!((at(3_500, 7), at(6_300, 7), at(15_500, 31), at(31_000, 31)), (12, 72, 0, 100));
        assert_eq!((at(7_000, 8), at(5_000, 8)), (65, 22));
    }

    #[test]
    fn late_rows_raise_the_price_and_silence_ends_it() {
        let mut scarcity = Scarcity::default();
        let now = |batches: i64| Time::ORIGIN + BATCH * batches;
        assert_eq!(scarcity.price_of_start(now(0), BATCH, 300, 1), wait_probability(300, 1));
        (0..10).for_each(|_| scarcity.observe(64, true));
        assert!(percent(scarcity.price_of_start(now(0), BATCH, 0, 1)) > 90);
        assert_eq!(scarcity.price_of_skip(now(0), BATCH), WHOLE);
        (0..4).for_each(|_| scarcity.observe(64, false));
        (0..8).for_each(|_| scarcity.observe(64, false));
        assert_eq!(percent(scarcity.price_of_start(now(0), BATCH, 0, 1)), 47);
        scarcity.stir(now(2), BATCH);
        assert_eq!(percent(scarcity.price_of_start(now(2), BATCH, 0, 1)), 11, "halved twice");
        assert_eq!(scarcity.price_of_start(now(1_000), BATCH, 5_000, 1), 0);
    }
}
