//! How long schedulers wait for whom.

use ripieno_base::Nanos;

/// The timers of the protocol. All schedulers of a cluster have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The primary speaks to the spares so often.
    pub heartbeat: Nanos,
    /// A primary that a spare has not heard for so long is taken for gone.
    pub silence: Nanos,
    /// The store is asked again after so long without a reply.
    pub store: Nanos,
    /// A backend that has not reported is claimed again after so long.
    pub claim: Nanos,
    /// A new primary waits at most so long for reports before it schedules what may be running somewhere.
    pub settle: Nanos,
    /// A scheduler that has begun knows after so long who is there, and asks the store no earlier than after twice that.
    pub discovery: Nanos,
}

/// A scheduler that was fenced waits this many times as long, at most, before it tries again.
const MOST_PATIENCE: i64 = 32;

impl Timing {
    /// For hosts that are shared with others, over TCP: nothing of them stood still for 50 ms in 20 s of heartbeats. A
    /// connection loses no claim, so that none is repeated.
    pub const SHARED_HOSTS: Timing = Timing {
        heartbeat: Nanos::from_millis(5),
        silence: Nanos::from_millis(50),
        store: Nanos::from_millis(100),
        claim: Nanos::from_millis(1 << 40),
        settle: Nanos::from_millis(100),
        discovery: Nanos::from_millis(100),
    };

    /// How long a scheduler that was fenced so often in a row bears silence.
    pub fn patience(&self, fenced: u32) -> Nanos {
        self.silence * (1 << fenced.min(MOST_PATIENCE.ilog2()))
    }

    /// After all faults have ended, there is a primary within this time.
    pub fn recovery(&self) -> Nanos {
        self.silence * MOST_PATIENCE + self.store * 2 + self.settle
    }
}
