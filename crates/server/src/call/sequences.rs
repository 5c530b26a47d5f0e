//! Active sequences: the state of each, and the order of its requests.
//!
//! A request acquires its sequence's turn before it is submitted and releases it with its answer.
//! Requests of a sequence therefore run one after another in arrival order, and requests of
//! different sequences concurrently. A request that fails or is cancelled leaves the state
//! unchanged. Waiting happens in the future of the client's call, without a thread.

use crate::limits::budget::{MemoryBudget, hold};
use crate::problem::{Problem, ProblemKind};
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use ripieno_repository::edge::{SequenceEvent, SequenceId, Sequences};
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::{Parameter, Parameters};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turns, Notify, OwnedMutexGuard};

/// Maximum number of active sequences of all models.
const MAX_SEQUENCES: usize = 1 << 14;
/// Interval at which idle sequences are removed. A request for one that has expired is refused
/// immediately.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// States of a sequence; `None` before its first request and after its last.
type States = Option<Vec<Tensor>>;
/// Model, version and sequence id.
type SequenceKey = (String, String, SequenceId);

/// All active sequences of the server.
#[derive(Default)]
pub(crate) struct SequenceTable {
    slots: Mutex<BTreeMap<SequenceKey, SequenceSlot>>,
}

struct SequenceSlot {
    /// Fair lock: requests acquire it in arrival order. Cloned only while the table is locked.
    states: Arc<Turns<States>>,
    /// Model entry when the sequence began.
    entry: Weak<ServedEntry>,
    idle: Duration,
    /// End of the last turn.
    last: Instant,
}

impl SequenceSlot {
    /// Returns true if no request holds or waits for a turn.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.states) == 1
    }

    fn is_over(&self, now: Instant) -> bool {
        self.is_idle() && now.duration_since(self.last) >= self.idle
    }
}

/// A request's turn in its sequence. Dropping it passes the turn on.
pub(crate) struct SequenceTurn {
    table: Arc<SequenceTable>,
    entry: Arc<ServedEntry>,
    key: SequenceKey,
    event: SequenceEvent,
    /// Lock on the states; `Some` until drop.
    states: Option<OwnedMutexGuard<States>>,
}

/// Returns the request's role in its sequence; an error if the model keeps sequences and the
/// request names none.
pub(crate) fn event(entry: &ServedEntry, parameters: &Parameters) -> Result<Option<SequenceEvent>, Problem> {
    if entry.edge.sequences.is_none() {
        return Ok(None);
    }
    let flag = |name: &str| match parameters.get(name) {
        None => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| Problem::invalid(format!("parameter {name} is {value}; it must be true or false"))),
    };
    let id = match parameters.get("sequence_id") {
        Some(Parameter::Text(text)) if !text.is_empty() => SequenceId::Text(text.clone()),
        Some(value) if value.as_u64().is_some_and(|id| id > 0) => {
            SequenceId::Number(value.as_u64().unwrap_or_default())
        }
        _ => {
            return Err(Problem::invalid(format!(
                "inference request to model '{}' must specify a non-zero or non-empty correlation ID: it keeps sequences; set \
                 sequence_id, sequence_start and sequence_end",
                entry.name
            )));
        }
    };
    Ok(Some(SequenceEvent { id, start: flag("sequence_start")?, end: flag("sequence_end")? }))
}

impl SequenceTable {
    /// Waits for the turn of a request. The message position is released once this request is
    /// queued, so that later messages queue behind it.
    pub(crate) async fn acquire_turn(
        self: &Arc<SequenceTable>,
        entry: &Arc<ServedEntry>,
        event: SequenceEvent,
        position: Option<MessagePosition>,
    ) -> Result<SequenceTurn, Problem> {
        if let Some(position) = &position {
            position.wait_until_first().await;
        }
        let key = (entry.name.clone(), entry.version.clone(), event.id.clone());
        let states = self.slot(entry, &key, event.start)?;
        let (mut turn, mut position) = (pin!(states.lock_owned()), position);
        let mut states = poll_fn(|context| {
            let polled = turn.as_mut().poll(context);
            // The request is queued now.
            position = None;
            polled
        })
        .await;
        if event.start {
            *states = entry.edge.sequences.as_ref().map(Sequences::initial_states);
        }
        let has_begun = states.is_some();
        let turn = SequenceTurn { table: self.clone(), entry: entry.clone(), key, event, states: Some(states) };
        if has_begun { Ok(turn) } else { Err(unknown(&turn.key)) }
    }

    fn slot(
        self: &Arc<SequenceTable>,
        entry: &Arc<ServedEntry>,
        key: &SequenceKey,
        start: bool,
    ) -> Result<Arc<Turns<States>>, Problem> {
        let mut slots = self.slots.lock();
        let lives = |slot: &&SequenceSlot| !slot.is_over(Instant::now()) && slot.entry.ptr_eq(&Arc::downgrade(entry));
        if let Some(slot) = slots.get(key).filter(lives) {
            return Ok(slot.states.clone());
        }
        if !start {
            return Err(unknown(key));
        }
        if slots.len() >= MAX_SEQUENCES && !slots.contains_key(key) {
            let retry_after = Some(SWEEP_INTERVAL);
            let full = format!("there are {MAX_SEQUENCES} sequences already; end those that are over, or retry later");
            return Err(Problem { retry_after, ..Problem::new(ProblemKind::Overloaded, full) });
        }
        if slots.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let states = Arc::new(Turns::new(None));
        let idle = entry.edge.sequences.as_ref().map_or(Duration::ZERO, |sequences| sequences.idle);
        let slot = SequenceSlot { states: states.clone(), entry: Arc::downgrade(entry), idle, last: Instant::now() };
        slots.insert(key.clone(), slot);
        Ok(states)
    }
}

