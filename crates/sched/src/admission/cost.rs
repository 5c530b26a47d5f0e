//! Estimates of the device time of a request, by the model's profile.

use crate::Request;
use crate::estimate::reach::{self, Reach};
use ripieno_base::{BlockId, Nanos};
use ripieno_model::{Block, Model, Steps};

/// Number of answered requests after which both counts of [`RequestCosts::steps_until_end`] are
/// halved, so that old requests fade.
const MEMORY: u64 = 256;

/// The costs of a model.
#[derive(Debug)]
pub(super) struct RequestCosts {
    /// The model.
    model: Box<Model>,
    /// Batch size for which the work of a block is estimated, by block: the largest that fits into
    /// the SLO. In cells it is the size that the profile prefers.
    batches: Vec<usize>,
    /// The share of rows that run each block of a chain; `None` for a model in cells.
    reach: Option<Reach>,
    /// Steps of blocks that run until their end.
    steps: u64,
    /// Number of requests that took these steps.
    requests: u64,
}

impl RequestCosts {
    pub(super) fn new(model: Box<Model>) -> RequestCosts {
        let reach = (!model.walk.is_unfolded()).then(|| Reach::new(&model));
        let mut costs = RequestCosts { reach, model, batches: Vec::new(), steps: 0, requests: 0 };
        costs.on_new_profile();
        costs
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Replaces a block's profile.
    pub(super) fn replace_profile(&mut self, block: BlockId, profile: ripieno_model::Profile) {
        self.model.blocks[block.index()].replace_profile(profile);
        self.on_new_profile();
    }

    fn on_new_profile(&mut self) {
        let model = &self.model;
        let within = |block: &Block| model.max_batch.min(block.profile.max_batch());
        self.batches = if let Some(reach) = &mut self.reach {
            reach.recompute(model, reach::profiled);
            let most = model.profile().largest_within(model.slo).max(1);
            model.blocks.iter().map(|block| most.min(within(block))).collect()
        } else {
            model.blocks.iter().map(|block| block.profile.preferred().min(block.max_batch())).collect()
        };
    }

    /// Returns the number of times that a request runs a block.
    fn steps(&self, block: &Block, request: &Request) -> i64 {
        let graphs = self.model.blocks.iter().filter(|block| block.steps == Steps::Nodes).count() as i64;
        match block.steps {
            Steps::Once => 1,
            Steps::Length => i64::from(request.extent.length),
            Steps::Nodes => i64::from(request.extent.length).div_euclid(graphs).max(1),
            Steps::UntilEnd => self.steps_until_end(request.extent.limit),
        }
    }

    /// Returns the number of times that a request runs a block with an unknown end: the mean of
    /// earlier requests. Before there are any, it is half the limit.
    fn steps_until_end(&self, limit: u32) -> i64 {
        let (steps, requests) = (self.steps + u64::from(limit).div_ceil(2), self.requests + 1);
        (steps / requests).clamp(1, u64::from(limit.max(1))) as i64
    }

    /// Returns the device time of a request in full batches, on a device of profiled speed.
    pub(super) fn work(&self, request: &Request) -> i64 {
        let blocks = self.model.blocks.iter().zip(&self.batches);
        let each = blocks.map(|(block, &batch)| {
            (block.cost(batch, request.extent.length).0 / batch as i64).saturating_mul(self.steps(block, request))
        });
        let every_block = each.fold(0_i64, i64::saturating_add).saturating_mul(i64::from(request.rows));
        let work = request.class.cost.of(Nanos(every_block));
        let Some(reach) = &self.reach else { return work.0.max(1) };
        let batch = self.batches.iter().copied().min().unwrap_or(1);
        let all = self.model.profile().latency(batch).0.max(1).cast_unsigned();
        work.scale(reach.latency(batch).0.cast_unsigned().min(all), all).0.max(1)
    }

    /// Returns the latency of a request alone on an idle device of profiled speed. Nodes of a graph
    /// count as a balanced tree.
    pub(super) fn alone(&self, request: &Request) -> Nanos {
        let each = self.model.blocks.iter().map(|block| {
            let steps = match block.steps {
                Steps::Nodes => i64::from(request.extent.length.ilog2()) + 1,
                _ => self.steps(block, request),
            };
            block.cost((request.rows as usize).min(block.profile.max_batch()), request.extent.length) * steps
        });
        request.class.cost.of(each.sum())
    }

    /// Records a task that has started `members` steps of a block.
    pub(super) fn on_start(&mut self, block: BlockId, members: usize) {
        if self.model.blocks[block.index()].steps == Steps::UntilEnd {
            self.steps += members as u64;
        }
        if let Some(reach) = &mut self.reach {
            reach.on_start(block, members);
        }
    }

    /// Records an answered request.
    pub(super) fn on_finish(&mut self) {
        self.requests += 1;
        if self.requests >= MEMORY {
            (self.steps, self.requests) = (self.steps / 2, self.requests / 2);
        }
    }

    /// Updates what depends on the share of rows that run each block.
    pub(super) fn refresh(&mut self) {
        if let Some(reach) = &mut self.reach {
            reach.refresh(&self.model, reach::profiled);
        }
    }
}
