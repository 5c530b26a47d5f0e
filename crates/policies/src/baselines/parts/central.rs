//! Ranked candidates, one per model, for a scheduler that sees all requests and decides for all
//! devices.
//!
//! A candidate is computed for the time at which the device can begin. It stays the best one until
//! the queue changes or the candidate's latest start passes, since until then no later time allows
//! a larger batch. Only models whose queue changed, or whose candidate has passed, are recomputed,
//! so a decision costs O(log models).

use super::placement::DeviceTable;
use super::pool::{Aim, BatchPool, PoolCandidate};
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Time};
use ripieno_sched::Outbox;

/// The selection of requests for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CentralGather {
    /// A prefix of the queue that the deadline of its head allows.
    Prefix,
    /// The largest possible batch; heads before it are passed over.
    Largest,
}

/// The candidates of all models; queue and model have the same number.
#[derive(Debug)]
pub(crate) struct Central<R> {
    /// The rule that forms candidates.
    gather: CentralGather,
    /// Rank of a candidate: the least goes first.
    rank: fn(&PoolCandidate) -> R,
    /// Candidate of each model.
    candidates: Vec<Option<PoolCandidate>>,
    /// Models with a candidate, the best first.
    ranked: IndexedHeap<R>,
    /// The same models by the latest start of the candidate.
    passing: IndexedHeap<Time>,
    /// Models whose candidate may have changed.
    touched: Vec<u16>,
    /// True for each model in `touched`.
    is_touched: Vec<bool>,
    /// The start time for which the candidates were computed.
    at: Time,
    /// Devices that proved too slow for all waiting requests.
    slow: Vec<DeviceId>,
}

impl<R: Copy + Ord + Default> Central<R> {
    pub(crate) fn new(
        limits: &ripieno_sched::Limits,
        gather: CentralGather,
        rank: fn(&PoolCandidate) -> R,
    ) -> Central<R> {
        Central {
            gather,
            rank,
            candidates: vec![None; limits.models],
            ranked: IndexedHeap::new(limits.models),
            passing: IndexedHeap::new(limits.models),
            touched: Vec::with_capacity(limits.models),
            is_touched: vec![false; limits.models],
            at: Time::ORIGIN,
            slow: Vec::with_capacity(limits.devices),
        }
    }

    /// Marks a model whose candidate may have changed.
    pub(crate) fn touch(&mut self, model: usize) {
        if !std::mem::replace(&mut self.is_touched[model], true) {
            self.touched.push(model as u16);
        }
    }

    /// Marks all models.
    pub(crate) fn touch_all(&mut self) {
        (0..self.candidates.len()).for_each(|model| self.touch(model));
    }

    /// Updates the candidates for a batch that begins at `at`.
    pub(crate) fn refresh(&mut self, pool: &BatchPool, at: Time) {
        if at < self.at {
            // An earlier time may allow larger batches.
            self.touch_all();
        }
        self.at = at;
        while let Some((_, model)) = self.passing.peek().filter(|&(latest, _)| latest < at) {
            self.passing.remove(model);
            self.touch(model);
        }
        while let Some(model) = self.touched.pop() {
            let model = usize::from(model);
            self.is_touched[model] = false;
            self.candidates[model] = self.gather(pool, model, at, 100);
            match &self.candidates[model] {
                Some(candidate) => {
                    self.ranked.set(model, (self.rank)(candidate));
                    self.passing.set(model, candidate.latest);
                }
                None => {
                    self.ranked.remove(model);
                    self.passing.remove(model);
                }
            }
        }
    }

    fn gather(&self, pool: &BatchPool, model: usize, at: Time, percent: u32) -> Option<PoolCandidate> {
        let id = pool.model_of(model).filter(|&id| pool.has_instance(id))?;
        let cap = pool.served(id).max_batch;
        let target = if self.gather == CentralGather::Largest { cap } else { 0 };
        pool.gather(model, at, percent, Aim { target, cap })
    }

    /// Returns the best candidate; call [`Central::refresh`] before.
    pub(crate) fn best(&self) -> Option<PoolCandidate> {
        self.ranked.peek().and_then(|(_, model)| self.candidates[model])
    }

    /// Commits the best batch that can begin at `at` to a device. Returns false if there is none.
    pub(crate) fn give(
        &mut self,
        now: Time,
        at: Time,
        device: DeviceId,
        table: &mut DeviceTable,
        out: &mut Outbox,
    ) -> bool {
        self.refresh(&table.pool, at);
        match self.ranked.peek() {
            Some((_, model)) => {
                self.give_best(now, at, (device, model), 1, table, out);
                true
            }
            None => self.give_overdue(now, device, table, out),
        }
    }

    /// Commits the best batch that can begin at `at` to a device, if it has at least `least` rows
    /// there. Returns false if not.
    pub(crate) fn give_large(
        &mut self,
        now: Time,
        at: Time,
        device: DeviceId,
        least: usize,
        table: &mut DeviceTable,
        out: &mut Outbox,
    ) -> bool {
        let Some((_, model)) = self.ranked.peek() else {
            return false;
        };
        self.give_best(now, at, (device, model), least, table, out)
    }

    fn give_best(
        &mut self,
        now: Time,
        at: Time,
        (device, model): (DeviceId, usize),
        least: usize,
        table: &mut DeviceTable,
        out: &mut Outbox,
    ) -> bool {
        let candidate = self.gather(&table.pool, model, at, table.percent(device));
        match candidate.filter(|candidate| candidate.rows >= least) {
            Some(candidate) => {
                table.commit(now, model, candidate, device, out);
                self.touch(model);
                true
            }
            None => {
                table.set_aside(device);
                self.slow.push(device);
                false
            }
        }
    }

    /// Commits overdue requests to a free device.
    fn give_overdue(&mut self, now: Time, device: DeviceId, table: &mut DeviceTable, out: &mut Outbox) -> bool {
        let may = |queue: usize| table.pool.has_instance(ModelId(queue as u16));
        let Some(queue) = table.pool.oldest_overdue(may).filter(|_| table.is_free(device)) else {
            return false;
        };
        table.commit_overdue(now, queue, device, out);
        self.touch(queue);
        true
    }

    /// Ends a round: devices that were set aside are available again.
    pub(crate) fn end_round(&mut self, now: Time, table: &mut DeviceTable) {
        while let Some(device) = self.slow.pop() {
            table.bring_back(now, device);
        }
    }
}
