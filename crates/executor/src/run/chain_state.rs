//! States of requests between the blocks of a chain.
//!
//! Between two blocks, the state of a request is stored under its slot, for all lanes of the
//! device. A task takes the state out and stores it again only if the task succeeds and the request
//! continues. So a request that ended or failed leaves no state, and no lock is held while a block
//! runs. A request that was dropped between two blocks leaves its state behind. The state is
//! removed when the slot runs a first block again or the model is detached. So there are never more
//! states than slots. For models that unfold, `cells` keeps the state instead, with the model, for
//! all its devices.

use crate::run::rows::Rows;
use parking_lot::{Mutex, MutexGuard};
use ripieno_base::RequestSlot;
use std::collections::HashMap;
use std::sync::Arc;

/// State of a request between its blocks.
pub(crate) struct ChainState {
    /// Rows by value.
    pub(crate) values: Values,
    /// Tensors that replace defaults, by their index among the model's optional inputs.
    pub(crate) optional: Vec<Option<Rows>>,
    /// The request's own length.
    pub(crate) length: u32,
    /// Length to which the first block padded the request.
    pub(crate) padded: u32,
    /// Whether the request ignores the model's conditions.
    pub(crate) ignore_conditions: bool,
}

impl ChainState {
    /// Whether the request replaces a default, so that no other request may share its batch.
    pub(crate) fn replaces_defaults(&self) -> bool {
        self.optional.iter().any(Option::is_some)
    }
}

/// A request's rows of each value of the plan; `None` if they do not exist yet or are no longer
/// needed.
pub(crate) type Values = Vec<Option<Rows>>;

/// States of the requests on one device that are between two blocks, by slot.
#[derive(Clone, Default)]
pub(crate) struct WalkSlots(Arc<Mutex<HashMap<RequestSlot, ChainWalk>>>);

/// State of a request between two blocks, with its model.
pub(crate) struct ChainWalk {
    /// Attachment of the request's model.
    pub(crate) attachment: u64,
    pub(crate) state: ChainState,
}

impl WalkSlots {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<RequestSlot, ChainWalk>> {
        self.0.lock()
    }

    /// Removes the states of slots that run a first block.
    pub(crate) fn begin(&self, slots: impl Iterator<Item = RequestSlot>) {
        let mut states = self.0.lock();
        if !states.is_empty() {
            slots.for_each(|slot| drop(states.remove(&slot)));
        }
    }

    /// Removes the states of an attachment's requests.
    pub(crate) fn forget(&self, attachment: u64) {
        self.0.lock().retain(|_, walk| walk.attachment != attachment);
    }
}
