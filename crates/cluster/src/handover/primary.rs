//! The start of a primary's epoch, until nothing of earlier epochs is left: it claims backends,
//! learns what they still run, and lets that finish. Requests that arrive meanwhile are parked
//! until the running rows are known. Everything else is up to the host.
//!
//! A request also waits while no backend of its sub-cluster can run it. It waits for 20 times
//! `settle` at most, from the start of the epoch or the latest connection of such a backend. A
//! backend that runs on connects again to a new primary, and is of use once it has reported.
//! Without that wait, a request that comes first would be refused.

use super::action::SchedulerAction::{self, Admit, Claim, Completed, Join, Leave};
use super::ids::{Epoch, ProcessId, RequestId, Stamp};
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Requests wait for a backend of their sub-cluster this many times as long as for reports: with
/// the usual timers two seconds. A backend connects again within a quarter of one, and its running
/// batches have mostly ended.
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
    /// Requests that wait until the running rows are known, or until a backend can run them.
    parked: BTreeMap<RequestId, Submitted>,
    /// True once the running rows are known.
    settled: bool,
}

/// A backend as its primary sees it.
#[derive(Clone, Debug)]
struct ClaimedBackend {
    number: u64,
    /// Time of its connection, or of the start of the epoch if that is later.
    since: Time,
    /// Time at which it is claimed again, unless it reports earlier.
    claim_again_at: Time,
    /// Revision of the last report; 0 before the first.
    revision: u32,
    held: BTreeMap<RequestId, u32>,
    /// Sub-cluster at the time of the last report; `None` before the first.
    place: Option<usize>,
    ready: bool,
}

/// A request that its frontend has submitted to this primary.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    /// Number of rows.
    rows: u32,
    /// Sub-cluster that has its model.
    place: usize,
}

#[derive(Clone, Debug, Default)]
struct Inherited {
    /// Running rows, by backend.
    running: BTreeMap<ProcessId, u32>,
    /// Number of rows that have completed.
    completed: u32,
    /// The request, once its frontend has submitted it to this primary.
    requested: Option<Submitted>,
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
            self.claim(now, now, backend, out);
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
        (backend.revision, backend.place) = (revision, Some(place));
        let mut rows: BTreeMap<RequestId, u32> = BTreeMap::new();
        for held in held.iter().filter(|held| !held.failed) {
            *rows.entry(held.request).or_default() += held.rows;
        }
        let before = std::mem::replace(&mut backend.held, rows.clone());
        let failed: BTreeSet<RequestId> = held.iter().filter(|held| held.failed).map(|held| held.request).collect();
        for (&request, &running) in &rows {
            let inherited = self.inherited.entry(request).or_default();
            inherited.running.insert(from, running);
            inherited.requested = self.parked.remove(&request).or(inherited.requested);
        }
        for (request, ran) in before {
            let left = rows.get(&request).copied().unwrap_or(0);
            let over = if failed.contains(&request) { 0 } else { ran.saturating_sub(left) };
            self.on_rows_ended(from, request, (left, over), out);
        }
        self.join(from, out);
        self.settle(now, out);
        self.admit_parked(now, out);
    }

    /// Handles the submission of a request of this number of rows to a sub-cluster.
    pub(super) fn on_ask(
        &mut self,
        now: Time,
        request: RequestId,
        (rows, place): (u32, usize),
        out: &mut Vec<SchedulerAction>,
    ) {
        let submitted = Submitted { rows, place };
        if let Some(inherited) = self.inherited.get_mut(&request) {
            inherited.requested = Some(submitted);
            self.resolve(request, out);
            self.admit_parked(now, out);
        } else if !self.settled || self.awaits_backend(now, place) {
            self.parked.insert(request, submitted);
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
        self.admit_parked(now, out);
    }

    pub(super) fn on_frontend_lost(&mut self, frontend: ProcessId) {
        self.parked.retain(|request, _| request.frontend != frontend);
        let own = self.inherited.iter_mut().filter(|(request, _)| request.frontend == frontend);
        own.for_each(|(_, inherited)| inherited.requested = None);
    }

    pub(super) fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let silent = self.backends.iter().filter(|(_, it)| it.revision == 0 && it.claim_again_at <= now);
        let silent: Vec<_> = silent.map(|(&who, backend)| (who, backend.since)).collect();
        silent.into_iter().for_each(|(who, since)| self.claim(now, since, who, out));
        self.settle(now, out);
        self.admit_parked(now, out);
    }

    /// Claims a backend that is connected since this time.
    fn claim(&mut self, now: Time, since: Time, to: ProcessId, out: &mut Vec<SchedulerAction>) {
        self.number += 1;
        let (number, again) = (self.number, now + self.timing.claim);
        self.backends.insert(
            to,
            ClaimedBackend {
                number,
                since,
                claim_again_at: again,
                revision: 0,
                held: BTreeMap::new(),
                place: None,
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
        let Some(Inherited { running, completed: over, requested }) = self.inherited.get(&request) else { return };
        let covered = over + running.values().sum::<u32>();
        let again = requested.filter(|submitted| covered < submitted.rows);
        // Until all reports are known, another backend may report more of its rows.
        if !self.settled || again.is_none() && !running.is_empty() {
            return;
        }
        let is_submitted = requested.is_some();
        self.inherited.remove(&request);
        match again {
            Some(submitted) => drop(self.parked.insert(request, submitted)),
            None => out.extend(is_submitted.then_some(Completed(request))),
        }
    }

    /// Ends the wait for reports once all are there, or when it has taken too long.
    fn settle(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let all_known = now >= self.discovery && !self.backends.is_empty() && self.all_reported();
        if self.settled || !all_known && now < self.since + self.timing.settle {
            return;
        }
        self.settled = true;
        let inherited: Vec<RequestId> = self.inherited.keys().copied().collect();
        inherited.into_iter().for_each(|request| self.resolve(request, out));
    }

    /// Admits the parked requests that a backend can run, or that have waited for one for too long.
    fn admit_parked(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        if !self.settled || self.parked.is_empty() {
            return;
        }
        let (mut parked, mut awaited) = (std::mem::take(&mut self.parked), BTreeMap::new());
        parked.retain(|&request, submitted| {
            let place = submitted.place;
            let waits = *awaited.entry(place).or_insert_with(|| self.awaits_backend(now, place));
            if !waits {
                out.push(Admit(request));
            }
            waits
        });
        self.parked = parked;
    }

    /// Returns true if no backend of a sub-cluster can run requests, and one may soon. A backend
    /// that has not reported may belong to any.
    fn awaits_backend(&self, now: Time, place: usize) -> bool {
        let mut since = self.since;
        for backend in self.backends.values().filter(|backend| backend.place.is_none_or(|own| own == place)) {
            if backend.ready {
                return false;
            }
            since = since.max(backend.since);
        }
        now < since + self.timing.settle * MAX_SETTLE_INTERVALS
    }
}

#[cfg(test)]
mod tests;
