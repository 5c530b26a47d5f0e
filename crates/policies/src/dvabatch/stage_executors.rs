//! Stage executors and their buffer pairs: the rules by which a stage may run on a pair, so that no
//! tensor is read while it is written, or overwritten while it is needed.
//!
//! # The rules of the paper
//!
//! Stage i of a pair reads the pair's buffer before it and writes the buffer after it, which stage
//! i + 1 reads. When a stage has run on a pair, its input buffer there is *invalid*: the batch is
//! further on in the same pair. The next batch may write this buffer, but not read it yet.
//!
//! The stage must then find another pair that it could use, to become *active* again. Only then
//! does it legitimise the first pair for the stage before it. The last stage is active again
//! immediately. With a single pair all stages therefore stay *inactive* until the batch has left
//! the last one, which is serial execution. With two or more pairs the stages work as a pipeline,
//! with any number of batches in any order. For this, an executor that has pulled an item *checks*
//! the pair of that item.
//!
//! # Beyond the paper
//!
//! `split` leaves several items in one buffer, which are read one after the other, so a buffer with
//! unread items is not written. An item that ends frees its pair immediately.
//!
//! # Checked
//!
//! This is a pure state machine, tested over all interleavings of small configurations.

/// The state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Buffer {
    /// Idle: it may be read and written.
    Available,
    /// The pair is used further on: it may be written, but not read.
    Invalid,
    InReading,
    /// It is being written; true if it was invalid before, and will be so afterwards.
    InWriting(bool),
}

/// The state of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StageExecutor {
    /// It has a pair that it could use, and may pull an item.
    Active,
    /// It has pulled an item of this pair, which is not legitimate yet.
    Checking(BufferPair),
    /// It runs an item of this pair, merged with one of the other pair.
    Working(BufferPair, Option<BufferPair>),
    /// There is no pair that it could use.
    Inactive,
}

/// A buffer pair.
pub(super) type BufferPair = u8;

/// All executors of a model on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StageExecutors {
    /// Number of stages.
    stages: usize,
    /// Number of buffer pairs between two stages.
    pairs: usize,
    /// State of the executor of each stage.
    executors: Vec<StageExecutor>,
    /// State by boundary and pair; boundary i is before stage i, the last one after the last stage.
    buffers: Vec<Buffer>,
    /// Number of unread items, by boundary and pair.
    unread: Vec<u16>,
    /// Whether, by stage, the pair is to be legitimised for the previous stage once this
    /// one is active.
    owed: Vec<bool>,
    /// A rule to break, to test the tests.
    #[cfg(test)]
    broken: tests::Broken,
}

impl StageExecutors {
    pub(super) fn new(stages: usize, pairs: usize) -> StageExecutors {
        assert!(stages > 0 && pairs > 0 && pairs <= usize::from(BufferPair::MAX));
        StageExecutors {
            stages,
            pairs,
            executors: vec![StageExecutor::Active; stages],
            buffers: vec![Buffer::Available; (stages + 1) * pairs],
            unread: vec![0; (stages + 1) * pairs],
            owed: vec![false; stages * pairs],
            #[cfg(test)]
            broken: tests::Broken::Nothing,
        }
    }

    /// Returns whether an item may be put before a stage in a pair: the buffer is idle and has no
    /// unread item.
    pub(super) fn takes(&self, stage: usize, pair: BufferPair) -> bool {
        let idle = matches!(self.buffer(stage, pair), Buffer::Available | Buffer::Invalid);
        idle && self.unread[self.at(stage, pair)] == 0
    }

    /// Puts an item before a stage: new queries, or parts of a batch after its first.
    pub(super) fn put(&mut self, stage: usize, pair: BufferPair) {
        let at = self.at(stage, pair);
        self.unread[at] += 1;
    }

    /// Returns whether a stage could begin immediately with the item before it in `pair`, merged
    /// with the one in `merged`.
    pub(super) fn may_start(&self, stage: usize, pair: BufferPair, merged: Option<BufferPair>) -> bool {
        let bound = [StageExecutor::Checking(pair), StageExecutor::Active].contains(&self.executors[stage]);
        bound && self.is_ready(stage, pair, merged)
    }

    /// Returns whether the first stage could begin immediately with an item that is put into
    /// `pair`.
    pub(super) fn could_begin(&self, pair: BufferPair) -> bool {
        self.takes(0, pair) && self.executors[0] == StageExecutor::Active && self.is_legitimate(0, pair)
    }

    /// Lets the executor of a stage pull an item of a pair; returns false if it is not active.
    pub(super) fn pull(&mut self, stage: usize, pair: BufferPair) -> bool {
        let active = self.executors[stage] == StageExecutor::Active;
        if active {
            self.executors[stage] = StageExecutor::Checking(pair);
        }
        active
    }

