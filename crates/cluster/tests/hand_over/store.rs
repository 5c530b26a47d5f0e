//! The store of the epoch as schedulers see it: right whenever it decides, but slow, silent or down at times.

use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::store::{Entry, EpochStore, MemoryStore, Swap};
use ripieno_workload::{Random, below, stream};

#[derive(Debug)]
pub(crate) struct Store {
    random: Random,
    held: MemoryStore,
    pub(crate) down: bool,
    /// Of a thousand replies so many are lost, and as many take long.
    pub(crate) unwell: u64,
    pub(crate) slowest: Nanos,
}

impl Store {
    pub(crate) fn new(seed: u64) -> Store {
        let held = MemoryStore::default();
        Store { random: stream(seed, 2), held, down: false, unwell: 0, slowest: Nanos::ZERO }
    }

    /// What it holds after the swap; nothing while it is down.
    pub(crate) fn swap(&mut self, swap: &Swap) -> Option<Entry> {
        if self.down {
            return None;
        }
        Some(self.held.swap(swap).expect("it forgets nothing"))
    }

    pub(crate) fn read(&mut self) -> Option<Option<Entry>> {
        if self.down {
            return None;
        }
        Some(self.held.read().expect("memory can be read"))
    }

    /// When the reply to this comes, if it does.
    pub(crate) fn reply(&mut self, now: Time) -> Option<Time> {
        let usual = now + Nanos::from_micros(500 + below(&mut self.random, 2_000) as i64);
        match below(&mut self.random, 1_000) {
            drawn if drawn < self.unwell => None,
            drawn if drawn < self.unwell * 2 => {
                Some(usual + Nanos(below(&mut self.random, self.slowest.0 as u64) as i64))
            }
            _ => Some(usual),
        }
    }
}
