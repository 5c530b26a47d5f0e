//! What a primary does with its reign: it claims backends, learns what they run, and gives them batches.

use super::action::SchedulerAction::{self, Admit, Ended, Load, Send, Withdraw};
use super::ids::{Epoch, Process, RequestId, Stamp};
use super::message::{Answer, Body, Held, Message, Outcome, Wanted};
use super::requests::{Fate, Requests};
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(super) struct Primary {
    timing: Timing,
    epoch: Epoch,
    since: Time,
    /// Before that somebody may be there who has not said hello.
    acquainted: Time,
    /// Of the last stamp.
    number: u64,
    backends: BTreeMap<Process, Backend>,
    requests: Requests,
    /// What runs anywhere is known.
    settled: bool,
}

/// A backend as its primary sees it.
#[derive(Clone, Debug)]
struct Backend {
    claimed: Option<Claimed>,
    batches: BTreeMap<Stamp, Batch>,
}

/// A claim that has no report yet.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    number: u64,
    again: Time,
    /// Without a report it is lost then.
    until: Time,
}

#[derive(Clone, Debug)]
struct Batch {
    members: Vec<RequestId>,
    due: Time,
    /// It was overdue, and its backend said that it still runs.
    overdue: bool,
}

/// What becomes of a backend at an instant.
enum Step {
    Claim { until: Time },
    Lose,
}

impl Primary {
    pub(super) fn new(now: Time, epoch: Epoch, acquainted: Time, timing: Timing, requests: usize) -> Primary {
        let requests = Requests::new(requests, timing.repeat * 2);
        let backends = BTreeMap::new();
        Primary { timing, epoch, since: now, acquainted, number: 0, backends, requests, settled: false }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether each backend that is known has reported, and may be given batches.
    pub(super) fn commands_all(&self) -> bool {
        self.backends.values().all(|backend| backend.claimed.is_none())
    }

    /// A backend is there.
    pub(super) fn on_backend(&mut self, now: Time, backend: Process, out: &mut Vec<SchedulerAction>) {
        if !self.backends.contains_key(&backend) {
            self.claim(now, backend, now + self.timing.gone, out);
        }
    }

    pub(super) fn on_report(
        &mut self,
        now: Time,
        from: Process,
        number: u64,
        held: &[Held],
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(backend) = self.backends.get_mut(&from) else { return };
        if backend.claimed.is_none_or(|claimed| number < claimed.number) {
            return;
        }
        backend.claimed = None;
        let mut running: BTreeMap<Stamp, Vec<RequestId>> = BTreeMap::new();
        for held in held {
            if self.requests.on_held(now, held.request, from, held.done) {
                out.push(Withdraw(held.request));
            }
            if !held.done {
                running.entry(held.batch).or_default().push(held.request);
            }
        }
        let kept = running.into_iter().map(|(stamp, members)| {
            let known = backend.batches.remove(&stamp);
            let (due, overdue) = match known {
                Some(batch) if batch.due > now => (batch.due, batch.overdue),
                // Nobody but the earlier primary knows how long it takes.
                known => (now + self.timing.gone, known.is_some()),
            };
            (stamp, Batch { members, due, overdue })
        });
        let kept: BTreeMap<_, _> = kept.collect();
        let vanished = std::mem::replace(&mut backend.batches, kept);
        out.push(Load { backend: from, batches: Some(backend.batches.len()) });
        for request in vanished.into_values().flat_map(|batch| batch.members) {
            let fate = self.requests.on_lost(now, request, from);
            self.meet(fate, out);
        }
        self.settle(now, out);
    }

    pub(super) fn on_ended(&mut self, now: Time, from: Process, batch: Stamp, out: &mut Vec<SchedulerAction>) {
        let Some(backend) = self.backends.get_mut(&from) else { return };
        let Some(ended) = backend.batches.remove(&batch) else { return };
        out.push(Ended { backend: from, batch });
        if backend.claimed.is_none() {
            out.push(Load { backend: from, batches: Some(backend.batches.len()) });
        }
        for request in ended.members {
            if self.requests.on_held(now, request, from, true) {
                out.push(Withdraw(request));
            }
        }
    }

    pub(super) fn on_ask(&mut self, now: Time, wanted: &[Wanted], out: &mut Vec<SchedulerAction>) {
        for wanted in wanted {
            match self.requests.on_ask(now, wanted, wanted.repeated && !self.settled) {
                Some(admitted) => out.extend(admitted.map(Admit)),
                None => self.answer_retry(wanted.request, out),
            }
        }
    }

    /// Gives a backend a batch that should have ended when it is due. Whether it could: a backend that is being claimed is
    /// given nothing, and requests that were withdrawn meanwhile are left out.
    pub(super) fn start(
        &mut self,
        now: Time,
        backend: Process,
        batch: &[RequestId],
        due: Time,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(ready) = self.backends.get_mut(&backend).filter(|known| known.claimed.is_none()) else { return false };
        let wanted = batch.iter().filter_map(|&request| self.requests.on_started(now, request, backend));
        let members: Vec<Wanted> = wanted.collect();
        if members.is_empty() {
            return false;
        }
        self.number += 1;
        let stamp = Stamp { epoch: self.epoch, number: self.number };
        let ids = members.iter().map(|wanted| wanted.request).collect();
        ready.batches.insert(stamp, Batch { members: ids, due, overdue: false });
        out.push(Load { backend, batches: Some(ready.batches.len()) });
        self.send(backend, Body::Start { number: self.number, members }, out);
        true
    }

    /// The host will not run this one.
    pub(super) fn refuse(&mut self, request: RequestId, out: &mut Vec<SchedulerAction>) {
        if self.requests.on_refused(request) {
            self.answer_retry(request, out);
        }
    }

    pub(super) fn on_backend_lost(&mut self, now: Time, backend: Process, out: &mut Vec<SchedulerAction>) {
        if self.backends.remove(&backend).is_none() {
            return;
        }
        out.push(Load { backend, batches: None });
        for fate in self.requests.on_backend_lost(now, backend) {
            self.meet(Some(fate), out);
        }
        self.settle(now, out);
    }

    pub(super) fn on_frontend_lost(&mut self, frontend: Process, out: &mut Vec<SchedulerAction>) {
        out.extend(self.requests.on_frontend_lost(frontend).into_iter().map(Withdraw));
    }

    pub(super) fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let steps: Vec<_> =
            self.backends.iter_mut().filter_map(|(&who, it)| Some((who, it.step(now, &self.timing)?))).collect();
        for (backend, step) in steps {
            match step {
                Step::Claim { until } => self.claim(now, backend, until, out),
                Step::Lose => self.on_backend_lost(now, backend, out),
            }
        }
        out.extend(self.requests.expire(now).into_iter().map(Withdraw));
        self.settle(now, out);
    }

