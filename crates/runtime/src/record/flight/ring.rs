//! The ring of one scheduler: segments of bytes, of which the oldest are dropped.
//!
//! Segments, not one circular buffer: a closed segment never changes, so that a reader holds it by
//! reference count and the writer waits at most while a reader copies the open one. The bytes of a
//! dropped segment are used again. Changes of models and devices are kept beside the segments,
//! since they are rare and a model is large; changes of dropped segments are folded into a
//! [`RunWorld`].

use super::entry::{Aside, EventRef, FlightEntry, RingEntry};
use super::world::RunWorld;
use parking_lot::Mutex;
use ripieno_base::{Nanos, Time};
use ripieno_sched::{Control, Event};
use std::collections::VecDeque;
use std::sync::Arc;

/// Size at which a segment is closed.
const SEGMENT_BYTES: usize = 256 << 10;
/// Room above it for the last entry; a larger one lets the segment grow.
const SLACK_BYTES: usize = 16 << 10;
/// Age at which a segment is closed, so that a quiet server forgets old entries, too.
const SEGMENT_SPAN: Nanos = Nanos::from_millis(20_000);
/// Largest number of controls that are kept apart.
const MOST_CONTROLS: usize = 4_096;

/// The largest ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBounds {
    /// Bytes of the entries.
    pub bytes: usize,
    /// Age of the oldest entry.
    pub span: Nanos,
}

impl Default for RingBounds {
    /// 64 MiB or ten minutes.
    fn default() -> RingBounds {
        RingBounds { bytes: 64 << 20, span: Nanos::from_millis(600_000) }
    }
}

/// Consecutive entries.
#[derive(Debug)]
struct Segment {
    /// Number of the segment, counted from 0.
    number: u64,
    /// The time from which the first entry counts.
    base: Time,
    /// Number of controls before the segment.
    controls: u64,
    bytes: Vec<u8>,
}

/// A place in a ring, after the entries that have been read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingPlace {
    segment: u64,
    offset: usize,
    /// Time of the entry before the place.
    time: Time,
}

/// Entries that were taken from a ring.
pub(super) struct Tape {
    /// The world before the first entry; empty for the entries after a place.
    pub(super) world: RunWorld,
    /// Whether no entry before the first one was dropped.
    pub(super) whole: bool,
    pieces: Vec<(Arc<Segment>, RingPlace)>,
    controls: Vec<Control>,
    first_control: u64,
}

/// The ring of one scheduler. Its lock is held for one entry, or for a copy of the open segment.
pub(super) struct ByteRing(Mutex<State>);

struct State {
    bounds: RingBounds,
    open: Segment,
    /// Time of the last entry.
    last: Time,
    closed: VecDeque<(Arc<Segment>, Time)>,
    /// Bytes of a dropped segment, for the next one.
    spare: Option<Vec<u8>>,
    /// RunWorld before the oldest entry.
    world: RunWorld,
    /// Controls since then.
    controls: VecDeque<Control>,
    /// Number of controls folded into `world`.
    folded: u64,
}

impl ByteRing {
    pub(super) fn new(bounds: RingBounds, world: RunWorld) -> ByteRing {
        let open = Segment { number: 0, base: Time::ORIGIN, controls: 0, bytes: fresh() };
        let (closed, controls) = (VecDeque::new(), VecDeque::new());
        ByteRing(Mutex::new(State {
            bounds,
            open,
            last: Time::ORIGIN,
            closed,
            spare: None,
            world,
            controls,
            folded: 0,
        }))
    }

    /// Writes an input or decision.
    pub(super) fn event(&self, now: Time, event: &EventRef<'_>) {
        let mut state = self.0.lock();
        match event {
            EventRef::Control(Control::Cancelled(slot)) => state.write(now, &RingEntry::<()>::Withdrawn(*slot)),
            EventRef::Control(control) => {
                let number = state.folded + state.controls.len() as u64;
                state.controls.push_back((*control).clone());
                state.write(now, &RingEntry::<()>::Control(number));
            }
            event => state.write(now, &RingEntry::Event(event)),
        }
    }

    /// Writes another fact.
    pub(super) fn aside(&self, now: Time, aside: Aside) {
        self.0.lock().write(now, &RingEntry::<()>::Aside(aside));
    }

    /// Takes all entries.
    pub(super) fn tape(&self) -> Tape {
        let state = self.0.lock();
        Tape { world: state.world.clone(), ..state.since(RingPlace::default()) }
    }

    /// Takes the entries after a place, and moves it behind them. Entries that were dropped in the
    /// meantime are missing.
    pub(super) fn tape_since(&self, place: &mut RingPlace) -> Tape {
        let state = self.0.lock();
        let tape = state.since(*place);
        *place = state.end();
        tape
    }

    /// Returns the place of the oldest segment with entries from `time` on, and the world there.
    pub(super) fn place_at(&self, time: Time) -> (RingPlace, RunWorld) {
        let state = self.0.lock();
        let open = (&state.open, state.last);
        let mut segments = state.closed.iter().map(|(segment, last)| (&**segment, *last)).chain([open]);
        let segment = segments.find(|(_, last)| *last >= time).map_or(&state.open, |(segment, _)| segment);
        let mut world = state.world.clone();
        let before = (segment.controls - state.folded) as usize;
        state.controls.iter().take(before).for_each(|control| world.apply(control));
        (RingPlace { segment: segment.number, offset: 0, time: segment.base }, world)
    }

