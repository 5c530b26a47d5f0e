//! Sessions that no batch uses.

use super::BlockSessions;
use super::places::EnginePlace;
use parking_lot::{Condvar, Mutex};

/// Idle sessions of a model on one GPU, or on the CPU.
pub(super) struct SessionPool {
    pub(super) place: EnginePlace,
    state: Mutex<PoolState>,
    given_back: Condvar,
}

#[derive(Default)]
struct PoolState {
    made: usize,
    idle: Vec<BlockSessions>,
}

/// The sessions of a running batch, which are released on drop.
pub(super) struct SessionLease<'a> {
    pool: &'a SessionPool,
    pub(super) sessions: BlockSessions,
}

impl SessionPool {
    pub(super) fn new(place: EnginePlace) -> SessionPool {
        SessionPool { place, state: Mutex::default(), given_back: Condvar::new() }
    }

    /// Whether sessions are missing. If so, counts one set of sessions as created.
    pub(super) fn reserve(&self) -> bool {
        let mut state = self.state.lock();
        let missing = state.made < self.wanted();
        state.made += usize::from(missing);
        missing
    }

    /// Counts one set of sessions as not created after all.
    pub(super) fn unreserve(&self) {
        self.state.lock().made -= 1;
    }

    /// Returns the number of sets of sessions that were created.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.state.lock().made
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }

    /// Acquires the sessions for one batch. Waits if the sessions of a new device are still being
    /// created.
    pub(super) fn acquire(&self) -> SessionLease<'_> {
        let mut state = self.state.lock();
        loop {
            match state.idle.pop() {
                Some(sessions) => return SessionLease { pool: self, sessions },
                None => self.given_back.wait(&mut state),
            }
        }
    }

    /// Takes sessions that no batch uses. `None` if all are in use.
    pub(super) fn take_idle(&self) -> Option<BlockSessions> {
        self.state.lock().idle.pop()
    }

    /// Returns sessions to the pool. Drops them if a closed device made them unnecessary.
    pub(super) fn release(&self, sessions: BlockSessions) {
        let mut state = self.state.lock();
        if state.made > self.wanted() {
            state.made -= 1;
        } else {
            state.idle.push(sessions);
            self.given_back.notify_one();
        }
    }

    fn wanted(&self) -> usize {
        self.place.concurrent().max(1)
    }
}

impl Drop for SessionLease<'_> {
    fn drop(&mut self) {
        self.pool.release(std::mem::take(&mut self.sessions));
    }
}
