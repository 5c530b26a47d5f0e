//! The server's bytes: requests from their first byte, what they decode to, and answers until their last byte is sent.
//!
//! A reservation is tied to the memory that it stands for ([`hold`]): the bytes go back when the last slice of them is dropped,
//! wherever that is (in an engine's batch, in a connection's unsent data), and not when somebody thinks that it is.

use crate::problem::{Kind, Problem};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What a call takes whatever it carries: heads, futures, and its place in its connection.
const CALL_BYTES: usize = 4 << 10;
/// Calls may go this far beyond the bound, so that a full server can still say so and answer health checks.
const CALLS_BEYOND: usize = 16;
const LEAST_BEYOND: usize = 256 << 10;

/// Bytes that may be held, and those that are.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicUsize,
    bound: usize,
}

/// Bytes set aside until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(bound: usize) -> Arc<Budget> {
        Arc::new(Budget { held: AtomicUsize::new(0), bound })
    }

    /// Sets bytes aside, or says when to come again.
    pub(crate) fn reserve(self: &Arc<Budget>, bytes: usize) -> Result<Reservation, Problem> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// Room for one more call; none if even the reserve for saying no is used up.
    pub(crate) fn enter(self: &Arc<Budget>) -> Option<Reservation> {
        let beyond = (self.bound / CALLS_BEYOND).max(LEAST_BEYOND);
        let bound = self.bound.saturating_add(beyond);
        take(&self.held, CALL_BYTES, bound).then(|| Reservation { budget: self.clone(), bytes: CALL_BYTES })
    }

    /// Bytes that are reserved now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    fn full(&self, wanted: usize) -> Problem {
        let held = self.held();
        let bound = self.bound;
        if wanted > bound {
            return Problem::new(
                Kind::TooLarge,
                format!(
                    "the request or its answer takes {wanted} bytes, more than the {bound} that the server may hold"
                ),
            );
        }
        Problem {
            retry_after: Some(Duration::from_secs(1)),
            ..Problem::new(
                Kind::Overloaded,
                format!("the server holds {held} of {bound} bytes, and {wanted} more do not fit; retry later"),
            )
        }
    }
}

fn take(held: &AtomicUsize, bytes: usize, bound: usize) -> bool {
    held.fetch_update(Relaxed, Relaxed, |held| held.checked_add(bytes).filter(|&sum| sum <= bound)).is_ok()
}

impl Reservation {
    /// Grows or shrinks; a growth that is refused changes nothing.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes > self.bytes && !take(&self.budget.held, bytes - self.bytes, self.budget.bound) {
            return Err(self.budget.full(bytes));
        }
        if bytes < self.bytes {
            self.budget.held.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Problem> {
        self.resize(self.bytes.saturating_add(bytes))
    }

    /// Makes room in `buffer` for at least `more` bytes, and at most `most` in all. The old and the new buffer stand side
    /// by side for a moment, so both are reserved.
    pub(crate) fn grow(&mut self, buffer: &mut Vec<u8>, more: usize, most: usize) -> Result<(), Problem> {
        let wanted = buffer.len() + more;
        if wanted <= buffer.capacity() {
            return Ok(());
        }
        let (before, capacity) = (buffer.capacity(), wanted.max(buffer.capacity() * 2).min(most.max(wanted)));
        self.add(capacity)?;
        buffer.reserve_exact(capacity - buffer.len());
        self.resize(self.bytes - before)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// Ties something (a reservation, a place among the unsent) to bytes until the last slice of them is gone.
pub(crate) fn hold<T: AsRef<[u8]> + Send + 'static, W: Send + 'static>(data: T, with: W) -> Bytes {
    struct Held<T, W>(T, #[allow(dead_code)] W);
    impl<T: AsRef<[u8]>, W> AsRef<[u8]> for Held<T, W> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref()
        }
    }
    Bytes::from_owner(Held(data, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_the_last_slice_is_gone() {
        let budget = Budget::new(100);
        let reservation = budget.reserve(60).unwrap();
        let slice = hold(vec![7; 60], reservation).slice(5..6);
        assert_eq!((budget.held(), slice[0]), (60, 7));
        let refused = budget.reserve(41).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_s()), (Kind::Overloaded, Some(1)));
        assert_eq!(budget.reserve(101).unwrap_err().kind, Kind::TooLarge);
        drop(slice);
        assert_eq!(budget.held(), 0);
        assert!(budget.reserve(100).is_ok());
    }

    #[test]
    fn a_growing_buffer_is_reserved_before_it_grows() {
        let budget = Budget::new(100);
        let mut reservation = budget.reserve(0).unwrap();
        let mut buffer = Vec::new();
        reservation.grow(&mut buffer, 30, 64).unwrap();
        assert_eq!((budget.held(), buffer.capacity()), (30, 30));
        buffer.resize(30, 0);
        reservation.grow(&mut buffer, 1, 64).unwrap();
        assert_eq!((budget.held(), buffer.capacity()), (60, 60));
        buffer.resize(60, 0);
        assert!(reservation.grow(&mut buffer, 1, 64).is_err());
        assert_eq!((budget.held(), buffer.capacity()), (60, 60));
        drop(reservation);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_full_server_still_takes_calls_to_refuse_them() {
        let budget = Budget::new(1000);
        let _all = budget.reserve(1000).unwrap();
        let calls: Vec<_> = std::iter::from_fn(|| budget.enter()).collect();
        assert_eq!(calls.len(), LEAST_BEYOND / CALL_BYTES);
    }
}
