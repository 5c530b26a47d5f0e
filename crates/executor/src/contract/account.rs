//! Counters of tasks: rows copied, and the time of each phase.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Counters of a device.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters {
    rows_gathered: AtomicU64,
    tasks_without_copy: AtomicU64,
    tasks_gathered_ahead: AtomicU64,
    tasks_answered_beside: AtomicU64,
    gather_ns: AtomicU64,
    compute_ns: AtomicU64,
    scatter_ns: AtomicU64,
}

impl DeviceCounters {
    /// Counts a task that copied `rows` rows. `without_copy` tells whether the task used state and
    /// read all of it in place.
    pub(crate) fn count(&self, rows: usize, without_copy: bool) {
        self.rows_gathered.fetch_add(rows as u64, Ordering::Relaxed);
        self.tasks_without_copy.fetch_add(u64::from(without_copy), Ordering::Relaxed);
    }

    /// Counts a task that was prepared while another one ran.
    pub(crate) fn count_ahead(&self) {
        self.tasks_gathered_ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a task that was finished while another one ran.
    pub(crate) fn count_finished_beside(&self) {
        self.tasks_answered_beside.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the phase times of a task.
    pub(crate) fn add_times(&self, spent: PhaseTimes) {
        self.gather_ns.fetch_add(spent.gather_ns, Ordering::Relaxed);
        self.compute_ns.fetch_add(spent.compute_ns, Ordering::Relaxed);
        self.scatter_ns.fetch_add(spent.scatter_ns, Ordering::Relaxed);
    }

    pub(crate) fn spent(&self) -> PhaseTimes {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PhaseTimes {
            gather_ns: of(&self.gather_ns),
            compute_ns: of(&self.compute_ns),
            scatter_ns: of(&self.scatter_ns),
        }
    }

    pub(crate) fn rows_gathered(&self) -> u64 {
        self.rows_gathered.load(Ordering::Relaxed)
    }

    pub(crate) fn tasks_without_copy(&self) -> u64 {
        self.tasks_without_copy.load(Ordering::Relaxed)
    }

    pub(crate) fn tasks_gathered_ahead(&self) -> u64 {
        self.tasks_gathered_ahead.load(Ordering::Relaxed)
    }

    pub(crate) fn tasks_answered_beside(&self) -> u64 {
        self.tasks_answered_beside.load(Ordering::Relaxed)
    }
}

/// Time of a device's tasks, by phase. Tasks may be gathered while others compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Time to collect the members' rows into contiguous batches.
    pub gather_ns: u64,
    /// Time to compute in the engine.
    pub compute_ns: u64,
    /// Time to distribute the results to the members.
    pub scatter_ns: u64,
}

/// Measures the phases of a task, in sequence.
pub(crate) struct LapTimer(Instant);

impl LapTimer {
    pub(crate) fn start() -> LapTimer {
        LapTimer(Instant::now())
    }

    /// Returns the nanoseconds since the start or the previous lap.
    pub(crate) fn lap_ns(&mut self) -> u64 {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now)).as_nanos() as u64
    }
}
