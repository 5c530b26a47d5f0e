//! Replays a recording through a newly built scheduler and compares the decisions.
//!
//! Equal decisions show that the live scheduler was deterministic: no decision depended on chance,
//! wall clock or thread timing. A difference means a bug or another version of the policy.

use crate::FlightEntry;
use crate::record::recorder::{Header, OLDEST, RecordedLine, VERSION};
use flate2::bufread::MultiGzDecoder;
use ripieno_base::Time;
use ripieno_policies::ServedPolicy;
use ripieno_policies::grants::Grant;
use ripieno_policies::shard_in;
use ripieno_sched::{Event, Outbox};
use serde::de::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Upper bound on the length of a line. Real lines are far shorter: even the graphs of the largest
/// batch fit.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// First bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayReport {
    /// Number of inputs replayed.
    pub inputs: usize,
    /// Number of settles whose decisions match the recording.
    pub settles: usize,
    /// Whether the recording lacks its end, because its queue overflowed or the server was killed.
    pub truncated: bool,
    /// The first difference, if any. The replay stops there.
    pub difference: Option<Difference>,
}

/// A settle whose decisions differ from the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Line in the file, from 1.
    pub line: usize,
    /// Instant of the settle.
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
        /// Line in the file, from 1.
        line: usize,
        /// The cause.
        error: serde_json::Error,
    },
    /// The file has an unsupported version.
    #[error("{path}:1: a recording of version {found}; this program reads {OLDEST} to {VERSION}: record the run anew")]
    Version {
        /// The file.
        path: String,
        /// Version of the file.
        found: u64,
    },
    /// The recording begins in the middle of a run.
    #[error(
        "{path} begins {at_s:.1} s into the run, so the state of its scheduler there is unknown and cannot be replayed; \
         `ripieno simulate --recording` and `ripieno why` read it. For a replay, dump within the first minutes or use \
         `ripieno serve --record`"
    )]
    Partial {
        /// The file.
        path: String,
        /// Instant of its first event, in seconds since the start of the run.
        at_s: f64,
    },
    /// The file is of several schedulers.
    #[error(
        "{path} is of {sub_clusters} sub-clusters, each with a scheduler of its own, and cannot be replayed; \
         `ripieno why` reads it"
    )]
    SubClusters {
        /// The file.
        path: String,
        /// Number of sub-clusters.
        sub_clusters: usize,
    },
    /// The scheduler cannot be built.
    #[error("cannot build policy {policy:?} of the recording: {error}")]
    Build {
        /// Name of the policy.
        policy: String,
        /// The cause.
        error: String,
    },
}

/// Replays the recording in `path`. `build` receives the recording's header and creates a scheduler
/// with the same number of shards.
pub fn replay<S: Into<ServedPolicy>, E: std::fmt::Display>(
    path: &Path,
    build: impl FnOnce(&Header) -> Result<S, E>,
) -> Result<ReplayReport, ReplayError> {
    let mut events = RecordedEvents::open(path)?;
    let header = events.header();
    if let Some(begins) = header.begins {
        return Err(ReplayError::Partial { path: events.lines.path, at_s: begins.as_millis_f64() / 1e3 });
    }
    if header.sub_clusters > 1 {
        let sub_clusters = header.sub_clusters;
        return Err(ReplayError::SubClusters { path: events.lines.path, sub_clusters });
    }
    let built = build(header)
        .map_err(|error| ReplayError::Build { policy: header.policy.clone(), error: error.to_string() })?;
    let mut shards = built.into().pieces;
    let mut out = Outbox::new(&header.setup.limits);
    let mut replayed = ReplayReport { inputs: 0, settles: 0, truncated: true, difference: None };
    while let Some((shard, now, event)) = events.next()? {
        let shard = shards.get_mut(shard).ok_or_else(|| events.unknown(shard))?;
        // A grant to a scheduler that is no shard is skipped; later decisions then differ.
        if let (Event::Grant(words), Some(shard)) = (&event, shard_in(shard.as_mut())) {
            shard.on_grant(Grant::from_words(words));
        }
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
        // The version is checked first, because another version may have other keys.
        let found = first.get("ripieno_recording").and_then(serde_json::Value::as_u64);
        if let Some(found) = found.filter(|found| !(OLDEST.into()..=VERSION.into()).contains(found)) {
            return Err(ReplayError::Version { path: lines.path, found });
        }
        let header = serde_json::from_value(first);
        let header = header.map_err(|error| ReplayError::Line { path: lines.path.clone(), line: 1, error })?;
        Ok(RecordedEvents { lines, header, truncated: true })
    }

    /// Returns the header with the recorded scheduler's policy and setup.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next event with its shard (from 0) and its instant. Returns `None` at the end of
    /// the recording or where the file is cut off. Instants increase within a shard; events of
    /// several shards interleave.
    #[allow(clippy::should_implement_trait, reason = "an iterator could not end with an error")]
    pub fn next(&mut self) -> Result<Option<(usize, Time, Event)>, ReplayError> {
        loop {
            match self.next_entry()? {
                Some((shard, now, FlightEntry::Event(event))) => return Ok(Some((shard, now, event))),
                Some((_, _, FlightEntry::Aside(_))) => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns the next entry, which may be a fact beside the events.
    pub fn next_entry(&mut self) -> Result<Option<(usize, Time, FlightEntry)>, ReplayError> {
        match self.lines.next()? {
            Some(RecordedLine::At(now, event)) => Ok(Some((0, now, FlightEntry::Event(event)))),
            Some(RecordedLine::Of(shard, now, event)) => Ok(Some((shard, now, FlightEntry::Event(event)))),
            Some(RecordedLine::Aside(shard, now, aside)) => Ok(Some((shard, now, FlightEntry::Aside(aside)))),
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

    /// Number of bytes read, after decompression.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// Whether events are missing at the end, because the recording's queue overflowed or the
    /// server was killed.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// Reads JSON values line by line and tracks the position.
struct Lines {
    path: String,
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    number: usize,
    bytes: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines, ReplayError> {
        let name = path.display().to_string();
        let open = || -> io::Result<Box<dyn BufRead>> {
            let mut file = BufReader::new(File::open(path)?);
            let is_compressed = file.fill_buf()?.starts_with(&GZIP);
            Ok(if is_compressed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
        };
        let reader = open().map_err(|error| ReplayError::Io { path: name.clone(), error })?;
        Ok(Lines { path: name, reader, buffer: Vec::new(), number: 0, bytes: 0 })
    }

    fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, ReplayError> {
        self.buffer.clear();
        let mut line = self.reader.by_ref().take(MAX_LINE_BYTES);
        let read = match line.read_until(b'\n', &mut self.buffer) {
            Ok(read) => read as u64,
            // The end of a compressed file is missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(ReplayError::Io { path: self.path.clone(), error }),
        };
        if read == MAX_LINE_BYTES {
            let error = serde_json::Error::custom(format!("the line is longer than {MAX_LINE_BYTES} bytes"));
            return Err(ReplayError::Line { path: self.path.clone(), line: self.number + 1, error });
        }
        // A server that was killed may leave an incomplete last line.
        if !self.buffer.ends_with(b"\n") {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read;
        let value = serde_json::from_slice(&self.buffer);
        value.map(Some).map_err(|error| ReplayError::Line { path: self.path.clone(), line: self.number, error })
    }
}
