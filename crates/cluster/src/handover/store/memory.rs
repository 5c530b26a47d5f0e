//! The epoch of schedulers in one process.

use super::{Entry, EpochStore, Swap, Unreachable};
use std::sync::{Arc, Mutex, PoisonError};

/// A store in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Option<Entry>>>);

impl EpochStore for MemoryStore {
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable> {
        // The value is whole at every moment, whoever panicked.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *held {
            Some(entry) if swap.expected != Some(entry) => Ok(entry),
            None if swap.expected.is_some() => Err(Unreachable("it holds nothing where it held something".into())),
            _ => Ok(*held.insert(swap.next)),
        }
    }

    fn read(&mut self) -> Result<Option<Entry>, Unreachable> {
        Ok(*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ids::{Epoch, Process};
    use super::*;

    #[test]
    fn one_of_two_who_expect_the_same_gets_it_and_both_are_told() {
        let entry = |epoch, holder| Entry { epoch: Epoch(epoch), holder: Process(holder) };
        let mut store = MemoryStore::default();
        assert_eq!(store.read(), Ok(None));
        let first = Swap { expected: None, next: entry(1, 7) };
        let second = Swap { expected: None, next: entry(1, 8) };
        assert_eq!((store.swap(&first), store.clone().swap(&second)), (Ok(entry(1, 7)), Ok(entry(1, 7))));
        assert_eq!(store.swap(&first), Ok(entry(1, 7)), "whose reply was lost hears the same again");
        let third = Swap { expected: Some(entry(1, 7)), next: entry(2, 8) };
        assert_eq!((store.swap(&third), store.read()), (Ok(entry(2, 8)), Ok(Some(entry(2, 8)))));
        assert!(MemoryStore::default().swap(&third).is_err(), "a store that forgot decides nothing");
    }
}
