//! Tests of the tasks of a session.

use super::*;
use ripieno_base::{BlockId, ModelId, RequestSlot};
use ripieno_executor::{ExecError, Loss, RemoteRows};

fn run(task: u32, frontends: &[Option<u32>]) -> RunTask {
    let member = |(slot, &frontend): (u32, &Option<u32>)| RunMember {
        slot: RequestSlot(slot),
        rows: 1,
        length: 1,
        node: 0,
        stream: false,
        walk: 1,
        left_ns: None,
        origin: frontend.map(|frontend| RemoteRows { frontend, request: u64::from(slot), first_row: 0 }),
    };
    let (model, block, lane) = (ModelId(0), BlockId(0), LaneId(0));
    let members = (0..).zip(frontends).map(member).collect();
    RunTask { task: TaskId(task), model, block, lane, length: 1, wait_ns: 0, members }
}

fn here() -> MemberInputs {
    MemberInputs::Here(Arc::new(RequestEntry::of(Arc::new([]))), Duration::ZERO)
}

fn submitted(ready: Option<NextTask>) -> Option<(u32, Vec<u32>)> {
    match ready? {
        NextTask::Submit(task) => Some((task.id.0, task.members.iter().map(|member| member.slot.0).collect())),
        NextTask::Empty(task) => Some((task.0, Vec::new())),
    }
}

#[test]
fn tasks_of_a_lane_begin_in_order_once_their_rows_are_there() {
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    assert!(tasks.insert(run(7, &[Some(1), None])) && tasks.insert(run(8, &[Some(1)])));
    assert!(!tasks.insert(run(7, &[None])), "the same task twice");
    assert!(!tasks.insert(RunTask { lane: LaneId(1), ..run(9, &[None]) }), "a lane that is not there");
    let (first, second) = (tasks.add_pull(TaskId(7), 0).unwrap(), tasks.add_pull(TaskId(8), 0).unwrap());
    assert_eq!(tasks.take_pull(second), Some((TaskId(8), 0)));
    tasks.set_inputs(TaskId(8), 0, here());
    assert!(tasks.next(LaneId(0)).is_none(), "the one before it waits for rows");
    assert_eq!(tasks.take_pull(first), Some((TaskId(7), 0)));
    tasks.set_inputs(TaskId(7), 0, here());
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((7, vec![0, 1])));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((8, vec![0])));
    assert!(tasks.next(LaneId(0)).is_none() && tasks.take_pull(first).is_none());
}

#[test]
fn members_without_rows_are_excluded_and_reported_apart_from_those_that_ran() {
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    tasks.insert(run(1, &[Some(1), Some(2), Some(1)]));
    let tags = [0, 1, 2].map(|member| tasks.add_pull(TaskId(1), member).unwrap());
    tasks.on_frontend_lost(1);
    assert!(tasks.next(LaneId(0)).is_none() && tasks.take_pull(tags[0]).is_none());
    assert!(tasks.take_pull(tags[1]).is_some());
    tasks.set_inputs(TaskId(1), 1, here());
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((1, vec![1])));
    let held = tasks.remove(TaskId(1)).unwrap();
    let ends = held.ends(&[MemberProgress::failed(ExecError("no".to_owned()))]);
    assert!(matches!(&ends[..], [MemberEnd::Lost(_), MemberEnd::Failed(_), MemberEnd::Lost(_)]), "{ends:?}");
    tasks.insert(run(2, &[Some(3)]));
    tasks.set_inputs(TaskId(2), 0, MemberInputs::lost());
    assert!(tasks.next(LaneId(0)).is_none(), "the end of the one before it is not sent");
    tasks.end_sent(LaneId(0));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![])), "no member is left");
}

#[test]
fn a_task_that_the_device_refuses_ends_after_those_before_it() {
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    [1, 2].into_iter().for_each(|task| assert!(tasks.insert(run(task, &[None, None]))));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((1, vec![0, 1])));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![0, 1])));
    tasks.refuse(TaskId(2), "full");
    assert!(tasks.next(LaneId(0)).is_none());
    tasks.end_sent(LaneId(0));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![])));
    let ends = tasks.remove(TaskId(2)).unwrap().ends(&[]);
    assert!(ends.iter().all(|end| matches!(end, MemberEnd::Failed(cause) if cause == "full")), "{ends:?}");
}

