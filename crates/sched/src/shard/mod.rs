//! The machinery of whole-batch scheduling, in the two halves that Symphony's paper gives it (section 4.2).
//!
//! A [`ModelShard`] owns what belongs to models: queues, drops, batch building. The [`Matchmaker`] owns what belongs to
//! all: devices and the moments at which models may send. They exchange [`Offer`]s (state: the latest wins) and grants.
//! The batch is formed on the grant, from the queue as it is then; an offer is only a promise about size and window, so
//! nothing ever needs to be revoked. [`Fused`] runs both halves in one thread and is a `Scheduler`.
//!
//! "serial", "timeout", "eager" and "deferred" are this machinery under different [`Rule`]s: they differ in when a
//! candidate may start, in which requests it gathers, and in what is dropped.

mod fused;
mod matchmaker;
mod model_queue;
mod model_shard;

pub(crate) use fused::Fused;
pub(crate) use matchmaker::{DeviceChoice, Matchmaker};
pub(crate) use model_queue::ModelQueue;
pub(crate) use model_shard::ModelShard;

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::DropRule;

/// What distinguishes one whole-batch policy from another; one a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) start: Start,
    pub(crate) gather: Gather,
    pub(crate) drop: DropRule,
    /// The most rows in a batch.
    pub(crate) max_batch: usize,
    /// Whether a batch is one request, however many rows it has.
    pub(crate) single: bool,
}

/// When a candidate may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At frontrun, d − ℓ(b+1): Symphony.
    Frontrun,
    /// At once, as long as batches of the present size keep up with the measured load; else once the batch has its target
    /// size, its first request has waited for as long as that many take to arrive, or at frontrun.
    Promptly,
    /// When the batch is full or its first request has waited this long; never after its latest moment.
    After(Nanos),
}

/// Which requests form a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// From the head as many as the head's deadline allows.
    Prefix,
    /// As prefix, but heads that would keep the batch below its target size are passed over.
    Window,
    /// From the head as many as fit, in order of arrival, whatever the deadlines.
    Fifo,
}

/// What a model asks for: its best batch now, and the window in which it may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The punctual batch, if one can be formed.
    pub(crate) punctual: Option<Window>,
    /// Since when the first of the overdue requests waits, if there is one.
    pub(crate) overdue_since: Option<Time>,
}

/// When a candidate may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Not before this moment.
    pub(crate) exec: Time,
    /// In time if started by this moment.
    pub(crate) latest: Time,
    /// Among candidates that may start, the smallest goes first.
    pub(crate) rank: Time,
}

/// A device for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) model: ModelId,
    pub(crate) device: ripieno_base::DeviceId,
    /// The device's latency relative to the profile, in percent.
    pub(crate) percent: u32,
    pub(crate) class: Class,
}

/// What a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The model's candidate.
    Punctual,
    /// Overdue requests, in a batch that ends by this moment.
    Overdue { until: Time },
}
