//! The batch table of a model on a device, the queues between its stages, and the meta operations on both.
//!
//! A row is a batch: how many queries it has, and how many of them have been through each stage. A queue item names the queries
//! of a batch that a stage is to run next. What makes the meta operations simple is one rule for handing on: when all of a
//! batch have been through a stage, those who stand before the next one are pushed there as one item. So newcomers catch up as
//! an item of their own and are merged by nothing but this rule, and if the newcomers vanish on their way, the others go on.
//!
//! Public, so that a policy of one's own can be made of the same operations: `crates/sim/examples/meta_operations.rs`.
//!
//! Stages count from 0 here; the paper counts from 1. Who the queries are is not known here: `dvabatch/mod.rs` keeps them by
//! the id of their row, in the order of their positions.

use ripieno_base::Time;
use std::collections::VecDeque;
use std::ops::Range;

/// The identifier of a batch: its place in the table. Reused once the batch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u16);

impl BatchId {
    /// Its place in a table of what is kept of batches.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Queries of a batch that a stage is to run: `num` of them from position `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The batch.
    pub id: BatchId,
    /// The position of the first.
    pub start: u16,
    /// How many they are.
    pub num: u16,
}

impl Item {
    /// Their positions in the batch.
    pub fn positions(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.start) + usize::from(self.num)
    }
}

/// A batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// How many queries it has.
    pub bs: u16,
    /// When it was made; parts of a split, when the whole was.
    pub created: Time,
    /// Whether a split awaits it, or it came from one: nobody may join any more.
    pub sealed: bool,
    /// Its place in the order of creation.
    order: u64,
}

/// How far the queries of a batch are at a stage.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    begun: u16,
    done: u16,
}

/// The table and the queues.
#[derive(Debug)]
pub struct BatchTable {
    stages: usize,
    rows: Vec<Option<Row>>,
    /// By row and stage, how many queries have been through, and how many have begun.
    status: Vec<Count>,
    queues: Vec<VecDeque<Item>>,
    free: Vec<BatchId>,
    orders: u64,
}

impl BatchTable {
    /// A table for as many batches, and queries, as `capacity`; never allocates again.
    pub fn new(stages: usize, capacity: usize) -> BatchTable {
        assert!(stages > 0 && capacity > 0 && capacity <= usize::from(u16::MAX), "{stages} stages, {capacity} queries");
        BatchTable {
            stages,
            rows: vec![None; capacity],
            status: vec![Count::default(); capacity * stages],
            queues: (0..stages).map(|_| VecDeque::with_capacity(capacity)).collect(),
            free: (0..capacity as u16).rev().map(BatchId).collect(),
            orders: 0,
        }
    }

    /// A batch of the table.
    pub fn row(&self, id: BatchId) -> &Row {
        self.rows[id.index()].as_ref().expect("the batch is in the table")
    }

    /// Whether it has not ended.
    pub fn contains(&self, id: BatchId) -> bool {
        self.rows[id.index()].is_some()
    }

