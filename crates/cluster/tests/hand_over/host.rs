//! What schedules in a scheduler of the simulation: first come, first served, in small batches on the least loaded backend,
//! of which the one that has waited longest for a batch.

use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::{Admitted, Process, RequestId, Scheduler, SchedulerAction};
use std::collections::{BTreeMap, VecDeque};

const BATCH: usize = 4;
/// A backend is given another batch while it runs one.
const DEPTH: usize = 2;
/// What runs longer is overdue; the longest batch takes 5 ms.
const DUE: Nanos = Nanos::from_millis(25);

#[derive(Debug, Default)]
pub(crate) struct Host {
    queue: VecDeque<Admitted>,
    /// With how many batches were given out when it was given its last.
    loads: BTreeMap<Process, (usize, u64)>,
    given: u64,
}

impl Host {
    pub(crate) fn forget(&mut self) {
        *self = Host::default();
    }

    pub(crate) fn admit(&mut self, admitted: Admitted) {
        assert!(self.queue.iter().all(|queued| queued.request != admitted.request), "{admitted:?} waits already");
        self.queue.push_back(admitted);
    }

    pub(crate) fn withdraw(&mut self, request: RequestId) {
        let at = self.queue.iter().position(|queued| queued.request == request);
        self.queue.remove(at.unwrap_or_else(|| panic!("{request:?} does not wait")));
    }

    pub(crate) fn load(&mut self, backend: Process, batches: Option<usize>) {
        match batches {
            Some(batches) => self.loads.entry(backend).or_default().0 = batches,
            None => {
                self.loads.remove(&backend);
            }
        }
    }

    /// Gives out one batch, if a backend has place for it.
    pub(crate) fn schedule(&mut self, now: Time, scheduler: &mut Scheduler, out: &mut Vec<SchedulerAction>) {
        let Some((&backend, load)) = self.loads.iter_mut().min_by_key(|(_, load)| **load) else { return };
        if load.0 >= DEPTH || self.queue.is_empty() {
            return;
        }
        self.given += 1;
        load.1 = self.given;
        let batch: Vec<_> = self.queue.drain(..self.queue.len().min(BATCH)).map(|admitted| admitted.request).collect();
        assert!(scheduler.start(now, backend, &batch, now + DUE, out), "{backend:?} takes what it should");
    }
}