    /// Commands the backend anew: the report that answers this says what came of all that it was told before.
    fn claim(&mut self, now: Time, who: Process, until: Time, out: &mut Vec<SchedulerAction>) {
        self.number += 1;
        let claimed = Claimed { number: self.number, again: now + self.timing.claim, until };
        let backend = self.backends.entry(who).or_insert_with(|| Backend { claimed: None, batches: BTreeMap::new() });
        if backend.claimed.replace(claimed).is_none() {
            out.push(Load { backend: who, batches: None });
        }
        self.send(who, Body::Claim { number: self.number }, out);
    }

    fn settle(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let all = self.commands_all() && now >= self.acquainted;
        if !self.settled && (all || now >= self.since + self.timing.settle) {
            self.settled = true;
            out.extend(self.requests.unpark().into_iter().map(Admit));
        }
    }

    fn meet(&mut self, fate: Option<Fate>, out: &mut Vec<SchedulerAction>) {
        match fate {
            Some(Fate::Again(admitted)) => out.push(Admit(admitted)),
            Some(Fate::Refused(request)) => self.answer_retry(request, out),
            None => {}
        }
    }

    fn answer_retry(&self, request: RequestId, out: &mut Vec<SchedulerAction>) {
        let answer = Answer { request, outcome: Outcome::Retry };
        self.send(request.frontend, Body::Answers(vec![answer]), out);
    }

    fn send(&self, to: Process, body: Body, out: &mut Vec<SchedulerAction>) {
        out.push(Send { to, message: Message { epoch: self.epoch, body } });
    }
}