    /// The batches, in no order that means anything.
    pub fn ids(&self) -> impl Iterator<Item = BatchId> + '_ {
        self.rows.iter().zip(0..).filter(|(row, _)| row.is_some()).map(|(_, id)| BatchId(id))
    }

    /// How many stages the model has.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// What stands before a stage, the first in front.
    pub fn queue(&self, stage: usize) -> &VecDeque<Item> {
        &self.queues[stage]
    }

    /// The batch that was created last, of those in the table.
    pub fn latest(&self) -> Option<BatchId> {
        self.ids().max_by_key(|&id| self.row(id).order)
    }

    /// The stage before which all of a batch stand, if none of it is under way.
    pub fn border(&self, id: BatchId) -> Option<usize> {
        let bs = self.row(id).bs;
        let stage = self.counts(id).iter().position(|count| count.begun < bs)?;
        self.queues[stage].contains(&Item { id, start: 0, num: bs }).then_some(stage)
    }

    /// *new*: a batch of `num` queries before the first stage.
    pub fn new_batch(&mut self, num: u16, now: Time, sealed: bool) -> BatchId {
        let id = self.open(num, now, sealed);
        self.queues[0].push_back(Item { id, start: 0, num });
        id
    }

    /// A query leaves a batch that has not begun; the batch vanishes with its last one.
    pub fn shrink(&mut self, id: BatchId, sealed: bool) {
        let Row { bs, .. } = *self.row(id);
        let whole = Item { id, start: 0, num: bs };
        let place = self.queues[0].iter().position(|&item| item == whole).expect("none of it has begun");
        if bs == 1 {
            self.queues[0].remove(place);
            return self.close(id);
        }
        self.queues[0][place].num -= 1;
        let row = self.row_mut(id);
        (row.bs, row.sealed) = (bs - 1, sealed);
    }

    /// *stretch*: `num` queries join the latest batch, and catch up from the first stage on. Those that stand before a stage
    /// are taken back from its queue; they are pushed again together with the newcomers.
    pub fn stretch(&mut self, id: BatchId, num: u16, sealed: bool) {
        assert_eq!(self.latest(), Some(id), "only the latest batch is stretched");
        for queue in &mut self.queues {
            queue.retain(|item| item.id != id);
        }
        let row = self.row_mut(id);
        assert!(!row.sealed, "a batch that a split awaits is not stretched");
        let start = row.bs;
        row.sealed = sealed;
        row.bs += num;
        self.queues[0].push_back(Item { id, start, num });
    }

    /// *split*: a batch of which all stand before `stage` becomes two, the first `at` of it and the others, which take its
    /// place in the queue in this order. The id of the second.
    pub fn split(&mut self, id: BatchId, stage: usize, at: u16) -> BatchId {
        let Row { bs, created, .. } = *self.row(id);
        assert!(0 < at && at < bs, "both parts have queries");
        let whole = Item { id, start: 0, num: bs };
        let place = self.queues[stage].iter().position(|&item| item == whole).expect("all of it stand here");
        let other = self.open(bs - at, created, true);
        let row = self.row_mut(id);
        (row.bs, row.sealed) = (at, true);
        self.passed(id, stage, at);
        self.passed(other, stage, bs - at);
        self.queues[stage][place] = Item { num: at, ..whole };
        self.queues[stage].insert(place + 1, Item { id: other, start: 0, num: bs - at });
        other
    }

    /// Queries that skip: `num` of them, who have left their batch, become one that stands before `stage`.
    pub fn skip_to(&mut self, stage: usize, num: u16, now: Time) -> BatchId {
        let id = self.open(num, now, true);
        self.passed(id, stage, num);
        self.queues[stage].push_back(Item { id, start: 0, num });
        id
    }

    /// The stage's executor takes the item at `place` of its queue.
    pub fn pull(&mut self, stage: usize, place: usize) -> Item {
        let item = self.queues[stage].remove(place).expect("an item stands there");
        self.counts_mut(item.id)[stage].begun += item.num;
        item
    }

    /// *update*: an item has been through a stage, and `left` of its queries have left the batch. Where the batch goes on
    /// now, if all of it have been through.
    pub fn update(&mut self, item: Item, stage: usize, left: u16) -> Option<usize> {
        assert!(left <= item.num, "no more leave than there are: {item:?}");
        let counts = self.counts_mut(item.id);
        for count in &mut counts[..stage] {
            (count.begun, count.done) = (count.begun - left, count.done - left);
        }
        counts[stage].begun -= left;
        counts[stage].done += item.num - left;
        self.row_mut(item.id).bs -= left;
        for other in self.queues.iter_mut().flatten() {
            other.start -= if other.id == item.id && other.start > item.start { left } else { 0 };
        }
        self.hand_on(item.id, stage)
    }

    /// Once all of a batch have been through `stage`, pushes those on who stand before the next one.
    fn hand_on(&mut self, id: BatchId, stage: usize) -> Option<usize> {
        let bs = self.row(id).bs;
        let counts = self.counts(id);
        if counts[self.stages - 1].done == bs {
            self.close(id);
            return None;
        }
        if counts[stage].done < bs {
            return None;
        }
        // Those before the newcomers may stand further on: if no newcomer is left, they go on from there.
        let next = counts.iter().position(|count| count.begun < bs)?;
        let start = counts[next].begun;
        if counts[next - 1].done < bs {
            return None;
        }
        self.queues[next].push_back(Item { id, start, num: bs - start });
        Some(next)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        for at in 0..self.rows.len() {
            if self.rows[at].is_some() {
                self.close(BatchId(at as u16));
            }
        }
    }

    fn counts(&self, id: BatchId) -> &[Count] {
        &self.status[id.index() * self.stages..][..self.stages]
    }

    fn counts_mut(&mut self, id: BatchId) -> &mut [Count] {
        &mut self.status[id.index() * self.stages..][..self.stages]
    }

    /// Notes that all `num` queries of a batch stand before `stage`.
    fn passed(&mut self, id: BatchId, stage: usize, num: u16) {
        self.counts_mut(id)[..stage].fill(Count { begun: num, done: num });
    }

    fn row_mut(&mut self, id: BatchId) -> &mut Row {
        self.rows[id.index()].as_mut().expect("the batch is in the table")
    }

    fn open(&mut self, bs: u16, created: Time, sealed: bool) -> BatchId {
        let id = self.free.pop().expect("each batch has a query, and there are no more queries than rows");
        self.counts_mut(id).fill(Count::default());
        self.rows[id.index()] = Some(Row { bs, created, sealed, order: self.orders });
        self.orders += 1;
        id
    }

    fn close(&mut self, id: BatchId) {
        self.rows[id.index()] = None;
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// The table and the queues in the paper's words: stages count from 1.
    fn show(table: &BatchTable) -> String {
        let mut text = String::new();
        let mut ids: Vec<_> = table.ids().collect();
        ids.sort_unstable();
        for id in ids {
            let status = table.counts(id).iter().zip(1..).filter(|(count, _)| count.done > 0);
            let status: Vec<_> = status.map(|(count, stage)| format!("{stage}:{}", count.done)).collect();
            write!(text, "{{{}, bs {}, {{{}}}}} ", id.0, table.row(id).bs, status.join(",")).unwrap();
        }
        for (queue, stage) in table.queues.iter().zip(1..).filter(|(queue, _)| !queue.is_empty()) {
            let items: Vec<_> =
                queue.iter().map(|item| format!("{{{},{},{}}}", item.id.0, item.start, item.num)).collect();
            write!(text, "Q{stage} {} ", items.join(" ")).unwrap();
        }
        text.trim_end().to_owned()
    }

    #[test]
    fn figure_8_step_by_step() {
        let mut table = BatchTable::new(4, 8);
        let mut seen = Vec::new();
        let mut note = |table: &BatchTable| seen.push(show(table));
        let batch = table.new_batch(2, Time::ORIGIN, false);
        note(&table);
        let item = table.pull(0, 0);
        table.update(item, 0, 0);
        note(&table);
        let first = table.pull(1, 0);
        table.stretch(batch, 2, true);
        note(&table);
        assert_eq!(table.update(first, 1, 0), None);
        note(&table);
        let newcomers = table.pull(0, 0);
        table.update(newcomers, 0, 0);
        note(&table);
        let newcomers = table.pull(1, 0);
        assert_eq!(table.update(newcomers, 1, 0), Some(2));
        note(&table);
        let all = table.pull(2, 0);
        assert_eq!(table.update(all, 2, 0), Some(3));
        table.split(batch, 3, 2);
        note(&table);
        assert_eq!(
            seen,
            [
                "{0, bs 2, {}} Q1 {0,0,2}",
                "{0, bs 2, {1:2}} Q2 {0,0,2}",
                "{0, bs 4, {1:2}} Q1 {0,2,2}",
                "{0, bs 4, {1:2,2:2}} Q1 {0,2,2}",
                "{0, bs 4, {1:4,2:2}} Q2 {0,2,2}",
                "{0, bs 4, {1:4,2:4}} Q3 {0,0,4}",
                "{0, bs 2, {1:2,2:2,3:2}} {1, bs 2, {1:2,2:2,3:2}} Q4 {0,0,2} {1,0,2}",
            ]
        );
    }

    #[test]
    fn a_batch_shrinks_before_it_has_begun_and_keeps_its_place() {
        let mut table = BatchTable::new(2, 8);
        let first = table.new_batch(2, Time::ORIGIN, true);
        table.new_batch(1, Time::ORIGIN, false);
        table.shrink(first, false);
        assert_eq!(show(&table), "{0, bs 1, {}} {1, bs 1, {}} Q1 {0,0,1} {1,0,1}");
        assert!(!table.row(first).sealed);
        table.shrink(first, false);
        assert_eq!(show(&table), "{1, bs 1, {}} Q1 {1,0,1}");
    }

    /// A batch of two that stands before the third of four stages.
    fn before_the_third() -> (BatchTable, BatchId) {
        let mut table = BatchTable::new(4, 8);
        let id = table.new_batch(2, Time::ORIGIN, false);
        for stage in 0..2 {
            let item = table.pull(stage, 0);
            table.update(item, stage, 0);
        }
        (table, id)
    }

    #[test]
    fn newcomers_pause_who_stands_at_a_border_until_they_have_caught_up() {
        let (mut table, id) = before_the_third();
        assert_eq!(table.border(id), Some(2));
        table.stretch(id, 3, false);
        assert_eq!(show(&table), "{0, bs 5, {1:2,2:2}} Q1 {0,2,3}");
        assert_eq!(table.border(id), None);
        for stage in 0..2 {
            let item = table.pull(stage, 0);
            table.update(item, stage, 0);
        }
        assert_eq!(show(&table), "{0, bs 5, {1:5,2:5}} Q3 {0,0,5}");
        assert_eq!(table.border(id), Some(2));
    }

    #[test]
    fn if_the_newcomers_vanish_the_others_go_on_where_they_stood() {
        let (mut table, id) = before_the_third();
        table.stretch(id, 3, false);
        let item = table.pull(0, 0);
        assert_eq!(table.update(item, 0, 3), Some(2));
        assert_eq!(show(&table), "{0, bs 2, {1:2,2:2}} Q3 {0,0,2}");
    }

    #[test]
    fn newcomers_may_overtake_a_stage_that_is_slow() {
        let (mut table, id) = before_the_third();
        let first = table.pull(2, 0);
        table.stretch(id, 1, false);
        for stage in 0..2 {
            let item = table.pull(stage, 0);
            table.update(item, stage, 0);
        }
        assert_eq!(show(&table), "{0, bs 3, {1:3,2:3}} Q3 {0,2,1}");
        assert_eq!(table.update(first, 2, 1), None);
        assert_eq!(show(&table), "{0, bs 2, {1:2,2:2,3:1}} Q3 {0,1,1}");
        let last = table.pull(2, 0);
        assert_eq!(table.update(last, 2, 0), Some(3));
        assert_eq!(show(&table), "{0, bs 2, {1:2,2:2,3:2}} Q4 {0,0,2}");
    }

    #[test]
    fn who_leaves_or_skips_is_missed_nowhere() {
        let (mut table, _) = before_the_third();
        let item = table.pull(2, 0);
        assert_eq!(table.update(item, 2, 1), Some(3));
        let skipped = table.skip_to(3, 1, Time::ORIGIN);
        assert_eq!(show(&table), "{0, bs 1, {1:1,2:1,3:1}} {1, bs 1, {1:1,2:1,3:1}} Q4 {0,0,1} {1,0,1}");
        assert!(table.row(skipped).sealed);
        for _ in 0..2 {
            let item = table.pull(3, 0);
            assert_eq!(table.update(item, 3, 0), None);
        }
        assert_eq!(show(&table), "");
    }

    #[test]
    fn halves_of_a_half_stand_before_the_other_half() {
        let mut table = BatchTable::new(2, 8);
        let id = table.new_batch(4, Time::ORIGIN, true);
        let item = table.pull(0, 0);
        table.update(item, 0, 0);
        table.split(id, 1, 2);
        table.split(id, 1, 1);
        assert_eq!(show(&table), "{0, bs 1, {1:1}} {1, bs 2, {1:2}} {2, bs 1, {1:1}} Q2 {0,0,1} {2,0,1} {1,0,2}");
    }

    #[test]
    #[should_panic(expected = "only the latest")]
    fn an_older_batch_is_not_stretched() {
        let mut table = BatchTable::new(2, 8);
        let older = table.new_batch(1, Time::ORIGIN, false);
        table.new_batch(1, Time::ORIGIN, false);
        table.stretch(older, 1, false);
    }

    #[test]
    #[should_panic(expected = "a split awaits")]
    fn what_came_from_a_split_is_not_stretched() {
        let mut table = BatchTable::new(2, 8);
        let id = table.new_batch(2, Time::ORIGIN, true);
        let item = table.pull(0, 0);
        table.update(item, 0, 0);
        let other = table.split(id, 1, 1);
        table.stretch(other, 1, false);
    }
}
