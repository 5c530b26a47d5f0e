//! The table of live requests, with the state behind each slot and the expiry timers.
//!
//! A live job is a [`Job`](crate::Job) that was accepted, in these comments also a call. It has one
//! or more parts of at most a batch each, and the core sees each part as a request. All slots of a
//! call are reserved and freed together. The first slot identifies the call in the table.
//!
//! A device may hold queued steps of a part after the call was answered, and these steps still use
//! the part's slot. So the table keeps a call until its last step has completed.

use crate::JobResult;
use crate::learn::capacity::{ModelEntry, Permit};
use crate::learn::shapes::OpenSizes;
use crate::requests::answer::Answerer;
use ripieno_base::{DeviceId, IndexedHeap, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Loss, RequestEntry, Tensor, next_walk};
use ripieno_sched::RequestClass;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// An accepted [`Job`](crate::Job).
pub(crate) struct LiveJob {
    /// Obligation to answer; `None` once the call is answered.
    pub(crate) answerer: Option<Answerer>,
    pub(crate) cancel_state: Arc<CancelState>,
    pub(crate) id: ModelId,
    pub(crate) model: Arc<ModelEntry>,
    pub(crate) arrived: Time,
    /// Deadline of the answer.
    pub(crate) deadline: Time,
    /// Time at which the call is answered as expired. [`Time::NEVER`] if the model answers late and
    /// the client set no limit.
    pub(crate) expires: Time,
    pub(crate) rows: usize,
    pub(crate) parts: Vec<JobPart>,
    /// Number of parts that have their outputs.
    pub(crate) done: usize,
    /// Number of parts still in the core.
    pub(crate) in_core: usize,
    /// Whether the scheduler has read the call's cancellation.
    pub(crate) cancel_read: bool,
    /// Set if a part failed because an engine process was missing or ended.
    pub(crate) lost: Option<Loss>,
    /// Time that its inputs take to come, if a part was left out of a batch for it.
    pub(crate) slow_inputs: Option<Duration>,
    /// Sizes of the call's open dimensions, if the inputs are on another machine.
    pub(crate) sizes: OpenSizes,
    /// Class of the call's requests in the core.
    pub(crate) class: RequestClass,
    /// Hash of the client's own id for the call; 0 without one.
    pub(crate) tag: u64,
    pub(crate) permit: Permit,
}

/// Part of a job; the core sees it as one request.
pub(crate) struct JobPart {
    pub(crate) rows: usize,
    pub(crate) entry: Arc<RequestEntry>,
    pub(crate) stage: PartStage,
    /// Number of tasks in flight that contain the part, counted once per node.
    pub(crate) in_flight: u32,
    /// Devices that have received the entry.
    pub(crate) known_on: Vec<DeviceId>,
    /// Device of the last start, which holds the part's state unless devices share it.
    pub(crate) device: Option<DeviceId>,
    /// Number of the current attempt; a restart after a loss gets a new number.
    pub(crate) walk: u64,
    /// Whether the part was restarted because a device was lost.
    pub(crate) retried: bool,
    /// Whether the client has received a step of the answer.
    pub(crate) streamed: bool,
    /// Number of the last completion that contained the part. A task may contain the part several
    /// times, and this counts it once.
    pub(crate) last_completion: u64,
    /// Whether a block that runs until the request ends has reported the end.
    pub(crate) end_reported: bool,
    /// Start of the part's first batch.
    pub(crate) started: Option<Time>,
    /// Total execution time of the part's batches.
    pub(crate) executed: Nanos,
    /// Number of rows in the part's last batch.
    pub(crate) batch: usize,
    pub(crate) result: Option<Result<Vec<Tensor>, String>>,
}

/// Stage of a part in the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartStage {
    /// Not in the core: not yet admitted, or ended.
    Outside,
    /// In the core, never dispatched.
    Waiting,
    /// In the core, dispatched at least once.
    Begun,
}

