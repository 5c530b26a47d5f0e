//! Reads a recording and asks a freshly built scheduler the same questions.
//!
//! Equal answers show that the live server decided nothing by chance, wall clock or thread timing: all that it decided
//! follows from what it was told. A difference is either a bug or another version of the policy.

use crate::recorder::{Header, Line, VERSION};
use ripieno_base::Time;
use ripieno_sched::{Event, Outbox, Scheduler};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use thiserror::Error;

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
#[derive(Debug, Error)]
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
    #[error("{path}:{line}: not a line of a recording: {error}")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The cause.
        error: serde_json::Error,
    },
    /// The file has another format.
    #[error("{path}: a recording of version {found}; this program reads version {VERSION}")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
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

/// Replays the recording in `path` through the scheduler that `build` makes for its header.
pub fn replay<E: std::fmt::Display>(
    path: &Path,
    build: impl FnOnce(&Header) -> Result<Box<dyn Scheduler>, E>,
) -> Result<Replayed, ReplayError> {
    let mut lines = Lines::open(path)?;
    let header: Header = lines.next()?.ok_or_else(|| lines.error(io::ErrorKind::UnexpectedEof.into()))?;
    if header.ripieno_recording != VERSION {
        return Err(ReplayError::Version { path: lines.path, found: header.ripieno_recording });
    }
    let mut scheduler = build(&header)
        .map_err(|error| ReplayError::Build { policy: header.policy.clone(), error: error.to_string() })?;
    let mut out = Outbox::new(&header.setup.limits);
    let mut replayed = Replayed { inputs: 0, settles: 0, truncated: true, difference: None };
    while let Some(line) = lines.next()? {
        let (now, event) = match line {
            Line::At(now, event) => (now, event),
            Line::End { truncated } => {
                replayed.truncated = truncated;
                break;
            }
        };
        if let Err(decided) = event.replay(now, scheduler.as_mut(), &mut out) {
            replayed.difference = Some(Difference { line: lines.number, now, recorded: event, decided });
            break;
        }
        match event {
            Event::Settle { .. } => replayed.settles += 1,
            _ => replayed.inputs += 1,
        }
    }
    Ok(replayed)
}

/// Reads values line by line and knows where it is.
struct Lines {
    path: String,
    reader: BufReader<File>,
    buffer: String,
    number: usize,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines, ReplayError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| ReplayError::Io { path: name.clone(), error })?;
        Ok(Lines { path: name, reader: BufReader::new(file), buffer: String::new(), number: 0 })
    }

    fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, ReplayError> {
        self.buffer.clear();
        let read = self.reader.read_line(&mut self.buffer).map_err(|error| self.error(error))?;
        // A server that was killed leaves half a line.
        if read == 0 || !self.buffer.ends_with('\n') {
            return Ok(None);
        }
        self.number += 1;
        let value = serde_json::from_str(&self.buffer);
        value.map(Some).map_err(|error| ReplayError::Line { path: self.path.clone(), line: self.number, error })
    }

    fn error(&self, error: io::Error) -> ReplayError {
        ReplayError::Io { path: self.path.clone(), error }
    }
}
