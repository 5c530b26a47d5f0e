//! A model on a device: its batches, who is in them, and on which lane each runs.
//!
//! The table and the executors are the paper's; here they meet the requests. A batch and all that is split from it
//! run on one lane, one stage at a time, whoever is furthest first: so the parts of a split run one after the other, each to
//! its end. A lane has the buffer pair of its number; newcomers that catch up with a batch use one more, so that one batch of
//! the model can be stretched at a time.

use super::batch_table::{BatchId, BatchTable, Item};
use super::rules::Plan;
use super::stage_executors::{Pair, StageExecutors};
use crate::parts::fifo::Fifo;
use crate::{TaskDone, Why};
use ripieno_base::{BlockId, LaneId, Links, List, RequestSlot, Time};
use ripieno_model::{Extent, Model, Onward, Position};

/// What is known of a batch beside its row in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// In the order of their positions.
    pub(super) members: List,
    pub(super) rows: usize,
    /// What its members are padded to.
    pub(super) length: u32,
    /// None until it begins.
    pub(super) lane: Option<LaneId>,
    pub(super) begun: Time,
}

impl Batch {
    fn new(length: u32) -> Batch {
        Batch { members: List::default(), rows: 0, length, lane: None, begun: Time::NEVER }
    }

    fn pair(&self) -> Pair {
        pair(self.lane.expect("a batch that runs is on a lane"))
    }
}

/// The buffer pair of a lane.
fn pair(lane: LaneId) -> Pair {
    lane.0 as Pair
}

/// Where the requests and the model of a pipeline are written down.
pub(super) struct Context<'a> {
    pub(super) fifo: &'a mut Fifo,
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
}

/// A stage of an item that a lane runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) item: Item,
    pub(super) stage: usize,
    pair: Pair,
}

/// The batches of a model on a device.
#[derive(Debug)]
pub(super) struct Pipeline {
    table: BatchTable,
    executors: StageExecutors,
    batches: Vec<Batch>,
    /// Rows of all batches.
    pub(super) rows: usize,
    /// The batch that newcomers catch up with.
    stretched: Option<BatchId>,
    /// The pair of those who catch up.
    spare: Pair,
    /// Who of the task that has just ended skips to which stage: stage, place in the task, and slot.
    skipping: Vec<(usize, usize, RequestSlot)>,
}

