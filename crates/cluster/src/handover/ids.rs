//! Names: of processes, of epochs, of orders, of requests.

use std::fmt;

/// One life of a process. Who restarts is another process: nothing that was promised to the earlier life binds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u64);

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// Takes requests of clients.
    Frontend = 1,
    /// Decides, or would.
    Scheduler,
    /// Runs batches.
    Backend,
}

/// The time of one primary, numbered; zero is before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch that follows.
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("more epochs than there are"))
    }
}

/// Names a claim of a primary; those of later epochs are greater, and so are later ones of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// Whose claim it is.
    pub epoch: Epoch,
    /// Counts up over all claims of the epoch, whomever they are for.
    pub number: u64,
}

/// A request of a client that is connected to this frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who answers the client.
    pub frontend: Process,
    /// Counts up over the frontend's requests.
    pub number: u64,
}