#[test]
fn a_frontend_that_was_waited_for_in_vain_is_left_out_until_it_answers() {
    let within = Duration::from_millis(500);
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    tasks.insert(run(1, &[Some(1), Some(2)]));
    let [late, other] = [0, 1].map(|member| tasks.add_pull(TaskId(1), member).unwrap());
    tasks.take_pull(other).unwrap();
    tasks.set_inputs(TaskId(1), 1, here());
    assert!(tasks.give_up_inputs(Instant::now(), within).is_empty());
    assert_eq!(tasks.give_up_inputs(Instant::now() + within, within), BTreeSet::from([1]));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((1, vec![1])), "it runs without the late one");
    tasks.insert(run(2, &[Some(1), Some(2)]));
    assert!(tasks.add_pull(TaskId(2), 0).is_none() && tasks.add_pull(TaskId(2), 1).is_some());
    assert!(tasks.take_pull(late).is_none(), "its rows are of no use");
    tasks.insert(run(3, &[Some(1)]));
    assert!(tasks.add_pull(TaskId(3), 0).is_some(), "it has answered");
    tasks.give_up_inputs(Instant::now() + within, within);
    tasks.on_frontend_lost(1);
    tasks.insert(run(4, &[Some(1)]));
    assert!(tasks.add_pull(TaskId(4), 0).is_some(), "a new connection may be better");
}

/// Returns a task of a request of each of these frontends, each with this time left.
fn run_within(task: u32, frontends: &[u32], left: Duration) -> RunTask {
    let frontends: Vec<_> = frontends.iter().copied().map(Some).collect();
    let mut run = run(task, &frontends);
    let left_ns = u64::try_from(left.as_nanos()).ok();
    run.members.iter_mut().for_each(|member| member.left_ns = left_ns);
    run
}

#[test]
fn a_task_waits_for_rows_until_the_deadline_and_for_none_that_would_come_later() {
    let (left, tight) = (Duration::from_secs(3_600), Duration::from_nanos(1));
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    tasks.insert(run_within(1, &[1, 2], left));
    let [late, other] = [0, 1].map(|member| tasks.add_pull(TaskId(1), member).unwrap());
    tasks.take_pull(other).unwrap();
    tasks.set_inputs(TaskId(1), 1, here());
    assert!(!tasks.exclude_overdue(Instant::now()) && tasks.next(LaneId(0)).is_none());
    assert!(tasks.exclude_overdue(Instant::now() + left));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((1, vec![1])), "it runs without the late one");
    let ends = tasks.remove(TaskId(1)).unwrap().ends(&[MemberProgress::ended(Vec::new())]);
    assert_eq!(ends, [MemberEnd::Late(u16::MAX), MemberEnd::Ended]);
    tasks.end_sent(LaneId(0));

    tasks.insert(run_within(2, &[1, 2], left * 2));
    assert!(tasks.add_pull(TaskId(2), 0).is_none(), "the late one is still measured");
    let other = tasks.add_pull(TaskId(2), 1).unwrap();
    tasks.take_pull(other).unwrap();
    tasks.set_inputs(TaskId(2), 1, here());
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![1])));
    assert!(tasks.take_pull(late).is_none(), "its rows are of no use");
    tasks.insert(run_within(3, &[1], left));
    let timely = tasks.add_pull(TaskId(3), 0).unwrap();
    assert_eq!(tasks.take_pull(timely), Some((TaskId(3), 0)), "they come in time");
    tasks.set_inputs(TaskId(3), 0, here());
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((3, vec![0])));

    // Every pull takes longer than a nanosecond.
    assert!((4..6).all(|task| tasks.insert(run_within(task, &[1], tight))));
    let probe = tasks.add_pull(TaskId(4), 0).unwrap();
    assert!(tasks.add_pull(TaskId(5), 0).is_none(), "one at a time measures");
    (0..2).for_each(|_| tasks.end_sent(LaneId(0)));
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((4, vec![])), "it is not waited for");
    assert!(tasks.take_pull(probe).is_none());
    tasks.insert(RunTask { model: ModelId(1), ..run_within(6, &[1], tight) });
    let of_another_model = tasks.add_pull(TaskId(6), 0).unwrap();
    assert_eq!(tasks.take_pull(of_another_model), Some((TaskId(6), 0)));
    tasks.insert(run(7, &[Some(1)]));
    let patient = tasks.add_pull(TaskId(7), 0).unwrap();
    assert_eq!(tasks.take_pull(patient), Some((TaskId(7), 0)), "it has no deadline");
    tasks.insert(run_within(9, &[1], tight));
    let known = tasks.row_times[&(1, ModelId(0))];
    let at = known.at.checked_sub(ROW_TIME_VALID).unwrap();
    tasks.row_times.insert((1, ModelId(0)), RowTime { at, ..known });
    let later = tasks.add_pull(TaskId(9), 0).unwrap();
    assert_eq!(tasks.take_pull(later), Some((TaskId(9), 0)), "the last time was long ago");
    tasks.on_frontend_lost(1);
    tasks.insert(run_within(8, &[1], tight));
    let anew = tasks.add_pull(TaskId(8), 0).unwrap();
    assert_eq!(tasks.take_pull(anew), Some((TaskId(8), 0)), "a new connection may be better");
}