impl Backend {
    /// What is to be done about it now, if anything.
    fn step(&mut self, now: Time, timing: &Timing) -> Option<Step> {
        if let Some(claimed) = self.claimed {
            let step = if claimed.until <= now { Step::Lose } else { Step::Claim { until: claimed.until } };
            return (claimed.until.min(claimed.again) <= now).then_some(step);
        }
        let late = self.batches.values().filter(|batch| batch.due <= now).map(|batch| batch.overdue);
        let late: BTreeSet<bool> = late.collect();
        match late.last()? {
            true => Some(Step::Lose),
            false => Some(Step::Claim { until: now + timing.silence }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::requests::Admitted;
    use ripieno_base::ModelId;

    const TIMING: Timing = Timing::SHARED_HOSTS;
    const EPOCH: Epoch = Epoch(5);
    const ONE: Process = Process(1);
    const TWO: Process = Process(2);
    const FRONTEND: Process = Process(9);
    const DEADLINE: Time = Time(1_000_000_000);

    fn id(number: u64) -> RequestId {
        RequestId { frontend: FRONTEND, number }
    }

    fn admit(number: u64) -> SchedulerAction {
        Admit(Admitted { request: id(number), deadline: DEADLINE, model: ModelId(0) })
    }

    fn retry(number: u64) -> SchedulerAction {
        let body = Body::Answers(vec![Answer { request: id(number), outcome: Outcome::Retry }]);
        Send { to: FRONTEND, message: Message { epoch: EPOCH, body } }
    }

    fn running(number: u64) -> Held {
        Held { request: id(number), batch: Stamp { epoch: Epoch(4), number: 7 }, done: false }
    }

    /// One that knows two backends, neither of which has reported, and has room for three requests.
    fn primary() -> Primary {
        let mut primary = Primary::new(Time::ORIGIN, EPOCH, Time::ORIGIN, TIMING, 3);
        let mut out = Vec::new();
        [ONE, TWO].iter().for_each(|&backend| primary.on_backend(Time::ORIGIN, backend, &mut out));
        assert_eq!(out.len(), 4, "each is claimed, and given nothing");
        primary
    }

    /// What the primary does of it.
    fn out(primary: &mut Primary, tell: impl FnOnce(&mut Primary, &mut Vec<SchedulerAction>)) -> Vec<SchedulerAction> {
        let mut out = Vec::new();
        tell(primary, &mut out);
        out
    }

    fn ask(primary: &mut Primary, number: u64, repeated: bool) -> Vec<SchedulerAction> {
        let wanted = Wanted { request: id(number), left: DEADLINE - Time::ORIGIN, model: ModelId(0), repeated };
        out(primary, |primary, out| primary.on_ask(Time::ORIGIN, &[wanted], out))
    }

    fn report(primary: &mut Primary, now: Time, from: Process, held: &[Held]) -> Vec<SchedulerAction> {
        out(primary, |primary, out| primary.on_report(now, from, u64::MAX, held, out))
    }

    #[test]
    fn what_may_be_running_waits_for_all_reports_and_what_is_new_does_not() {
        let mut primary = primary();
        assert_eq!((ask(&mut primary, 1, true), ask(&mut primary, 2, true)), (vec![], vec![]));
        assert_eq!(ask(&mut primary, 3, false), [admit(3)]);
        assert_eq!(ask(&mut primary, 3, true), [], "it is known");
        assert_eq!(ask(&mut primary, 4, false), [retry(4)], "all places are taken");
        let load = |backend, batches| Load { backend, batches: Some(batches) };
        assert_eq!(report(&mut primary, Time(1), ONE, &[running(1)]), [load(ONE, 1)]);
        assert_eq!(report(&mut primary, Time(1), TWO, &[]), [load(TWO, 0), admit(2)]);
    }

    #[test]
    fn a_backend_that_never_reports_is_not_waited_for() {
        let mut primary = primary();
        ask(&mut primary, 1, true);
        report(&mut primary, Time(1), ONE, &[]);
        let settled = Time::ORIGIN + TIMING.settle;
        assert!(!out(&mut primary, |it, out| it.on_timer(Time(settled.0 - 1), out)).contains(&admit(1)));
        assert!(out(&mut primary, |it, out| it.on_timer(settled, out)).contains(&admit(1)));
        assert!(!primary.start(settled, TWO, &[id(1)], DEADLINE, &mut Vec::new()));
        assert!(primary.start(settled, ONE, &[id(1)], DEADLINE, &mut Vec::new()));
    }

    #[test]
    fn a_backend_is_claimed_until_it_reports() {
        let mut primary = primary();
        report(&mut primary, Time(1), ONE, &[]);
        let again = Time::ORIGIN + TIMING.claim;
        assert_eq!(out(&mut primary, |primary, out| primary.on_timer(Time(again.0 - 1), out)), []);
        let claim = Send { to: TWO, message: Message { epoch: EPOCH, body: Body::Claim { number: 3 } } };
        assert_eq!(out(&mut primary, |primary, out| primary.on_timer(again, out)), [claim]);
    }

    #[test]
    fn a_request_runs_twice_at_most() {
        let mut primary = primary();
        [ONE, TWO].iter().for_each(|&backend| drop(report(&mut primary, Time(1), backend, &[])));
        ask(&mut primary, 1, false);
        assert!(primary.start(Time(2), ONE, &[id(1)], DEADLINE, &mut Vec::new()));
        let lost = out(&mut primary, |primary, out| primary.on_backend_lost(Time(3), ONE, out));
        assert_eq!(lost, [Load { backend: ONE, batches: None }, admit(1)]);
        assert!(primary.start(Time(4), TWO, &[id(1)], DEADLINE, &mut Vec::new()));
        let lost = out(&mut primary, |primary, out| primary.on_backend_lost(Time(5), TWO, out));
        assert_eq!(lost, [Load { backend: TWO, batches: None }, retry(1)]);
    }

    #[test]
    fn a_batch_that_is_overdue_is_asked_for_and_lost_when_it_is_overdue_again() {
        let mut primary = primary();
        [ONE, TWO].iter().for_each(|&backend| drop(report(&mut primary, Time(1), backend, &[])));
        ask(&mut primary, 1, false);
        let due = Time(10);
        primary.start(Time(2), ONE, &[id(1)], due, &mut Vec::new());
        let asked = out(&mut primary, |primary, out| primary.on_timer(due, out));
        assert!(matches!(&asked[..], [Load { backend: ONE, batches: None }, Send { to: ONE, .. }]), "{asked:?}");
        let batch = Stamp { epoch: EPOCH, number: 3 };
        assert_eq!(report(&mut primary, due, ONE, &[Held { batch, ..running(1) }]).len(), 1);
        let again = due + TIMING.gone;
        assert_eq!(out(&mut primary, |primary, out| primary.on_timer(Time(again.0 - 1), out)), []);
        assert!(out(&mut primary, |primary, out| primary.on_timer(again, out)).contains(&admit(1)));
    }

    #[test]
    fn what_a_report_does_not_name_has_not_come() {
        let mut primary = primary();
        [ONE, TWO].iter().for_each(|&backend| drop(report(&mut primary, Time(1), backend, &[])));
        ask(&mut primary, 1, false);
        primary.start(Time(2), ONE, &[id(1)], Time(10), &mut Vec::new());
        primary.on_timer(Time(10), &mut Vec::new());
        let early = out(&mut primary, |primary, out| primary.on_report(Time(11), ONE, 3, &[], out));
        assert_eq!(early, [], "a report from before the claim says nothing about what came after");
        assert_eq!(report(&mut primary, Time(11), ONE, &[])[1..], [admit(1)]);
    }

    #[test]
    fn who_is_gone_is_not_run_for() {
        let mut primary = primary();
        (1..=2).for_each(|number| drop(ask(&mut primary, number, number == 2)));
        let gone = out(&mut primary, |primary, out| primary.on_frontend_lost(FRONTEND, out));
        assert_eq!(gone, [Withdraw(id(1))]);
        ask(&mut primary, 3, false);
        assert!(out(&mut primary, |primary, out| primary.on_timer(DEADLINE, out)).contains(&Withdraw(id(3))));
    }
}
