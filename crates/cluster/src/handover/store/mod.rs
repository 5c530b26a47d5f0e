//! The store of the one value that decides the leadership: the current epoch and its holder.

mod alone;
#[cfg_attr(not(feature = "etcd"), path = "no_etcd.rs")]
mod etcd;
mod etcd_access;
mod file;
mod memory;

pub use alone::AloneStore;
pub use etcd::{EtcdStore, EtcdText};
pub use etcd_access::{EtcdAccess, EtcdTls, EtcdUser};
pub use file::FileStore;
pub use memory::MemoryStore;

use super::ids::{Epoch, ProcessId};
use std::fmt;
use std::str::FromStr;

/// The entry of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEntry {
    /// The latest epoch.
    pub epoch: Epoch,
    /// The primary of that epoch.
    pub holder: ProcessId,
}

/// A compare-and-swap: stores `next` if the store holds `expected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The expected entry; `None` if there has been no primary.
    pub expected: Option<EpochEntry>,
    /// The caller's entry, one epoch later.
    pub next: EpochEntry,
}

/// The store did not answer; a swap may have been made or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable(pub String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store does not answer: {}", self.0)
    }
}

impl std::error::Error for Unreachable {}

impl Unreachable {
    fn forgot() -> Unreachable {
        Unreachable("it holds nothing where it held something".into())
    }
}

impl Swap {
    /// Returns the entry after the swap, of a store that held `held` before.
    fn apply_to(&self, held: Option<EpochEntry>) -> Result<EpochEntry, Unreachable> {
        match held {
            Some(entry) if self.expected != Some(entry) => Ok(entry),
            None if self.expected.is_some() => Err(Unreachable::forgot()),
            _ => Ok(self.next),
        }
    }
}

/// Epoch and holder, in a form that people can read.
impl fmt::Display for EpochEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:016x}", self.epoch.0, self.holder.0)
    }
}

impl FromStr for EpochEntry {
    type Err = Unreachable;

    fn from_str(text: &str) -> Result<EpochEntry, Unreachable> {
        let read = || {
            let (epoch, holder) = text.trim_end().split_once(' ')?;
            let holder = u64::from_str_radix(holder, 16).ok()?;
            Some(EpochEntry { epoch: Epoch(epoch.parse().ok()?), holder: ProcessId(holder) })
        };
        read().ok_or_else(|| Unreachable(format!("it holds {text:?}, which is no epoch")))
    }
}

/// A linearizable register shared by all schedulers.
pub trait EpochStore: Send {
    /// Makes the swap if the expected entry matches, and returns the entry that the store holds
    /// afterwards.
    ///
    /// If that is `swap.next`, the caller is the primary, by this call or by an earlier one whose
    /// reply was lost.
    fn swap(&mut self, swap: &Swap) -> Result<EpochEntry, Unreachable>;

    /// Returns the entry of the store.
    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(epoch: u64, holder: u64) -> EpochEntry {
        EpochEntry { epoch: Epoch(epoch), holder: ProcessId(holder) }
    }

    /// Checks the contract of every store; `other` shares its contents with `store`.
    fn check(mut store: impl EpochStore, mut other: impl EpochStore) {
        assert_eq!(store.read(), Ok(None));
        let first = Swap { expected: None, next: entry(1, 7) };
        let second = Swap { expected: None, next: entry(1, 8) };
        assert_eq!((store.swap(&first), other.swap(&second)), (Ok(entry(1, 7)), Ok(entry(1, 7))));
        assert_eq!(store.swap(&first), Ok(entry(1, 7)), "whose reply was lost hears the same again");
        let third = Swap { expected: Some(entry(1, 7)), next: entry(2, 8) };
        assert_eq!((other.swap(&third), store.read()), (Ok(entry(2, 8)), Ok(Some(entry(2, 8)))));
    }

    #[test]
    fn one_of_two_swaps_with_the_same_expectation_wins_and_both_see_the_result() {
        let store = MemoryStore::default();
        check(store.clone(), store);
        let folder = tempfile::tempdir().unwrap();
        let store = || FileStore::new(folder.path().join("epoch"));
        check(store(), store());
    }

    #[test]
    fn a_store_that_forgot_decides_nothing() {
        let swap = Swap { expected: Some(entry(1, 7)), next: entry(2, 8) };
        assert!(MemoryStore::default().swap(&swap).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_read_decides_nothing_and_an_empty_one_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let swap = Swap { expected: None, next: entry(1, 7) };
        assert!(FileStore::new(folder.path().join("no/such/folder")).swap(&swap).is_err());
        std::fs::write(folder.path().join("epoch"), "seven").unwrap();
        assert!(FileStore::new(folder.path().join("epoch")).swap(&swap).is_err());
        std::fs::write(folder.path().join("epoch"), "").unwrap();
        assert_eq!(FileStore::new(folder.path().join("epoch")).swap(&swap), Ok(entry(1, 7)));
    }

    #[test]
    fn entries_survive_as_text_and_nothing_else_is_one() {
        let entry = EpochEntry { epoch: Epoch(u64::MAX), holder: ProcessId(0xffff_0000_0000_0005) };
        assert_eq!(entry.to_string(), "18446744073709551615 ffff000000000005");
        assert_eq!(entry.to_string().parse(), Ok(entry));
        for text in ["", "7", "x 5", "7 y", "-1 5", "18446744073709551616 5"] {
            assert!(text.parse::<EpochEntry>().is_err(), "{text}");
        }
    }
}