impl Pipeline {
    pub(super) fn new(stages: usize, lanes: usize, queries: usize) -> Pipeline {
        Pipeline {
            table: BatchTable::new(stages, queries),
            executors: StageExecutors::new(stages, lanes + 1, lanes),
            batches: vec![Batch::new(1); queries],
            rows: 0,
            stretched: None,
            spare: lanes as Pair,
            skipping: Vec::with_capacity(queries),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(super) fn batch(&self, id: BatchId) -> &Batch {
        &self.batches[id.index()]
    }

    /// *new*: a batch before the first stage, on no lane yet. Its members are to be added.
    pub(super) fn open(&mut self, now: Time, queries: usize, length: u32, sealed: bool) -> BatchId {
        let id = self.table.new_batch(queries as u16, now, sealed);
        self.batches[id.index()] = Batch::new(length);
        id
    }

    /// Adds a request to a batch, behind its other members.
    pub(super) fn add(&mut self, fifo: &mut Fifo, id: BatchId, slot: RequestSlot) {
        let request = *fifo.request(slot);
        let batch = &mut self.batches[id.index()];
        batch.members.push_back(fifo.links_mut(), slot.0);
        batch.rows += request.rows as usize;
        self.rows += request.rows as usize;
    }

    /// The first batch that has been formed and is on no lane yet.
    pub(super) fn formed(&self) -> Option<BatchId> {
        self.all_formed().next()
    }

    fn all_formed(&self) -> impl Iterator<Item = BatchId> {
        self.table.queue(0).iter().map(|item| item.id).filter(|&id| self.batch(id).lane.is_none())
    }

    /// A request leaves the batch that it waits in and that has not begun; false if there is none.
    pub(super) fn withdraw(&mut self, context: &mut Context<'_>, slot: RequestSlot) -> bool {
        let has = |id: &BatchId| self.batch(*id).members.iter(context.fifo.links()).any(|member| member == slot.0);
        let Some(id) = self.all_formed().find(has) else {
            return false;
        };
        context.fifo.disarm(slot);
        self.remove(context, id, slot);
        self.rows -= context.fifo.request(slot).rows as usize;
        let Batch { members, rows, .. } = *self.batch(id);
        let lengths =
            members.iter(context.fifo.links()).map(|member| context.fifo.request(RequestSlot(member)).extent.length);
        let length = lengths.max().unwrap_or(1);
        self.batches[id.index()].length = length;
        self.table.shrink(id, context.plan.will_split(context.model, 1, rows, length));
        true
    }

    /// Whether a batch may begin on a free lane.
    pub(super) fn takes(&self, lane: LaneId) -> bool {
        self.executors.takes(0, pair(lane))
    }

    /// A batch that has been formed begins on a free lane: from now on its members run.
    pub(super) fn begin(&mut self, fifo: &mut Fifo, now: Time, id: BatchId, lane: LaneId) {
        let batch = &mut self.batches[id.index()];
        (batch.lane, batch.begun) = (Some(lane), now);
        let mut next = batch.members.front();
        while let Some(slot) = next {
            next = fifo.links().next(slot);
            fifo.disarm(RequestSlot(slot));
        }
        self.executors.put(0, pair(lane));
    }

    /// The batch of a lane that newcomers could join, and the stage that it stands before: the latest one, all of it at a
    /// border, none of it about to be split or split off.
    pub(super) fn stretchable(&self, lane: LaneId) -> Option<(BatchId, usize)> {
        let id = self.table.latest().filter(|&id| self.batch(id).lane == Some(lane) && !self.table.row(id).sealed)?;
        let free = self.stretched.is_none() && self.executors.takes(0, self.spare);
        let stage = self.table.border(id).filter(|&stage| free && stage > 0)?;
        Some((id, stage))
    }

    /// *stretch*: newcomers join a batch. They are to be added.
    pub(super) fn stretch(&mut self, id: BatchId, newcomers: usize, sealed: bool) {
        self.table.stretch(id, newcomers as u16, sealed);
        self.executors.put(0, self.spare);
        self.stretched = Some(id);
    }

    /// Takes the item of a lane that is furthest and may run.
    pub(super) fn next(&mut self, lane: LaneId) -> Option<Run> {
        for stage in (0..self.table.stages()).rev() {
            for (place, item) in self.table.queue(stage).iter().enumerate() {
                if self.batch(item.id).lane != Some(lane) {
                    continue;
                }
                let joins = self.stretched == Some(item.id);
                let pair = if joins && item.start > 0 { self.spare } else { pair(lane) };
                let merged = (joins && item.start == 0).then_some(self.spare);
                if self.executors.may_start(stage, pair, merged) {
                    let item = self.table.pull(stage, place);
                    let begun = self.executors.pull(stage, pair) && self.executors.check(stage, pair, merged);
                    assert!(begun, "an executor may start what it said it may: {item:?} at stage {stage}");
                    return Some(Run { item, stage, pair });
                }
            }
        }
        None
    }

    /// The members of an item.
    pub(super) fn members<'a>(&self, links: &'a Links, item: Item) -> impl Iterator<Item = RequestSlot> + use<'a> {
        let members = self.batch(item.id).members;
        let slots = std::iter::successors(members.front(), |&slot| links.next(slot));
        slots.skip(usize::from(item.start)).take(usize::from(item.num)).map(RequestSlot)
    }

    /// A stage has run: who ends leaves, who skips goes on as a batch of its own, and a batch before the next stage is split
    /// if that is better. Returns by how many the lane's batches have grown.
    pub(super) fn end(
        &mut self,
        context: &mut Context<'_>,
        run: &Run,
        members: &[RequestSlot],
        done: &TaskDone<'_>,
    ) -> isize {
        let Run { item: Item { id, .. }, stage, .. } = *run;
        let mut left = 0;
        self.skipping.clear();
        for (at, &slot) in members.iter().enumerate() {
            let position = Position::before(BlockId(stage as u16));
            match context.model.advance(position, Extent::ONE, done.report_of(at)) {
                Onward::Block(next) if next.index() == stage + 1 => continue,
                Onward::Block(next) => self.skipping.push((next.index(), at, slot)),
                Onward::Step | Onward::End => {
                    self.rows -= context.fifo.request(slot).rows as usize;
                    context.fifo.finish(slot);
                }
            }
            self.remove(context, id, slot);
            left += 1;
        }
        let Batch { length, lane, begun, .. } = *self.batch(id);
        let skipped = Batch { lane, begun, ..Batch::new(length) };
        let created = self.table.row(id).created;
        let (next, gone) = self.hand_on(run, left);
        let mut grown = -isize::from(gone);
        self.skipping.sort_unstable();
        while let Some(&(to, ..)) = self.skipping.first() {
            grown += self.skip(context, to, created, skipped);
        }
        if let Some(stage) = next.filter(|&stage| self.table.border(id) == Some(stage)) {
            grown += self.split(context, id, stage);
        }
        grown
    }

