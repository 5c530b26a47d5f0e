//! The batches of a model on a device, and their order.
//!
//! The executors are the paper's. The batch table is [`Cohorts`], in which the status of a batch is
//! the block that the batch is before. The batch that is furthest runs first, and the parts of a
//! split run one after the other, each to its end. Each batch has a buffer pair.
//!
//! Newcomers that catch up with a batch are a batch of their own, in another pair, until both are
//! before the same block. They run the first stages while the earlier batch ends its stage; then
//! the earlier batch waits for them. If either ends on its way, the other one continues. One batch
//! of the model can be stretched at a time.

use super::rules::SplitPlan;
use super::stage_executors::{BufferPair, StageExecutors};
use crate::fifo::Fifo;
use ripieno_base::{BlockId, ModelId, RequestSlot, Time};
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
    /// The pair of the newcomers, from which the merged batch reads, too.
    spare: BufferPair,
    /// Scratch memory: batches of members that skip.
    skipping: Vec<CohortId>,
}

impl Pipeline {
    /// Creates the pipeline of a model with these numbers of stages and buffer pairs; `queries`
    /// bounds the requests in it.
    pub(super) fn new(stages: usize, pairs: usize, queries: usize) -> Pipeline {
        Pipeline {
            executors: StageExecutors::new(stages, pairs),
            stages,
            batches: Vec::with_capacity(queries + 1),
            count: 0,
            stretched: None,
            newcomers: None,
            spare: 0,
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

    /// *new*: creates a batch before the first stage, in no pair yet, to which members are to be
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

    /// Returns the pair in which a batch may begin, except `other`.
    pub(super) fn entry(&self, other: Option<BufferPair>) -> Option<BufferPair> {
        let mut pairs = self.executors.pairs().filter(|&pair| Some(pair) != other);
        pairs.find(|&pair| self.executors.could_begin(pair))
    }

    /// Begins a formed batch in a pair: its members run from now on.
    pub(super) fn begin(&mut self, context: &mut PipelineContext<'_>, now: Time, id: CohortId, pair: BufferPair) {
        let own = context.cohorts.own_mut(id);
        (own.pair, own.begun) = (Some(pair), now);
        context.cohorts.members(id).for_each(|slot| context.fifo.disarm(slot));
        self.executors.put(0, pair);
    }

    /// Returns the batch that newcomers could join, if they could begin: the latest one, neither
    /// in its last stage nor about to be split nor split off.
    pub(super) fn stretchable(&self, cohorts: &Cohorts<PipelineBatch>) -> Option<CohortId> {
        let latest = self.batches.iter().copied().max_by_key(|&id| cohorts.get(id).own.number)?;
        let &Cohort { block, runs, own: PipelineBatch { pair, sealed, .. }, .. } = cohorts.get(latest);
        let has_begun = runs || block > BlockId(0);
        let meets = block.index() + usize::from(runs) < self.stages;
        let free = self.stretched.is_none() && self.entry(Some(pair?)).is_some();
        (has_begun && meets && !sealed && free).then_some(latest)
    }

    /// *stretch*: lets newcomers catch up with a batch, which waits for them at its next border.
    /// Returns the batch to which these are to be added.
    pub(super) fn stretch(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId, sealed: bool) -> CohortId {
        let (model, number) = (cohorts.get(id).model, self.number());
        self.spare = self.entry(Some(cohorts.get(id).own.pair())).expect("a batch that is stretchable");
        let own = cohorts.own_mut(id);
        own.sealed = sealed;
        let newcomers = PipelineBatch { pair: Some(self.spare), number, family: number, ..*own };
        let newcomers = cohorts.open(model, newcomers);
        self.batches.push(newcomers);
        self.executors.put(0, self.spare);
        (self.stretched, self.newcomers) = (Some(id), Some(newcomers));
        newcomers
    }

    /// Takes the furthest batch that may run.
    pub(super) fn next(&mut self, cohorts: &Cohorts<PipelineBatch>) -> Option<PipelineRun> {
        let held = self.stretched.filter(|_| self.newcomers.is_some());
        for stage in (0..self.stages).rev() {
            for &batch in &self.batches {
                let &Cohort { block, runs, own, .. } = cohorts.get(batch);
                let Some(pair) = own.pair.filter(|_| block.index() == stage && !runs && held != Some(batch)) else {
                    continue;
                };
                let merged = (self.stretched == Some(batch)).then_some(self.spare);
                if !self.waits_for_sibling(cohorts, batch) && self.executors.may_start(stage, pair, merged) {
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
        others.any(|other| other.own.family == family && (other.runs || other.block > block))
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

    /// Handles a batch that has run a stage. Returns the batch that is at a border now and waits
    /// for no other: this one, or the one that it has caught up with.
    fn advance_batch(&mut self, cohorts: &mut Cohorts<PipelineBatch>, id: CohortId, goes_on: bool) -> Option<CohortId> {
        self.remove(id);
        self.batches.extend(goes_on.then_some(id));
        let Some((batch, newcomers)) = self.stretched.zip(self.newcomers).filter(|pair| pair.0 == id || pair.1 == id)
        else {
            self.stretched = self.stretched.filter(|&batch| batch != id);
            return goes_on.then_some(id);
        };
        if !goes_on {
            (self.stretched, self.newcomers) = (None, None);
            let other = if id == batch { newcomers } else { batch };
            return Some(other).filter(|&other| !cohorts.get(other).runs && cohorts.get(other).block > BlockId(0));
        }
        if id == batch || cohorts.get(batch).runs || cohorts.get(id).block < cohorts.get(batch).block {
            return None;
        }
        self.newcomers = None;
        self.remove(id);
        cohorts.merge(id, batch);
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
