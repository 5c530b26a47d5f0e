//! The threads that serve connections.
//!
//! A connection stays on one thread, so that a response wakes only the thread that writes it. With
//! work stealing, every thread that has work wakes another one to look for some, which at low loads
//! costs more than serving does.

use std::sync::Arc;
use tokio::runtime::Handle;

/// Single-threaded runtimes and the number of connections on each.
pub(crate) struct ConnectionThreads(Vec<ServingThread>);

struct ServingThread {
    runtime: Handle,
    /// Token cloned by each connection on the thread.
    seat: Arc<()>,
}

/// A connection's assignment to its thread, until drop.
pub(crate) struct ThreadSeat {
    _seat: Arc<()>,
}

impl ConnectionThreads {
    /// Creates the set from these runtimes, or from the current one if there are none.
    pub(crate) fn new(runtimes: &[Handle]) -> ConnectionThreads {
        let thread = |runtime| ServingThread { runtime, seat: Arc::default() };
        match runtimes {
            [] => ConnectionThreads(vec![thread(Handle::current())]),
            some => ConnectionThreads(some.iter().cloned().map(thread).collect()),
        }
    }

    /// Returns the thread with the fewest connections, the first among equals.
    pub(crate) fn least_loaded(&self) -> (&Handle, ThreadSeat) {
        let thread = self.0.iter().min_by_key(|thread| Arc::strong_count(&thread.seat)).expect("there is a thread");
        (&thread.runtime, ThreadSeat { _seat: thread.seat.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::{Builder, Id};

    #[test]
    fn connections_go_where_the_fewest_are() {
        let runtimes: Vec<_> = (0..3).map(|_| Builder::new_current_thread().build().unwrap()).collect();
        let handles: Vec<Handle> = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        let threads = ConnectionThreads::new(&handles);
        let take = || {
            let (runtime, seat) = threads.least_loaded();
            (runtime.id(), seat)
        };
        let mut taken: Vec<(Id, ThreadSeat)> = (0..6).map(|_| take()).collect();
        let ids: Vec<Id> = taken.iter().map(|(id, _)| *id).collect();
        let expected: Vec<Id> = handles.iter().cycle().take(6).map(Handle::id).collect();
        assert_eq!(ids, expected);
        let (left, _) = taken.remove(4);
        assert_eq!(take().0, left, "a place that became free is taken first");
    }
}
