//! Whole-batch scheduling in two halves, following section 4.2 of "Symphony: Optimized DNN Model
//! Serving using Deferred Batch Scheduling".
//!
//! A [`ModelShard`] owns the state of models: queues, drops, batch formation. The [`Matchmaker`]
//! owns shared state: devices, and the times at which models may start batches. They exchange the
//! messages of `grants.rs`. A batch is formed on the grant, from the queue at that
//! time; an offer only promises a size and a window, so nothing needs to be revoked.
//!
//! [`Fused`] runs both halves in one thread and is a `Scheduler`. [`Linked`] runs several shards
//! with delayed messages, to measure the cost of sharding in virtual time. On separate threads the
//! halves need only mailboxes in addition.
//!
//! "serial", "timeout", "eager" and "deferred" run here under different [`Rule`]s: they differ in
//! when a candidate may start, which requests it gathers, and which are dropped.

pub(crate) mod deferred;
mod fused;
pub mod grants;
mod linked;
mod matchmaker;
mod model_queue;
mod model_shard;
mod queues;
mod rules;

pub(crate) use fused::Fused;
pub(crate) use linked::Linked;
pub use linked::{Halves, shard_of};
pub(crate) use matchmaker::DeviceChoice;
pub use matchmaker::Matchmaker;
pub use model_shard::{ModelShard, shard_in};
pub(crate) use queues::ShardQueues;
pub(crate) use rules::{Rules, StartBy};

use ripieno_base::Nanos;
use ripieno_sched::NetworkDelay;

/// The rule of one model, in which whole-batch policies differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) start: StartRule,
    pub(crate) gather: Gather,
    /// Whether heads that [`Gather::Window`] passes over are dropped at each update of the
    /// candidate, not only when its batch starts.
    pub(crate) drops_passed: bool,
    /// Whether a batch is one request, however many rows it has.
    pub(crate) single: bool,
    /// Times that a batch needs to get a device and to reach it.
    pub(crate) ways: Ways,
}

/// The times that a batch needs to get a device and to reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ways {
    /// Time to reach the device.
    pub(crate) network: NetworkDelay,
    /// Time from an offer to its grant: a batch is requested this much earlier than it is formed.
    pub(crate) round_trip: Nanos,
}

/// The rule for the earliest start of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartRule {
    /// Start at frontrun, d − ℓ(b+1): Symphony.
    Frontrun,
    /// Start once the batch is full or its first request has waited this long; never after its
    /// latest start.
    After(Nanos),
}

/// The selection of requests for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// A prefix of the queue that the deadline of its head allows.
    Prefix,
    /// Like `Prefix`, but passes over heads that would keep the batch below its target size.
    Window,
    /// A prefix of the queue in order of arrival, regardless of deadlines.
    Fifo,
}
