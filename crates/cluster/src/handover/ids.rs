//! Ids of processes, epochs, claims and requests.

use std::fmt;

/// Id of one run of a process. A restarted process has another id: no promise to the earlier run
/// binds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// Takes requests of clients.
    Frontend = 1,
    /// Schedules, as the primary or as a spare.
    Scheduler,
    /// Runs batches.
    Backend,
}

/// Number of a primary's term; zero is before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the following epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("more epochs than there are"))
    }
}

/// Id of a claim; ordered by epoch, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// The epoch of the claim.
    pub epoch: Epoch,
    /// Counts up over all claims of the epoch, to any backend.
    pub number: u64,
}

/// Id of a client's request at a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The frontend that answers the client.
    pub frontend: ProcessId,
    /// Counts up over the frontend's requests.
    pub number: u64,
}