impl JobPart {
    pub(crate) fn new(rows: usize, entry: RequestEntry) -> JobPart {
        JobPart {
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

    /// Restarts the part after the loss of its device.
    pub(crate) fn restart_walk(&mut self) {
        (self.retried, self.device) = (true, None);
        self.known_on.clear();
        self.begin_anew();
    }

    /// Begins the part's walk again, under a new number.
    pub(crate) fn begin_anew(&mut self) {
        (self.walk, self.end_reported, self.executed) = (next_walk(), false, Nanos::ZERO);
    }

    /// Returns whether the device still needs the entry, and records that the device gets it.
    pub(crate) fn introduce(&mut self, device: DeviceId) -> bool {
        let known = self.known_on.contains(&device);
        if !known {
            self.known_on.push(device);
        }
        !known
    }
}

impl LiveJob {
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

/// A member that failed while others of its task may have succeeded.
#[derive(Clone, Copy)]
pub(crate) struct FailedMember {
    pub(crate) slot: RequestSlot,
    /// Whether the request did not run, because its inputs could not be fetched or do not fit.
    pub(crate) did_not_run: bool,
}

/// State shared by a ticket and its call. It allows one cancellation message, and only while the
/// call holds its slots. Otherwise tickets of finished calls could flood the mailbox.
pub(crate) struct CancelState(AtomicU8);

const LIVE: u8 = 0;
const CANCELLING: u8 = 1;
const OVER: u8 = 2;

impl CancelState {
    pub(crate) fn new() -> CancelState {
        CancelState(AtomicU8::new(LIVE))
    }

    /// Requests cancellation. Returns whether the caller must send the message.
    pub(crate) fn cancel(&self) -> bool {
        self.0.compare_exchange(LIVE, CANCELLING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the call. Returns false if a cancellation is in the mailbox; the scheduler must then
    /// read it first.
    fn end(&self) -> bool {
        self.0.compare_exchange(LIVE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// All live calls.
pub(crate) struct JobTable {
    /// Indexed by the first slot of a call.
    calls: Vec<Option<Box<LiveJob>>>,
    /// First slot of the call and index of the part, for each slot in use.
    owner: Vec<(RequestSlot, u32)>,
    expiries: IndexedHeap<Time>,
    /// Parts that are still in the core although their client has been answered. The next turn
    /// reports them to the core. Reporting them immediately is impossible, because the outbox may
    /// be half performed.
    withdrawals: Vec<RequestSlot>,
}

impl JobTable {
    pub(crate) fn new(slots: usize) -> JobTable {
        JobTable {
            calls: (0..slots).map(|_| None).collect(),
            owner: vec![(RequestSlot(0), 0); slots],
            expiries: IndexedHeap::new(slots),
            withdrawals: Vec::with_capacity(slots),
        }
    }

    pub(crate) fn insert(&mut self, call: Box<LiveJob>) -> RequestSlot {
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
    pub(crate) fn call(&mut self, lead: RequestSlot) -> &mut LiveJob {
        self.calls[lead.index()].as_mut().expect("the call is live")
    }

    /// Returns the first slot, the call and the part index of `slot`.
    pub(crate) fn owner(&mut self, slot: RequestSlot) -> (RequestSlot, &mut LiveJob, usize) {
        let (lead, part) = self.owner[slot.index()];
        (lead, self.call(lead), part as usize)
    }

    /// Returns the part in `slot`.
    pub(crate) fn part(&mut self, slot: RequestSlot) -> &mut JobPart {
        let (_, call, part) = self.owner(slot);
        &mut call.parts[part]
    }

    /// Schedules the withdrawal of an answered call's parts from the core.
    pub(crate) fn schedule_withdrawal(&mut self, lead: RequestSlot) {
        let call = self.calls[lead.index()].as_ref().expect("the call is live");
        let held = call.parts.iter().zip(call.permit.slots()).filter(|(part, _)| part.stage != PartStage::Outside);
        self.withdrawals.extend(held.map(|(_, &slot)| slot));
    }

    /// Takes a part to be withdrawn from the core.
    pub(crate) fn pop_withdrawal(&mut self) -> Option<RequestSlot> {
        self.withdrawals.pop()
    }

    /// Drops the scheduled withdrawals of parts that the core has ended.
    pub(crate) fn drop_ended_withdrawals(&mut self) {
        let (calls, owner) = (&self.calls, &self.owner);
        self.withdrawals.retain(|slot| {
            let (lead, part) = owner[slot.index()];
            let call = calls[lead.index()].as_ref();
            call.is_some_and(|call| call.parts[part as usize].stage != PartStage::Outside)
        });
    }

    pub(crate) fn has_withdrawals(&self) -> bool {
        !self.withdrawals.is_empty()
    }

    pub(crate) fn next_expiry(&self) -> Time {
        self.expiries.peek().map_or(Time::NEVER, |(time, _)| time)
    }

    /// Returns a call that has expired, and removes its timer.
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<RequestSlot> {
        self.expiries.peek().filter(|(time, _)| *time <= now)?;
        self.expiries.pop().map(|(_, lead)| RequestSlot(lead as u32))
    }

    /// Removes the timer of a call that is answered or will be answered in this turn.
    pub(crate) fn disarm(&mut self, lead: RequestSlot) {
        self.expiries.remove(lead.index());
    }

    /// Removes the timers of calls that a completed task with these members ends: they are answered
    /// in this turn. A model that runs cell by cell may still run steps of the call.
    pub(crate) fn disarm_ended(&mut self, members: &[RequestSlot]) {
        for &slot in members {
            let (lead, call, part) = self.owner(slot);
            let ends = call.done == call.parts.len() || matches!(call.parts[part].result, Some(Err(_)));
            if ends && !call.model.unfolds {
                self.disarm(lead);
            }
        }
    }

    /// Frees the slots of a call once nothing refers to them. The call must be answered and ended
    /// in the core, no task in flight may contain it, and no cancellation may be in the mailbox.
    pub(crate) fn release_if_over(&mut self, lead: RequestSlot) {
        let call = self.call(lead);
        let gone = call.in_core == 0 && call.answerer.is_none() && call.parts.iter().all(|part| part.in_flight == 0);
        if gone && (call.cancel_read || call.cancel_state.end()) {
            self.calls[lead.index()] = None;
        }
    }

    /// Frees the slots of ended calls among the members of a completed task. A call may occur
    /// several times among the members.
    pub(crate) fn release_completed(&mut self, members: &[RequestSlot]) {
        for slot in members {
            let (lead, _) = self.owner[slot.index()];
            if self.calls[lead.index()].as_ref().is_some_and(|call| call.in_core == 0) {
                self.release_if_over(lead);
            }
        }
    }

    /// Returns the slots of parts in the core whose state was lost with a device, each once and in
    /// order. These are the `members` of the lost tasks. If a model's state stays on its device,
    /// these are also the parts that last started there.
    pub(crate) fn lost_with(&self, device: DeviceId, members: impl Iterator<Item = RequestSlot>) -> Vec<RequestSlot> {
        let calls = self.calls.iter().flatten().filter(|call| call.model.keeps_device);
        let parts = calls.flat_map(|call| call.parts.iter().zip(call.permit.slots()));
        let there = parts.filter(|(part, _)| part.stage == PartStage::Begun && part.device == Some(device));
        let mut lost: Vec<RequestSlot> = there.map(|(_, &slot)| slot).collect();
        lost.extend(members);
        lost.sort_unstable_by_key(|slot| slot.0);
        lost.dedup();
        lost
    }

    /// Forgets a removed device, because a new device without any entries may reuse the id.
    pub(crate) fn forget_device(&mut self, device: DeviceId) {
        let parts = self.calls.iter_mut().flatten().flat_map(|call| &mut call.parts);
        parts.for_each(|part| part.known_on.retain(|&known| known != device));
    }

    /// Returns the first slots of the calls whose parts all fulfil a condition.
    pub(crate) fn leads_where(&self, every: impl Fn(&JobPart) -> bool) -> Vec<RequestSlot> {
        let calls = self.calls.iter().flatten().filter(|call| call.parts.iter().all(&every));
        calls.map(|call| call.lead()).collect()
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
