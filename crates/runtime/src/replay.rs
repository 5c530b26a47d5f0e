//! Replays a recording through a newly built scheduler and compares the decisions.
//!
//! Equal decisions show that the live scheduler is deterministic: none of its decisions depended on
//! chance, wall clock or thread timing. A difference is either a bug or another version of the
//! policy.

use crate::recorder::{Header, RecordedLine, VERSION};
use ripieno_base::Time;
use ripieno_sched::{Event, Outbox, ServedPolicy};
use serde::de::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Upper bound on the length of a line, far above any real one: the widest graph of the largest
/// batch fits.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// Number of inputs replayed.
    pub inputs: usize,
    /// Number of settles that decided as recorded.
    pub settles: usize,
    /// Whether the recording lacks its end: it overflowed, or the server was killed.
    pub truncated: bool,
    /// The first difference, at which the replay stops.
    pub difference: Option<Difference>,
}

/// A settle whose decisions differ from the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The line of the file, from 1.
    pub line: usize,
    /// The instant.
    pub now: Time,
    /// The recorded decisions.
    pub recorded: Event,
    /// The decisions of the replay.
    pub decided: Event,
}

/// Reason why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("cannot read the recording {path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// A line is malformed.
    #[error("{path}:{line}: not a line of a recording: {error}; give a file that `ripieno serve --record` wrote")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The cause.
        error: serde_json::Error,
    },
    /// The file has another version.
    #[error("{path}:1: a recording of version {found}; this program reads version {VERSION}: record the run anew")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u64,
    },
    /// The scheduler cannot be built.
    #[error("cannot build policy {policy:?} of the recording: {error}")]
    Build {
        /// The policy.
        policy: String,
        /// The cause.
        error: String,
    },
}

/// Replays the recording in `path` through the scheduler that `build` makes for its header, in as
/// many shards.
pub fn replay<S: Into<ServedPolicy>, E: std::fmt::Display>(
    path: &Path,
    build: impl FnOnce(&Header) -> Result<S, E>,
) -> Result<ReplayReport, ReplayError> {
    let mut events = RecordedEvents::open(path)?;
    let header = events.header();
    let built = build(header)
        .map_err(|error| ReplayError::Build { policy: header.policy.clone(), error: error.to_string() })?;
    let mut shards = built.into().pieces;
    let mut out = Outbox::new(&header.setup.limits);
    let mut replayed = ReplayReport { inputs: 0, settles: 0, truncated: true, difference: None };
    while let Some((shard, now, event)) = events.next()? {
        let shard = shards.get_mut(shard).ok_or_else(|| events.unknown(shard))?;
        if let Err(decided) = event.replay(now, shard.as_mut(), &mut out) {
            replayed.difference = Some(Difference { line: events.line(), now, recorded: event, decided });
            break;
        }
        match event {
            Event::Settle { .. } => replayed.settles += 1,
            _ => replayed.inputs += 1,
        }
    }
    replayed.truncated = events.is_truncated();
    Ok(replayed)
}

/// Reader of a recording, event by event.
pub struct RecordedEvents {
    lines: Lines,
    header: Header,
    truncated: bool,
}

impl RecordedEvents {
    /// Opens a recording and reads its first line.
    pub fn open(path: &Path) -> Result<RecordedEvents, ReplayError> {
        let mut lines = Lines::open(path)?;
        let Some(first) = lines.next::<serde_json::Value>()? else {
            let error = serde_json::Error::custom("the file is empty, or ends in its first line");
            return Err(ReplayError::Line { path: lines.path, line: 1, error });
        };
        // The version is checked first, since another version may have other keys.
        let found = first.get("ripieno_recording").and_then(serde_json::Value::as_u64);
        if let Some(found) = found.filter(|&found| found != u64::from(VERSION)) {
            return Err(ReplayError::Version { path: lines.path, found });
        }
        let header = serde_json::from_value(first);
        let header = header.map_err(|error| ReplayError::Line { path: lines.path.clone(), line: 1, error })?;
        Ok(RecordedEvents { lines, header, truncated: true })
    }

    /// Returns the header: the recorded scheduler's policy and setup.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next event with its shard, from 0, and its instant; `None` at the end of the
    /// recording or where it was cut off. Instants increase within a shard; those of different
    /// shards interleave.
    #[allow(clippy::should_implement_trait, reason = "an iterator could not end with an error")]
    pub fn next(&mut self) -> Result<Option<(usize, Time, Event)>, ReplayError> {
        match self.lines.next()? {
            Some(RecordedLine::At(now, event)) => Ok(Some((0, now, event))),
            Some(RecordedLine::Of(shard, now, event)) => Ok(Some((shard, now, event))),
            Some(RecordedLine::End { truncated }) => {
                self.truncated = truncated;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn unknown(&self, shard: usize) -> ReplayError {
        let error = serde_json::Error::custom(format!("there is no shard {shard}"));
        ReplayError::Line { path: self.lines.path.clone(), line: self.line(), error }
    }

    /// Number of the line read last, from 1.
    pub fn line(&self) -> usize {
        self.lines.number
    }

    /// Number of bytes read.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// Whether further events are missing after the last one, because the recording overflowed or
    /// the server was killed.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// Reads JSON values line by line and tracks the position.
struct Lines {
    path: String,
    reader: BufReader<File>,
    buffer: Vec<u8>,
    number: usize,
    bytes: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines, ReplayError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| ReplayError::Io { path: name.clone(), error })?;
        Ok(Lines { path: name, reader: BufReader::new(file), buffer: Vec::new(), number: 0, bytes: 0 })
    }

    fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, ReplayError> {
        self.buffer.clear();
        let mut line = self.reader.by_ref().take(MAX_LINE_BYTES);
        let read = line.read_until(b'\n', &mut self.buffer).map_err(|error| self.error(error))? as u64;
        if read == MAX_LINE_BYTES {
            let error = serde_json::Error::custom(format!("the line is longer than {MAX_LINE_BYTES} bytes"));
            return Err(ReplayError::Line { path: self.path.clone(), line: self.number + 1, error });
        }
        // A server that was killed leaves half a line.
        if !self.buffer.ends_with(b"\n") {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read;
        let value = serde_json::from_slice(&self.buffer);
        value.map(Some).map_err(|error| ReplayError::Line { path: self.path.clone(), line: self.number, error })
    }

    fn error(&self, error: io::Error) -> ReplayError {
        ReplayError::Io { path: self.path.clone(), error }
    }
}
