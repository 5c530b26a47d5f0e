//! The table of live requests: what belongs to a slot, and who is due.
//!
//! A call is one client request. It has one or more parts, each at most a batch, which are what the core knows as
//! requests. All slots of a call are taken and given back together, and its first slot is its name in the table.
//!
//! Steps of a walk may be queued ahead on a device, so a part can outlive its answer: its slot names state that those
//! steps still touch. It is kept until the last of them has landed.

use crate::Answer;
use crate::admission::{ModelEntry, Permit};
use crate::answer::Answerer;
use crate::shapes::OpenSizes;
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Entry, Loss, Tensor, next_walk};
use ripieno_sched::RequestClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// One client request.
pub(crate) struct Call {
    /// Until it is answered.
    pub(crate) answerer: Option<Answerer>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) id: ModelId,
    pub(crate) model: Arc<ModelEntry>,
    pub(crate) arrived: Time,
    /// When the answer is due.
    pub(crate) deadline: Time,
    /// When the client is told that it is too late; [`Time::NEVER`] where late answers are wanted.
    pub(crate) expires: Time,
    pub(crate) rows: usize,
    pub(crate) parts: Vec<Part>,
    /// Parts that have their outputs.
    pub(crate) done: usize,
    /// Parts that the core has not ended.
    pub(crate) in_core: usize,
    /// Whether the mail of its cancellation has been read.
    pub(crate) cancel_read: bool,
    /// If a part of it failed for want of a process.
    pub(crate) lost: Option<Loss>,
    /// The sizes of its open dimensions, if its inputs lie elsewhere.
    pub(crate) sizes: OpenSizes,
    /// What the core is told of its parts.
    pub(crate) class: RequestClass,
    pub(crate) permit: Permit,
}

/// What the core knows as a request.
pub(crate) struct Part {
    pub(crate) rows: usize,
    pub(crate) entry: Arc<Entry>,
    pub(crate) stage: Stage,
    /// How often it stands in tasks in flight: once for each of its nodes there.
    pub(crate) flying: u32,
    /// Devices that have been given its entry.
    pub(crate) known_on: Vec<DeviceId>,
    /// Where it was started last: the state of a chain lies there.
    pub(crate) device: Option<DeviceId>,
    /// The number of its walk.
    pub(crate) walk: u64,
    /// Whether its walk began anew because a device was lost.
    pub(crate) retried: bool,
    /// Whether its client has had a step of its answer.
    pub(crate) streamed: bool,
    /// Which landing it was last in; a task may hold it several times.
    pub(crate) landed: u64,
    /// Whether a block of it that runs until its end has reported the end.
    pub(crate) over: bool,
    /// When its first batch began.
    pub(crate) started: Option<Time>,
    /// Execution time of its batches.
    pub(crate) executed: Nanos,
    /// Rows in its last batch.
    pub(crate) batch: usize,
    pub(crate) result: Option<Result<Vec<Tensor>, String>>,
}

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not in the core: not yet, or ended.
    Outside,
    /// In the core, never dispatched.
    Waiting,
    /// In the core, and dispatched at least once.
    Begun,
}

impl Part {
    pub(crate) fn new(rows: usize, entry: Entry) -> Part {
        Part {
            rows,
            entry: Arc::new(entry),
            stage: Stage::Outside,
            flying: 0,
            known_on: Vec::new(),
            device: None,
            walk: next_walk(),
            retried: false,
            streamed: false,
            landed: 0,
            over: false,
            started: None,
            executed: Nanos::ZERO,
            batch: 0,
            result: None,
        }
    }

    /// Its walk begins anew, elsewhere.
    pub(crate) fn start_over(&mut self) {
        (self.walk, self.retried, self.device, self.over) = (next_walk(), true, None, false);
        self.known_on.clear();
        self.executed = Nanos::ZERO;
    }

    /// Whether the device is still to be given the entry; from now on it is not.
    pub(crate) fn introduce(&mut self, device: DeviceId) -> bool {
        let known = self.known_on.contains(&device);
        if !known {
            self.known_on.push(device);
        }
        !known
    }
}

impl Call {
    /// Its name in the table.
    pub(crate) fn lead(&self) -> RequestSlot {
        self.permit.slots()[0]
    }

    /// Answers, unless it has been answered.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(answerer) = self.answerer.take() {
            answerer.answer(answer);
        }
    }
}

/// What a ticket and its call agree on, so that at most one cancellation is ever sent, and only while the call holds
/// its slots. Without this, tickets of long-finished calls could flood the mailbox.
pub(crate) struct Hold(AtomicU8);

const LIVE: u8 = 0;
const CANCELLING: u8 = 1;
const OVER: u8 = 2;

impl Hold {
    pub(crate) fn new() -> Hold {
        Hold(AtomicU8::new(LIVE))
    }

