//! The table of tasks in flight and their members.

use crate::{Action, Limits, Outcome, TaskDone};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model, Onward, Position, StepReport};

/// No block: the walk has ended.
const OVER: BlockId = BlockId(u16::MAX);

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The model.
    pub model: ModelId,
    /// The block that runs.
    pub block: BlockId,
    /// The device.
    pub device: DeviceId,
    /// The lane of the device.
    pub lane: LaneId,
    /// Padded length of the members.
    pub length: u32,
    /// Number of members that run the block.
    members: u32,
    /// Number of members that have skipped the block and wait for a later one.
    resting: u32,
    /// True if the members have nodes.
    unfolds: bool,
}

/// All tasks in flight, with capacity for as many as the devices hold. The members of a task are
/// one slice with a fixed stride; resting members follow the running ones.
#[derive(Debug)]
pub struct Tasks {
    /// Length of a task's part of `members`.
    stride: usize,
    /// Tasks by id; `None` for a free id.
    table: Vec<Option<Task>>,
    /// Free ids, if any device may have any of them.
    free: Vec<TaskId>,
    /// Number of ids of each device, if devices have their own.
    a_device: Option<usize>,
    /// Members of all tasks, each task's at a fixed offset.
    members: Vec<RequestSlot>,
    /// The node that each member runs, at the front of its task's part; unused where all run their
    /// first step.
    nodes: Vec<u32>,
    /// The block that each member continues with; [`OVER`] if its walk has ended.
    next: Vec<BlockId>,
    /// Tasks reported done since the last settle.
    done: Vec<(TaskId, Outcome)>,
}

impl Tasks {
    /// Creates a table without tasks.
    pub fn new(limits: &Limits) -> Tasks {
        let tasks = limits.tasks();
        Tasks {
            stride: limits.batch,
            table: vec![None; tasks],
            free: (0..tasks as u32).rev().map(TaskId).collect(),
            a_device: None,
            members: vec![RequestSlot(0); tasks * limits.batch],
            nodes: vec![0; tasks * limits.batch],
            next: vec![OVER; tasks * limits.batch],
            done: Vec::with_capacity(tasks),
        }
    }

    /// Creates a table without tasks in which each device has its own ids, `a_device` of them. A
    /// task takes the device's first free one.
    pub fn by_device(limits: &Limits, a_device: usize) -> Tasks {
        Tasks { free: Vec::new(), a_device: Some(a_device), ..Tasks::new(limits) }
    }

    /// Opens a task without members.
    pub fn open(&mut self, model: ModelId, block: BlockId, device: DeviceId, lane: LaneId) -> TaskId {
        let of_device = |ids: usize| (device.index() * ids..(device.index() + 1) * ids).map(|id| TaskId(id as u32));
        let free = match self.a_device {
            None => self.free.pop(),
            Some(ids) => of_device(ids).find(|id| self.table[id.index()].is_none()),
        };
        let id = free.expect("no more tasks than the devices hold");
        self.table[id.index()] =
            Some(Task { model, block, device, lane, length: 1, members: 0, resting: 0, unfolds: false });
        id
    }

    /// Returns the start of a task.
    pub fn start(&self, id: TaskId, not_before: Time) -> Action {
        let Task { model, block, device, lane, length, .. } = self.get(id);
        Action::Start { task: id, model, block, device, lane, length, not_before }
    }

    /// Adds a member of this length: its own before the first block, its padded one later.
    pub fn push(&mut self, id: TaskId, member: RequestSlot, length: u32) {
        let start = id.index() * self.stride;
        let task = self.table[id.index()].as_mut().expect("the task is open");
        self.members[start + task.members as usize] = member;
        task.members += 1;
        task.length = task.length.max(length);
    }

    /// Adds a member of a walk that unfolds, which runs this node.
    pub fn push_node(&mut self, id: TaskId, member: RequestSlot, node: u32) {
        self.push(id, member, 1);
        let task = self.table[id.index()].as_mut().expect("the task is open");
        task.unfolds = true;
        self.nodes[id.index() * self.stride + task.members as usize - 1] = node;
    }

    /// Returns a task, which must be open.
    pub fn get(&self, id: TaskId) -> Task {
        self.table[id.index()].unwrap_or_else(|| panic!("{id:?} is not in flight"))
    }

    /// Returns the node that each member runs; empty if each runs its first.
    pub fn nodes(&self, id: TaskId) -> &[u32] {
        let len = self.table[id.index()].filter(|task| task.unfolds).map_or(0, |task| task.members as usize);
        &self.nodes[id.index() * self.stride..][..len]
    }

    /// Returns the members of a task, in batch order.
    pub fn members(&self, id: TaskId) -> &[RequestSlot] {
        let len = self.table[id.index()].map_or(0, |task| task.members as usize);
        &self.members[id.index() * self.stride..][..len]
    }

    /// Records a task of this model that the driver reported done; the next settle completes it.
    pub fn report(&mut self, done: &TaskDone<'_>, model: &Model) {
        let members = self.members(done.task).len();
        assert!(members > 0, "the driver reported a task that is not in flight: {done:?}");
        let complete = |reported: usize| reported == 0 || reported == members;
        assert!(complete(done.ended.len()) && complete(done.skips.len()), "one entry a member: {done:?}");
        let at = Position::before(self.get(done.task).block);
        let next = |report| match model.advance(at, Extent::ONE, report) {
            Onward::Block(next) => next,
            Onward::Step | Onward::End => OVER,
        };
        let places = &mut self.next[done.task.index() * self.stride..][..members];
        places.fill(next(StepReport::default()));
        if !done.ended.is_empty() || !done.skips.is_empty() {
            places.iter_mut().enumerate().for_each(|(member, place)| *place = next(done.report_of(member)));
        }
        debug_assert!(places.iter().all(|next| *next > at.block), "a member went back: {done:?}");
        self.done.push((done.task, done.outcome));
    }

