//! Busy time of a thread that never sleeps.
//!
//! Such a thread always uses its processor, so its processor time does not show its work. Instead,
//! the meter adds up the lengths of the turns that had work. A turn lasts until the next one
//! begins, so one clock read per turn is enough. If a turn takes longer than [`INTERRUPTED`], the
//! operating system preempted the thread, and the turn is counted separately.

use ripieno_base::{Nanos, Time};

/// Length from which a turn counts as preempted: far more than a turn takes, far less than a time
/// slice.
const INTERRUPTED: Nanos = Nanos::from_micros(300);

/// Adds up the turns of one thread.
pub(super) struct TurnMeter {
    /// Start of the measurement. Earlier turns are not counted.
    from: Time,
    /// Start of the current turn.
    began: Time,
    worked: bool,
    pub(super) spent: TurnTime,
}

/// Sums of turn lengths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnTime {
    /// Turns with work, without preempted ones.
    pub(super) busy: Nanos,
    /// Preempted turns.
    pub(super) preempted: Nanos,
    /// All turns.
    pub(super) total: Nanos,
}

impl TurnMeter {
    pub(super) fn new(from: Time) -> TurnMeter {
        TurnMeter { from, began: Time::NEVER, worked: false, spent: TurnTime::default() }
    }

    /// Begins a turn and ends the previous one.
    pub(super) fn begin(&mut self, now: Time) {
        self.end(now);
        self.began = now;
    }

    /// Ends the current turn.
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

    /// Records whether the current turn had work.
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
