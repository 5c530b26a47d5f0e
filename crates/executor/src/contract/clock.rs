//! Precise waiting until an instant.

use std::time::{Duration, Instant};

/// Time before an instant at which the wait changes from sleeping to spinning. The system wakes a
/// sleeping thread some tens of microseconds late.
pub(crate) const SPIN: Duration = Duration::from_micros(100);

/// Returns at `instant`, or immediately if it has passed. Sleeps until shortly before it, then
/// spins.
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
