//! The tasks of a session until they are over: those that wait for rows, and those that run.
//!
//! A lane's tasks begin in the order in which they came, each once the rows of all its members are there, or are known
//! not to come. Whose rows do not come, or are not what the model takes, is left out of the batch.

use crate::plane::{MemberEnd, Run};
use ripieno_base::{LaneId, RequestSlot, TaskId};
use ripieno_executor::{Entry, Member, Origin, Progress, Task};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All of them.
#[derive(Default)]
pub(super) struct Tasks {
    held: HashMap<TaskId, Held>,
    /// Those of each lane that have not begun, in order.
    waiting: Vec<VecDeque<TaskId>>,
    /// Numbers of pulls.
    tags: u64,
    /// Which member a pull is for.
    pulls: HashMap<u64, (TaskId, usize)>,
    /// Where the request of a slot comes from: of a chain, only the first task says so.
    origins: HashMap<RequestSlot, Origin>,
}

/// A task, and what has become of its members.
pub(super) struct Held {
    pub(super) run: Run,
    came: Instant,
    members: Vec<Inputs>,
    /// Of each member.
    origins: Vec<Option<Origin>>,
    /// Members whose rows have not come.
    missing: usize,
}

/// What is known of a member's inputs.
pub(super) enum Inputs {
    /// The device has the request.
    Held,
    /// They are on their way.
    Missing,
    /// They are here.
    Here(Arc<Entry>),
    /// The request ends without a run.
    Out(MemberEnd),
}

/// What is to be done with a task whose turn has come.
pub(super) enum Ready {
    Submit(Task),
    /// Nobody is left in it.
    Over(TaskId),
}

impl Tasks {
    /// None yet, on no lane. Pulls get numbers above this one.
    pub(super) fn new(lanes: usize, tags: u64) -> Tasks {
        let mut tasks = Tasks { tags, ..Tasks::default() };
        tasks.open(lanes);
        tasks
    }

    /// There are so many lanes.
    pub(super) fn open(&mut self, lanes: usize) {
        self.waiting.resize_with(lanes, VecDeque::new);
    }

    /// Takes a task in; false if it cannot be one of this device.
    pub(super) fn take(&mut self, run: Run) -> bool {
        let Some(lane) = self.waiting.get_mut(run.lane.index()) else { return false };
        if self.held.contains_key(&run.task) {
            return false;
        }
        lane.push_back(run.task);
        let brings = |origin: bool| if origin { Inputs::Missing } else { Inputs::Held };
        let members: Vec<Inputs> = run.members.iter().map(|member| brings(member.origin.is_some())).collect();
        let missing = members.iter().filter(|inputs| matches!(inputs, Inputs::Missing)).count();
        self.origins.extend(run.members.iter().filter_map(|member| Some((member.slot, member.origin?))));
        let origins = run.members.iter().map(|member| self.origins.get(&member.slot).copied()).collect();
        self.held.insert(run.task, Held { run, came: Instant::now(), members, origins, missing });
        true
    }

    /// A number for the pull of a member's rows.
    pub(super) fn tag(&mut self, task: TaskId, member: usize) -> u64 {
        self.tags += 1;
        self.pulls.insert(self.tags, (task, member));
        self.tags
    }

    /// Which member rows are for.
    pub(super) fn pulled(&mut self, tag: u64) -> Option<(TaskId, usize)> {
        self.pulls.remove(&tag)
    }

