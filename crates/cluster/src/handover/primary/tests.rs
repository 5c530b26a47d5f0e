use super::*;

const TIMING: Timing = Timing { claim: ripieno_base::Nanos(10_000), ..Timing::SHARED_HOSTS };
const EPOCH: Epoch = Epoch(5);
const ONE: ProcessId = ProcessId(1);
const TWO: ProcessId = ProcessId(2);
const FRONTEND: ProcessId = ProcessId(9);

fn id(number: u64) -> RequestId {
    RequestId { frontend: FRONTEND, number }
}

fn held(number: u64, rows: u32) -> RunningRows {
    RunningRows { request: id(number), rows, failed: false }
}

fn joins(backend: ProcessId, number: u64) -> SchedulerAction {
    Join { backend, stamp: Stamp { epoch: EPOCH, number } }
}

/// Returns a primary that has claimed two backends.
fn primary() -> Primary {
    let mut primary = Primary::new(Time::ORIGIN, EPOCH, Time::ORIGIN, TIMING);
    let mut out = Vec::new();
    [ONE, TWO].iter().for_each(|&backend| primary.on_backend(Time::ORIGIN, backend, &mut out));
    assert_eq!(out.len(), 2, "each is claimed");
    primary
}

/// Returns the primary's actions after an input.
fn out(primary: &mut Primary, tell: impl FnOnce(&mut Primary, &mut Vec<SchedulerAction>)) -> Vec<SchedulerAction> {
    let mut out = Vec::new();
    tell(primary, &mut out);
    out
}

fn ask(primary: &mut Primary, number: u64, rows: u32) -> Vec<SchedulerAction> {
    ask_of(primary, Time(1), number, (rows, 0))
}

/// Submits a request of this number of rows to a sub-cluster.
fn ask_of(primary: &mut Primary, now: Time, number: u64, rows: (u32, usize)) -> Vec<SchedulerAction> {
    out(primary, |primary, out| primary.on_ask(now, id(number), rows, out))
}

/// Returns the primary's actions at this time, without repeated claims.
fn on_timer(primary: &mut Primary, now: Time) -> Vec<SchedulerAction> {
    let mut actions = out(primary, |primary, out| primary.on_timer(now, out));
    actions.retain(|action| !matches!(action, Claim { .. }));
    actions
}

/// Returns the time at which a request that waits since `since` waits no longer for a backend.
fn no_longer(since: Time) -> Time {
    since + TIMING.settle * MAX_SETTLE_INTERVALS
}

fn report(primary: &mut Primary, from: ProcessId, revision: u32, held: &[RunningRows]) -> Vec<SchedulerAction> {
    report_of(primary, (from, 0), revision, held)
}

/// Reports for a backend of this sub-cluster.
fn report_of(
    primary: &mut Primary,
    from: (ProcessId, usize),
    revision: u32,
    held: &[RunningRows],
) -> Vec<SchedulerAction> {
    report_at(primary, Time(1), from, revision, held)
}

fn report_at(
    primary: &mut Primary,
    now: Time,
    from: (ProcessId, usize),
    revision: u32,
    held: &[RunningRows],
) -> Vec<SchedulerAction> {
    let number = primary.backends[&from.0].number;
    out(primary, |primary, out| primary.on_report(now, from, (number, revision), held, out))
}

#[test]
fn what_is_asked_waits_for_all_reports_and_what_runs_is_left_alone() {
    let mut primary = primary();
    assert_eq!((ask(&mut primary, 1, 1), ask(&mut primary, 2, 1)), (vec![], vec![]));
    assert_eq!(report(&mut primary, ONE, 1, &[held(1, 1)]), []);
    assert_eq!(report(&mut primary, TWO, 1, &[]), [joins(TWO, 2), Admit(id(2))]);
    assert!(!primary.is_open());
    assert_eq!(report(&mut primary, ONE, 2, &[]), [Completed(id(1)), joins(ONE, 1)]);
    assert!(primary.is_open());
    assert_eq!(ask(&mut primary, 3, 1), [Admit(id(3))]);
}

