//! What a thread that never sleeps spends on work.
//!
//! Its processor time says nothing, since it spins. So each turn that found something to do counts with its length, up to
//! the beginning of the next turn: the clock is read once a turn anyway. A turn of more than [`INTERRUPTED`] was not the
//! scheduler's: the operating system gave the core to somebody else, and its time is kept apart.

use ripieno_base::{Nanos, Time};

/// Far more than a turn may take, far less than a time slice.
const INTERRUPTED: Nanos = Nanos::from_micros(300);

/// Sums up the turns of a thread.
pub(super) struct Meter {
    /// Turns before this are not counted.
    from: Time,
    /// The present turn.
    began: Time,
    worked: bool,
    pub(super) spent: Spent,
}

/// Sums of turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// In turns with work.
    pub(super) busy: Nanos,
    /// In turns that were interrupted.
    pub(super) away: Nanos,
    /// In all.
    pub(super) total: Nanos,
}

impl Meter {
    pub(super) fn new(from: Time) -> Meter {
        Meter { from, began: Time::NEVER, worked: false, spent: Spent::default() }
    }

    /// A turn begins, and with it the one before ends.
    pub(super) fn begin(&mut self, now: Time) {
        self.end(now);
        self.began = now;
    }

    /// The turn ends.
    pub(super) fn end(&mut self, now: Time) {
        if self.began >= self.from && self.began < now {
            let length = now - self.began;
            self.spent.total += length;
            if length > INTERRUPTED {
                self.spent.away += length;
            } else if self.worked {
                self.spent.busy += length;
            }
        }
        (self.began, self.worked) = (Time::NEVER, false);
    }

    /// Whether the turn found something to do.
    pub(super) fn worked(&mut self, worked: bool) {
        self.worked = worked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_with_work_count_unless_they_were_interrupted() {
        let mut meter = Meter::new(Time(1_000));
        let after = INTERRUPTED.0 + 2_000;
        let turns = [(0, true), (1_000, true), (1_300, false), (1_700, true), (after, true), (after + 50, false)];
        for (at, worked) in turns {
            meter.begin(Time(at));
            meter.worked(worked);
        }
        let Spent { busy, away, total } = meter.spent;
        assert_eq!((busy, away, total), (Nanos(350), Nanos(after - 1_700), Nanos(after + 50 - 1_000)));
    }
}