    /// Returns the bytes in the ring and the time of its oldest entry.
    pub(super) fn size(&self) -> (usize, Time) {
        let state = self.0.lock();
        let oldest = state.closed.front().map_or(state.open.base, |(segment, _)| segment.base);
        (state.bytes(), oldest)
    }
}

fn fresh() -> Vec<u8> {
    Vec::with_capacity(SEGMENT_BYTES + SLACK_BYTES)
}

impl State {
    fn write(&mut self, now: Time, entry: &impl serde::Serialize) {
        // Entries of other threads may be some microseconds older than the last one.
        let now = now.max(self.last);
        if self.open.bytes.is_empty() {
            self.open.base = now;
            self.last = now;
        }
        let later = (now - self.last).0.cast_unsigned();
        self.last = now;
        let bytes = std::mem::take(&mut self.open.bytes);
        let written = postcard::to_extend(&(later, entry), bytes);
        self.open.bytes = written.expect("numbers and lists into memory always serialise");
        let old = self.last - self.open.base >= SEGMENT_SPAN;
        if self.open.bytes.len() >= SEGMENT_BYTES || old || self.controls.len() > MOST_CONTROLS {
            self.close();
        }
    }

    /// Closes the open segment, and drops the oldest ones beyond the bounds.
    fn close(&mut self) {
        let number = self.open.number + 1;
        let controls = self.folded + self.controls.len() as u64;
        let bytes = self.spare.take().unwrap_or_else(fresh);
        let next = Segment { number, base: self.last, controls, bytes };
        let segment = std::mem::replace(&mut self.open, next);
        self.closed.push_back((Arc::new(segment), self.last));
        while let Some((_, last)) = self.closed.front()
            && (self.bytes() > self.bounds.bytes
                || self.last - *last > self.bounds.span
                || self.controls.len() > MOST_CONTROLS)
        {
            let dropped = self.closed.pop_front().map(|(segment, _)| segment);
            let first = self.closed.front().map_or(self.open.controls, |(segment, _)| segment.controls);
            let gone = (first - self.folded) as usize;
            self.controls.drain(..gone).for_each(|control| self.world.apply(&control));
            self.folded = first;
            // A reader may still hold it.
            self.spare = dropped.and_then(Arc::into_inner).map(|mut segment| {
                segment.bytes.clear();
                segment.bytes
            });
        }
    }

    fn bytes(&self) -> usize {
        self.closed.iter().map(|(segment, _)| segment.bytes.len()).sum::<usize>() + self.open.bytes.len()
    }

    fn end(&self) -> RingPlace {
        RingPlace { segment: self.open.number, offset: self.open.bytes.len(), time: self.last }
    }

    fn since(&self, place: RingPlace) -> Tape {
        let open = &self.open;
        let copy = Segment { number: open.number, base: open.base, controls: open.controls, bytes: open.bytes.clone() };
        let segments = self.closed.iter().map(|(segment, _)| Arc::clone(segment)).chain([Arc::new(copy)]);
        let from = |segment: &Segment| match segment.number == place.segment && place.offset > 0 {
            true => place,
            false => RingPlace { segment: segment.number, offset: 0, time: segment.base },
        };
        let pieces: Vec<_> = segments.filter(|segment| segment.number >= place.segment).collect();
        let pieces = pieces.into_iter().map(|segment| (Arc::clone(&segment), from(&segment))).collect();
        Tape {
            world: RunWorld::default(),
            whole: self.closed.front().map_or(open.number, |(segment, _)| segment.number) == 0,
            pieces,
            controls: self.controls.iter().cloned().collect(),
            first_control: self.folded,
        }
    }
}

impl Tape {
    /// Time of the first entry.
    pub(super) fn from(&self) -> Time {
        self.pieces.first().map_or(Time::ORIGIN, |(_, place)| place.time)
    }

    /// Reads the entries in order, until `each` fails.
    pub(super) fn read<E>(&self, mut each: impl FnMut(Time, FlightEntry) -> Result<(), E>) -> Result<(), E> {
        for (segment, place) in &self.pieces {
            let mut now = place.time;
            let mut bytes = &segment.bytes[place.offset.min(segment.bytes.len())..];
            while !bytes.is_empty() {
                let read = postcard::take_from_bytes::<(u64, RingEntry<Event>)>(bytes);
                let ((later, entry), rest) = read.expect("the ring holds what was written into it");
                bytes = rest;
                now = now + Nanos(later.cast_signed());
                let entry = match entry {
                    RingEntry::Event(event) => FlightEntry::Event(event),
                    RingEntry::Withdrawn(slot) => FlightEntry::Event(Event::Control(Control::Cancelled(slot))),
                    RingEntry::Aside(aside) => FlightEntry::Aside(aside),
                    RingEntry::Control(number) => {
                        let at = number.checked_sub(self.first_control).and_then(|at| usize::try_from(at).ok());
                        let Some(control) = at.and_then(|at| self.controls.get(at)) else { continue };
                        FlightEntry::Event(Event::Control(control.clone()))
                    }
                };
                each(now, entry)?;
            }
        }
        Ok(())
    }
}