#[test]
fn what_fails_or_is_lost_runs_again_and_so_does_what_had_begun_in_parts_only() {
    let mut primary = primary();
    [1, 2].iter().for_each(|&number| drop(ask(&mut primary, number, 1)));
    [3, 4].iter().for_each(|&number| drop(ask(&mut primary, number, 4)));
    assert_eq!(report(&mut primary, ONE, 1, &[held(1, 1), held(2, 1), held(3, 2), held(4, 2), held(4, 1)]), []);
    assert_eq!(report(&mut primary, TWO, 1, &[held(3, 2)]), []);
    let failed = RunningRows { failed: true, ..held(1, 1) };
    assert_eq!(report(&mut primary, ONE, 2, &[held(2, 1), failed, held(3, 2)]), [], "no backend is ready");
    assert_eq!(report(&mut primary, TWO, 2, &[]), [joins(TWO, 2), Admit(id(1)), Admit(id(4))]);
    assert_eq!(report(&mut primary, ONE, 3, &[held(2, 1)]), [Completed(id(3))], "both halves have run");
    assert_eq!(out(&mut primary, |it, out| it.on_backend_lost(Time(2), ONE, out)), [Admit(id(2))]);
    assert_eq!(out(&mut primary, |it, out| it.on_backend_lost(Time(2), TWO, out)), [Leave(TWO)]);
}

#[test]
fn reports_of_the_past_change_nothing() {
    let mut primary = primary();
    report(&mut primary, ONE, 1, &[held(1, 1)]);
    report(&mut primary, TWO, 2, &[]);
    assert_eq!(report(&mut primary, TWO, 1, &[held(2, 1)]), []);
    assert_eq!(ask(&mut primary, 2, 1), [Admit(id(2))]);
    let wrong = |it: &mut Primary, out: &mut _| it.on_report(Time(1), (ONE, 0), (7, 9), &[], out);
    assert_eq!(out(&mut primary, wrong), [], "another claim");
    assert!(!primary.is_open());
}

#[test]
fn a_backend_that_never_reports_is_claimed_again_and_not_waited_for() {
    let mut primary = primary();
    ask(&mut primary, 1, 1);
    report(&mut primary, ONE, 1, &[]);
    let again = Time::ORIGIN + TIMING.claim;
    let claim = Claim { to: TWO, stamp: Stamp { epoch: EPOCH, number: 3 } };
    assert_eq!(out(&mut primary, |it, out| it.on_timer(again, out)), [claim]);
    let settled = Time::ORIGIN + TIMING.settle;
    assert!(!out(&mut primary, |it, out| it.on_timer(Time(settled.0 - 1), out)).contains(&Admit(id(1))));
    assert!(out(&mut primary, |it, out| it.on_timer(settled, out)).contains(&Admit(id(1))));
}

#[test]
fn a_slow_backend_is_awaited_if_there_is_no_other() {
    let mut slow = primary();
    ask(&mut slow, 1, 1);
    let settled = Time::ORIGIN + TIMING.settle;
    assert_eq!(on_timer(&mut slow, settled), []);
    let number = slow.backends[&ONE].number;
    assert_eq!(report(&mut slow, ONE, 1, &[]), [joins(ONE, number), Admit(id(1))], "the other one is not waited for");
    let mut without = primary();
    ask(&mut without, 1, 1);
    assert_eq!(on_timer(&mut without, no_longer(Time::ORIGIN)), [Admit(id(1))]);
}

