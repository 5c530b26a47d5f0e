//! The table of live requests: the state behind each slot, and the expiry timers.
//!
//! A call is one client request. It has one or more parts of at most a batch each, which the core
//! knows as requests. All slots of a call are reserved and freed together, and its first slot
//! identifies it in the table.
//!
//! Steps of a walk may be queued ahead on a device, so a part can outlive its answer: queued steps
//! still access the state of its slot. It is kept until the last of them has completed.

use crate::JobResult;
use crate::answer::Answerer;
use crate::capacity::{ModelEntry, Permit};
use crate::shapes::OpenSizes;
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Loss, RequestEntry, Tensor, next_walk};
use ripieno_sched::RequestClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// One client request.
pub(crate) struct ClientCall {
    /// `None` once answered.
    pub(crate) answerer: Option<Answerer>,
    pub(crate) cancel_state: Arc<CancelState>,
    pub(crate) id: ModelId,
    pub(crate) model: Arc<ModelEntry>,
    pub(crate) arrived: Time,
    /// Deadline of the answer.
    pub(crate) deadline: Time,
    /// Time at which the call expires; [`Time::NEVER`] where late answers are
    /// wanted.
    pub(crate) expires: Time,
    pub(crate) rows: usize,
    pub(crate) parts: Vec<CallPart>,
    /// Number of parts that have their outputs.
    pub(crate) done: usize,
    /// Number of parts that the core has not ended.
    pub(crate) in_core: usize,
    /// Whether the mail of its cancellation has been read.
    pub(crate) cancel_read: bool,
    /// Set if a part failed because an engine process was missing or ended.
    pub(crate) lost: Option<Loss>,
    /// The sizes of its open dimensions, if its inputs are on another machine.
    pub(crate) sizes: OpenSizes,
    /// The class that the core sees for its parts.
    pub(crate) class: RequestClass,
    pub(crate) permit: Permit,
}

/// A request of the core.
pub(crate) struct CallPart {
    pub(crate) rows: usize,
    pub(crate) entry: Arc<RequestEntry>,
    pub(crate) stage: PartStage,
    /// Number of places in tasks in flight: one for each of its nodes there.
    pub(crate) in_flight: u32,
    /// Devices that have received its entry.
    pub(crate) known_on: Vec<DeviceId>,
    /// The device that it was started on last: the state of a chain lies there.
    pub(crate) device: Option<DeviceId>,
    /// The number of its walk.
    pub(crate) walk: u64,
    /// Whether its walk was restarted because a device was lost.
    pub(crate) retried: bool,
    /// Whether its client has received a step of the answer.
    pub(crate) streamed: bool,
    /// Number of the completion that it was last part of; a task may hold it several times.
    pub(crate) last_completion: u64,
    /// Whether a block that runs until its end has reported the end.
    pub(crate) end_reported: bool,
    /// Start of its first batch.
    pub(crate) started: Option<Time>,
    /// Total execution time of its batches.
    pub(crate) executed: Nanos,
    /// Number of rows in its last batch.
    pub(crate) batch: usize,
    pub(crate) result: Option<Result<Vec<Tensor>, String>>,
}

/// Stage of a part in the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartStage {
    /// Not in the core: not yet, or ended.
    Outside,
    /// In the core, never dispatched.
    Waiting,
    /// In the core, dispatched at least once.
    Begun,
}

impl CallPart {
    pub(crate) fn new(rows: usize, entry: RequestEntry) -> CallPart {
        CallPart {
            rows,
            entry: Arc::new(entry),
            stage: PartStage::Outside,
            in_flight: 0,
            known_on: Vec::new(),
            device: None,
            walk: next_walk(),
            retried: false,
            streamed: false,
            last_completion: 0,
            end_reported: false,
            started: None,
            executed: Nanos::ZERO,
            batch: 0,
            result: None,
        }
    }

    /// Restarts the walk, on another device.
    pub(crate) fn restart_walk(&mut self) {
        (self.walk, self.retried, self.device, self.end_reported) = (next_walk(), true, None, false);
        self.known_on.clear();
        self.executed = Nanos::ZERO;
    }

    /// Whether the device still needs the entry; records that it gets it.
    pub(crate) fn introduce(&mut self, device: DeviceId) -> bool {
        let known = self.known_on.contains(&device);
        if !known {
            self.known_on.push(device);
        }
        !known
    }
}

impl ClientCall {
    /// The first slot, which identifies the call in the table.
    pub(crate) fn lead(&self) -> RequestSlot {
        self.permit.slots()[0]
    }

    /// Answers the call, unless it has been answered.
    pub(crate) fn answer(&mut self, answer: JobResult) {
        if let Some(answerer) = self.answerer.take() {
            answerer.answer(answer);
        }
    }
}

/// State shared by a ticket and its call, so that at most one cancellation is ever sent, and only
/// while the call holds its slots. Without it, tickets of finished calls could flood the mailbox.
pub(crate) struct CancelState(AtomicU8);

