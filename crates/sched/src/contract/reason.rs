//! Reasons of decisions. They pass beside the actions: no driver acts on them, recordings keep them
//! for `ripieno why`.
//!
//! A reason names requests and no models, since the layers above a policy may know a model by
//! another id.

use ripieno_base::{RequestSlot, Time};

/// The reason for which a request waits or is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Reason {
    /// A device was free, and no batch of the request's model started, since waiting gains more.
    Waited {
        /// The first request of the batch that could have started.
        request: RequestSlot,
        /// The gain.
        gain: WaitGain,
        /// The time until which the batch waits unless requests arrive.
        until: Time,
    },
    /// A device was free, and a batch with another request went first.
    Lost {
        /// The most urgent request of all models whose batches did not start.
        request: RequestSlot,
        /// The most urgent request of the batch that went first.
        to: RequestSlot,
    },
    /// The request was refused on arrival.
    Refused {
        /// The request.
        request: RequestSlot,
        /// The time at which it would have been answered.
        end: Time,
    },
}

/// The gain that a batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum WaitGain {
    /// A fuller batch takes less device time for each row.
    FullerBatch,
    /// Devices become free one after the other instead of together.
    EvenSpacing,
    /// The last free device is left to another model, whose next request could not wait for one.
    LastDevice,
}
