//! Reads a recording and asks a freshly built scheduler the same questions.
//!
//! Equal answers show that the live server decided nothing by chance, wall clock or thread timing: all that it decided
//! follows from what it was told. A difference is either a bug or another version of the policy.

use crate::recorder::{Header, Line, VERSION};
use ripieno_base::Time;
use ripieno_sched::{Event, Outbox, Served};
use serde::de::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Much longer than a line is: the widest graph of the largest batch fits.
const LONGEST_LINE: u64 = 64 << 20;

/// What a replay found.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// Inputs repeated.
    pub inputs: usize,
    /// Settles that decided as recorded.
    pub settles: usize,
    /// Whether the recording lacks its end: it overflowed, or the server was killed.
    pub truncated: bool,
    /// The first difference, where the replay ends.
    pub difference: Option<Difference>,
}

/// A settle that decided otherwise than recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The line of the file, from 1.
    pub line: usize,
    /// The instant.
    pub now: Time,
    /// What was recorded.
    pub recorded: Event,
    /// What was decided now.
    pub decided: Event,
}

/// Why a recording cannot be replayed.
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
    /// A line is not what it should be.
    #[error("{path}:{line}: not a line of a recording: {error}; give a file that `ripieno serve --record` wrote")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The cause.
        error: serde_json::Error,
    },
    /// The file has another format.
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

/// Replays the recording in `path` through the scheduler that `build` makes for its header, in as many shards.
pub fn replay<S: Into<Served>, E: std::fmt::Display>(
    path: &Path,
    build: impl FnOnce(&Header) -> Result<S, E>,
) -> Result<Replayed, ReplayError> {
    let mut events = Events::open(path)?;
    let header = events.header();
    let built = build(header)
        .map_err(|error| ReplayError::Build { policy: header.policy.clone(), error: error.to_string() })?;
    let mut shards = built.into().pieces;
    let mut out = Outbox::new(&header.setup.limits);
    let mut replayed = Replayed { inputs: 0, settles: 0, truncated: true, difference: None };
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

/// A recording that is read event by event.
pub struct Events {
    lines: Lines,
    header: Header,
    truncated: bool,
}

impl Events {
    /// Opens a recording and reads its first line.
    pub fn open(path: &Path) -> Result<Events, ReplayError> {
        let mut lines = Lines::open(path)?;
        let Some(first) = lines.next::<serde_json::Value>()? else {
            let error = serde_json::Error::custom("the file is empty, or ends in its first line");
            return Err(ReplayError::Line { path: lines.path, line: 1, error });
        };
        // Another version may have other keys, so it is looked at before them.
        let found = first.get("ripieno_recording").and_then(serde_json::Value::as_u64);
        if let Some(found) = found.filter(|&found| found != u64::from(VERSION)) {
            return Err(ReplayError::Version { path: lines.path, found });
        }
        let header = serde_json::from_value(first);
        let header = header.map_err(|error| ReplayError::Line { path: lines.path.clone(), line: 1, error })?;
        Ok(Events { lines, header, truncated: true })
    }

    /// What the recorded scheduler was built from.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next event with its shard, from 0, and its instant; none at the end, be it the recording's own or where it
    /// was cut off. Instants go on within a shard; those of different shards lie beside each other.
    #[allow(clippy::should_implement_trait, reason = "an iterator could not end with an error")]
    pub fn next(&mut self) -> Result<Option<(usize, Time, Event)>, ReplayError> {
        match self.lines.next()? {
            Some(Line::At(now, event)) => Ok(Some((0, now, event))),
            Some(Line::Of(shard, now, event)) => Ok(Some((shard, now, event))),
            Some(Line::End { truncated }) => {
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

    /// The line of the file, from 1, that was read last.
    pub fn line(&self) -> usize {
        self.lines.number
    }

    /// How many bytes of the file have been read.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// After the last event: whether further ones are missing, because the recording overflowed or the server was killed.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// Reads values line by line and knows where it is.
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
        let mut line = self.reader.by_ref().take(LONGEST_LINE);
        let read = line.read_until(b'\n', &mut self.buffer).map_err(|error| self.error(error))? as u64;
        if read == LONGEST_LINE {
            let error = serde_json::Error::custom(format!("the line is longer than {LONGEST_LINE} bytes"));
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
