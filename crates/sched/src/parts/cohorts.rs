//! Cohorts: requests of one model that run together, whom others join, leave and are split from on the way.
//!
//! A cohort stands before one block, or runs it. A member of it that has done with the block, or skips it, *rests* until the
//! cohort is at the block that this member goes on with: the cohort moves on once all rest, to the first block that any of them wants.
//! Two cohorts before the same block can become one, whatever steps their members are at, and any one can become two.
//!
//! This is the mechanism; what is done when is up to policies: whom a cohort is opened for, which one runs next, who merges
//! with whom, where one is split. Newcomers that catch up with a batch are a cohort of their own until both stand before the same
//! block; meanwhile the policy lets the other one stand. Each policy keeps beside a cohort what is its own, as `T`.
//!
//! Public, so that a policy of one's own can be made of the same operations: `crates/sim/examples/meta_operations.rs`.

use super::tasks::Tasks;
use crate::{Outcome, Request, TaskDone};
use ripieno_base::{BlockId, DeviceId, LaneId, Links, List, ModelId, RequestSlot, TaskId};
use ripieno_model::{Extent, Model, Onward, Position};

/// No block: the walk is over.
const OVER: BlockId = BlockId(u16::MAX);

/// A cohort's place in the table. Reused once the cohort has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CohortId(u32);

/// Requests that run together.
#[derive(Clone, Copy, Debug)]
pub struct Cohort<T> {
    /// The model of all of them.
    pub model: ModelId,
    /// The block that it runs or stands before.
    pub block: BlockId,
    /// Rows of all members.
    pub rows: usize,
    /// What its members are padded to: the length of the longest that it had when it began.
    pub length: u32,
    /// Whether its block is under way.
    pub runs: bool,
    /// What a policy keeps beside.
    pub own: T,
    members: List,
}

impl<T> Cohort<T> {
    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has none yet.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug)]
struct Member {
    cohort: Option<CohortId>,
    rows: usize,
    extent: Extent,
    /// Steps of the present block that it has run.
    step: u32,
    /// The block that it runs or goes on with: a later one while it rests.
    next: BlockId,
}

/// All cohorts of a scheduler, and their members by slot.
#[derive(Debug)]
pub struct Cohorts<T> {
    table: Vec<Option<Cohort<T>>>,
    free: Vec<CohortId>,
    members: Vec<Member>,
    links: Links,
}

impl<T> Cohorts<T> {
    /// A table for so many live requests; never allocates again.
    pub fn new(requests: usize) -> Cohorts<T> {
        let member = Member { cohort: None, rows: 0, extent: Extent::ONE, step: 0, next: OVER };
        // Each has a member but one that is being filled or emptied.
        let count = requests + 1;
        Cohorts {
            table: (0..count).map(|_| None).collect(),
            free: (0..count as u32).rev().map(CohortId).collect(),
            members: vec![member; requests],
            links: Links::new(requests),
        }
    }

    /// A cohort of the table.
    pub fn get(&self, id: CohortId) -> &Cohort<T> {
        self.table[id.0 as usize].as_ref().expect("the cohort is in the table")
    }

    fn get_mut(&mut self, id: CohortId) -> &mut Cohort<T> {
        self.table[id.0 as usize].as_mut().expect("the cohort is in the table")
    }

    /// What a policy keeps of one.
    pub fn own_mut(&mut self, id: CohortId) -> &mut T {
        &mut self.get_mut(id).own
    }

    /// The cohort that a request is in.
    pub fn of(&self, slot: RequestSlot) -> Option<CohortId> {
        self.members[slot.index()].cohort
    }

    /// All members, in the order in which they came.
    pub fn members(&self, id: CohortId) -> impl Iterator<Item = RequestSlot> + Clone {
        self.get(id).members.iter(&self.links).map(RequestSlot)
    }

    /// Those who do not rest, and the step that each is to run.
    pub fn active(&self, id: CohortId) -> impl Iterator<Item = (RequestSlot, u32)> + Clone {
        self.members(id).filter_map(|slot| Some((slot, self.step(slot)?)))
    }

    /// The step that a member is to run; none while it rests.
    pub fn step(&self, slot: RequestSlot) -> Option<u32> {
        let Member { cohort, step, next, .. } = self.members[slot.index()];
        (next == self.get(cohort?).block).then_some(step)
    }