#[test]
fn a_member_whose_state_is_lost_is_no_failure_of_its_own() {
    let failed = MemberProgress::failed(ExecError("gone".to_owned()));
    assert!(matches!(member_end(&failed), MemberEnd::Failed(_)));
    let lost = Some(Loss { retry_after: Duration::from_millis(100), inside: true });
    assert!(matches!(member_end(&MemberProgress { lost, ..failed }), MemberEnd::Lost(_)));
}

#[test]
fn what_is_withdrawn_before_it_began_is_gone_with_its_pulls() {
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    tasks.insert(run(1, &[Some(1)]));
    tasks.insert(run(2, &[None]));
    let tag = tasks.add_pull(TaskId(1), 0).unwrap();
    assert!(tasks.withdraw(TaskId(1)).is_some() && tasks.take_pull(tag).is_none());
    assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![0])));
    assert!(tasks.withdraw(TaskId(2)).is_none(), "it has begun");
}

#[test]
fn later_tasks_of_a_walk_know_where_their_requests_come_from() {
    let mut tasks = SessionTasks::new(1, 0, Arc::default());
    tasks.insert(run(1, &[Some(5)]));
    tasks.insert(run(2, &[None, None]));
    let origin = |member| tasks.get(TaskId(2)).unwrap().origin(member).map(|(origin, _)| origin.frontend);
    assert_eq!((origin(0), origin(1)), (Some(5), None));
}

#[test]
fn walks_of_later_schedulers_have_greater_numbers() {
    let walk = |tasks: &SessionTasks, task| tasks.get(TaskId(task)).unwrap().run.members[0].walk;
    let numbered = |task, walk| {
        let mut run = run(task, &[Some(5)]);
        run.members[0].walk = walk;
        run
    };
    let mut first = SessionTasks::new(1, 0, Arc::default());
    [numbered(1, 900), numbered(2, 900), numbered(3, 901)].into_iter().for_each(|run| assert!(first.insert(run)));
    assert_eq!(walk(&first, 1), walk(&first, 2), "one walk");
    assert!(walk(&first, 2) < walk(&first, 3), "it was started over");
    let slot = |tasks: &SessionTasks| tasks.get(TaskId(1)).unwrap().run.members[0].slot;
    let mut second = SessionTasks::new(1, 0, Arc::clone(&first.pool));
    second.insert(numbered(1, 1));
    assert!(walk(&first, 3) < walk(&second, 1), "another scheduler begins to count");
    assert!(slot(&first) != slot(&second), "the first one's request may still run");
    let (pool, left) = (Arc::clone(&first.pool), slot(&first));
    drop(first);
    let mut third = SessionTasks::new(1, 0, pool);
    third.insert(numbered(1, 1));
    assert_eq!(slot(&third), left, "slots of an ended session are free");
}
