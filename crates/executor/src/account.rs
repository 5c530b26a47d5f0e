//! What tasks took: rows that were copied, and the time of each of their parts.

use crate::Spent;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What a device has done for its tasks so far beside their results.
#[derive(Debug, Default)]
pub(crate) struct Account {
    rows_gathered: AtomicU64,
    tasks_without_copy: AtomicU64,
    gather_ns: AtomicU64,
    compute_ns: AtomicU64,
    scatter_ns: AtomicU64,
}

impl Account {
    /// Counts a task that copied so many rows, and whether it went on with state and copied none of it.
    pub(crate) fn count(&self, rows: usize, without_copy: bool) {
        self.rows_gathered.fetch_add(rows as u64, Ordering::Relaxed);
        self.tasks_without_copy.fetch_add(u64::from(without_copy), Ordering::Relaxed);
    }

    /// Counts the time that a task took.
    pub(crate) fn spend(&self, spent: Spent) {
        self.gather_ns.fetch_add(spent.gather_ns, Ordering::Relaxed);
        self.compute_ns.fetch_add(spent.compute_ns, Ordering::Relaxed);
        self.scatter_ns.fetch_add(spent.scatter_ns, Ordering::Relaxed);
    }

    pub(crate) fn spent(&self) -> Spent {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spent { gather_ns: of(&self.gather_ns), compute_ns: of(&self.compute_ns), scatter_ns: of(&self.scatter_ns) }
    }

    pub(crate) fn rows_gathered(&self) -> u64 {
        self.rows_gathered.load(Ordering::Relaxed)
    }

    pub(crate) fn tasks_without_copy(&self) -> u64 {
        self.tasks_without_copy.load(Ordering::Relaxed)
    }
}

/// Times the parts of a task, one after the other.
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn start() -> Watch {
        Watch(Instant::now())
    }

    /// Nanoseconds since the start or the lap before.
    pub(crate) fn lap_ns(&mut self) -> u64 {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now)).as_nanos() as u64
    }
}
