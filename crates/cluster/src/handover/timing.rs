//! The timers of the hand-over protocol.

use ripieno_base::Nanos;

/// The timers of the protocol. All schedulers of a cluster use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval of the primary's heartbeats.
    pub heartbeat: Nanos,
    /// Silence after which a spare takes the primary for lost.
    pub silence: Nanos,
    /// Time without a reply after which the store is asked again.
    pub store: Nanos,
    /// Time without a report after which a backend is claimed again.
    pub claim: Nanos,
    /// Longest time that a new primary waits for reports before it schedules requests that may
    /// still be running.
    pub settle: Nanos,
    /// Time that a scheduler needs after its start to learn of all other processes. It waits twice
    /// as long before it asks the store for leadership.
    pub discovery: Nanos,
    /// Time for which a primary may have no backend, or no frontend, while a spare has both.
    pub cut_off: Nanos,
    /// Time for which a deposed primary follows before it stands for leadership again.
    pub rest: Nanos,
}

/// Upper bound on the factor by which a fenced scheduler tolerates longer silence.
const MAX_SILENCE_FACTOR: i64 = 32;

impl Timing {
    /// Timers for shared hosts over TCP: heartbeats every 5 ms for 20 s showed no pause of 50 ms. A
    /// connection loses no claim, so claims are never repeated.
    pub const SHARED_HOSTS: Timing = Timing {
        heartbeat: Nanos::from_millis(5),
        silence: Nanos::from_millis(50),
        store: Nanos::from_millis(100),
        claim: Nanos::from_millis(1 << 40),
        settle: Nanos::from_millis(100),
        discovery: Nanos::from_millis(100),
        cut_off: Nanos::from_millis(1_000),
        rest: Nanos::from_millis(2_000),
    };

    /// Returns the silence that a scheduler tolerates after it was fenced this many times in a row.
    pub fn tolerated_silence(&self, fenced: u32) -> Nanos {
        self.silence * (1 << fenced.min(MAX_SILENCE_FACTOR.ilog2()))
    }

    /// Returns the time within which there is a primary after all faults have ended.
    pub fn recovery(&self) -> Nanos {
        self.silence * MAX_SILENCE_FACTOR + self.max_slept() + self.rest + self.store * 2 + self.settle
    }

    /// Returns the time between two marks of a process that it runs, from which on it slept.
    pub(super) fn nap(&self) -> Nanos {
        Nanos(self.silence.0 / 2)
    }

    /// Returns the interval of these marks.
    pub(super) fn mark(&self) -> Nanos {
        Nanos((self.silence.0 / 4).max(1))
    }

    /// Returns the longest sleep that is forgiven between two heartbeats: a scheduler that hardly
    /// runs must stand some time.
    pub(super) fn max_slept(&self) -> Nanos {
        self.silence * MAX_SILENCE_FACTOR
    }
}
