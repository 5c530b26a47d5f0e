//! The start of a primary's epoch, until nothing of earlier epochs is left: it claims backends,
//! learns what they still run, and lets that finish. Requests that arrive meanwhile are parked
//! until the running rows are known. Everything else is up to the host.

use super::action::SchedulerAction::{self, Admit, Claim, Completed, Join, Leave};
use super::ids::{Epoch, ProcessId, RequestId, Stamp};
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A new primary waits for a backend of each sub-cluster this many times as long as for reports.
const MAX_SETTLE_INTERVALS: i64 = 20;

/// Rows of a request that a backend still runs from an earlier epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRows {
    /// The request.
    pub request: RequestId,
    /// Number of rows.
    pub rows: u32,
    /// True if the rows have failed and must run again.
    pub failed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Primary {
    timing: Timing,
    epoch: Epoch,
    since: Time,
    /// Time before which processes may exist that have not connected yet.
    discovery: Time,
    /// Number of the last claim.
    number: u64,
    backends: BTreeMap<ProcessId, ClaimedBackend>,
    /// Requests that an earlier epoch had started.
    inherited: BTreeMap<RequestId, Inherited>,
    /// Requests received before the running rows were known, with their number of rows.
    parked: BTreeMap<RequestId, u32>,
    settled: bool,
}

/// A backend as its primary sees it.
#[derive(Clone, Debug)]
struct ClaimedBackend {
    number: u64,
    /// Time at which it is claimed again, unless it reports earlier.
    claim_again_at: Time,
    /// Revision of the last report; 0 before the first.
    revision: u32,
    held: BTreeMap<RequestId, u32>,
    /// Sub-cluster at the time of the last report.
    place: usize,
    ready: bool,
}

#[derive(Clone, Debug, Default)]
struct Inherited {
    /// Running rows, by backend.
    running: BTreeMap<ProcessId, u32>,
    /// Number of rows that have completed.
    completed: u32,
    /// Number of rows of the request, once its frontend has submitted it to this primary.
    requested: Option<u32>,
}

