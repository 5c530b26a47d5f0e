//! The block graph and the walk of a request through it.
//!
//! A walk is declared, not coded: each block declares how often a request runs it ([`Steps`]) and
//! whether it starts with the block before it or after it. One application of a block for one
//! request is a *node*, counted from 0 within its block. The properties of a request's own walk are
//! its [`Extent`] and, where it has one, its [`Graph`](crate::Graph).

use crate::{LengthProfiles, Profile};
use ripieno_base::Nanos;

/// A part of a model that is executed as a unit: the whole model, a stage, a node or a cell.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Block {
    /// Name, unique within the model.
    pub name: String,
    /// ℓ(b) of this block alone, for the longest requests where their length matters; its length is
    /// the block's largest batch.
    pub profile: Profile,
    /// ℓ(b) of shorter requests, where their length matters.
    pub lengths: Option<LengthProfiles>,
    /// Number of times that a request runs it.
    pub steps: Steps,
    /// Whether it starts with the block before it rather than after it (the backward pass of a
    /// bidirectional model).
    pub beside: bool,
    /// Priority among cells that could run; higher first.
    pub priority: u32,
    /// The batch sizes that it is compiled for, ascending; a batch is padded to the next one.
    /// Empty: every size.
    pub sizes: Vec<usize>,
    /// Whether it may let a request skip blocks.
    pub skips: bool,
}

impl Block {
    /// Creates a block that a request runs once, after the one before it, in batches of any size.
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

    /// Replaces the profile. It holds for the longest requests; the cost of shorter ones changes in
    /// proportion.
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

    /// Returns the cost of a batch of `rows` rows that is padded to `length`.
    pub fn cost(&self, rows: usize, length: u32) -> Nanos {
        self.lengths.as_ref().map_or_else(|| self.profile.latency(rows), |lengths| lengths.latency(rows, length))
    }

    /// Returns the share of its device that a batch can use, in millionths: its throughput over the
    /// highest throughput of any batch. Work is counted in rows, or in elements of rows where their
    /// length matters. Concurrent batches slow each other down by the sum of their shares, once
    /// that exceeds a whole device.
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
    /// Once for each element of its sequence, in order.
    Length,
    /// Until a step reports the end of the walk, or until the request's limit; the number is not
    /// known in advance.
    UntilEnd,
    /// Once for each node of its graph that names this block, each after the nodes that it takes
    /// its inputs from.
    Nodes,
}

impl Steps {
    /// Whether a step's report ends the block.
    pub fn ends_by_report(self) -> bool {
        self == Steps::UntilEnd
    }
}

/// Size of a request's walk, known from the client's input before anything has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Extent {
    /// Elements of its sequence, or nodes of its graph; at least 1. Where blocks run once, the
    /// length of the request, to which its batch is padded at least.
    pub length: u32,
    /// Largest number of steps of a block that runs until its end; 0 where the model has none.
    pub limit: u32,
}

impl Extent {
    /// The extent of a request that runs each block once.
    pub const ONE: Extent = Extent { length: 1, limit: 0 };

    /// Returns the largest number of times that the request runs a block; for a graph, the number
    /// of all its nodes.
    pub fn steps(self, steps: Steps) -> u32 {
        match steps {
            Steps::Once => 1,
            Steps::Length | Steps::Nodes => self.length,
            Steps::UntilEnd => self.limit,
        }
    }

    /// Whether the request does not run this step of a block. `over`: whether the block has
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
    /// Every block once, in order. A block may report that a member's walk ends early.
    Chain,
    /// A cell for each element of a sequence.
    Repeat,
    /// Several layers of cells over a sequence, each over the outputs of the one below.
    Stacked,
    /// One cell over a sequence from its first element on, another from its last.
    Bidirectional,
    /// A cell over the input sequence, then another that consumes its own outputs until it ends.
    EncodeDecode,
    /// A tree that the request contains: one cell for leaves, another for inner nodes.
    Tree,
    /// Any graph of cells that the request contains.
    Graph,
}

impl Walk {
    /// All walks, in the order of their complexity.
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

    /// Returns its name in model.toml and scenario files.
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

    /// Returns the walk of this name.
    pub fn named(name: &str) -> Option<Walk> {
        Walk::ALL.into_iter().find(|walk| walk.name() == name)
    }

    /// Whether requests differ in how often they run a block.
    pub fn is_unfolded(self) -> bool {
        !matches!(self, Walk::Whole | Walk::Chain)
    }

    /// Whether each request brings a graph of its own.
    pub fn brings_graph(self) -> bool {
        matches!(self, Walk::Tree | Walk::Graph)
    }
}

/// Treatment of a request that cannot be answered by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DropRule {
    /// "hopeless": rejected as soon as no schedule could meet its deadline, that is, once it could
    /// not meet it even alone.
    Hopeless,
    /// "expired": rejected at its deadline; until then it may run on a device that no request in
    /// time needs.
    Expired,
    /// "never": runs after all requests that can still be in time, and counts as late.
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
    /// Order in which a request runs the blocks.
    pub walk: Walk,
    /// The latency SLO, from arrival to answer.
    pub slo: Nanos,
    /// Largest number of rows in one batch.
    pub max_batch: usize,
    /// Largest number of concurrent batches of this model, on different devices.
    pub instances: usize,
    /// Treatment of hopeless requests; `None` for the policy's own rule.
    pub drop: Option<DropRule>,
    /// Weight of its share of the devices under overload, relative to other models; at least 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub weight: u32,
    /// Predicted number of decoder steps, where a length profile gives one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dec_timesteps: Option<u32>,
}

#[cfg(feature = "serde")]
fn one() -> u32 {
    1
}

impl Model {
    /// Creates a model of one block; batches as large as the profile describes, on any number of
    /// devices.
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
        }
    }

    /// Whether a batch is padded to its longest member and costs accordingly.
    pub fn has_lengths(&self) -> bool {
        !self.walk.is_unfolded() && self.blocks.iter().any(|block| block.lengths.is_some())
    }

    /// Returns ℓ(b) of the whole walk for the longest requests, for batches of at most
    /// [`Model::max_batch`] rows.
    pub fn profile(&self) -> Profile {
        Profile::sum(self.blocks.iter().map(|block| &block.profile)).truncated(self.max_batch)
    }
}