#[test]
fn a_slow_backend_is_awaited_by_the_requests_of_its_sub_cluster_alone() {
    let mut primary = primary();
    ask(&mut primary, 2, 1);
    ask_of(&mut primary, Time(1), 3, (1, 1));
    assert_eq!(report_of(&mut primary, (ONE, 0), 1, &[]), [joins(ONE, 1)]);
    assert_eq!(report_of(&mut primary, (TWO, 1), 1, &[held(1, 1)]), [Admit(id(2))]);
    let before = Time(no_longer(Time::ORIGIN).0 - 1);
    assert_eq!(on_timer(&mut primary, before), []);
    let mut moved = primary.clone();
    assert_eq!(report_of(&mut moved, (TWO, 0), 2, &[held(1, 1)]), [], "it has moved to the other's");
    assert_eq!(on_timer(&mut moved, no_longer(Time::ORIGIN)), [Admit(id(3))]);
    let mut bounded = primary.clone();
    assert_eq!(on_timer(&mut bounded, no_longer(Time::ORIGIN)), [Admit(id(3))]);
    assert_eq!(report_of(&mut primary, (TWO, 1), 2, &[]), [joins(TWO, 2), Admit(id(3))]);
}

/// Returns a primary without backends that has waited for reports.
fn without_backends() -> Primary {
    let mut primary = Primary::new(Time::ORIGIN, EPOCH, Time::ORIGIN, TIMING);
    assert_eq!(on_timer(&mut primary, Time::ORIGIN + TIMING.settle), []);
    primary
}

#[test]
fn a_backend_that_connects_after_the_wait_for_reports_is_awaited() {
    let (mut primary, now) = (without_backends(), Time::ORIGIN + TIMING.settle);
    assert_eq!(ask_of(&mut primary, now, 1, (1, 0)), []);
    assert_eq!(out(&mut primary, |it, out| it.on_backend(now, ONE, out)).len(), 1, "it is claimed");
    assert_eq!(ask_of(&mut primary, now, 2, (1, 0)), []);
    assert_eq!(report(&mut primary, ONE, 1, &[held(2, 1)]), [], "it runs one of them");
    assert_eq!(report(&mut primary, ONE, 2, &[]), [Completed(id(2)), joins(ONE, 1), Admit(id(1))]);
    assert_eq!(ask_of(&mut primary, now, 3, (1, 0)), [Admit(id(3))]);
}

#[test]
fn without_a_backend_requests_wait_for_a_bounded_time_and_again_once_one_connects() {
    let (mut primary, late) = (without_backends(), no_longer(Time::ORIGIN));
    assert_eq!(ask_of(&mut primary, Time(late.0 - 1), 1, (1, 0)), []);
    assert_eq!(on_timer(&mut primary, late), [Admit(id(1))]);
    assert_eq!(ask_of(&mut primary, late, 2, (1, 0)), [Admit(id(2))], "it is refused");
    out(&mut primary, |it, out| it.on_backend(late, ONE, out));
    assert_eq!(ask_of(&mut primary, late, 3, (1, 7)), [], "any sub-cluster may be its own");
    let claimed = late + TIMING.claim;
    assert_eq!(on_timer(&mut primary, claimed), [], "it is claimed again");
    assert_eq!(report_at(&mut primary, claimed, (ONE, 0), 1, &[held(9, 1)]), [Admit(id(3))], "it is of another one");
    assert_eq!(ask_of(&mut primary, claimed, 4, (1, 0)), []);
    assert_eq!(on_timer(&mut primary, Time(no_longer(late).0 - 1)), []);
    assert_eq!(on_timer(&mut primary, no_longer(late)), [Admit(id(4))]);
}

#[test]
fn cancelled_requests_and_those_of_a_lost_frontend_are_not_admitted() {
    let mut primary = primary();
    [1, 2, 3].iter().for_each(|&number| drop(ask(&mut primary, number, 1)));
    report(&mut primary, ONE, 1, &[held(2, 1)]);
    primary.on_withdraw(id(1));
    assert_eq!(report(&mut primary, TWO, 1, &[]), [joins(TWO, 2), Admit(id(3))]);
    primary.on_frontend_lost(FRONTEND);
    assert_eq!(out(&mut primary, |it, out| it.on_backend_lost(Time(2), ONE, out)), []);
}