const LIVE: u8 = 0;
const CANCELLING: u8 = 1;
const OVER: u8 = 2;

impl CancelState {
    pub(crate) fn new() -> CancelState {
        CancelState(AtomicU8::new(LIVE))
    }

    /// Requests cancellation; returns whether the caller must send the mail.
    pub(crate) fn cancel(&self) -> bool {
        self.0.compare_exchange(LIVE, CANCELLING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the call; returns false if a cancellation is in the mailbox, which must be read first.
    fn end(&self) -> bool {
        self.0.compare_exchange(LIVE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// All live calls.
pub(crate) struct JobTable {
    /// Indexed by first slot.
    calls: Vec<Option<Box<ClientCall>>>,
    /// Owner of each slot in use: the first slot of its call and the index of the part.
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

    pub(crate) fn insert(&mut self, call: Box<ClientCall>) -> RequestSlot {
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

    /// Returns the call with this first slot.
    pub(crate) fn call(&mut self, lead: RequestSlot) -> &mut ClientCall {
        self.calls[lead.index()].as_mut().expect("the call is live")
    }

    /// Returns the first slot, the call and the part index that `slot` belongs to.
    pub(crate) fn owner(&mut self, slot: RequestSlot) -> (RequestSlot, &mut ClientCall, usize) {
        let (lead, part) = self.owner[slot.index()];
        (lead, self.call(lead), part as usize)
    }

    /// Returns the part in `slot`.
    pub(crate) fn part(&mut self, slot: RequestSlot) -> &mut CallPart {
        let (_, call, part) = self.owner(slot);
        &mut call.parts[part]
    }

    /// Whether the core holds the part in `slot`; false for a free slot.
    pub(crate) fn in_core(&self, slot: RequestSlot) -> bool {
        let (lead, part) = self.owner[slot.index()];
        let call = self.calls[lead.index()].as_ref();
        call.is_some_and(|call| call.parts[part as usize].stage != PartStage::Outside)
    }

    pub(crate) fn next_expiry(&self) -> Time {
        self.expiries.peek().map_or(Time::NEVER, |(time, _)| time)
    }

    /// Returns a call whose time has expired, and removes its timer.
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<RequestSlot> {
        self.expiries.peek().filter(|(time, _)| *time <= now)?;
        self.expiries.pop().map(|(_, lead)| RequestSlot(lead as u32))
    }

    /// Removes the timer of a call that is answered or about to be.
    pub(crate) fn disarm(&mut self, lead: RequestSlot) {
        self.expiries.remove(lead.index());
    }

    /// Frees the slots of a call that is answered, ended in the core, in no task in flight, and not
    /// about to be cancelled.
    pub(crate) fn release_if_over(&mut self, lead: RequestSlot) {
        let call = self.call(lead);
        let gone = call.in_core == 0 && call.answerer.is_none() && call.parts.iter().all(|part| part.in_flight == 0);
        if gone && (call.cancel_read || call.cancel_state.end()) {
            self.calls[lead.index()] = None;
        }
    }

    /// Frees the slots of ended calls among the members of a completed task, where a call may
    /// appear several times.
    pub(crate) fn release_completed(&mut self, members: &[RequestSlot]) {
        for slot in members {
            let (lead, _) = self.owner[slot.index()];
            if self.calls[lead.index()].as_ref().is_some_and(|call| call.in_core == 0) {
                self.release_if_over(lead);
            }
        }
    }

    /// Returns the slots of parts in the core whose walk was lost with a device: chains that were
    /// started there last, and, where walks unfold, the `members` of tasks that were lost with it.
    /// Each once, in order.
    pub(crate) fn lost_with(&self, device: DeviceId, members: impl Iterator<Item = RequestSlot>) -> Vec<RequestSlot> {
        let calls = self.calls.iter().flatten().filter(|call| !call.model.unfolds);
        let parts = calls.flat_map(|call| call.parts.iter().zip(call.permit.slots()));
        let there = parts.filter(|(part, _)| part.stage == PartStage::Begun && part.device == Some(device));
        let mut lost: Vec<RequestSlot> = there.map(|(_, &slot)| slot).collect();
        lost.extend(members);
        lost.sort_unstable_by_key(|slot| slot.0);
        lost.dedup();
        lost
    }

    /// Forgets a device that is gone, since its id may be reused by a device that knows no entry.
    pub(crate) fn forget_device(&mut self, device: DeviceId) {
        let parts = self.calls.iter_mut().flatten().flat_map(|call| &mut call.parts);
        parts.for_each(|part| part.known_on.retain(|&known| known != device));
    }

    /// Returns the first slots of all calls.
    pub(crate) fn leads(&self) -> Vec<RequestSlot> {
        self.calls.iter().flatten().map(|call| call.lead()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cancellation_at_most_and_none_after_the_end() {
        let cancel_state = CancelState::new();
        assert_eq!((cancel_state.cancel(), cancel_state.cancel(), cancel_state.end()), (true, false, false));
        let over = CancelState::new();
        assert_eq!((over.end(), over.cancel()), (true, false));
    }
}