    /// Returns the next reported task, in the order of the reports.
    pub fn take_done(&mut self, at: usize) -> Option<(TaskId, Outcome)> {
        let next = self.done.get(at).copied();
        if next.is_none() {
            self.done.clear();
        }
        next
    }

    /// Advances to the next block that a member continues with; passes members whose walk is over
    /// to `gone`. Returns the number of members that run that block.
    pub fn advance(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |next, _| next != OVER, gone)
    }

    /// Removes the members that ran a failed block and advances the ones that skipped it; returns
    /// the number that run their block.
    pub fn fail(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |_, rests| rests, gone)
    }

    /// Removes all members.
    pub fn drain(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |_, _| false, gone)
    }

    /// Keeps members by their next block and by whether they rested, and moves those with the
    /// earliest block to the front.
    fn regroup(
        &mut self,
        id: TaskId,
        keep: impl Fn(BlockId, bool) -> bool,
        mut gone: impl FnMut(RequestSlot),
    ) -> usize {
        let task = self.table[id.index()].as_mut().expect("the task is open");
        let (ran, all) = (task.members as usize, (task.members + task.resting) as usize);
        let start = id.index() * self.stride;
        let (members, next) = (&mut self.members[start..][..all], &mut self.next[start..][..all]);
        let mut kept = 0;
        for at in 0..all {
            if keep(next[at], at >= ran) {
                (members[kept], next[kept]) = (members[at], next[at]);
                kept += 1;
            } else {
                gone(members[at]);
            }
        }
        task.block = next[..kept].iter().copied().min().unwrap_or(OVER);
        let mut front = 0;
        for at in 0..kept {
            if next[at] == task.block {
                members[front..=at].rotate_right(1);
                next[front..=at].rotate_right(1);
                front += 1;
            }
        }
        (task.members, task.resting) = (front as u32, (kept - front) as u32);
        front
    }

    /// Closes a task; its id may be used again.
    pub fn close(&mut self, id: TaskId) {
        self.table[id.index()] = None;
        if self.a_device.is_none() {
            self.free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::Nanos;
    use ripieno_model::{Block, Profile};

    const LIMITS: Limits = Limits { requests: 8, batch: 8, ..Limits::ONE };

    /// A chain of four blocks.
    fn chain() -> Model {
        let profile = Profile::linear(1.0, 1.0, 8).unwrap();
        let blocks = ["a", "b", "c", "d"].map(|name| Block::new(name, profile.clone())).into();
        Model { blocks, ..Model::whole("m", profile, Nanos::from_millis(9)) }
    }

    /// Ends the block of a task; returns the next block, the members that run it, and those that
    /// left.
    fn end(
        tasks: &mut Tasks,
        id: TaskId,
        outcome: Outcome,
        ended: &[bool],
        skips: &[u16],
    ) -> (u16, Vec<u32>, Vec<u32>) {
        let skips: Vec<_> = skips.iter().map(|&block| BlockId(block)).collect();
        tasks.report(&TaskDone { task: id, outcome, ended, skips: &skips }, &chain());
        assert_eq!((tasks.take_done(0), tasks.take_done(1)), (Some((id, outcome)), None));
        let mut gone = Vec::new();
        let going_on = match outcome {
            Outcome::Ok => tasks.advance(id, |slot| gone.push(slot.0)),
            _ => tasks.fail(id, |slot| gone.push(slot.0)),
        };
        let members: Vec<_> = tasks.members(id).iter().map(|slot| slot.0).collect();
        assert_eq!(members.len(), going_on);
        (tasks.get(id).block.0, members, gone)
    }

    fn task_of_four() -> (Tasks, TaskId) {
        let mut tasks = Tasks::new(&LIMITS);
        let id = tasks.open(ModelId(0), BlockId(0), DeviceId(0), LaneId(0));
        (0..4).for_each(|slot| tasks.push(id, RequestSlot(slot), 1 + slot));
        (tasks, id)
    }

    #[test]
    fn a_member_that_skips_blocks_rests_until_the_batch_is_there() {
        let (mut tasks, id) = task_of_four();
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[], &[1, 3, 1, 2]), (1, vec![0, 2], vec![]));
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[true, false], &[]), (2, vec![2, 3], vec![0]));
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[], &[]), (3, vec![2, 3, 1], vec![]));
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[], &[]).2, [2, 3, 1]);
    }

    #[test]
    fn a_batch_stays_as_it_was_padded() {
        let (mut tasks, id) = task_of_four();
        let padded = |tasks: &Tasks| matches!(tasks.start(id, Time::ORIGIN), Action::Start { length: 4, .. });
        assert!(padded(&tasks));
        // The longest leaves.
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[false, false, false, true], &[]).2, [3]);
        assert!(padded(&tasks));
        tasks.push_node(id, RequestSlot(5), 7);
        assert!(padded(&tasks), "a step is no length");
    }

    #[test]
    fn a_failure_ends_the_members_that_ran_the_block() {
        let (mut tasks, id) = task_of_four();
        assert_eq!(end(&mut tasks, id, Outcome::Ok, &[], &[3, 1, 1, 3]), (1, vec![1, 2], vec![]));
        assert_eq!(end(&mut tasks, id, Outcome::Failed, &[], &[]), (3, vec![0, 3], vec![1, 2]));
        let mut gone = Vec::new();
        assert_eq!(tasks.drain(id, |slot| gone.push(slot.0)), 0);
        assert_eq!(gone, [0, 3]);
    }
}
