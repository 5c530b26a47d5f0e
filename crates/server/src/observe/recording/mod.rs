//! Recordings of the last minutes: on request, and by themselves when too many requests are late.

pub(crate) mod permits;

use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use bytes::Bytes;
use hyper::body::Frame;
use ripieno_runtime::FlightRecorder;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Bytes of a recording that are sent together.
const PIECE_BYTES: usize = 64 << 10;
/// BodyWriter that wait for the client.
const MAX_UNSENT: usize = 8;
/// Time between two recordings that begin by themselves.
const PAUSE: Duration = Duration::from_secs(600);
/// Number of such recordings that are kept; the oldest is removed.
const MOST_FILES: usize = 8;
/// Beginning of their names.
const PREFIX: &str = "ripieno-late-";

/// A piece of a body.
pub(crate) type BodyPiece = Result<Frame<Bytes>, Infallible>;

/// Returns why there is no recording, and where to find one.
fn no_recorder(state: &ServerState) -> &'static str {
    if state.backend.is_primary() {
        "this server keeps no flight recorder: it was started with --flight-mib 0, or no backend has come yet"
    } else {
        "this process decides nothing, so it keeps no flight recorder: ask the metrics port of the primary scheduler"
    }
}

/// Begins to write the last minutes as a recording, and returns its pieces.
pub(crate) fn stream(state: &ServerState) -> Result<Receiver<BodyPiece>, Problem> {
    let flight = state.backend.flight().ok_or_else(|| Problem::new(ProblemKind::NotOffered, no_recorder(state)))?;
    let busy = || Problem {
        retry_after: Some(Duration::from_secs(1)),
        ..Problem::new(ProblemKind::Overloaded, "another recording is being written; retry in a second")
    };
    let permit = state.dumps.permits.clone().try_acquire_owned().map_err(|_| busy())?;
    let (sender, receiver) = mpsc::channel(MAX_UNSENT);
    let mut to = BufWriter::with_capacity(PIECE_BYTES, BodyWriter { sender, _permit: permit });
    tokio::task::spawn_blocking(move || {
        // An error means that the client has gone.
        let written = flight.dump(&mut to).and_then(|_| to.flush());
        tracing::debug!(?written, "a recording was sent");
    });
    Ok(receiver)
}

/// Writes into the pieces of a body.
struct BodyWriter {
    sender: Sender<BodyPiece>,
    _permit: OwnedSemaphorePermit,
}

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Ok(Frame::data(Bytes::copy_from_slice(bytes)));
        self.sender.blocking_send(piece).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a recording if the share of requests in time has fallen below the bound, unless one was
/// written a short while ago.
pub(crate) fn watch(state: &ServerState) {
    let Some((auto, flight)) = state.config.auto_dump.clone().zip(state.backend.flight()) else { return };
    let share = state.reading().map_or(1.0, |reading| 1.0 - reading.not_in_time());
    if share >= auto.below {
        return;
    }
    let mut last = state.dumps.last.lock();
    if last.is_some_and(|last| last.elapsed() < PAUSE) {
        return;
    }
    let Ok(permit) = state.dumps.permits.clone().try_acquire_owned() else { return };
    *last = Some(Instant::now());
    tokio::task::spawn_blocking(move || {
        match write(&auto.folder, &flight) {
            Ok(file) => tracing::warn!(
                "only {:.1} % of the requests are in time; the last minutes are recorded in {}: `ripieno why {}` says why",
                share * 100.0,
                file.display(),
                file.display()
            ),
            Err(error) => tracing::error!(%error, "cannot record into {}", auto.folder.display()),
        }
        drop(permit);
    });
}

/// Writes a recording into the folder, and removes the oldest ones.
fn write(folder: &Path, flight: &FlightRecorder) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = folder.join(format!("{PREFIX}{}.jsonl", since_epoch.as_secs()));
    let mut file = BufWriter::new(File::create(&path)?);
    flight.dump(&mut file)?;
    file.flush()?;
    let ours = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let number = name.strip_prefix(PREFIX)?.strip_suffix(".jsonl")?.parse::<u64>().ok()?;
        Some((number, folder.join(&name)))
    };
    let mut files: Vec<_> = fs::read_dir(folder)?.filter_map(ours).collect();
    files.sort_unstable();
    let surplus = files.len().saturating_sub(MOST_FILES);
    for (_, old) in &files[..surplus] {
        fs::remove_file(old)?;
    }
    Ok(path)
}
