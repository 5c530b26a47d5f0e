//! A fair semaphore, which grants its permits in the order of arrival.
//!
//! A mutex or a plain counter is not fair. A lane that has just released could acquire again before
//! a waiting lane wakes up, so a busy lane could starve the others.

use parking_lot::{Condvar, Mutex};

pub(crate) struct RunPermits {
    state: Mutex<PermitState>,
    moved: Condvar,
}

struct PermitState {
    /// Number of the next arrival.
    next: u64,
    /// Number from which arrivals still wait. Arrivals with smaller numbers were granted a permit.
    admitted: u64,
}

/// Permission to run; dropping it releases the permit.
pub(crate) struct RunPermit<'a>(&'a RunPermits);

impl RunPermits {
    pub(crate) fn new(max_concurrent: usize) -> RunPermits {
        let state = PermitState { next: 0, admitted: max_concurrent.max(1) as u64 };
        RunPermits { state: Mutex::new(state), moved: Condvar::new() }
    }

    /// Waits for a permit.
    pub(crate) fn acquire(&self) -> RunPermit<'_> {
        let mut state = self.state.lock();
        let own = state.next;
        state.next += 1;
        self.moved.wait_while(&mut state, |state| own >= state.admitted);
        RunPermit(self)
    }
}

impl Drop for RunPermit<'_> {
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
    fn permits_are_limited_and_none_starves() {
        let (permits, inside, most) = (RunPermits::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let permit = permits.acquire();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        let state = permits.state.into_inner();
        assert_eq!((state.next, state.admitted), (800, 802));
    }
}
