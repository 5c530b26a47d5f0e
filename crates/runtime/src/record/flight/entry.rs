//! Entries of the flight recorder, and their form as bytes.
//!
//! An entry is written from borrowed parts, so that recording allocates nothing, and read back as
//! owned values. The two types of an event have the same variants in the same order, which is all
//! that the format (postcard) stores; a test holds them together.

use crate::requests::ending::{Ending, RefusedWhy};
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_sched::{Action, Control, Event, Outcome, Reason, Request, Scheduler};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};

/// A fact beside the scheduler's inputs and decisions: no scheduler reads it, and a replay passes
/// over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aside {
    /// A client's call reaches the scheduler, before its requests.
    Call {
        /// First slot of its requests; the others follow in their own events.
        lead: RequestSlot,
        /// The model.
        model: ModelId,
        /// Number of requests that it was split into.
        parts: u32,
        /// Deadline of the request, without the margin that the scheduler plans by.
        deadline: Time,
        /// Hash of the client's own id for it; 0 without one.
        tag: u64,
    },
    /// A call is answered.
    Ended {
        /// First slot of its requests.
        lead: RequestSlot,
        /// The outcome.
        ending: Ending,
    },
    /// The times at which a device ran a task; they precede the task's end.
    Ran {
        /// The task.
        task: TaskId,
        /// Start of the execution.
        started: Time,
        /// End of the execution.
        finished: Time,
        /// Whether the batch failed and was run again in parts.
        rerun: bool,
    },
    /// A call was refused before it reached the scheduler.
    Refused {
        /// The model.
        model: ModelId,
        /// The reason.
        why: RefusedWhy,
    },
    /// The scheduler decided so for this reason; it precedes the decisions of its settle.
    Decided(Reason),
    /// The process did not run in this span; it is written after it.
    Stalled {
        /// Begin of the span.
        from: Time,
        /// End of the span.
        to: Time,
    },
}

/// A call into a scheduler, or its decisions, borrowed; [`Event`] is the owned form.
pub(crate) enum EventRef<'a> {
    Graph { request: RequestSlot, graph: &'a Graph },
    Request(&'a Request),
    TaskDone { task: TaskId, outcome: Outcome, ended: &'a [bool], skips: &'a [BlockId] },
    Control(&'a Control),
    Grant([u64; 8]),
    Settle { scheduler: &'a dyn Scheduler, actions: &'a [Action] },
}

impl EventRef<'_> {
    /// Returns the owned form.
    pub(crate) fn to_event(&self) -> Event {
        match *self {
            EventRef::Graph { request, graph } => Event::Graph { request, graph: graph.clone() },
            EventRef::Request(request) => Event::Request(*request),
            EventRef::TaskDone { task, outcome, ended, skips } => {
                Event::TaskDone { task, outcome, ended: ended.to_vec(), skips: skips.to_vec() }
            }
            EventRef::Control(control) => Event::Control(control.clone()),
            EventRef::Grant(frame) => Event::Grant(frame),
            EventRef::Settle { scheduler, actions } => Event::of_settle(scheduler, actions),
        }
    }
}

/// The bytes of an event: the bytes of [`Event`], without its copies.
#[derive(Serialize)]
enum EventBytes<'a> {
    Graph { request: RequestSlot, graph: &'a Graph },
    Request(&'a Request),
    TaskDone { task: TaskId, outcome: Outcome, ended: &'a [bool], skips: &'a [BlockId] },
    Control(&'a Control),
    Grant([u64; 8]),
    Settle { actions: &'a [Action], members: PerStart<'a, RequestSlot>, nodes: PerStart<'a, u32> },
}

/// A list for each start of a settle; no lists if `empty`.
struct PerStart<'a, T> {
    scheduler: &'a dyn Scheduler,
    actions: &'a [Action],
    of: fn(&dyn Scheduler, TaskId) -> &[T],
    empty: bool,
}

impl<T: Serialize> Serialize for PerStart<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let count = if self.empty { 0 } else { starts(self.actions).count() };
        let mut list = to.serialize_seq(Some(count))?;
        for task in starts(self.actions).take(count) {
            list.serialize_element((self.of)(self.scheduler, task))?;
        }
        list.end()
    }
}

fn starts(actions: &[Action]) -> impl Iterator<Item = TaskId> {
    actions.iter().filter_map(|action| match action {
        Action::Start { task, .. } => Some(*task),
        _ => None,
    })
}

impl Serialize for EventRef<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let bytes = match *self {
            EventRef::Graph { request, graph } => EventBytes::Graph { request, graph },
            EventRef::Request(request) => EventBytes::Request(request),
            EventRef::TaskDone { task, outcome, ended, skips } => EventBytes::TaskDone { task, outcome, ended, skips },
            EventRef::Control(control) => EventBytes::Control(control),
            EventRef::Grant(frame) => EventBytes::Grant(frame),
            EventRef::Settle { scheduler, actions } => EventBytes::Settle {
                actions,
                members: PerStart { scheduler, actions, of: |all, task| all.members(task), empty: false },
                nodes: PerStart {
                    scheduler,
                    actions,
                    of: |all, task| all.nodes(task),
                    empty: starts(actions).all(|task| scheduler.nodes(task).is_empty()),
                },
            },
        };
        bytes.serialize(to)
    }
}

