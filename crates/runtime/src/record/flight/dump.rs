//! A ring's entries as a recording.
//!
//! While nothing has been dropped, the recording covers the whole run. Otherwise it begins in the
//! middle: with the models and devices of that instant, and without the requests and tasks that
//! were there already, since their beginnings are gone. Their later events are left out, too, so
//! that the recording is consistent in itself.

use super::entry::FlightEntry;
use super::ring::Tape;
use super::world::RunWorld;
use crate::record::recorder::{Header, RecordedLine, write_line};
use ripieno_base::{BlockId, Nanos, RequestSlot, TaskId, Time};
use ripieno_sched::{Action, Control, Event, Setup};
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

/// Size of a recording that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpedRecording {
    /// Number of lines.
    pub lines: u64,
    /// Instant of its first event.
    pub from: Time,
    /// True if the recording begins with the run.
    pub whole: bool,
}

/// Writes the tapes of all shards, each with the number of its first device, behind a header that
/// says where they begin.
pub(super) fn write(tapes: &[(Tape, u16)], header: &Header, to: &mut impl Write) -> io::Result<DumpedRecording> {
    let whole = tapes.iter().all(|(tape, _)| tape.whole);
    let from = tapes.iter().map(|(tape, _)| tape.from()).min().unwrap_or(Time::ORIGIN);
    // Sub-clusters number their devices on, so each says which ones were there at first.
    let own = header.setup.devices;
    let initial = if header.sub_clusters > 1 { 0 } else { own };
    let setup = Setup { devices: initial, ..header.setup.clone() };
    let header = Header { begins: (!whole).then_some(from), setup, ..header.clone() };
    let mut dumped = DumpedRecording { lines: 2, from, whole };
    write_line(to, &header)?;
    for (shard, (tape, first_device)) in tapes.iter().enumerate() {
        let mut line = |now, entry: FlightEntry| {
            dumped.lines += 1;
            write_line(to, &RecordedLine::of(shard, now, entry.with_devices_from(*first_device)))
        };
        if tape.whole {
            for control in RunWorld::new(own).controls(initial) {
                line(Time::ORIGIN, FlightEntry::Event(Event::Control(control)))?;
            }
            tape.read(&mut line)?;
            continue;
        }
        let before = Time((tape.from() - Nanos(1)).0.max(0));
        for control in tape.world.controls(initial) {
            line(before, FlightEntry::Event(Event::Control(control)))?;
        }
        let mut cut = KnownParts::default();
        tape.read(|now, entry| cut.keep(entry).map_or(Ok(()), |entry| line(now, entry)))?;
    }
    write_line(to, &RecordedLine::End { truncated: false })?;
    Ok(dumped)
}

/// The requests and tasks that began after a cut.
#[derive(Default)]
struct KnownParts {
    requests: HashSet<RequestSlot>,
    /// Whether each member of a task is known.
    tasks: HashMap<TaskId, Vec<bool>>,
}

impl KnownParts {
    /// Returns the part of an entry that concerns known requests and tasks; `None` if none does.
    fn keep(&mut self, entry: FlightEntry) -> Option<FlightEntry> {
        let FlightEntry::Event(event) = entry else { return Some(entry) };
        let kept = match event {
            Event::Request(request) => {
                self.requests.insert(request.slot);
                Event::Request(request)
            }
            Event::TaskDone { task, outcome, ended, skips } => {
                let known = self.tasks.remove(&task)?;
                let (ended, skips) = (of_known(&known, ended), of_known::<BlockId>(&known, skips));
                Event::TaskDone { task, outcome, ended, skips }
            }
            Event::Control(Control::Cancelled(slot)) if !self.requests.contains(&slot) => return None,
            Event::Settle { actions, members, nodes } => self.settle(actions, members, nodes),
            other => other,
        };
        Some(FlightEntry::Event(kept))
    }

    fn settle(&mut self, actions: Vec<Action>, members: Vec<Vec<RequestSlot>>, nodes: Vec<Vec<u32>>) -> Event {
        let mut kept = (Vec::new(), Vec::new(), Vec::new());
        let mut lists = members.into_iter().zip(nodes.into_iter().map(Some).chain(std::iter::repeat(None)));
        for action in actions {
            let known = match action {
                Action::Start { task, .. } => {
                    let Some((members, nodes)) = lists.next() else { continue };
                    let known: Vec<bool> = members.iter().map(|slot| self.requests.contains(slot)).collect();
                    let some = known.contains(&true);
                    if some {
                        kept.1.push(of_known(&known, members));
                        kept.2.extend(nodes.map(|nodes| of_known(&known, nodes)));
                        self.tasks.insert(task, known);
                    }
                    some
                }
                Action::Finish { request } | Action::Reject { request, .. } => self.requests.contains(&request),
                Action::Cancel { task } => self.tasks.contains_key(&task),
            };
            if known {
                kept.0.push(action);
            }
        }
        let (actions, members, nodes) = kept;
        Event::Settle { actions, members, nodes }
    }
}

/// Returns the values of known members; there may be none at all.
fn of_known<T>(known: &[bool], values: Vec<T>) -> Vec<T> {
    values.into_iter().zip(known).filter(|(_, known)| **known).map(|(value, _)| value).collect()
}