impl Primary {
    pub(super) fn new(now: Time, epoch: Epoch, discovery: Time, timing: Timing) -> Primary {
        let (backends, inherited, parked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Primary { timing, epoch, since: now, discovery, number: 0, backends, inherited, parked, settled: false }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if every connected backend has reported.
    pub(super) fn all_reported(&self) -> bool {
        self.backends.values().all(|backend| backend.revision > 0)
    }

    /// Returns true if nothing of earlier epochs is left.
    pub(super) fn is_open(&self) -> bool {
        self.settled && self.inherited.is_empty()
    }

    /// Handles the connection of a backend.
    pub(super) fn on_backend(&mut self, now: Time, backend: ProcessId, out: &mut Vec<SchedulerAction>) {
        if !self.backends.contains_key(&backend) {
            self.claim(now, backend, out);
        }
    }

    /// Handles a report under a claim, of a backend of this sub-cluster. Each report lists all rows
    /// that still run from earlier epochs.
    pub(super) fn on_report(
        &mut self,
        now: Time,
        (from, place): (ProcessId, usize),
        (number, revision): (u64, u32),
        held: &[RunningRows],
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(backend) = self.backends.get_mut(&from) else { return };
        if number != backend.number || revision <= backend.revision {
            return;
        }
        (backend.revision, backend.place) = (revision, place);
        let mut rows: BTreeMap<RequestId, u32> = BTreeMap::new();
        for held in held.iter().filter(|held| !held.failed) {
            *rows.entry(held.request).or_default() += held.rows;
        }
        let before = std::mem::replace(&mut backend.held, rows.clone());
        let failed: BTreeSet<RequestId> = held.iter().filter(|held| held.failed).map(|held| held.request).collect();
        for (&request, &running) in &rows {
            self.inherited.entry(request).or_default().running.insert(from, running);
        }
        for (request, ran) in before {
            let left = rows.get(&request).copied().unwrap_or(0);
            let over = if failed.contains(&request) { 0 } else { ran.saturating_sub(left) };
            self.on_rows_ended(from, request, (left, over), out);
        }
        self.join(from, out);
        self.settle(now, out);
    }

    pub(super) fn on_ask(&mut self, request: RequestId, rows: u32, out: &mut Vec<SchedulerAction>) {
        if !self.settled {
            self.parked.insert(request, rows);
        } else if let Some(inherited) = self.inherited.get_mut(&request) {
            inherited.requested = Some(rows);
            self.resolve(request, out);
        } else {
            out.push(Admit(request));
        }
    }

    /// Handles the cancellation of a request.
    pub(super) fn on_withdraw(&mut self, request: RequestId) {
        self.parked.remove(&request);
        if let Some(inherited) = self.inherited.get_mut(&request) {
            inherited.requested = None;
        }
    }

    pub(super) fn on_backend_lost(&mut self, now: Time, who: ProcessId, out: &mut Vec<SchedulerAction>) {
        let Some(backend) = self.backends.remove(&who) else { return };
        if backend.ready {
            out.push(Leave(who));
        }
        backend.held.into_keys().for_each(|request| self.on_rows_ended(who, request, (0, 0), out));
        self.settle(now, out);
    }

    pub(super) fn on_frontend_lost(&mut self, frontend: ProcessId) {
        self.parked.retain(|request, _| request.frontend != frontend);
        let own = self.inherited.iter_mut().filter(|(request, _)| request.frontend == frontend);
        own.for_each(|(_, inherited)| inherited.requested = None);
    }

    pub(super) fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let silent = self.backends.iter().filter(|(_, it)| it.revision == 0 && it.claim_again_at <= now);
        let silent: Vec<_> = silent.map(|(&who, _)| who).collect();
        silent.into_iter().for_each(|who| self.claim(now, who, out));
        self.settle(now, out);
    }

    fn claim(&mut self, now: Time, to: ProcessId, out: &mut Vec<SchedulerAction>) {
        self.number += 1;
        let (number, again) = (self.number, now + self.timing.claim);
        self.backends.insert(
            to,
            ClaimedBackend {
                number,
                claim_again_at: again,
                revision: 0,
                held: BTreeMap::new(),
                place: 0,
                ready: false,
            },
        );
        out.push(Claim { to, stamp: Stamp { epoch: self.epoch, number } });
    }

    fn join(&mut self, who: ProcessId, out: &mut Vec<SchedulerAction>) {
        let Some(backend) = self.backends.get_mut(&who).filter(|it| it.held.is_empty() && !it.ready) else { return };
        backend.ready = true;
        out.push(Join { backend: who, stamp: Stamp { epoch: self.epoch, number: backend.number } });
    }

    /// Handles the end of rows on a backend: `left` rows still run there, and `over` rows have
    /// completed.
    fn on_rows_ended(
        &mut self,
        who: ProcessId,
        request: RequestId,
        (left, over): (u32, u32),
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(inherited) = self.inherited.get_mut(&request) else { return };
        inherited.completed += over;
        if left == 0 {
            inherited.running.remove(&who);
        }
        self.resolve(request, out);
    }

    /// Decides whether a request has completed, will complete, or must run again. A request of
    /// which only a part had started runs again.
    fn resolve(&mut self, request: RequestId, out: &mut Vec<SchedulerAction>) {
        let Some(Inherited { running, completed: over, requested: wanted }) = self.inherited.get(&request) else {
            return;
        };
        let covered = over + running.values().sum::<u32>();
        let action = match *wanted {
            Some(wanted) if covered < wanted => Some(Admit(request)),
            Some(_) if running.is_empty() => Some(Completed(request)),
            None if running.is_empty() => None,
            _ => return,
        };
        // Until all reports are known, another backend may report more of its rows.
        if self.settled {
            self.inherited.remove(&request);
            out.extend(action);
        }
    }

    fn settle(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        if self.settled {
            return;
        }
        let late = |settles: i64| now >= self.since + self.timing.settle * settles;
        let known = late(1) || now >= self.discovery && self.all_reported();
        // Admission waits for a backend of each sub-cluster, without which its requests would fail.
        let reported = self.backends.values().filter(|it| it.revision > 0);
        let places: BTreeSet<usize> = reported.clone().map(|it| it.place).collect();
        let can_run: BTreeSet<usize> = reported.filter(|it| it.ready).map(|it| it.place).collect();
        let waits = if self.backends.is_empty() { !late(1) } else { can_run.is_empty() || can_run != places };
        if !known || waits && !late(MAX_SETTLE_INTERVALS) {
            return;
        }
        self.settled = true;
        let inherited: Vec<RequestId> = self.inherited.keys().copied().collect();
        let parked = std::mem::take(&mut self.parked);
        parked.into_iter().for_each(|(request, rows)| self.on_ask(request, rows, out));
        inherited.into_iter().for_each(|request| self.resolve(request, out));
    }
}

#[cfg(test)]
mod tests;