    /// A stage has failed: its members leave. Returns by how many the lane's batches have grown.
    pub(super) fn fail(&mut self, context: &mut Context<'_>, run: &Run, members: &[RequestSlot]) -> isize {
        for &slot in members {
            self.remove(context, run.item.id, slot);
            self.rows -= context.fifo.request(slot).rows as usize;
            context.fifo.reject(slot, Why::Failed);
        }
        -isize::from(self.hand_on(run, members.len()).1)
    }

    /// Everything is lost; `lost` gets all members.
    pub(super) fn clear(&mut self, fifo: &mut Fifo, lost: &mut Vec<RequestSlot>) {
        for id in self.table.ids() {
            let members = std::mem::take(&mut self.batches[id.index()].members);
            lost.extend(members.iter(fifo.links()).map(RequestSlot));
        }
        self.table.clear();
        self.executors.clear();
        (self.rows, self.stretched) = (0, None);
    }

    /// A stage is done, and `left` of its members have left the batch: where it goes on, and whether nothing is left of it.
    fn hand_on(&mut self, run: &Run, left: usize) -> (Option<usize>, bool) {
        let id = run.item.id;
        let goes_on = usize::from(run.item.num) > left;
        self.executors.complete(run.stage, run.pair, goes_on);
        if self.stretched == Some(id) && (run.item.start == 0 || !goes_on) {
            self.stretched = None;
        }
        let next = self.table.update(run.item, run.stage, left as u16);
        (next, !self.table.contains(id))
    }

    fn remove(&mut self, context: &mut Context<'_>, id: BatchId, slot: RequestSlot) {
        let batch = &mut self.batches[id.index()];
        batch.members.remove(context.fifo.links_mut(), slot.0);
        batch.rows -= context.fifo.request(slot).rows as usize;
    }

    /// Makes a batch of the first of those who skip, and of all who skip to the same stage.
    fn skip(&mut self, context: &mut Context<'_>, to: usize, created: Time, batch: Batch) -> isize {
        let count = self.skipping.iter().take_while(|(stage, ..)| *stage == to).count();
        let id = self.table.skip_to(to, count as u16, created);
        let place = &mut self.batches[id.index()];
        *place = batch;
        for (_, _, slot) in self.skipping.drain(..count) {
            place.members.push_back(context.fifo.links_mut(), slot.0);
            place.rows += context.fifo.request(slot).rows as usize;
        }
        self.executors.put(to, batch.pair());
        1 + self.split(context, id, to)
    }

    /// *split*, by policy II: halves, and halves of halves. Returns how many batches there are more.
    fn split(&mut self, context: &mut Context<'_>, id: BatchId, stage: usize) -> isize {
        let batch = *self.batch(id);
        let (mut at, mut first, mut next) = (0, 0, batch.members.front());
        while let Some(slot) = next.filter(|_| first < batch.rows.div_ceil(2)) {
            first += context.fifo.request(RequestSlot(slot)).rows as usize;
            (at, next) = (at + 1, context.fifo.links().next(slot));
        }
        let parts = (first, batch.rows - first);
        if next.is_none() || !context.plan.splits(context.model, stage, parts, batch.length) {
            return 0;
        }
        let other = self.table.split(id, stage, at);
        self.batches[other.index()] = Batch { members: List::default(), rows: 0, ..batch };
        while let Some(slot) = next {
            next = context.fifo.links().next(slot);
            self.remove(context, id, RequestSlot(slot));
            let part = &mut self.batches[other.index()];
            part.members.push_back(context.fifo.links_mut(), slot);
            part.rows += context.fifo.request(RequestSlot(slot)).rows as usize;
        }
        self.executors.put(stage, batch.pair());
        1 + self.split(context, id, stage) + self.split(context, other, stage)
    }
}
