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

/// The roles of which some process is connected to a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachedRoles {
    /// Whether there is a backend.
    pub backends: bool,
    /// Whether there is a frontend.
    pub frontends: bool,
}

impl ReachedRoles {
    /// A scheduler that can serve.
    pub const ALL: ReachedRoles = ReachedRoles { backends: true, frontends: true };

    /// Flags of a record: the sender says which roles it reaches, and these are the roles.
    const SAID: u8 = 1;
    const BACKENDS: u8 = 2;
    const FRONTENDS: u8 = 4;

    pub(crate) fn flags(self) -> u8 {
        ReachedRoles::SAID
            | if self.backends { ReachedRoles::BACKENDS } else { 0 }
            | if self.frontends { ReachedRoles::FRONTENDS } else { 0 }
    }

    /// Returns the roles of these flags; `None` if the sender does not say them.
    pub(crate) fn of(flags: u8) -> Option<ReachedRoles> {
        let is = |flag: u8| flags & flag != 0;
        let roles = ReachedRoles { backends: is(ReachedRoles::BACKENDS), frontends: is(ReachedRoles::FRONTENDS) };
        is(ReachedRoles::SAID).then_some(roles)
    }
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
