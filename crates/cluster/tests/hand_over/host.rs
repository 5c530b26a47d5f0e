//! A simple scheduling policy in place of the engine: first come, first served, in small batches on
//! the least loaded backend. A batch that is overdue, or whose backend is lost, runs once more.

use crate::message::{Batch, Wanted};
use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::{ProcessId, RequestId, Stamp};
use std::collections::{BTreeMap, VecDeque};

const BATCH: usize = 4;
/// Number of batches that a backend may hold.
const DEPTH: usize = 2;
/// Time after which a batch is overdue; the longest takes 5 ms.
const DUE: Nanos = Nanos::from_millis(25);
/// Upper bound on the runs of a request.
const MOST_RUNS: u8 = 2;
/// Time for which a completed request is remembered: its answer may be on the way when it is
/// submitted again.
const REMEMBERED: Nanos = Nanos::from_millis(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Submitted, and not admitted yet.
    Asked,
    Waits,
    Runs,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    wanted: Wanted,
    /// Time at which it is forgotten.
    until: Time,
    stage: Stage,
    runs: u8,
}

#[derive(Debug)]
struct Joined {
    claim: Stamp,
    number: u64,
    /// Number of batches sent in total when this backend received its last.
    given: u64,
    batches: BTreeMap<Batch, (Vec<RequestId>, Time)>,
}

#[derive(Debug, Default)]
pub(crate) struct Host {
    requests: BTreeMap<RequestId, Request>,
    queue: VecDeque<RequestId>,
    backends: BTreeMap<ProcessId, Joined>,
    given: u64,
}

/// A message that it wants to send.
#[derive(Debug)]
pub(crate) enum Said {
    Start { backend: ProcessId, batch: Batch, members: Vec<Wanted> },
    Refused(RequestId),
}

impl Host {
    pub(crate) fn forget(&mut self) {
        *self = Host::default();
    }

    /// Submits a request; returns true if it is new.
    pub(crate) fn ask(&mut self, now: Time, wanted: Wanted) -> bool {
        let known = self.requests.get(&wanted.request).is_some_and(|known| known.until > now);
        if !known {
            let until = now + wanted.left;
            self.requests.insert(wanted.request, Request { wanted, until, stage: Stage::Asked, runs: 0 });
        }
        !known
    }

    pub(crate) fn admit(&mut self, request: RequestId) {
        if let Some(known) = self.requests.get_mut(&request).filter(|known| known.stage == Stage::Asked) {
            known.stage = Stage::Waits;
            self.queue.push_back(request);
        }
    }

    /// Completes a request that an earlier epoch had started.
    pub(crate) fn over(&mut self, now: Time, request: RequestId) {
        if let Some(known) = self.requests.get_mut(&request) {
            (known.stage, known.until) = (Stage::Over, now + REMEMBERED);
        }
    }

    pub(crate) fn frontend_lost(&mut self, frontend: ProcessId) {
        self.requests.retain(|request, _| request.frontend != frontend);
    }

    pub(crate) fn join(&mut self, backend: ProcessId, claim: Stamp) {
        let joined = Joined { claim, number: 0, given: 0, batches: BTreeMap::new() };
        assert!(self.backends.insert(backend, joined).is_none(), "{backend:?} has joined already");
    }

    pub(crate) fn leave(&mut self, backend: ProcessId, said: &mut Vec<Said>) {
        let parted = self.backends.remove(&backend).expect("it had joined");
        for request in parted.batches.into_values().flat_map(|(members, _)| members) {
            let Some(known) = self.requests.get_mut(&request).filter(|known| known.stage == Stage::Runs) else {
                continue;
            };
            if known.runs < MOST_RUNS {
                known.stage = Stage::Waits;
                self.queue.push_back(request);
            } else {
                self.requests.remove(&request);
                said.push(Said::Refused(request));
            }
        }
    }

    pub(crate) fn ended(&mut self, now: Time, backend: ProcessId, batch: Batch) {
        let ended = self.backends.get_mut(&backend).and_then(|it| it.batches.remove(&batch));
        ended.into_iter().flat_map(|(members, _)| members).for_each(|request| self.over(now, request));
    }

    /// Returns a backend with an overdue batch.
    pub(crate) fn overdue(&self, now: Time) -> Option<ProcessId> {
        let late = |it: &Joined| it.batches.values().any(|(_, due)| *due <= now);
        self.backends.iter().find(|(_, it)| late(it)).map(|(&backend, _)| backend)
    }

    /// Sends one batch, if a backend has room for it.
    pub(crate) fn schedule(&mut self, now: Time, said: &mut Vec<Said>) {
        self.requests.retain(|_, known| known.until > now);
        let requests = &self.requests;
        self.queue.retain(|request| requests.get(request).is_some_and(|known| known.stage == Stage::Waits));
        let least = self.backends.iter_mut().min_by_key(|(_, it)| (it.batches.len(), it.given));
        let Some((&backend, joined)) = least.filter(|(_, it)| it.batches.len() < DEPTH) else { return };
        if self.queue.is_empty() {
            return;
        }
        self.given += 1;
        (joined.given, joined.number) = (self.given, joined.number + 1);
        let batch = (joined.claim, joined.number);
        let members: Vec<RequestId> = self.queue.drain(..self.queue.len().min(BATCH)).collect();
        let wanted = members.iter().filter_map(|request| {
            let known = self.requests.get_mut(request)?;
            (known.stage, known.runs) = (Stage::Runs, known.runs + 1);
            Some(known.wanted)
        });
        said.push(Said::Start { backend, batch, members: wanted.collect() });
        joined.batches.insert(batch, (members, now + DUE));
    }
}
