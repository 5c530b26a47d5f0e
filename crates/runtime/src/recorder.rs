//! Writes down everything that a scheduler is told and decides, so that a live run can be replayed.
//!
//! A file of JSON lines: a header with the setup and the policy, then one line an event with its time, then a line that
//! says whether it is complete. Writing happens on a thread of its own behind a bounded queue. If the disk cannot keep
//! up the recording ends there, marked as truncated: what is missing in the middle could not be replayed anyway, and
//! the scheduler never waits.

use ripieno_base::Time;
use ripieno_sched::{Event, Setup};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Events that wait for the disk.
const QUEUED: usize = 16_384;

/// The format's version; a reader refuses others.
pub(crate) const VERSION: u32 = 3;

/// The first line of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub ripieno_recording: u32,
    /// The policy's name in the catalogue.
    pub policy: String,
    /// Its options, as the one who started the engine gave them.
    pub options: serde_json::Value,
    /// What the scheduler was built for.
    pub setup: Setup,
}

/// A further line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// Something was told or decided.
    At(Time, Event),
    /// The last line; true if events are missing after the line before.
    End {
        /// Whether the recording is incomplete.
        truncated: bool,
    },
}

/// Takes events from the scheduler thread.
pub(crate) struct Recorder {
    /// None once the queue has overflowed.
    sender: Option<SyncSender<Line>>,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Creates the file and starts the writer.
    pub(crate) fn start(path: &Path, header: &Header) -> io::Result<Recorder> {
        let mut file = BufWriter::new(File::create(path)?);
        write_line(&mut file, header)?;
        let (sender, receiver) = sync_channel(QUEUED);
        let write = move || {
            if let Err(error) = write_all(file, &receiver) {
                tracing::error!(%error, "the recording ends early");
            }
        };
        let writer = thread::Builder::new().name("ripieno-recorder".to_owned()).spawn(write)?;
        Ok(Recorder { sender: Some(sender), writer: Some(writer) })
    }

    /// Queues an event; never waits.
    pub(crate) fn record(&mut self, now: Time, event: Event) {
        if let Some(sender) = &self.sender
            && sender.try_send(Line::At(now, event)).is_err()
        {
            tracing::warn!("the disk is too slow for the recording, which ends here");
            self.sender = None;
        }
    }
}

impl Drop for Recorder {
    /// Waits until everything is written. The writer sees the end marker only if nothing was left out.
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            // The writer is gone only after an error that it has reported.
            let _ = sender.send(Line::End { truncated: false });
        }
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the recorder thread panicked");
        }
    }
}

fn write_all(mut file: impl Write, lines: &Receiver<Line>) -> io::Result<()> {
    let mut complete = false;
    for line in lines {
        complete = matches!(line, Line::End { .. });
        write_line(&mut file, &line)?;
    }
    if !complete {
        write_line(&mut file, &Line::End { truncated: true })?;
    }
    file.flush()
}

fn write_line(file: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, line)?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_without_its_end_is_marked_truncated() {
        for (complete, expected) in [(true, r#"{"end":{"truncated":false}}"#), (false, r#"{"end":{"truncated":true}}"#)]
        {
            let (sender, receiver) = sync_channel(4);
            let settle = Event::Settle { actions: Vec::new(), members: Vec::new(), nodes: Vec::new() };
            sender.send(Line::At(Time(7), settle)).unwrap();
            if complete {
                sender.send(Line::End { truncated: false }).unwrap();
            }
            drop(sender);
            let mut written = Vec::new();
            write_all(&mut written, &receiver).unwrap();
            let text = String::from_utf8(written).unwrap();
            assert_eq!(text.lines().next_back(), Some(expected));
            assert_eq!(text.lines().count(), 2);
        }
    }
}
