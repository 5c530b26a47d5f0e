//! What a primary does with its epoch until nothing of earlier ones is left: it claims backends, learns what they run, and
//! lets that end. What is asked meanwhile waits until it is known what runs anyway; all else is its host's.

use super::action::SchedulerAction::{self, Admit, Claim, Join, Leave, Over};
use super::ids::{Epoch, Process, RequestId, Stamp};
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A new primary waits for its first backend this many times as long as for reports.
const MOST_SETTLES: i64 = 20;

/// Rows of a request that run on a backend, since an earlier epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which one.
    pub request: RequestId,
    /// How many.
    pub rows: u32,
    /// They have run, and not well: they are to be run again.
    pub failed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Primary {
    timing: Timing,
    epoch: Epoch,
    since: Time,
    /// Before that somebody may be there who is not connected.
    discovery: Time,
    /// Of the last claim.
    number: u64,
    backends: BTreeMap<Process, Backend>,
    /// What runs since an earlier epoch.
    inherited: BTreeMap<RequestId, Inherited>,
    /// What was asked before that was known, and how many rows it has.
    parked: BTreeMap<RequestId, u32>,
    settled: bool,
}

/// A backend as its primary sees it.
#[derive(Clone, Debug)]
struct Backend {
    number: u64,
    /// Without a report it is claimed again then.
    again: Time,
    /// Of the last report; none came yet if zero.
    revision: u32,
    held: BTreeMap<RequestId, u32>,
    ready: bool,
}

#[derive(Clone, Debug, Default)]
struct Inherited {
    /// Rows that run, by who runs them.
    running: BTreeMap<Process, u32>,
    /// Rows that have run.
    over: u32,
    /// All its rows, once its frontend has asked for it.
    wanted: Option<u32>,
}

impl Primary {
    pub(super) fn new(now: Time, epoch: Epoch, discovery: Time, timing: Timing) -> Primary {
        let (backends, inherited, parked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Primary { timing, epoch, since: now, discovery, number: 0, backends, inherited, parked, settled: false }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether each backend that is there has reported.
    pub(super) fn commands_all(&self) -> bool {
        self.backends.values().all(|backend| backend.revision > 0)
    }

    /// Whether nothing of earlier epochs is left to be told apart.
    pub(super) fn is_open(&self) -> bool {
        self.settled && self.inherited.is_empty()
    }

    /// A backend is there.
    pub(super) fn on_backend(&mut self, now: Time, backend: Process, out: &mut Vec<SchedulerAction>) {
        if !self.backends.contains_key(&backend) {
            self.claim(now, backend, out);
        }
    }

    /// What a backend still runs of earlier epochs, under this claim. Each report says all of it.
    pub(super) fn on_report(
        &mut self,
        now: Time,
        from: Process,
        (number, revision): (u64, u32),
        held: &[Held],
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(backend) = self.backends.get_mut(&from) else { return };
        if number != backend.number || revision <= backend.revision {
            return;
        }
        backend.revision = revision;
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
            self.ended(from, request, (left, over), out);
        }
        self.join(from, out);
        self.settle(now, out);
    }

    pub(super) fn on_ask(&mut self, request: RequestId, rows: u32, out: &mut Vec<SchedulerAction>) {
        if !self.settled {
            self.parked.insert(request, rows);
        } else if let Some(inherited) = self.inherited.get_mut(&request) {
            inherited.wanted = Some(rows);
            self.judge(request, out);
        } else {
            out.push(Admit(request));
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn on_withdraw(&mut self, request: RequestId) {
        self.parked.remove(&request);
        if let Some(inherited) = self.inherited.get_mut(&request) {
            inherited.wanted = None;
        }
    }

    pub(super) fn on_backend_lost(&mut self, now: Time, who: Process, out: &mut Vec<SchedulerAction>) {
        let Some(backend) = self.backends.remove(&who) else { return };
        if backend.ready {
            out.push(Leave(who));
        }
        backend.held.into_keys().for_each(|request| self.ended(who, request, (0, 0), out));
        self.settle(now, out);
    }

    pub(super) fn on_frontend_lost(&mut self, frontend: Process) {
        self.parked.retain(|request, _| request.frontend != frontend);
        let own = self.inherited.iter_mut().filter(|(request, _)| request.frontend == frontend);
        own.for_each(|(_, inherited)| inherited.wanted = None);
    }

    pub(super) fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let silent = self.backends.iter().filter(|(_, it)| it.revision == 0 && it.again <= now);
        let silent: Vec<_> = silent.map(|(&who, _)| who).collect();
        silent.into_iter().for_each(|who| self.claim(now, who, out));
        self.settle(now, out);
    }

    fn claim(&mut self, now: Time, to: Process, out: &mut Vec<SchedulerAction>) {
        self.number += 1;
        let (number, again) = (self.number, now + self.timing.claim);
        self.backends.insert(to, Backend { number, again, revision: 0, held: BTreeMap::new(), ready: false });
        out.push(Claim { to, stamp: Stamp { epoch: self.epoch, number } });
    }

    fn join(&mut self, who: Process, out: &mut Vec<SchedulerAction>) {
        let Some(backend) = self.backends.get_mut(&who).filter(|it| it.held.is_empty() && !it.ready) else { return };
        backend.ready = true;
        out.push(Join { backend: who, stamp: Stamp { epoch: self.epoch, number: backend.number } });
    }

    /// So many rows of a request run on that backend from now on, and so many have run.
    fn ended(&mut self, who: Process, request: RequestId, (left, over): (u32, u32), out: &mut Vec<SchedulerAction>) {
        let Some(inherited) = self.inherited.get_mut(&request) else { return };
        inherited.over += over;
        if left == 0 {
            inherited.running.remove(&who);
        }
        self.judge(request, out);
    }

    /// Whether it will have run, has, or is to be run again. What has only begun in parts is.
    fn judge(&mut self, request: RequestId, out: &mut Vec<SchedulerAction>) {
        let Some(Inherited { running, over, wanted }) = self.inherited.get(&request) else { return };
        let covered = over + running.values().sum::<u32>();
        let action = match *wanted {
            Some(wanted) if covered < wanted => Some(Admit(request)),
            Some(_) if running.is_empty() => Some(Over(request)),
            None if running.is_empty() => None,
            _ => return,
        };
        // Before all is known, others may say that they run it.
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
        let known = late(1) || now >= self.discovery && self.commands_all();
        // Without a backend that may be given batches there would be nobody to run what is admitted.
        let waits = if self.backends.is_empty() { !late(1) } else { !self.backends.values().any(|it| it.ready) };
        if !known || waits && !late(MOST_SETTLES) {
            return;
        }
        self.settled = true;
        let inherited: Vec<RequestId> = self.inherited.keys().copied().collect();
        let parked = std::mem::take(&mut self.parked);
        parked.into_iter().for_each(|(request, rows)| self.on_ask(request, rows, out));
        inherited.into_iter().for_each(|request| self.judge(request, out));
    }
}

#[cfg(test)]
mod tests;
