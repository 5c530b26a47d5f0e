//! Whom a backend obeys, and whom a frontend asks: the latest primary.

use super::ids::{Epoch, Process, Stamp};

/// A backend's: it lets through claims that are greater than all before. What comes under an older claim than the last is
/// not obeyed.
#[derive(Clone, Debug)]
pub struct Fence {
    last: Stamp,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is obeyed from now on.
    Obeyed,
    /// It is of an epoch that is over; this one is known.
    Past(Epoch),
    /// It was heard before.
    Repeated,
}

impl Fence {
    /// Obeys nobody of an earlier epoch than this: the store's, since what an earlier life has seen is forgotten.
    pub fn new(epoch: Epoch) -> Fence {
        Fence { last: Stamp { epoch, number: 0 } }
    }

    /// The last claim that was obeyed.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Somebody claims the backend.
    pub fn on_claim(&mut self, stamp: Stamp) -> Claimed {
        if stamp.epoch < self.last.epoch {
            return Claimed::Past(self.last.epoch);
        }
        if stamp <= self.last {
            return Claimed::Repeated;
        }
        self.last = stamp;
        Claimed::Obeyed
    }
}

/// A frontend's: it asks the primary of the latest epoch that it has heard of.
#[derive(Clone, Debug, Default)]
pub struct Following {
    epoch: Epoch,
    primary: Option<Process>,
}

/// What a heartbeat says to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A primary that was not asked before: what is unanswered is asked again.
    NewPrimary,
    /// The one who is asked.
    SamePrimary,
    /// One whose epoch is over; this one is known.
    Stale(Epoch),
}

impl Following {
    /// The latest epoch that was heard of.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Who is asked.
    pub fn primary(&self) -> Option<Process> {
        self.primary
    }

    /// Somebody says that this is its epoch.
    pub fn on_heartbeat(&mut self, from: Process, epoch: Epoch) -> Sender {
        if epoch < self.epoch {
            return Sender::Stale(self.epoch);
        }
        let same = self.primary == Some(from) && self.epoch == epoch;
        (self.epoch, self.primary) = (epoch, Some(from));
        if same { Sender::SamePrimary } else { Sender::NewPrimary }
    }

    /// The connection to somebody broke. Whether that was the one who is asked.
    pub fn on_lost(&mut self, who: Process) -> bool {
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
    fn only_claims_that_are_greater_than_all_before_are_obeyed() {
        let mut fence = Fence::new(Epoch(3));
        assert_eq!(fence.on_claim(stamp(2, 9)), Claimed::Past(Epoch(3)), "of before its start");
        assert_eq!(fence.on_claim(stamp(4, 2)), Claimed::Obeyed);
        assert_eq!([stamp(4, 1), stamp(4, 2)].map(|stamp| fence.on_claim(stamp)), [Claimed::Repeated; 2]);
        assert_eq!(fence.on_claim(stamp(4, 3)), Claimed::Obeyed);
        assert_eq!(fence.on_claim(stamp(5, 1)), Claimed::Obeyed);
        assert_eq!((fence.on_claim(stamp(4, 9)), fence.last()), (Claimed::Past(Epoch(5)), stamp(5, 1)));
    }

    #[test]
    fn whoever_reigns_latest_is_asked() {
        let (old, new) = (Process(1), Process(2));
        let mut following = Following::default();
        assert_eq!(following.on_heartbeat(old, Epoch(4)), Sender::NewPrimary);
        assert_eq!(following.on_heartbeat(old, Epoch(4)), Sender::SamePrimary);
        assert_eq!(following.on_heartbeat(new, Epoch(5)), Sender::NewPrimary);
        assert_eq!(following.on_heartbeat(old, Epoch(4)), Sender::Stale(Epoch(5)));
        assert!(!following.on_lost(old) && following.on_lost(new));
        assert_eq!(following.on_heartbeat(old, Epoch(4)), Sender::Stale(Epoch(5)), "although nobody is asked");
        assert_eq!(following.on_heartbeat(new, Epoch(5)), Sender::NewPrimary, "it may have forgotten");
    }
}
