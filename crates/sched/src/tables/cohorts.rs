//! Cohorts: requests of one model that run together, with operations to open, merge, split and
//! advance them.
//!
//! A cohort is before one block, or runs it. A member that has finished the block, or skips it,
//! *rests* until the cohort is at the block that this member continues with. Once all members rest,
//! the cohort advances to the first block that any of them continues with. Two cohorts before the
//! same block can merge, whatever steps their members are at, and any cohort can be split.
//!
//! This module is the mechanism. Policies decide which requests open a cohort, which one runs next,
//! and when cohorts merge or split. Newcomers that catch up with a batch are a cohort of their own
//! until both are before the same block. Meanwhile the policy pauses the earlier cohort. Each
//! policy keeps its own data per cohort, as `T`.
//!
//! It is public, so that a user's own policy can use the same operations:
//! `crates/sim/examples/meta_operations.rs`.

use super::tasks::Tasks;
use crate::{Outcome, Request, TaskDone};
use ripieno_base::{BlockId, DeviceId, LaneId, Links, List, ModelId, RequestSlot, TaskId};
use ripieno_model::{Extent, Model, Onward, Position};

/// No block: the walk is over.
const OVER: BlockId = BlockId(u16::MAX);

/// Index of a cohort in the table. Reused once the cohort has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CohortId(u32);

/// Requests that run together.
#[derive(Clone, Copy, Debug)]
pub struct Cohort<T> {
    /// The model of all members.
    pub model: ModelId,
    /// The block that it runs or is before.
    pub block: BlockId,
    /// Rows of all members.
    pub rows: usize,
    /// Padded length of the members: the longest among those it had when it began.
    pub length: u32,
    /// True if the cohort's block is running.
    pub runs: bool,
    /// Data of the policy.
    pub own: T,
    /// Slots of the members, in order.
    members: List,
}

impl<T> Cohort<T> {
    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if the cohort has no members yet.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Progress of a request.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Cohort of the request; `None` if the request is in none.
    cohort: Option<CohortId>,
    /// Rows of the request.
    rows: usize,
    /// Length and number of steps of the request.
    extent: Extent,
    /// Steps of the current block that the request has run.
    step: u32,
    /// The block that the request runs or continues with: a later one while it rests.
    next: BlockId,
}

/// All cohorts of a scheduler, and their members by slot.
#[derive(Debug)]
pub struct Cohorts<T> {
    /// Cohorts by id; `None` for a free id.
    table: Vec<Option<Cohort<T>>>,
    /// Free ids.
    free: Vec<CohortId>,
    /// Progress of each request, by slot.
    members: Vec<Member>,
    /// Links of the lists of members.
    links: Links,
}

impl<T> Cohorts<T> {
    /// Creates a table for `requests` live requests; it never allocates again.
    pub fn new(requests: usize) -> Cohorts<T> {
        let member = Member { cohort: None, rows: 0, extent: Extent::ONE, step: 0, next: OVER };
        // Each cohort has a member, except one that is being filled or emptied.
        let count = requests + 1;
        Cohorts {
            table: (0..count).map(|_| None).collect(),
            free: (0..count as u32).rev().map(CohortId).collect(),
            members: vec![member; requests],
            links: Links::new(requests),
        }
    }

    /// Returns a cohort of the table.
    pub fn get(&self, id: CohortId) -> &Cohort<T> {
        self.table[id.0 as usize].as_ref().expect("the cohort is in the table")
    }

    fn get_mut(&mut self, id: CohortId) -> &mut Cohort<T> {
        self.table[id.0 as usize].as_mut().expect("the cohort is in the table")
    }

    /// Returns the policy's data of a cohort.
    pub fn own_mut(&mut self, id: CohortId) -> &mut T {
        &mut self.get_mut(id).own
    }

    /// Returns the cohort of a request.
    pub fn of(&self, slot: RequestSlot) -> Option<CohortId> {
        self.members[slot.index()].cohort
    }

    /// Returns all members, in the order in which they joined.
    pub fn members(&self, id: CohortId) -> impl Iterator<Item = RequestSlot> + Clone {
        self.get(id).members.iter(&self.links).map(RequestSlot)
    }

