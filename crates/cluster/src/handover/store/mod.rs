//! The one value that decides who commands: which reign it is, and whose.

mod etcd;
mod memory;

pub use etcd::{EtcdStore, Inventory, Member};
pub use memory::MemoryStore;

use super::ids::{Epoch, Process};
use std::fmt;

/// What the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The latest reign.
    pub epoch: Epoch,
    /// Whose it is.
    pub holder: Process,
}

/// What is asked of the store: to put `next` in the place of `expected`, if that is what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// None: nobody has ever reigned.
    pub expected: Option<Entry>,
    /// Of the asker, one epoch later.
    pub next: Entry,
}

/// The store cannot say; a swap may have been made or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable(pub String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store of the epoch does not answer: {}", self.0)
    }
}

impl std::error::Error for Unreachable {}

/// A register that all schedulers see alike.
pub trait EpochStore: Send {
    /// Makes the swap if it can, and says what the store holds after that.
    ///
    /// There is no other reply: if that is `swap.next`, the asker reigns, be it by this call or by an earlier one whose
    /// reply was lost.
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable>;

    /// What the store holds.
    fn read(&mut self) -> Result<Option<Entry>, Unreachable>;
}
