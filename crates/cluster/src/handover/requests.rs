//! The requests that a primary answers for, each once, however often it is told of them.

use super::ids::{Process, RequestId};
use super::message::Wanted;
use ripieno_base::{ModelId, Nanos, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A request that the primary's host is to schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Which one.
    pub request: RequestId,
    /// An answer is of use until then.
    pub deadline: Time,
    /// What is to be run.
    pub model: ModelId,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It may run somewhere; that is not known yet.
    Parked,
    /// The host has it.
    Waiting,
    /// This backend has it.
    Running(Process),
    /// This backend has run it, and delivers the answer.
    Done(Process),
}

#[derive(Clone, Copy, Debug)]
struct Live {
    stage: Stage,
    /// What its frontend wants; none if only a backend has told of it.
    wanted: Option<(Time, ModelId)>,
    /// So often a backend was given it.
    runs: u8,
    /// It is forgotten then.
    until: Time,
}

/// What becomes of a request whose backend is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is scheduled once more.
    Again(Admitted),
    /// Its frontend is told to try again.
    Refused(RequestId),
}

#[derive(Clone, Debug)]
pub(super) struct Requests {
    most: usize,
    /// For so long a request that has run is remembered.
    remembered: Nanos,
    live: BTreeMap<RequestId, Live>,
    ends: BTreeSet<(Time, RequestId)>,
}

/// A request is run at most so often.
const MOST_RUNS: u8 = 2;

impl Requests {
    pub(super) fn new(most: usize, remembered: Nanos) -> Requests {
        Requests { most, remembered, live: BTreeMap::new(), ends: BTreeSet::new() }
    }

    /// A frontend wants this one. It is new, and given to the host unless parked; or known; or none, as all places are taken.
    pub(super) fn on_ask(&mut self, now: Time, wanted: &Wanted, parked: bool) -> Option<Option<Admitted>> {
        let Wanted { request, left, model, .. } = *wanted;
        let deadline = now + left;
        if let Some(live) = self.live.get_mut(&request) {
            live.wanted.get_or_insert((deadline, model));
            return Some(None);
        }
        if self.live.len() >= self.most {
            return None;
        }
        let stage = if parked { Stage::Parked } else { Stage::Waiting };
        self.insert(request, Live { stage, wanted: Some((deadline, model)), runs: 0, until: deadline });
        Some((!parked).then_some(Admitted { request, deadline, model }))
    }

    /// A backend holds this one. Whether the host waits with it, and must not any more.
    pub(super) fn on_held(&mut self, now: Time, request: RequestId, backend: Process, done: bool) -> bool {
        let before = self.live.get(&request).copied();
        // What two backends run is the first one's.
        if matches!(before, Some(Live { stage: Stage::Running(other), .. }) if other != backend && !done) {
            return false;
        }
        if before.is_some() || self.live.len() < self.most {
            self.remove(request);
            let live = before.unwrap_or(Live { stage: Stage::Parked, wanted: None, runs: 1, until: Time::NEVER });
            let (stage, until) = match done {
                true => (Stage::Done(backend), now + self.remembered),
                false => (Stage::Running(backend), Time::NEVER),
            };
            self.insert(request, Live { stage, until, runs: live.runs.max(1), ..live });
        }
        before.is_some_and(|live| live.stage == Stage::Waiting)
    }

    /// The host has given it to a backend: what that one is told. None if it is not the host's any more.
    pub(super) fn on_started(&mut self, now: Time, request: RequestId, backend: Process) -> Option<Wanted> {
        let live = *self.live.get(&request)?;
        let (Stage::Waiting, Some((deadline, model))) = (live.stage, live.wanted) else { return None };
        self.remove(request);
        self.insert(request, Live { stage: Stage::Running(backend), until: Time::NEVER, runs: live.runs + 1, ..live });
        Some(Wanted { request, left: deadline - now, model, repeated: live.runs > 0 })
    }

    /// It ran on this backend, or was given to it and is not there: what becomes of it. Nothing where nobody has asked for it.
    pub(super) fn on_lost(&mut self, now: Time, request: RequestId, backend: Process) -> Option<Fate> {
        let live = *self.live.get(&request)?;
        if live.stage != Stage::Running(backend) {
            return None;
        }
        self.remove(request);
        let (deadline, model) = live.wanted?;
        if live.runs >= MOST_RUNS || deadline <= now {
            return Some(Fate::Refused(request));
        }
        self.insert(request, Live { stage: Stage::Waiting, until: deadline, ..live });
        Some(Fate::Again(Admitted { request, deadline, model }))
    }

    /// All that this backend had. What it was to deliver is forgotten: if the answer has not come, the frontend says so.
    pub(super) fn on_backend_lost(&mut self, now: Time, backend: Process) -> Vec<Fate> {
        let stage_is =
            |stage| self.live.iter().filter(move |(_, live)| live.stage == stage).map(|(&request, _)| request);
        let done: Vec<_> = stage_is(Stage::Done(backend)).collect();
        let running: Vec<_> = stage_is(Stage::Running(backend)).collect();
        done.into_iter().for_each(|request| self.remove(request));
        running.into_iter().filter_map(|request| self.on_lost(now, request, backend)).collect()
    }

    /// Its frontend is gone. Those that the host waits with, and must not any more.
    pub(super) fn on_frontend_lost(&mut self, frontend: Process) -> Vec<RequestId> {
        let range = RequestId { frontend, number: 0 }..=RequestId { frontend, number: u64::MAX };
        let unstarted = |live: &Live| matches!(live.stage, Stage::Parked | Stage::Waiting);
        let own: Vec<_> = self.live.range(range).filter(|(_, live)| unstarted(live)).map(|(&id, _)| id).collect();
        own.into_iter().filter(|&request| self.take(request) == Some(Stage::Waiting)).collect()
    }

    /// The host will not run it.
    pub(super) fn on_refused(&mut self, request: RequestId) -> bool {
        let waits = self.live.get(&request).is_some_and(|live| live.stage == Stage::Waiting);
        waits && self.take(request).is_some()
    }

    /// All that runs anywhere is known: the rest may be scheduled.
    pub(super) fn unpark(&mut self) -> Vec<Admitted> {
        let parked = self.live.iter_mut().filter(|(_, live)| live.stage == Stage::Parked);
        let unpark = |(&request, live): (&RequestId, &mut Live)| {
            live.stage = Stage::Waiting;
            live.wanted.map(|(deadline, model)| Admitted { request, deadline, model })
        };
        parked.filter_map(unpark).collect()
    }

    /// Forgets what is over. Those that the host waits with, and must not any more.
    pub(super) fn expire(&mut self, now: Time) -> Vec<RequestId> {
        let mut late = Vec::new();
        while let Some(&(_, request)) = self.ends.first().filter(|(until, _)| *until <= now) {
            if self.take(request) == Some(Stage::Waiting) {
                late.push(request);
            }
        }
        late
    }

    fn insert(&mut self, request: RequestId, live: Live) {
        self.ends.insert((live.until, request));
        self.live.insert(request, live);
    }

    fn take(&mut self, request: RequestId) -> Option<Stage> {
        let live = self.live.remove(&request)?;
        self.ends.remove(&(live.until, request));
        Some(live.stage)
    }

    fn remove(&mut self, request: RequestId) {
        self.take(request);
    }
}