    /// Lets the executor that has pulled an item of `pair` begin; returns false if the pair is not
    /// legitimate yet.
    pub(super) fn check(&mut self, stage: usize, pair: BufferPair, merged: Option<BufferPair>) -> bool {
        if !self.is_ready(stage, pair, merged) {
            return false;
        }
        assert_eq!(self.executors[stage], StageExecutor::Checking(pair), "the executor pulled it");
        self.executors[stage] = StageExecutor::Working(pair, merged);
        for from in [Some(pair), merged].into_iter().flatten() {
            let at = self.at(stage, from);
            self.buffers[at] = Buffer::InReading;
            self.unread[at] -= 1;
        }
        let to = self.at(stage + 1, pair);
        self.buffers[to] = Buffer::InWriting(self.buffers[to] == Buffer::Invalid);
        true
    }

    /// Ends an executor's item of `pair`; `goes_on` is true if any part of it is before the next
    /// stage now.
    pub(super) fn complete(&mut self, stage: usize, pair: BufferPair, goes_on: bool) {
        let StageExecutor::Working(of, merged) = self.executors[stage] else { unreachable!("stage {stage} works") };
        assert_eq!(of, pair, "the executor works on this pair");
        self.executors[stage] = StageExecutor::Inactive;
        let to = self.at(stage + 1, pair);
        let Buffer::InWriting(invalid) = self.buffers[to] else { unreachable!("the output was being written") };
        self.buffers[to] = if invalid { Buffer::Invalid } else { Buffer::Available };
        self.unread[to] += u16::from(goes_on);
        let from = self.at(stage, pair);
        self.buffers[from] = if goes_on { Buffer::Invalid } else { Buffer::Available };
        self.owed[stage * self.pairs + usize::from(pair)] = true;
        if let Some(merged) = merged {
            let from = self.at(stage, merged);
            self.buffers[from] = Buffer::Available;
            self.owed[stage * self.pairs + usize::from(merged)] = true;
        }
        self.settle();
    }

    /// Resets all state, after a lost device.
    pub(super) fn clear(&mut self) {
        self.executors.fill(StageExecutor::Active);
        self.buffers.fill(Buffer::Available);
        self.unread.fill(0);
        self.owed.fill(false);
    }

    /// Returns the buffer pairs.
    pub(super) fn pairs(&self) -> impl Iterator<Item = BufferPair> + use<> {
        0..self.pairs as BufferPair
    }

    /// Activates executors, from the last stage to the first, since each may legitimise pairs for
    /// the previous one.
    fn settle(&mut self) {
        for stage in (0..self.stages).rev() {
            let last = stage + 1 == self.stages;
            let usable = last || (0..self.pairs).any(|pair| self.is_legitimate(stage, pair as BufferPair));
            let wakes = usable && self.executors[stage] == StageExecutor::Inactive;
            if wakes {
                self.executors[stage] = StageExecutor::Active;
            }
            #[cfg(test)]
            let wakes = wakes || self.broken == tests::Broken::LegitimiseAtCompletion;
            if wakes {
                self.legitimise(stage);
            }
        }
    }

    /// Legitimises, for the previous stage, the pairs whose items this stage has all completed.
    fn legitimise(&mut self, stage: usize) {
        for pair in 0..self.pairs {
            let (input, before) =
                (self.at(stage, pair as BufferPair), self.at(stage.saturating_sub(1), pair as BufferPair));
            let wanted = self.buffers[input] == Buffer::InReading || self.unread[input] > 0;
            if self.owed[stage * self.pairs + pair] && !wanted {
                self.owed[stage * self.pairs + pair] = false;
                self.buffers[before] = match self.buffers[before] {
                    Buffer::Invalid if stage > 0 => Buffer::Available,
                    Buffer::InWriting(_) if stage > 0 => Buffer::InWriting(false),
                    other => other,
                };
            }
        }
    }

    /// Returns whether a stage could use a pair.
    fn is_legitimate(&self, stage: usize, pair: BufferPair) -> bool {
        let output = self.buffer(stage + 1, pair);
        let writable = matches!(output, Buffer::Available | Buffer::Invalid);
        let wanted = self.unread[self.at(stage + 1, pair)] > 0;
        #[cfg(test)]
        let wanted = wanted && self.broken != tests::Broken::OverwriteUnread;
        self.buffer(stage, pair) == Buffer::Available && writable && !wanted
    }

    fn is_ready(&self, stage: usize, pair: BufferPair, merged: Option<BufferPair>) -> bool {
        let readable =
            |pair: BufferPair| self.buffer(stage, pair) == Buffer::Available && self.unread[self.at(stage, pair)] > 0;
        readable(pair) && merged.is_none_or(readable) && self.is_legitimate(stage, pair)
    }

    fn buffer(&self, boundary: usize, pair: BufferPair) -> Buffer {
        self.buffers[self.at(boundary, pair)]
    }

    fn at(&self, boundary: usize, pair: BufferPair) -> usize {
        boundary * self.pairs + usize::from(pair)
    }
}

#[cfg(test)]
mod tests;