    /// Returns the members that do not rest, with the step that each runs next.
    pub fn active(&self, id: CohortId) -> impl Iterator<Item = (RequestSlot, u32)> + Clone {
        self.members(id).filter_map(|slot| Some((slot, self.step(slot)?)))
    }

    /// Returns the step that a member runs next; `None` while it rests.
    pub fn step(&self, slot: RequestSlot) -> Option<u32> {
        let Member { cohort, step, next, .. } = self.members[slot.index()];
        (next == self.get(cohort?).block).then_some(step)
    }

    /// *open*: creates a cohort before the first block, to which members are to be pushed.
    pub fn open(&mut self, model: ModelId, own: T) -> CohortId {
        let id = self.free.pop().expect("each cohort but one has a member");
        let (block, members) = (BlockId(0), List::default());
        self.table[id.0 as usize] = Some(Cohort { model, block, rows: 0, length: 1, runs: false, own, members });
        id
    }

    /// Adds a request to a cohort that has not begun.
    pub fn push(&mut self, id: CohortId, request: &Request) {
        let &Request { slot, rows, extent, .. } = request;
        let block = self.get(id).block;
        debug_assert!(
            block == BlockId(0) && self.of(slot).is_none(),
            "only a request that has not begun joins: {request:?}"
        );
        self.members[slot.index()] = Member { cohort: None, rows: rows as usize, extent, step: 0, next: block };
        let cohort = self.get_mut(id);
        cohort.length = cohort.length.max(extent.length);
        self.insert(id, slot);
    }

    /// *merge*: moves the members of a cohort into another one that is before the same block, after
    /// its own members.
    pub fn merge(&mut self, from: CohortId, into: CohortId) {
        let (one, other) = (self.get(from), self.get(into));
        assert_eq!((one.model, one.block, one.runs || other.runs), (other.model, other.block, false), "they meet");
        let length = one.length.max(other.length);
        self.get_mut(into).length = length;
        self.drain_into(from, |cohorts, slot| cohorts.insert(into, slot));
    }

    /// *split*: moves the members for which `go` returns true to a new cohort before the same
    /// block. `go` receives the position of a member and the block that it continues with. A cohort
    /// that is left without members ends when it advances.
    pub fn split(&mut self, id: CohortId, own: T, go: impl Fn(usize, Option<BlockId>) -> bool) -> CohortId {
        let &Cohort { model, block, length, .. } = self.get(id);
        let other = self.open(model, own);
        let parted = self.get_mut(other);
        (parted.block, parted.length) = (block, length);
        let (mut place, mut next) = (0, self.first(id));
        while let Some(slot) = next {
            next = self.after(slot);
            if go(place, self.next(slot)) {
                self.take(slot);
                self.insert(other, slot);
            }
            place += 1;
        }
        other
    }

    /// Returns the block that a member runs, or continues with after this one; `None` if its walk
    /// is over.
    pub fn next(&self, slot: RequestSlot) -> Option<BlockId> {
        Some(self.members[slot.index()].next).filter(|&next| next != OVER)
    }

    /// Begins the block of a cohort.
    pub fn begin(&mut self, id: CohortId) {
        let cohort = self.get_mut(id);
        assert!(!std::mem::replace(&mut cohort.runs, true), "a cohort runs one block at a time");
    }

    /// Begins the block as a task of the members that do not rest. With `unfolds`, the task holds
    /// their steps.
    pub fn run(
        &mut self,
        id: CohortId,
        tasks: &mut Tasks,
        (device, lane): (DeviceId, LaneId),
        unfolds: bool,
    ) -> TaskId {
        self.begin(id);
        let &Cohort { model, block, length, .. } = self.get(id);
        let task = tasks.open(model, block, device, lane);
        for (slot, step) in self.active(id) {
            match unfolds {
                true => tasks.push_node(task, slot, step),
                false => tasks.push(task, slot, length),
            }
        }
        task
    }

