//! What is kept of a model: its costs, and what of it is in the policy.

use super::cost::LearntCost;
use super::devices::DeviceTimes;
use crate::Request;
use ripieno_base::{List, Time};
use ripieno_model::{DropRule, Model};

/// A model and what of it is in the policy.
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
    /// Work that is not done, that of tasks in flight among it, and what these have taken.
    pub(super) work: i64,
    pub(super) spent: i64,
    /// Of [`Admission::backlog`], this model's part.
    pub(super) backlog: i64,
    /// When a request came last.
    pub(super) asked: Option<Time>,
}

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
            asked: None,
        }
    }

    /// Whether its lateness is nobody's concern.
    pub(super) fn may_be_late(&self) -> bool {
        matches!(self.drop, Some(DropRule::Never | DropRule::Expired))
    }

    /// Whether a request would be late on the fastest device, were it idle.
    pub(super) fn is_futile(&self, now: Time, request: &Request, devices: &DeviceTimes) -> bool {
        let alone = devices.at_best(self.cost.alone(request, request.rows as usize));
        !self.may_be_late() && now + alone > request.deadline
    }

    /// Rows with which a request that comes now is likely to share a batch: who has not been started, or where requests join on
    /// the way, what a device has.
    pub(super) fn together(&self, devices: usize) -> usize {
        if self.cost.model().walk.is_unfolded() { self.rows / devices } else { self.waiting_rows }
    }

    /// Device time that those are to take who have not been started, so many more rows and so much more work among them.
    pub(super) fn unbegun(&self, rows: usize, work: i64) -> i64 {
        self.cost.corrected(self.cost.in_batches_of(self.waiting_work + work, self.waiting_rows + rows))
    }

    /// Device time that those are still to take that have been started.
    pub(super) fn begun(&self, devices: usize) -> i64 {
        let work = self.cost.in_batches_of(self.work - self.waiting_work, self.rows.div_ceil(devices.max(1)));
        (self.cost.corrected(work) - self.spent).max(0)
    }

    /// Device time until so many rows more of a model in cells find room in its batches, of work that has not been started.
    pub(super) fn beyond(&self, devices: usize, rows: usize, work: i64) -> i64 {
        let most = self.cost.model().blocks.iter().map(|block| block.max_batch()).min().unwrap_or(1);
        let (all, waiting) = (self.rows + rows, self.waiting_rows + rows);
        let beyond = all.saturating_sub(most.saturating_mul(devices)).min(waiting);
        let part = i128::from(self.waiting_work + work) * beyond as i128 / waiting.max(1) as i128;
        self.cost.corrected(part.min(i128::from(i64::MAX)) as i64)
    }

    /// Brings its backlog up to date; by how much it has changed.
    pub(super) fn recount(&mut self, devices: usize) -> i64 {
        let now = self.reckon(devices, 0, 0);
        now - std::mem::replace(&mut self.backlog, now)
    }

    /// Its backlog with so many more rows and so much more work that waits. Who waits will share batches with others who wait;
    /// where requests join on the way, with all that are there.
    pub(super) fn reckon(&self, devices: usize, rows: usize, work: i64) -> i64 {
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
