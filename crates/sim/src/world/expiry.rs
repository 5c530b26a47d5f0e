//! Clients that stop waiting at their deadlines: the runtime answers them with an error then,
//! whatever the policy does.

use super::World;
use ripieno_base::{IndexedHeap, RequestSlot, Time};
use ripieno_model::{DropRule, Model};
use ripieno_sched::{Control, Request};

/// Times at which the clients of live requests stop waiting, by slot.
pub(super) struct Expiries {
    /// Whether clients stop waiting, by model.
    expires: Vec<bool>,
    due: IndexedHeap<Time>,
}

impl Expiries {
    pub(super) fn new(models: &[Model], slots: usize) -> Expiries {
        Expiries { expires: models.iter().map(expires).collect(), due: IndexedHeap::new(slots) }
    }

    pub(super) fn next(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |(due, _)| due)
    }

    /// Sets the time at which a client stops waiting: the instant after the deadline, since an
    /// answer at the deadline is in time, and not before the scheduler has received the request.
    pub(super) fn set(&mut self, now: Time, request: &Request) {
        if self.expires[request.model.index()] {
            self.due.set(request.slot.index(), request.deadline.max(now).next());
        }
    }

    pub(super) fn remove(&mut self, slot: RequestSlot) {
        self.due.remove(slot.index());
    }
}

/// Returns whether clients of this model get an error at their deadline.
pub(crate) fn expires(model: &Model) -> bool {
    model.drop != Some(DropRule::Never)
}

impl World<'_> {
    /// Cancels the requests whose clients have stopped waiting.
    pub(super) fn expire(&mut self) {
        let Some(expiries) = &mut self.expiries else { return };
        while expiries.next() <= self.now {
            let Some((_, slot)) = expiries.due.pop() else { return };
            self.events += 1;
            self.scheduler.on_control(self.now, Control::Cancelled(RequestSlot(slot as u32)));
        }
    }
}
