//! The block graph and the walk of a request through it.

use crate::Profile;
use ripieno_base::Nanos;

/// A part of a model that is executed at once: the whole model, a stage, a node or a cell.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Block {
    /// Name, unique within the model.
    pub name: String,
    /// ℓ(b) of this block alone; its length is the block's largest batch.
    pub profile: Profile,
}

/// How a request walks through the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Walk {
    /// One block, once.
    Whole,
    /// Every block once, in order. A block may report that a member's walk ends early.
    Chain,
}

/// What becomes of a request that cannot be answered by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DropRule {
    /// "hopeless": rejected as soon as no schedule could save it, that is, once it could not even run alone in time.
    Hopeless,
    /// "expired": rejected at its deadline; until then it may run on a device that nothing punctual wants.
    Expired,
    /// "never": it runs after all that can still be punctual, and counts as late.
    Never,
}

/// A model as the scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Model {
    /// Name, unique among the models.
    pub name: String,
    /// The blocks, in the walk's order; never empty.
    pub blocks: Vec<Block>,
    /// How a request walks through the blocks.
    pub walk: Walk,
    /// The latency target, from arrival to answer.
    pub slo: Nanos,
    /// The most rows in one batch.
    pub max_batch: usize,
    /// The most batches of this model that may run at once, on different devices.
    pub instances: usize,
    /// What becomes of hopeless requests; the policy's own rule if none.
    pub drop: Option<DropRule>,
}

impl Model {
    /// A model of one block; batches as large as the profile describes, on any number of devices.
    pub fn whole(name: &str, profile: Profile, slo: Nanos) -> Model {
        let max_batch = profile.max_batch();
        let blocks = vec![Block { name: name.to_owned(), profile }];
        Model { name: name.to_owned(), blocks, walk: Walk::Whole, slo, max_batch, instances: usize::MAX, drop: None }
    }

    /// ℓ(b) of the whole walk, batches of at most [`Model::max_batch`] rows.
    pub fn profile(&self) -> Profile {
        Profile::sum(self.blocks.iter().map(|block| &block.profile)).truncated(self.max_batch)
    }
}