    /// All tasks, those that wait and those that run.
    pub(super) fn all(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// Takes out all that has not begun.
    pub(super) fn drop_waiting(&mut self) {
        let waiting: Vec<TaskId> = self.waiting.iter_mut().flat_map(|lane| lane.drain(..)).collect();
        waiting.into_iter().for_each(|task| drop(self.end(task)));
    }

    pub(super) fn get(&self, task: TaskId) -> Option<&Held> {
        self.held.get(&task)
    }

    /// What became of the rows of a member.
    pub(super) fn settle(&mut self, task: TaskId, member: usize, inputs: Inputs) {
        let Some(held) = self.held.get_mut(&task) else { return };
        if matches!(held.members.get(member), Some(Inputs::Missing)) {
            held.members[member] = inputs;
            held.missing -= 1;
        }
    }

    /// The rows of a front end do not come any more. Whose pulls those are.
    pub(super) fn lose(&mut self, frontend: u32) {
        let (held, mut lost) = (&self.held, Vec::new());
        self.pulls.retain(|_, &mut (task, member)| {
            let origin = held.get(&task).and_then(|held| held.run.members[member].origin);
            let is_lost = origin.is_none_or(|origin| origin.frontend == frontend);
            if is_lost {
                lost.push((task, member));
            }
            !is_lost
        });
        lost.into_iter().for_each(|(task, member)| self.settle(task, member, Inputs::lost()));
    }

    /// The next task of a lane, if it may begin.
    pub(super) fn next(&mut self, lane: LaneId) -> Option<Ready> {
        let waiting = self.waiting.get_mut(lane.index())?;
        let held = waiting.front().and_then(|task| self.held.get(task)).filter(|held| held.missing == 0)?;
        waiting.pop_front();
        Some(held.ready())
    }

    /// How many lanes there are.
    pub(super) fn lanes(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a task out that has not begun.
    pub(super) fn withdraw(&mut self, task: TaskId) -> Option<Held> {
        let lane = self.held.get(&task)?.run.lane;
        let waiting = &mut self.waiting[lane.index()];
        let at = waiting.iter().position(|&other| other == task)?;
        waiting.remove(at);
        self.end(task)
    }

    /// Takes a task out that is over.
    pub(super) fn end(&mut self, task: TaskId) -> Option<Held> {
        let held = self.held.remove(&task)?;
        if held.missing > 0 {
            self.pulls.retain(|_, &mut (other, _)| other != task);
        }
        Some(held)
    }
}

impl Inputs {
    pub(super) fn lost() -> Inputs {
        Inputs::Out(MemberEnd::Lost("its inputs could not be had of its frontend".to_owned()))
    }
}

impl Held {
    /// Where a member comes from, and its rows.
    pub(super) fn origin(&self, member: usize) -> Option<(Origin, u32)> {
        Some(((*self.origins.get(member)?)?, self.run.members[member].rows))
    }

    /// The members that run, by their places in the task.
    pub(super) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        let runs = |inputs: &Inputs| matches!(inputs, Inputs::Held | Inputs::Here(_));
        self.members.iter().enumerate().filter(move |(_, inputs)| runs(inputs)).map(|(at, _)| at)
    }

    fn ready(&self) -> Ready {
        let Held { run, came, members, .. } = self;
        let until = |left: u64| came.checked_add(Duration::from_nanos(left));
        let member = |at: usize| {
            let told = &run.members[at];
            let entry = match &members[at] {
                Inputs::Here(entry) => Some(Arc::clone(entry)),
                _ => None,
            };
            let until = told.left_ns.and_then(until);
            Member { walk: told.walk, until, ..Member::new(told.slot, told.rows as usize, entry) }
        };
        let members: Vec<Member> = self.running().map(member).collect();
        if members.is_empty() {
            return Ready::Over(run.task);
        }
        let not_before = until(run.wait_ns).filter(|_| run.wait_ns > 0);
        let Run { task: id, model, block, lane, length, .. } = *run;
        Ready::Submit(Task { id, model, block, lane, length, members, not_before })
    }

    /// How each member ended: those that ran by what the device did, the others as they were left out.
    pub(super) fn ends(&self, progress: &[Progress]) -> Vec<MemberEnd> {
        let mut ran = progress.iter();
        let end = |inputs: &Inputs| match inputs {
            Inputs::Out(end) => end.clone(),
            _ => ran.next().map_or_else(|| MemberEnd::Failed("it did not run".to_owned()), member_end),
        };
        self.members.iter().map(end).collect()
    }
}

fn member_end(progress: &Progress) -> MemberEnd {
    match progress {
        Progress { failed: Some(cause), .. } => MemberEnd::Failed(cause.to_string()),
        Progress { ended: true, .. } => MemberEnd::Ended,
        Progress { skip, .. } => MemberEnd::GoesOn(*skip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::RunMember;
    use ripieno_base::{BlockId, ModelId, RequestSlot};
    use ripieno_executor::{ExecError, Origin};

    fn run(task: u32, frontends: &[Option<u32>]) -> Run {
        let member = |(slot, &frontend): (u32, &Option<u32>)| RunMember {
            slot: RequestSlot(slot),
            rows: 1,
            length: 1,
            walk: 1,
            left_ns: None,
            origin: frontend.map(|frontend| Origin { frontend, request: u64::from(slot), first_row: 0 }),
        };
        let (model, block, lane) = (ModelId(0), BlockId(0), LaneId(0));
        let members = (0..).zip(frontends).map(member).collect();
        Run { task: TaskId(task), model, block, lane, length: 1, wait_ns: 0, members }
    }

    fn here() -> Inputs {
        Inputs::Here(Arc::new(Entry::of(Arc::new([]))))
    }

    fn submitted(ready: Option<Ready>) -> Option<(u32, Vec<u32>)> {
        match ready? {
            Ready::Submit(task) => Some((task.id.0, task.members.iter().map(|member| member.slot.0).collect())),
            Ready::Over(task) => Some((task.0, Vec::new())),
        }
    }

    #[test]
    fn tasks_of_a_lane_begin_in_order_once_their_rows_are_there() {
        let mut tasks = Tasks::new(1, 0);
        assert!(tasks.take(run(7, &[Some(1), None])) && tasks.take(run(8, &[Some(1)])));
        assert!(!tasks.take(run(7, &[None])), "the same task twice");
        assert!(!tasks.take(Run { lane: LaneId(1), ..run(9, &[None]) }), "a lane that is not there");
        let (first, second) = (tasks.tag(TaskId(7), 0), tasks.tag(TaskId(8), 0));
        assert_eq!(tasks.pulled(second), Some((TaskId(8), 0)));
        tasks.settle(TaskId(8), 0, here());
        assert!(tasks.next(LaneId(0)).is_none(), "the one before it waits for rows");
        assert_eq!(tasks.pulled(first), Some((TaskId(7), 0)));
        tasks.settle(TaskId(7), 0, here());
        assert_eq!(submitted(tasks.next(LaneId(0))), Some((7, vec![0, 1])));
        assert_eq!(submitted(tasks.next(LaneId(0))), Some((8, vec![0])));
        assert!(tasks.next(LaneId(0)).is_none() && tasks.pulled(first).is_none());
    }

    #[test]
    fn whose_rows_do_not_come_is_left_out_and_told_apart_from_those_that_ran() {
        let mut tasks = Tasks::new(1, 0);
        tasks.take(run(1, &[Some(1), Some(2), Some(1)]));
        let tags = [0, 1, 2].map(|member| tasks.tag(TaskId(1), member));
        tasks.lose(1);
        assert!(tasks.next(LaneId(0)).is_none() && tasks.pulled(tags[0]).is_none());
        assert!(tasks.pulled(tags[1]).is_some());
        tasks.settle(TaskId(1), 1, here());
        assert_eq!(submitted(tasks.next(LaneId(0))), Some((1, vec![1])));
        let held = tasks.end(TaskId(1)).unwrap();
        let ends = held.ends(&[Progress::failed(ExecError("no".to_owned()))]);
        assert!(matches!(&ends[..], [MemberEnd::Lost(_), MemberEnd::Failed(_), MemberEnd::Lost(_)]), "{ends:?}");
        tasks.take(run(2, &[Some(3)]));
        tasks.settle(TaskId(2), 0, Inputs::lost());
        assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![])), "nobody is left");
    }

    #[test]
    fn what_is_withdrawn_before_it_began_is_gone_with_its_pulls() {
        let mut tasks = Tasks::new(1, 0);
        tasks.take(run(1, &[Some(1)]));
        tasks.take(run(2, &[None]));
        let tag = tasks.tag(TaskId(1), 0);
        assert!(tasks.withdraw(TaskId(1)).is_some() && tasks.pulled(tag).is_none());
        assert_eq!(submitted(tasks.next(LaneId(0))), Some((2, vec![0])));
        assert!(tasks.withdraw(TaskId(2)).is_none(), "it has begun");
    }

    #[test]
    fn later_blocks_of_a_chain_know_where_their_requests_come_from() {
        let mut tasks = Tasks::new(1, 0);
        tasks.take(run(1, &[Some(5)]));
        tasks.take(run(2, &[None, None]));
        let origin = |member| tasks.get(TaskId(2)).unwrap().origin(member).map(|(origin, _)| origin.frontend);
        assert_eq!((origin(0), origin(1)), (Some(5), None));
    }
}
