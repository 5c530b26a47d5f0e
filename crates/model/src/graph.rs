//! The block graph of a model, and the walk of a request through it.
//!
//! Walks are declared, not programmed. Each block declares how often a request runs it ([`Steps`]),
//! and whether it starts together with the previous block or after it. One run of a block for one
//! request is a *node*. Nodes are numbered from 0 within their block. The size of a request's walk
//! is its [`Extent`]. Some requests also have their own [`Graph`](crate::Graph).

use crate::{LengthProfiles, Profile};
use ripieno_base::Nanos;

/// A part of a model that runs as a unit: the whole model, a stage, a node or a cell.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Block {
    /// Name, unique within the model.
    pub name: String,
    /// Latency ℓ(b) of this block alone. If requests differ in length, it is the latency of the
    /// longest requests. Its number of entries is the block's largest batch.
    pub profile: Profile,
    /// Latency ℓ(b) at shorter lengths, if requests differ in length.
    pub lengths: Option<LengthProfiles>,
    /// Number of times that a request runs the block.
    pub steps: Steps,
    /// Whether the block starts together with the previous block rather than after it, like the
    /// backward pass of a bidirectional model.
    pub beside: bool,
    /// Priority among cells that can run; higher first.
    pub priority: u32,
    /// Batch sizes for which the block is compiled, ascending. A batch is padded to the next size.
    /// If empty, every size is possible.
    pub sizes: Vec<usize>,
    /// Whether the block may let a request skip later blocks.
    pub skips: bool,
}

impl Block {
    /// Creates a block that a request runs once, after the previous block, in batches of any size.
    pub fn new(name: impl Into<String>, profile: Profile) -> Block {
        Block {
            name: name.into(),
            profile,
            lengths: None,
            steps: Steps::Once,
            beside: false,
            priority: 0,
            sizes: Vec::new(),
            skips: false,
        }
    }

    /// Replaces the profile, which is of the longest requests. The cost of shorter requests changes
    /// in proportion.
    pub fn replace_profile(&mut self, profile: Profile) {
        if let Some(lengths) = &mut self.lengths {
            *lengths = lengths.scaled(&self.profile, &profile);
        }
        self.profile = profile;
    }

    /// Returns the largest batch size.
    pub fn max_batch(&self) -> usize {
        self.profile.max_batch()
    }

    /// Returns the latency of a batch of `rows` rows that is padded to `length`.
    pub fn cost(&self, rows: usize, length: u32) -> Nanos {
        self.lengths.as_ref().map_or_else(|| self.profile.latency(rows), |lengths| lengths.latency(rows, length))
    }

    /// Returns the share of its device that a batch can use, in millionths. It is the batch's
    /// throughput divided by the highest throughput of any batch. Throughput counts rows, or
    /// elements of rows if requests differ in length. If the shares of concurrent batches exceed a
    /// whole device, the batches slow down by the sum of the shares.
    pub fn share(&self, rows: usize, length: u32) -> u32 {
        match &self.lengths {
            Some(lengths) => lengths.share(rows, length),
            None => self.profile.share(rows),
        }
    }
}

/// Number of times that a request runs a block, and on which elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Steps {
    /// Once.
    Once,
    /// Once for each element of the request's sequence, in order.
    Length,
    /// Until a step reports the end or the request's limit is reached. The number is not known in
    /// advance.
    UntilEnd,
    /// Once for each node of the request's graph that names this block. A node runs after the nodes
    /// that compute its inputs.
    Nodes,
}

impl Steps {
    /// Whether a report of a step ends the block.
    pub fn ends_by_report(self) -> bool {
        self == Steps::UntilEnd
    }
}

/// Size of a request's walk, which is known from the client's input before anything runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Extent {
    /// Number of elements of its sequence or nodes of its graph; at least 1. For blocks that run
    /// once, the length of the request, which is the smallest length to which its batch is padded.
    pub length: u32,
    /// Largest number of steps of a block that runs until the request ends; 0 if the model has no
    /// such block.
    pub limit: u32,
}

impl Extent {
    /// Extent of a request that runs each block once and has no length.
    pub const ONE: Extent = Extent { length: 1, limit: 0 };

    /// Returns the largest number of times that the request runs a block. For a graph, returns the
    /// number of all its nodes.
    pub fn steps(self, steps: Steps) -> u32 {
        match steps {
            Steps::Once => 1,
            Steps::Length | Steps::Nodes => self.length,
            Steps::UntilEnd => self.limit,
        }
    }

    /// Whether the request does not run this step of a block. `over` tells whether the block has
    /// reported its end.
    pub fn skips_step(self, steps: Steps, step: u32, over: bool) -> bool {
        (over && steps.ends_by_report()) || step >= self.steps(steps)
    }
}

