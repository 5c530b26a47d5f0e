//! Tasks of whole batches, which keep their device through all blocks of a chain.
//!
//! A member that skips blocks *rests* until the batch is at the block that it continues with. No
//! policy built on this changes a batch once it has started.

use ripieno_base::{BlockId, RequestSlot, TaskId};
use ripieno_model::{Extent, Model, Onward, Position, StepReport};
use ripieno_sched::tables::tasks::Tasks;
use ripieno_sched::{Limits, Outcome, TaskDone};
use std::ops::{Deref, DerefMut};

/// No block: the walk has ended.
const OVER: BlockId = BlockId(u16::MAX);

/// The tasks in flight, and the resting members of each.
#[derive(Debug)]
pub(crate) struct ChainTasks {
    /// The tasks, with the members that run the block.
    tasks: Tasks,
    /// Members that rest, by task, with the block that each continues with.
    resting: Vec<Vec<(RequestSlot, BlockId)>>,
    /// The block that each member of a reported task continues with; [`OVER`] if its walk has
    /// ended. Each task has a part of the same length.
    next: Vec<BlockId>,
    /// Length of a task's part of `next`.
    stride: usize,
    /// Tasks reported done since the last settle.
    done: Vec<(TaskId, Outcome)>,
    /// Scratch: the members that stay in a task.
    kept: Vec<(RequestSlot, BlockId)>,
}

impl Deref for ChainTasks {
    type Target = Tasks;

    fn deref(&self) -> &Tasks {
        &self.tasks
    }
}

impl DerefMut for ChainTasks {
    fn deref_mut(&mut self) -> &mut Tasks {
        &mut self.tasks
    }
}

impl ChainTasks {
    /// Creates a table without tasks.
    pub(crate) fn new(limits: &Limits) -> ChainTasks {
        let tasks = limits.tasks();
        ChainTasks {
            tasks: Tasks::new(limits),
            resting: (0..tasks).map(|_| Vec::with_capacity(limits.batch)).collect(),
            next: vec![OVER; tasks * limits.batch],
            stride: limits.batch,
            done: Vec::with_capacity(tasks),
            kept: Vec::with_capacity(limits.batch),
        }
    }

    /// Records a task of this model that the driver reported done; the next settle completes it.
    pub(crate) fn report(&mut self, done: &TaskDone<'_>, model: &Model) {
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
    pub(crate) fn take_done(&mut self, at: usize) -> Option<(TaskId, Outcome)> {
        let next = self.done.get(at).copied();
        if next.is_none() {
            self.done.clear();
        }
        next
    }

    /// Advances to the next block that a member continues with; passes members whose walk is over
    /// to `gone`. Returns the number of members that run that block.
    pub(crate) fn advance(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |next, _| next != OVER, gone)
    }

    /// Removes the members that ran a failed block and advances the ones that skipped it; returns
    /// the number that run their block.
    pub(crate) fn fail(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |_, rests| rests, gone)
    }

    /// Removes all members.
    pub(crate) fn drain(&mut self, id: TaskId, gone: impl FnMut(RequestSlot)) -> usize {
        self.regroup(id, |_, _| false, gone)
    }

    /// Keeps members by their next block and by whether they rested; those with the earliest block
    /// run, the others rest.
    fn regroup(
        &mut self,
        id: TaskId,
        keep: impl Fn(BlockId, bool) -> bool,
        mut gone: impl FnMut(RequestSlot),
    ) -> usize {
        let ChainTasks { tasks, resting, next, stride, kept, .. } = self;
        let ran = tasks.members(id).iter().copied().zip(next[id.index() * *stride..].iter().copied());
        let all = ran.map(|member| (member, false)).chain(resting[id.index()].drain(..).map(|member| (member, true)));
        kept.clear();
        for ((slot, next), rested) in all {
            if keep(next, rested) { kept.push((slot, next)) } else { gone(slot) }
        }
        let block = kept.iter().map(|&(_, next)| next).min().unwrap_or(OVER);
        tasks.restart(id, block);
        for &(slot, next) in &*kept {
            if next == block { tasks.push(id, slot, 1) } else { resting[id.index()].push((slot, next)) }
        }
        tasks.members(id).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, Time};
    use ripieno_model::{Block, Profile};
    use ripieno_sched::Action;

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
        tasks: &mut ChainTasks,
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

    fn task_of_four() -> (ChainTasks, TaskId) {
        let mut tasks = ChainTasks::new(&LIMITS);
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
        let padded = |tasks: &ChainTasks| matches!(tasks.start(id, Time::ORIGIN), Action::Start { length: 4, .. });
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