    /// Records the end of the block and the next position of each request in `ran`. A failure ends
    /// their walks.
    pub fn report(&mut self, id: CohortId, ran: &[RequestSlot], model: &Model, done: &TaskDone<'_>) {
        let block = self.get(id).block;
        let complete = |reported: usize| reported == 0 || reported == ran.len();
        assert!(complete(done.ended.len()) && complete(done.skips.len()), "one entry a member: {done:?}");
        for (at, slot) in ran.iter().enumerate() {
            let member = &mut self.members[slot.index()];
            let position = Position { block, step: member.step };
            let onward = match done.outcome {
                Outcome::Ok => model.advance(position, member.extent, done.report_of(at)),
                _ => Onward::End,
            };
            match onward {
                Onward::Step => member.step += 1,
                Onward::Block(next) => member.next = next,
                Onward::End => member.next = OVER,
            }
            debug_assert!(member.next >= block, "a member went back: {done:?}");
        }
    }

    /// *advance*: after [`Cohorts::report`], removes members whose walk is over and passes them to
    /// `gone`. If all remaining members rest, the cohort moves to the first block that one of them
    /// continues with. Returns false if no member is left, which closes the cohort.
    pub fn advance(&mut self, id: CohortId, mut gone: impl FnMut(RequestSlot)) -> bool {
        let cohort = self.get_mut(id);
        cohort.runs = false;
        let (block, mut wanted, mut next) = (cohort.block, OVER, self.first(id));
        while let Some(slot) = next {
            next = self.after(slot);
            match self.next(slot) {
                Some(next) => wanted = wanted.min(next),
                None => {
                    self.take(slot);
                    gone(slot);
                }
            }
        }
        if wanted == OVER {
            self.close(id);
        } else if wanted > block {
            self.get_mut(id).block = wanted;
            let Cohorts { table, members, links, .. } = self;
            let cohort = table[id.0 as usize].as_ref().expect("the cohort is in the table");
            cohort.members.iter(links).for_each(|slot| members[slot as usize].step = 0);
        }
        wanted != OVER
    }

    /// Removes a request from a cohort that has not begun. Returns false if no member is left,
    /// which closes the cohort.
    pub fn withdraw(&mut self, slot: RequestSlot) -> bool {
        let Some(id) = self.leave(slot) else {
            return false;
        };
        let length = self.members(id).map(|slot| self.members[slot.index()].extent.length).max();
        self.get_mut(id).length = length.expect("a member is left");
        true
    }

    /// Removes a request from its cohort. Returns the cohort; `None` if no member is left, which
    /// closes it.
    pub fn leave(&mut self, slot: RequestSlot) -> Option<CohortId> {
        let id = self.take(slot);
        if self.get(id).is_empty() {
            self.close(id);
            return None;
        }
        Some(id)
    }

    /// Returns the first member, for loops in which members change.
    pub fn first(&self, id: CohortId) -> Option<RequestSlot> {
        self.get(id).members.front().map(RequestSlot)
    }

    /// Returns the member after `slot`.
    pub fn after(&self, slot: RequestSlot) -> Option<RequestSlot> {
        self.links.next(slot.0).map(RequestSlot)
    }

    /// Removes all members and closes the cohort.
    pub fn drain(&mut self, id: CohortId, mut gone: impl FnMut(RequestSlot)) {
        self.drain_into(id, |_, slot| gone(slot));
    }

    fn drain_into(&mut self, id: CohortId, mut to: impl FnMut(&mut Cohorts<T>, RequestSlot)) {
        while let Some(slot) = self.first(id) {
            self.take(slot);
            to(self, slot);
        }
        self.close(id);
    }

    fn insert(&mut self, id: CohortId, slot: RequestSlot) {
        let Cohorts { table, members, links, .. } = self;
        let cohort = table[id.0 as usize].as_mut().expect("the cohort is in the table");
        let member = &mut members[slot.index()];
        member.cohort = Some(id);
        cohort.rows += member.rows;
        cohort.members.push_back(links, slot.0);
    }

    fn take(&mut self, slot: RequestSlot) -> CohortId {
        let Cohorts { table, members, links, .. } = self;
        let member = &mut members[slot.index()];
        let id = member.cohort.take().expect("the request is in a cohort");
        let cohort = table[id.0 as usize].as_mut().expect("the cohort is in the table");
        cohort.rows -= member.rows;
        cohort.members.remove(links, slot.0);
        id
    }

