//! The sequences that are under way: what each has left for its next request, and whose turn it is.
//!
//! A request takes its turn before it is submitted and gives it back with its answer. So requests of a sequence run one after
//! another, in the order in which they came, and those of different sequences side by side. What fails, or whose client leaves,
//! leaves the states as they were. There is no thread for it: waiting happens in the future of the client's call.

use crate::bounds::budget::{Budget, hold};
use crate::problem::{Kind, Problem};
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use ripieno_repository::edge::{Event, SequenceId, Sequences};
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::{Parameter, Parameters};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turns, Notify, OwnedMutexGuard};

/// Sequences under way at the same time, of all models.
const MOST_SEQUENCES: usize = 1 << 14;
/// How often those that are idle for too long are looked for. Whoever asks for one of them is told at once.
const SWEEP: Duration = Duration::from_secs(1);

/// The states that a sequence has left; none before its first request and after its last.
type States = Option<Vec<Tensor>>;
/// Model, version, and which of its sequences.
type Key = (String, String, SequenceId);

/// All sequences of the server.
#[derive(Default)]
pub(crate) struct Table {
    slots: Mutex<BTreeMap<Key, Slot>>,
}

struct Slot {
    /// Fair: who comes first has the first turn. Cloned only with the table locked.
    states: Arc<Turns<States>>,
    /// The model as it was loaded when the sequence began.
    entry: Weak<ServedEntry>,
    idle: Duration,
    /// When the last turn ended.
    last: Instant,
}

impl Slot {
    /// Nobody has a turn or waits for one.
    fn rests(&self) -> bool {
        Arc::strong_count(&self.states) == 1
    }

    fn is_over(&self, now: Instant) -> bool {
        self.rests() && now.duration_since(self.last) >= self.idle
    }
}

/// The turn of a request. Dropping it lets the next one have its own.
pub(crate) struct Turn {
    table: Arc<Table>,
    entry: Arc<ServedEntry>,
    key: Key,
    event: Event,
    /// Until it is dropped.
    states: Option<OwnedMutexGuard<States>>,
}

/// What a request is to a sequence; an error if its model keeps sequences and it names none.
pub(crate) fn event(entry: &ServedEntry, parameters: &Parameters) -> Result<Option<Event>, Problem> {
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
    Ok(Some(Event { id, start: flag("sequence_start")?, end: flag("sequence_end")? }))
}

impl Table {
    /// Waits for the turn of a request of this model, and no longer than the requests before it take. The place is given up once
    /// those that came later can only come later here, too.
    pub(crate) async fn turn(
        self: &Arc<Table>,
        entry: &Arc<ServedEntry>,
        event: Event,
        place: Option<Place>,
    ) -> Result<Turn, Problem> {
        if let Some(place) = &place {
            place.comes_next().await;
        }
        let key = (entry.name.clone(), entry.version.clone(), event.id.clone());
        let states = self.slot(entry, &key, event.start)?;
        let (mut turn, mut place) = (pin!(states.lock_owned()), place);
        let mut states = poll_fn(|context| {
            let polled = turn.as_mut().poll(context);
            // It stands in the queue.
            place = None;
            polled
        })
        .await;
        if event.start {
            *states = entry.edge.sequences.as_ref().map(Sequences::begin);
        }
        let has_begun = states.is_some();
        let turn = Turn { table: self.clone(), entry: entry.clone(), key, event, states: Some(states) };
        if has_begun { Ok(turn) } else { Err(unknown(&turn.key)) }
    }

    fn slot(
        self: &Arc<Table>,
        entry: &Arc<ServedEntry>,
        key: &Key,
        start: bool,
    ) -> Result<Arc<Turns<States>>, Problem> {
        let mut slots = self.slots.lock();
        let lives = |slot: &&Slot| !slot.is_over(Instant::now()) && slot.entry.ptr_eq(&Arc::downgrade(entry));
        if let Some(slot) = slots.get(key).filter(lives) {
            return Ok(slot.states.clone());
        }
        if !start {
            return Err(unknown(key));
        }
        if slots.len() >= MOST_SEQUENCES && !slots.contains_key(key) {
            let retry_after = Some(SWEEP);
            let full = format!("there are {MOST_SEQUENCES} sequences already; end those that are over, or retry later");
            return Err(Problem { retry_after, ..Problem::new(Kind::Overloaded, full) });
        }
        if slots.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let states = Arc::new(Turns::new(None));
        let idle = entry.edge.sequences.as_ref().map_or(Duration::ZERO, |sequences| sequences.idle);
        let slot = Slot { states: states.clone(), entry: Arc::downgrade(entry), idle, last: Instant::now() };
        slots.insert(key.clone(), slot);
        Ok(states)
    }
}

