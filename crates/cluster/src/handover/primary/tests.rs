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
    out(primary, |primary, out| primary.on_ask(id(number), rows, out))
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
    let number = primary.backends[&from.0].number;
    out(primary, |primary, out| primary.on_report(Time(1), from, (number, revision), held, out))
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
    // No backend is ready, and the primary waits no longer than this.
    let late = Time::ORIGIN + TIMING.settle * MAX_SETTLE_INTERVALS;
    assert_eq!(out(&mut primary, |it, out| it.on_timer(late, out)), [Admit(id(4))]);
    let failed = RunningRows { failed: true, ..held(1, 1) };
    assert_eq!(report(&mut primary, ONE, 2, &[held(2, 1), failed, held(3, 2)]), [Admit(id(1))]);
    assert_eq!(report(&mut primary, TWO, 2, &[]), [joins(TWO, 2)]);
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
    let (mut slow, mut alone) = (primary(), Primary::new(Time::ORIGIN, EPOCH, Time::ORIGIN, TIMING));
    [&mut slow, &mut alone].into_iter().for_each(|primary| drop(ask(primary, 1, 1)));
    let settled = Time::ORIGIN + TIMING.settle;
    let admits = |primary: &mut Primary, at| out(primary, |it, out| it.on_timer(at, out)).contains(&Admit(id(1)));
    assert!(!admits(&mut slow, settled) && admits(&mut alone, settled));
    assert_eq!(report(&mut slow, ONE, 1, &[]), [joins(ONE, slow.backends[&ONE].number)]);
    assert!(admits(&mut slow, settled), "who has not reported by then is taken for lost");
    let mut without = primary();
    ask(&mut without, 1, 1);
    assert!(admits(&mut without, Time::ORIGIN + TIMING.settle * MAX_SETTLE_INTERVALS));
}

#[test]
fn a_slow_backend_is_awaited_if_there_is_no_other_in_its_sub_cluster() {
    let mut primary = primary();
    ask(&mut primary, 2, 1);
    assert_eq!(report_of(&mut primary, (ONE, 0), 1, &[]), [joins(ONE, 1)]);
    assert_eq!(report_of(&mut primary, (TWO, 1), 1, &[held(1, 1)]), []);
    let before = Time(TIMING.settle.0 * MAX_SETTLE_INTERVALS - 1);
    assert_eq!(out(&mut primary, |it, out| it.on_timer(before, out)), []);
    let mut moved = primary.clone();
    assert_eq!(report_of(&mut moved, (TWO, 0), 2, &[held(1, 1)]), [Admit(id(2))], "it has moved to the other's");
    let mut bounded = primary.clone();
    assert_eq!(out(&mut bounded, |it, out| it.on_timer(Time(before.0 + 1), out)), [Admit(id(2))]);
    assert_eq!(report_of(&mut primary, (TWO, 1), 2, &[]), [joins(TWO, 2), Admit(id(2))]);
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