/// Order in which a request runs the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Walk {
    /// One block, once.
    Whole,
    /// Every block once, in order. A block may report that the request ends early.
    Chain,
    /// One cell, once for each element of a sequence.
    Repeat,
    /// Several layers of cells over a sequence. Each layer takes the outputs of the layer below.
    Stacked,
    /// Two cells over a sequence: one from its first element on, the other from its last element
    /// back.
    Bidirectional,
    /// A cell over the input sequence, then a cell that takes its own outputs until it reports the
    /// end.
    EncodeDecode,
    /// A tree that the request contains. Leaves run one cell, and inner nodes another.
    Tree,
    /// An acyclic graph of cells that the request contains.
    Graph,
}

impl Walk {
    /// All walks, by increasing complexity.
    pub const ALL: [Walk; 8] = [
        Walk::Whole,
        Walk::Chain,
        Walk::Repeat,
        Walk::Stacked,
        Walk::Bidirectional,
        Walk::EncodeDecode,
        Walk::Tree,
        Walk::Graph,
    ];

    /// Returns the walk's name in model.toml and scenario files.
    pub fn name(self) -> &'static str {
        match self {
            Walk::Whole => "whole",
            Walk::Chain => "chain",
            Walk::Repeat => "repeat",
            Walk::Stacked => "stacked",
            Walk::Bidirectional => "bidirectional",
            Walk::EncodeDecode => "encode-decode",
            Walk::Tree => "tree",
            Walk::Graph => "graph",
        }
    }

    /// Returns the walk with this name.
    pub fn named(name: &str) -> Option<Walk> {
        Walk::ALL.into_iter().find(|walk| walk.name() == name)
    }

    /// Whether requests run cell by cell, so that they differ in how often they run a block.
    pub fn is_unfolded(self) -> bool {
        !matches!(self, Walk::Whole | Walk::Chain)
    }

    /// Whether each request contains its own graph.
    pub fn brings_graph(self) -> bool {
        matches!(self, Walk::Tree | Walk::Graph)
    }
}

/// Treatment of requests that cannot be answered by their deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DropRule {
    /// "hopeless": rejected as soon as the request could not meet its deadline even if it ran
    /// alone.
    Hopeless,
    /// "expired": rejected at its deadline. Until then it may run on a device that no other request
    /// needs.
    Expired,
    /// "never": runs after all requests that can still meet their deadlines (unless the model keeps
    /// [`Model::in_arrival_order`]), and counts as late.
    Never,
}

/// A model as the scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Model {
    /// Name, unique among the models.
    pub name: String,
    /// The blocks in the order of the walk; never empty.
    pub blocks: Vec<Block>,
    /// Order in which a request runs the blocks.
    pub walk: Walk,
    /// The latency SLO, from arrival to answer.
    pub slo: Nanos,
    /// Largest number of rows in one batch.
    pub max_batch: usize,
    /// Largest number of this model's batches that run at the same time, on different devices.
    pub instances: usize,
    /// Treatment of hopeless requests; `None` for the policy's own rule.
    pub drop: Option<DropRule>,
    /// Weight of the model's share of the devices under overload, relative to other models; at
    /// least 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub weight: u32,
    /// Predicted number of decoder steps, if the model has a length profile.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dec_timesteps: Option<u32>,
    /// Whether late requests keep their place, under [`DropRule::Never`]: if some cannot meet their
    /// deadlines, batches take the oldest requests first, and the model has a turn among models
    /// whose requests can.
    #[cfg_attr(feature = "serde", serde(default))]
    pub in_arrival_order: bool,
    /// Whether a request that runs cell by cell stays on the device of its first cell, because no
    /// other device has its state. Requests that run each block once always stay.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pinned: bool,
}

#[cfg(feature = "serde")]
fn one() -> u32 {
    1
}

impl Model {
    /// Creates a model of one block. Batches may be as large as the profile describes, on any
    /// number of devices.
    pub fn whole(name: &str, profile: Profile, slo: Nanos) -> Model {
        let max_batch = profile.max_batch();
        let blocks = vec![Block::new(name, profile)];
        Model {
            name: name.to_owned(),
            blocks,
            walk: Walk::Whole,
            slo,
            max_batch,
            instances: usize::MAX,
            drop: None,
            weight: 1,
            dec_timesteps: None,
            in_arrival_order: false,
            pinned: false,
        }
    }

    /// Whether requests differ in length, so that a batch is padded to its longest member and costs
    /// accordingly.
    pub fn has_lengths(&self) -> bool {
        !self.walk.is_unfolded() && self.blocks.iter().any(|block| block.lengths.is_some())
    }

    /// Returns the latency ℓ(b) of all blocks together for the longest requests, for batches of at
    /// most [`Model::max_batch`] rows.
    pub fn profile(&self) -> Profile {
        Profile::sum(self.blocks.iter().map(|block| &block.profile)).truncated(self.max_batch)
    }
}
