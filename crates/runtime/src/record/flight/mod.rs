//! The flight recorder: the last minutes of a server, always at hand.
//!
//! A ring of bytes for each scheduler holds its inputs and decisions, and a few facts beside them:
//! the calls of clients with their real deadlines, the times at which devices ran, the outcomes,
//! and refusals before the scheduler. Writing an entry encodes some tens of bytes under a lock that
//! no other thread holds for long, and allocates nothing. A dump is a recording as `ripieno serve
//! --record` writes it; [`FlightRecorder::follow`] continues after the last entry that it read.

mod dump;
mod entry;
mod ring;
mod world;

pub use dump::DumpedRecording;
pub(crate) use entry::EventRef;
pub use entry::{Aside, FlightEntry};
pub use ring::RingBounds;
pub use world::RunWorld;

use crate::Clock;
use crate::record::history::History;
use crate::record::recorder::{Header, VERSION};
use crate::requests::ending::RefusedWhy;
use ring::{ByteRing, RingPlace};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_policies::shard_of;
use ripieno_sched::Setup;
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;

/// Settings of the flight recorder.
#[derive(Clone, Debug)]
pub struct FlightConfig {
    /// The policy's name in the catalogue.
    pub policy: String,
    /// The policy's options, from which a replay builds the scheduler.
    pub options: serde_json::Value,
    /// Bounds of all rings together.
    pub bounds: RingBounds,
}

/// The rings of a server; cheap to clone.
#[derive(Clone)]
pub struct FlightRecorder(Arc<FlightShared>);

struct FlightShared {
    header: Header,
    clock: Clock,
    rings: Vec<RecordedRing>,
}

/// The ring of one scheduler as a recorder has it.
#[derive(Clone)]
struct RecordedRing {
    ring: Arc<ByteRing>,
    /// Number of devices of the sub-clusters before; each counts its own from 0.
    first_device: u16,
}

/// The ring of one scheduler, for its event loop.
#[derive(Clone)]
pub(crate) struct FlightRing(Arc<ByteRing>);

/// Size of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightSize {
    /// Bytes of all entries.
    pub bytes: usize,
    /// Time of the oldest entry.
    pub oldest: Time,
}

/// A reader of the rings that remembers its place.
pub struct FlightFollower {
    recorder: FlightRecorder,
    places: Vec<RingPlace>,
}

impl FlightRecorder {
    pub(crate) fn new(config: FlightConfig, setup: &Setup, shards: usize, clock: Clock) -> FlightRecorder {
        let FlightConfig { policy, options, bounds } = config;
        let bounds = RingBounds { bytes: bounds.bytes / shards.max(1), ..bounds };
        let ring =
            |_| RecordedRing { ring: Arc::new(ByteRing::new(bounds, RunWorld::new(setup.devices))), first_device: 0 };
        let rings = (0..shards).map(ring).collect();
        let setup = setup.clone();
        let (begins, sub_clusters) = (None, 1);
        let header = Header { ripieno_recording: VERSION, policy, options, setup, shards, sub_clusters, begins };
        FlightRecorder(Arc::new(FlightShared { header, clock, rings }))
    }

    /// Returns a recorder of all sub-clusters of a cluster, whose engines read the same clock. Each
    /// has at most `max_devices` devices, which are numbered on. Returns `None` without any.
    pub fn joined(sub_clusters: &[FlightRecorder], max_devices: u16) -> Option<FlightRecorder> {
        let (first, number) = (sub_clusters.first()?, sub_clusters.len());
        if number == 1 {
            return Some(first.clone());
        }
        let rings = |(place, each): (usize, &FlightRecorder)| {
            let first_device = u16::try_from(place * usize::from(max_devices)).unwrap_or(u16::MAX);
            each.0.rings.iter().map(move |of| RecordedRing { first_device, ..of.clone() }).collect::<Vec<_>>()
        };
        let rings: Vec<RecordedRing> = sub_clusters.iter().enumerate().flat_map(rings).collect();
        let header = Header { shards: rings.len(), sub_clusters: number, ..first.0.header.clone() };
        Some(FlightRecorder(Arc::new(FlightShared { header, clock: first.0.clock, rings })))
    }

    pub(crate) fn ring(&self, shard: usize) -> FlightRing {
        FlightRing(Arc::clone(&self.0.rings[shard].ring))
    }

    /// Records that a call was refused before it reached the scheduler.
    pub fn refused(&self, model: ModelId, why: RefusedWhy) {
        let ring = &self.0.rings[shard_of(model, self.0.rings.len())].ring;
        ring.aside(self.0.clock.now(), Aside::Refused { model, why });
    }

    /// Records that the process did not run for some time, until `ago` before now.
    pub fn stalled(&self, lasted: Nanos, ago: Nanos) {
        let now = self.0.clock.now();
        let to = now - ago;
        self.0.rings[0].ring.aside(now, Aside::Stalled { from: to - lasted, to });
    }

    /// Writes all entries as a recording.
    pub fn dump(&self, to: &mut impl Write) -> io::Result<DumpedRecording> {
        let tapes: Vec<_> = self.0.rings.iter().map(|of| (of.ring.tape(), of.first_device)).collect();
        dump::write(&tapes, &self.0.header, to)
    }

    /// Returns the current size of the rings.
    pub fn size(&self) -> FlightSize {
        let sizes = || self.0.rings.iter().map(|of| of.ring.size());
        let oldest = sizes().map(|(_, oldest)| oldest).min().unwrap_or(Time::ORIGIN);
        FlightSize { bytes: sizes().map(|(bytes, _)| bytes).sum(), oldest }
    }

    /// Returns the time on the recorder's clock.
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// Returns the policy, its options and the setup of the scheduler.
    pub fn header(&self) -> &Header {
        &self.0.header
    }

    /// Returns a reader of the entries from about `time` on, and the history that begins there.
    pub fn follow(&self, time: Time) -> (FlightFollower, History) {
        let place = |of: &RecordedRing| {
            let (place, world) = of.ring.place_at(time);
            (place, world.with_devices_from(of.first_device))
        };
        let (places, worlds) = self.0.rings.iter().map(place).unzip();
        (FlightFollower { recorder: self.clone(), places }, History::new(worlds, self.0.header.sub_clusters))
    }
}

impl FlightFollower {
    /// Returns true if it reads the rings of this recorder.
    pub fn reads(&self, recorder: &FlightRecorder) -> bool {
        let (own, other) = (&self.recorder.0.rings, &recorder.0.rings);
        own.len() == other.len() && own.iter().zip(other).all(|(own, other)| Arc::ptr_eq(&own.ring, &other.ring))
    }

    /// Reads the entries since the last call, shard by shard: in order within a shard.
    pub fn read(&mut self, mut each: impl FnMut(usize, Time, FlightEntry)) {
        for (shard, (of, place)) in self.recorder.0.rings.iter().zip(&mut self.places).enumerate() {
            let read = of.ring.tape_since(place).read(|now, entry| {
                each(shard, now, entry.with_devices_from(of.first_device));
                Ok::<(), Infallible>(())
            });
            let Ok(()) = read;
        }
    }
}

impl FlightRing {
    pub(crate) fn event(&self, now: Time, event: &EventRef<'_>) {
        self.0.event(now, event);
    }

    pub(crate) fn aside(&self, now: Time, aside: Aside) {
        self.0.aside(now, aside);
    }
}
