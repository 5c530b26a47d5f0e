//! Records all inputs and decisions of a scheduler, so that a live run can be replayed.
//!
//! The format is JSON lines. The first line is a header with the setup and the policy. Each further
//! line is an event with its time. The last line says whether the recording is complete. Shards
//! write into one file; the events of each shard are in order. A separate thread writes, behind a
//! bounded queue. The scheduler never waits for the disk. If the queue overflows, the recording
//! ends and is marked as truncated, because a recording with a gap cannot be replayed. A file whose
//! name ends with `.gz` is compressed.

use crate::{Aside, FlightEntry};
use flate2::Compression;
use flate2::write::GzEncoder;
use ripieno_base::Time;
use ripieno_sched::{Event, Setup};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Capacity of the queue of events to write.
const MAX_QUEUED_EVENTS: usize = 16_384;

/// Version of the format.
pub(crate) const VERSION: u32 = 5;
/// Oldest version that is read. It knows no costs by size (all requests cost what was profiled),
/// and like version 4 no reasons of decisions.
pub(crate) const OLDEST: u32 = 3;

/// The first line of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub ripieno_recording: u32,
    /// The policy's name in the catalogue.
    pub policy: String,
    /// The policy's options at the start of the engine.
    pub options: serde_json::Value,
    /// The setup that the scheduler was built for.
    pub setup: Setup,
    /// Number of shards; 1 for an unsharded scheduler.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: usize,
    /// Number of sub-clusters, each with a scheduler of its own and as many shards; 1 without a
    /// cluster.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sub_clusters: usize,
    /// Instant of the first event, if the run began before. The state of the scheduler at that
    /// instant is unknown: such a recording can be simulated and not replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Time>,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_one(shards: &usize) -> bool {
    *shards == 1
}

/// A line after the header.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordedLine {
    /// An input or decision of shard 0.
    At(Time, Event),
    /// An input or decision of the shard with this number.
    Of(usize, Time, Event),
    /// A fact beside the inputs and decisions of the shard with this number.
    Aside(usize, Time, Aside),
    /// The last line.
    End {
        /// Whether events are missing before this line.
        truncated: bool,
    },
}

impl RecordedLine {
    /// Returns the line of a shard's entry.
    pub(crate) fn of(shard: usize, now: Time, entry: FlightEntry) -> RecordedLine {
        match entry {
            FlightEntry::Event(event) if shard == 0 => RecordedLine::At(now, event),
            FlightEntry::Event(event) => RecordedLine::Of(shard, now, event),
            FlightEntry::Aside(aside) => RecordedLine::Aside(shard, now, aside),
        }
    }
}

/// Records the events of one shard.
pub(crate) struct Recorder {
    shard: usize,
    /// Sender to the writer thread; `None` once the queue has overflowed. It must be dropped before
    /// `file`, because dropping the file waits until all senders are gone.
    sender: Option<SyncSender<RecordedLine>>,
    file: Arc<RecordingFile>,
}

/// The file into which all shards of a server write.
struct RecordingFile {
    /// Whether events are missing.
    truncated: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Creates the file, starts the writer thread, and returns one recorder per shard.
    pub(crate) fn start(path: &Path, header: &Header) -> io::Result<Vec<Recorder>> {
        let file = BufWriter::new(File::create(path)?);
        if path.extension().is_some_and(|extension| extension == "gz") {
            return Recorder::write_to(GzEncoder::new(file, Compression::fast()), header);
        }
        Recorder::write_to(file, header)
    }

    fn write_to(mut file: impl Write + Send + 'static, header: &Header) -> io::Result<Vec<Recorder>> {
        write_line(&mut file, header)?;
        let (sender, receiver) = sync_channel(MAX_QUEUED_EVENTS);
        let truncated = Arc::new(AtomicBool::new(false));
        let missing = Arc::clone(&truncated);
        let write = move || {
            if let Err(error) = write_all(file, &receiver, &missing) {
                tracing::error!(%error, "the recording ends early");
            }
        };
        let writer = thread::Builder::new().name("ripieno-recorder".to_owned()).spawn(write)?;
        let file = Arc::new(RecordingFile { truncated, writer: Some(writer) });
        let recorder = |shard| Recorder { shard, sender: Some(sender.clone()), file: Arc::clone(&file) };
        Ok((0..header.shards).map(recorder).collect())
    }

    /// Queues an entry; never waits.
    pub(crate) fn record(&mut self, now: Time, entry: FlightEntry) {
        let line = RecordedLine::of(self.shard, now, entry);
        if let Some(sender) = &self.sender
            && sender.try_send(line).is_err()
        {
            tracing::warn!("the disk is too slow for the recording, which ends here");
            self.file.truncated.store(true, Ordering::Release);
            self.sender = None;
        }
    }
}

impl Drop for RecordingFile {
    /// Waits until all events are written.
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the recorder thread panicked");
        }
    }
}

/// Writes lines until all senders are dropped.
fn write_all(mut file: impl Write, lines: &Receiver<RecordedLine>, truncated: &AtomicBool) -> io::Result<()> {
    for line in lines {
        write_line(&mut file, &line)?;
    }
    write_line(&mut file, &RecordedLine::End { truncated: truncated.load(Ordering::Acquire) })?;
    file.flush()
}

/// Writes a line of a recording.
pub(crate) fn write_line(file: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, line)?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_that_lacks_events_is_marked_truncated() {
        for (truncated, expected) in
            [(false, r#"{"end":{"truncated":false}}"#), (true, r#"{"end":{"truncated":true}}"#)]
        {
            let (sender, receiver) = sync_channel(4);
            let settle = Event::Settle { actions: Vec::new(), members: Vec::new(), nodes: Vec::new() };
            sender.send(RecordedLine::At(Time(7), settle)).unwrap();
            drop(sender);
            let mut written = Vec::new();
            write_all(&mut written, &receiver, &AtomicBool::new(truncated)).unwrap();
            let text = String::from_utf8(written).unwrap();
            assert_eq!(text.lines().next_back(), Some(expected));
            assert_eq!(text.lines().count(), 2);
        }
    }
}
