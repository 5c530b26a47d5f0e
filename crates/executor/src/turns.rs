//! Turns: at most so many at once, the others in the order in which they came.
//!
//! A mutex or a plain counter would let a lane that has just ended take the next turn before one that waits is awake, and a busy
//! lane could starve the others.

use parking_lot::{Condvar, Mutex};

pub(crate) struct Turns {
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    /// The number of the next one to come.
    next: u64,
    /// Those with smaller numbers may run.
    admitted: u64,
}

/// The right to run; given back when it is dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(crate) fn new(at_once: usize) -> Turns {
        let state = State { next: 0, admitted: at_once.max(1) as u64 };
        Turns { state: Mutex::new(state), moved: Condvar::new() }
    }

    /// Waits for a turn.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let own = state.next;
        state.next += 1;
        self.moved.wait_while(&mut state, |state| own >= state.admitted);
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().admitted += 1;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn never_more_than_so_many_run_at_once_and_all_get_their_turn() {
        let (turns, inside, most) = (Turns::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let turn = turns.take();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        let state = turns.state.into_inner();
        assert_eq!((state.next, state.admitted), (800, 802));
    }
}