/// An entry as it lies in the ring.
#[derive(Serialize, Deserialize)]
pub(super) enum RingEntry<E> {
    /// An event other than a control input.
    Event(E),
    /// A change of models or devices: its number among all. Changes are rare and large, so they
    /// are kept beside the ring.
    Control(u64),
    /// The client of this request went away, or was answered.
    Withdrawn(RequestSlot),
    Aside(Aside),
}

/// An entry that was read back.
#[derive(Clone, Debug, PartialEq)]
pub enum FlightEntry {
    /// An input or decision.
    Event(Event),
    /// A fact beside them.
    Aside(Aside),
}

impl FlightEntry {
    /// Returns the entry with `first` added to the ids of devices.
    pub(super) fn with_devices_from(mut self, first: u16) -> FlightEntry {
        match &mut self {
            FlightEntry::Event(Event::Settle { actions, .. }) => {
                for action in actions {
                    if let Action::Start { device, .. } = action {
                        *device = renumbered(*device, first);
                    }
                }
            }
            FlightEntry::Event(Event::Control(
                Control::DeviceJoined(device) | Control::DeviceLeft(device) | Control::DeviceSlowed { device, .. },
            )) => *device = renumbered(*device, first),
            FlightEntry::Event(_) | FlightEntry::Aside(_) => {}
        }
        self
    }
}

/// Returns the id of a device of a sub-cluster, of which `first` devices come before.
pub(super) fn renumbered(device: DeviceId, first: u16) -> DeviceId {
    DeviceId(device.0.saturating_add(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::LaneId;
    use ripieno_model::Extent;
    use ripieno_sched::{RequestClass, TaskDone};

    /// A scheduler with two tasks of fixed members.
    struct Fixed;

    impl Scheduler for Fixed {
        fn on_request(&mut self, _: Time, _: &Request) {}
        fn on_task_done(&mut self, _: Time, _: &TaskDone<'_>) {}
        fn on_control(&mut self, _: Time, _: Control) {}
        fn settle(&mut self, _: Time, _: &mut ripieno_sched::Outbox) {}
        fn next_wakeup(&self) -> Time {
            Time::NEVER
        }
        fn members(&self, task: TaskId) -> &[RequestSlot] {
            if task.0 == 1 { &[RequestSlot(4), RequestSlot(2)] } else { &[RequestSlot(9)] }
        }
        fn nodes(&self, task: TaskId) -> &[u32] {
            if task.0 == 1 { &[3, 0] } else { &[] }
        }
    }

    fn start(task: u32) -> Action {
        let (task, model, block, device) = (TaskId(task), ModelId(3), BlockId(1), DeviceId(2));
        Action::Start { task, model, block, device, lane: LaneId(0), length: 7, not_before: Time(-5) }
    }

    #[test]
    fn borrowed_events_are_read_back_as_owned_ones() {
        let class = RequestClass::default();
        let request = Request {
            slot: RequestSlot(5),
            model: ModelId(1),
            arrived: Time(10),
            deadline: Time(1 << 40),
            rows: 3,
            extent: Extent::ONE,
            class,
        };
        let (with_nodes, without) = ([start(1), start(2)], [start(2), Action::Finish { request: RequestSlot(2) }]);
        let graph = Graph::tree(3, |at| if at == 2 { &[0, 1] } else { &[] }, BlockId(0), BlockId(1)).unwrap();
        let (task, outcome) = (TaskId(8), Outcome::Failed);
        let events = [
            EventRef::Graph { request: RequestSlot(5), graph: &graph },
            EventRef::Request(&request),
            EventRef::TaskDone { task, outcome, ended: &[true, false], skips: &[BlockId(3)] },
            EventRef::Control(&Control::DeviceJoined(DeviceId(3))),
            EventRef::Grant([7; 8]),
            EventRef::Settle { scheduler: &Fixed, actions: &with_nodes },
            EventRef::Settle { scheduler: &Fixed, actions: &without },
        ];
        for event in events {
            let bytes = postcard::to_allocvec(&event).unwrap();
            assert_eq!(postcard::from_bytes::<Event>(&bytes).unwrap(), event.to_event());
        }
    }
}