/// Removes idle sequences until none is left; the next sequence starts this task again.
async fn sweep(table: Weak<SequenceTable>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(table) = table.upgrade() else { return };
        let (mut slots, now) = (table.slots.lock(), Instant::now());
        slots.retain(|_, slot| !slot.is_over(now));
        if slots.is_empty() {
            return;
        }
    }
}

fn unknown((model, _, id): &SequenceKey) -> Problem {
    Problem::invalid(format!(
        "inference request for sequence {id} to model '{model}' must specify the START flag on the first request of the \
         sequence: it has not begun, has ended, was idle for longer than max_sequence_idle_microseconds, or the model was loaded \
         again since"
    ))
}

impl SequenceTurn {
    /// Returns the model's inputs.
    pub(crate) fn inputs(&self, given: &[Tensor]) -> Result<Arc<[Tensor]>, Problem> {
        let states = self.states.as_ref().and_then(|states| states.as_deref()).unwrap_or_default();
        let sequences = self.entry.edge.sequences.as_ref().ok_or_else(Problem::lost)?;
        let whole = sequences.model_inputs(given, states, &self.event);
        whole.map_err(|cause| Problem::invalid(format!("model '{}': {cause}", self.entry.name)))
    }

    /// Ends the turn with the model's outputs. States are copied, because the batch's memory
    /// belongs to all its requests.
    pub(crate) fn end(mut self, outputs: &[Tensor], budget: &Arc<MemoryBudget>) -> Result<(), Problem> {
        let Some(states) = self.states.as_mut() else { return Ok(()) };
        if self.event.end {
            **states = None;
            return Ok(());
        }
        let next = self.entry.edge.sequences.as_ref().and_then(|sequences| sequences.next_states(outputs));
        let lost = || Problem::new(ProblemKind::Internal, format!("model '{}' gave no state", self.entry.name));
        let copy = |tensor: Tensor| {
            let room = budget.reserve(tensor.data.len())?;
            Ok(Tensor { data: hold(tensor.data.to_vec(), room), ..tensor })
        };
        let next = next.ok_or_else(lost)?.into_iter().map(copy).collect::<Result<_, Problem>>()?;
        **states = Some(next);
        Ok(())
    }
}

impl Drop for SequenceTurn {
    fn drop(&mut self) {
        let Some(states) = self.states.take() else { return };
        let mut slots = self.table.slots.lock();
        let own = |slot: &&mut SequenceSlot| Arc::ptr_eq(&slot.states, OwnedMutexGuard::mutex(&states));
        if let Some(slot) = slots.get_mut(&self.key).filter(own) {
            slot.last = Instant::now();
            let is_over = states.is_none();
            drop(states);
            if is_over && slot.is_idle() {
                slots.remove(&self.key);
            }
        }
    }
}

/// Arrival order of a stream's messages, which are decoded concurrently, so that small ones may
/// overtake large ones.
#[derive(Default)]
pub(crate) struct MessageOrder {
    waiting: Mutex<(u64, BTreeSet<u64>)>,
    moved: Notify,
}

/// Position of a message in the order, until drop.
pub(crate) struct MessagePosition {
    order: Arc<MessageOrder>,
    number: u64,
}

impl MessageOrder {
    /// Returns the position after all others.
    pub(crate) fn next_position(self: &Arc<MessageOrder>) -> MessagePosition {
        let (next, waiting) = &mut *self.waiting.lock();
        *next += 1;
        waiting.insert(*next);
        MessagePosition { order: self.clone(), number: *next }
    }
}

impl MessagePosition {
    /// Waits until this position is the first.
    async fn wait_until_first(&self) {
        loop {
            let moved = self.order.moved.notified();
            if self.order.waiting.lock().1.first() == Some(&self.number) {
                return;
            }
            moved.await;
        }
    }
}

impl Drop for MessagePosition {
    fn drop(&mut self) {
        self.order.waiting.lock().1.remove(&self.number);
        self.order.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_in_the_order_of_the_messages() {
        let order = Arc::new(MessageOrder::default());
        let (first, second, third) = (order.next_position(), order.next_position(), order.next_position());
        let passed = Arc::new(Mutex::new(Vec::new()));
        let seen = passed.clone();
        let last = tokio::spawn(async move {
            third.wait_until_first().await;
            seen.lock().push(3);
        });
        tokio::task::yield_now().await;
        // A position that is dropped without a turn leaves the order.
        drop(second);
        tokio::task::yield_now().await;
        passed.lock().push(1);
        first.wait_until_first().await;
        drop(first);
        last.await.unwrap();
        assert_eq!(*passed.lock(), [1, 3]);
    }
}