/// Forgets what is idle for too long, until there is nothing left; the next sequence begins it anew.
async fn sweep(table: Weak<Table>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(table) = table.upgrade() else { return };
        let (mut slots, now) = (table.slots.lock(), Instant::now());
        slots.retain(|_, slot| !slot.is_over(now));
        if slots.is_empty() {
            return;
        }
    }
}

fn unknown((model, _, id): &Key) -> Problem {
    Problem::invalid(format!(
        "inference request for sequence {id} to model '{model}' must specify the START flag on the first request of the \
         sequence: it has not begun, has ended, was idle for longer than max_sequence_idle_microseconds, or the model was loaded \
         again since"
    ))
}

impl Turn {
    /// What the model gets.
    pub(crate) fn inputs(&self, given: &[Tensor]) -> Result<Arc<[Tensor]>, Problem> {
        let states = self.states.as_ref().and_then(|states| states.as_deref()).unwrap_or_default();
        let sequences = self.entry.edge.sequences.as_ref().ok_or_else(Problem::lost)?;
        let whole = sequences.complete(given, states, &self.event);
        whole.map_err(|cause| Problem::invalid(format!("model '{}': {cause}", self.entry.name)))
    }

    /// Ends it with what the model gave. States are copied: those of the batch are the memory of all its requests.
    pub(crate) fn end(mut self, outputs: &[Tensor], budget: &Arc<Budget>) -> Result<(), Problem> {
        let Some(states) = self.states.as_mut() else { return Ok(()) };
        if self.event.end {
            **states = None;
            return Ok(());
        }
        let next = self.entry.edge.sequences.as_ref().and_then(|sequences| sequences.next(outputs));
        let lost = || Problem::new(Kind::Internal, format!("model '{}' gave no state", self.entry.name));
        let copy = |tensor: Tensor| {
            let room = budget.reserve(tensor.data.len())?;
            Ok(Tensor { data: hold(tensor.data.to_vec(), room), ..tensor })
        };
        let next = next.ok_or_else(lost)?.into_iter().map(copy).collect::<Result<_, Problem>>()?;
        **states = Some(next);
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(states) = self.states.take() else { return };
        let mut slots = self.table.slots.lock();
        let own = |slot: &&mut Slot| Arc::ptr_eq(&slot.states, OwnedMutexGuard::mutex(&states));
        if let Some(slot) = slots.get_mut(&self.key).filter(own) {
            slot.last = Instant::now();
            let is_over = states.is_none();
            drop(states);
            if is_over && slot.rests() {
                slots.remove(&self.key);
            }
        }
    }
}

/// The order in which the messages of a stream came: they are decoded side by side, and a large one is passed by small ones.
#[derive(Default)]
pub(crate) struct Order {
    waiting: Mutex<(u64, BTreeSet<u64>)>,
    moved: Notify,
}

/// A message's place in the order, until it is dropped.
pub(crate) struct Place {
    order: Arc<Order>,
    number: u64,
}

impl Order {
    /// Behind all others.
    pub(crate) fn place(self: &Arc<Order>) -> Place {
        let (next, waiting) = &mut *self.waiting.lock();
        *next += 1;
        waiting.insert(*next);
        Place { order: self.clone(), number: *next }
    }
}

impl Place {
    /// Waits until nobody stands before it.
    async fn comes_next(&self) {
        loop {
            let moved = self.order.moved.notified();
            if self.order.waiting.lock().1.first() == Some(&self.number) {
                return;
            }
            moved.await;
        }
    }
}

impl Drop for Place {
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
        let order = Arc::new(Order::default());
        let (first, second, third) = (order.place(), order.place(), order.place());
        let passed = Arc::new(Mutex::new(Vec::new()));
        let seen = passed.clone();
        let last = tokio::spawn(async move {
            third.comes_next().await;
            seen.lock().push(3);
        });
        tokio::task::yield_now().await;
        // Who needs no turn just leaves.
        drop(second);
        tokio::task::yield_now().await;
        passed.lock().push(1);
        first.comes_next().await;
        drop(first);
        last.await.unwrap();
        assert_eq!(*passed.lock(), [1, 3]);
    }
}
