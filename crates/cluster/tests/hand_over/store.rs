//! The epoch store as schedulers see it: correct whenever it answers, but slow, silent or down at
//! times.

use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::store::{EpochEntry, EpochStore, MemoryStore, Swap};
use ripieno_workload::{SeededRng, below, stream};

#[derive(Debug)]
pub(crate) struct Store {
    random: SeededRng,
    held: MemoryStore,
    pub(crate) down: bool,
    /// Lost replies, in thousandths; as many are slow.
    pub(crate) unwell: u64,
    pub(crate) slowest: Nanos,
}

impl Store {
    pub(crate) fn new(seed: u64) -> Store {
        let held = MemoryStore::default();
        Store { random: stream(seed, 2), held, down: false, unwell: 0, slowest: Nanos::ZERO }
    }

    /// Returns the entry after the swap; `None` while the store is down.
    pub(crate) fn swap(&mut self, swap: &Swap) -> Option<EpochEntry> {
        if self.down {
            return None;
        }
        Some(self.held.swap(swap).expect("it forgets nothing"))
    }

    pub(crate) fn read(&mut self) -> Option<Option<EpochEntry>> {
        if self.down {
            return None;
        }
        Some(self.held.read().expect("memory can be read"))
    }

    /// Returns the time at which the reply arrives, if it does.
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