    fn close(&mut self, id: CohortId) {
        self.table[id.0 as usize] = None;
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestClass;
    use ripieno_base::{Nanos, Time};
    use ripieno_model::{Block, Profile, Steps, Walk};
    use std::fmt::Write;

    /// A chain of four blocks.
    fn chain() -> Model {
        let profile = Profile::linear(1.0, 1.0, 8).unwrap();
        let blocks = ["a", "b", "c", "d"].map(|name| Block::new(name, profile.clone())).into();
        Model { blocks, ..Model::whole("m", profile, Nanos::from_millis(9)) }
    }

    fn request(slot: u32, length: u32) -> Request {
        Request {
            slot: RequestSlot(slot),
            model: ModelId(0),
            arrived: Time::ORIGIN,
            deadline: Time::NEVER,
            rows: 1,
            extent: Extent { length, limit: 9 },
            class: RequestClass::default(),
        }
    }

    /// A table with a cohort of `count` members, of lengths 1, 2 and so on.
    fn cohort(count: u32) -> (Cohorts<()>, CohortId) {
        let mut cohorts = Cohorts::new(8);
        let id = cohorts.open(ModelId(0), ());
        (0..count).for_each(|slot| cohorts.push(id, &request(slot, 1 + slot)));
        (cohorts, id)
    }

    fn slots(slots: impl Iterator<Item = RequestSlot>) -> Vec<u32> {
        slots.map(|slot| slot.0).collect()
    }

    /// Runs a block; returns the members that have left.
    fn run(cohorts: &mut Cohorts<()>, id: CohortId, outcome: Outcome, ended: &[bool], skips: &[u16]) -> Vec<u32> {
        let skips: Vec<_> = skips.iter().map(|&block| BlockId(block)).collect();
        let ran: Vec<_> = cohorts.active(id).map(|(slot, _)| slot).collect();
        cohorts.begin(id);
        cohorts.report(id, &ran, &chain(), &TaskDone { task: TaskId(0), outcome, ended, skips: &skips });
        let mut gone = Vec::new();
        let goes_on = cohorts.advance(id, |slot| gone.push(slot.0));
        assert_eq!(goes_on, cohorts.table[id.0 as usize].is_some());
        gone
    }

    /// Returns the block that a cohort is before, and the members that run it next.
    fn before(cohorts: &Cohorts<()>, id: CohortId) -> (u16, Vec<u32>) {
        (cohorts.get(id).block.0, slots(cohorts.active(id).map(|(slot, _)| slot)))
    }

    #[test]
    fn a_member_that_skips_blocks_rests_until_the_cohort_is_there() {
        let (mut cohorts, id) = cohort(4);
        assert_eq!(run(&mut cohorts, id, Outcome::Ok, &[], &[1, 3, 1, 2]), []);
        assert_eq!(before(&cohorts, id), (1, vec![0, 2]));
        assert_eq!(run(&mut cohorts, id, Outcome::Ok, &[true, false], &[]), [0]);
        assert_eq!(before(&cohorts, id), (2, vec![2, 3]));
        assert_eq!(run(&mut cohorts, id, Outcome::Ok, &[], &[]), []);
        assert_eq!(before(&cohorts, id), (3, vec![1, 2, 3]));
        assert_eq!(run(&mut cohorts, id, Outcome::Ok, &[], &[]), [1, 2, 3]);
    }

    #[test]
    fn a_failure_ends_the_members_that_ran_the_block() {
        let (mut cohorts, id) = cohort(4);
        run(&mut cohorts, id, Outcome::Ok, &[], &[3, 1, 1, 3]);
        assert_eq!(run(&mut cohorts, id, Outcome::Failed, &[], &[]), [1, 2]);
        assert_eq!(before(&cohorts, id), (3, vec![0, 3]));
        let mut gone = Vec::new();
        cohorts.drain(id, |slot| gone.push(slot.0));
        assert_eq!((gone, cohorts.of(RequestSlot(0))), (vec![0, 3], None));
    }

    #[test]
    fn a_cohort_stays_as_it_was_padded_unless_it_has_not_begun() {
        let (mut cohorts, id) = cohort(4);
        assert!(cohorts.withdraw(RequestSlot(3)));
        assert_eq!(cohorts.get(id).length, 3);
        assert_eq!(run(&mut cohorts, id, Outcome::Ok, &[false, false, true], &[]), [2]);
        assert_eq!((cohorts.get(id).length, cohorts.get(id).rows), (3, 2));
    }

    #[test]
    fn members_take_steps_of_their_own_and_meet_at_any() {
        let profile = Profile::linear(1.0, 1.0, 8).unwrap();
        let block = Block { steps: Steps::Length, ..Block::new("cell", profile.clone()) };
        let model =
            Model { walk: Walk::Repeat, blocks: vec![block], ..Model::whole("m", profile, Nanos::from_millis(9)) };
        let (mut cohorts, id) = cohort(2);
        let end = |cohorts: &mut Cohorts<()>| {
            let ran: Vec<_> = cohorts.active(id).map(|(slot, _)| slot).collect();
            let done = TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[], skips: &[] };
            cohorts.report(id, &ran, &model, &done);
            let mut gone = Vec::new();
            cohorts.advance(id, |slot| gone.push(slot.0));
            gone
        };
        assert_eq!(end(&mut cohorts), [0]);
        let newcomers = cohorts.open(ModelId(0), ());
        cohorts.push(newcomers, &request(5, 2));
        cohorts.merge(newcomers, id);
        assert_eq!(cohorts.active(id).map(|(slot, step)| (slot.0, step)).collect::<Vec<_>>(), [(1, 1), (5, 0)]);
        assert_eq!((end(&mut cohorts), end(&mut cohorts)), (vec![1], vec![5]));
    }

