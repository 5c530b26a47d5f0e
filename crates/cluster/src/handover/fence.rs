//! The scheduler that a backend or a frontend follows: the latest primary.

use super::ids::{Epoch, ProcessId, Stamp};

/// The fence of a backend: it accepts only claims greater than all earlier ones. Orders under an
/// older claim are refused.
#[derive(Clone, Debug)]
pub struct Fence {
    last: Stamp,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The claim is followed from now on.
    Accepted,
    /// The claim's epoch is over; this later one is known.
    Stale(Epoch),
    /// The claim was received before.
    Repeated,
}

impl Fence {
    /// Returns a fence that refuses claims of epochs before this one. A restarted backend reads it
    /// from the store, since it has lost its own record.
    pub fn new(epoch: Epoch) -> Fence {
        Fence { last: Stamp { epoch, number: 0 } }
    }

    /// Returns the last accepted claim.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Handles a claim.
    pub fn on_claim(&mut self, stamp: Stamp) -> ClaimOutcome {
        if stamp.epoch < self.last.epoch {
            return ClaimOutcome::Stale(self.last.epoch);
        }
        if stamp <= self.last {
            return ClaimOutcome::Repeated;
        }
        self.last = stamp;
        ClaimOutcome::Accepted
    }
}

/// The view of a frontend: it follows the primary of the latest epoch that it knows of.
#[derive(Clone, Debug, Default)]
pub struct Following {
    epoch: Epoch,
    primary: Option<ProcessId>,
}

/// The sender of a heartbeat, as a frontend sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatSender {
    /// A new primary: unanswered requests are sent to it again.
    NewPrimary,
    /// The current primary.
    SamePrimary,
    /// A primary whose epoch is over; this later one is known.
    Stale(Epoch),
}

impl Following {
    /// Returns the latest known epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the current primary.
    pub fn primary(&self) -> Option<ProcessId> {
        self.primary
    }

    /// Handles a heartbeat.
    pub fn on_heartbeat(&mut self, from: ProcessId, epoch: Epoch) -> HeartbeatSender {
        if epoch < self.epoch {
            return HeartbeatSender::Stale(self.epoch);
        }
        let same = self.primary == Some(from) && self.epoch == epoch;
        (self.epoch, self.primary) = (epoch, Some(from));
        if same { HeartbeatSender::SamePrimary } else { HeartbeatSender::NewPrimary }
    }

    /// Handles the loss of a connection; returns true if it was the current primary's.
    pub fn on_lost(&mut self, who: ProcessId) -> bool {
        self.primary.take_if(|primary| *primary == who).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u64, number: u64) -> Stamp {
        Stamp { epoch: Epoch(epoch), number }
    }

    #[test]
    fn only_claims_greater_than_all_earlier_ones_are_accepted() {
        let mut fence = Fence::new(Epoch(3));
        assert_eq!(fence.on_claim(stamp(2, 9)), ClaimOutcome::Stale(Epoch(3)), "of before its start");
        assert_eq!(fence.on_claim(stamp(4, 2)), ClaimOutcome::Accepted);
        assert_eq!([stamp(4, 1), stamp(4, 2)].map(|stamp| fence.on_claim(stamp)), [ClaimOutcome::Repeated; 2]);
        assert_eq!(fence.on_claim(stamp(4, 3)), ClaimOutcome::Accepted);
        assert_eq!(fence.on_claim(stamp(5, 1)), ClaimOutcome::Accepted);
        assert_eq!((fence.on_claim(stamp(4, 9)), fence.last()), (ClaimOutcome::Stale(Epoch(5)), stamp(5, 1)));
    }

    #[test]
    fn the_latest_primary_is_followed() {
        let (old, new) = (ProcessId(1), ProcessId(2));
        let mut following = Following::default();
        assert_eq!(following.on_heartbeat(old, Epoch(4)), HeartbeatSender::NewPrimary);
        assert_eq!(following.on_heartbeat(old, Epoch(4)), HeartbeatSender::SamePrimary);
        assert_eq!(following.on_heartbeat(new, Epoch(5)), HeartbeatSender::NewPrimary);
        assert_eq!(following.on_heartbeat(old, Epoch(4)), HeartbeatSender::Stale(Epoch(5)));
        assert!(!following.on_lost(old) && following.on_lost(new));
        assert_eq!(
            following.on_heartbeat(old, Epoch(4)),
            HeartbeatSender::Stale(Epoch(5)),
            "although no primary is followed"
        );
        assert_eq!(following.on_heartbeat(new, Epoch(5)), HeartbeatSender::NewPrimary, "it may have forgotten");
    }
}