    /// *open*: a cohort before the first block. Its members are to be pushed.
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
        debug_assert!(block == BlockId(0) && self.of(slot).is_none(), "who has not begun joins: {request:?}");
        self.members[slot.index()] = Member { cohort: None, rows: rows as usize, extent, step: 0, next: block };
        let cohort = self.get_mut(id);
        cohort.length = cohort.length.max(extent.length);
        self.insert(id, slot);
    }

    /// *merge*: the members of a cohort join another one that stands before the same block, behind those it has.
    pub fn merge(&mut self, from: CohortId, into: CohortId) {
        let (one, other) = (self.get(from), self.get(into));
        assert_eq!((one.model, one.block, one.runs || other.runs), (other.model, other.block, false), "they meet");
        let length = one.length.max(other.length);
        self.get_mut(into).length = length;
        self.drain_into(from, |cohorts, slot| cohorts.insert(into, slot));
    }

    /// *split*: those members that `go`, told the place of each and the block that it goes on with, become a cohort of their own before
    /// the same block. A cohort that is left without members ends when it advances.
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

    /// The block that a member runs, or goes on with once it has run this one; none if its walk is over.
    pub fn next(&self, slot: RequestSlot) -> Option<BlockId> {
        Some(self.members[slot.index()].next).filter(|&next| next != OVER)
    }

    /// The block of a cohort begins.
    pub fn begin(&mut self, id: CohortId) {
        let cohort = self.get_mut(id);
        assert!(!std::mem::replace(&mut cohort.runs, true), "a cohort runs one block at a time");
    }

    /// Begins the block as a task of those who do not rest. `unfolds`: whether their steps are to be told.
    pub(crate) fn run(
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

    /// The block has ended: notes what those who ran it do next. A failure is the end of their walks.
    pub fn report(&mut self, id: CohortId, ran: &[RequestSlot], model: &Model, done: &TaskDone<'_>) {
        let block = self.get(id).block;
        let complete = |told: usize| told == 0 || told == ran.len();
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
            debug_assert!(member.next >= block, "nobody goes back: {done:?}");
        }
    }

    /// *advance*: after [`Cohorts::report`], members whose walk is over leave, and `gone` is told of them. If all others rest,
    /// the cohort stands before the first block that one of them wants. False if nobody is left, and with that no cohort.
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

    /// Takes a request out of a cohort that has not begun. False if nobody is left, and with that no cohort.
    pub fn withdraw(&mut self, slot: RequestSlot) -> bool {
        let Some(id) = self.leave(slot) else {
            return false;
        };
        let length = self.members(id).map(|slot| self.members[slot.index()].extent.length).max();
        self.get_mut(id).length = length.expect("somebody is left");
        true
    }

    /// Takes a request out of its cohort, which is returned; none if nobody is left, and with that no cohort.
    pub(crate) fn leave(&mut self, slot: RequestSlot) -> Option<CohortId> {
        let id = self.take(slot);
        if self.get(id).is_empty() {
            self.close(id);
            return None;
        }
        Some(id)
    }

    /// The first member, for loops in which members change.
    pub(crate) fn first(&self, id: CohortId) -> Option<RequestSlot> {
        self.get(id).members.front().map(RequestSlot)
    }

    /// The member after one.
    pub(crate) fn after(&self, slot: RequestSlot) -> Option<RequestSlot> {
        self.links.next(slot.0).map(RequestSlot)
    }

    /// Takes all members out, and with that the cohort.
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

    /// Of four blocks.
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

    /// A table with a cohort of `count`, the first 1 long, the next 2, and so on.
    fn cohort(count: u32) -> (Cohorts<()>, CohortId) {
        let mut cohorts = Cohorts::new(8);
        let id = cohorts.open(ModelId(0), ());
        (0..count).for_each(|slot| cohorts.push(id, &request(slot, 1 + slot)));
        (cohorts, id)
    }

    fn slots(slots: impl Iterator<Item = RequestSlot>) -> Vec<u32> {
        slots.map(|slot| slot.0).collect()
    }

    /// Runs a block; who has gone.
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

    /// Before which block a cohort stands, and who is going to run it.
    fn before(cohorts: &Cohorts<()>, id: CohortId) -> (u16, Vec<u32>) {
        (cohorts.get(id).block.0, slots(cohorts.active(id).map(|(slot, _)| slot)))
    }

    #[test]
    fn who_skips_blocks_rests_until_the_cohort_is_there() {
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
    fn a_failure_takes_those_who_ran_the_block() {
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

    /// The paper's figure, in which two join while the second stage runs; stages count from 1.
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
            cohorts.advance(id, |_| unreachable!("nobody ends"));
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