    /// The paper's figure, in which two requests join while the second stage runs; stages count
    /// from 1.
    #[test]
    fn figure_8_of_dvabatch_step_by_step() {
        let (mut cohorts, batch) = cohort(2);
        let mut seen = String::new();
        let mut note = |cohorts: &Cohorts<()>| {
            for cohort in cohorts.table.iter().flatten() {
                let runs = if cohort.runs { "runs" } else { "before" };
                write!(seen, "{{bs {}, {runs} {}}} ", cohort.len(), cohort.block.0 + 1).unwrap();
            }
            seen.push('|');
        };
        let end = |cohorts: &mut Cohorts<()>, id: CohortId| {
            let ran: Vec<_> = cohorts.members(id).collect();
            let done = TaskDone { task: TaskId(0), outcome: Outcome::Ok, ended: &[], skips: &[] };
            cohorts.report(id, &ran, &chain(), &done);
            cohorts.advance(id, |_| unreachable!("no request ends"));
        };
        note(&cohorts);
        end(&mut cohorts, batch);
        note(&cohorts);
        cohorts.begin(batch);
        let newcomers = cohorts.open(ModelId(0), ());
        (2..4).for_each(|slot| cohorts.push(newcomers, &request(slot, 1)));
        note(&cohorts);
        end(&mut cohorts, batch);
        note(&cohorts);
        end(&mut cohorts, newcomers);
        note(&cohorts);
        end(&mut cohorts, newcomers);
        cohorts.merge(newcomers, batch);
        note(&cohorts);
        end(&mut cohorts, batch);
        cohorts.split(batch, (), |place, _| place >= 2);
        note(&cohorts);
        let expected = [
            "{bs 2, before 1} ",
            "{bs 2, before 2} ",
            "{bs 2, runs 2} {bs 2, before 1} ",
            "{bs 2, before 3} {bs 2, before 1} ",
            "{bs 2, before 3} {bs 2, before 2} ",
            "{bs 4, before 3} ",
            "{bs 2, before 4} {bs 2, before 4} ",
            "",
        ];
        assert_eq!(seen, expected.join("|"));
    }

    #[test]
    #[should_panic(expected = "they meet")]
    fn cohorts_before_different_blocks_stay_apart() {
        let (mut cohorts, id) = cohort(1);
        run(&mut cohorts, id, Outcome::Ok, &[], &[]);
        let newcomers = cohorts.open(ModelId(0), ());
        cohorts.push(newcomers, &request(5, 1));
        cohorts.merge(newcomers, id);
    }
}