    /// Whether the caller is to send the cancellation.
    pub(crate) fn cancel(&self) -> bool {
        self.0.compare_exchange(LIVE, CANCELLING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the hold; false if a cancellation is on its way, which must be read first.
    fn end(&self) -> bool {
        self.0.compare_exchange(LIVE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// All live calls.
pub(crate) struct JobTable {
    /// By first slot.
    calls: Vec<Option<Box<Call>>>,
    /// Of each slot in use: the first slot of its call, and which part it is.
    owner: Vec<(RequestSlot, u32)>,
    expiries: IndexedHeap<Time>,
}

impl JobTable {
    pub(crate) fn new(slots: usize) -> JobTable {
        JobTable {
            calls: (0..slots).map(|_| None).collect(),
            owner: vec![(RequestSlot(0), 0); slots],
            expiries: IndexedHeap::new(slots),
        }
    }

    pub(crate) fn insert(&mut self, call: Box<Call>) -> RequestSlot {
        let lead = call.lead();
        for (part, slot) in call.permit.slots().iter().enumerate() {
            self.owner[slot.index()] = (lead, part as u32);
        }
        if call.expires < Time::NEVER {
            self.expiries.set(lead.index(), call.expires);
        }
        let before = self.calls[lead.index()].replace(call);
        assert!(before.is_none(), "slot {} is taken", lead.0);
        lead
    }

    /// The call with this first slot.
    pub(crate) fn call(&mut self, lead: RequestSlot) -> &mut Call {
        self.calls[lead.index()].as_mut().expect("the call is live")
    }

    /// The call that `slot` belongs to, its first slot and the part.
    pub(crate) fn owner(&mut self, slot: RequestSlot) -> (RequestSlot, &mut Call, usize) {
        let (lead, part) = self.owner[slot.index()];
        (lead, self.call(lead), part as usize)
    }

    /// The part in `slot`.
    pub(crate) fn part(&mut self, slot: RequestSlot) -> &mut Part {
        let (_, call, part) = self.owner(slot);
        &mut call.parts[part]
    }

    /// Whether the core holds the part in `slot`; false for a slot that nobody has.
    pub(crate) fn in_core(&self, slot: RequestSlot) -> bool {
        let (lead, part) = self.owner[slot.index()];
        let call = self.calls[lead.index()].as_ref();
        call.is_some_and(|call| call.parts[part as usize].stage != Stage::Outside)
    }

    pub(crate) fn next_expiry(&self) -> Time {
        self.expiries.peek().map_or(Time::NEVER, |(time, _)| time)
    }

    /// A call whose time is over, its timer removed.
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<RequestSlot> {
        self.expiries.peek().filter(|(time, _)| *time <= now)?;
        self.expiries.pop().map(|(_, lead)| RequestSlot(lead as u32))
    }

    /// It will be answered at once, or has been; its timer must not strike any more.
    pub(crate) fn disarm(&mut self, lead: RequestSlot) {
        self.expiries.remove(lead.index());
    }

    /// Frees the slots of a call that is answered, ended in the core, in no task in flight, and not about to be cancelled.
    pub(crate) fn release_if_over(&mut self, lead: RequestSlot) {
        let call = self.call(lead);
        let gone = call.in_core == 0 && call.answerer.is_none() && call.parts.iter().all(|part| part.flying == 0);
        if gone && (call.cancel_read || call.hold.end()) {
            self.calls[lead.index()] = None;
        }
    }

    /// Likewise for the members of a task that has landed, each of which may stand there several times.
    pub(crate) fn release_landed(&mut self, members: &[RequestSlot]) {
        for slot in members {
            let (lead, _) = self.owner[slot.index()];
            if self.calls[lead.index()].as_ref().is_some_and(|call| call.in_core == 0) {
                self.release_if_over(lead);
            }
        }
    }

    /// The slots of parts in the core whose walk went with a device: those of chains that were started there last, and where
    /// walks unfold the `members` of tasks that were lost with it. Each once, in order.
    pub(crate) fn lost_with(&self, device: DeviceId, members: impl Iterator<Item = RequestSlot>) -> Vec<RequestSlot> {
        let calls = self.calls.iter().flatten().filter(|call| !call.model.unfolds);
        let parts = calls.flat_map(|call| call.parts.iter().zip(call.permit.slots()));
        let there = parts.filter(|(part, _)| part.stage == Stage::Begun && part.device == Some(device));
        let mut lost: Vec<RequestSlot> = there.map(|(_, &slot)| slot).collect();
        lost.extend(members);
        lost.sort_unstable_by_key(|slot| slot.0);
        lost.dedup();
        lost
    }

    /// A device has gone: whoever comes under its id knows nobody.
    pub(crate) fn forget_device(&mut self, device: DeviceId) {
        let parts = self.calls.iter_mut().flatten().flat_map(|call| &mut call.parts);
        parts.for_each(|part| part.known_on.retain(|&known| known != device));
    }

    /// The first slots of all calls.
    pub(crate) fn leads(&self) -> Vec<RequestSlot> {
        self.calls.iter().flatten().map(|call| call.lead()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cancellation_at_most_and_none_after_the_end() {
        let hold = Hold::new();
        assert_eq!((hold.cancel(), hold.cancel(), hold.end()), (true, false, false));
        let over = Hold::new();
        assert_eq!((over.end(), over.cancel()), (true, false));
    }
}
