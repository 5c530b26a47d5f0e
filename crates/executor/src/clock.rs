//! Precise waiting for an instant.

use std::time::{Duration, Instant};

/// The system wakes a sleeper late by some tens of microseconds; this much is spent spinning
/// instead.
pub(crate) const SPIN: Duration = Duration::from_micros(100);

/// Returns at `instant`, or immediately if it has passed: sleeps until shortly before, then spins.
pub(crate) fn wait_until(instant: Instant) {
    loop {
        let left = instant.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(SPIN) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep),
            _ => std::hint::spin_loop(),
        }
    }
}
