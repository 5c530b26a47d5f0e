//! Busy time of a thread that never sleeps.
//!
//! Its processor time contains no information, since it spins. So each turn that had work counts
//! with its length, up to the beginning of the next turn: the clock is read once per turn anyway.
//! In a turn longer than [`INTERRUPTED`] the operating system preempted the thread; its time is
//! counted apart.

use ripieno_base::{Nanos, Time};

/// Far more than a turn may take, far less than a time slice.
const INTERRUPTED: Nanos = Nanos::from_micros(300);

/// Sums up the turns of a thread.
pub(super) struct TurnMeter {
    /// Start of the measurement; earlier turns are not counted.
    from: Time,
    /// Start of the current turn.
    began: Time,
    worked: bool,
    pub(super) spent: TurnTime,
}

/// Sums of turn lengths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnTime {
    /// Turns with work.
    pub(super) busy: Nanos,
    /// Turns that were preempted.
    pub(super) preempted: Nanos,
    /// All turns.
    pub(super) total: Nanos,
}

impl TurnMeter {
    pub(super) fn new(from: Time) -> TurnMeter {
        TurnMeter { from, began: Time::NEVER, worked: false, spent: TurnTime::default() }
    }

    /// Begins a turn, which ends the one before.
    pub(super) fn begin(&mut self, now: Time) {
        self.end(now);
        self.began = now;
    }

    /// Ends the turn.
    pub(super) fn end(&mut self, now: Time) {
        if self.began >= self.from && self.began < now {
            let length = now - self.began;
            self.spent.total += length;
            if length > INTERRUPTED {
                self.spent.preempted += length;
            } else if self.worked {
                self.spent.busy += length;
            }
        }
        (self.began, self.worked) = (Time::NEVER, false);
    }

    /// Records whether the turn had work.
    pub(super) fn worked(&mut self, worked: bool) {
        self.worked = worked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_with_work_count_unless_they_were_interrupted() {
        let mut meter = TurnMeter::new(Time(1_000));
        let after = INTERRUPTED.0 + 2_000;
        let turns = [(0, true), (1_000, true), (1_300, false), (1_700, true), (after, true), (after + 50, false)];
        for (at, worked) in turns {
            meter.begin(Time(at));
            meter.worked(worked);
        }
        let TurnTime { busy, preempted: away, total } = meter.spent;
        assert_eq!((busy, away, total), (Nanos(350), Nanos(after - 1_700), Nanos(after + 50 - 1_000)));
    }
}
