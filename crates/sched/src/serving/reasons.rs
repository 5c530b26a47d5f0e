//! The reasons of decisions: for which gain a batch waits, and to which offer another one lost.

use super::UnifiedScheduler;
use super::arbiter::{self, TaskOffer};
use crate::{Reason, WaitGain};
use ripieno_base::{ModelId, RequestSlot, Time};

/// The latest reasons that were given about a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GivenReasons {
    /// The first request of a batch that waits, and the gain.
    waited: Option<(RequestSlot, WaitGain)>,
    /// The request that lost, and the model of the batch that went first.
    lost: Option<(RequestSlot, ModelId)>,
}

impl GivenReasons {
    /// Forgets what was given about an earlier request of a slot.
    pub(super) fn forget(&mut self, slot: RequestSlot) {
        self.waited = self.waited.filter(|(request, _)| *request != slot);
        self.lost = self.lost.filter(|(request, _)| *request != slot);
    }
}

impl UnifiedScheduler {
    /// Gives the reason for which a batch with this first request waits.
    pub(super) fn explain_wait(&mut self, id: ModelId, request: RequestSlot, gain: WaitGain, until: Time) {
        let given = &mut self.models.get_mut(id).own.given;
        if given.waited != Some((request, gain)) {
            given.waited = Some((request, gain));
            self.pending.explain(Reason::Waited { request, gain, until });
        }
    }

    /// Gives the reason for which the most urgent request of another model waits while a task runs.
    pub(super) fn explain_loss(&mut self, chosen: &TaskOffer) {
        let Some((_, to)) = chosen.outlook.most_urgent else { return };
        let Some(loser) = arbiter::loser(&self.offers, chosen) else { return };
        let Some((_, request)) = loser.outlook.most_urgent else { return };
        let given = &mut self.models.get_mut(loser.model).own.given;
        if given.lost != Some((request, chosen.model)) {
            given.lost = Some((request, chosen.model));
            self.pending.explain(Reason::Lost { request, to });
        }
    }
}
