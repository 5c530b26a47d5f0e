//! Names: of processes, of reigns, of orders, of requests.

use std::fmt;

/// One life of a process. Who restarts is another process: nothing that was promised to the earlier life binds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u64);

impl Process {
    /// The process with this ordinal among those of its kind. Its life is a number that grows from one life to the next and
    /// that no process of another kind shares; 48 bits of it count.
    pub fn new(ordinal: u16, life: u64) -> Process {
        Process(u64::from(ordinal) << 48 | life & ((1 << 48) - 1))
    }

    /// Its place among those of its kind, the same in each life.
    pub fn ordinal(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.ordinal(), self.0 & ((1 << 48) - 1))
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Primary or spare.
    Scheduler,
    /// Runs batches.
    Backend,
    /// Speaks to clients.
    Frontend,
}

/// The reign of one primary; zero is before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The reign that follows.
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("four billion reigns"))
    }
}

/// Names an order of a primary; those of later reigns are greater, and so are later ones of a reign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// Whose order it is.
    pub epoch: Epoch,
    /// Counts up over all orders of the reign, whomever they are for.
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
