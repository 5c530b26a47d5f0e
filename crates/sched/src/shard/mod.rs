//! The machinery of whole-batch scheduling, in the two halves that Symphony's paper gives it (section 4.2).
//!
//! A [`ModelShard`] owns what belongs to models: queues, drops, batch building. The [`Matchmaker`] owns what belongs to
//! all: devices and the moments at which models may send. They exchange the messages of `messages.rs`, as frames
//! between processes (`frames.rs`). The batch is formed on the grant, from the queue as it is then; an offer is only a
//! promise about size and window, so nothing ever needs to be revoked. [`Fused`] runs both halves in one thread and is
//! a `Scheduler`; [`Linked`] runs several shards and lets messages take time, to tell in virtual time what sharding
//! costs. Threads of their own need nothing but mailboxes.
//!
//! "serial", "timeout", "eager" and "deferred" are this machinery under different [`Rule`]s: they differ in when a
//! candidate may start, in which requests it gathers, and in what is dropped.

mod cut;
mod frames;
mod fused;
mod linked;
mod matchmaker;
mod messages;
mod model_queue;
mod model_shard;
mod preemption;
mod queues;
mod rules;
mod scarcity;

pub use frames::{Epoch, Frame, Garbled};
pub(crate) use fused::Fused;
pub(crate) use linked::Linked;
pub use linked::{Halves, shard_of};
pub(crate) use matchmaker::DeviceChoice;
pub use matchmaker::Matchmaker;
pub(crate) use messages::{Candidates, Class, Window};
pub use messages::{Grant, Holding, Loaded, Offer, Release, Sent, Standing, ToMatchmaker};
pub use model_shard::ModelShard;
pub(crate) use queues::Queues;
pub(crate) use rules::{Rules, StartBy};

use ripieno_base::Nanos;

/// What distinguishes one whole-batch policy from another; one a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) start: Start,
    pub(crate) gather: Gather,
    /// Whether a batch is one request, however many rows it has.
    pub(crate) single: bool,
    /// How long a batch is on its way to the device.
    pub(crate) network: Network,
}

/// The scheduler's own estimate of how long a batch takes to reach a device: a message, then the inputs, which the device
/// fetches row by row (Symphony, Appendix D). An estimate that is too low makes batches late, one too high makes them small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) control: Nanos,
    pub(crate) data_per_row: Nanos,
    /// From an offer to its grant: a batch is asked for by so much sooner than it is formed.
    pub(crate) round_trip: Nanos,
}

impl Network {
    /// From the decision to the moment at which a device can begin with `rows` rows.
    pub(crate) fn lead(&self, rows: usize) -> Nanos {
        self.control + self.data_per_row * rows as i64
    }
}

/// When a candidate may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At frontrun, d − ℓ(b+1): Symphony.
    Frontrun,
    /// As soon as waiting saves less device time than it is worth at this price.
    Priced(Price),
    /// When the batch is full or its first request has waited this long; never after its latest moment.
    After(Nanos),
}

impl Start {
    /// Whether it weighs device time.
    pub(crate) fn is_priced(self) -> bool {
        matches!(self, Start::Priced(_))
    }
}

/// What device time is worth, as a part of what it could serve: at 0 batches start at once, at 1 as late as they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Price {
    /// As much as it is in short supply, see [`Scarcity`](scarcity::Scarcity).
    Measured,
    /// All of it: devices that idle can be released.
    Full,
}

/// Which requests form a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// From the head as many as the head's deadline allows.
    Prefix,
    /// As prefix, but heads that would keep the batch below its target size are passed over.
    Window,
    /// As window, towards a size that leaves room for chance; who is passed over runs on a device that nobody else wants.
    Spare,
    /// From the head as many as fit, in order of arrival, whatever the deadlines.
    Fifo,
}
