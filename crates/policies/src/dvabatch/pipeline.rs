//! The batches of a model on a device, their lanes and their order.
//!
//! The executors are the paper's; the batch table is [`Cohorts`], where the status of a batch is
//! the block that it is before. The batch that is furthest runs first, and the parts of a split run
//! one after the other, each to its end. Newcomers that catch up with a batch are a batch of their
//! own until they are before the same block; if they end on their way, the other batch continues.
//! One batch of the model can be stretched at a time.
//!
//! With lanes, a batch and all that is split from it run on one lane, which has the buffer pair of
//! its number; newcomers use one more pair. With one executor per stage, a batch takes a pair in
//! which it can begin, and newcomers any other one.

use super::rules::{Executors, SplitPlan};
use super::stage_executors::{BufferPair, StageExecutors};
use crate::fifo::Fifo;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, Time};
use ripieno_model::Model;
use ripieno_sched::TaskDone;
use ripieno_sched::tables::cohorts::{Cohort, CohortId, Cohorts};

/// State of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineBatch {
    /// Pair of buffers; `None` until the batch begins.
    pair: Option<BufferPair>,
    /// Start of the batch.
    pub(super) begun: Time,
    /// True if no request may join any more: a split awaits the batch, or it came from one or
    /// skipped a stage.
    sealed: bool,
    /// Number among the batches of the model on this device.
    number: u64,
    /// The number of the batch that it was split from, or its own.
    family: u64,
}

impl PipelineBatch {
    fn pair(&self) -> BufferPair {
        self.pair.expect("a batch that runs has a buffer pair")
    }
}

/// Returns the buffer pair of a lane.
fn pair(lane: LaneId) -> BufferPair {
    lane.0 as BufferPair
}

/// The tables of requests and the model of a pipeline.
pub(super) struct PipelineContext<'a> {
    pub(super) cohorts: &'a mut Cohorts<PipelineBatch>,
    pub(super) fifo: &'a mut Fifo,
    pub(super) model: &'a Model,
    pub(super) plan: &'a SplitPlan,
}

/// A batch that runs one of its stages on a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineRun {
    pub(super) batch: CohortId,
    pair: BufferPair,
}

/// The batches of a model on a device.
#[derive(Debug)]
pub(super) struct Pipeline {
    executors: StageExecutors,
    /// Whether a lane has the pair of its number, and newcomers the last one.
    by_lane: bool,
    /// Number of stages.
    stages: usize,
    /// The batches in the order in which they reached their current stage; parts of a split are
    /// adjacent.
    batches: Vec<CohortId>,
    /// Number of batches so far.
    count: u64,
    /// The batch that newcomers join, until a stage has run it together with them.
    stretched: Option<CohortId>,
    /// The newcomers that catch up with `stretched`, while it waits.
    newcomers: Option<CohortId>,
    /// The pair of the newcomers.
    spare: BufferPair,
    /// Scratch memory: batches of members that skip.
    skipping: Vec<CohortId>,
}

