//! State of a model: its costs, and its requests in the policy.

use super::cost::LearntCost;
use super::devices::DeviceTimes;
use crate::Request;
use ripieno_base::{List, Nanos, Time};
use ripieno_model::{DropRule, Model};

/// A model and its requests in the policy.
#[derive(Debug)]
pub(super) struct AdmittedModel {
    pub(super) cost: LearntCost,
    pub(super) drop: Option<DropRule>,
    /// Rows of requests in the policy.
    pub(super) rows: usize,
    /// Requests that have not been started, the most urgent first, and their rows.
    pub(super) waiting: List,
    pub(super) waiting_rows: usize,
    pub(super) waiting_work: i64,
    /// Remaining work, including that of tasks in flight, and the device time of these so far.
    pub(super) work: i64,
    pub(super) spent: i64,
    /// This model's part of [`Admission::backlog`].
    pub(super) backlog: i64,
    /// The last two times at which requests arrived, the later one first.
    arrivals: [Option<Time>; 2],
}

/// Time within which a model with two arrivals counts as in use.
const IN_USE: Nanos = Nanos::from_millis(10_000);

impl AdmittedModel {
    pub(super) fn new(model: Box<Model>, devices: usize) -> AdmittedModel {
        let drop = model.drop;
        AdmittedModel {
            cost: LearntCost::new(model, devices),
            drop,
            rows: 0,
            waiting: List::default(),
            waiting_rows: 0,
            waiting_work: 0,
            work: 0,
            spent: 0,
            backlog: 0,
            arrivals: [None; 2],
        }
    }

    /// Returns whether late answers are acceptable.
    pub(super) fn may_be_late(&self) -> bool {
        matches!(self.drop, Some(DropRule::Never | DropRule::Expired))
    }

    /// Records the arrival of a request.
    pub(super) fn note_request(&mut self, now: Time) {
        if self.arrivals[0] != Some(now) {
            self.arrivals = [Some(now), self.arrivals[0]];
        }
    }

    /// Returns whether requests of other models above their share leave room in the queue for those
    /// of this one: it has been asked twice within [`IN_USE`], and its requests can be late.
    pub(super) fn needs_room(&self, now: Time) -> bool {
        !self.may_be_late() && self.arrivals[1].is_some_and(|earlier| now - earlier < IN_USE)
    }

    /// Returns whether a request would be late on the fastest device, were it idle.
    pub(super) fn is_hopeless(&self, now: Time, request: &Request, devices: &DeviceTimes) -> bool {
        let alone = devices.at_best(self.cost.alone(request, request.rows as usize));
        !self.may_be_late() && now + alone > request.deadline
    }

    /// Returns the rows with which a new request is likely to share a batch: those not started, or,
    /// where requests join running batches, those of one device.
    pub(super) fn together(&self, devices: usize) -> usize {
        if self.cost.model().walk.is_unfolded() { self.rows / devices } else { self.waiting_rows }
    }

    /// Returns the device time of requests that have not been started, with additional rows and
    /// work.
    pub(super) fn not_started(&self, rows: usize, work: i64) -> i64 {
        self.cost.corrected(self.cost.in_batches_of(self.waiting_work + work, self.waiting_rows + rows))
    }

    /// Returns the remaining device time of started requests.
    pub(super) fn started(&self, devices: usize) -> i64 {
        let work = self.cost.in_batches_of(self.work - self.waiting_work, self.rows.div_ceil(devices.max(1)));
        (self.cost.corrected(work) - self.spent).max(0)
    }

    /// Returns the device time until additional rows of a model in cells find room in its batches.
    pub(super) fn beyond(&self, devices: usize, rows: usize, work: i64) -> i64 {
        let most = self.cost.model().blocks.iter().map(|block| block.max_batch()).min().unwrap_or(1);
        let (all, waiting) = (self.rows + rows, self.waiting_rows + rows);
        let beyond = all.saturating_sub(most.saturating_mul(devices)).min(waiting);
        let part = i128::from(self.waiting_work + work) * beyond as i128 / waiting.max(1) as i128;
        self.cost.corrected(part.min(i128::from(i64::MAX)) as i64)
    }

    /// Updates its backlog; returns the change.
    pub(super) fn recount(&mut self, devices: usize) -> i64 {
        let now = self.estimate(devices, 0, 0);
        now - std::mem::replace(&mut self.backlog, now)
    }

    /// Returns its backlog with additional waiting rows and work. Waiting requests share batches
    /// with other waiting ones; where requests join running batches, with all present ones.
    pub(super) fn estimate(&self, devices: usize, rows: usize, work: i64) -> i64 {
        let unfolds = self.cost.model().walk.is_unfolded();
        let work = if unfolds {
            self.cost.in_batches_of(self.work + work, (self.rows + rows).div_ceil(devices.max(1)))
        } else {
            let waiting = self.cost.in_batches_of(self.waiting_work + work, self.waiting_rows + rows);
            waiting.saturating_add(self.work - self.waiting_work)
        };
        (self.cost.corrected(work) - self.spent).max(0)
    }
}
