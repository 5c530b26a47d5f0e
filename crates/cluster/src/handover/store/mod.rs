//! The one value that decides who commands: which epoch it is, and whose.

mod alone;
mod etcd;
mod file;
mod memory;

pub use alone::AloneStore;
pub use etcd::{EtcdStore, Inventory, Member};
pub use file::FileStore;
pub use memory::MemoryStore;

use super::ids::{Epoch, Process};
use std::fmt;
use std::str::FromStr;

/// What the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The latest epoch.
    pub epoch: Epoch,
    /// Whose it is.
    pub holder: Process,
}

/// What is asked of the store: to put `next` in the place of `expected`, if that is what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// None: there has been no primary.
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

impl Unreachable {
    fn forgot() -> Unreachable {
        Unreachable("it holds nothing where it held something".into())
    }
}

impl Swap {
    /// What a store holds after it that held this before.
    fn on(&self, held: Option<Entry>) -> Result<Entry, Unreachable> {
        match held {
            Some(entry) if self.expected != Some(entry) => Ok(entry),
            None if self.expected.is_some() => Err(Unreachable::forgot()),
            _ => Ok(self.next),
        }
    }
}

/// Epoch and holder, for people to read as well.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:016x}", self.epoch.0, self.holder.0)
    }
}

impl FromStr for Entry {
    type Err = Unreachable;

    fn from_str(text: &str) -> Result<Entry, Unreachable> {
        let read = || {
            let (epoch, holder) = text.trim_end().split_once(' ')?;
            let holder = u64::from_str_radix(holder, 16).ok()?;
            Some(Entry { epoch: Epoch(epoch.parse().ok()?), holder: Process(holder) })
        };
        read().ok_or_else(|| Unreachable(format!("it holds {text:?}, which is no epoch")))
    }
}

/// A register that all schedulers see alike.
pub trait EpochStore: Send {
    /// Makes the swap if it can, and says what the store holds after that.
    ///
    /// There is no other reply: if that is `swap.next`, the asker is the primary, by this call or by an earlier one whose
    /// reply was lost.
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable>;

    /// What the store holds.
    fn read(&mut self) -> Result<Option<Entry>, Unreachable>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(epoch: u64, holder: u64) -> Entry {
        Entry { epoch: Epoch(epoch), holder: Process(holder) }
    }

    /// What every store does; `other` sees what `store` does.
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
    fn one_of_two_who_expect_the_same_gets_it_and_both_are_told() {
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
        let entry = Entry { epoch: Epoch(u64::MAX), holder: Process(0xffff_0000_0000_0005) };
        assert_eq!(entry.to_string(), "18446744073709551615 ffff000000000005");
        assert_eq!(entry.to_string().parse(), Ok(entry));
        for text in ["", "7", "x 5", "7 y", "-1 5", "18446744073709551616 5"] {
            assert!(text.parse::<Entry>().is_err(), "{text}");
        }
    }
}