impl Pipeline {
    pub(super) fn new(stages: usize, executors: Executors, queries: usize) -> Pipeline {
        let (by_lane, pairs, width) = match executors {
            Executors::Lanes(lanes) => (true, lanes + 1, lanes),
            Executors::Stages(pairs) => (false, pairs, 1),
        };
        Pipeline {
            executors: StageExecutors::new(stages, pairs, width),
            by_lane,
            stages,
            batches: Vec::with_capacity(queries + 1),
            count: 0,
            stretched: None,
            newcomers: None,
            spare: (pairs - 1) as BufferPair,
            skipping: Vec::with_capacity(queries),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the rows of all batches.
    pub(super) fn rows(&self, cohorts: &Cohorts<PipelineBatch>) -> usize {
        self.batches.iter().map(|&id| cohorts.get(id).rows).sum()
    }

    /// Returns whether a lane has a batch that continues there.
    pub(super) fn uses(&self, cohorts: &Cohorts<PipelineBatch>, lane: LaneId) -> bool {
        self.by_lane && self.batches.iter().any(|&id| cohorts.get(id).own.pair == Some(pair(lane)))
    }

    /// *new*: creates a batch before the first stage, on no lane yet, to which members are to be
    /// added.
    pub(super) fn open(&mut self, cohorts: &mut Cohorts<PipelineBatch>, model: ModelId, sealed: bool) -> CohortId {
        let number = self.number();
        let own = PipelineBatch { pair: None, begun: Time::NEVER, sealed, number, family: number };
        let id = cohorts.open(model, own);
        self.batches.push(id);
        id
    }

    /// Adds a batch that another device has formed and that has not begun.
    pub(super) fn take_over(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId) {
        let (number, own) = (self.number(), cohorts.own_mut(id));
        (own.number, own.family) = (number, number);
        self.batches.push(id);
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Returns the first batch that has been formed and has not begun.
    pub(super) fn formed(&self, cohorts: &Cohorts<PipelineBatch>) -> Option<CohortId> {
        self.batches.iter().copied().find(|&id| cohorts.get(id).own.pair.is_none())
    }

    /// Removes a request from its batch, if that has not begun; returns false otherwise.
    pub(super) fn withdraw(&mut self, context: &mut PipelineContext<'_>, slot: RequestSlot) -> bool {
        let PipelineContext { cohorts, fifo, model, plan } = context;
        let own = |id: &CohortId| cohorts.get(*id).own.pair.is_none() && self.batches.contains(id);
        let Some(id) = cohorts.of(slot).filter(own) else {
            return false;
        };
        fifo.disarm(slot);
        if cohorts.withdraw(slot) {
            let &Cohort { rows, length, .. } = cohorts.get(id);
            cohorts.own_mut(id).sealed = plan.will_split(model, 1, rows, length);
        } else {
            self.remove(id);
        }
        true
    }

    /// Returns whether a batch has begun and not ended.
    pub(super) fn goes_on(&self, cohorts: &Cohorts<PipelineBatch>) -> bool {
        self.batches.iter().any(|&id| cohorts.get(id).own.pair.is_some())
    }

    /// Returns whether a batch could begin now, given a free lane.
    pub(super) fn could_begin(&self) -> bool {
        self.by_lane || self.executors.pairs().any(|pair| self.executors.could_begin(pair))
    }

    /// Returns the pair in which a batch may begin on a free lane.
    pub(super) fn entry(&self, lane: LaneId) -> Option<BufferPair> {
        match self.by_lane {
            true => Some(pair(lane)).filter(|&pair| self.executors.takes(0, pair)),
            false => self.executors.pairs().find(|&pair| self.executors.could_begin(pair)),
        }
    }

    /// Begins a formed batch in a pair: its members run from now on.
    pub(super) fn begin(&mut self, context: &mut PipelineContext<'_>, now: Time, id: CohortId, pair: BufferPair) {
        let own = context.cohorts.own_mut(id);
        (own.pair, own.begun) = (Some(pair), now);
        context.cohorts.members(id).for_each(|slot| context.fifo.disarm(slot));
        self.executors.put(0, pair);
    }

    /// Returns the batch that newcomers could join before a free lane continues: the latest one, at
    /// a border, neither about to be split nor split off.
    pub(super) fn stretchable(&self, cohorts: &Cohorts<PipelineBatch>, lane: LaneId) -> Option<CohortId> {
        let latest = self.batches.iter().copied().max_by_key(|&id| cohorts.get(id).own.number)?;
        let &Cohort { block, runs, own: PipelineBatch { pair: of, sealed, .. }, .. } = cohorts.get(latest);
        let here = !self.by_lane || of == Some(pair(lane));
        let free = self.stretched.is_none() && self.free_beside(of?).is_some();
        (here && !sealed && !runs && block > BlockId(0) && free).then_some(latest)
    }

    /// Returns the pair in which newcomers could catch up with a batch of pair `of`.
    fn free_beside(&self, of: BufferPair) -> Option<BufferPair> {
        let mut pairs =
            self.executors.pairs().filter(|&pair| if self.by_lane { pair == self.spare } else { pair != of });
        pairs.find(|&pair| self.executors.takes(0, pair))
    }

    /// *stretch*: makes a batch wait until newcomers have caught up. Returns the batch to which
    /// these are to be added.
    pub(super) fn stretch(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId, sealed: bool) -> CohortId {
        let (model, number) = (cohorts.get(id).model, self.number());
        self.spare = self.free_beside(cohorts.get(id).own.pair()).expect("a batch that is stretchable");
        let own = cohorts.own_mut(id);
        own.sealed = sealed;
        let newcomers = PipelineBatch { number, family: number, ..*own };
        let newcomers = cohorts.open(model, newcomers);
        self.batches.push(newcomers);
        self.executors.put(0, self.spare);
        (self.stretched, self.newcomers) = (Some(id), Some(newcomers));
        newcomers
    }

    /// Takes the furthest batch that may run on a free lane.
    pub(super) fn next(&mut self, cohorts: &Cohorts<PipelineBatch>, lane: LaneId) -> Option<PipelineRun> {
        let held = self.stretched.filter(|_| self.newcomers.is_some());
        for stage in (0..self.stages).rev() {
            for &batch in &self.batches {
                let &Cohort { block, runs, own, .. } = cohorts.get(batch);
                let Some(of) = own.pair.filter(|&of| !self.by_lane || of == pair(lane)) else {
                    continue;
                };
                if block.index() != stage || held == Some(batch) || runs || self.waits_for_sibling(cohorts, batch) {
                    continue;
                }
                let pair = if self.newcomers == Some(batch) { self.spare } else { of };
                let merged = (self.stretched == Some(batch)).then_some(self.spare);
                if self.executors.may_start(stage, pair, merged) {
                    let begun = self.executors.pull(stage, pair) && self.executors.check(stage, pair, merged);
                    assert!(begun, "an executor may start what it said it may: {batch:?} at stage {stage}");
                    return Some(PipelineRun { batch, pair });
                }
            }
        }
        None
    }

    /// Returns whether a part of the same split is further on, or running.
    fn waits_for_sibling(&self, cohorts: &Cohorts<PipelineBatch>, id: CohortId) -> bool {
        let &Cohort { block, own: PipelineBatch { family, .. }, .. } = cohorts.get(id);
        let mut others = self.batches.iter().filter(|&&other| other != id).map(|&other| cohorts.get(other));
        !self.by_lane && others.any(|other| other.own.family == family && (other.runs || other.block > block))
    }

    /// Ends a stage: ended members leave, members that skip continue as a batch of their own, and a
    /// batch before the next stage is split if that is better.
    pub(super) fn end(
        &mut self,
        context: &mut PipelineContext<'_>,
        run: PipelineRun,
        ran: &[RequestSlot],
        done: &TaskDone<'_>,
    ) {
        let PipelineContext { cohorts, fifo, model, .. } = context;
        let PipelineRun { batch: id, pair } = run;
        let stage = cohorts.get(id).block;
        cohorts.report(id, ran, model, done);
        self.split_skippers(cohorts, id, stage);
        let goes_on = cohorts.advance(id, |slot| fifo.end(slot, done.outcome));
        self.executors.complete(stage.index(), pair, goes_on);
        let stands = self.advance_batch(cohorts, id, goes_on);
        for at in 0..self.skipping.len() {
            let skipped = self.skipping[at];
            let &Cohort { block, own, .. } = context.cohorts.get(skipped);
            self.batches.push(skipped);
            self.executors.put(block.index(), own.pair());
            self.split(context, skipped);
        }
        if let Some(id) = stands {
            self.split(context, id);
        }
    }

    /// Makes a batch of the members that skip to the same stage, for each such stage.
    fn split_skippers(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId, stage: BlockId) {
        self.skipping.clear();
        let own = cohorts.get(id).own;
        let beyond = |cohorts: &Cohorts<PipelineBatch>| {
            cohorts.members(id).filter_map(|slot| cohorts.next(slot)).filter(|to| to.0 > stage.0 + 1).min()
        };
        while let Some(to) = beyond(cohorts) {
            let number = self.number();
            let own = PipelineBatch { sealed: true, number, family: number, ..own };
            let skipped = cohorts.split(id, own, |_, next| next == Some(to));
            cohorts.advance(skipped, |slot| unreachable!("{slot:?} goes on"));
            self.skipping.push(skipped);
        }
    }

    /// Handles a batch that has run a stage. Returns the batch that is at a border now: this one,
    /// or the one that it has caught up with.
    fn advance_batch(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId, goes_on: bool) -> Option<CohortId> {
        self.remove(id);
        let Some(batch) = self.stretched.filter(|_| self.newcomers == Some(id)) else {
            self.stretched = self.stretched.filter(|&batch| batch != id);
            self.batches.extend(goes_on.then_some(id));
            return goes_on.then_some(id);
        };
        if goes_on && cohorts.get(id).block < cohorts.get(batch).block {
            self.batches.push(id);
            return None;
        }
        self.newcomers = None;
        if goes_on {
            cohorts.merge(id, batch);
        } else {
            self.stretched = None;
        }
        self.remove(batch);
        self.batches.push(batch);
        Some(batch)
    }

    /// *split*, by policy II: into halves, recursively.
    fn split(&mut self, context: &mut PipelineContext<'_>, id: CohortId) {
        let PipelineContext { cohorts, fifo, model, plan } = context;
        let &Cohort { block, rows, length, own, .. } = cohorts.get(id);
        let (mut first, mut count) = (0, 0);
        for slot in cohorts.members(id) {
            if first >= rows.div_ceil(2) {
                break;
            }
            (first, count) = (first + fifo.request(slot).rows as usize, count + 1);
        }
        if first == rows || !plan.splits(model, block.index(), (first, rows - first), length) {
            return;
        }
        cohorts.own_mut(id).sealed = true;
        let other = PipelineBatch { sealed: true, number: self.number(), ..own };
        let other = cohorts.split(id, other, |place, _| place >= count);
        let place = self.batches.iter().position(|&batch| batch == id).expect("it stands here");
        self.batches.insert(place + 1, other);
        self.executors.put(block.index(), own.pair());
        self.split(context, id);
        self.split(context, other);
    }

    /// Removes all batches; passes all members to `lost`, the oldest batch first.
    pub(super) fn clear(&mut self, cohorts: &mut Cohorts<PipelineBatch>, lost: &mut Vec<RequestSlot>) {
        self.batches.sort_unstable_by_key(|&id| cohorts.get(id).own.number);
        self.batches.drain(..).for_each(|id| cohorts.drain(id, |slot| lost.push(slot)));
        self.executors.clear();
        (self.stretched, self.newcomers) = (None, None);
    }

    pub(super) fn remove(&mut self, id: CohortId) {
        self.batches.retain(|&batch| batch != id);
    }
}
