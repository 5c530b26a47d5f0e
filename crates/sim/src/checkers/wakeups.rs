//! Checks that the next wake-up lies ahead after a settle, so that a driver never spins without
//! progress.

use crate::observer::Observer;
use ripieno_base::Time;

/// The wake-ups that a scheduler requests.
#[derive(Debug, Default)]
pub struct Wakeups;

impl Observer for Wakeups {
    fn settled(&mut self, now: Time, next_wakeup: Time) {
        assert!(next_wakeup > now, "after the settle at {now:?} the next wake-up is {next_wakeup:?}");
    }
}
