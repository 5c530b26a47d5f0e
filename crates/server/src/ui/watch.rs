//! The history of the last seconds, kept only while a page is open.
//!
//! The first open page starts a reader of the flight recorder a few seconds in the past; all pages
//! share the reader. It is dropped a while after the last page was closed. Views are rendered one
//! at a time on a blocking thread, so that no connection waits for them.

use parking_lot::Mutex;
use ripieno_base::{Nanos, Time};
use ripieno_runtime::history::History;
use ripieno_runtime::{FlightFollower, FlightRecorder};
use std::time::{Duration, Instant};

/// Span of the history that pages see.
pub(super) const SPAN: Nanos = Nanos::from_millis(20_000);
/// Age at which entries are read anew.
const FRESH: Duration = Duration::from_millis(300);
/// Time after which an unused history is dropped.
const UNUSED: Duration = Duration::from_secs(10);

/// The history that pages share.
#[derive(Default)]
pub(crate) struct Watch(Mutex<Option<Watched>>);

struct Watched {
    history: History,
    follower: FlightFollower,
    read: Instant,
}

impl Watch {
    /// Passes the history of the last seconds to `view`; `None` without a flight recorder.
    pub(super) fn view<T>(&self, flight: Option<FlightRecorder>, view: impl FnOnce(&History) -> T) -> Option<T> {
        let flight = flight?;
        let mut watched = self.0.lock();
        // A cluster may get a sub-cluster more, or lead anew.
        watched.take_if(|watched| !watched.follower.reads(&flight));
        let watched = watched.get_or_insert_with(|| Watched::new(&flight));
        if watched.read.elapsed() >= FRESH {
            watched.catch_up(flight.now());
        }
        Some(view(&watched.history))
    }

    /// Drops the history if no page has used it for a while.
    pub(super) fn drop_unused(&self) {
        let mut watched = self.0.lock();
        if watched.as_ref().is_some_and(|watched| watched.read.elapsed() > UNUSED) {
            *watched = None;
        }
    }
}

impl Watched {
    fn new(flight: &FlightRecorder) -> Watched {
        let now = flight.now();
        let (follower, history) = flight.follow(now - SPAN);
        let mut watched = Watched { history, follower, read: Instant::now() };
        watched.catch_up(now);
        watched
    }

    fn catch_up(&mut self, now: Time) {
        let Watched { history, follower, .. } = self;
        let mut count = 0_u32;
        follower.read(|shard, at, entry| {
            history.add(shard, at, &entry);
            count += 1;
            if count.is_multiple_of(1 << 14) {
                history.forget_before(at - SPAN);
            }
        });
        history.forget_before(now - SPAN);
        self.read = Instant::now();
    }
}

/// Reads the recorder from about `from` until `done` holds, with a history of at most `span`.
pub(super) fn search(
    flight: &FlightRecorder,
    from: Time,
    span: Nanos,
    mut done: impl FnMut(&History) -> bool,
) -> History {
    let (mut follower, mut history) = flight.follow(from);
    let (mut count, mut over) = (0_u32, false);
    follower.read(|shard, at, entry| {
        if over {
            return;
        }
        history.add(shard, at, &entry);
        count += 1;
        if count.is_multiple_of(256) {
            over = done(&history);
            if !over {
                history.forget_before(at - span);
            }
        }
    });
    history
}
