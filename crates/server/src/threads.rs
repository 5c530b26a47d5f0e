//! The threads that connections are served on.
//!
//! A connection stays on one thread from its first byte to its last, so that an answer wakes only the thread that writes it. On
//! threads that take each other's work, each of them that has something to do wakes another one to look, which at low loads
//! costs more than serving does.

use std::sync::Arc;
use tokio::runtime::Handle;

/// Runtimes of one thread each, and how many connections each has.
pub(crate) struct Threads(Vec<Thread>);

struct Thread {
    runtime: Handle,
    /// Held by each connection.
    seat: Arc<()>,
}

/// A connection's place on its thread, until it is dropped.
pub(crate) struct Seat {
    _seat: Arc<()>,
}

impl Threads {
    /// Those of these runtimes; of the one that this is called on if there are none.
    pub(crate) fn new(runtimes: &[Handle]) -> Threads {
        let thread = |runtime| Thread { runtime, seat: Arc::default() };
        match runtimes {
            [] => Threads(vec![thread(Handle::current())]),
            some => Threads(some.iter().cloned().map(thread).collect()),
        }
    }

    /// The thread with the fewest connections, the first of several.
    pub(crate) fn take(&self) -> (&Handle, Seat) {
        let thread = self.0.iter().min_by_key(|thread| Arc::strong_count(&thread.seat)).expect("there is a thread");
        (&thread.runtime, Seat { _seat: thread.seat.clone() })
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
        let threads = Threads::new(&handles);
        let take = || {
            let (runtime, seat) = threads.take();
            (runtime.id(), seat)
        };
        let mut taken: Vec<(Id, Seat)> = (0..6).map(|_| take()).collect();
        let ids: Vec<Id> = taken.iter().map(|(id, _)| *id).collect();
        let expected: Vec<Id> = handles.iter().cycle().take(6).map(Handle::id).collect();
        assert_eq!(ids, expected);
        let (left, _) = taken.remove(4);
        assert_eq!(take().0, left, "a place that became free is taken first");
    }
}
